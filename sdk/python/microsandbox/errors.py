"""Errors of the SDK. All derive from `MicrosandboxError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal


class MicrosandboxError(Exception):
    """A failure of a sandbox, of msb or of this host.

    `code` names the class of the failure and is stable. `kind`, `causes` and `hint` come from msb,
    where it reported the failure.
    """

    code: ClassVar[str] = "microsandbox-error"
    kind: str | None = None
    stage: str | None = None
    causes: tuple[str, ...] = ()
    hint: str | None = None


class RuntimeNotInstalledError(MicrosandboxError):
    """The executable `msb` was not found."""

    code = "runtime-not-installed"


class RuntimeIncompleteError(MicrosandboxError):
    """The executable `msb` is there, but cannot serve this SDK."""

    code = "runtime-incomplete"


class InvalidConfigError(MicrosandboxError):
    """A setting has a value that msb does not accept."""

    code = "invalid-config"


class NoDefaultCommandError(MicrosandboxError):
    """Neither the sandbox nor its image has a command to run by default."""

    code = "no-default-command"


class CloudHttpError(MicrosandboxError):
    """A remote server answered with an HTTP error."""

    code = "cloud-http"


class SandboxNotFoundError(MicrosandboxError):
    """There is no sandbox of this name."""

    code = "sandbox-not-found"


class SandboxNotRunningError(MicrosandboxError):
    """The sandbox has to run for this."""

    code = "sandbox-not-running"


class SandboxAlreadyExistsError(MicrosandboxError):
    """Another sandbox has this name."""

    code = "sandbox-already-exists"


class SandboxReplacedError(MicrosandboxError):
    """The name belongs to another sandbox than the one of this handle."""

    code = "sandbox-replaced"


class SandboxStillRunningError(MicrosandboxError):
    """The sandbox has to be stopped for this."""

    code = "sandbox-still-running"


class SandboxStopTimedOutError(MicrosandboxError):
    """The sandbox that was to be replaced did not stop in time."""

    code = "sandbox-stop-timed-out"


class ExecTimeoutError(MicrosandboxError):
    """The command ran longer than its timeout and was killed."""

    code = "exec-timeout"


class StopTimeoutError(MicrosandboxError, TimeoutError):
    """The sandbox did not stop in time. It was not killed."""

    code = "stop-timeout"


class ExecFailedError(MicrosandboxError):
    """The program could not be started.

    `errno` and `errno_name` tell why, where that is known: ENOENT for a program that was not found,
    EACCES for one that cannot be executed.
    """

    code = "exec-failed"
    errno: int | None = None
    errno_name: str | None = None


class FilesystemError(MicrosandboxError):
    """An operation on a file inside failed."""

    code = "filesystem-error"


class PathNotFoundError(FilesystemError):
    """There is no file or directory of this path."""

    code = "path-not-found"


class VolumeNotFoundError(MicrosandboxError):
    """There is no volume of this name."""

    code = "volume-not-found"


class ImageNotFoundError(MicrosandboxError):
    """The image is neither stored here nor found in its registry."""

    code = "image-not-found"


class ImageInUseError(MicrosandboxError):
    """A sandbox uses the image."""

    code = "image-in-use"


class ImagePullFailedError(MicrosandboxError):
    """The image could not be pulled from its registry."""

    code = "image-pull-failed"


class NetworkPolicyError(MicrosandboxError):
    """The network policy cannot be applied."""

    code = "network-policy-error"


class SecretViolationError(MicrosandboxError):
    """A secret was about to leave to a host that may not get it."""

    code = "secret-violation"


class TlsError(MicrosandboxError):
    """A TLS setting or certificate is wrong."""

    code = "tls-error"


class IoError(MicrosandboxError):
    """The host refused or failed: no space, no permission, I/O."""

    code = "io-error"


class MetricsDisabledError(MicrosandboxError):
    """The sandbox counts no resource usage."""

    code = "metrics-disabled"


class MetricsUnavailableError(MicrosandboxError):
    """There are no numbers now, because the sandbox does not run."""

    code = "metrics-unavailable"


class UnsupportedOperationError(MicrosandboxError):
    """The backend does not have this operation."""

    code = "unsupported-operation"


class UnsupportedError(MicrosandboxError):
    """This host or this version of msb cannot do it."""

    code = "unsupported"

    def __init__(self, message: str, operation: str = "", hint: str | None = None) -> None:
        super().__init__(message)
        self.operation = operation
        self.hint = hint


class SnapshotMigrationError(MicrosandboxError):
    """The format of a snapshot could not be updated."""

    code = "snapshot-migration"


class BootStartError(MicrosandboxError):
    """The sandbox could not be started; `stage` tells at which step."""

    code = "boot-start"
    name: str | None = None


class PublishedSnapshotArtifact:
    """A snapshot that was written although its source could not be resumed."""

    __slots__ = ("digest", "kind", "path", "snapshot_id")

    def __init__(
        self, kind: Literal["installed", "archive"], path: str, snapshot_id: str, digest: str
    ) -> None:
        self.kind = kind
        self.path = path
        self.snapshot_id = snapshot_id
        self.digest = digest

    def __repr__(self) -> str:
        return f"PublishedSnapshotArtifact(kind={self.kind!r}, path={self.path!r})"


class SnapshotSourceRecoveryError(MicrosandboxError):
    """The snapshot failed, and its source could not be resumed."""

    code = "snapshot-source-recovery"

    def __init__(
        self,
        message: str,
        *,
        source_sandbox: str | None = None,
        checkpoint_id: str | None = None,
        checkpoint_root: str | None = None,
        checkpoint_path: str | None = None,
        artifact: Mapping[str, Any] | None = None,
        detail: str | None = None,
        publication_error: str | None = None,
    ) -> None:
        super().__init__(message)
        self.source_sandbox = source_sandbox
        self.checkpoint_id = checkpoint_id
        self.checkpoint_root = checkpoint_root
        self.checkpoint_path = checkpoint_path
        self.artifact = None if artifact is None else PublishedSnapshotArtifact(**artifact)
        self.detail = detail
        self.publication_error = publication_error


class JobError(MicrosandboxError):
    """A job failed; `code` is that of this failure."""

    def __init__(self, code: str, message: str, job_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self.job_id = job_id


def unsupported(operation: str, hint: str | None = None) -> UnsupportedError:
    """The error of a part of the surface that msb does not have yet."""
    return UnsupportedError(f"msb does not support this yet: {operation}", operation, hint)


_STATE = (
    ("is not running", SandboxNotRunningError),
    ("is running", SandboxStillRunningError),
    ("is being used", SandboxStillRunningError),
    ("takes no new", SandboxNotRunningError),
    ("has ended", SandboxNotRunningError),
    ("is paused", SandboxNotRunningError),
    ("is gone", SandboxNotRunningError),
)


def _class_of(op: str, kind: str, stage: str | None, text: str) -> type[MicrosandboxError]:
    area = op.partition("_")[0]
    if kind == "not_found":
        if "no sandbox `" in text:
            return SandboxNotFoundError
        if "no volume `" in text:
            return VolumeNotFoundError
        if stage == "image" or area == "image" or "not in the store" in text:
            return ImageNotFoundError
        if area == "file":
            return PathNotFoundError
        if "no snapshot `" in text or area == "snapshot":
            return MicrosandboxError
        return {"sandbox": SandboxNotFoundError, "volume": VolumeNotFoundError}.get(
            area, MicrosandboxError
        )
    if kind in ("command_not_found", "not_executable"):
        return ExecFailedError
    if kind == "state":
        if area == "image":
            return ImageInUseError
        if "volume" not in text:
            for part, found in _STATE:
                if part in text:
                    if op == "sandbox_metrics" and found is SandboxNotRunningError:
                        return MetricsUnavailableError
                    return found
        return MicrosandboxError
    if kind == "exists":
        if "sandbox" in text:
            return SandboxAlreadyExistsError
        return FilesystemError if area == "file" else MicrosandboxError
    if kind == "invalid":
        return FilesystemError if area == "file" else InvalidConfigError
    if kind == "unsupported":
        return UnsupportedError
    if area == "file":
        return FilesystemError
    if kind == "host":
        if stage == "image" or op == "image_pull":
            return ImagePullFailedError
        return BootStartError if stage in ("jail", "boot") else IoError
    return MicrosandboxError


def from_wire(op: str, error: Mapping[str, Any]) -> MicrosandboxError:
    """The exception for an error that msb reported for a call of `op`."""
    kind = str(error.get("kind", "protocol"))
    message = str(error.get("message", "unknown error"))
    causes = tuple(str(cause) for cause in error.get("causes") or ())
    hint = error.get("hint")
    stage = error.get("stage")
    text = ": ".join((message, *causes))
    found = _class_of(op, kind, stage, text)
    shown = f"{text} ({hint})" if hint else text
    made: MicrosandboxError
    made = UnsupportedError(shown, op, hint) if found is UnsupportedError else found(shown)
    made.kind, made.stage, made.causes, made.hint = kind, stage, causes, hint
    if isinstance(made, ExecFailedError):
        missing = kind == "command_not_found"
        made.errno, made.errno_name = (2, "ENOENT") if missing else (13, "EACCES")
    return made


__all__ = [
    name
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, MicrosandboxError)
] + ["PublishedSnapshotArtifact"]
