"""Runs a program in a sandbox: the three lines."""

import asyncio

from microsandbox import Sandbox


async def main() -> None:
    sandbox = await Sandbox.create("hello", image="host", cpus=1, memory=512, replace=True)
    output = await sandbox.exec("python3", ["-c", "print('Hello!')"])
    print(output.stdout_text, end="")
    await sandbox.stop_and_wait()
    await Sandbox.remove("hello")


asyncio.run(main())
