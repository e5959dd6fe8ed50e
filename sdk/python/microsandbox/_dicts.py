"""Dictionaries with known members, taken and given by the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from ._enums import (
    ChangeKind,
    ModificationDisposition,
    ModificationPolicy,
    PlannedChangeKind,
    ResourceConvergenceState,
    ResourceKind,
    SandboxStatus,
    SecretChangeKind,
    ViolationAction,
)

if TYPE_CHECKING:
    from .types import Rlimit, SecretSubstitution, Stdin


class _InitOptionsRequired(TypedDict):
    cmd: str


class InitOptions(_InitOptionsRequired, total=False):
    """An init program, as a dictionary."""

    args: list[str]
    env: dict[str, str]


class SecretModifySpec(TypedDict, total=False):
    """A secret in `modify`."""

    env: str
    value: str
    store: str
    placeholder: str
    allowed_hosts: list[str]
    substitution: SecretSubstitution
    violation_action: ViolationAction
    require_tls_identity: bool
    allow_placeholder_for: Sequence[str]
    passthrough: Sequence[str]


class DiskCompactionDiskResult(TypedDict):
    """What compaction did to one disk."""

    guest_path: str
    input_layers: int
    selected_layers: int
    output_layers: int
    materialized_bytes: int
    total_us: int


class DiskCompactionResult(TypedDict):
    """What compaction did."""

    dry_run: bool
    input_layers: int
    selected_layers: int
    output_layers: int
    materialized_bytes: int
    total_us: int
    pause_us: int
    disks: list[DiskCompactionDiskResult]


class ModificationConflict(TypedDict):
    """A setting that cannot be changed."""

    field: str
    message: str


class ModificationWarning(TypedDict):
    """Something to know about a change."""

    field: str
    message: str


class ResourceResizeStatus(TypedDict):
    """How far the resize of a resource has come."""

    resource: ResourceKind
    requested: str
    actual: str
    enforced: str
    state: ResourceConvergenceState


class _ConfigPlannedChangeRequired(TypedDict):
    kind: Literal[PlannedChangeKind.CONFIG]
    field: str
    change: ChangeKind
    disposition: ModificationDisposition


class ConfigPlannedChange(_ConfigPlannedChangeRequired, total=False):
    """A planned change of a setting."""

    before: str
    after: str
    reason: str


class _SecretPlannedChangeRequired(TypedDict):
    kind: Literal[PlannedChangeKind.SECRET]
    field: str
    name: str
    change: SecretChangeKind
    disposition: ModificationDisposition


class SecretPlannedChange(_SecretPlannedChangeRequired, total=False):
    """A planned change of a secret."""

    before_ref: str
    after_ref: str
    allow_hosts: list[str]
    reason: str


PlannedChange: TypeAlias = "ConfigPlannedChange | SecretPlannedChange"


class _SandboxModificationPlanRequired(TypedDict):
    sandbox: str
    status: SandboxStatus
    applied: bool
    policy: ModificationPolicy
    changes: list[PlannedChange]
    conflicts: list[ModificationConflict]
    warnings: list[ModificationWarning]


class SandboxModificationPlan(_SandboxModificationPlanRequired, total=False):
    """What `modify` did or would do."""

    resize_status: list[ResourceResizeStatus]


class ExecOptions(TypedDict, total=False):
    """Options of a command, for the second argument of `exec`."""

    args: list[str]
    cwd: str
    user: str
    env: Mapping[str, str]
    timeout: float
    stdin: Stdin | bytes
    stdin_data: bytes
    tty: bool
    rlimits: list[Rlimit]
