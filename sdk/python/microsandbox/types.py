"""Values that the SDK takes and gives: enumerations, options and settings."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Literal, TypeAlias

from ._dicts import (
    ConfigPlannedChange,
    DiskCompactionDiskResult,
    DiskCompactionResult,
    ExecOptions,
    InitOptions,
    ModificationConflict,
    ModificationWarning,
    PlannedChange,
    ResourceResizeStatus,
    SandboxModificationPlan,
    SecretModifySpec,
    SecretPlannedChange,
)
from ._enums import (
    Action,
    BackendKind,
    ChangeKind,
    CpuPlacement,
    DeploymentProfile,
    DestGroup,
    Direction,
    DiskImageFormat,
    ExecEventType,
    FlatClone,
    FsEntryKind,
    GuestFlush,
    HostPermissions,
    ImageArchiveFormat,
    ImageSourceKind,
    LogLevel,
    LogReadSource,
    LogSource,
    ModificationDisposition,
    ModificationPolicy,
    MountKind,
    NamedVolumeMode,
    NetworkDestinationKind,
    NetworkProfile,
    PatchKind,
    PlannedChangeKind,
    PortProtocol,
    Protocol,
    PullEventType,
    PullPolicy,
    ResourceConvergenceState,
    ResourceKind,
    RlimitResource,
    RootDiskKind,
    SandboxStatus,
    SecretChangeKind,
    SecurityProfile,
    SnapshotFormat,
    SnapshotScope,
    SnapshotStateKind,
    StatVirtualization,
    StdinMode,
    ViolationAction,
    VolumeKind,
    VsockSocketType,
)

MiB: int = 1024 * 1024
GiB: int = 1024 * 1024 * 1024


@dataclass(frozen=True)
class Size:
    """A size in bytes."""

    bytes: int

    @property
    def mib_count(self) -> int:
        """The size in MiB, rounded down."""
        return self.bytes // MiB

    @classmethod
    def mib(cls, n: int) -> Size:
        """A size of `n` MiB."""
        return cls(n * MiB)

    @classmethod
    def gib(cls, n: int) -> Size:
        """A size of `n` GiB."""
        return cls(n * GiB)


@dataclass(frozen=True)
class ExitStatus:
    """The exit of a command."""

    code: int
    success: bool


@dataclass(frozen=True)
class Rlimit:
    """A resource limit of a command."""

    resource: RlimitResource
    soft: int
    hard: int

    @classmethod
    def nofile(cls, limit: int) -> Rlimit:
        """Limits `nofile`, soft and hard."""
        return cls(RlimitResource.NOFILE, limit, limit)

    @classmethod
    def cpu(cls, secs: int) -> Rlimit:
        """Limits `cpu`, soft and hard."""
        return cls(RlimitResource.CPU, secs, secs)

    @classmethod
    def as_(cls, *, soft: int, hard: int) -> Rlimit:
        """Limits the address space."""
        return cls(RlimitResource.AS, soft, hard)

    @classmethod
    def nproc(cls, limit: int) -> Rlimit:
        """Limits `nproc`, soft and hard."""
        return cls(RlimitResource.NPROC, limit, limit)

    @classmethod
    def fsize(cls, limit: int) -> Rlimit:
        """Limits `fsize`, soft and hard."""
        return cls(RlimitResource.FSIZE, limit, limit)

    @classmethod
    def memlock(cls, limit: int) -> Rlimit:
        """Limits `memlock`, soft and hard."""
        return cls(RlimitResource.MEMLOCK, limit, limit)

    @classmethod
    def stack(cls, limit: int) -> Rlimit:
        """Limits `stack`, soft and hard."""
        return cls(RlimitResource.STACK, limit, limit)


@dataclass(frozen=True)
class Stdin:
    """Where a command reads its standard input from."""

    _mode: StdinMode
    _data: builtins.bytes | None = None

    @classmethod
    def null(cls) -> Stdin:
        """Nothing: the command reads the end of the file at once."""
        return cls(StdinMode.NULL)

    @classmethod
    def pipe(cls) -> Stdin:
        """A pipe, written through `ExecHandle.take_stdin()`."""
        return cls(StdinMode.PIPE)

    @classmethod
    def bytes(cls, data: builtins.bytes) -> Stdin:
        """These bytes, then the end of the file."""
        return cls(StdinMode.BYTES, data)


@dataclass(frozen=True)
class InitConfig:
    """The program that becomes PID 1."""

    cmd: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MountConfig:
    """One mount; made by the functions of `Volume`."""

    kind: MountKind
    bind: str | None = None
    named: str | None = None
    named_mode: NamedVolumeMode | None = None
    named_kind: VolumeKind | None = None
    quota_mib: int | None = None
    size_mib: int | None = None
    readonly: bool = False
    noexec: bool = False
    nosuid: bool = False
    nodev: bool = False
    disk: str | None = None
    format: DiskImageFormat | None = None
    fstype: str | None = None
    stat_virtualization: StatVirtualization | None = None
    host_permissions: HostPermissions | None = None
    override_uid: int | None = None
    override_gid: int | None = None
    owned_kind: VolumeKind | None = None


@dataclass(frozen=True)
class RootDiskConfig:
    """A root disk; made by the functions of `RootDisk`."""

    kind: RootDiskKind
    size_mib: int | None = None
    path: str | None = None
    format: DiskImageFormat | None = None
    fstype: str | None = None
    clone: FlatClone | None = None


class RootDisk:
    """Makes root disks for `Image.oci`."""

    @staticmethod
    def managed(size_mib: int | None = None) -> RootDiskConfig:
        """A disk that msb makes, of this size."""
        return RootDiskConfig(RootDiskKind.MANAGED, size_mib)

    @staticmethod
    def tmpfs(size_mib: int | None = None) -> RootDiskConfig:
        """A disk in memory."""
        return RootDiskConfig(RootDiskKind.TMPFS, size_mib)

    @staticmethod
    def disk(
        path: str, *, format: DiskImageFormat | None = None, fstype: str | None = None
    ) -> RootDiskConfig:
        """A disk image of the host."""
        return RootDiskConfig(RootDiskKind.DISK_IMAGE, None, path, format, fstype)

    @staticmethod
    def flat(
        size_mib: int | None = None,
        *,
        fstype: str | None = None,
        clone: FlatClone = FlatClone.AUTO,
    ) -> RootDiskConfig:
        """One disk with all files of the image."""
        return RootDiskConfig(RootDiskKind.FLAT, size_mib, None, None, fstype, clone)


@dataclass(frozen=True)
class ImageSource:
    """A source of files; made by the functions of `Image`."""

    _type: ImageSourceKind
    _path: str | None = None
    _reference: str | None = None
    _root_disk: RootDiskConfig | int | None = None
    _upper_size_mib: int | None = None
    _fstype: str | None = None
    _format: DiskImageFormat | None = None


@dataclass(frozen=True)
class PatchConfig:
    """A change before the first command; made by the functions of `Patch`."""

    kind: PatchKind
    path: str | None = None
    content: str | bytes | None = None
    src: str | None = None
    dst: str | None = None
    target: str | None = None
    link: str | None = None
    mode: int | None = None
    replace: bool = False


class Patch:
    """Makes changes of files before the first command."""

    @staticmethod
    def text(
        path: str, content: str, *, mode: int | None = None, replace: bool = False
    ) -> PatchConfig:
        """Writes a text file."""
        return PatchConfig(PatchKind.TEXT, path=path, content=content, mode=mode, replace=replace)

    @staticmethod
    def file(
        path: str, content: bytes, *, mode: int | None = None, replace: bool = False
    ) -> PatchConfig:
        """Writes a file of bytes."""
        return PatchConfig(PatchKind.FILE, path=path, content=content, mode=mode, replace=replace)

    @staticmethod
    def mkdir(path: str, *, mode: int | None = None) -> PatchConfig:
        """Makes a directory and its parents."""
        return PatchConfig(PatchKind.MKDIR, path=path, mode=mode)

    @staticmethod
    def append(path: str, content: str) -> PatchConfig:
        """Appends to a text file."""
        return PatchConfig(PatchKind.APPEND, path=path, content=content)

    @staticmethod
    def copy_file(
        src: str, dst: str, *, mode: int | None = None, replace: bool = False
    ) -> PatchConfig:
        """Copies a file of the host into the sandbox."""
        return PatchConfig(PatchKind.COPY_FILE, src=src, dst=dst, mode=mode, replace=replace)

    @staticmethod
    def copy_dir(src: str, dst: str, *, replace: bool = False) -> PatchConfig:
        """Copies a directory of the host into the sandbox."""
        return PatchConfig(PatchKind.COPY_DIR, src=src, dst=dst, replace=replace)

    @staticmethod
    def symlink(target: str, link: str, *, replace: bool = False) -> PatchConfig:
        """Makes a symbolic link."""
        return PatchConfig(PatchKind.SYMLINK, target=target, link=link, replace=replace)

    @staticmethod
    def remove(path: str) -> PatchConfig:
        """Removes a file or directory."""
        return PatchConfig(PatchKind.REMOVE, path=path)


@dataclass(frozen=True)
class SecretSubstitution:
    """The parts of a request in which a placeholder is replaced."""

    headers: bool = True
    header_fields: tuple[str, ...] = field(default=(), kw_only=True)
    query: bool = False
    body: bool = False


@dataclass(frozen=True)
class SecretEntry:
    """A secret; made by `Secret.env`."""

    env_var: str
    value: str
    allow: tuple[str, ...] = ()
    passthrough: tuple[str, ...] = ()
    placeholder: str | None = None
    require_tls_identity: bool = True
    violation_action: ViolationAction | None = None
    substitution: SecretSubstitution = field(default_factory=SecretSubstitution)


class Secret:
    """Makes secrets."""

    @staticmethod
    def env(
        env_var: str,
        *,
        value: str,
        allow: Sequence[str] = (),
        allow_placeholder_for: Sequence[str] = (),
        passthrough: Sequence[str] = (),
        placeholder: str | None = None,
        require_tls_identity: bool = True,
        violation_action: ViolationAction | None = None,
        substitution: SecretSubstitution | None = None,
    ) -> SecretEntry:
        """A secret: a variable inside holds its placeholder, hosts of `allow` get the value."""
        if passthrough:
            warnings.warn(
                "passthrough is deprecated; use allow_placeholder_for",
                DeprecationWarning,
                stacklevel=2,
            )
        return SecretEntry(
            env_var,
            value,
            tuple(allow),
            (*allow_placeholder_for, *passthrough),
            placeholder,
            require_tls_identity,
            violation_action,
            SecretSubstitution() if substitution is None else substitution,
        )


@dataclass(frozen=True)
class NetworkDestination:
    """A destination; made by the functions of `Destination`."""

    kind: NetworkDestinationKind
    value: str | None = None


NetworkDestinationLike: TypeAlias = "str | NetworkDestination | None"


class Destination:
    """Makes destinations for network rules."""

    @staticmethod
    def any() -> NetworkDestination:
        """Every address."""
        return NetworkDestination(NetworkDestinationKind.ANY)

    @staticmethod
    def ip(ip: str) -> NetworkDestination:
        """One address."""
        return NetworkDestination(NetworkDestinationKind.IP, ip)

    @staticmethod
    def cidr(cidr: str) -> NetworkDestination:
        """A range of addresses, such as `10.0.0.0/8`."""
        return NetworkDestination(NetworkDestinationKind.CIDR, cidr)

    @staticmethod
    def domain(domain: str) -> NetworkDestination:
        """One domain name."""
        return NetworkDestination(NetworkDestinationKind.DOMAIN, domain)

    @staticmethod
    def domain_suffix(suffix: str) -> NetworkDestination:
        """A domain name and all of its subdomains."""
        return NetworkDestination(NetworkDestinationKind.DOMAIN_SUFFIX, suffix)

    @staticmethod
    def group(group: DestGroup) -> NetworkDestination:
        """A group of addresses."""
        if not isinstance(group, DestGroup):
            raise TypeError(f"expected DestGroup, got {type(group).__name__}")
        return NetworkDestination(NetworkDestinationKind.GROUP, group.value)


@dataclass(frozen=True)
class Rule:
    """A network rule: the first that matches decides."""

    action: Action
    direction: Direction = Direction.EGRESS
    destination: NetworkDestinationLike = None
    protocol: Protocol | None = None
    port: int | str | None = None

    @classmethod
    def allow(
        cls,
        *,
        direction: Direction = Direction.EGRESS,
        protocol: Protocol | None = None,
        port: int | str | None = None,
        destination: NetworkDestinationLike = None,
    ) -> Rule:
        """Allows what matches."""
        return cls(Action.ALLOW, direction, destination, protocol, port)

    @classmethod
    def deny(
        cls,
        *,
        direction: Direction = Direction.EGRESS,
        protocol: Protocol | None = None,
        port: int | str | None = None,
        destination: NetworkDestinationLike = None,
    ) -> Rule:
        """Denies what matches."""
        return cls(Action.DENY, direction, destination, protocol, port)

    @classmethod
    def allow_dns(cls) -> tuple[Rule, Rule]:
        """Allows DNS to the gateway, over UDP and TCP."""
        return cls._dns(Action.ALLOW)

    @classmethod
    def deny_dns(cls) -> tuple[Rule, Rule]:
        """Denies DNS to the gateway, over UDP and TCP."""
        return cls._dns(Action.DENY)

    @classmethod
    def _dns(cls, action: Action) -> tuple[Rule, Rule]:
        host = Destination.group(DestGroup.HOST)
        return (
            cls(action, Direction.EGRESS, host, Protocol.UDP, 53),
            cls(action, Direction.EGRESS, host, Protocol.TCP, 53),
        )


@dataclass(frozen=True)
class NetworkPolicy:
    """Network rules and what happens without a match."""

    default_egress: Action = Action.DENY
    default_ingress: Action = Action.ALLOW
    rules: tuple[Rule, ...] = ()

    @classmethod
    def none(cls) -> NetworkPolicy:
        """Denies everything in both directions."""
        return cls(Action.DENY, Action.DENY)

    @classmethod
    def allow_all(cls) -> NetworkPolicy:
        """Allows everything in both directions."""
        return cls(Action.ALLOW, Action.ALLOW)

    @classmethod
    def from_profiles(cls, profiles: Iterable[NetworkProfile]) -> NetworkPolicy:
        """Allows DNS and the networks of these presets."""
        chosen = set(profiles)
        for profile in chosen:
            if not isinstance(profile, NetworkProfile):
                raise TypeError(f"expected NetworkProfile, got {type(profile).__name__}")
        rules: list[Rule] = list(Rule.allow_dns()) if chosen else []
        for profile in (NetworkProfile.PUBLIC, NetworkProfile.PRIVATE, NetworkProfile.HOST):
            if profile in chosen:
                group = Destination.group(DestGroup(profile.value))
                rules.append(Rule.allow(destination=group))
        return cls(rules=tuple(rules))


@dataclass(frozen=True)
class ScopedUpstreamCACert:
    """A CA certificate for some hosts."""

    pattern: str
    path: str


@dataclass(frozen=True)
class ScopedVerifyUpstream:
    """Whether certificates of some hosts are verified."""

    pattern: str
    verify: bool


@dataclass(frozen=True)
class TlsConfig:
    """How TLS is intercepted."""

    bypass: tuple[str, ...] = ()
    verify_upstream: bool = True
    intercepted_ports: tuple[int, ...] = (443,)
    block_quic: bool = False
    upstream_ca_certs: tuple[str, ...] = ()
    scoped_upstream_ca_certs: tuple[ScopedUpstreamCACert, ...] = ()
    scoped_verify_upstream: tuple[ScopedVerifyUpstream, ...] = ()
    ca_cert: str | None = None
    ca_key: str | None = None
    ca_cn: str | None = None


@dataclass(frozen=True)
class DnsConfig:
    """How names are resolved."""

    rebind_protection: bool = True
    nameservers: tuple[str, ...] = ()
    query_timeout_ms: int | None = None


@dataclass(frozen=True)
class PortEndpoint:
    """A published port of the host."""

    host_port: int
    bind: str = "127.0.0.1"
    protocol: PortProtocol = PortProtocol.TCP


@dataclass(frozen=True)
class PortBinding:
    """A port of the host that leads into the sandbox."""

    host_port: int
    guest_port: int
    bind: str = "127.0.0.1"
    protocol: PortProtocol = PortProtocol.TCP

    @classmethod
    def tcp(cls, host_port: int, guest_port: int, *, bind: str = "127.0.0.1") -> PortBinding:
        """A TCP port of the host that leads to one inside."""
        return cls(host_port, guest_port, bind, PortProtocol.TCP)

    @classmethod
    def udp(cls, host_port: int, guest_port: int, *, bind: str = "127.0.0.1") -> PortBinding:
        """A UDP port of the host that leads to one inside."""
        return cls(host_port, guest_port, bind, PortProtocol.UDP)


@dataclass(frozen=True)
class SecretSource:
    """Where a password is read from."""

    kind: Literal["env"]
    var: str

    @classmethod
    def env(cls, variable: str) -> SecretSource:
        """Reads an environment variable of this process."""
        return cls("env", variable)


@dataclass(frozen=True)
class OutboundProxy:
    """A proxy for outgoing connections."""

    protocol: Literal["http_connect", "socks4", "socks5"]
    address: str
    user_id: str | None = None
    username: str | None = None
    password: SecretSource | None = None

    def __post_init__(self) -> None:
        if self.user_id is not None and self.protocol != "socks4":
            raise ValueError("user_id is only for socks4")
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password are given together")
        if self.username is not None and self.protocol == "socks4":
            raise ValueError("socks4 takes no username and password")

    @classmethod
    def http_connect(cls, address: str) -> OutboundProxy:
        """An HTTP proxy with CONNECT."""
        return cls("http_connect", address)

    @classmethod
    def socks4(cls, address: str, *, user_id: str | None = None) -> OutboundProxy:
        """A SOCKS4 proxy."""
        return cls("socks4", address, user_id)

    @classmethod
    def socks5(cls, address: str) -> OutboundProxy:
        """A SOCKS5 proxy."""
        return cls("socks5", address)

    def credentials(self, username: str, password: SecretSource) -> OutboundProxy:
        """The same proxy with a login."""
        return replace(self, username=username, password=password)


@dataclass(frozen=True)
class TokenBucket:
    """A token bucket of a rate limit."""

    size: int
    refill_time_ms: int
    one_time_burst: int = 0


@dataclass(frozen=True)
class RateLimiter:
    """Rate limits of one direction."""

    bandwidth: TokenBucket | None = None
    ops: TokenBucket | None = None


@dataclass(frozen=True)
class NetworkRateLimiter:
    """Rate limits of both directions."""

    egress: RateLimiter | None = None
    ingress: RateLimiter | None = None


@dataclass(frozen=True)
class VsockRoute:
    """A vsock port that leads to a socket of the host."""

    host_socket: str | PathLike[str]
    port: int
    socket_type: VsockSocketType = VsockSocketType.STREAM

    @classmethod
    def stream(cls, host_socket: str | PathLike[str], port: int) -> VsockRoute:
        """A stream socket of the host."""
        return cls(host_socket, port)

    @classmethod
    def dgram(cls, host_socket: str | PathLike[str], port: int) -> VsockRoute:
        """A datagram socket of the host."""
        return cls(host_socket, port, VsockSocketType.DGRAM)


@dataclass(frozen=True)
class HttpConfig:
    """What a refused HTTP request gets."""

    deny_response: bool = True
    deny_message: str | None = None
    deny_response_format: Literal["text", "json"] = field(default="json", kw_only=True)
    network_deny_message: str | None = field(default=None, kw_only=True)
    secret_deny_message: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Network:
    """The network of a sandbox."""

    policy: NetworkPolicy | None = None
    ports: Mapping[int, int] | Sequence[PortBinding] = field(default_factory=dict)
    deny_domains: tuple[str, ...] = ()
    deny_domain_suffixes: tuple[str, ...] = ()
    dns: DnsConfig | None = None
    tls: TlsConfig | None = None
    strict: bool = True
    ipv4_pool: str | None = None
    ipv6_pool: str | None = None
    nat64_prefixes: tuple[str, ...] = field(default=("64:ff9b::/96",), kw_only=True)
    max_connections: int | None = None
    max_tcp_connections: int | None = field(default=None, kw_only=True)
    max_udp_connections: int | None = field(default=None, kw_only=True)
    max_inbound_tcp_connections: int | None = field(default=None, kw_only=True)
    tcp_accept_queue_size: int | None = field(default=None, kw_only=True)
    rate_limiter: NetworkRateLimiter | None = None
    secret_violation_action: ViolationAction = ViolationAction.BLOCK_AND_LOG
    http: HttpConfig | None = None

    def __post_init__(self) -> None:
        if self.max_connections is not None:
            warnings.warn(
                "Network.max_connections is deprecated; use max_tcp_connections",
                DeprecationWarning,
                stacklevel=3,
            )

    @classmethod
    def none(cls) -> Network:
        """No network but loopback."""
        return cls(policy=NetworkPolicy.none())

    @classmethod
    def from_profiles(cls, *profiles: NetworkProfile) -> Network:
        """The networks of these presets, and DNS."""
        return cls(policy=NetworkPolicy.from_profiles(profiles))

    @classmethod
    def allow_all(cls) -> Network:
        """Everything but metadata services."""
        return cls(policy=NetworkPolicy.allow_all())


@dataclass(frozen=True)
class RegistryAuth:
    """The login for a registry."""

    username: str
    password: str

    @classmethod
    def basic(cls, username: str, password: str) -> RegistryAuth:
        """A user name and a password or token."""
        return cls(username, password)


__all__ = [
    "Action",
    "BackendKind",
    "ChangeKind",
    "ConfigPlannedChange",
    "CpuPlacement",
    "DeploymentProfile",
    "DestGroup",
    "Destination",
    "Direction",
    "DiskCompactionDiskResult",
    "DiskCompactionResult",
    "DiskImageFormat",
    "DnsConfig",
    "ExecEventType",
    "ExecOptions",
    "ExitStatus",
    "FlatClone",
    "FsEntryKind",
    "GiB",
    "GuestFlush",
    "HostPermissions",
    "HttpConfig",
    "ImageArchiveFormat",
    "ImageSource",
    "ImageSourceKind",
    "InitConfig",
    "InitOptions",
    "LogLevel",
    "LogReadSource",
    "LogSource",
    "MiB",
    "ModificationConflict",
    "ModificationDisposition",
    "ModificationPolicy",
    "ModificationWarning",
    "MountConfig",
    "MountKind",
    "NamedVolumeMode",
    "Network",
    "NetworkDestination",
    "NetworkDestinationKind",
    "NetworkDestinationLike",
    "NetworkPolicy",
    "NetworkProfile",
    "NetworkRateLimiter",
    "OutboundProxy",
    "Patch",
    "PatchConfig",
    "PatchKind",
    "PlannedChange",
    "PlannedChangeKind",
    "PortBinding",
    "PortEndpoint",
    "PortProtocol",
    "Protocol",
    "PullEventType",
    "PullPolicy",
    "RateLimiter",
    "RegistryAuth",
    "ResourceConvergenceState",
    "ResourceKind",
    "ResourceResizeStatus",
    "Rlimit",
    "RlimitResource",
    "RootDisk",
    "RootDiskConfig",
    "RootDiskKind",
    "Rule",
    "SandboxModificationPlan",
    "SandboxStatus",
    "ScopedUpstreamCACert",
    "ScopedVerifyUpstream",
    "Secret",
    "SecretChangeKind",
    "SecretEntry",
    "SecretModifySpec",
    "SecretPlannedChange",
    "SecretSource",
    "SecretSubstitution",
    "SecurityProfile",
    "Size",
    "SnapshotFormat",
    "SnapshotScope",
    "SnapshotStateKind",
    "StatVirtualization",
    "Stdin",
    "StdinMode",
    "TlsConfig",
    "TokenBucket",
    "ViolationAction",
    "VolumeKind",
    "VsockRoute",
    "VsockSocketType",
]
