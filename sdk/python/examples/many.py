"""Runs commands in several sandboxes at once."""

import asyncio

from microsandbox import Sandbox


async def square(number: int) -> str:
    async with await Sandbox.create(f"many-{number}", image="host", replace=True) as sandbox:
        return (await sandbox.shell(f"echo $(({number} * {number}))")).stdout_text.strip()


async def main() -> None:
    print(await asyncio.gather(*(square(number) for number in range(4))))


asyncio.run(main())
