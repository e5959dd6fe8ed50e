"""What every client is made to do with every dialect.

A client gives `call(tool, arguments)`, which answers with (whether it failed, its text).
"""

import asyncio
import json
import os
import re
import sys
import uuid


def check(what, well, seen=None):
    if not well:
        print(f"FAILED: {what}: {seen!r}", flush=True)
        sys.exit(1)
    print(f"ok: {what}", flush=True)


class Dialect:
    resources, prompts = 0, 0

    def __init__(self):
        self.box = f"box-{uuid.uuid4().hex[:8]}"

    # Whether a sandbox runs its commands one after the other.
    in_turn = False

    def made(self, text):
        """Told what came of making the sandbox."""

    def outlive(self, line):
        """Runs a line that does not end by itself."""
        return self.run(line)


class Core(Dialect):
    tools = 15

    def make(self):
        return "sandbox_create", {"name": self.box}

    def run(self, line):
        return "exec", {"sandbox": self.box, "command": line}

    def remove(self):
        return "sandbox_stop", {"sandbox": self.box, "remove": True}

    wrong = "exec", {"sandbox": 3}


class Microsandbox(Dialect):
    tools, resources = 70, 7

    def make(self):
        return "sandbox_create", {"name": self.box}

    def run(self, line):
        return "sandbox_shell", {"name": self.box, "command": line}

    def remove(self):
        return "sandbox_remove", {"name": self.box, "force": True}

    wrong = "sandbox_shell", {"name": 3}


class Server(Dialect):
    tools, prompts = 5, 2

    def make(self):
        return "sandbox_start", {"sandbox": self.box}

    def run(self, line):
        return "sandbox_run_command", {
            "sandbox": self.box,
            "command": "sh",
            "args": ["-c", line],
        }

    def remove(self):
        return "sandbox_stop", {"sandbox": self.box}

    wrong = "sandbox_run_code", {"sandbox": 3}


class SandboxMcp(Dialect):
    tools = 35

    def make(self):
        return "exec", {"sandbox": self.box, "command": "true"}

    def run(self, line):
        return "exec", {"sandbox": self.box, "command": line}

    def outlive(self, line):
        return "exec", {"sandbox": self.box, "command": line, "timeout": 86400}

    def remove(self):
        return "destroy", {"sandbox": self.box}

    in_turn = True
    wrong = "exec", {"sandbox": "box"}


class OpenSandbox(Dialect):
    tools = 19

    def make(self):
        return "sandbox_create", {"image": "host", "timeout_seconds": 300}

    def made(self, text):
        self.box = json.loads(text)["sandbox_id"]

    def run(self, line):
        return "command_run", {"sandbox_id": self.box, "command": line}

    def remove(self):
        return "sandbox_kill", {"sandbox_id": self.box}

    wrong = "command_run", {"sandbox_id": []}


DIALECTS = {
    "core": Core,
    "microsandbox": Microsandbox,
    "server": Server,
    "sandbox-mcp": SandboxMcp,
    "opensandbox": OpenSandbox,
}

# A command that would outlive every call, and how many of it run in the sandbox.
LONG = "sleep 86399"
COUNT = "echo found=$(cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 8639[9]' | wc -l)"


async def walk(name, call, can_cancel=True):
    """Makes a sandbox, uses it, gets it wrong, changes its mind, and removes it."""
    dialect = DIALECTS[name]()

    async def done(tool, arguments):
        failed, text = await call(tool, arguments)
        check(f"{name}: {tool}", not failed, text)
        return text

    dialect.made(await done(*dialect.make()))
    text = await done(*dialect.run("echo $((6 * 7))-here"))
    check(f"{name}: what a command says", "42-here" in text, text)
    failed, text = await call(*dialect.wrong)
    check(f"{name}: a wrong argument is a failure of the tool", failed and text, text)
    failed, text = await call("no_such_tool", {})
    check(f"{name}: so is a tool that is none", failed and "no_such_tool" in text, text)
    if can_cancel:
        await cancel(name, call, dialect)
    await done(*dialect.remove())


async def cancel(name, call, dialect):
    async def count(least, most):
        # The test around us gives up before this does.
        while True:
            failed, text = await call(*dialect.run(COUNT))
            check(f"{name}: looking for it", not failed, text)
            found = int(re.search(r"found=(\d+)", text)[1])
            if least <= found <= most:
                return
            await asyncio.sleep(0.05)

    task = asyncio.create_task(call(*dialect.outlive(LONG)))
    if dialect.in_turn:
        # Nothing else runs until it has ended; so if it never did, neither would this test.
        await asyncio.sleep(0.5)
    else:
        await count(1, 9)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await count(0, 0)
    check(f"{name}: a cancelled call ends its command", True)


def arguments():
    """The dialect, and either the address of a server or the words that start one."""
    name, *target = sys.argv[1:]
    return name, target


def environment():
    """What a server that a client starts needs to know; clients hide most of it."""
    return dict(os.environ)
