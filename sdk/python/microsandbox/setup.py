"""The executable `msb`: where it is, and how it gets there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from . import _runtime
from ._session import start
from .errors import InvalidConfigError, RuntimeNotInstalledError, unsupported

RuntimeOrigin: TypeAlias = Literal[
    "environment", "sdk_package", "configuration", "home", "installed"
]


@dataclass(frozen=True)
class RuntimeConfig:
    """Where the executable is looked for."""

    home: str | None = None
    msb_path: str | None = None
    libkrunfw_path: str | None = None


@dataclass(frozen=True)
class InstallOptions:
    """Where an executable is installed from."""

    source: Literal["release_download", "archive", "directory", "embedded_archive"] = (
        "release_download"
    )
    source_path: str | None = None
    version: str | None = None
    force: bool = False
    verify: bool = True
    expected_archive_sha256: str | None = None


@dataclass(frozen=True)
class ResolvedRuntime:
    """The executable that is used. msb needs no libkrunfw: that path is empty."""

    msb_path: str
    libkrunfw_path: str
    origin: RuntimeOrigin


def resolve_runtime(config: RuntimeConfig | None = None) -> ResolvedRuntime:
    """Finds the executable. Raises RuntimeNotInstalledError."""
    if config is not None and config.msb_path is not None:
        if not os.access(config.msb_path, os.X_OK):
            raise RuntimeNotInstalledError(f"no executable `msb` at `{config.msb_path}`")
        return ResolvedRuntime(os.path.abspath(config.msb_path), "", "configuration")
    if config is not None and config.home is not None:
        path = os.path.join(config.home, "bin", "msb")
        if os.access(path, os.X_OK):
            return ResolvedRuntime(path, "", "home")
    path, origin = _runtime.find()
    return ResolvedRuntime(path, "", cast("RuntimeOrigin", origin))


def is_runtime_installed(config: RuntimeConfig | None = None) -> bool:
    """Whether the executable is found."""
    try:
        resolve_runtime(config)
    except RuntimeNotInstalledError:
        return False
    return True


def _install(config: RuntimeConfig | None, options: InstallOptions) -> ResolvedRuntime:
    if options.source != "directory":
        raise unsupported(
            f"install_runtime(source={options.source!r})",
            "use source='directory', or the wheel, which has the executable inside",
        )
    if options.source_path is None:
        raise InvalidConfigError("source_path is required for source='directory'")
    source = os.path.join(options.source_path, "msb")
    if not os.path.isfile(source):
        source = os.path.join(options.source_path, "bin", "msb")
    if not os.path.isfile(source):
        raise RuntimeNotInstalledError(f"no `msb` in `{options.source_path}`")
    if options.expected_archive_sha256 is not None:
        with open(source, "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
        if found != options.expected_archive_sha256:
            raise InvalidConfigError(f"the digest of `{source}` is another: `{found}`")
    home = (config.home if config else None) or _runtime.home()
    target = os.path.join(home, "bin", "msb")
    if options.force or not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, f"{target}.new")
        os.chmod(f"{target}.new", 0o755)
        os.replace(f"{target}.new", target)
    return ResolvedRuntime(target, "", "home")


def install_runtime(
    config: RuntimeConfig | None = None, options: InstallOptions | None = None
) -> Awaitable[ResolvedRuntime]:
    """Copies an executable into the state directory."""

    async def work() -> ResolvedRuntime:
        return _install(config, options or InstallOptions())

    return start(work)


def ensure_runtime(
    config: RuntimeConfig | None = None, options: InstallOptions | None = None
) -> Awaitable[ResolvedRuntime]:
    """Finds the executable, and installs it if there is none."""

    async def work() -> ResolvedRuntime:
        try:
            return resolve_runtime(config)
        except RuntimeNotInstalledError:
            return _install(config, options or InstallOptions())

    return start(work)


__all__ = [
    "InstallOptions",
    "ResolvedRuntime",
    "RuntimeConfig",
    "RuntimeOrigin",
    "ensure_runtime",
    "install_runtime",
    "is_runtime_installed",
    "resolve_runtime",
]
