"""The options of `create` and `restore`, and the Spec that they make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import _checks as check
from . import _network
from .errors import unsupported
from .types import (
    CpuPlacement,
    DeploymentProfile,
    ImageSource,
    ImageSourceKind,
    InitConfig,
    LogLevel,
    MountConfig,
    MountKind,
    NamedVolumeMode,
    Network,
    NetworkPolicy,
    OutboundProxy,
    PatchConfig,
    PatchKind,
    PortBinding,
    PullPolicy,
    RegistryAuth,
    RootDiskConfig,
    RootDiskKind,
    SecretEntry,
    SecurityProfile,
    ViolationAction,
    VolumeKind,
    VsockRoute,
)

if TYPE_CHECKING:
    from os import PathLike

    from .types import InitOptions


class CreateOptions(TypedDict, total=False):
    """Keywords of `Sandbox.create`. Sizes are MiB, durations are seconds."""

    image: str | PathLike[str] | ImageSource | None
    memory: int | None
    cpus: int | None
    max_memory: int | None
    max_cpus: int | None
    workdir: str | None
    shell: str | None
    security: SecurityProfile | None
    hostname: str | None
    user: str | None
    entrypoint: Sequence[str] | None
    cmd: Sequence[str] | None
    init: str | InitConfig | InitOptions | None
    replace: bool
    replace_with_timeout: float | None
    max_duration: float | None
    idle_timeout: float | None
    ephemeral: bool
    env: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    scripts: Mapping[str, str] | None
    pull_policy: PullPolicy | None
    log_level: LogLevel | None
    registry_auth: RegistryAuth | None
    registry_insecure: bool
    registry_ca_certs: list[bytes | bytearray | str | PathLike[str]] | None
    volumes: Mapping[str, MountConfig] | None
    patches: Sequence[PatchConfig] | None
    ports: Mapping[int, int] | Sequence[PortBinding] | None
    vsock: Mapping[str, int] | Sequence[VsockRoute] | None
    network: Network | None
    intercept_tls: bool
    secrets: Sequence[SecretEntry] | None
    secret_violation_action: ViolationAction | None
    detached: bool
    cpu_placement: CpuPlacement | None
    placement_profile: Any
    thp: Any
    deployment_profile: DeploymentProfile | None
    proxy: OutboundProxy | None
    workspace: str | PathLike[str] | None
    spawn: Mapping[str, Any] | None


class RestoreOptions(TypedDict, total=False):
    """Keywords of `Sandbox.restore`."""

    cpus: int | None
    memory: int | None
    network_policy: NetworkPolicy | None
    max_connections: int | None
    max_tcp_connections: int | None
    max_udp_connections: int | None
    disable_network: bool
    security: SecurityProfile | None
    max_duration: float | None
    idle_timeout: float | None
    cow_memory: bool
    forked: bool
    disk_only: bool
    snapshot_base: str | None
    user: str | None
    log_level: LogLevel | None
    volumes: Mapping[str, MountConfig] | None
    captured_volumes: Sequence[str] | None
    ports: Mapping[int, int] | Sequence[PortBinding] | None
    tcp_accept_queue_size: int | None
    max_inbound_tcp_connections: int | None
    vsock: Mapping[str, int] | Sequence[VsockRoute] | None
    external_mount_policy: Literal["strict", "relaxed"]
    dangerously_inherit_resources: bool
    allow_missing_resources: bool


FALSE_BY_DEFAULT = frozenset(
    {
        "replace",
        "ephemeral",
        "registry_insecure",
        "intercept_tls",
        "detached",
        "disable_network",
        "cow_memory",
        "forked",
        "disk_only",
        "dangerously_inherit_resources",
        "allow_missing_resources",
    }
)


@dataclass
class CreateRequest:
    """A checked `create`: the Spec and everything that is done around it."""

    name: str
    spec: dict[str, Any]
    detached: bool = False
    replace: bool = False
    replace_timeout: float | None = None
    # Values of secrets, which are never part of the Spec.
    secrets: dict[str, str] = field(default_factory=dict)
    registry: dict[str, Any] | None = None
    ca_certs: list[bytes] = field(default_factory=list)
    # Volumes that have to exist before the sandbox: name, whether a new one is demanded, settings.
    volumes: list[tuple[str, bool, dict[str, Any]]] = field(default_factory=list)


# The default command, for `exec_default` of later handles: msb starts a `command` at once.
CMD_LABEL = "microsandbox.cmd"


def create_request(name: Any, options: Mapping[str, Any]) -> CreateRequest:
    """Checks the options of `create`. Raises TypeError, ValueError or UnsupportedError."""
    name = check.sandbox_name(name)
    for key in options:
        if key in ("snapshot", "from_snapshot"):
            raise TypeError(
                f"unexpected keyword argument '{key}'; Sandbox.restore() starts from a snapshot"
            )
        if key not in CreateOptions.__annotations__:
            raise TypeError(f"unexpected keyword argument '{key}'")
    given = {
        key: value
        for key, value in options.items()
        if value is not None and (key in FALSE_BY_DEFAULT or value is not False)
    }
    for key in FALSE_BY_DEFAULT & given.keys():
        check.flag(key, given[key])
    get = given.get
    if "image" not in given:
        raise ValueError("image= is required; name an image, such as image='python'")
    spec: dict[str, Any] = {"name": name}
    request = CreateRequest(name, spec, get("detached", False), get("replace", False))
    _image(spec, given["image"])
    if "memory" in given:
        spec["memory"] = f"{check.integer('memory', given['memory'], 1)}M"
    if "cpus" in given:
        spec["cpus"] = check.integer("cpus", given["cpus"], 1)
    for key, of in (("max_memory", "memory"), ("max_cpus", "cpus")):
        if key not in given:
            continue
        most = check.integer(key, given[key], 1)
        if most < get(of, 0):
            raise ValueError(f"{key} must not be less than {of}")
        if most != get(of):
            raise unsupported(key, f"give {of} alone; `modify` changes it later")
    for key in ("workdir", "shell", "hostname", "user"):
        if key in given:
            spec[key] = check.text(key, given[key])
    if "security" in given:
        spec["security"] = check.member(given["security"], SecurityProfile).value
    if "entrypoint" in given:
        spec["entrypoint"] = check.texts("entrypoint", given["entrypoint"])
    if "init" in given:
        spec["init"] = _init(given["init"])
    request.replace_timeout = check.seconds("replace_with_timeout", get("replace_with_timeout"))
    if request.replace_timeout is not None:
        request.replace = True
    for key in ("max_duration", "idle_timeout"):
        if key in given:
            spec[key] = check.span(check.seconds(key, given[key]))
    if get("ephemeral"):
        spec["ephemeral"] = True
    spec["env"] = check.mapping("env", get("env"))
    spec["labels"] = check.mapping("labels", get("labels"))
    if "cmd" in given:
        import json

        spec["labels"][CMD_LABEL] = json.dumps(check.texts("cmd", given["cmd"]))
    scripts = check.mapping("scripts", get("scripts"))
    spec["scripts"] = [{"name": each, "body": body} for each, body in scripts.items()]
    if "pull_policy" in given:
        spec["pull"] = check.member(given["pull_policy"], PullPolicy).value
    _registry(request, given)
    _mounts(request, get("volumes"))
    spec["patches"] = _patches(get("patches")) + spec.get("patches", [])
    if "workspace" in given:
        spec["workspace"] = check.path("workspace", given["workspace"])
    if "spawn" in given:
        spec["spawn"] = dict(given["spawn"])
    _unsupported(options)
    _network.apply(request, given)
    return request


# Settings that msb has not, with the members that ask for what msb does anyway.
_HINTS: dict[str, tuple[type[Any], tuple[Any, ...]]] = {
    "log_level": (LogLevel, ()),
    "cpu_placement": (CpuPlacement, (CpuPlacement.INHERIT,)),
    "deployment_profile": (DeploymentProfile, (DeploymentProfile.SINGLE_TENANT,)),
    "placement_profile": (object, ()),
    "thp": (object, ()),
}


def _unsupported(options: Mapping[str, Any]) -> None:
    given = {key: value for key, value in options.items() if value is not None}
    if "vsock" in given:
        vsock(given["vsock"])
    if "proxy" in given:
        check.member(given["proxy"], OutboundProxy)
        raise unsupported("proxy", "run without an outbound proxy")
    for key, (kind, fulfilled) in _HINTS.items():
        if key in given and check.member(given[key], kind) not in fulfilled:
            raise unsupported(key, "leave it out")


def vsock(value: Any) -> None:
    """Checks vsock routes, and refuses them: msb has none yet."""
    if isinstance(value, Mapping):
        for socket, port in value.items():
            check.text("vsock", socket)
            check.integer("vsock", port)
    else:
        for route in value:
            check.member(route, VsockRoute)
    if value:
        raise unsupported("vsock", "mount the socket's directory with Volume.bind")


def _image(spec: dict[str, Any], image: Any) -> None:
    if isinstance(image, str):
        if not image:
            raise ValueError("image= is required; it is empty")
        spec["image"] = image
        return
    if isinstance(image, os.PathLike):
        spec["image"] = os.path.abspath(os.fsdecode(image))
        return
    source = check.member(image, ImageSource)
    if source._type is ImageSourceKind.DISK:
        raise unsupported("Image.disk", "use a directory with Image.bind, or an OCI image")
    if source._type is ImageSourceKind.BIND:
        spec["image"] = os.path.abspath(source._path or "")
        return
    spec["image"] = source._reference
    disk = source._root_disk
    size = source._upper_size_mib
    if isinstance(disk, RootDiskConfig):
        if disk.kind is RootDiskKind.TMPFS:
            spec["ephemeral"] = True
        elif disk.kind is not RootDiskKind.MANAGED:
            raise unsupported(f"RootDisk.{disk.kind.name.lower()}", "use RootDisk.managed")
        size = disk.size_mib
    elif disk is not None:
        size = disk
    if size is not None:
        spec["disk"] = f"{check.integer('root_disk', size, 1)}M"


def _init(init: Any) -> dict[str, Any]:
    if isinstance(init, str):
        return {"program": init}
    if isinstance(init, InitConfig):
        args, env = list(init.args), dict(init.env)
        return {"program": init.cmd, "args": args, "env": env}
    if isinstance(init, Mapping):
        for key in init:
            if key not in ("cmd", "args", "env"):
                raise TypeError(f"unexpected init option: {key}")
        if "cmd" not in init:
            raise TypeError("init needs cmd")
        return {
            "program": check.text("cmd", init["cmd"]),
            "args": check.texts("args", init.get("args", [])),
            "env": check.mapping("env", init.get("env")),
        }
    raise TypeError(f"init must be str, InitConfig or a mapping, not {type(init).__name__}")


def _registry(request: CreateRequest, given: Mapping[str, Any]) -> None:
    registry: dict[str, Any] = {}
    if "registry_auth" in given:
        auth = check.member(given["registry_auth"], RegistryAuth)
        registry["login"] = {"user": auth.username, "password": auth.password}
    if given.get("registry_insecure"):
        registry["insecure"] = True
    for cert in given.get("registry_ca_certs") or ():
        if isinstance(cert, (bytes, bytearray)):
            request.ca_certs.append(bytes(cert))
        else:
            with open(check.path("registry_ca_certs", cert), "rb") as file:
                request.ca_certs.append(file.read())
    if registry or request.ca_certs:
        request.registry = registry


def _mounts(request: CreateRequest, volumes: Any) -> None:
    mounts, tmpfs, patches = mount_lists(volumes, request.volumes)
    request.spec["mounts"] = mounts
    request.spec["tmpfs"] = tmpfs
    request.spec["patches"] = patches


def mount_lists(
    volumes: Any, needed: list[tuple[str, bool, dict[str, Any]]]
) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Mounts, tmpfs and directories as msb reads them; volumes to be created go to `needed`."""
    mounts: list[str] = []
    tmpfs: list[str] = []
    patches: list[dict[str, Any]] = []
    if volumes is None:
        return mounts, tmpfs, patches
    if not isinstance(volumes, Mapping):
        raise TypeError(f"volumes must be a mapping, not {type(volumes).__name__}")
    for guest, config in volumes.items():
        check.text("volumes", guest)
        mount = check.member(config, MountConfig)
        owners = (mount.override_uid, mount.override_gid)
        if (mount.stat_virtualization, mount.host_permissions, *owners) != (None,) * 4:
            raise unsupported("mount policy", "files of a mount keep their owners and modes")
        # Every mount of msb is nosuid and nodev: these two are fulfilled without an option.
        words = [
            word for word, is_set in (("ro", mount.readonly), ("noexec", mount.noexec)) if is_set
        ]
        suffix = f":{','.join(words)}" if words else ""
        if mount.kind is MountKind.BIND:
            mounts.append(f"{os.path.abspath(mount.bind or '')}:{guest}{suffix}")
        elif mount.kind is MountKind.NAMED:
            name = mount.named or ""
            size = mount.size_mib if mount.size_mib is not None else mount.quota_mib
            if mount.named_mode is not NamedVolumeMode.EXISTING:
                settings: dict[str, Any] = {}
                if mount.named_kind is not None:
                    settings["kind"] = mount.named_kind.value
                if size is not None:
                    settings["size"] = f"{size}M"
                needed.append((name, mount.named_mode is NamedVolumeMode.CREATE, settings))
            mounts.append(f"{name}:{guest}{suffix}")
        elif mount.kind is MountKind.TMPFS:
            if mount.size_mib is not None:
                words.insert(0, f"{mount.size_mib}M")
            tmpfs.append(f"{guest}:{','.join(words)}" if words else guest)
        elif mount.kind is MountKind.OWNED:
            if mount.owned_kind is VolumeKind.DISK or mount.quota_mib or mount.readonly:
                raise unsupported("owned disk", "use Volume.named with size_mib")
            if mount.noexec or mount.nosuid or mount.nodev:
                raise unsupported("owned mount options", "use Volume.named or Volume.tmpfs")
            # The writable layer lives and ends with the sandbox, as such a directory does.
            patches.append({"mkdir": {"path": guest}})
        else:
            raise unsupported("Volume.disk", "use Volume.named(kind=VolumeKind.DISK)")
    return mounts, tmpfs, patches


