"""The `mcp` package from PyPI, in both eras of the protocol.

Usage: with_mcp.py DIALECT URL
       with_mcp.py DIALECT COMMAND ARGUMENT…
"""

import asyncio
import warnings

import mcp
from journeys import DIALECTS, arguments, check, environment, walk

# It tells what newer servers have no more, which is what is tried here.
warnings.simplefilter("ignore")


def server(target):
    if target[0].startswith("http://"):
        return target[0]
    command, *rest = target
    return mcp.StdioServerParameters(command=command, args=rest, env=environment())


async def era(name, target, mode):
    told, said = [], []

    async def on_message(message):
        told.append(message)

    async def on_log(params):
        said.append(params)

    client = mcp.Client(
        server(target), mode=mode, message_handler=on_message, logging_callback=on_log
    )
    async with client:
        print(f"{name}: {client.protocol_version}", flush=True)
        newer = client.protocol_version >= "2026-07-28"
        check(f"{name}: the era", newer == (mode != "legacy"), client.protocol_version)
        tools = (await client.list_tools()).tools
        check(f"{name}: its tools", len(tools) == DIALECTS[name].tools, len(tools))

        async def call(tool, given):
            result = await client.call_tool(tool, given)
            text = "\n".join(block.text for block in result.content if block.type == "text")
            return result.is_error, text

        await lists(name, client)
        if not newer:
            await client.set_logging_level("warning")
        await walk(name, call)
        if not newer:
            levels = {params.level for params in said}
            check(f"{name}: only levels that were asked for", levels <= {"warning"}, levels)
            check(f"{name}: failures are logged", "warning" in levels, said)
        if name == "microsandbox":
            await updates(client, call, told, newer)


async def lists(name, client):
    dialect, has = DIALECTS[name], client.server_capabilities
    if has.resources:
        listed = (await client.list_resources()).resources
        check(f"{name}: its resources", len(listed) == dialect.resources, listed)
        for resource in listed:
            read = await client.read_resource(str(resource.uri))
            check(f"{name}: {resource.uri}", read.contents[0].text, read)
    if has.prompts:
        listed = (await client.list_prompts()).prompts
        check(f"{name}: its prompts", len(listed) == dialect.prompts, listed)
        for prompt in listed:
            got = await client.get_prompt(prompt.name, {"sandbox_name": "box"})
            check(f"{name}: {prompt.name}", "box" in got.messages[0].content.text, got)


async def updates(client, call, told, newer):
    """A client subscribed to the list of sandboxes is notified of a new one."""
    uri = "microsandbox://sandboxes"
    box = DIALECTS["microsandbox"]()
    if newer:
        async with client.listen(resource_subscriptions=[uri]) as subscription:
            await call(*box.make())
            async for event in subscription:
                check("microsandbox: an event of what changed", uri in str(event), event)
                break
    else:
        await client.subscribe_resource(uri)
        await call(*box.make())
        while not any(uri in str(message) for message in told):
            await asyncio.sleep(0.05)
        check("microsandbox: told of what changed", True)
        await client.unsubscribe_resource(uri)
    await call(*box.remove())


async def main():
    name, target = arguments()
    await era(name, target, "legacy")
    await era(name, target, "auto")
    print("all is well")


asyncio.run(main())
