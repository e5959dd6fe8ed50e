"""Events of commands and of pulled images."""

from __future__ import annotations

from dataclasses import dataclass

from .types import ExecEventType, PullEventType


@dataclass(frozen=True)
class ExecEvent:
    """Something that a command did: started, wrote output or ended."""

    event_type: ExecEventType
    pid: int | None = None
    data: bytes | None = None
    code: int | None = None


@dataclass(frozen=True)
class PullEvent:
    """A step of a sandbox that is being created."""

    event_type: PullEventType
    phase: str | None = None
    completed_bytes: int | None = None
    reference: str | None = None
    manifest_digest: str | None = None
    layer_count: int | None = None
    total_download_bytes: int | None = None
    layer_index: int | None = None
    digest: str | None = None
    diff_id: str | None = None
    downloaded_bytes: int | None = None
    total_bytes: int | None = None
    bytes_read: int | None = None


__all__ = ["ExecEvent", "ExecEventType", "PullEvent", "PullEventType"]
