"""Network traffic of a running sandbox: flows, verdicts, rules and ports."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from . import _checks as check
from . import _network, _session
from ._session import start
from .types import PortBinding, Rule

if TYPE_CHECKING:
    from ._generated import Verdict
    from ._sandbox import Sandbox


@dataclass(frozen=True)
class NetworkVerdict:
    """A decision of the gateway about one flow."""

    flow: int
    decision: str
    direction: str
    kind: str
    name: str | None
    address: str | None
    port: int | None
    request: str | None
    rule: str
    secrets: list[str]


@dataclass(frozen=True)
class NetworkFlow:
    """A connection that is open."""

    verdict: NetworkVerdict
    age_ms: int
    received: int
    sent: int


def _verdict(verdict: Verdict) -> NetworkVerdict:
    return NetworkVerdict(
        flow=verdict["flow"],
        decision=verdict["decision"],
        direction=verdict["direction"],
        kind=verdict["kind"],
        name=verdict.get("name"),
        address=verdict.get("address"),
        port=verdict.get("port"),
        request=verdict.get("request"),
        rule=verdict["rule"],
        secrets=list(verdict["secrets"]),
    )


class SandboxNetwork:
    """The network of a running sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def verdicts(self) -> Awaitable[list[NetworkVerdict]]:
        """The recorded decisions, the oldest first."""

        async def work() -> list[NetworkVerdict]:
            name = await self._sandbox._live_name()
            records = await _session.current().network_events(name)
            found = [cast("dict[str, Any]", record).get("decided") for record in records]
            return [_verdict(each) for each in found if each is not None]

        return start(work)

    def flows(self) -> Awaitable[list[NetworkFlow]]:
        """The connections that are open now."""

        async def work() -> list[NetworkFlow]:
            table = await _session.current().network_table(await self._sandbox._live_name())
            return [
                NetworkFlow(_verdict(each["verdict"]), each["age"], each["received"], each["sent"])
                for each in table["flows"]
            ]

        return start(work)

    def rules(self) -> Awaitable[list[str]]:
        """The rules in force, in the syntax of msb."""

        async def work() -> list[str]:
            table = await _session.current().network_table(await self._sandbox._live_name())
            policy = table.get("policy")
            return list(policy["rules"]) if policy else []

        return start(work)

    def insert(self, *rules: Rule) -> Awaitable[None]:
        """Puts rules before those in force, until the sandbox stops."""
        texts = [text for rule in rules for text in _network.rule_texts(rule)]

        async def work() -> None:
            await _session.current().network_allow(await self._sandbox._live_name(), texts)

        return start(work)

    def publish(self, binding: PortBinding) -> Awaitable[str]:
        """Publishes a port of the sandbox on this host."""
        port = _network.port(check.member(binding, PortBinding))

        async def work() -> str:
            return await _session.current().port_publish(await self._sandbox._live_name(), port)

        return start(work)

    def withdraw(self, binding: PortBinding) -> Awaitable[None]:
        """Stops publishing a port."""
        port = _network.port(check.member(binding, PortBinding))

        async def work() -> None:
            await _session.current().port_withdraw(await self._sandbox._live_name(), port)

        return start(work)
