"""Tells failures apart by their classes."""

import asyncio

from microsandbox import ExecFailedError, ExecTimeoutError, Sandbox


async def main() -> None:
    async with await Sandbox.create("failures", image="host", replace=True) as sandbox:
        try:
            await sandbox.exec("no-such-program")
        except ExecFailedError as error:
            print(error.errno_name)
        try:
            await sandbox.exec("sleep", ["60"], timeout=0.2)
        except ExecTimeoutError as error:
            print(error.code)


asyncio.run(main())
