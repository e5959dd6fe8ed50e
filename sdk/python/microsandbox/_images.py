"""Images: sources of sandboxes, and those that are stored here."""

from __future__ import annotations

import builtins
import os
import warnings
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _checks as check
from . import _runtime, _session
from ._session import start
from .types import ImageArchiveFormat, ImageSource, ImageSourceKind, RootDiskConfig

if TYPE_CHECKING:
    from ._generated import ImageInspection, ImageSummary


@dataclass(frozen=True)
class ImageConfigDetail:
    """The configuration of an image."""

    digest: str
    env: list[str]
    cmd: list[str] | None
    entrypoint: list[str] | None
    working_dir: str | None
    user: str | None
    labels: dict[str, Any] | None
    stop_signal: str | None


@dataclass(frozen=True)
class ImageLayerDetail:
    """One layer of an image."""

    diff_id: str
    blob_digest: str
    media_type: str | None
    compressed_size_bytes: int | None
    erofs_size_bytes: int | None
    position: int


@dataclass(frozen=True)
class ImagePruneReport:
    """What `Image.prune` has removed."""

    skipped_in_use: int
    image_refs_removed: int
    manifests_removed: int
    layers_removed: int
    fsmeta_removed: int
    vmdk_removed: int
    bytes_reclaimed: int | None


class ImageHandle:
    """A stored image."""

    def __init__(self, info: ImageSummary | ImageInspection) -> None:
        self.reference = info["reference"]
        self.size_bytes: int | None = info["size"]
        self.manifest_digest: str | None = info["digest"]
        os_name, _, architecture = info["platform"].partition("/")
        self.os: str | None = os_name or None
        self.architecture: str | None = architecture or None
        layers: Any = info["layers"]
        self.layer_count: int = layers if isinstance(layers, int) else len(layers)
        used, created = info.get("used"), info.get("created")
        self.last_used_at: float | None = None if used is None else used / 1000
        self.created_at: float | None = None if created is None else created / 1000

    def __repr__(self) -> str:
        return f"ImageHandle({self.reference!r})"

    def inspect(self) -> Awaitable[ImageDetail]:
        """All details of the image."""
        return Image.inspect(self.reference)

    def remove(self, *, force: bool = False) -> Awaitable[None]:
        """Removes the image."""
        return Image.remove(self.reference, force=force)


@dataclass(frozen=True)
class ImageDetail:
    """All details of an image."""

    handle: ImageHandle
    config: ImageConfigDetail | None
    layers: list[ImageLayerDetail]


def _detail(info: ImageInspection) -> ImageDetail:
    config = info["config"]
    layers = [
        ImageLayerDetail(
            layer["diff_id"],
            layer["digest"],
            layer["media_type"],
            layer["size"],
            layer["unpacked"],
            position,
        )
        for position, layer in enumerate(info["layers"])
    ]
    found = ImageConfigDetail(
        digest=info["digest"],
        env=list(config.get("env") or []),
        cmd=config.get("cmd") or None,
        entrypoint=config.get("entrypoint") or None,
        working_dir=config.get("workdir") or None,
        user=config.get("user") or None,
        labels=config.get("labels") or None,
        stop_signal=config.get("stop_signal") or None,
    )
    return ImageDetail(ImageHandle(info), found, layers)


class Image:
    """Makes sources for `Sandbox.create(image=…)`, and manages stored images."""

    @staticmethod
    def oci(
        reference: str,
        *,
        root_disk: RootDiskConfig | int | None = None,
        upper_size_mib: int | None = None,
    ) -> ImageSource:
        """An image of a registry."""
        if upper_size_mib is not None:
            warnings.warn(
                "upper_size_mib is deprecated; use root_disk", DeprecationWarning, stacklevel=2
            )
        return ImageSource(
            ImageSourceKind.OCI,
            _reference=check.text("reference", reference),
            _root_disk=root_disk,
            _upper_size_mib=check.optional_integer("upper_size_mib", upper_size_mib, 1),
        )

    @staticmethod
    def bind(path: str) -> ImageSource:
        """A directory of this host as the root file system."""
        return ImageSource(ImageSourceKind.BIND, _path=check.path("path", path))

    @staticmethod
    def disk(path: str, *, fstype: str | None = None) -> ImageSource:
        """A disk image of this host."""
        check.optional_text("fstype", fstype)
        return ImageSource(ImageSourceKind.DISK, _path=check.path("path", path), _fstype=fstype)

    @staticmethod
    def get(reference: str) -> Awaitable[ImageHandle]:
        """A stored image."""
        check.text("reference", reference)

        async def work() -> ImageHandle:
            return ImageHandle(await _session.current().image_inspect(reference))

        return start(work)

    @staticmethod
    def list() -> Awaitable[builtins.list[ImageHandle]]:
        """All stored images, sorted by name."""

        async def work() -> builtins.list[ImageHandle]:
            return [ImageHandle(each) for each in await _session.current().image_list()]

        return start(work)

    @staticmethod
    def inspect(reference: str) -> Awaitable[ImageDetail]:
        """All details of a stored image."""
        check.text("reference", reference)

        async def work() -> ImageDetail:
            return _detail(await _session.current().image_inspect(reference))

        return start(work)

    @staticmethod
    def remove(reference: str, *, force: bool = False) -> Awaitable[None]:
        """Removes a stored image."""
        check.text("reference", reference)
        check.flag("force", force)

        async def work() -> None:
            await _session.current().image_remove(reference, force=force)

        return start(work)

    @staticmethod
    def prune() -> Awaitable[ImagePruneReport]:
        """Removes images that no sandbox uses, and their layers."""

        async def work() -> ImagePruneReport:
            done = await _session.current().image_prune(all=True)
            removed = len(done["images"])
            return ImagePruneReport(
                len(done["failed"]), removed, removed, done["layers"], 0, 0, done["bytes"]
            )

        return start(work)

    @staticmethod
    def load(input_path: str, *, tag: str | None = None) -> Awaitable[builtins.list[ImageHandle]]:
        """Loads images from an archive of Docker or OCI."""
        path = os.path.abspath(check.path("input_path", input_path))
        check.optional_text("tag", tag)

        async def work() -> builtins.list[ImageHandle]:
            session = _session.current()
            before = {(each["reference"], each["digest"]) for each in await session.image_list()}
            _runtime.run_cli("load", "-i", path, *(["--tag", tag] if tag else []))
            after = await session.image_list()
            new = [each for each in after if (each["reference"], each["digest"]) not in before]
            return [ImageHandle(each) for each in new or after]

        return start(work)

    @staticmethod
    def save(
        reference: str | Sequence[str],
        *,
        output_path: str,
        format: ImageArchiveFormat = ImageArchiveFormat.DOCKER,
    ) -> Awaitable[None]:
        """Saves stored images as an archive."""
        names = [reference] if isinstance(reference, str) else check.texts("reference", reference)
        path = os.path.abspath(check.path("output_path", output_path))
        check.member(format, ImageArchiveFormat)

        async def work() -> None:
            _runtime.run_cli("save", "--format", format.value, "-o", path, *names)

        return start(work)
