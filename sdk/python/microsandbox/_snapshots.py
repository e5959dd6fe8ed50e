"""Snapshots: the files of a sandbox, to start others from."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from . import _checks as check
from . import _options, _runtime, _session
from ._sandbox import PullSession, Sandbox, connect_by_name, make_volumes
from ._sandbox_ops import start_sandbox
from ._session import start
from ._storage import StorageItemUsage
from .errors import MicrosandboxError, unsupported
from .events import PullEvent
from .types import GuestFlush, PullEventType, SnapshotFormat, SnapshotScope, SnapshotStateKind

if TYPE_CHECKING:
    from ._generated import Snapshot as SnapshotInfo

_MEMORY_HINT = "snapshots of msb hold files, not memory"
_TAR_HINT = "msb has one format of archives: leave it out"


@dataclass(frozen=True)
class ExternalMountWarning:
    """A mount that could not be restored as it was."""

    guest_path: str
    reason: str
    stale_inodes: list[int]


@dataclass(frozen=True)
class SnapshotArchive:
    """A snapshot that was saved to an archive."""

    id: str
    descriptor_digest: str
    path: str


def _selector(snapshot: Any) -> str:
    if isinstance(snapshot, (Snapshot, SnapshotHandle)):
        return snapshot.reference
    return check.path("snapshot", snapshot)


def restore(
    snapshot: Any, name: str, options: Mapping[str, Any]
) -> Callable[[], Coroutine[Any, Any, Sandbox]]:
    """Checks the arguments of `Sandbox.restore`; the result restores."""
    selector = _selector(snapshot)
    changes, modify, volumes = _options.restore_changes(options)

    async def work() -> Sandbox:
        session = _session.current()
        await make_volumes(volumes)
        change: Any = changes or None
        await session.snapshot_restore(selector, name, changes=change)
        if modify:
            later: Any = modify
            await session.sandbox_modify(name, later)
        await start_sandbox(name, detached=False)
        return await connect_by_name(name)

    return work


class RestoreSession(PullSession):
    """A sandbox that is being restored."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Sandbox]]) -> None:
        self._stream = None
        self._sandbox = None
        self._work = work
        self._steps = self._run()

    async def _run(self) -> AsyncGenerator[PullEvent, None]:
        self._sandbox = await self._work()
        yield PullEvent(PullEventType.COMPLETE)


async def create(name: str, of: str, note: str | None) -> Snapshot:
    """Saves the files of a sandbox."""
    return Snapshot(await _session.current().snapshot_create(name, of, note=note))


async def _save(name: str, path: str, whole: bool) -> None:
    stream = await _session.current().open("snapshot_save", {"name": name, "whole": whole})
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            while (frame := await stream.next()) is not None:
                file.write(frame[1])
        os.replace(part, path)
    except BaseException:
        stream.cancel()
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


async def _load(path: str) -> SnapshotHandle:
    stream = await _session.current().open("snapshot_load", {}, collect=True)
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 18):
                await stream.send(piece)
                if stream.ended:
                    break
        stream.close_input()
        info: SnapshotInfo = await stream.end()
    except BaseException:
        stream.cancel()
        raise
    return SnapshotHandle(info)


def _check_create(name: Any, from_sandbox: Any, full: Any, dest_dir: Any, flush: Any) -> None:
    check.text("name", name)
    check.text("from_sandbox", from_sandbox)
    if check.optional(flush, GuestFlush) is GuestFlush.SKIP:
        raise unsupported("guest_flush=GuestFlush.SKIP", "leave it out: files are always complete")
    if check.flag("full", full):
        raise unsupported("Snapshot.create(full=True)", _MEMORY_HINT)
    if dest_dir is not None:
        raise unsupported("Snapshot.create(dest_dir=…)", "use Snapshot.save to write an archive")


def _check_marks(operation: str, group: Any, labels: Any) -> None:
    if check.mapping("labels", labels):
        raise unsupported(f"{operation}(labels=…)", "name the snapshot")
    if check.optional_text("group", group) is not None:
        raise unsupported(f"{operation}(group=…)", "name the snapshot")


