"""The session with `msb api --stdio`: frames, streams, credit and cancellation.

One child process serves this process, whatever event loops and threads it has. A thread reads the
frames of the child and wakes the caller that waits for them. A caller waits in one of two ways:

- in a coroutine of an event loop, on a future of that loop;
- in `microsandbox.sync`, on a lock. The same coroutines then run to their end without suspending.

docs/session-protocol.md describes the frames.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from . import _runtime
from ._generated import Operations
from .errors import MicrosandboxError, RuntimeIncompleteError, from_wire

if TYPE_CHECKING:
    from typing import Protocol

    class Waiter(Protocol):
        """A caller that waits for a stream."""

        def wake(self) -> None: ...
        def wait(self, timeout: float | None) -> Coroutine[Any, Any, bool]: ...


T = TypeVar("T")

PROTOCOL = 1
VERSION = "0.1.0"

HELLO, REQUEST, RESPONSE, ERROR, EVENT, DATA, STDOUT, STDERR, END, CREDIT, CANCEL, CONTROL = range(
    12
)

_HEADER = struct.Struct("<IBI")
_CREDIT = struct.Struct("<I")
# Bytes that each side may send before it needs credit, and the step in which we grant it.
_INITIAL_CREDIT = 262_144
_CREDIT_STEP = _INITIAL_CREDIT // 4
# The largest frame that msb takes, but for requests.
_LARGEST_PIECE = 65_536
# msb has at most 1,024 streams for a session; further calls wait for one that ends.
_MOST_STREAMS = 1000
_PIPE_SIZE = 1 << 20
_EXIT_WAIT = 10.0


class _Mode(threading.local):
    sync = False


_mode = _Mode()


@contextlib.contextmanager
def blocking() -> Iterator[None]:
    """Lets calls of this thread block instead of returning an awaitable."""
    before = _mode.sync
    _mode.sync = True
    try:
        yield
    finally:
        _mode.sync = before


def start(work: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
    """Starts a coroutine in the running event loop; without one, raises RuntimeError.

    Within `blocking`, runs it to its end and gives its result.
    """
    if _mode.sync:
        done: Any = run_blocking(work())
        return done  # type: ignore[no-any-return]
    return asyncio.get_running_loop().create_task(work())


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, because every wait in it blocks."""
    before = _mode.sync
    _mode.sync = True
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        _mode.sync = before
    coroutine.close()
    raise RuntimeError("a blocking call was suspended")


async def sleep(seconds: float) -> None:
    """Waits, in an event loop or blocking."""
    if _mode.sync:
        time.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


class _LoopWaiter:
    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[bool] = self._loop.create_future()

    def _finish(self, value: bool) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def wake(self) -> None:
        # The loop is closed: its tasks are gone as well.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish, True)

    async def wait(self, timeout: float | None) -> bool:
        if timeout is None:
            return await self._future
        timer = self._loop.call_later(timeout, self._finish, False)
        try:
            return await self._future
        finally:
            timer.cancel()


class _LockWaiter:
    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        # Woken twice: by a frame and by the end of the session.
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    async def wait(self, timeout: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)


def _waiter() -> Waiter:
    return _LockWaiter() if _mode.sync else _LoopWaiter()


# How a stream treats what it receives.
_QUEUE, _COLLECT, _DISCARD = range(3)


