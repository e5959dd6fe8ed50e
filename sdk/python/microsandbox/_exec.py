"""Commands in a sandbox: run to their end, or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any

from . import _checks as check
from . import _session
from ._session import STDERR, STDOUT, Stream, start
from .errors import ExecTimeoutError
from .events import ExecEvent
from .types import ExecEventType, ExecOptions, Rlimit, Stdin, StdinMode

_OPTIONS = frozenset(ExecOptions.__annotations__)
_DEFAULT_TERMINAL = {"rows": 24, "cols": 80}


class ExecRequest:
    """A checked command, as msb takes it."""

    __slots__ = ("command", "data", "mode", "timeout")

    def __init__(self, command: dict[str, Any], mode: StdinMode, data: bytes | None) -> None:
        self.command = command
        self.mode = mode
        self.data = data
        self.timeout: float | None = None


def exec_request(
    cmd: Any,
    args: Any,
    *,
    cwd: Any = None,
    user: Any = None,
    env: Any = None,
    timeout: Any = None,
    stdin: Any = None,
    tty: Any = False,
    rlimits: Any = None,
    default_stdin: StdinMode = StdinMode.NULL,
) -> ExecRequest:
    """Checks the arguments of the exec family."""
    argv = [check.text("cmd", cmd)]
    if isinstance(args, Mapping):
        for key in args:
            if key not in _OPTIONS:
                raise TypeError(f"unknown exec option: {key!r}")
        argv += check.texts("args", args.get("args", []))
        cwd = args.get("cwd") if cwd is None else cwd
        user = args.get("user") if user is None else user
        env = args.get("env") if env is None else env
        timeout = args.get("timeout") if timeout is None else timeout
        if stdin is None:
            stdin = args.get("stdin", args.get("stdin_data"))
        tty = args.get("tty", False) if tty is False else tty
        rlimits = args.get("rlimits") if rlimits is None else rlimits
    elif isinstance(args, list):
        argv += check.texts("args", args)
    elif isinstance(args, tuple):
        argv += check.texts("args", list(args))
    elif args is not None:
        raise TypeError(f"args must be a list of str or a dict, not {type(args).__name__}")
    command: dict[str, Any] = {"argv": argv}
    if cwd is not None:
        command["workdir"] = check.text("cwd", cwd)
    if user is not None:
        command["user"] = check.text("user", user)
    if env is not None:
        command["env"] = list(check.mapping("env", env).items())
    seconds = check.seconds("timeout", timeout)
    if seconds is not None:
        command["timeout"] = check.span(seconds)
    if check.flag("tty", tty):
        command["tty"] = _DEFAULT_TERMINAL
    if rlimits is not None:
        command["rlimits"] = [_rlimit(each) for each in rlimits]
    mode, data = _stdin(stdin, default_stdin)
    if mode is not StdinMode.NULL:
        command["stdin"] = "streamed"
    request = ExecRequest(command, mode, data)
    request.timeout = seconds
    return request


def _rlimit(value: Any) -> str:
    if not isinstance(value, Rlimit):
        raise TypeError(f"rlimit must be Rlimit, not {type(value).__name__}")
    return f"{value.resource.value}={value.soft}:{value.hard}"


def _stdin(value: Any, default: StdinMode) -> tuple[StdinMode, bytes | None]:
    if value is None:
        return default, None
    if isinstance(value, (bytes, bytearray)):
        return StdinMode.BYTES, bytes(value)
    if not isinstance(value, Stdin):
        raise TypeError(f"stdin must be Stdin, not {type(value).__name__}")
    return value._mode, value._data


def exit_code(exit: Mapping[str, Any]) -> int:
    """The exit code of a command; 128 and the number of the signal that killed it."""
    code, signal = exit.get("code"), exit.get("signal")
    if code is not None:
        return int(code)
    return -1 if signal is None else 128 + int(signal)


def _timed_out(request: ExecRequest) -> ExecTimeoutError:
    return ExecTimeoutError(f"the command was killed after its timeout of {request.timeout} s")


class ExecOutput:
    """What a command has written, and its exit code."""

    __slots__ = ("exit_code", "stderr_bytes", "stdout_bytes")

    def __init__(self, exit_code: int, stdout: bytes, stderr: bytes) -> None:
        self.exit_code = exit_code
        self.stdout_bytes = stdout
        self.stderr_bytes = stderr

    @property
    def success(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    @property
    def stdout_text(self) -> str:
        """Standard output as text. Bytes that are not UTF-8 raise UnicodeDecodeError."""
        return self.stdout_bytes.decode()

    @property
    def stderr_text(self) -> str:
        """Standard error as text. Bytes that are not UTF-8 raise UnicodeDecodeError."""
        return self.stderr_bytes.decode()

    def __repr__(self) -> str:
        sizes = f"{len(self.stdout_bytes)} B stdout, {len(self.stderr_bytes)} B stderr"
        return f"ExecOutput(exit_code={self.exit_code}, {sizes})"


async def run(name: str, request: ExecRequest) -> ExecOutput:
    """Runs a command to its end. A caller that is cancelled ends the command."""
    session = _session.current()
    args = {"name": name, "command": request.command}
    stream = await session.open("exec_stream", args, collect=True)
    try:
        if request.mode is not StdinMode.NULL:
            if request.data:
                await stream.send(request.data)
            stream.close_input()
        exit = await stream.end()
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        stream.cancel()
        raise
    if exit.get("ending") == "timeout":
        raise _timed_out(request)
    return ExecOutput(exit_code(exit), b"".join(stream.stdout), b"".join(stream.stderr))


async def open_stream(name: str, request: ExecRequest) -> ExecHandle:
    """Starts a command. One that cannot be started raises."""
    session = _session.current()
    stream = await session.open("exec_stream", {"name": name, "command": request.command})
    try:
        started = await started_event(stream)
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        stream.cancel()
        raise
    handle = ExecHandle(stream, request, started)
    if request.mode is StdinMode.BYTES:
        _send_beside(stream, request.data or b"")
    return handle


async def started_event(stream: Stream) -> dict[str, Any]:
    """The event that comes before all output."""
    while True:
        frame = await stream.next()
        if frame is None:
            return {}
        message = json.loads(frame[1])
        if "started" in message:
            started: dict[str, Any] = message["started"]
            return started


def _send_beside(stream: Stream, data: bytes) -> None:
    async def send() -> None:
        await stream.send(data)
        stream.close_input()

    if len(data) <= 65_536:
        # There is credit for as much at the start of every stream.
        _session.run_blocking(send())
        return
    # A command may write much before it reads: the caller has to be free to receive it.
    work = threading.Thread(target=lambda: _session.run_blocking(send()), daemon=True)
    work.start()


class ExecSink:
    """Standard input of a running command."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, data: bytes) -> Awaitable[None]:
        """Writes bytes; waits while the command does not read."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        return start(lambda: self._stream.send(data))

    def close(self) -> Awaitable[None]:
        """Ends the input: the command reads the end of the file."""

        async def work() -> None:
            self._stream.close_input()

        return start(work)


class ExecHandle:
    """A running command. Iterate over it for its events.

    A handle that is dropped leaves its command running and discards the output.
    """

    def __init__(self, stream: Stream, request: ExecRequest, started: Mapping[str, Any]) -> None:
        self._stream = stream
        self._request = request
        self._started: Mapping[str, Any] | None = started
        self._id = str(started.get("id", ""))
        self._ended = False
        self._has_pipe = request.mode is StdinMode.PIPE

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.ended:
            stream.discard()

    @property
    def id(self) -> str:
        """The number of the command in its sandbox."""
        return self._id

    def take_stdin(self) -> ExecSink | None:
        """The standard input, once and only with `Stdin.pipe()`; else None."""
        if not self._has_pipe:
            return None
        self._has_pipe = False
        return ExecSink(self._stream)

    async def _recv(self) -> ExecEvent | None:
        if self._started is not None:
            pid = self._started.get("pid")
            self._started = None
            return ExecEvent(ExecEventType.STARTED, pid=pid)
        while not self._ended:
            frame = await self._stream.next()
            if frame is None:
                self._ended = True
                exit = self._stream.result or {}
                if exit.get("ending") == "timeout":
                    raise _timed_out(self._request)
                return ExecEvent(ExecEventType.EXITED, code=exit_code(exit))
            kind, data = frame
            if kind == STDOUT:
                return ExecEvent(ExecEventType.STDOUT, data=data)
            if kind == STDERR:
                return ExecEvent(ExecEventType.STDERR, data=data)
        return None

    def recv(self) -> Awaitable[ExecEvent | None]:
        """The next event, or None after the last."""
        return start(self._recv)

    def wait(self) -> Awaitable[tuple[int, bool]]:
        """Waits for the end and discards the output. The exit code, and whether it is 0."""

        async def work() -> tuple[int, bool]:
            exit = await self._stream.end()
            self._ended = True
            if exit.get("ending") == "timeout":
                raise _timed_out(self._request)
            code = exit_code(exit)
            return code, code == 0

        return start(work)

    def collect(self) -> Awaitable[ExecOutput]:
        """Waits for the end and gives all output that was not received yet."""

        async def work() -> ExecOutput:
            stdout, stderr = bytearray(), bytearray()
            code = -1
            while (event := await self._recv()) is not None:
                if event.event_type is ExecEventType.STDOUT:
                    stdout += event.data or b""
                elif event.event_type is ExecEventType.STDERR:
                    stderr += event.data or b""
                elif event.event_type is ExecEventType.EXITED:
                    code = -1 if event.code is None else event.code
            return ExecOutput(code, bytes(stdout), bytes(stderr))

        return start(work)

    def _control(self, message: object) -> Awaitable[None]:
        async def work() -> None:
            self._stream.control(message)

        return start(work)

    def signal(self, sig: int) -> Awaitable[None]:
        """Sends a signal, by its number."""
        return self._control({"signal": check.integer("sig", sig, 1)})

    def kill(self) -> Awaitable[None]:
        """Sends SIGKILL."""
        return self._control({"signal": 9})

    def resize(self, rows: int, cols: int) -> Awaitable[None]:
        """Changes the size of the terminal."""
        size = {"rows": check.integer("rows", rows, 1), "cols": check.integer("cols", cols, 1)}
        return self._control({"resize": size})

    def __aiter__(self) -> AsyncIterator[ExecEvent]:
        return self

    async def __anext__(self) -> ExecEvent:
        event = await self._recv()
        if event is None:
            raise StopAsyncIteration
        return event
