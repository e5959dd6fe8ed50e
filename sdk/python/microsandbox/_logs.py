"""The log of a sandbox: output of its commands, with cursors."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from . import _checks as check
from . import _session
from ._session import Stream
from .types import LogReadSource, LogSource

if TYPE_CHECKING:
    from ._generated import LogLine

_ESCAPE = re.compile(rb"\\(\\|x([0-9a-fA-F]{2}))")


def unescape(text: str) -> bytes:
    """Bytes that msb has written as text: a backslash twice, other bytes as `\\xNN`."""
    data = text.encode()
    if b"\\" not in data:
        return data
    return _ESCAPE.sub(lambda m: bytes([int(m[2], 16)]) if m[2] else b"\\", data)


class LogEntry:
    """One line of output."""

    __slots__ = ("cursor", "data", "session_id", "source", "timestamp_ms")

    def __init__(
        self,
        timestamp_ms: float,
        source: LogSource,
        session_id: int | None,
        data: bytes,
        cursor: str,
    ) -> None:
        self.timestamp_ms = timestamp_ms
        self.source = source
        self.session_id = session_id
        self.data = data
        self.cursor = cursor

    def text(self) -> str:
        """The line as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")

    def __repr__(self) -> str:
        return f"LogEntry(source={self.source.value!r}, data={self.data!r})"


class CursorCounter:
    """Gives each line a cursor: its time, and its number among the lines of that time."""

    def __init__(self) -> None:
        self._time = -1
        self._number = 0

    def entry(self, line: LogLine) -> LogEntry:
        """The entry of the next line, in the order of the log."""
        time = line["time"]
        self._number = self._number + 1 if time == self._time else 0
        self._time = time
        return LogEntry(
            float(time),
            LogSource(line["source"]),
            line["exec"] or None,
            unescape(line["bytes"]),
            f"{time}.{self._number}",
        )


class LogQuery:
    """Checked arguments of `logs` and `log_stream`."""

    def __init__(
        self, sources: Any, since_ms: Any, until_ms: Any, from_cursor: Any = None, tail: Any = None
    ) -> None:
        self.tail = check.optional_integer("tail", tail)
        self.sources: set[LogSource] | None = None
        if sources is not None:
            chosen = [check.member(each, LogReadSource) for each in sources]
            if LogReadSource.ALL not in chosen:
                self.sources = {LogSource(each.value) for each in chosen}
                if LogSource.OUTPUT in self.sources:
                    # Output of a terminal is recorded as stdout.
                    self.sources |= {LogSource.STDOUT, LogSource.STDERR}
        for name, value in (("since_ms", since_ms), ("until_ms", until_ms)):
            if value is not None and not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be float, not {type(value).__name__}")
        self.since = None if since_ms is None else int(since_ms)
        self.until = None if until_ms is None else int(until_ms)
        self.after: tuple[int, int] | None = None
        if from_cursor is not None:
            self.after = parse_cursor(from_cursor)
            self.since = max(self.since or 0, self.after[0])

    def args(self) -> dict[str, Any]:
        """The filter, as msb takes it."""
        return {"since": self.since, "until": self.until}

    def takes(self, entry: LogEntry) -> bool:
        """Whether an entry is wanted."""
        if self.after is not None and parse_cursor(entry.cursor) <= self.after:
            return False
        return self.sources is None or entry.source in self.sources


def parse_cursor(cursor: Any) -> tuple[int, int]:
    """The position that a cursor names."""
    time, _, number = check.text("from_cursor", cursor).partition(".")
    try:
        return int(time), int(number)
    except ValueError:
        raise ValueError(f"not a cursor: {cursor!r}") from None


async def read(name: str, query: LogQuery, exec_id: int | None = None) -> list[LogEntry]:
    """All recorded entries that match."""
    args = {"name": name, "exec": exec_id, **query.args()}
    logged = await _session.current().call("sandbox_logs", args)
    counter = CursorCounter()
    entries = [counter.entry(line) for line in (*logged["lines"], *logged["rest"])]
    found = [entry for entry in entries if query.takes(entry)]
    return found if query.tail is None else found[max(0, len(found) - query.tail) :]


class LogStream:
    """Entries as they are recorded. It can be iterated at once, or awaited first."""

    def __init__(
        self,
        name: Callable[[], Coroutine[Any, Any, str]],
        query: LogQuery,
        follow: bool,
        exec_id: int | None = None,
    ) -> None:
        self._name = name
        self._query = query
        self._follow = follow
        self._exec_id = exec_id
        self._stream: Stream | None = None
        self._counter = CursorCounter()
        self._entries: list[LogEntry] = []

    def __del__(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.ended:
            stream.cancel()

    def __await__(self) -> Generator[Any, None, LogStream]:
        async def work() -> LogStream:
            await self._open()
            return self

        return work().__await__()

    async def _open(self) -> Stream:
        if self._stream is None:
            args = {
                "name": await self._name(),
                "exec": self._exec_id,
                "follow": self._follow,
                **self._query.args(),
            }
            self._stream = await _session.current().open("sandbox_logs_follow", args)
        return self._stream

    def __aiter__(self) -> AsyncIterator[LogEntry]:
        return self

    async def __anext__(self) -> LogEntry:
        stream = await self._open()
        while not self._entries:
            frame = await stream.next()
            if frame is None:
                raise StopAsyncIteration
            for line in json.loads(frame[1]).get("items", ()):
                entry = self._counter.entry(line)
                if self._query.takes(entry):
                    self._entries.append(entry)
        return self._entries.pop(0)