def _whole(
    with_parents: Any, with_image: Any, plain_tar: Any, since: Any, last_layers: Any
) -> bool:
    if check.flag("with_parents", with_parents):
        raise unsupported("save(with_parents=True)", "save each parent by its own name")
    if check.flag("plain_tar", plain_tar):
        raise unsupported("save(plain_tar=True)", _TAR_HINT)
    if since is not None or last_layers is not None:
        raise unsupported("save(since=…, last_layers=…)", "save the whole snapshot")
    return check.flag("with_image", with_image)


class _Common:
    def __init__(self, info: SnapshotInfo) -> None:
        self._info = info

    @property
    def id(self) -> str:
        """The id, which never changes."""
        return self._info["id"]

    @property
    def reference(self) -> str:
        """What names the snapshot: its id."""
        return self._info["id"]

    @property
    def reference_kind(self) -> Literal["id", "path"]:
        """Whether `reference` is an id or a path."""
        return "id"

    @property
    def path(self) -> str:
        """The directory of the snapshot on this host."""
        return os.path.join(_runtime.home(), "snapshots", self._info["id"])

    @property
    def digest(self) -> str:
        """The digest of its files; the id until it is computed."""
        return self._info.get("digest") or self._info["id"]

    @property
    def size_bytes(self) -> int | None:
        """The size of its layers in bytes."""
        return self._info.get("bytes")

    @property
    def image_ref(self) -> str:
        """The image of the saved sandbox."""
        return self._info["image"]

    @property
    def state_kind(self) -> SnapshotStateKind:
        """What it holds: files."""
        return SnapshotStateKind.FILE

    @property
    def format(self) -> SnapshotFormat | None:
        """The format of its disk: none, it is a tree of files."""
        return None

    @property
    def fstype(self) -> str | None:
        """The file system of its disk: none, it is a tree of files."""
        return None

    @property
    def checkpoint_manifest_digest(self) -> str | None:
        """The digest of its memory: none."""
        return None

    @property
    def scope(self) -> SnapshotScope:
        """Whether it has memory: it has not."""
        return SnapshotScope.DISK

    @property
    def head_update(self) -> dict[str, str | bool | None] | None:
        """How a group has changed: msb has no groups of snapshots."""
        return None

    def storage_usage(self) -> Awaitable[StorageItemUsage]:
        """The disk space of the snapshot."""

        async def work() -> StorageItemUsage:
            info = await _session.current().snapshot_inspect(self.reference)
            size, used = info.get("bytes"), bool(info["children"])
            return StorageItemUsage(self.reference, self.path, size, size, used, not used)

        return start(work)

    def save_to(
        self,
        out: str | PathLike[str],
        *,
        with_parents: bool = False,
        with_image: bool = False,
        plain_tar: bool = False,
        since: str | None = None,
        last_layers: int | None = None,
    ) -> Awaitable[None]:
        """Saves the snapshot to an archive."""
        path = check.path("out", out)
        whole = _whole(with_parents, with_image, plain_tar, since, last_layers)
        return start(lambda: _save(self.reference, path, whole))


