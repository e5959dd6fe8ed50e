"""Sandboxes: created, found, started, and everything done in them."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from . import _checks as check
from . import _exec, _metrics, _options, _session
from ._exec import ExecHandle, ExecOutput
from ._fs import SandboxFsOps
from ._sandbox_ops import (
    SandboxOps,
    identity,
    is_owned,
    secret_values,
    start_sandbox,
    stop_gracefully,
    wait_stopped,
)
from ._session import Stream, start
from .errors import (
    MicrosandboxError,
    NoDefaultCommandError,
    SandboxNotFoundError,
    SandboxNotRunningError,
    SandboxReplacedError,
    SandboxStopTimedOutError,
    StopTimeoutError,
)
from .events import PullEvent
from .types import (
    BackendKind,
    ExecOptions,
    PullEventType,
    Rlimit,
    SandboxStatus,
    Stdin,
    StdinMode,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._children import SandboxChildren
    from ._generated import Summary
    from ._options import CreateOptions, CreateRequest, RestoreOptions
    from ._snapshots import ExternalMountWarning, Snapshot, SnapshotHandle
    from ._ssh import SandboxSshOps
    from ._traffic import SandboxNetwork
    from ._workspace import SandboxWorkspace
    from .jobs import Job

_STOP_GRACE_MS = 10_000

# Ids of the sandboxes that this process has created last, by name.
_identities: dict[str, str] = {}


class ForkOutcome:
    """The result of one copy of `fork_many`."""

    __slots__ = ("error", "name", "sandbox")

    def __init__(self, name: str, sandbox: Sandbox | None, error: Exception | None) -> None:
        self.name = name
        self.sandbox = sandbox
        self.error = error


BranchOutcome = ForkOutcome


async def make_volumes(volumes: list[tuple[str, bool, dict[str, Any]]]) -> None:
    """Creates volumes: name, whether one that exists is an error, settings."""
    session = _session.current()
    for name, must_be_new, settings in volumes:
        try:
            await session.volume_create(name, **settings)
        except MicrosandboxError as error:
            if error.kind != "exists" or must_be_new:
                raise


async def _stop_before_replace(request: CreateRequest) -> None:
    if request.replace_timeout is None:
        return
    try:
        await stop_gracefully(request.name, request.replace_timeout)
    except StopTimeoutError as error:
        raise SandboxStopTimedOutError(str(error)) from None
    except (SandboxNotFoundError, SandboxNotRunningError):
        pass


async def _create(request: CreateRequest) -> Sandbox:
    session = PullSession(request)
    return await session._finish()


class PullSession:
    """A sandbox that is being created, with its progress."""

    def __init__(self, request: CreateRequest) -> None:
        self._request = request
        self._stream: Stream | None = None
        self._sandbox: Sandbox | None = None
        self._steps = self._run()

    async def _open(self) -> Stream:
        request = self._request
        args: dict[str, Any] = {
            "spec": request.spec,
            "replace": request.replace,
            "secrets": request.secrets,
        }
        if request.registry is not None:
            args["registry"] = request.registry
        self._stream = await _session.current().open(
            "sandbox_create", args, own=not request.detached
        )
        return self._stream

    async def _run(self) -> AsyncGenerator[PullEvent, None]:
        request = self._request
        await make_volumes(request.volumes)
        await _stop_before_replace(request)
        with contextlib.ExitStack() as files:
            if request.ca_certs and request.registry is not None:
                file = files.enter_context(tempfile.NamedTemporaryFile(suffix=".pem"))
                file.write(b"\n".join(request.ca_certs))
                file.flush()
                request.registry["ca"] = file.name
            async for event in self._frames(await self._open()):
                yield event
        assert self._stream is not None
        summary: Summary = self._stream.result
        if request.secrets:
            secret_values[request.name] = request.secrets
        else:
            secret_values.pop(request.name, None)
        self._sandbox = Sandbox._made(summary, request.spec)
        _identities[request.name] = self._sandbox._sandbox_id
        yield PullEvent(PullEventType.COMPLETE, reference=request.spec.get("image"))

    async def _frames(self, stream: Stream) -> AsyncIterator[PullEvent]:
        try:
            while (frame := await stream.next()) is not None:
                progress = json.loads(frame[1]).get("progress")
                if progress is not None:
                    yield self._event(progress)
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            stream.cancel()
            raise

    def _event(self, progress: Mapping[str, Any]) -> PullEvent:
        phase, done, of = str(progress.get("what", "")), progress.get("done"), progress.get("of")
        reference = self._request.spec.get("image")
        if done is None:
            return PullEvent(PullEventType.STARTUP, phase=phase, reference=reference)
        return PullEvent(
            PullEventType.LAYER_DOWNLOAD_PROGRESS,
            phase=phase,
            reference=reference,
            completed_bytes=done,
            downloaded_bytes=done,
            total_bytes=of,
        )

    async def _finish(self) -> Sandbox:
        async for _ in self._steps:
            pass
        if self._sandbox is None:
            raise MicrosandboxError("the sandbox was not created: the session was cancelled")
        return self._sandbox

    @property
    def progress(self) -> PullProgressIter:
        """The steps as they happen; the last is COMPLETE."""
        return PullProgressIter(self._steps)

    def cancel(self) -> None:
        """Ends the creation."""
        if self._stream is not None:
            self._stream.cancel()

    def result(self) -> Awaitable[Sandbox]:
        """Waits for the sandbox."""
        return start(self._finish)

    async def __aenter__(self) -> PullSession:
        return self

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool:
        if self._sandbox is None:
            self.cancel()
        return False


class PullProgressIter:
    """The steps of a sandbox that is being created."""

    def __init__(self, steps: AsyncGenerator[PullEvent, None]) -> None:
        self._steps = steps

    def __aiter__(self) -> AsyncIterator[PullEvent]:
        return self

    async def __anext__(self) -> PullEvent:
        return await self._steps.__anext__()


class SandboxPage:
    """Some of the sandboxes, and where the next page begins."""

    __slots__ = ("next_cursor", "sandboxes")

    def __init__(self, sandboxes: list[SandboxHandle], next_cursor: str | None) -> None:
        self.sandboxes = sandboxes
        self.next_cursor = next_cursor


async def connect_by_name(name: str) -> Sandbox:
    """An object for a running sandbox."""
    return _connected(await _session.current().sandbox_summary(name))


def _connected(summary: Summary) -> Sandbox:
    if summary["status"] in ("stopped", "crashed"):
        raise SandboxNotRunningError(f"sandbox `{summary['name']}` is not running")
    return Sandbox._made(summary, None)


class Sandbox(SandboxOps):
    """A sandbox: an isolated machine with files, processes and a network of its own.

    One that is not `detached` ends with this process. `async with` removes it at the end.
    """

    def __init__(self) -> None:
        raise TypeError("use Sandbox.create() or Sandbox.get()")

    @classmethod
    def _made(cls, summary: Summary, spec: Mapping[str, Any] | None) -> Sandbox:
        made = object.__new__(cls)
        made._sandbox_name = summary["name"]
        made._sandbox_id = identity(summary)
        made._image = summary["image"]
        made._labels = summary["labels"]
        made._spec = spec
        made._is_consumed = False
        return made

    _image: str
    _labels: Mapping[str, str]
    _spec: Mapping[str, Any] | None
    _is_consumed: bool

    def _check_usable(self) -> None:
        if self._is_consumed:
            raise RuntimeError("sandbox has been consumed")

    async def _live_name(self) -> str:
        name = self._sandbox_name
        if _identities.get(name, self._sandbox_id) != self._sandbox_id:
            raise SandboxReplacedError(f"the name belongs to another sandbox now: `{name}`")
        return name

    def __repr__(self) -> str:
        return f"Sandbox({self._sandbox_name!r})"

    @staticmethod
    def create(name: str, **options: Unpack[CreateOptions]) -> Awaitable[Sandbox]:
        """Creates a sandbox and starts it. See `CreateOptions` for the keywords."""
        request = _options.create_request(name, options)
        return start(lambda: _create(request))

    @staticmethod
    def create_with_progress(name: str, **options: Unpack[CreateOptions]) -> PullSession:
        """Creates a sandbox; the result tells how far its image has been pulled."""
        return PullSession(_options.create_request(name, options))

    @staticmethod
    def connect_or_create(name: str, **options: Unpack[CreateOptions]) -> Awaitable[Sandbox]:
        """Connects to the sandbox of this name, starts it, or creates it."""
        request = _options.create_request(name, options)

        async def work() -> Sandbox:
            try:
                summary = await _session.current().sandbox_summary(request.name)
            except SandboxNotFoundError:
                return await _create(request)
            if summary["status"] in ("stopped", "crashed"):
                await start_sandbox(request.name, request.detached)
            return await connect_by_name(request.name)

        return start(work)

    @staticmethod
    def restore(
        snapshot: Snapshot | SnapshotHandle | str | PathLike[str],
        *,
        name: str,
        **options: Unpack[RestoreOptions],
    ) -> Awaitable[Sandbox]:
        """Creates a sandbox from a snapshot and starts it."""
        from ._snapshots import restore

        work = restore(snapshot, check.sandbox_name(name), options)
        return start(work)

    @staticmethod
    def restore_with_progress(
        snapshot: Snapshot | SnapshotHandle | str | PathLike[str],
        *,
        name: str,
        **options: Unpack[RestoreOptions],
    ) -> PullSession:
        """Creates a sandbox from a snapshot, with its progress."""
        from ._snapshots import RestoreSession, restore

        return RestoreSession(restore(snapshot, check.sandbox_name(name), options))

    @staticmethod
    def start(name: str, *, detached: bool = False) -> Awaitable[Sandbox]:
        """Starts a stopped sandbox."""
        name = check.sandbox_name(name)
        check.flag("detached", detached)

        async def work() -> Sandbox:
            await start_sandbox(name, detached)
            return await connect_by_name(name)

        return start(work)

    @staticmethod
    def get(name: str) -> Awaitable[SandboxHandle]:
        """The sandbox of this name, running or not."""
        name = check.text("name", name)

        async def work() -> SandboxHandle:
            return SandboxHandle(await _session.current().sandbox_summary(name))

        return start(work)

    @staticmethod
    def list() -> Awaitable[SandboxPage]:
        """All sandboxes, sorted by name."""
        return Sandbox.list_with()

    @staticmethod
    def list_with(
        *,
        cursor: str | None = None,
        limit: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Awaitable[SandboxPage]:
        """Sandboxes with these labels, at most `limit`, after those of `cursor`."""
        check.optional_text("cursor", cursor)
        check.optional_integer("limit", limit, 1)
        wanted = check.mapping("labels", labels)

        async def work() -> SandboxPage:
            found = [
                SandboxHandle(summary)
                for summary in await _session.current().sandbox_list()
                if wanted.items() <= summary["labels"].items()
                and (cursor is None or summary["name"] > cursor)
            ]
            page = found if limit is None else found[:limit]
            more = len(page) < len(found)
            return SandboxPage(page, page[-1].name if more else None)

        return start(work)

    @staticmethod
    def remove(name: str) -> Awaitable[None]:
        """Removes a stopped sandbox with its files and logs."""
        name = check.text("name", name)

        async def work() -> None:
            await _session.current().sandbox_remove(name)

        return start(work)

    @property
    def name(self) -> Awaitable[str]:
        """The name: `await sandbox.name`."""
        return self._value(self._sandbox_name)

    @property
    def id(self) -> Awaitable[str]:
        """The id, which no other sandbox has: `await sandbox.id`."""
        return self._value(self._sandbox_id)

    def _value(self, value: str) -> Awaitable[str]:
        self._check_usable()

        async def work() -> str:
            return value

        return start(work)

    @property
    def owns_lifecycle(self) -> Awaitable[bool]:
        """Whether the sandbox ends with this process: `await sandbox.owns_lifecycle`."""
        self._check_usable()

        async def work() -> bool:
            return await is_owned(await self._live_name())

        return start(work)

    @property
    def backend_kind(self) -> BackendKind:
        """Where the sandbox runs."""
        return BackendKind.LOCAL

    @property
    def fs(self) -> SandboxFsOps:
        """The files of the sandbox."""
        self._check_usable()
        return SandboxFsOps(self)

    @property
    def workspace(self) -> SandboxWorkspace:
        """The host directory that the sandbox changes copy-on-write."""
        from ._workspace import SandboxWorkspace

        return SandboxWorkspace(self)

    @property
    def network(self) -> SandboxNetwork:
        """Flows, verdicts, rules and published ports."""
        from ._traffic import SandboxNetwork

        return SandboxNetwork(self)

    @property
    def children(self) -> SandboxChildren:
        """Sandboxes that this one has started."""
        from ._children import SandboxChildren

        return SandboxChildren(self)

    async def _run(self, request: _exec.ExecRequest) -> ExecOutput:
        return await _exec.run(await self._live_name(), request)

    async def _stream(self, request: _exec.ExecRequest) -> ExecHandle:
        return await _exec.open_stream(await self._live_name(), request)

    def exec(
        self,
        cmd: str,
        args: builtins.list[str] | ExecOptions | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: Stdin | bytes | None = None,
        tty: bool = False,
        rlimits: builtins.list[Rlimit] | None = None,
    ) -> Awaitable[ExecOutput]:
        """Runs a program to its end. A non-zero exit code is a result, not an error.

        One that cannot be started raises ExecFailedError; one that runs longer than `timeout`
        seconds is killed and raises ExecTimeoutError. Cancelling the awaitable kills it.
        """
        self._check_usable()
        request = _exec.exec_request(
            cmd,
            args,
            cwd=cwd,
            user=user,
            env=env,
            timeout=timeout,
            stdin=stdin,
            tty=tty,
            rlimits=rlimits,
        )
        return start(lambda: self._run(request))

    def exec_stream(
        self,
        cmd: str,
        args: builtins.list[str] | ExecOptions | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: Stdin | bytes | None = None,
        tty: bool = False,
        rlimits: builtins.list[Rlimit] | None = None,
    ) -> Awaitable[ExecHandle]:
        """Starts a program and gives its events as they happen."""
        self._check_usable()
        request = _exec.exec_request(
            cmd,
            args,
            cwd=cwd,
            user=user,
            env=env,
            timeout=timeout,
            stdin=stdin,
            tty=tty,
            rlimits=rlimits,
        )
        return start(lambda: self._stream(request))

    def exec_detached(
        self,
        cmd: str,
        args: builtins.list[str] | ExecOptions | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: Stdin | bytes | None = None,
        tty: bool = False,
        rlimits: builtins.list[Rlimit] | None = None,
    ) -> Awaitable[Job]:
        """Starts a program that goes on without this process, as a job."""
        self._check_usable()
        request = _exec.exec_request(
            cmd,
            args,
            cwd=cwd,
            user=user,
            env=env,
            timeout=timeout,
            stdin=stdin,
            tty=tty,
            rlimits=rlimits,
            default_stdin=StdinMode.PIPE,
        )
        from . import jobs

        async def work() -> Job:
            return await jobs.launch(await self._live_name(), request)

        return start(work)

    def shell(
        self,
        script: str,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: Stdin | bytes | None = None,
        tty: bool = False,
        rlimits: builtins.list[Rlimit] | None = None,
    ) -> Awaitable[ExecOutput]:
        """Runs a script in the shell of the sandbox."""
        self._check_usable()
        check.text("script", script)
        request = _exec.exec_request(
            "/bin/sh",
            ["-c", script],
            cwd=cwd,
            user=user,
            env=env,
            timeout=timeout,
            stdin=stdin,
            tty=tty,
            rlimits=rlimits,
        )

        async def work() -> ExecOutput:
            request.command["argv"][0] = await self._shell()
            return await self._run(request)

        return start(work)

    def shell_stream(
        self,
        script: str,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: Stdin | bytes | None = None,
        tty: bool = False,
        rlimits: builtins.list[Rlimit] | None = None,
    ) -> Awaitable[ExecHandle]:
        """Starts a script in the shell of the sandbox and gives its events."""
        self._check_usable()
        check.text("script", script)
        request = _exec.exec_request(
            "/bin/sh",
            ["-c", script],
            cwd=cwd,
            user=user,
            env=env,
            timeout=timeout,
            stdin=stdin,
            tty=tty,
            rlimits=rlimits,
        )

        async def work() -> ExecHandle:
            request.command["argv"][0] = await self._shell()
            return await self._stream(request)

        return start(work)

    def exec_default(
        self,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: Stdin | bytes | None = None,
        tty: bool = False,
        rlimits: builtins.list[Rlimit] | None = None,
    ) -> Awaitable[ExecOutput]:
        """Runs the command of the sandbox or of its image."""
        self._check_usable()
        request = _exec.exec_request(
            "",
            None,
            cwd=cwd,
            user=user,
            env=env,
            timeout=timeout,
            stdin=stdin,
            tty=tty,
            rlimits=rlimits,
        )

        async def work() -> ExecOutput:
            request.command["argv"] = await self._default_command()
            return await self._run(request)

        return start(work)

    def exec_default_stream(
        self,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: Stdin | bytes | None = None,
        tty: bool = False,
        rlimits: builtins.list[Rlimit] | None = None,
    ) -> Awaitable[ExecHandle]:
        """Starts the command of the sandbox or of its image and gives its events."""
        self._check_usable()
        request = _exec.exec_request(
            "",
            None,
            cwd=cwd,
            user=user,
            env=env,
            timeout=timeout,
            stdin=stdin,
            tty=tty,
            rlimits=rlimits,
        )

        async def work() -> ExecHandle:
            request.command["argv"] = await self._default_command()
            return await self._stream(request)

        return start(work)

    async def _settings(self) -> Mapping[str, Any]:
        if self._spec is None:
            inspection = await _session.current().sandbox_inspect(await self._live_name())
            self._spec = inspection["plan"]
        return self._spec

    async def _shell(self) -> str:
        return (await self._settings()).get("shell") or "/bin/sh"

    async def _default_command(self) -> builtins.list[str]:
        settings = await self._settings()
        entrypoint = settings.get("entrypoint")
        label = self._labels.get(_options.CMD_LABEL)
        command = None if label is None else json.loads(label)
        if not entrypoint or command is None:
            try:
                config = (await _session.current().image_inspect(self._image))["config"]
            except MicrosandboxError:
                config = {}
            if command is None and not entrypoint:
                command = config.get("cmd")
            entrypoint = entrypoint or config.get("entrypoint")
        found = [*(entrypoint or []), *(command or [])]
        if not found:
            raise NoDefaultCommandError(
                f"neither sandbox `{self._sandbox_name}` nor its image has a default command"
            )
        return found

    def ssh(self) -> SandboxSshOps:
        """Commands and files in the manner of SSH, without a key or a server."""
        self._check_usable()
        from ._ssh import SandboxSshOps

        return SandboxSshOps(self)

    def attach(
        self,
        cmd: str,
        args: builtins.list[str] | None = None,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        detach_keys: str | None = None,
    ) -> Awaitable[int]:
        """Runs a program in this terminal and gives its exit code."""
        self._check_usable()
        check.optional_text("detach_keys", detach_keys)
        request = _exec.exec_request(
            cmd, args, cwd=cwd, user=user, env=env, stdin=Stdin.pipe(), tty=True
        )
        return self._attach(request, detach_keys)

    def _attach(self, request: _exec.ExecRequest, detach_keys: str | None) -> Awaitable[int]:
        from ._attach import run_in_terminal

        async def work() -> int:
            if not request.command["argv"][0]:
                request.command["argv"] = await self._default_command()
            return await run_in_terminal(await self._live_name(), request, detach_keys)

        return start(work)

    def attach_default(
        self,
        *,
        cwd: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        detach_keys: str | None = None,
    ) -> Awaitable[int]:
        """Runs the default command in this terminal and gives its exit code."""
        self._check_usable()
        check.optional_text("detach_keys", detach_keys)
        request = _exec.exec_request(
            "", None, cwd=cwd, user=user, env=env, stdin=Stdin.pipe(), tty=True
        )
        return self._attach(request, detach_keys)

    def attach_shell(self) -> Awaitable[int]:
        """Runs the shell of the sandbox in this terminal and gives its exit code."""
        self._check_usable()
        request = _exec.exec_request("/bin/sh", None, stdin=Stdin.pipe(), tty=True)

        async def work() -> int:
            from ._attach import run_in_terminal

            request.command["argv"] = [await self._shell()]
            return await run_in_terminal(await self._live_name(), request, None)

        return start(work)

    def metrics_stream(self, interval: float = 1.0) -> _metrics.MetricsStream:
        """Metrics every `interval` seconds. Await it or iterate at once."""
        self._check_usable()
        seconds = check.seconds("interval", interval)
        return _metrics.MetricsStream(self._metrics, 1.0 if seconds is None else seconds)

    def restore_warnings(self) -> Awaitable[builtins.list[ExternalMountWarning]]:
        """Mounts that could not be restored as they were: none, msb refuses such a restore."""
        self._check_usable()

        async def work() -> builtins.list[ExternalMountWarning]:
            return []

        return start(work)

    def stop_and_wait(self) -> Awaitable[tuple[int, bool]]:
        """Stops the sandbox, kills it after 10 seconds. The exit code (-1 if none), and success."""
        self._check_usable()

        async def work() -> tuple[int, bool]:
            name = await self._live_name()
            await _session.current().sandbox_stop(name, grace_ms=_STOP_GRACE_MS)
            return await self._exit(name)

        return start(work)

    async def _exit(self, name: str) -> tuple[int, bool]:
        try:
            code = (await wait_stopped(name)).exit_code
        except SandboxNotFoundError:
            code = None
        return (-1, True) if code is None else (code, code == 0)

    def wait(self) -> Awaitable[tuple[int, bool]]:
        """Waits until the sandbox has stopped. The exit code (-1 if none), and success."""
        self._check_usable()

        async def work() -> tuple[int, bool]:
            return await self._exit(await self._live_name())

        return start(work)

    def drain(self) -> Awaitable[None]:
        """Refuses new commands and waits until the last has ended and the sandbox has stopped."""
        self._check_usable()

        async def work() -> None:
            name = await self._live_name()
            await _session.current().sandbox_drain(name)
            await self._exit(name)

        return start(work)

    def remove_persisted(self) -> Awaitable[None]:
        """Removes the stopped sandbox; this object cannot be used afterwards."""
        self._check_usable()
        self._is_consumed = True

        async def work() -> None:
            await _session.current().sandbox_remove(await self._live_name())

        return start(work)

    def detach(self) -> Awaitable[None]:
        """Lets the sandbox outlive this process; this object cannot be used afterwards."""
        self._check_usable()
        self._is_consumed = True

        async def work() -> None:
            name = await self._live_name()
            if await is_owned(name):
                await _session.current().call("session_release", {"name": name})

        return start(work)

    async def __aenter__(self) -> Sandbox:
        self._check_usable()
        return self

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool:
        if not self._is_consumed:
            with contextlib.suppress(MicrosandboxError):
                name = await self._live_name()
                await _session.current().sandbox_remove(name, force=True)
        return False


class SandboxHandle(SandboxOps):
    """A sandbox as it was found: its name, id and status at that moment."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._sandbox_name = summary["name"]
        self._sandbox_id = identity(summary)
        self._plan: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"SandboxHandle({self.name!r}, {self.status.value!r})"

    async def _live_summary(self, timeout: float | None = None) -> Summary:
        args = {"name": self._sandbox_name}
        summary: Summary = await _session.current().finish("sandbox_summary", args, timeout=timeout)
        if identity(summary) != self._sandbox_id:
            name = self._sandbox_name
            raise SandboxReplacedError(f"the name belongs to another sandbox now: `{name}`")
        return summary

    async def _live_name(self) -> str:
        return (await self._live_summary())["name"]

    @property
    def name(self) -> str:
        """The name of the sandbox."""
        return self._sandbox_name

    @property
    def id(self) -> str:
        """The id, which no other sandbox has."""
        return self._sandbox_id

    @property
    def status(self) -> SandboxStatus:
        """The status when the sandbox was found."""
        return SandboxStatus(self._summary["status"])

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the sandbox."""
        hidden = _options.CMD_LABEL
        return {key: value for key, value in self._summary["labels"].items() if key != hidden}

    @property
    def backend_kind(self) -> BackendKind:
        """Where the sandbox runs."""
        return BackendKind.LOCAL

    @property
    def config_json(self) -> str:
        """What is known of the settings, as JSON."""
        return json.dumps(self.config())

    @property
    def created_at(self) -> float | None:
        """When the sandbox was created, in seconds since 1970."""
        return self._summary["created"] / 1000

    @property
    def updated_at(self) -> float | None:
        """When the sandbox was changed last; msb does not record it."""
        return None

    def config(self) -> dict[str, Any]:
        """What is known of the settings."""
        return {
            "name": self.name,
            "image": self._summary["image"],
            "labels": self.labels,
            "isolation": self._summary["isolation"],
            "ephemeral": self._summary["ephemeral"],
        }

    def refresh(self) -> Awaitable[SandboxHandle]:
        """The same sandbox with its status of now."""

        async def work() -> SandboxHandle:
            return SandboxHandle(await self._live_summary())

        return start(work)

    def start(self, *, detached: bool = False) -> Awaitable[Sandbox]:
        """Starts the stopped sandbox."""
        check.flag("detached", detached)

        async def work() -> Sandbox:
            name = await self._live_name()
            await start_sandbox(name, detached)
            return await connect_by_name(name)

        return start(work)

    def connect(self, timeout: float | None = None) -> Awaitable[Sandbox]:
        """Connects to the running sandbox. It does not end with this process.

        Raises TimeoutError if msb has not answered after `timeout` seconds.
        """
        limit = check.seconds("timeout", timeout)

        async def work() -> Sandbox:
            try:
                return _connected(await self._live_summary(limit))
            except TimeoutError:
                message = f"sandbox `{self._sandbox_name}` did not answer within {limit} s"
                raise TimeoutError(message) from None

        return start(work)

    def connect_or_start(self, *, detached: bool = False) -> Awaitable[Sandbox]:
        """Connects to the sandbox, and starts it first if it has stopped."""
        return self.start(detached=detached)

    def remove(self) -> Awaitable[None]:
        """Removes the stopped sandbox with its files and logs."""

        async def work() -> None:
            await _session.current().sandbox_remove(await self._live_name())

        return start(work)

    def snapshot(self, name: str) -> Awaitable[Snapshot]:
        """Saves the files of the sandbox."""
        check.text("name", name)
        from ._snapshots import create

        async def work() -> Snapshot:
            return await create(name, await self._live_name(), None)

        return start(work)


def all_sandbox_metrics() -> Awaitable[dict[str, _metrics.SandboxMetrics]]:
    """Metrics of all running sandboxes, by name."""

    async def work() -> dict[str, _metrics.SandboxMetrics]:
        session = _session.current()
        found: dict[str, _metrics.SandboxMetrics] = {}
        for summary in await session.sandbox_list():
            if summary["status"] in ("running", "paused", "draining"):
                # It may have stopped in between.
                with contextlib.suppress(MicrosandboxError):
                    metrics = await session.sandbox_metrics(summary["name"])
                    found[summary["name"]] = _metrics.from_wire(metrics)
        return found

    return start(work)


__all__ = [
    "BranchOutcome",
    "ForkOutcome",
    "PullProgressIter",
    "PullSession",
    "Sandbox",
    "SandboxHandle",
    "SandboxPage",
    "all_sandbox_metrics",
]
