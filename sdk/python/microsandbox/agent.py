"""The raw agent protocol. msb has another one, so every call is refused with a typed error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypedDict

from . import _checks as check
from ._session import start
from .errors import UnsupportedError, unsupported

FLAG_TERMINAL = 1
FLAG_SESSION_START = 2
FLAG_SHUTDOWN = 4


class RawFrame(TypedDict):
    """One frame of the agent protocol."""

    id: int
    flags: int
    body: bytes


def _refused() -> UnsupportedError:
    return unsupported("AgentClient", "use Sandbox.exec_stream and Sandbox.fs")


async def _refuse() -> Any:
    raise _refused()


class AgentClient:
    """A connection to the agent of a sandbox."""

    @classmethod
    def connect_sandbox(cls, name: str, *, timeout: float | None = None) -> Awaitable[AgentClient]:
        """Not supported: msb has another protocol."""
        check.sandbox_name(name)
        check.seconds("timeout", timeout)
        return start(_refuse)

    @classmethod
    def connect(cls, path: str, *, timeout: float | None = None) -> Awaitable[AgentClient]:
        """Not supported: msb has another protocol."""
        check.path("path", path)
        check.seconds("timeout", timeout)
        return start(_refuse)

    @staticmethod
    def socket_path(name: str) -> str:
        """Not supported: msb has another protocol."""
        check.sandbox_name(name)
        raise _refused()

    def request(self, flags: int, body: bytes) -> Awaitable[RawFrame]:
        """Sends a frame and waits for the answer."""
        return start(_refuse)

    def stream(self, flags: int, body: bytes) -> Awaitable[AgentStream]:
        """Sends a frame and gives all answers."""
        return start(_refuse)

    def send(self, id: int, flags: int, body: bytes) -> Awaitable[None]:
        """Sends a frame of a stream."""
        return start(_refuse)

    def ready_bytes(self) -> bytes:
        """The first frame of the agent."""
        raise _refused()

    def close(self) -> Awaitable[None]:
        """Ends the connection."""
        return start(_refuse)


class AgentStream:
    """Answers of the agent."""

    id: int = 0

    def next(self) -> Awaitable[RawFrame | None]:
        """The next frame."""
        return start(_refuse)

    def close(self) -> Awaitable[None]:
        """Ends the stream."""
        return start(_refuse)

    async def __aenter__(self) -> AgentStream:
        return self

    async def __aexit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool:
        return False

    def __aiter__(self) -> AsyncIterator[RawFrame]:
        return self

    async def __anext__(self) -> RawFrame:
        raise _refused()


__all__ = [
    "FLAG_SESSION_START",
    "FLAG_SHUTDOWN",
    "FLAG_TERMINAL",
    "AgentClient",
    "AgentStream",
    "RawFrame",
]