class Snapshot(_Common):
    """The saved files of a sandbox."""

    @property
    def image_manifest_digest(self) -> str:
        """The digest of the image of the saved sandbox."""
        return self._info.get("image_digest") or ""

    @property
    def checkpoint_id(self) -> str | None:
        """The id of its memory: none."""
        return None

    @property
    def parent(self) -> str | None:
        """The snapshot that it lies on."""
        return self._info.get("parent")

    @property
    def created_at(self) -> str:
        """When it was taken, as ISO 8601."""
        seconds = self._info["created"] / 1000
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat()

    @property
    def labels(self) -> dict[str, str]:
        """Labels: msb has none for snapshots."""
        return {}

    @property
    def source_sandbox(self) -> str | None:
        """The sandbox that it was taken of."""
        return self._info["sandbox"]

    @staticmethod
    def create(
        name: str = "",
        *,
        from_sandbox: str,
        group: str | None = None,
        dest_dir: str | PathLike[str] | None = None,
        labels: dict[str, str] | None = None,
        force: bool = False,
        record_integrity: bool = False,
        full: bool = False,
        guest_flush: GuestFlush | None = None,
    ) -> Awaitable[Snapshot]:
        """Saves the files of a sandbox, running or not."""
        _check_create(name, from_sandbox, full, dest_dir, guest_flush)
        _check_marks("Snapshot.create", group, labels)

        async def work() -> Snapshot:
            session = _session.current()
            chosen = name or f"{from_sandbox}-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}"
            if force:
                with contextlib.suppress(MicrosandboxError):
                    await session.snapshot_remove(chosen)
            return await create(chosen, from_sandbox, None)

        return start(work)

    @staticmethod
    def create_archive(
        name: str,
        archive: str | PathLike[str],
        *,
        from_sandbox: str,
        group: str | None = None,
        labels: dict[str, str] | None = None,
        force: bool = False,
        record_integrity: bool = False,
        full: bool = False,
        plain_tar: bool = False,
        guest_flush: GuestFlush | None = None,
    ) -> Awaitable[SnapshotArchive]:
        """Saves the files of a sandbox to an archive."""
        _check_create(name, from_sandbox, full, None, guest_flush)
        _check_marks("Snapshot.create_archive", group, labels)
        if check.flag("plain_tar", plain_tar):
            raise unsupported("Snapshot.create_archive(plain_tar=True)", _TAR_HINT)
        path = check.path("archive", archive)

        async def work() -> SnapshotArchive:
            session = _session.current()
            made = await create(name, from_sandbox, None)
            try:
                await _save(made.reference, path, False)
            finally:
                await session.snapshot_remove(name)
            return SnapshotArchive(made.id, made.digest, path)

        return start(work)

    @staticmethod
    def open(path_or_name: str) -> Awaitable[Snapshot]:
        """A snapshot by its name or id."""
        check.text("path_or_name", path_or_name)

        async def work() -> Snapshot:
            return Snapshot(await _session.current().snapshot_inspect(path_or_name))

        return start(work)

    @staticmethod
    def get(name_or_digest: str) -> Awaitable[SnapshotHandle]:
        """A snapshot by its name or id."""
        check.text("name_or_digest", name_or_digest)

        async def work() -> SnapshotHandle:
            return SnapshotHandle(await _session.current().snapshot_inspect(name_or_digest))

        return start(work)

    @staticmethod
    def list() -> Awaitable[builtins.list[SnapshotHandle]]:
        """All snapshots, the oldest first."""

        async def work() -> builtins.list[SnapshotHandle]:
            return [SnapshotHandle(each) for each in await _session.current().snapshot_list()]

        return start(work)

    @staticmethod
    def remove(path_or_name: str, *, force: bool = False) -> Awaitable[None]:
        """Removes a snapshot."""
        check.text("path_or_name", path_or_name)
        check.flag("force", force)

        async def work() -> None:
            await _session.current().snapshot_remove(path_or_name, force=force)

        return start(work)

    @staticmethod
    def reindex(dir: str | PathLike[str] | None = None) -> Awaitable[int]:
        """Counts the snapshots: msb has no index that could be out of date."""
        if dir is not None:
            raise unsupported("Snapshot.reindex(dir=…)", "load archives with Snapshot.load")

        async def work() -> int:
            return len(await _session.current().snapshot_list())

        return start(work)

    @staticmethod
    def save(
        name_or_path: str,
        out: str | PathLike[str],
        *,
        with_parents: bool = False,
        with_image: bool = False,
        plain_tar: bool = False,
        since: str | None = None,
        last_layers: int | None = None,
    ) -> Awaitable[None]:
        """Saves a snapshot to an archive."""
        check.text("name_or_path", name_or_path)
        path = check.path("out", out)
        whole = _whole(with_parents, with_image, plain_tar, since, last_layers)
        return start(lambda: _save(name_or_path, path, whole))

    @staticmethod
    def load(
        archive: str | PathLike[str],
        *,
        dest: str | PathLike[str] | None = None,
        base: str | None = None,
        group: str | None = None,
        set_head: bool = False,
    ) -> Awaitable[SnapshotHandle]:
        """Loads a snapshot from an archive."""
        path = check.path("archive", archive)
        if dest is not None or base is not None or group is not None or set_head:
            raise unsupported("Snapshot.load(dest, base, group, set_head)", "leave them out")
        return start(lambda: _load(path))

    @staticmethod
    def load_many(
        archives: Sequence[str | PathLike[str]],
        *,
        dest: str | PathLike[str] | None = None,
        base: str | None = None,
        group: str | None = None,
        set_head: bool = False,
    ) -> Awaitable[builtins.list[SnapshotHandle]]:
        """Loads several snapshots from archives."""
        paths = [check.path("archives", each) for each in archives]
        if dest is not None or base is not None or group is not None or set_head:
            raise unsupported("Snapshot.load_many(dest, base, group, set_head)", "leave them out")

        async def work() -> builtins.list[SnapshotHandle]:
            return [await _load(path) for path in paths]

        return start(work)

    @staticmethod
    def group_head(selector: str) -> Awaitable[dict[str, str | bool | None]]:
        """Not supported: msb has no groups of snapshots."""
        check.text("selector", selector)

        async def work() -> dict[str, str | bool | None]:
            raise unsupported("Snapshot.group_head", "name snapshots")

        return start(work)

    @staticmethod
    def list_dir(dir: str | PathLike[str]) -> Awaitable[builtins.list[Snapshot]]:
        """Not supported: snapshots are in the state directory of msb."""
        check.path("dir", dir)

        async def work() -> builtins.list[Snapshot]:
            raise unsupported("Snapshot.list_dir", "use Snapshot.list")

        return start(work)

    def copy_to(self, output_archive_path: str | PathLike[str]) -> SnapshotCopyBuilder:
        """Saves the snapshot to an archive, by a builder."""
        return SnapshotCopyBuilder(self, check.path("output_archive_path", output_archive_path))

    def verify(self) -> Awaitable[dict[str, Any]]:
        """Compares the files with the digests recorded at their creation."""

        async def work() -> dict[str, Any]:
            verified: Any = await _session.current().snapshot_verify(self.reference)
            return dict(verified)

        return start(work)


