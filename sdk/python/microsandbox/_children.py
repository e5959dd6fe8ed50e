"""Children: sandboxes that a sandbox may start, within its policy."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _checks as check
from . import _session
from ._session import start
from .types import SandboxStatus

if TYPE_CHECKING:
    from ._generated import Child
    from ._sandbox import Sandbox


@dataclass(frozen=True)
class ChildInfo:
    """A child of a sandbox."""

    name: str
    parent: str
    image: str
    status: SandboxStatus
    isolation: str
    generation: int
    created_at: float


ChildInfos: TypeAlias = "list[ChildInfo]"


def _child(child: Child) -> ChildInfo:
    return ChildInfo(
        child["name"],
        child["parent"],
        child["image"],
        SandboxStatus(child["status"]),
        child["isolation"],
        child["generation"],
        child["created"] / 1000,
    )


class SandboxChildren:
    """The children of a sandbox that was created with `spawn=`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def list(self) -> Awaitable[ChildInfos]:
        """All children."""

        async def work() -> ChildInfos:
            found = await _session.current().child_list(await self._sandbox._live_name())
            return [_child(each) for each in found["children"]]

        return start(work)

    def spawn(
        self,
        name: str | None = None,
        *,
        image: str | None = None,
        cpus: int | None = None,
        memory: int | None = None,
    ) -> Awaitable[ChildInfo]:
        """Starts a child within the policy; memory is MiB."""
        spec: Any = {
            "name": check.optional_text("name", name),
            "image": check.optional_text("image", image),
            "cpus": check.optional_integer("cpus", cpus, 1),
            "memory": None if memory is None else f"{check.integer('memory', memory, 1)}M",
        }

        async def work() -> ChildInfo:
            parent = await self._sandbox._live_name()
            return _child(await _session.current().child_spawn(parent, spec=spec))

        return start(work)

    def remove(self, name: str) -> Awaitable[None]:
        """Removes a child and its own children."""
        check.text("name", name)

        async def work() -> None:
            await _session.current().child_remove(name, await self._sandbox._live_name())

        return start(work)
