"""Commands and files in the manner of SSH and SFTP, over the session."""

from __future__ import annotations

from collections.abc import Awaitable
from os import PathLike
from typing import TYPE_CHECKING, Any

from . import _checks as check
from . import _exec, _session
from ._exec import ExecOutput
from ._session import start
from .errors import unsupported
from .types import Stdin

if TYPE_CHECKING:
    from ._sandbox import Sandbox


class SshOutput:
    """What a command over SSH has written, and its exit status."""

    def __init__(self, output: ExecOutput) -> None:
        self._output = output

    @property
    def status(self) -> int:
        """The exit status."""
        return self._output.exit_code

    @property
    def success(self) -> bool:
        """Whether the exit status is 0."""
        return self._output.success

    @property
    def stdout_text(self) -> str:
        """Standard output as text."""
        return self._output.stdout_text

    @property
    def stderr_text(self) -> str:
        """Standard error as text."""
        return self._output.stderr_text

    @property
    def stdout_bytes(self) -> bytes:
        """Standard output as bytes."""
        return self._output.stdout_bytes

    @property
    def stderr_bytes(self) -> bytes:
        """Standard error as bytes."""
        return self._output.stderr_bytes


class SandboxSshOps:
    """SSH access to a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def open_client(
        self,
        *,
        user: str = "root",
        term: str | None = None,
        sftp: bool = True,
        inactivity_timeout: float | None = None,
    ) -> Awaitable[SshClient]:
        """A client that acts as this user."""
        check.text("user", user)
        check.optional_text("term", term)
        check.flag("sftp", sftp)
        check.seconds("inactivity_timeout", inactivity_timeout)

        async def work() -> SshClient:
            return SshClient(self._sandbox, user, term, sftp)

        return start(work)

    def prepare_server(
        self,
        *,
        host_key_path: str | PathLike[str] | None = None,
        authorized_keys_path: str | PathLike[str] | None = None,
        user: str | None = None,
        sftp: bool = True,
        inactivity_timeout: float | None = None,
    ) -> Awaitable[SshServer]:
        """Not supported here: the command `msb ssh` serves SSH."""
        check.optional_text("user", user)
        check.flag("sftp", sftp)

        async def work() -> SshServer:
            raise unsupported("ssh().prepare_server", "run `msb ssh serve`")

        return start(work)


class SshClient:
    """Commands and files as a user of the sandbox."""

    def __init__(self, sandbox: Sandbox, user: str, term: str | None, sftp: bool) -> None:
        self._sandbox = sandbox
        self._user = user
        self._env = {"TERM": term} if term else None
        self._sftp = sftp

    def exec(self, command: str, *, tty: bool = False) -> Awaitable[SshOutput]:
        """Runs a command line in the shell."""
        check.text("command", command)
        check.flag("tty", tty)

        async def work() -> SshOutput:
            request = _exec.exec_request(
                await self._sandbox._shell(),
                ["-c", command],
                user=self._user,
                env=self._env,
                tty=tty,
            )
            return SshOutput(await self._sandbox._run(request))

        return start(work)

    def attach(self, *, term: str | None = None, detach_keys: str | None = None) -> Awaitable[int]:
        """Runs a shell in this terminal and gives its exit status."""
        check.optional_text("detach_keys", detach_keys)
        env = {"TERM": term} if term else self._env

        async def work() -> int:
            from ._attach import run_in_terminal

            request = _exec.exec_request(
                await self._sandbox._shell(),
                ["-l"],
                user=self._user,
                env=env,
                stdin=Stdin.pipe(),
                tty=True,
            )
            return await run_in_terminal(await self._sandbox._live_name(), request, detach_keys)

        return start(work)

    def sftp(self) -> Awaitable[SftpClient]:
        """A client for files."""

        async def work() -> SftpClient:
            if not self._sftp:
                raise unsupported("sftp", "open the client with sftp=True")
            return SftpClient(self._sandbox, self._user)

        return start(work)

    def close(self) -> Awaitable[None]:
        """Ends the client; there is no connection to close."""

        async def work() -> None:
            return None

        return start(work)


class SftpClient:
    """Files as a user of the sandbox."""

    def __init__(self, sandbox: Sandbox, user: str) -> None:
        self._sandbox = sandbox
        self._user = user

    def _do(self, op: str, **args: Any) -> Awaitable[Any]:
        async def work() -> Any:
            place = {"sandbox": await self._sandbox._live_name(), "user": self._user}
            return await _session.current().call(op, {**place, **args})

        return start(work)

    def read(self, path: str) -> Awaitable[bytes]:
        """The bytes of a file."""
        check.text("path", path)

        async def work() -> bytes:
            args = {"sandbox": await self._sandbox._live_name(), "user": self._user, "path": path}
            stream = await _session.current().open("file_read", args, collect=True)
            await stream.end()
            return b"".join(stream.stdout)

        return start(work)

    def write(self, path: str, data: bytes) -> Awaitable[None]:
        """Creates or replaces a file."""
        check.text("path", path)

        async def work() -> None:
            args = {"sandbox": await self._sandbox._live_name(), "user": self._user, "path": path}
            stream = await _session.current().open("file_write", args, collect=True)
            await stream.send(data)
            stream.close_input()
            await stream.end()

        return start(work)

    def mkdir(self, path: str) -> Awaitable[None]:
        """Makes a directory."""
        return self._do("file_mkdir", path=check.text("path", path))

    def remove_file(self, path: str) -> Awaitable[None]:
        """Removes a file."""
        return self._do("file_remove", path=check.text("path", path))

    def remove_dir(self, path: str) -> Awaitable[None]:
        """Removes an empty directory."""
        return self._do("file_remove", path=check.text("path", path))

    def rename(self, old_path: str, new_path: str) -> Awaitable[None]:
        """Renames a file or directory."""
        args = {"from": check.text("old_path", old_path), "to": check.text("new_path", new_path)}
        return self._do("file_rename", **args)

    def real_path(self, path: str) -> Awaitable[str]:
        """The absolute path without symbolic links."""
        check.text("path", path)

        async def work() -> str:
            name = await self._sandbox._live_name()
            found = await _session.current().file_real(path, sandbox=name, user=self._user)
            return found["path"]

        return start(work)

    def read_link(self, path: str) -> Awaitable[str]:
        """The target of a symbolic link."""
        check.text("path", path)

        async def work() -> str:
            name = await self._sandbox._live_name()
            meta = await _session.current().file_stat(path, sandbox=name, follow=False)
            return meta.get("target") or ""

        return start(work)

    def symlink(self, target: str, link_path: str) -> Awaitable[None]:
        """Makes a symbolic link."""
        args = {"target": check.text("target", target), "path": check.text("link_path", link_path)}
        return self._do("file_symlink", **args)

    def close(self) -> Awaitable[None]:
        """Ends the client; there is no connection to close."""

        async def work() -> None:
            return None

        return start(work)


class SshServer:
    """An SSH server for one sandbox. `Sandbox.ssh().prepare_server` does not make one yet."""

    def serve_connection(self) -> Awaitable[None]:
        """Serves one connection on standard input and output."""
        raise unsupported("SshServer.serve_connection", "run `msb ssh serve`")

    def close(self) -> None:
        """Ends the server."""


__all__ = ["SandboxSshOps", "SftpClient", "SshClient", "SshOutput", "SshServer"]
