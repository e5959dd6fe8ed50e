"""The backend: sandboxes of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from . import _checks as check
from . import _runtime
from ._session import VERSION
from .errors import unsupported
from .types import BackendKind


@dataclass(frozen=True)
class BackendInfo:
    """The backend in use."""

    kind: BackendKind
    api_url: str | None
    source: str
    profile: str | None


def _check(kind: Any, url: Any, api_key: Any, profile: Any) -> None:
    check.member(kind, BackendKind)
    check.optional_text("url", url)
    check.optional_text("api_key", api_key)
    check.optional_text("profile", profile)
    if kind is BackendKind.CLOUD:
        raise unsupported("BackendKind.CLOUD", "use `msb --remote` for another machine")


def set_default_backend(
    kind: BackendKind,
    *,
    url: str | None = None,
    api_key: str | None = None,
    profile: str | None = None,
) -> None:
    """Chooses the backend. Only LOCAL exists."""
    _check(kind, url, api_key, profile)


class BackendScope:
    """A backend for a `with` block."""

    def restore(self) -> None:
        """Returns to the backend of before."""

    def __enter__(self) -> BackendScope:
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        self.restore()


def backend_scope(
    kind: BackendKind,
    *,
    url: str | None = None,
    api_key: str | None = None,
    profile: str | None = None,
) -> BackendScope:
    """Chooses the backend for a `with` block. Only LOCAL exists."""
    _check(kind, url, api_key, profile)
    return BackendScope()


def default_backend_kind() -> BackendKind:
    """The kind of the backend: LOCAL."""
    return BackendKind.LOCAL


def default_backend_info() -> BackendInfo:
    """The backend in use."""
    return BackendInfo(BackendKind.LOCAL, None, "default", os.environ.get("MSB_PROFILE"))


def resolved_msb_path() -> str:
    """The path of the executable `msb`."""
    return _runtime.msb_path()


def resolved_cli_msb_path() -> str:
    """The path of the executable `msb`."""
    return _runtime.msb_path()


def set_runtime_msb_path(path: str) -> None:
    """Names the executable `msb` for sessions that start later."""
    _runtime.set_msb_path(check.path("path", path))


def set_libkrunfw_path(path: str) -> None:
    """Has no effect: msb needs no libkrunfw."""
    check.path("path", path)


def version() -> str:
    """The version of this package."""
    return VERSION