class SnapshotCopyBuilder:
    """Saves a snapshot to an archive."""

    def __init__(self, snapshot: Snapshot, path: str) -> None:
        self._snapshot = snapshot
        self._path = path

    def labels(self, labels: dict[str, str]) -> SnapshotCopyBuilder:
        """Not supported: snapshots have no labels."""
        if labels:
            raise unsupported("SnapshotCopyBuilder.labels", "leave it out")
        return self

    def record_integrity(self, enabled: bool) -> SnapshotCopyBuilder:
        """Digests are always recorded."""
        check.flag("enabled", enabled)
        return self

    def save(self) -> Awaitable[None]:
        """Writes the archive."""
        return self._snapshot.save_to(self._path)


class SnapshotHandle(_Common):
    """A snapshot as it was found."""

    @property
    def group(self) -> str | None:
        """The group: msb has no groups of snapshots."""
        return None

    @property
    def name(self) -> str | None:
        """The first name of the snapshot."""
        names = self._info["names"]
        return names[0] if names else None

    @property
    def parent_digest(self) -> str | None:
        """The snapshot that it lies on."""
        return self._info.get("parent")

    @property
    def locality(self) -> str:
        """Where it is stored."""
        return "local"

    @property
    def availability(self) -> str:
        """Whether it can be restored now."""
        return "available"

    @property
    def migration_state(self) -> str:
        """Whether its format is up to date."""
        return "current"

    @property
    def migration_error_code(self) -> str | None:
        """Why its format could not be updated."""
        return None

    @property
    def created_at(self) -> float:
        """When it was taken, in seconds since 1970."""
        return self._info["created"] / 1000

    def open(self) -> Awaitable[Snapshot]:
        """All details of the snapshot."""
        return Snapshot.open(self.reference)

    def remove(self, *, force: bool = False) -> Awaitable[None]:
        """Removes the snapshot."""
        return Snapshot.remove(self.name or self.reference, force=force)
