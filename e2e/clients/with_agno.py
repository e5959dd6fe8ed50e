"""The `MCPTools` of `agno` from PyPI, called as its agents call them, without a model.

Usage: with_agno.py DIALECT URL
"""

import asyncio

from agno.tools.mcp import MCPTools
from journeys import DIALECTS, arguments, check, walk


async def main():
    name, (url,) = arguments()
    async with MCPTools(transport="streamable-http", url=url, timeout_seconds=60) as tools:
        names = set(tools.functions)
        check(f"{name}: its functions", len(names) == DIALECTS[name].tools, names)

        async def call(tool, given):
            # An agent calls only what it has found.
            function = tools.functions.get(tool)
            if function is None:
                return True, f"{tool} is not among the functions"
            result = await function.entrypoint(**given)
            return result.content.startswith("Error"), result.content

        await walk(name, call, can_cancel=False)
    print("all is well")


asyncio.run(main())
