"""The `fastmcp` package from PyPI.

Usage: with_fastmcp.py DIALECT URL
       with_fastmcp.py DIALECT COMMAND ARGUMENT…
"""

import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from journeys import DIALECTS, arguments, check, environment, walk


def transport(target):
    if target[0].startswith("http://"):
        return target[0]
    command, *rest = target
    return StdioTransport(command=command, args=rest, env=environment())


async def main():
    name, target = arguments()
    async with Client(transport(target)) as client:
        tools = await client.list_tools()
        check(f"{name}: its tools", len(tools) == DIALECTS[name].tools, len(tools))

        async def call(tool, given):
            result = await client.call_tool(tool, given, raise_on_error=False)
            text = "\n".join(block.text for block in result.content if block.type == "text")
            return result.is_error, text

        await walk(name, call)
    print("all is well")


asyncio.run(main())
