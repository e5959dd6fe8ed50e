"""A command in the terminal of this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from typing import Any

from . import _session
from ._exec import ExecRequest, exit_code, started_event
from ._session import STDERR, STDOUT


def _keys(text: str | None) -> bytes:
    """The bytes of detach keys such as `ctrl-p,ctrl-q`."""
    keys = b""
    for key in (text or "ctrl-p,ctrl-q").split(","):
        name = key.strip()
        if name.startswith("ctrl-") and len(name) == 6:
            keys += bytes([ord(name[5].upper()) & 0x1F])
        elif len(name) == 1:
            keys += name.encode()
        else:
            raise ValueError(f"not a detach key: {name!r}")
    return keys


async def run_in_terminal(name: str, request: ExecRequest, detach_keys: str | None) -> int:
    """Runs a command with the terminal of this process. Gives its exit code; 0 if detached."""
    keys = _keys(detach_keys)
    size = shutil.get_terminal_size()
    request.command["tty"] = {"rows": size.lines, "cols": size.columns}
    request.command["stdin"] = "streamed"
    stream = await _session.current().open(
        "exec_stream", {"name": name, "command": request.command}
    )
    await started_event(stream)
    terminal = sys.stdin.fileno()
    before: list[Any] | None = None
    if os.isatty(terminal):
        before = termios.tcgetattr(terminal)
        tty.setraw(terminal)

    def forward() -> None:
        seen = b""
        while not stream.ended:
            data = os.read(terminal, 4096)
            if not data:
                stream.close_input()
                return
            seen = (seen + data)[-len(keys) :]
            if before is not None and seen == keys:
                stream.control("detach")
                return
            _session.run_blocking(stream.send(data))

    def resize(*_: object) -> None:
        now = shutil.get_terminal_size()
        stream.control({"resize": {"rows": now.lines, "cols": now.columns}})

    old = None
    with contextlib.suppress(ValueError):
        # Signals reach only the main thread; elsewhere the size stays.
        old = signal.signal(signal.SIGWINCH, resize)
    threading.Thread(target=forward, name="msb-terminal", daemon=True).start()
    try:
        while (frame := await stream.next()) is not None:
            if frame[0] in (STDOUT, STDERR):
                os.write(1 if frame[0] == STDOUT else 2, frame[1])
    except (asyncio.CancelledError, KeyboardInterrupt):
        stream.cancel()
        raise
    finally:
        if before is not None:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        if old is not None:
            signal.signal(signal.SIGWINCH, old)
    result = stream.result or {}
    return 0 if result.get("detached") else exit_code(result)
