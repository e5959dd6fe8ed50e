// The public names of the package.

import "./dispose";

export * from "./backend";
export { InitOptionsBuilder, SandboxBuilder } from "./builder";
export * from "./errors";
export {
  AttachOptionsBuilder,
  type ExecEvent,
  ExecHandle,
  ExecOptionsBuilder,
  ExecOutput,
  ExecSink,
  type ExitStatus,
  Stdin,
  type StdinMode,
} from "./exec";
export {
  type FsEntry,
  type FsEntryKind,
  type FsMetadata,
  FsReadStream,
  FsWriteSink,
  SandboxFsOps,
  VolumeFs,
  VolumeFsReadStream,
  VolumeFsWriteSink,
} from "./fs";
export type * as wire from "./generated";
export {
  Image,
  ImageBuilder,
  type ImageConfigDetail,
  type ImageDetail,
  ImageHandle,
  type ImageLayerDetail,
  type ImagePruneReport,
  type RegistryAuth,
  RegistryConfigBuilder,
  RootDiskBuilder,
  type RootfsSource,
  intoRootfsSource,
} from "./images";
export {
  Job,
  JobAttachOptionsBuilder,
  JobAttachment,
  type JobEvent,
  type JobExit,
  type JobInfo,
  JobListBuilder,
  type JobLogEntry,
  type JobLogOptions,
  JobLogStream,
  type JobPage,
  type JobState,
} from "./jobs";
export {
  type LogEntry,
  type LogReadOptions,
  type LogReadSource,
  type LogSource,
  LogStream,
  type LogStreamOptions,
} from "./logs";
export { MetricsStream, type SandboxMetrics, allSandboxMetrics } from "./metrics";
export type {
  ChangeKind,
  ConfigPlannedChange,
  ModificationConflict,
  ModificationDisposition,
  ModificationPolicy,
  ModificationWarning,
  ModifyOptions,
  PlannedChange,
  ResourceConvergenceState,
  ResourceKind,
  ResourceResizeStatus,
  SandboxModificationPlan,
  SecretChangeKind,
  SecretModifySpec,
  SecretPlannedChange,
} from "./modify";
export { MountBuilder, type MountConfig, type NamedVolumeMode, type VolumeKind } from "./mounts";
export {
  DnsBuilder,
  HttpBuilder,
  InterfaceOverridesBuilder,
  NetworkBuilder,
  type NetworkConfig,
  NetworkRateLimiterBuilder,
  OutboundProxyBuilder,
  RateLimiterBuilder,
  Socks4ProxyBuilder,
  Socks5ProxyBuilder,
  TlsBuilder,
} from "./network";
export { type Patch, PatchBuilder, type PatchFileOptions } from "./patches";
export {
  type Action,
  Destination,
  type Direction,
  NetworkPolicy,
  NetworkPolicyBuilder,
  PortRange,
  type Protocol,
  Rule,
  RuleBuilder,
  RuleDestinationBuilder,
} from "./policy";
export {
  type CreationProgress,
  CreationProgressCreate,
  type PullProgress,
  PullProgressCreate,
  PullProgressStream,
} from "./progress";
export * from "./quantities";
export { RestoreBuilder } from "./restore";
export {
  type ResolvedRuntime,
  type RuntimeConfig,
  type RuntimeOrigin,
  Setup,
  configureRuntime,
  ensureRuntime,
  install,
  installRuntime,
  isInstalled,
  isRuntimeInstalled,
  resolveRuntime,
  resolveRuntimeVersion,
  setRuntimeLibkrunfwPath,
  setup,
} from "./runtime";
export {
  type BranchOutcome,
  type DestroyOptions,
  type DiskCompactionOptions,
  type DiskCompactionResult,
  type ExecCallOptions,
  type ExternalMountWarning,
  type ForkOptions,
  type ForkOutcome,
  type RestartOptions,
  Sandbox,
  type SandboxConfig,
  SandboxHandle,
  SandboxListBuilder,
  type SandboxPage,
  type SandboxPingResult,
  type SandboxStopResult,
  type SandboxTouchResult,
} from "./sandbox";
export { SecretBuilder, type SecretEntry, SecretSource, ViolationActionBuilder } from "./secrets";
export { closeSession } from "./session";
export {
  type HeadUpdate,
  type LoadOpts,
  type SaveOpts,
  Snapshot,
  type SnapshotArchive,
  SnapshotBuilder,
  SnapshotHandle,
  type SnapshotScope,
  type SnapshotState,
  type SnapshotVerifyReport,
} from "./snapshots";
export {
  SandboxSshOps,
  SftpClient,
  type SshAttachOptions,
  SshClient,
  type SshClientOptions,
  type SshExecOptions,
  type SshOutput,
  SshServer,
  type SshServerOptions,
} from "./ssh";
export { Volume, VolumeBuilder, VolumeHandle } from "./volumes";
export { SandboxChildren, SandboxNetwork, Workspace } from "./workspace";
