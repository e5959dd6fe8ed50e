"""Workspaces: a host directory that a sandbox changes copy-on-write."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _checks as check
from . import _session
from ._session import start

if TYPE_CHECKING:
    from ._generated import Change
    from ._sandbox import Sandbox


@dataclass(frozen=True)
class WorkspaceChange:
    """One change that a sandbox made in its workspace.

    `what` is `added`, `changed`, `deleted`, `mode` or `special`. `conflict` and `risk` tell why it
    is not applied by itself.
    """

    path: str
    what: str
    patch: str | None
    conflict: str | None
    risk: str | None
    ignored: bool
    renamed_from: str | None
    renamed_to: str | None


@dataclass(frozen=True)
class WorkspaceApplied:
    """What `apply` has copied to the host, and what it has left out with the reasons."""

    applied: list[WorkspaceChange]
    left_out: list[tuple[str, str]]
    notes: list[str]


def _change(change: Change) -> WorkspaceChange:
    patch, risk = change.get("patch"), change.get("risk")
    return WorkspaceChange(
        path=change["path"],
        what=change["what"],
        patch=None if patch is None else patch["text"],
        conflict=change.get("conflict"),
        risk=None if risk is None else risk["reason"],
        ignored=bool(change.get("ignored")),
        renamed_from=change.get("renamed_from"),
        renamed_to=change.get("renamed_to"),
    )


class SandboxWorkspace:
    """The workspace of a sandbox that was created with `workspace=`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def diff(
        self, *, below: Sequence[str] = (), patches: bool = False
    ) -> Awaitable[list[WorkspaceChange]]:
        """The changes, at or below these paths; with `patches` also as unified diffs."""
        paths = check.texts("below", below)
        depth: Any = {"patches": check.flag("patches", patches)}

        async def work() -> list[WorkspaceChange]:
            name = await self._sandbox._live_name()
            found = await _session.current().workspace_diff(name, below=paths, depth=depth)
            return [_change(each) for each in found]

        return start(work)

    def apply(
        self,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        overwrite: Sequence[str] = (),
        ignored: bool = False,
        dry_run: bool = False,
    ) -> Awaitable[WorkspaceApplied]:
        """Copies changes to the host directory. Patterns are those of `msb apply`."""
        selection: Any = {
            "include": check.texts("include", include),
            "exclude": check.texts("exclude", exclude),
            "overwrite": check.texts("overwrite", overwrite),
            "ignored": check.flag("ignored", ignored),
        }
        check.flag("dry_run", dry_run)

        async def work() -> WorkspaceApplied:
            name = await self._sandbox._live_name()
            done = await _session.current().workspace_apply(
                name, dry_run=dry_run, selection=selection
            )
            left_out = [(str(path), str(reason)) for path, reason in done["left_out"]]
            return WorkspaceApplied([_change(c) for c in done["applied"]], left_out, done["notes"])

        return start(work)

    def discard(self, *, paths: Sequence[str] = ()) -> Awaitable[int]:
        """Discards changes of a stopped sandbox at and below these paths. Gives their number."""
        chosen = check.texts("paths", paths)

        async def work() -> int:
            name = await self._sandbox._live_name()
            return (await _session.current().workspace_discard(name, paths=chosen))["count"]

        return start(work)
