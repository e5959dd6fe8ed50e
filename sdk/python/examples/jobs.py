"""Starts a command that goes on by itself, and waits for it later."""

import asyncio

from microsandbox import Sandbox


async def main() -> None:
    async with await Sandbox.create("jobs", image="host", replace=True) as sandbox:
        job = await sandbox.exec_detached("sh", ["-c", "echo working; exit 3"])
        print((await job.wait()).code, [entry.data for entry in await job.logs()])


asyncio.run(main())