def _patches(patches: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for each in patches or ():
        patch = check.member(each, PatchConfig)
        path = patch.path or patch.dst or patch.link or ""
        may_exist = (PatchKind.MKDIR, PatchKind.APPEND, PatchKind.REMOVE, PatchKind.COPY_DIR)
        if patch.kind not in may_exist and not patch.replace:
            made.append({"absent": {"path": path}})
        mode = patch.mode
        if patch.kind is PatchKind.TEXT:
            made.append({"text": {"path": path, "content": patch.content, "mode": mode}})
            continue
        if patch.kind is PatchKind.FILE:
            content = check.member(patch.content, bytes)
            made.append({"bytes": {"path": path, "content": list(content)}})
        elif patch.kind is PatchKind.MKDIR:
            made.append({"mkdir": {"path": path}})
        elif patch.kind is PatchKind.APPEND:
            made.append({"append": {"path": path, "content": patch.content}})
        elif patch.kind is PatchKind.REMOVE:
            made.append({"remove": {"path": path}})
        elif patch.kind is PatchKind.SYMLINK:
            if patch.replace:
                made.append({"remove": {"path": path}})
            made.append({"symlink": {"path": path, "target": patch.target}})
        else:
            made.append({"copy": {"from": os.path.abspath(patch.src or ""), "to": path}})
        if mode is not None:
            made.append({"mode": {"path": path, "mode": mode}})
    return made


def restore_changes(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Checks the options of `restore`: what msb restores with, what is modified then, volumes."""
    for key in options:
        if key not in RestoreOptions.__annotations__:
            raise TypeError(f"unexpected restore option: {key}")
    given = {key: value for key, value in options.items() if value is not None}
    for key in FALSE_BY_DEFAULT & given.keys():
        check.flag(key, given[key])
    policy = given.pop("external_mount_policy", "strict")
    if policy not in ("strict", "relaxed"):
        raise ValueError("external_mount_policy must be 'strict' or 'relaxed'")
    changes: dict[str, Any] = {}
    modify: dict[str, Any] = {}
    if "cpus" in given:
        modify["cpus"] = check.integer("cpus", given["cpus"], 1)
    if "memory" in given:
        modify["memory"] = f"{check.integer('memory', given['memory'], 1)}M"
    for key in ("max_duration", "idle_timeout"):
        if key in given:
            modify[key] = check.span(check.seconds(key, given[key]))
    if "user" in given:
        changes["user"] = check.text("user", given["user"])
    needed: list[Any] = []
    if "volumes" in given:
        mounts, tmpfs, owned = mount_lists(given["volumes"], needed)
        if owned:
            raise unsupported("restore(volumes=Volume.owned())", "make the directory with fs.mkdir")
        changes["mounts"], changes["tmpfs"] = mounts, tmpfs
    if "ports" in given:
        changes["ports"] = _network.published(given["ports"])
    if policy == "relaxed" or given.get("allow_missing_resources"):
        changes["lenient"] = True
    if "vsock" in given:
        vsock(given["vsock"])
    if "security" in given:
        check.member(given["security"], SecurityProfile)
    if "log_level" in given:
        check.member(given["log_level"], LogLevel)
        raise unsupported("log_level", "leave it out")
    if "network_policy" in given:
        check.member(given["network_policy"], NetworkPolicy)
    for key in ("cow_memory", "forked"):
        if given.get(key):
            raise unsupported(f"restore({key}=True)", "snapshots of msb hold files, not memory")
    for key in (
        "network_policy",
        "max_connections",
        "max_tcp_connections",
        "max_udp_connections",
        "disable_network",
        "security",
        "snapshot_base",
        "captured_volumes",
        "tcp_accept_queue_size",
        "max_inbound_tcp_connections",
    ):
        if given.get(key):
            raise unsupported(f"restore({key}=…)", "a restored sandbox has the source's setting")
    return changes, modify, needed
