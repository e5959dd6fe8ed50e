// Sizes, and the lists of values that settings take.

/** An amount of memory or disk space, in MiB. */
export type Mebibytes = number;

/** KiB as a fraction of a MiB. */
export const KiB = (n: number): Mebibytes => n / 1024;
/** MiB, the unit of all sizes. */
export const MiB = (n: number): Mebibytes => n;
/** GiB in MiB. */
export const GiB = (n: number): Mebibytes => n * 1024;
/** TiB in MiB. */
export const TiB = (n: number): Mebibytes => n * 1024 * 1024;

/** Levels of the log of a sandbox. */
export const LogLevels = ["trace", "debug", "info", "warn", "error"] as const;
/** When an image is fetched. */
export const PullPolicies = ["always", "if-missing", "never"] as const;
/** The states of a sandbox. */
export const SandboxStatuses = [
  "created",
  "starting",
  "running",
  "draining",
  "paused",
  "stopped",
  "crashed",
] as const;
/** Formats of a disk image. */
export const DiskImageFormats = ["qcow2", "raw", "vmdk"] as const;
/** What a root filesystem comes from. */
export const RootfsSourceKinds = ["bind", "oci", "disk"] as const;
/** What a mount shows. */
export const VolumeMountKinds = ["bind", "named", "tmpfs", "disk"] as const;
/** How owners and modes of a mounted directory are shown. */
export const StatVirtualizations = ["strict", "relaxed", "off"] as const;
/** What becomes of modes that are set inside a mounted directory. */
export const HostPermissionsList = ["private", "mirror"] as const;
/** Kinds of changes to the root filesystem. */
export const PatchKinds = [
  "text",
  "file",
  "copyFile",
  "copyDir",
  "symlink",
  "mkdir",
  "remove",
  "append",
] as const;
/** How a registry is logged in to. */
export const RegistryAuthKinds = ["anonymous", "basic"] as const;
/** What happens when a placeholder leaves to a host that is not listed. */
export const ViolationActions = ["block", "block-and-log", "block-and-terminate"] as const;
/** Groups of addresses that rules name. */
export const DestinationGroups = [
  "public",
  "private",
  "loopback",
  "link-local",
  "metadata",
  "multicast",
  "host",
] as const;
/** Resources that setrlimit(2) limits. */
export const RlimitResources = [
  "cpu",
  "fsize",
  "data",
  "stack",
  "core",
  "rss",
  "nproc",
  "nofile",
  "memlock",
  "as",
  "locks",
  "sigpending",
  "msgqueue",
  "nice",
  "rtprio",
  "rttime",
] as const;

export type LogLevel = (typeof LogLevels)[number];
export type PullPolicy = (typeof PullPolicies)[number];
export type SandboxStatus = (typeof SandboxStatuses)[number];
export type DiskImageFormat = (typeof DiskImageFormats)[number];
export type RootfsSourceKind = (typeof RootfsSourceKinds)[number];
export type VolumeMountKind = (typeof VolumeMountKinds)[number];
export type StatVirtualization = (typeof StatVirtualizations)[number];
export type HostPermissions = (typeof HostPermissionsList)[number];
export type PatchKind = (typeof PatchKinds)[number];
export type RegistryAuthKind = (typeof RegistryAuthKinds)[number];
export type ViolationAction = (typeof ViolationActions)[number];
export type DestinationGroup = (typeof DestinationGroups)[number];
export type RlimitResource = (typeof RlimitResources)[number];

export type CpuPlacement = "inherit" | "auto" | "spread" | "compact";
export type TransparentHugePages = "always" | "madvise" | "never";
export type SecurityProfile = "default" | "restricted";
export type DeploymentProfile = "single-tenant" | "multi-tenant";
export type NetworkProfile = "public" | "private" | "host";
export type GuestFlush = "auto" | "required" | "skip";

/** A limit of setrlimit(2). */
export interface Rlimit {
  resource: RlimitResource;
  soft: number;
  hard: number;
}
