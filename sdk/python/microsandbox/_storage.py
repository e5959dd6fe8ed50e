"""Disk usage of everything that msb stores."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal

from . import _checks as check
from . import _session
from ._session import start


@dataclass(frozen=True)
class StorageItemUsage:
    """Disk usage of one thing."""

    name: str
    path: str
    logical_bytes: int | None
    allocated_bytes: int | None
    in_use: bool | None
    reclaimable: bool | None
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StorageCategoryUsage:
    """Disk usage of all things of a kind."""

    count: int | None = None
    in_use: int | None = None
    logical_bytes: int | None = None
    allocated_bytes: int | None = None
    reclaimable_logical_bytes: int | None = None
    items: list[StorageItemUsage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StorageUsage:
    """Disk usage of the state directory."""

    images: StorageCategoryUsage
    snapshots: StorageCategoryUsage
    sandboxes: StorageCategoryUsage
    volumes: StorageCategoryUsage
    branch_memory: StorageCategoryUsage
    snapshot_memory: StorageCategoryUsage
    notes: list[str]


@dataclass(frozen=True)
class MemoryCacheEntry:
    """One file with saved memory."""

    path: str
    kind: Literal["branch_memory", "snapshot_memory"]
    logical_bytes: int | None
    allocated_bytes: int | None
    state: Literal[
        "reclaimable",
        "in_use",
        "pending_handoff",
        "too_young",
        "missing_handoff_lock",
        "changed",
        "removed",
        "error",
    ]
    error: str | None


@dataclass(frozen=True)
class MemoryCacheReport:
    """What `Storage.prune` has removed. msb saves no memory, so it is empty."""

    dry_run: bool
    entries: list[MemoryCacheEntry]
    files_removed: int
    logical_bytes_removed: int
    physical_bytes_reclaimed: int | None
    truncated: bool


class Storage:
    """Disk usage, and removal of what is not needed."""

    @staticmethod
    def usage() -> Awaitable[StorageUsage]:
        """Disk usage of images, snapshots, sandboxes and volumes."""

        async def work() -> StorageUsage:
            session = _session.current()
            used = await session.disk_usage()
            images = used["images"]
            size = images["blobs"] + images["layers"] + images["disks"]
            count = 0
            with contextlib.suppress(KeyError):
                count = len(await session.image_list())
            none = StorageCategoryUsage(0, 0, 0, 0, 0)
            return StorageUsage(
                images=StorageCategoryUsage(count, None, size, size, used["reclaimable"]),
                snapshots=StorageCategoryUsage(
                    used["snapshots"], None, used["frozen_bytes"], used["frozen_bytes"]
                ),
                sandboxes=StorageCategoryUsage(
                    used["sandboxes"], None, used["sandbox_bytes"], used["sandbox_bytes"]
                ),
                volumes=StorageCategoryUsage(
                    used["volumes"], None, used["volume_bytes"], used["volume_bytes"]
                ),
                branch_memory=none,
                snapshot_memory=none,
                notes=[],
            )

        return start(work)

    @staticmethod
    def prune(
        *, dry_run: bool = False, older_than_seconds: int | None = None
    ) -> Awaitable[MemoryCacheReport]:
        """Removes saved memory that nothing needs: there is none."""
        check.flag("dry_run", dry_run)
        check.optional_integer("older_than_seconds", older_than_seconds)

        async def work() -> MemoryCacheReport:
            return MemoryCacheReport(dry_run, [], 0, 0, 0, False)

        return start(work)
