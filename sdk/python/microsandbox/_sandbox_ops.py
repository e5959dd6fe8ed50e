"""What `Sandbox` and `SandboxHandle` have in common: everything that needs only a name."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _checks as check
from . import _logs, _metrics, _modify, _runtime, _session
from ._session import start
from .errors import (
    MetricsUnavailableError,
    MicrosandboxError,
    SandboxNotRunningError,
    StopTimeoutError,
    unsupported,
)
from .types import GuestFlush, LogReadSource, MountConfig, SandboxStatus

if TYPE_CHECKING:
    from ._generated import Summary
    from ._sandbox import ForkOutcome, Sandbox, SandboxHandle
    from ._storage import StorageItemUsage
    from .jobs import Job, JobPage
    from .types import (
        DiskCompactionResult,
        ModificationPolicy,
        PortBinding,
        PortEndpoint,
        SandboxModificationPlan,
        SecretModifySpec,
    )

# A stop that never kills: 20 days between SIGTERM and SIGKILL.
_NEVER_MS = 20 * 86_400_000
# How long `restart` and `destroy` wait before they kill.
_FORCE_AFTER = 10.0
_POLL = 0.05

FORK_HINT = "take a Snapshot of the stopped sandbox and use Sandbox.restore()"


def identity(summary: Summary) -> str:
    """The id of a sandbox: the same until it is removed, another for the next of its name."""
    given = summary.get("id")
    if given:
        return str(given)
    text = f"{summary['name']}\0{summary['created']}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class SandboxStopResult:
    """How a sandbox has stopped."""

    __slots__ = ("exit_code", "name", "observed_at", "signal", "source", "status")

    def __init__(self, name: str, status: SandboxStatus, stopped: Mapping[str, Any] | None) -> None:
        exit = (stopped or {}).get("exit") or {}
        self.name = name
        self.status = status
        self.exit_code: int | None = exit.get("code")
        self.signal: int | None = exit.get("signal")
        self.observed_at = time.time()
        self.source: str | None = (stopped or {}).get("ending")

    def __repr__(self) -> str:
        return f"SandboxStopResult(name={self.name!r}, status={self.status.value!r})"


class SandboxPingResult:
    """The answer of a running sandbox."""

    __slots__ = ("latency_ms", "name")

    def __init__(self, name: str, latency_ms: float) -> None:
        self.name = name
        self.latency_ms = latency_ms


class SandboxTouchResult:
    """The activity that a `touch` has recorded."""

    __slots__ = ("activity_seq", "name")

    def __init__(self, name: str, activity_seq: int) -> None:
        self.name = name
        self.activity_seq = activity_seq


async def stop_gracefully(name: str, timeout: float | None) -> None:
    """Stops a sandbox and never kills it. Raises StopTimeoutError."""
    args = {"name": name, "grace_ms": _NEVER_MS}
    try:
        await _session.current().finish("sandbox_stop", args, timeout=timeout)
    except TimeoutError:
        message = f"sandbox `{name}` did not stop within {timeout} s; it was not killed"
        raise StopTimeoutError(message) from None


async def stop_by_force(name: str, timeout: float | None) -> None:
    """Kills a sandbox and waits until it has stopped."""
    args = {"name": name, "grace_ms": 0}
    try:
        await _session.current().finish("sandbox_stop", args, timeout=timeout)
    except TimeoutError:
        message = f"sandbox `{name}` was not seen stopped within {timeout} s"
        raise StopTimeoutError(message) from None


async def stop_then_force(name: str, force: bool, timeout: float | None) -> None:
    """Stops a sandbox, and kills it after the timeout, or at once with `force`."""
    grace = 0.0 if force else _FORCE_AFTER if timeout is None else timeout
    await _session.current().sandbox_stop(name, grace_ms=round(grace * 1000))


class SandboxOps:
    """Operations by name. Each first checks that the name still belongs to this sandbox."""

    _sandbox_name: str
    _sandbox_id: str

    def _check_usable(self) -> None:
        """Raises if this object was given away. Called before the awaitable exists."""

    async def _live_name(self) -> str:
        raise NotImplementedError

    def _fork(self) -> Awaitable[Any]:
        async def work() -> Any:
            raise unsupported("fork", FORK_HINT)

        return start(work)

    def metrics(self) -> Awaitable[_metrics.SandboxMetrics]:
        """Resource usage of a running sandbox."""
        self._check_usable()
        return start(self._metrics)

    async def _metrics(self) -> _metrics.SandboxMetrics:
        name = await self._live_name()
        return _metrics.from_wire(await _session.current().sandbox_metrics(name))

    def ping(self) -> Awaitable[SandboxPingResult]:
        """Asks the running sandbox for an answer."""
        self._check_usable()

        async def work() -> SandboxPingResult:
            name = await self._live_name()
            before = time.perf_counter()
            try:
                await _session.current().sandbox_metrics(name)
            except MetricsUnavailableError as error:
                raise SandboxNotRunningError(str(error)) from None
            return SandboxPingResult(name, (time.perf_counter() - before) * 1000)

        return start(work)

    def touch(self) -> Awaitable[SandboxTouchResult]:
        """Counts as activity: the idle timeout starts again."""
        self._check_usable()

        async def work() -> SandboxTouchResult:
            name = await self._live_name()
            await _session.current().file_stat("/", sandbox=name)
            return SandboxTouchResult(name, time.time_ns() // 1_000_000)

        return start(work)

    def compact(
        self,
        *,
        layers: int | None = None,
        dry_run: bool = False,
        disk: str | None = None,
        root_disk_only: bool = False,
    ) -> Awaitable[DiskCompactionResult]:
        """Not supported: the layers of msb need no compaction."""
        check.optional_integer("layers", layers)
        check.flag("dry_run", dry_run)
        self._check_usable()

        async def work() -> DiskCompactionResult:
            raise unsupported("compact", "layers of msb are directories; nothing is to compact")

        return start(work)

    def modify(
        self,
        *,
        cpus: int | None = None,
        max_cpus: int | None = None,
        memory: int | None = None,
        max_memory: int | None = None,
        root_disk_size: int | None = None,
        env: Mapping[str, str] | None = None,
        env_rm: list[str] | None = None,
        labels: Mapping[str, str] | None = None,
        labels_rm: list[str] | None = None,
        workdir: str | None = None,
        secrets: Mapping[str, SecretModifySpec] | None = None,
        secrets_rm: list[str] | None = None,
        ports: Mapping[int, int] | Sequence[PortBinding] | None = None,
        ports_rm: Sequence[PortEndpoint] | None = None,
        policy: ModificationPolicy | None = None,
        dry_run: bool = False,
    ) -> Awaitable[SandboxModificationPlan]:
        """Changes settings, and tells for each when it takes effect."""
        self._check_usable()
        request = _modify.request(
            cpus=cpus,
            max_cpus=max_cpus,
            memory=memory,
            max_memory=max_memory,
            root_disk_size=root_disk_size,
            env=env,
            env_rm=env_rm,
            labels=labels,
            labels_rm=labels_rm,
            workdir=workdir,
            secrets=secrets,
            secrets_rm=secrets_rm,
            ports=ports,
            ports_rm=ports_rm,
            policy=policy,
            dry_run=dry_run,
        )

        async def work() -> SandboxModificationPlan:
            return await _modify.apply(await self._live_name(), request, self._restart_for_modify)

        return start(work)

    async def _restart_for_modify(self) -> None:
        name = await self._live_name()
        await stop_then_force(name, False, None)
        await start_sandbox(name, detached=not await is_owned(name))

    def logs(
        self,
        tail: int | None = None,
        since_ms: float | None = None,
        until_ms: float | None = None,
        sources: list[LogReadSource] | None = None,
    ) -> Awaitable[list[_logs.LogEntry]]:
        """Recorded output of all commands; also of a sandbox that has stopped."""
        self._check_usable()
        query = _logs.LogQuery(sources, since_ms, until_ms, None, tail)

        async def work() -> list[_logs.LogEntry]:
            return await _logs.read(await self._live_name(), query)

        return start(work)

    def log_stream(
        self,
        sources: list[LogReadSource] | None = None,
        since_ms: float | None = None,
        from_cursor: str | None = None,
        until_ms: float | None = None,
        follow: bool = False,
    ) -> _logs.LogStream:
        """Recorded output, and with `follow` what comes next. Await it or iterate at once."""
        self._check_usable()
        query = _logs.LogQuery(sources, since_ms, until_ms, from_cursor)
        return _logs.LogStream(self._live_name, query, check.flag("follow", follow))

    def get_job(self, id: str) -> Awaitable[Job]:
        """A job by its id."""
        self._check_usable()
        check.text("id", id)
        from . import jobs

        async def work() -> Job:
            return await jobs.find(await self._live_name(), id)

        return start(work)

    def list_jobs(
        self, *, all: bool = False, limit: int = 50, cursor: str | None = None
    ) -> Awaitable[JobPage]:
        """The running jobs, or with `all` also those that have ended."""
        self._check_usable()
        check.flag("all", all)
        check.integer("limit", limit, 1)
        check.optional_text("cursor", cursor)
        from . import jobs

        async def work() -> JobPage:
            return await jobs.page(await self._live_name(), all, limit, cursor)

        return start(work)

    def stop(self, timeout: float | None = None) -> Awaitable[None]:
        """Stops the sandbox: SIGTERM to its commands, then waits. Never kills.

        Raises StopTimeoutError if it has not stopped after `timeout` seconds.
        """
        self._check_usable()
        timeout = check.seconds("timeout", timeout)

        async def work() -> None:
            await stop_gracefully(await self._live_name(), timeout)

        return start(work)

    def stop_with_timeout(self, timeout: float) -> Awaitable[None]:
        """The same as `stop(timeout)`."""
        if timeout is None:
            raise TypeError("timeout must be float, not None")
        return self.stop(timeout)

    def kill(self, timeout: float | None = None) -> Awaitable[None]:
        """Kills the sandbox and waits until it has stopped."""
        self._check_usable()
        timeout = check.seconds("timeout", timeout)

        async def work() -> None:
            await stop_by_force(await self._live_name(), timeout)

        return start(work)

    def _request(self, op: str, **args: Any) -> Awaitable[None]:
        self._check_usable()

        async def work() -> None:
            name = await self._live_name()
            stream = await _session.current().open(op, {"name": name, **args})
            stream.discard()

        return start(work)

    def request_stop(self) -> Awaitable[None]:
        """Asks the sandbox to stop and does not wait."""
        return self._request("sandbox_stop", grace_ms=_NEVER_MS)

    def request_kill(self) -> Awaitable[None]:
        """Kills the sandbox and does not wait."""
        return self._request("sandbox_stop", grace_ms=0)

    def request_drain(self) -> Awaitable[None]:
        """Refuses new commands; the sandbox stops when its last command has ended."""
        return self._request("sandbox_drain")

    def pause(self, *, guest_flush: GuestFlush | None = None) -> Awaitable[None]:
        """Pauses all processes of the sandbox."""
        self._check_usable()
        check.optional(guest_flush, GuestFlush)

        async def work() -> None:
            await _session.current().sandbox_pause(await self._live_name())

        return start(work)

    def resume(self) -> Awaitable[None]:
        """Resumes all processes of a paused sandbox."""
        self._check_usable()

        async def work() -> None:
            await _session.current().sandbox_resume(await self._live_name())

        return start(work)

    def wait_for_status(self, status: SandboxStatus) -> Awaitable[SandboxHandle]:
        """Waits until the sandbox has this status."""
        self._check_usable()
        check.member(status, SandboxStatus)

        async def work() -> SandboxHandle:
            from ._sandbox import SandboxHandle

            name = await self._live_name()
            while True:
                summary = await _session.current().sandbox_summary(name)
                if summary["status"] == status.value:
                    return SandboxHandle(summary)
                await _session.sleep(_POLL)

        return start(work)

    def wait_until_stopped(self) -> Awaitable[SandboxStopResult]:
        """Waits until the sandbox has stopped."""
        self._check_usable()

        async def work() -> SandboxStopResult:
            return await wait_stopped(await self._live_name())

        return start(work)

    def restart(
        self, *, force: bool = False, timeout: float | None = None, detached: bool = False
    ) -> Awaitable[Sandbox]:
        """Stops the sandbox, kills it after 10 seconds or `timeout`, and starts it again."""
        self._check_usable()
        check.flag("force", force)
        check.flag("detached", detached)
        timeout = check.seconds("timeout", timeout)

        async def work() -> Sandbox:
            from ._sandbox import connect_by_name

            name = await self._live_name()
            await stop_then_force(name, force, timeout)
            await start_sandbox(name, detached)
            return await connect_by_name(name)

        return start(work)

    def destroy(self, *, force: bool = False, timeout: float | None = None) -> Awaitable[None]:
        """Stops the sandbox, kills it after 10 seconds or `timeout`, and removes it."""
        self._check_usable()
        check.flag("force", force)
        timeout = check.seconds("timeout", timeout)

        async def work() -> None:
            name = await self._live_name()
            session = _session.current()
            await stop_then_force(name, force, timeout)
            try:
                await session.sandbox_remove(name, force=True)
            except MicrosandboxError as error:
                # One that is ephemeral is removed when it stops.
                if error.kind != "not_found":
                    raise

        return start(work)

    def fork(
        self,
        name: str,
        *,
        record_integrity: bool = False,
        guest_flush: GuestFlush | None = None,
        volumes: Mapping[str, MountConfig] | None = None,
    ) -> Awaitable[Sandbox]:
        """Not supported yet: a copy of the running sandbox with its memory."""
        self._check_usable()
        check.sandbox_name(name)
        check.optional(guest_flush, GuestFlush)
        return self._fork()

    def branch(
        self,
        name: str,
        *,
        record_integrity: bool = False,
        guest_flush: GuestFlush | None = None,
        volumes: Mapping[str, MountConfig] | None = None,
    ) -> Awaitable[Sandbox]:
        """The former name of `fork`."""
        self._check_usable()
        check.sandbox_name(name)
        check.optional(guest_flush, GuestFlush)
        return self._fork()

    def fork_many(
        self,
        names: list[str],
        *,
        record_integrity: bool = False,
        guest_flush: GuestFlush | None = None,
        volumes: Mapping[str, MountConfig] | None = None,
    ) -> Awaitable[list[ForkOutcome]]:
        """Not supported yet: several copies of the running sandbox."""
        self._check_usable()
        check.texts("names", names)
        check.optional(guest_flush, GuestFlush)
        return self._fork()

    def branch_many(
        self,
        names: list[str],
        *,
        record_integrity: bool = False,
        guest_flush: GuestFlush | None = None,
        volumes: Mapping[str, MountConfig] | None = None,
    ) -> Awaitable[list[ForkOutcome]]:
        """The former name of `fork_many`."""
        self._check_usable()
        check.texts("names", names)
        check.optional(guest_flush, GuestFlush)
        return self._fork()

    def storage_usage(self) -> Awaitable[StorageItemUsage]:
        """The disk space of the sandbox; its size is only known while it runs."""
        self._check_usable()

        async def work() -> StorageItemUsage:
            from ._storage import StorageItemUsage

            name = await self._live_name()
            used: int | None = None
            running = True
            try:
                used = (await _session.current().sandbox_metrics(name)).get("disk")
            except MetricsUnavailableError:
                running = False
            path = os.path.join(_runtime.home(), "sandboxes", name)
            return StorageItemUsage(name, path, used, used, running, not running)

        return start(work)


async def wait_stopped(name: str) -> SandboxStopResult:
    """Waits until a sandbox has stopped, and tells how."""
    session = _session.current()
    waited = await session.sandbox_wait(name)
    status = SandboxStatus.STOPPED
    try:
        status = SandboxStatus((await session.sandbox_summary(name))["status"])
    except MicrosandboxError as error:
        # One that is ephemeral is removed when it stops.
        if error.kind != "not_found":
            raise
    return SandboxStopResult(name, status, waited.get("stopped"))


async def is_owned(name: str) -> bool:
    """Whether a sandbox ends with this process."""
    return name in await _session.current().call("session_owned", {})


# Values of secrets by sandbox, for later starts: msb does not store them.
secret_values: dict[str, dict[str, str]] = {}


async def start_sandbox(name: str, detached: bool) -> bool:
    """Starts a stopped sandbox; false if it ran already."""
    args = {"name": name, "secrets": secret_values.get(name)}
    result = await _session.current().finish("sandbox_start", args, own=not detached)
    return bool(result["changed"])
