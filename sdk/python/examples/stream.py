"""Streams output as it comes, and input as it is written."""

import asyncio

from microsandbox import ExecEventType, Sandbox, Stdin


async def main() -> None:
    async with await Sandbox.create("stream", image="host", replace=True) as sandbox:
        handle = await sandbox.exec_stream("cat", stdin=Stdin.pipe())
        sink = handle.take_stdin()
        assert sink is not None
        await sink.write(b"one line\n")
        await sink.close()
        async for event in handle:
            if event.event_type is ExecEventType.STDOUT:
                print((event.data or b"").decode(), end="")


asyncio.run(main())
