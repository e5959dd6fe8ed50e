"""Saves a sandbox and starts another one from it."""

import asyncio

from microsandbox import Sandbox, Snapshot


async def main() -> None:
    async with await Sandbox.create("source", image="host", replace=True) as sandbox:
        await sandbox.fs.write("/root/ready", b"prepared\n")
        snapshot = await Snapshot.create("prepared", from_sandbox="source", force=True)
    async with await Sandbox.restore(snapshot, name="restored") as copy:
        print(await copy.fs.read_text("/root/ready"), end="")
    await Snapshot.remove("prepared", force=True)


asyncio.run(main())
