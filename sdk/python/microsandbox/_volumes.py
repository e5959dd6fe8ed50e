"""Volumes: files that outlive sandboxes, and the mounts of a sandbox."""

from __future__ import annotations

import builtins
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from . import _checks as check
from . import _runtime, _session
from ._fs import VolumeFs
from ._session import start
from .errors import unsupported
from .types import (
    DiskImageFormat,
    HostPermissions,
    MiB,
    MountConfig,
    MountKind,
    NamedVolumeMode,
    StatVirtualization,
    VolumeKind,
)

if TYPE_CHECKING:
    from ._generated import Volume as VolumeInfo


def _policy(uid: Any, gid: Any, stat: Any, permissions: Any) -> dict[str, Any]:
    if (uid is None) != (gid is None):
        raise ValueError("uid and gid are given together")
    return {
        "stat_virtualization": check.optional(stat, StatVirtualization),
        "host_permissions": check.optional(permissions, HostPermissions),
        "override_uid": check.optional_integer("uid", uid),
        "override_gid": check.optional_integer("gid", gid),
    }


class Volume:
    """A volume that was created."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The name of the volume."""
        return self._name

    @property
    def path(self) -> str:
        """The directory of the volume on this host."""
        return os.path.join(_runtime.home(), "volumes", self._name)

    @staticmethod
    def create(
        name: str,
        *,
        kind: VolumeKind = VolumeKind.DIRECTORY,
        size_mib: int | None = None,
        quota_mib: int | None = None,
        labels: dict[str, str] | None = None,
    ) -> Awaitable[Volume]:
        """Creates a volume."""
        check.text("name", name)
        check.member(kind, VolumeKind)
        size = size_mib if size_mib is not None else quota_mib
        check.optional_integer("size_mib", size, 1)
        marks = check.mapping("labels", labels)

        async def work() -> Volume:
            limit = None if size is None else f"{size}M"
            await _session.current().volume_create(
                name, kind=kind.value, labels=marks, size=limit
            )
            return Volume(name)

        return start(work)

    @staticmethod
    def get(name: str) -> Awaitable[VolumeHandle]:
        """The volume of this name."""
        check.text("name", name)

        async def work() -> VolumeHandle:
            return VolumeHandle(await _session.current().volume_inspect(name))

        return start(work)

    @staticmethod
    def get_default() -> Awaitable[VolumeHandle]:
        """Not supported: msb has no default volume."""

        async def work() -> VolumeHandle:
            raise unsupported("Volume.get_default", "create a volume by name")

        return start(work)

    @staticmethod
    def list() -> Awaitable[builtins.list[VolumeHandle]]:
        """All volumes, sorted by name."""

        async def work() -> builtins.list[VolumeHandle]:
            return [VolumeHandle(each) for each in await _session.current().volume_list()]

        return start(work)

    @staticmethod
    def remove(name: str) -> Awaitable[None]:
        """Removes a volume that no sandbox uses."""
        check.text("name", name)

        async def work() -> None:
            await _session.current().volume_remove(name)

        return start(work)

    @staticmethod
    def bind(
        path: str,
        *,
        readonly: bool = False,
        noexec: bool = False,
        nosuid: bool = False,
        nodev: bool = False,
        stat_virtualization: StatVirtualization | None = None,
        host_permissions: HostPermissions | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> MountConfig:
        """A mount of a path of this host."""
        return MountConfig(
            MountKind.BIND,
            bind=check.path("path", path),
            readonly=readonly,
            noexec=noexec,
            nosuid=nosuid,
            nodev=nodev,
            **_policy(uid, gid, stat_virtualization, host_permissions),
        )

    @staticmethod
    def named(
        name: str,
        *,
        mode: NamedVolumeMode | None = None,
        kind: VolumeKind | None = None,
        size_mib: int | None = None,
        quota_mib: int | None = None,
        readonly: bool = False,
        noexec: bool = False,
        nosuid: bool = False,
        nodev: bool = False,
        stat_virtualization: StatVirtualization | None = None,
        host_permissions: HostPermissions | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> MountConfig:
        """A mount of a volume. It is created if it does not exist, unless `mode` forbids that."""
        return MountConfig(
            MountKind.NAMED,
            named=check.text("name", name),
            named_mode=check.optional(mode, NamedVolumeMode),
            named_kind=check.optional(kind, VolumeKind),
            size_mib=check.optional_integer("size_mib", size_mib, 1),
            quota_mib=check.optional_integer("quota_mib", quota_mib, 1),
            readonly=readonly,
            noexec=noexec,
            nosuid=nosuid,
            nodev=nodev,
            **_policy(uid, gid, stat_virtualization, host_permissions),
        )

    @staticmethod
    def owned(
        *,
        kind: VolumeKind | None = None,
        size_mib: int | None = None,
        quota_mib: int | None = None,
        readonly: bool = False,
        noexec: bool = False,
        nosuid: bool = False,
        nodev: bool = False,
        stat_virtualization: StatVirtualization | None = None,
        host_permissions: HostPermissions | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> MountConfig:
        """A mount that ends with its sandbox."""
        check.optional(kind, VolumeKind)
        policy = _policy(uid, gid, stat_virtualization, host_permissions)
        if kind is VolumeKind.DISK:
            if size_mib is None:
                raise ValueError("an owned disk needs size_mib")
            if any(value is not None for value in policy.values()):
                raise ValueError("an owned disk takes no mount policy")
        elif size_mib is not None:
            raise ValueError("an owned directory takes quota_mib, not size_mib")
        return MountConfig(
            MountKind.OWNED,
            owned_kind=kind,
            size_mib=check.optional_integer("size_mib", size_mib, 1),
            quota_mib=check.optional_integer("quota_mib", quota_mib, 1),
            readonly=readonly,
            noexec=noexec,
            nosuid=nosuid,
            nodev=nodev,
            **policy,
        )

    @staticmethod
    def tmpfs(
        *,
        size_mib: int | None = None,
        readonly: bool = False,
        noexec: bool = False,
        nosuid: bool = False,
        nodev: bool = False,
    ) -> MountConfig:
        """A mount in memory."""
        return MountConfig(
            MountKind.TMPFS,
            size_mib=check.optional_integer("size_mib", size_mib, 1),
            readonly=readonly,
            noexec=noexec,
            nosuid=nosuid,
            nodev=nodev,
        )

    @staticmethod
    def disk(
        path: str,
        *,
        format: DiskImageFormat | None = None,
        fstype: str | None = None,
        readonly: bool = False,
        noexec: bool = False,
        nosuid: bool = False,
        nodev: bool = False,
    ) -> MountConfig:
        """A mount of a disk image of this host."""
        return MountConfig(
            MountKind.DISK,
            disk=check.path("path", path),
            format=check.optional(format, DiskImageFormat),
            fstype=fstype,
            readonly=readonly,
            noexec=noexec,
            nosuid=nosuid,
            nodev=nodev,
        )


class VolumeHandle:
    """A volume as it was found."""

    def __init__(self, info: VolumeInfo) -> None:
        self._info = info

    @property
    def name(self) -> str:
        """The name of the volume."""
        return self._info["name"]

    @property
    def is_default(self) -> bool:
        """Whether it is the default volume; msb has none."""
        return False

    @property
    def kind(self) -> VolumeKind:
        """How it is stored."""
        return VolumeKind(self._info["kind"])

    @property
    def quota_mib(self) -> int | None:
        """The most that it may hold, in MiB."""
        size = self._info.get("size")
        return None if size is None else size // MiB

    @property
    def used_bytes(self) -> int:
        """Bytes that it takes on the disk."""
        return self._info["used"]

    @property
    def capacity_bytes(self) -> int | None:
        """The most that it may hold, in bytes."""
        return self._info.get("size")

    @property
    def disk_format(self) -> DiskImageFormat | None:
        """The format of its disk image."""
        return DiskImageFormat.RAW if self.kind is VolumeKind.DISK else None

    @property
    def disk_fstype(self) -> str | None:
        """The file system of its disk image."""
        return "ext4" if self.kind is VolumeKind.DISK else None

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the volume."""
        return dict(self._info["labels"])

    @property
    def created_at(self) -> float | None:
        """When it was created, in seconds since 1970."""
        return self._info["created"] / 1000

    @property
    def fs(self) -> VolumeFs:
        """The files of the volume."""
        return VolumeFs(self.name)

    def remove(self) -> Awaitable[None]:
        """Removes the volume; no sandbox may use it."""
        return Volume.remove(self.name)
