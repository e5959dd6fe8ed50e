"""The unmodified `microsandbox==0.1.8` from PyPI against /api/v1/rpc.

Usage: microsandbox_0_1_8.py URL [KEY [KEY_OF_NAMESPACE NAMESPACE]]

Prints one line for each thing that works and exits with 1 at the first that does not. Needs a server
with sandboxes that have python3. Without Node.js its part is left out, and a line says so.
"""

import asyncio
import sys
import uuid

from microsandbox import NodeSandbox, PythonSandbox


def check(what, well, seen=None):
    if not well:
        print(f"FAILED: {what}: {seen!r}")
        sys.exit(1)
    print(f"ok: {what}")


def unique(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


async def raises(what, action, *parts):
    try:
        await action
    except RuntimeError as error:
        check(what, all(part in str(error) for part in parts), str(error))
        return
    check(what, False, "nothing was raised")


async def python(url, key):
    async with PythonSandbox.create(server_url=url, api_key=key, name=unique("py")) as sandbox:
        ran = await sandbox.run("name = 'Python'")
        check("code without output", await ran.output() == "" and not ran.has_error(), vars(ran))
        check("status and language", (ran.status, ran.language) == ("success", "python"), vars(ran))
        ran = await sandbox.run("print(f'Hello {name}!')")
        check("state is kept", await ran.output() == "Hello Python!", vars(ran))
        ran = await sandbox.run("name + '!'")
        check("the last value is shown", await ran.output() == "'Python!'", vars(ran))
        ran = await sandbox.run("import sys\nfor i in range(3):\n    print(i)\nprint('e', file=sys.stderr)")
        check("lines of stdout", await ran.output() == "0\n1\n2", vars(ran))
        check("lines of stderr", await ran.error() == "e" and ran.has_error(), vars(ran))
        ran = await sandbox.run("1 / 0")
        check("an exception", ran.has_error() and "ZeroDivisionError" in await ran.error(), vars(ran))
        ran = await sandbox.run("import os\nos._exit(3)")
        check("a crash", ran.status == "error" and "exited with 3" in await ran.error(), vars(ran))
        ran = await sandbox.run("print('again')")
        check("a new interpreter", await ran.output() == "again" and not ran.has_error(), vars(ran))
        many = await asyncio.gather(*(sandbox.run(f"print({i})") for i in range(10)))
        said = [await ran.output() for ran in many]
        check("calls at the same time", said == [str(i) for i in range(10)], said)

        ran = await sandbox.command.run("echo", ["hello", "world"])
        check("a command", await ran.output() == "hello world" and ran.success, vars(ran))
        check("its command line", (ran.command, ran.args) == ("echo", ["hello", "world"]), vars(ran))
        ran = await sandbox.command.run("sh", ["-c", "echo out; echo err >&2; exit 7"])
        check("an exit code", (ran.exit_code, ran.success) == (7, False), vars(ran))
        check("its streams", (await ran.output(), await ran.error()) == ("out", "err"), vars(ran))
        ran = await sandbox.command.run("sleep", ["60"], timeout=1)
        check("a timeout", not ran.success and ran.exit_code == 124, vars(ran))
        await raises("no such program", sandbox.command.run("no-such-program"), "no-such-program")

        check("it runs", await sandbox.metrics.is_running())
        seen = await sandbox.metrics.all()
        check("all metrics", seen["name"] == sandbox._name and seen["namespace"] == "default", seen)
        check("processor", (await sandbox.metrics.cpu()) >= 0)
        check("memory", isinstance(await sandbox.metrics.memory(), int))
        check("disk", isinstance(await sandbox.metrics.disk(), (int, type(None))))
    check("it is stopped", not sandbox._is_started)


async def again(url, key):
    name = unique("again")
    async with PythonSandbox.create(server_url=url, api_key=key, name=name) as sandbox:
        await sandbox.command.run("sh", ["-c", "echo kept > /root/file || echo kept > /tmp/file"])
    async with PythonSandbox.create(server_url=url, api_key=key, name=name) as sandbox:
        ran = await sandbox.command.run("sh", ["-c", "cat /root/file || cat /tmp/file"])
        check("files of a stopped sandbox", await ran.output() == "kept", vars(ran))


async def node(url, key):
    async with NodeSandbox.create(server_url=url, api_key=key, name=unique("js")) as sandbox:
        try:
            ran = await sandbox.run("const name = 'Node'")
        except RuntimeError as error:
            if "has no `nodejs`" in str(error):
                print("skipped: this server's sandboxes have no Node.js")
                return
            raise
        check("nodejs", (ran.status, ran.language) == ("success", "nodejs"), vars(ran))
        ran = await sandbox.run("console.log(`Hello ${name}!`); console.error('e')")
        check("state of nodejs", await ran.output() == "Hello Node!", vars(ran))
        check("stderr of nodejs", await ran.error() == "e", vars(ran))
        ran = await sandbox.run("throw new Error('no')")
        check("an exception of nodejs", "Error: no" in await ran.error() and ran.has_error(), vars(ran))


async def wrong(url, key):
    sandbox = PythonSandbox(server_url=url, api_key=key, name="no name at all")
    import aiohttp

    async with aiohttp.ClientSession() as session:
        sandbox._session = session
        await raises("a name that is none", sandbox.start(), "2001", "alphanumeric")
        sandbox._name = unique("never")
        sandbox._is_started = True
        await raises("a sandbox that is none", sandbox.run("1"), "no sandbox")
        await raises("its metrics", sandbox.metrics.all(), "no sandbox")
        await raises("its end", sandbox.stop(), "no sandbox")


async def keys(url, key, scoped, namespace):
    for bad in ["", "msb_x", key[:-2] + ("AA" if key[-2:] != "AA" else "BB"), key[4:]]:
        sandbox = PythonSandbox.create(server_url=url, api_key=bad or "nothing", name=unique("no"))
        await raises("a key that is not good", sandbox.__aenter__(), "100")
    if not scoped:
        return
    sandbox = PythonSandbox.create(server_url=url, api_key=scoped, name=unique("no"))
    await raises("a key of another namespace", sandbox.__aenter__(), "3001", "Access denied")
    name = unique("own")
    mine = PythonSandbox.create(server_url=url, api_key=scoped, namespace=namespace, name=name)
    async with mine as sandbox:
        ran = await sandbox.run("40 + 2")
        check("a key of its own namespace", await ran.output() == "42", vars(ran))
        seen = await sandbox.metrics.all()
        check("its name", (seen["name"], seen["namespace"]) == (name, namespace), seen)
        other = PythonSandbox(server_url=url, api_key=key, name=name)
        other._session, other._is_started = sandbox._session, True
        await raises("the same name elsewhere", other.run("1"), "no sandbox")


async def main():
    url, *rest = sys.argv[1:]
    key, scoped, namespace = (rest + [None] * 3)[:3]
    await python(url, key)
    await again(url, key)
    await node(url, key)
    await wrong(url, key)
    if key:
        await keys(url, key, scoped, namespace)
    print("all is well")


asyncio.run(main())
