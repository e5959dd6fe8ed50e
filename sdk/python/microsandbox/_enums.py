"""Enumerations of the SDK."""

from __future__ import annotations

from enum import Enum


class _Text(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class PullPolicy(_Text):
    """When an image is fetched from its registry."""

    ALWAYS = "always"
    IF_MISSING = "if-missing"
    NEVER = "never"


class CpuPlacement(_Text):
    """How vCPUs are placed on the CPUs of the host."""

    INHERIT = "inherit"
    AUTO = "auto"
    SPREAD = "spread"
    COMPACT = "compact"


class LogLevel(_Text):
    """How much msb itself logs."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class SecurityProfile(_Text):
    """How much a sandbox may do."""

    DEFAULT = "default"
    RESTRICTED = "restricted"


class DeploymentProfile(_Text):
    """Who shares the host."""

    SINGLE_TENANT = "single-tenant"
    MULTI_TENANT = "multi-tenant"


class SandboxStatus(_Text):
    """Where a sandbox is in its life."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    CRASHED = "crashed"
    DRAINING = "draining"
    PAUSED = "paused"


class BackendKind(_Text):
    """Where sandboxes run."""

    LOCAL = "local"
    CLOUD = "cloud"


class ModificationPolicy(_Text):
    """What a change of a running sandbox may do to it."""

    NO_RESTART = "no_restart"
    NEXT_START = "next_start"
    RESTART = "restart"


class PlannedChangeKind(_Text):
    """What a planned change is about."""

    CONFIG = "config"
    SECRET = "secret"


class ChangeKind(_Text):
    """What happens to a setting."""

    ADDED = "added"
    UPDATED = "updated"
    REMOVED = "removed"


class SecretChangeKind(_Text):
    """What happens to a secret."""

    ADDED = "added"
    ROTATED = "rotated"
    REMOVED = "removed"
    RENAMED = "renamed"
    HOSTS_UPDATED = "hosts updated"
    PLACEHOLDER_UPDATED = "placeholder updated"


class ModificationDisposition(_Text):
    """When a change takes effect."""

    LIVE = "live"
    NEXT_START = "next start"
    REQUIRES_RESTART = "requires restart"
    UNSUPPORTED = "unsupported"


class ResourceKind(_Text):
    """A resource that can be resized."""

    CPUS = "cpus"
    MEMORY = "memory"


class ResourceConvergenceState(_Text):
    """How far a resize has come."""

    ACCEPTED = "accepted"
    CONVERGING = "converging"
    APPLIED = "applied"
    GUEST_REFUSED = "guest-refused"
    FAILED = "failed"


class StdinMode(_Text):
    """Where standard input comes from."""

    NULL = "null"
    PIPE = "pipe"
    BYTES = "bytes"


class ExecEventType(_Text):
    """What an event of a command tells."""

    STARTED = "started"
    STDOUT = "stdout"
    STDERR = "stderr"
    EXITED = "exited"
    FAILED = "failed"
    STDIN_ERROR = "stdin_error"


class PullEventType(_Text):
    """What an event of a pull tells."""

    STARTUP = "startup"
    RESOLVING = "resolving"
    RESOLVED = "resolved"
    LAYER_DOWNLOAD_PROGRESS = "layer_download_progress"
    LAYER_DOWNLOAD_COMPLETE = "layer_download_complete"
    LAYER_DOWNLOAD_VERIFYING = "layer_download_verifying"
    LAYER_MATERIALIZE_STARTED = "layer_materialize_started"
    LAYER_MATERIALIZE_PROGRESS = "layer_materialize_progress"
    LAYER_MATERIALIZE_WRITING = "layer_materialize_writing"
    LAYER_MATERIALIZE_COMPLETE = "layer_materialize_complete"
    STITCH_MERGING_TREES = "stitch_merging_trees"
    STITCH_WRITING_FSMETA = "stitch_writing_fsmeta"
    STITCH_WRITING_VMDK = "stitch_writing_vmdk"
    STITCH_COMPLETE = "stitch_complete"
    COMPLETE = "complete"


class Action(_Text):
    """What a network rule does."""

    ALLOW = "allow"
    DENY = "deny"


class Direction(_Text):
    """Which way a connection is opened."""

    EGRESS = "egress"
    INGRESS = "ingress"
    ANY = "any"


class Protocol(_Text):
    """A protocol of a network rule."""

    TCP = "tcp"
    UDP = "udp"
    ICMPV4 = "icmpv4"
    ICMPV6 = "icmpv6"


class PortProtocol(_Text):
    """A protocol of a published port."""

    TCP = "tcp"
    UDP = "udp"


class VsockSocketType(_Text):
    """A kind of vsock socket."""

    STREAM = "stream"
    DGRAM = "dgram"


class DestGroup(_Text):
    """A group of addresses."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    METADATA = "metadata"
    MULTICAST = "multicast"
    HOST = "host"


class NetworkProfile(_Text):
    """A preset of reachable networks."""

    PUBLIC = "public"
    PRIVATE = "private"
    HOST = "host"


class ViolationAction(_Text):
    """What happens when a secret is about to leave."""

    BLOCK = "block"
    BLOCK_AND_LOG = "block-and-log"
    BLOCK_AND_TERMINATE = "block-and-terminate"


class MountKind(_Text):
    """What is mounted."""

    BIND = "bind"
    NAMED = "named"
    OWNED = "owned"
    TMPFS = "tmpfs"
    DISK = "disk"


class StatVirtualization(_Text):
    """How owners and modes of mounted files are shown."""

    STRICT = "strict"
    RELAXED = "relaxed"
    OFF = "off"


class HostPermissions(_Text):
    """Which permissions new files have on the host."""

    PRIVATE = "private"
    MIRROR = "mirror"


class FsEntryKind(_Text):
    """The type of a file."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class DiskImageFormat(_Text):
    """The format of a disk image."""

    QCOW2 = "qcow2"
    RAW = "raw"
    VMDK = "vmdk"


class VolumeKind(_Text):
    """How a volume is stored."""

    DIRECTORY = "dir"
    DISK = "disk"


class NamedVolumeMode(_Text):
    """Whether a mounted volume has to exist."""

    EXISTING = "existing"
    CREATE = "create"
    ENSURE_EXISTS = "ensure-exists"


class ImageArchiveFormat(_Text):
    """The format of an image archive."""

    DOCKER = "docker"
    OCI = "oci"


class RootDiskKind(_Text):
    """How the root file system is stored."""

    MANAGED = "managed"
    TMPFS = "tmpfs"
    DISK_IMAGE = "disk-image"
    FLAT = "flat"


class FlatClone(_Text):
    """How a flat root disk is copied."""

    AUTO = "auto"
    COPY = "copy"
    REFLINK = "reflink"


class ImageSourceKind(_Text):
    """What an image is read from."""

    OCI = "oci"
    BIND = "bind"
    DISK = "disk"


class PatchKind(_Text):
    """What a patch does."""

    TEXT = "text"
    FILE = "file"
    MKDIR = "mkdir"
    APPEND = "append"
    COPY_FILE = "copy_file"
    COPY_DIR = "copy_dir"
    SYMLINK = "symlink"
    REMOVE = "remove"


class NetworkDestinationKind(_Text):
    """What a destination is named by."""

    ANY = "any"
    IP = "ip"
    CIDR = "cidr"
    DOMAIN = "domain"
    DOMAIN_SUFFIX = "domain_suffix"
    GROUP = "group"


class SnapshotStateKind(_Text):
    """What a snapshot holds."""

    FILE = "file"
    CHECKPOINT = "checkpoint"


class SnapshotFormat(_Text):
    """The format of a snapshot's disk."""

    RAW = "raw"
    QCOW2 = "qcow2"


class GuestFlush(_Text):
    """Whether the guest writes its caches before it is saved."""

    AUTO = "auto"
    REQUIRED = "required"
    SKIP = "skip"


class SnapshotScope(_Text):
    """Whether a snapshot has memory too."""

    DISK = "disk"
    FULL = "full"


class RlimitResource(_Text):
    """A resource with a limit."""

    CPU = "cpu"
    FSIZE = "fsize"
    DATA = "data"
    STACK = "stack"
    CORE = "core"
    RSS = "rss"
    NPROC = "nproc"
    NOFILE = "nofile"
    MEMLOCK = "memlock"
    AS = "as"
    LOCKS = "locks"
    SIGPENDING = "sigpending"
    MSGQUEUE = "msgqueue"
    NICE = "nice"
    RTPRIO = "rtprio"
    RTTIME = "rttime"


class LogSource(_Text):
    """The stream of a log entry."""

    STDOUT = "stdout"
    STDERR = "stderr"
    OUTPUT = "output"
    SYSTEM = "system"


class LogReadSource(_Text):
    """The streams that are read."""

    STDOUT = "stdout"
    STDERR = "stderr"
    OUTPUT = "output"
    SYSTEM = "system"
    ALL = "all"
