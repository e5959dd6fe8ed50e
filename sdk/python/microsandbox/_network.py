"""Networks and secrets as msb reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _checks as check
from .errors import UnsupportedError, unsupported
from .types import (
    Action,
    DestGroup,
    Direction,
    DnsConfig,
    Network,
    NetworkDestination,
    NetworkDestinationKind,
    NetworkPolicy,
    PortBinding,
    PortProtocol,
    Protocol,
    Rule,
    SecretEntry,
    TlsConfig,
    ViolationAction,
)

if TYPE_CHECKING:
    from ._options import CreateRequest

# Headers in which the gateway replaces placeholders.
_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key"})
_GROUPS = {
    DestGroup.PUBLIC: ["public"],
    DestGroup.PRIVATE: ["private"],
    DestGroup.HOST: ["host"],
    DestGroup.LOOPBACK: ["loopback"],
    DestGroup.METADATA: ["metadata"],
    DestGroup.LINK_LOCAL: ["169.254.0.0/16", "[fe80::]/10"],
}


def published(ports: Any) -> list[str]:
    """Published ports: a mapping of host ports to ports inside, or bindings."""
    if ports is None:
        return []
    if isinstance(ports, Mapping):
        bindings: Sequence[PortBinding] = [
            PortBinding(check.integer("ports", host), check.integer("ports", guest, 1))
            for host, guest in ports.items()
        ]
    elif isinstance(ports, Sequence) and not isinstance(ports, (str, bytes)):
        bindings = [check.member(each, PortBinding) for each in ports]
    else:
        raise TypeError(f"ports must be a mapping or a sequence, not {type(ports).__name__}")
    return [port(binding) for binding in bindings]


def port(binding: PortBinding) -> str:
    """One published port."""
    bind = f"[{binding.bind}]" if ":" in binding.bind else binding.bind
    protocol = "/udp" if binding.protocol is PortProtocol.UDP else ""
    return f"{bind}:{binding.host_port}:{binding.guest_port}{protocol}"


def _targets(destination: Any) -> list[str]:
    if destination is None:
        return ["any"]
    if isinstance(destination, str):
        if destination.startswith("."):
            return [destination[1:], f"*{destination}"]
        return [_address(destination)]
    found = check.member(destination, NetworkDestination)
    value = found.value or ""
    if found.kind is NetworkDestinationKind.ANY:
        return ["any"]
    if found.kind is NetworkDestinationKind.DOMAIN_SUFFIX:
        name = value.lstrip(".")
        return [name, f"*.{name}"]
    if found.kind is NetworkDestinationKind.GROUP:
        group = DestGroup(value)
        if group not in _GROUPS:
            raise unsupported(f"DestGroup.{group.name}", "msb never forwards multicast")
        return _GROUPS[group]
    return [_address(value)]


def _address(value: str) -> str:
    # Brackets keep the colons of an IPv6 address apart from those of the rule.
    if ":" in value and not value.startswith("["):
        address, slash, bits = value.partition("/")
        return f"[{address}]{slash}{bits}"
    return value


def _is_dns_to_host(rule: Rule) -> bool:
    destination = rule.destination
    return (
        isinstance(destination, NetworkDestination)
        and destination.kind is NetworkDestinationKind.GROUP
        and destination.value == DestGroup.HOST.value
        and str(rule.port) == "53"
    )


def rule_texts(rule: Any) -> list[str]:
    """One rule, as several of msb where it needs them."""
    check.member(rule, Rule)
    check.member(rule.action, Action)
    check.member(rule.direction, Direction)
    if _is_dns_to_host(rule):
        if rule.action is Action.ALLOW:
            # The gateway resolves names by itself: for those that rules allow.
            return []
        raise unsupported("Rule.deny_dns", "deny the names with Network(deny_domains=…)")
    protocols = {
        None: [""],
        Protocol.TCP: [":tcp"],
        Protocol.UDP: [":udp"],
        Protocol.ICMPV4: [":icmp"],
        Protocol.ICMPV6: [":icmp"],
    }[None if rule.protocol is None else check.member(rule.protocol, Protocol)]
    if rule.port is not None:
        if isinstance(rule.port, bool) or not isinstance(rule.port, (int, str)):
            raise TypeError(f"port must be int or str, not {type(rule.port).__name__}")
        if rule.protocol in (Protocol.ICMPV4, Protocol.ICMPV6):
            raise ValueError("a rule for ICMP has no port")
        protocols = [f"{each or ':tcp'}:{rule.port}" for each in protocols]
        if rule.protocol is None:
            protocols.append(f":udp:{rule.port}")
    directions = {
        Direction.EGRESS: [""],
        Direction.INGRESS: [":ingress"],
        Direction.ANY: ["", ":ingress"],
    }[rule.direction]
    return [
        f"{rule.action.value}{direction}@{target}{protocol}"
        for direction in directions
        for target in _targets(rule.destination)
        for protocol in protocols
    ]


def policy_rules(policy: NetworkPolicy, with_ports: bool) -> list[str]:
    """The rules of a policy, with what it says about incoming connections last."""
    rules = [text for rule in policy.rules for text in rule_texts(rule)]
    if with_ports:
        check.member(policy.default_ingress, Action)
        rules.append(f"{policy.default_ingress.value}:ingress@any")
    return rules


def apply(request: CreateRequest, given: Mapping[str, Any]) -> None:
    """Adds network, published ports and secrets to a Spec."""
    network = check.optional(given.get("network"), Network)
    action = check.optional(given.get("secret_violation_action"), ViolationAction)
    ports = published(given.get("ports")) + published(network.ports if network else None)
    made: dict[str, Any] = {"ports": ports}
    if network is None:
        made["reach"] = "public"
    else:
        _settings(made, network, ports)
        action = action or network.secret_violation_action
    if action is ViolationAction.BLOCK_AND_TERMINATE:
        raise unsupported("ViolationAction.BLOCK_AND_TERMINATE", "use BLOCK_AND_LOG")
    secrets = [_secret(each) for each in given.get("secrets") or ()]
    if given.get("intercept_tls") and not secrets and not made.get("rules"):
        raise unsupported("intercept_tls", "TLS is intercepted to hosts with secrets or HTTP rules")
    for entry in given.get("secrets") or ():
        request.secrets[entry.env_var] = entry.value
    made["secrets"] = secrets
    is_none = made.get("default") == "deny" and not made.get("rules") and not ports and not secrets
    request.spec["network"] = None if is_none else made


def _settings(made: dict[str, Any], network: Network, ports: list[str]) -> None:
    denied = [f"deny@{name}" for name in network.deny_domains]
    for suffix in network.deny_domain_suffixes:
        name = suffix.lstrip(".")
        denied += [f"deny@{name}", f"deny@*.{name}"]
    policy = check.optional(network.policy, NetworkPolicy)
    if policy is None:
        made["reach"] = "public"
        made["rules"] = denied
    else:
        made["default"] = check.member(policy.default_egress, Action).value
        made["rules"] = denied + policy_rules(policy, bool(ports))
    dns = check.optional(network.dns, DnsConfig)
    if dns is not None:
        made["dns"] = list(dns.nameservers)
        if not dns.rebind_protection:
            raise unsupported("DnsConfig.rebind_protection=False", "allow the addresses by rules")
        if dns.query_timeout_ms is not None:
            raise unsupported("DnsConfig.query_timeout_ms", "leave it out")
    tls = check.optional(network.tls, TlsConfig)
    if tls is not None:
        made["bypass"] = list(tls.bypass)
        if TlsConfig(bypass=tls.bypass) != tls:
            raise unsupported("TlsConfig", "only bypass can be set")
    limits = (network.max_connections, network.max_tcp_connections, network.max_udp_connections)
    most = [check.integer("max_connections", limit, 1) for limit in limits if limit is not None]
    if most:
        made["max_connections"] = sum(most)
    _rate(made, network)
    for name in ("ipv4_pool", "ipv6_pool", "http"):
        if getattr(network, name) is not None:
            raise unsupported(f"Network.{name}", "leave it out")
    for name in ("max_inbound_tcp_connections", "tcp_accept_queue_size"):
        if getattr(network, name) is not None:
            raise unsupported(f"Network.{name}", "use max_tcp_connections")
    if network.nat64_prefixes != ("64:ff9b::/96",):
        raise unsupported("Network.nat64_prefixes", "deny other prefixes by their ranges")


def _rate(made: dict[str, Any], network: Network) -> None:
    limiter = network.rate_limiter
    if limiter is None:
        return
    if limiter.ingress is not None or (limiter.egress and limiter.egress.ops is not None):
        raise unsupported("Network.rate_limiter", "only the bandwidth of egress is limited")
    if limiter.egress is not None and limiter.egress.bandwidth is not None:
        bucket = limiter.egress.bandwidth
        made["egress_rate"] = max(1, bucket.size * 1000 // max(1, bucket.refill_time_ms))


def _secret(value: Any) -> dict[str, Any]:
    entry = check.member(value, SecretEntry)
    if not entry.allow:
        raise ValueError(f"secret {entry.env_var} needs the hosts that may get it in allow=")
    if entry.placeholder is not None:
        raise unsupported("Secret.env(placeholder=…)", "msb makes a placeholder by itself")
    if not entry.require_tls_identity:
        raise unsupported("Secret.env(require_tls_identity=False)", "values go over TLS only")
    if entry.passthrough:
        raise unsupported("Secret.env(allow_placeholder_for=…)", "leave it out")
    if entry.violation_action is ViolationAction.BLOCK_AND_TERMINATE:
        raise unsupported("ViolationAction.BLOCK_AND_TERMINATE", "use BLOCK_AND_LOG")
    parts = entry.substitution
    other = [name for name in parts.header_fields if name.lower() not in _HEADERS]
    if other:
        raise unsupported("SecretSubstitution.header_fields", f"not replaced in: {other[0]}")
    if not parts.headers:
        raise unsupported("SecretSubstitution(headers=False)", "headers are always replaced")
    places = [name for name in ("query", "body") if getattr(parts, name)]
    return {
        "name": entry.env_var,
        "hosts": list(entry.allow),
        "source": "given",
        "places": places,
    }


__all__ = ["UnsupportedError", "apply", "policy_rules", "port", "published", "rule_texts"]
