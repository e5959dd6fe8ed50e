"""Reviews the changes of a sandbox before they reach the host."""

import asyncio
import tempfile

from microsandbox import Sandbox


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with await Sandbox.create(
            "review", image="host", workspace=f"{directory}:/work", replace=True
        ) as sandbox:
            await sandbox.fs.write("/work/new.txt", b"made inside\n")
            for change in await sandbox.workspace.diff(patches=True):
                print(change.what, change.path)
            await sandbox.workspace.apply()


asyncio.run(main())
