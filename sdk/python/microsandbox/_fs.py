"""Files inside a sandbox or a volume."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _checks as check
from . import _session
from ._session import Stream, start
from .errors import PathNotFoundError
from .types import FsEntryKind

if TYPE_CHECKING:
    from ._generated import FileMeta

_KINDS = {
    "file": FsEntryKind.FILE,
    "dir": FsEntryKind.DIRECTORY,
    "directory": FsEntryKind.DIRECTORY,
    "symlink": FsEntryKind.SYMLINK,
}


@dataclass(frozen=True)
class FsEntry:
    """One entry of a directory."""

    path: str
    kind: FsEntryKind
    size: int
    mode: int
    modified: float | None


@dataclass(frozen=True)
class FsMetadata:
    """Type, size, permissions and times of a file."""

    kind: FsEntryKind
    size: int
    mode: int
    readonly: bool
    modified: float | None
    created: float | None


# A name of its own: within the classes below, `list` is a method.
FsEntries: TypeAlias = "list[FsEntry]"


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _entry(directory: str, meta: FileMeta) -> FsEntry:
    return FsEntry(
        posixpath.join(directory, meta["name"]),
        _KINDS.get(meta["kind"], FsEntryKind.OTHER),
        meta["size"],
        meta["mode"] & 0o7777,
        _seconds(meta["modified"]),
    )


def _metadata(meta: FileMeta) -> FsMetadata:
    mode = meta["mode"] & 0o7777
    return FsMetadata(
        _KINDS.get(meta["kind"], FsEntryKind.OTHER),
        meta["size"],
        mode,
        not mode & 0o222,
        _seconds(meta["modified"]),
        _seconds(meta.get("created")),
    )


def _data(data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"data must be bytes, not {type(data).__name__}")


class _Files:
    """The operations that sandboxes and volumes have in common."""

    def __init__(self, place: dict[str, str]) -> None:
        self._place = place

    async def _at(self) -> dict[str, Any]:
        return dict(self._place)

    async def _read(self, path: str) -> bytes:
        session = _session.current()
        args = {**await self._at(), "path": path}
        stream = await session.open("file_read", args, collect=True)
        try:
            await stream.end()
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            stream.cancel()
            raise
        return b"".join(stream.stdout)

    async def _open_write(self, path: str) -> Stream:
        return await _session.current().open(
            "file_write", {**await self._at(), "path": path}, collect=True
        )

    async def _write(self, path: str, data: bytes) -> None:
        stream = await self._open_write(path)
        try:
            await stream.send(data)
            stream.close_input()
            await stream.end()
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            stream.cancel()
            raise

    async def _call(self, op: str, **args: Any) -> Any:
        return await _session.current().call(op, {**await self._at(), **args})

    def _do(self, op: str, **args: Any) -> Awaitable[None]:
        async def work() -> None:
            await self._call(op, **args)

        return start(work)

    def read(self, path: str) -> Awaitable[bytes]:
        """The bytes of a file."""
        path = check.text("path", path)
        return start(lambda: self._read(path))

    def read_text(self, path: str) -> Awaitable[str]:
        """The text of a UTF-8 file."""
        path = check.text("path", path)

        async def work() -> str:
            return (await self._read(path)).decode()

        return start(work)

    def write(self, path: str, data: bytes) -> Awaitable[None]:
        """Creates or replaces a file."""
        path, data = check.text("path", path), _data(data)
        return start(lambda: self._write(path, data))

    def list(self, path: str) -> Awaitable[FsEntries]:
        """The entries of a directory, sorted by name."""
        path = check.text("path", path)

        async def work() -> FsEntries:
            return [_entry(path, meta) for meta in await self._call("file_list", path=path)]

        return start(work)

    def mkdir(self, path: str) -> Awaitable[None]:
        """Makes a directory and its parents; one that exists is no error."""
        return self._do("file_mkdir", path=check.text("path", path), parents=True)

    def remove_dir(self, path: str) -> Awaitable[None]:
        """Removes a directory with its contents."""
        return self._do("file_remove", path=check.text("path", path), recursive=True)

    def stat(self, path: str) -> Awaitable[FsMetadata]:
        """Type, size, permissions and times; symbolic links are followed."""
        path = check.text("path", path)

        async def work() -> FsMetadata:
            return _metadata(await self._call("file_stat", path=path, follow=True))

        return start(work)

    def exists(self, path: str) -> Awaitable[bool]:
        """Whether there is a file or directory of this path."""
        path = check.text("path", path)

        async def work() -> bool:
            try:
                await self._call("file_stat", path=path, follow=True)
            except PathNotFoundError:
                return False
            return True

        return start(work)


class SandboxFsOps(_Files):
    """Files inside a running sandbox."""

    def __init__(self, sandbox: Any) -> None:
        super().__init__({})
        self._sandbox = sandbox

    async def _at(self) -> dict[str, Any]:
        return {"sandbox": await self._sandbox._live_name()}

    def read_stream(self, path: str) -> Awaitable[FsReadStream]:
        """The bytes of a file in pieces, for files of any size."""
        path = check.text("path", path)

        async def work() -> FsReadStream:
            args = {**await self._at(), "path": path}
            return FsReadStream(await _session.current().open("file_read", args))

        return start(work)

    def write_stream(self, path: str) -> Awaitable[FsWriteSink]:
        """Creates or replaces a file in pieces, for files of any size."""
        path = check.text("path", path)

        async def work() -> FsWriteSink:
            return FsWriteSink(await self._open_write(path))

        return start(work)

    def remove(self, path: str) -> Awaitable[None]:
        """Removes a file or an empty directory."""
        return self._do("file_remove", path=check.text("path", path))

    def copy(self, src: str, dst: str) -> Awaitable[None]:
        """Copies a file or a directory tree."""
        args = {"from": check.text("src", src), "to": check.text("dst", dst)}
        return self._do("file_copy", **args)

    def rename(self, src: str, dst: str) -> Awaitable[None]:
        """Renames a file or directory, replacing an existing file."""
        args = {"from": check.text("src", src), "to": check.text("dst", dst)}
        return self._do("file_rename", **args)

    def copy_from_host(self, host_path: str, guest_path: str) -> Awaitable[None]:
        """Copies a file or tree of this host into the sandbox."""
        source = os.path.abspath(check.path("host_path", host_path))
        args = {"from": source, "to": check.text("guest_path", guest_path)}
        return self._do("file_push", **args)

    def copy_to_host(self, guest_path: str, host_path: str) -> Awaitable[None]:
        """Copies a file or tree of the sandbox to this host."""
        target = os.path.abspath(check.path("host_path", host_path))
        args = {"from": check.text("guest_path", guest_path), "to": target}
        return self._do("file_pull", **args)


class VolumeFs(_Files):
    """Files of a volume, whether a sandbox uses it or not."""

    def __init__(self, name: str) -> None:
        super().__init__({"volume": name})

    def remove_file(self, path: str) -> Awaitable[None]:
        """Removes a file."""
        return self._do("file_remove", path=check.text("path", path))

    def copy(self, from_: str, to: str) -> Awaitable[None]:
        """Copies a file or a directory tree."""
        args = {"from": check.text("from_", from_), "to": check.text("to", to)}
        return self._do("file_copy", **args)

    def rename(self, from_: str, to: str) -> Awaitable[None]:
        """Renames a file or directory, replacing an existing file."""
        args = {"from": check.text("from_", from_), "to": check.text("to", to)}
        return self._do("file_rename", **args)


class FsReadStream:
    """The bytes of a file in pieces."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.ended:
            stream.cancel()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        frame = await self._stream.next()
        if frame is None:
            raise StopAsyncIteration
        return frame[1]

    def collect(self) -> Awaitable[bytes]:
        """All bytes that were not read yet."""

        async def work() -> bytes:
            pieces = []
            while (frame := await self._stream.next()) is not None:
                pieces.append(frame[1])
            return b"".join(pieces)

        return start(work)


class FsWriteSink:
    """A file that is written in pieces; `close` waits until it is complete."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._closed = False

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.ended and not self._closed:
            stream.cancel()

    def write(self, data: bytes) -> Awaitable[None]:
        """Appends a piece; waits while the sandbox does not keep up."""
        data = _data(data)

        async def work() -> None:
            await self._stream.send(data)
            if self._stream.error is not None:
                raise self._stream.error

        return start(work)

    async def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.close_input()
            await self._stream.end()

    def close(self) -> Awaitable[None]:
        """Ends the file and waits until it is written."""
        return start(self._close)

    async def __aenter__(self) -> FsWriteSink:
        return self

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool:
        if exc_type is None:
            await self._close()
        else:
            self._closed = True
            self._stream.cancel()
        return False
