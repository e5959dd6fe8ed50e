"""Shares files between sandboxes through a volume."""

import asyncio

from microsandbox import Sandbox, Volume


async def main() -> None:
    mount = {"/data": Volume.named("example-data")}
    async with await Sandbox.create("writer", image="host", volumes=mount, replace=True) as one:
        await one.fs.write("/data/x", b"shared\n")
    async with await Sandbox.create("reader", image="host", volumes=mount, replace=True) as two:
        print(await two.fs.read_text("/data/x"), end="")
    await Volume.remove("example-data")


asyncio.run(main())
