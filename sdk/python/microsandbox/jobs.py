"""Jobs: commands that go on without the process that started them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from . import _checks as check
from . import _exec, _session
from ._logs import CursorCounter, LogEntry, LogQuery, LogStream, read
from ._session import STDERR, STDOUT, Stream, start
from .errors import JobError, unsupported
from .types import LogReadSource, StdinMode

if TYPE_CHECKING:
    from ._generated import ExecEntry

JobState: TypeAlias = Literal["starting", "running", "exited", "failed", "lost"]

_WAIT_MS = 60_000


@dataclass(frozen=True)
class JobInfo:
    """What is known of a job. Times are milliseconds since 1970."""

    id: str
    runtime_boot_id: str
    command: list[str]
    state: JobState
    tty: bool
    stdin_closed: bool
    pid: int | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    exit_code: int | None
    failure: dict[str, Any] | None
    error: str | None
    timed_out: bool


@dataclass(frozen=True)
class JobPage:
    """Some of the jobs, and where the next page begins."""

    items: list[JobInfo]
    next_cursor: str | None


@dataclass(frozen=True)
class JobExit:
    """The end of a job."""

    code: int
    success: bool
    timed_out: bool


@dataclass(frozen=True)
class JobLogEntry:
    """One line of output of a job."""

    timestamp: int
    source: str
    data: bytes
    cursor: str


@dataclass(frozen=True)
class JobEvent:
    """Output of an attached job, or its end."""

    type: Literal["output", "gap", "completed"]
    value: JobLogEntry | JobInfo | dict[str, Any]


def _info(entry: ExecEntry) -> JobInfo:
    exit = entry.get("exit")
    return JobInfo(
        id=str(entry["id"]),
        runtime_boot_id="",
        command=list(entry["argv"]),
        state="running" if exit is None else "exited",
        tty=entry["tty"],
        stdin_closed=exit is not None,
        pid=entry["pid"] if exit is None else None,
        created_at=entry["started"],
        started_at=entry["started"],
        finished_at=None,
        exit_code=None if exit is None else _exec.exit_code(exit),
        failure=None,
        error=None,
        timed_out=exit is not None and exit.get("ending") == "timeout",
    )


async def _entry(name: str, id: str) -> ExecEntry:
    for entry in await _session.current().exec_list(name):
        if str(entry["id"]) == id:
            return entry
    raise JobError("job-not-found", f"sandbox `{name}` has no job `{id}`", id)


async def find(name: str, id: str) -> Job:
    """A job of a sandbox by its id."""
    await _entry(name, id)
    return Job(name, id)


async def page(name: str, all: bool, limit: int, cursor: str | None) -> JobPage:
    """Jobs of a sandbox, the oldest first."""
    after = int(cursor) if cursor else 0
    found = [
        _info(entry)
        for entry in await _session.current().exec_list(name)
        if entry["id"] > after and (all or entry.get("exit") is None)
    ]
    items = found[:limit]
    return JobPage(items, items[-1].id if len(items) < len(found) else None)


async def launch(name: str, request: _exec.ExecRequest) -> Job:
    """Starts a command and lets go of it."""
    request.command["detached"] = True
    stream = await _session.current().open(
        "exec_stream", {"name": name, "command": request.command}
    )
    started = await _exec.started_event(stream)
    if request.mode is StdinMode.BYTES:
        if request.data:
            await stream.send(request.data)
        stream.close_input()
    await _detach(stream)
    return Job(name, str(started["id"]))


async def _detach(stream: Stream) -> None:
    # Its RESPONSE comes after msb has passed on all input that was sent before.
    stream.control("detach")
    await stream.end()


class Job:
    """A command that goes on without the process that started it."""

    def __init__(self, sandbox: str, id: str) -> None:
        self._sandbox = sandbox
        self._id = id

    @property
    def id(self) -> str:
        """The id, for `Sandbox.get_job`."""
        return self._id

    def inspect(self) -> Awaitable[JobInfo]:
        """What is known of the job now."""

        async def work() -> JobInfo:
            return _info(await _entry(self._sandbox, self._id))

        return start(work)

    def wait(self) -> Awaitable[JobExit]:
        """Waits for the end of the job."""

        async def work() -> JobExit:
            session = _session.current()
            while True:
                args = {"name": self._sandbox, "id": int(self._id), "limit_ms": _WAIT_MS}
                exit = (await session.call("exec_wait", args)).get("exit")
                if exit is not None:
                    code = _exec.exit_code(exit)
                    return JobExit(code, code == 0, exit.get("ending") == "timeout")

        return start(work)

    def signal(self, signal: int) -> Awaitable[None]:
        """Sends a signal to the job and to what it started."""
        check.integer("signal", signal, 1)

        async def work() -> None:
            await _session.current().exec_signal(int(self._id), self._sandbox, signal)

        return start(work)

    def kill(self) -> Awaitable[None]:
        """Sends SIGKILL."""
        return self.signal(9)

    async def _attach(self) -> Stream:
        args = {"name": self._sandbox, "id": int(self._id)}
        stream = await _session.current().open("exec_attach", args)
        await _exec.started_event(stream)
        return stream

    def eof(self) -> Awaitable[None]:
        """Ends the input of the job: it reads the end of the file."""

        async def work() -> None:
            stream = await self._attach()
            stream.close_input()
            await _detach(stream)

        return start(work)

    def attach(
        self,
        *,
        read_only: bool = False,
        replay_bytes: int | None = None,
        cursor: str | None = None,
    ) -> Awaitable[JobAttachment]:
        """Takes part in the job: its recent output, then what comes."""
        check.flag("read_only", read_only)
        if check.optional_integer("replay_bytes", replay_bytes) is not None:
            raise unsupported("Job.attach(replay_bytes=…)", "read earlier output with Job.logs")
        if check.optional_text("cursor", cursor) is not None:
            raise unsupported("Job.attach(cursor=…)", "use Job.follow_logs(from_cursor=…)")

        async def work() -> JobAttachment:
            return JobAttachment(self, await self._attach(), read_only)

        return start(work)

    def _query(self, tail: Any, since: Any, until: Any, sources: Any, cursor: Any) -> LogQuery:
        chosen = None
        if sources is not None:
            chosen = [LogReadSource(each) for each in check.texts("sources", sources)]
        return LogQuery(chosen, since, until, cursor, tail)

    def logs(
        self,
        *,
        tail: int | None = None,
        since: int | None = None,
        until: int | None = None,
        sources: list[str] | None = None,
        from_cursor: str | None = None,
    ) -> Awaitable[list[JobLogEntry]]:
        """Recorded output of the job."""
        query = self._query(tail, since, until, sources, from_cursor)

        async def work() -> list[JobLogEntry]:
            entries = await read(self._sandbox, query, int(self._id))
            return [_log_entry(entry) for entry in entries]

        return start(work)

    def log_stream(
        self,
        *,
        tail: int | None = None,
        since: int | None = None,
        until: int | None = None,
        sources: list[str] | None = None,
        from_cursor: str | None = None,
        follow: bool = False,
    ) -> Awaitable[JobLogStream]:
        """Recorded output of the job, and with `follow` what comes next."""
        query = self._query(tail, since, until, sources, from_cursor)
        check.flag("follow", follow)

        async def name() -> str:
            return self._sandbox

        async def work() -> JobLogStream:
            return JobLogStream(await LogStream(name, query, follow, int(self._id)))

        return start(work)

    def follow_logs(
        self,
        *,
        tail: int | None = None,
        since: int | None = None,
        until: int | None = None,
        sources: list[str] | None = None,
        from_cursor: str | None = None,
    ) -> Awaitable[JobLogStream]:
        """Recorded output of the job and what comes next."""
        return self.log_stream(
            tail=tail,
            since=since,
            until=until,
            sources=sources,
            from_cursor=from_cursor,
            follow=True,
        )


def _log_entry(entry: LogEntry) -> JobLogEntry:
    return JobLogEntry(int(entry.timestamp_ms), entry.source.value, entry.data, entry.cursor)


class JobAttachment:
    """A job that this process takes part in. `detach` leaves it running."""

    def __init__(self, job: Job, stream: Stream, read_only: bool) -> None:
        self._job = job
        self._stream = stream
        self._read_only = read_only
        self._ended = False
        self._counter = CursorCounter()
        self._number = 0

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.ended:
            stream.control("detach")
            stream.discard()

    async def _recv(self) -> JobEvent | None:
        while not self._ended:
            frame = await self._stream.next()
            if frame is None:
                self._ended = True
                if (self._stream.result or {}).get("detached"):
                    return None
                return JobEvent("completed", _info(await _entry(self._job._sandbox, self._job._id)))
            kind, data = frame
            if kind in (STDOUT, STDERR):
                self._number += 1
                source = "stdout" if kind == STDOUT else "stderr"
                return JobEvent("output", JobLogEntry(0, source, data, f"a.{self._number}"))
        return None

    def recv(self) -> Awaitable[JobEvent | None]:
        """The next event, or None at the end."""
        return start(self._recv)

    def write_stdin(self, data: bytes) -> Awaitable[None]:
        """Writes to the input of the job."""
        if not isinstance(data, (bytes, bytearray)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")

        async def work() -> None:
            if self._read_only:
                raise JobError("read-only", "the attachment is read-only", self._job._id)
            await self._stream.send(data)

        return start(work)

    def resize(self, rows: int, cols: int) -> Awaitable[None]:
        """Changes the size of the terminal of the job."""
        size = {"rows": check.integer("rows", rows, 1), "cols": check.integer("cols", cols, 1)}

        async def work() -> None:
            self._stream.control({"resize": size})

        return start(work)

    def detach(self) -> Awaitable[None]:
        """Leaves the job running."""

        async def work() -> None:
            self._ended = True
            if not self._stream.ended:
                await _detach(self._stream)

        return start(work)

    def __aiter__(self) -> AsyncIterator[JobEvent]:
        return self

    async def __anext__(self) -> JobEvent:
        event = await self._recv()
        if event is None:
            raise StopAsyncIteration
        return event


class JobLogStream:
    """Output of a job as it is recorded."""

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream

    def close(self) -> Awaitable[None]:
        """Ends the stream."""

        async def work() -> None:
            self._stream._cancel()

        return start(work)

    def __aiter__(self) -> AsyncIterator[JobLogEntry]:
        return self

    async def __anext__(self) -> JobLogEntry:
        return _log_entry(await self._stream.__anext__())


__all__ = [
    "Job",
    "JobAttachment",
    "JobEvent",
    "JobExit",
    "JobInfo",
    "JobLogEntry",
    "JobLogStream",
    "JobPage",
    "JobState",
]