class Stream:
    """One call: frames in both directions until a RESPONSE or an ERROR."""

    __slots__ = (
        "__weakref__",
        "_consumed",
        "_credit",
        "_credit_waiter",
        "_frames",
        "_lock",
        "_mode",
        "_waiters",
        "ended",
        "error",
        "id",
        "op",
        "result",
        "session",
        "started",
        "stderr",
        "stdout",
    )

    def __init__(self, session: Session, op: str, collect: bool) -> None:
        self.session = session
        self.op = op
        self.id = 0
        self.ended = False
        self.result: Any = None
        self.error: MicrosandboxError | None = None
        self.started: dict[str, Any] | None = None
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []
        self._mode = _COLLECT if collect else _QUEUE
        self._lock = threading.Lock()
        self._frames: deque[tuple[int, bytes]] = deque()
        self._waiters: list[Waiter] = []
        self._credit = _INITIAL_CREDIT
        self._credit_waiter: Waiter | None = None
        self._consumed = 0

    # The reading thread.

    def feed(self, kind: int, payload: bytes) -> None:
        """Takes one frame of msb. Called by the reading thread only."""
        if kind == CREDIT:
            with self._lock:
                self._credit += _CREDIT.unpack(payload)[0]
                waiting, self._credit_waiter = self._credit_waiter, None
            if waiting is not None:
                waiting.wake()
            return
        if kind == RESPONSE:
            self.finish(json.loads(payload), None)
            return
        if kind == ERROR:
            self.finish(None, from_wire(self.op, json.loads(payload)))
            return
        with self._lock:
            if self._mode == _QUEUE:
                self._frames.append((kind, payload))
                waiters, self._waiters = self._waiters, []
            else:
                waiters = []
                if self._mode == _COLLECT:
                    if kind in (STDOUT, DATA):
                        self.stdout.append(payload)
                    elif kind == STDERR:
                        self.stderr.append(payload)
                self._consumed += len(payload)
        for waiter in waiters:
            waiter.wake()
        if self._mode != _QUEUE and self._consumed >= _CREDIT_STEP:
            self._grant()

    def finish(self, result: Any, error: MicrosandboxError | None) -> None:
        """Ends the stream and wakes all that wait for it."""
        with self._lock:
            if self.ended:
                return
            self.ended, self.result, self.error = True, result, error
            waiters, self._waiters = self._waiters, []
            if self._credit_waiter is not None:
                waiters.append(self._credit_waiter)
        self.session.forget(self)
        for waiter in waiters:
            waiter.wake()

    # The caller.

    def _grant(self) -> None:
        with self._lock:
            bytes_, self._consumed = self._consumed, 0
            if self.ended or not bytes_:
                return
        self.session.write(CREDIT, self.id, _CREDIT.pack(bytes_))

    async def next(self, timeout: float | None = None) -> tuple[int, bytes] | None:
        """The next frame, or None at the end. A failure of the call is raised."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._frames:
                    frame = self._frames.popleft()
                    self._consumed += len(frame[1])
                    break
                if self.ended:
                    if self.error is not None:
                        raise self.error
                    return None
                waiter = _waiter()
                self._waiters.append(waiter)
            left = None if until is None else max(0.0, until - time.monotonic())
            if not await waiter.wait(left):
                raise TimeoutError
        if self._consumed >= _CREDIT_STEP:
            self._grant()
        return frame

    async def end(self, timeout: float | None = None) -> Any:
        """Waits for the end of the call and gives its result; frames before it are discarded."""
        if self._mode == _QUEUE:
            self.discard()
        with self._lock:
            waiter = None if self.ended else _waiter()
            if waiter is not None:
                self._waiters.append(waiter)
        if waiter is not None and not await waiter.wait(timeout):
            raise TimeoutError
        if self.error is not None:
            raise self.error
        return self.result

    def discard(self) -> None:
        """Drops what comes from now on, so that the command is never held up."""
        with self._lock:
            self._mode = _DISCARD
            for _, payload in self._frames:
                self._consumed += len(payload)
            self._frames.clear()
        self._grant()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Sends DATA as far as there is credit, and waits for more. Ends early with the stream."""
        view = memoryview(data).cast("B")
        while view and not self.ended:
            with self._lock:
                size = min(len(view), self._credit, _LARGEST_PIECE)
                self._credit -= size
                if not size:
                    if self.ended:
                        return
                    waiter = self._credit_waiter = _waiter()
            if size:
                self.session.write(DATA, self.id, view[:size])
                view = view[size:]
            else:
                await waiter.wait(None)

    def close_input(self) -> None:
        """Sends END: there is no more DATA."""
        if not self.ended:
            self.session.write(END, self.id)

    def control(self, message: object) -> None:
        """Sends a signal, a terminal size or a detach to the command."""
        if not self.ended:
            self.session.write(CONTROL, self.id, _encode(message))

    def cancel(self) -> None:
        """Ends the call and what it started. Its result is no longer waited for."""
        if not self.ended:
            self.session.write(CANCEL, self.id)
            self.discard()


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Session(Operations):
    """The child process that drives the sandboxes of this process."""

    def __init__(self, msb: str) -> None:
        self.msb = msb
        self.version: str | None = None
        self.ended = False
        self._closing = False
        self._failure: MicrosandboxError | None = None
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._table = threading.Lock()
        self._writing = threading.Lock()
        self._queue: deque[Waiter] = deque()
        try:
            self._child = subprocess.Popen(
                [msb, "api", "--stdio", "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                close_fds=True,
            )
        except OSError as error:
            raise RuntimeIncompleteError(f"cannot execute `{msb}`: {error.strerror}") from error
        assert self._child.stdin is not None and self._child.stdout is not None
        self._in = self._child.stdin.fileno()
        self._out = self._child.stdout.fileno()
        for pipe in (self._in, self._out):
            # A limit of the user may forbid it; then pipes are smaller and calls are slower.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        self.write(HELLO, 0, _encode({"protocol": PROTOCOL, "client": f"msb-python/{VERSION}"}))
        self._reader = threading.Thread(target=self._read, name="msb-session", daemon=True)
        self._reader.start()

    def write(self, kind: int, stream: int, payload: bytes | memoryview = b"") -> None:
        """Sends one frame. A session that has ended drops it: its streams have been told."""
        frame = memoryview(_HEADER.pack(len(payload), kind, stream) + payload)
        with self._writing, contextlib.suppress(OSError):
            while frame and not self.ended and not self._closing:
                frame = frame[os.write(self._in, frame) :]

    def _read(self) -> None:
        buffer = bytearray()
        try:
            while True:
                data = os.read(self._out, 262_144)
                if not data:
                    break
                if buffer:
                    buffer += data
                    data = bytes(buffer)
                    buffer.clear()
                at, end = 0, len(data)
                while end - at >= 9:
                    length, kind, stream = _HEADER.unpack_from(data, at)
                    after = at + 9 + length
                    if after > end:
                        break
                    self._take(kind, stream, data[at + 9 : after])
                    at = after
                if at < end:
                    buffer += data[at:]
        except OSError:
            pass
        finally:
            self._end()

    def _take(self, kind: int, stream: int, payload: bytes) -> None:
        if stream:
            found = self._streams.get(stream)
            if found is not None:
                found.feed(kind, payload)
        elif kind == HELLO:
            self.version = json.loads(payload).get("version")
        elif kind == ERROR:
            self._failure = from_wire("session", json.loads(payload))

    def _end(self) -> None:
        self.ended = True
        failure = self._failure
        if failure is None:
            failure = (RuntimeIncompleteError if self.version is None else MicrosandboxError)(
                f"the session with msb has ended: `{self.msb} api`"
            )
        for stream in list(self._streams.values()):
            stream.finish(None, failure)
        with contextlib.suppress(Exception):
            self._child.wait(_EXIT_WAIT)

    def forget(self, stream: Stream) -> None:
        """Frees the place of a stream that has ended."""
        with self._table:
            self._streams.pop(stream.id, None)
            waiter = self._queue.popleft() if self._queue else None
        if waiter is not None:
            waiter.wake()

    async def open(
        self, op: str, args: Mapping[str, Any], *, own: bool = False, collect: bool = False
    ) -> Stream:
        """Sends a request and gives its stream."""
        request: dict[str, Any] = {
            "op": op,
            "args": {name: value for name, value in args.items() if value is not None},
        }
        if own:
            request["own"] = True
        payload = _encode(request)
        while True:
            with self._table:
                if len(self._streams) < _MOST_STREAMS:
                    stream = Stream(self, op, collect)
                    self._last += 1
                    stream.id = self._last
                    self._streams[stream.id] = stream
                    # Numbers have to arrive in their order, so this is within the lock.
                    self.write(REQUEST, stream.id, payload)
                    break
                waiter = _waiter()
                self._queue.append(waiter)
            await waiter.wait(None)
        if self.ended:
            self._end_late(stream)
        return stream

    def _end_late(self, stream: Stream) -> None:
        stream.finish(None, self._failure or MicrosandboxError("the session with msb has ended"))

    async def call(self, op: str, args: Mapping[str, Any]) -> Any:
        return await self.finish(op, args)

    async def finish(
        self,
        op: str,
        args: Mapping[str, Any],
        *,
        own: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Calls an Operation and waits for its result; cancels it if the caller is cancelled."""
        stream = await self.open(op, args, own=own, collect=True)
        try:
            return await stream.end(timeout)
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, TimeoutError):
            stream.cancel()
            raise

    def close(self) -> None:
        """Ends the session and the sandboxes that belong to it."""
        if self.ended:
            return
        with self._writing, contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._closing = True
            self._child.stdin.close()
        try:
            self._child.wait(_EXIT_WAIT)
        except subprocess.TimeoutExpired:
            self._child.send_signal(signal.SIGTERM)

    def abandon(self) -> None:
        """Forgets the session in a forked child: it belongs to the parent."""
        self.ended = True
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(pipe)
        # The child is none of this process: keep Popen from waiting for it.
        self._child.returncode = 0
        _abandoned.append(self)


_sessions: dict[tuple[str, str | None], Session] = {}
_starting = threading.Lock()
_abandoned: list[Session] = []


def current() -> Session:
    """The session of this process, started if there is none."""
    key = (_runtime.msb_path(), os.environ.get("MSB_HOME"))
    found = _sessions.get(key)
    if found is not None and not found.ended:
        return found
    with _starting:
        found = _sessions.get(key)
        if found is None or found.ended:
            found = _sessions[key] = Session(key[0])
        return found


def close() -> None:
    """Ends all sessions of this process. Later calls start a new one."""
    with _starting:
        sessions = list(_sessions.values())
        _sessions.clear()
    for session in sessions:
        session.close()


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()
    sessions = list(_sessions.values())
    _sessions.clear()
    _mode.sync = False
    for session in sessions:
        session.abandon()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
