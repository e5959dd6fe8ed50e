"""The same without asyncio."""

from microsandbox.sync import Sandbox

with Sandbox.create("blocking", image="host", replace=True) as sandbox:
    print(sandbox.exec("echo", ["no await"]).stdout_text, end="")
