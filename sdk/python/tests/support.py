"""What the tests of the SDK share: a state directory of their own, and sandboxes in it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
CASES: list[dict[str, Any]] = json.loads((PACKAGE.parent / "cases.json").read_text())["cases"]

sys.path.insert(0, str(PACKAGE))

# Everything of these tests is below one directory, which is removed at the end.
SCRATCH = Path(tempfile.mkdtemp(prefix="msb-sdk-"))
os.environ["MSB_HOME"] = str(SCRATCH / "home")

import microsandbox  # noqa: E402
from microsandbox import Sandbox, _session, sync  # noqa: E402


@atexit.register
def _clean() -> None:
    _session.close()
    shutil.rmtree(SCRATCH, ignore_errors=True)


def run_program(text: str, *args: str) -> subprocess.Popen[str]:
    """Starts a program that uses the SDK."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    return subprocess.Popen(
        [sys.executable, "-c", text, *args],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition; a minute is for machines under load."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.02)


_count = 0


def fresh_name() -> str:
    """A name that no other sandbox of these tests has."""
    global _count
    _count += 1
    return f"t{os.getpid()}-{_count}"


class SandboxCase(unittest.IsolatedAsyncioTestCase):
    """Tests with one sandbox for all, and fresh ones on demand."""

    shared: sync.Sandbox

    @classmethod
    def setUpClass(cls) -> None:
        cls.shared = sync.Sandbox.create(fresh_name(), image="host", memory=512)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.shared.destroy(force=True)

    def setUp(self) -> None:
        self.sandbox: Sandbox = self.shared._inner

    async def make(self, **options: Any) -> Sandbox:
        """A sandbox of this test alone."""
        options.setdefault("image", "host")
        name = options.pop("name", None) or fresh_name()
        sandbox = await Sandbox.create(name, **options)
        self.addAsyncCleanup(self._remove, sandbox)
        return sandbox

    async def _remove(self, sandbox: Sandbox) -> None:
        name = sandbox._sandbox_name
        try:
            handle = await Sandbox.get(name)
            await handle.destroy(force=True)
        except microsandbox.MicrosandboxError:
            pass
