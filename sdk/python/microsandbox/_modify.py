"""Changes of the settings of a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from . import _checks as check
from . import _network, _session
from .errors import unsupported
from .types import (
    ChangeKind,
    ConfigPlannedChange,
    ModificationConflict,
    ModificationDisposition,
    ModificationPolicy,
    PlannedChangeKind,
    PortEndpoint,
    PortProtocol,
    SandboxModificationPlan,
    SandboxStatus,
)


class ModifyRequest:
    """Checked arguments of `modify`."""

    def __init__(self, change: dict[str, Any], policy: ModificationPolicy, dry_run: bool) -> None:
        self.change = change
        self.policy = policy
        self.dry_run = dry_run
        self.publish: list[str] = []
        self.withdraw: list[PortEndpoint] = []


def request(**options: Any) -> ModifyRequest:
    """Checks the arguments of `modify`. Raises TypeError, ValueError or UnsupportedError."""
    given = {key: value for key, value in options.items() if value is not None}
    change: dict[str, Any] = {}
    if "cpus" in given:
        change["cpus"] = check.integer("cpus", given["cpus"], 1)
    if "memory" in given:
        change["memory"] = f"{check.integer('memory', given['memory'], 1)}M"
    if given.get("env"):
        change["env"] = check.mapping("env", given["env"])
    if given.get("labels"):
        change["labels"] = check.mapping("labels", given["labels"])
    if given.get("labels_rm"):
        change["unlabel"] = check.texts("labels_rm", given["labels_rm"])
    policy = check.member(given.get("policy", ModificationPolicy.NO_RESTART), ModificationPolicy)
    made = ModifyRequest(change, policy, check.flag("dry_run", given.get("dry_run", False)))
    made.publish = _network.published(given.get("ports"))
    made.withdraw = [check.member(each, PortEndpoint) for each in given.get("ports_rm", ())]
    for key in ("max_cpus", "max_memory", "root_disk_size"):
        if key in given:
            check.integer(key, given[key], 1)
            raise unsupported(f"modify({key}=…)", "create the sandbox with this size")
    for key in ("env_rm", "workdir", "secrets", "secrets_rm"):
        if given.get(key):
            raise unsupported(f"modify({key}=…)", "create the sandbox again with this setting")
    return made


def _planned(item: Mapping[str, Any]) -> ConfigPlannedChange:
    before, after = item.get("from"), item.get("to")
    change = ChangeKind.UPDATED
    if before is None:
        change = ChangeKind.ADDED
    elif after is None:
        change = ChangeKind.REMOVED
    now = item["holds"] == "now"
    planned: ConfigPlannedChange = {
        "kind": PlannedChangeKind.CONFIG,
        "field": item["what"],
        "change": change,
        "disposition": ModificationDisposition.LIVE if now else ModificationDisposition.NEXT_START,
    }
    if before is not None:
        planned["before"] = before
    if after is not None:
        planned["after"] = after
    return planned


async def apply(
    name: str, request: ModifyRequest, restart: Callable[[], Coroutine[Any, Any, None]]
) -> SandboxModificationPlan:
    """Plans the changes, and applies them unless that is not wanted or not possible."""
    session = _session.current()
    summary = await session.sandbox_summary(name)
    running = summary["status"] != "stopped" and summary["status"] != "crashed"
    changes: list[Any] = []
    conflicts: list[ModificationConflict] = []
    if request.change:
        change: Any = {**request.change, "dry_run": True}
        changes += [_planned(item) for item in await session.sandbox_modify(name, change)]
    changes += [_planned({"what": "ports", "to": port, "holds": "now"}) for port in request.publish]
    changes += [
        _planned({"what": "ports", "from": _text(port), "holds": "now"})
        for port in request.withdraw
    ]
    later = [each for each in changes if each["disposition"] is not ModificationDisposition.LIVE]
    if running and later and request.policy is ModificationPolicy.NO_RESTART:
        conflicts = [
            {"field": each["field"], "message": "it takes effect at the next start"}
            for each in later
        ]
    if not running and (request.publish or request.withdraw):
        raise unsupported("modify(ports=…)", "ports of a stopped sandbox cannot be changed")
    applied = not request.dry_run and not conflicts
    if applied:
        change = {**request.change}
        if request.change:
            await session.sandbox_modify(name, change)
        for port in request.publish:
            await session.port_publish(name, port)
        if request.withdraw:
            await _withdraw(name, request.withdraw)
        if running and later and request.policy is ModificationPolicy.RESTART:
            await restart()
    return {
        "sandbox": name,
        "status": SandboxStatus(summary["status"]),
        "applied": applied,
        "policy": request.policy,
        "changes": changes,
        "conflicts": conflicts,
        "warnings": [],
    }


def _text(port: PortEndpoint) -> str:
    return f"{port.bind}:{port.host_port}"


async def _withdraw(name: str, ports: list[PortEndpoint]) -> None:
    session = _session.current()
    published = (await session.network_table(name))["ports"]
    for port in ports:
        suffix = "/udp" if port.protocol is PortProtocol.UDP else ""
        head = f"{_text(port)}:"
        for text in published:
            is_udp = text.endswith("/udp")
            if text.startswith(head) and is_udp == bool(suffix):
                await session.port_withdraw(name, text)
