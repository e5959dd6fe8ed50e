"""Reads, writes and lists files inside."""

import asyncio

from microsandbox import Sandbox


async def main() -> None:
    async with await Sandbox.create("files", image="host", replace=True) as sandbox:
        await sandbox.fs.write("/tmp/note.txt", b"kept inside\n")
        print(await sandbox.fs.read_text("/tmp/note.txt"), end="")
        print([entry.path for entry in await sandbox.fs.list("/tmp")])


asyncio.run(main())
