// Error classes, and the conversion of a failure of msb to its class.

import type { Error as WireError, Kind, Stage } from "./generated";

/** The stable code of an error class. */
export type MicrosandboxErrorCode =
  | "io"
  | "http"
  | "cloudHttp"
  | "libkrunfwNotFound"
  | "database"
  | "invalidConfig"
  | "noDefaultCommand"
  | "sandboxNotFound"
  | "sandboxAlreadyExists"
  | "sandboxReplaced"
  | "sandboxStillRunning"
  | "sandboxNotRunning"
  | "runtime"
  | "json"
  | "protocol"
  | "nix"
  | "execTimeout"
  | "terminal"
  | "sandboxFsOps"
  | "imageNotFound"
  | "imageInUse"
  | "volumeNotFound"
  | "volumeAlreadyExists"
  | "image"
  | "patchFailed"
  | "metricsDisabled"
  | "metricsUnavailable"
  | "unsupportedOperation"
  | "unsupported"
  | "custom"
  | "runtimeNotInstalled"
  | "runtimeIncomplete"
  | "sandboxStopTimedOut"
  | "stopTimeout"
  | "snapshotSourceRecovery"
  | "execFailed"
  | "bootStart"
  | "pathNotFound";

/** The base of all errors of this package. */
export class MicrosandboxError extends Error {
  /** The stable code of the class. */
  readonly code: MicrosandboxErrorCode;
  /** The kind of failure as msb reports it, if it came from there. */
  kind?: Kind;
  /** The stage at which a start failed. */
  stage?: Stage;
  /** The reasons below the message, outermost first. */
  causes?: string[];
  /** What to do about it. */
  hint?: string;

  constructor(message: string, options?: ErrorOptions, code: MicrosandboxErrorCode = "custom") {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** The host refused to read or write a file or pipe. */
export class IoError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "io");
  }
}

/** An HTTP request to a registry failed. */
export class HttpError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "http");
  }
}

/** A remote service answered with an error. */
export class CloudHttpError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "cloudHttp");
  }
}

/** A library of the peer is missing; msb never raises it. */
export class LibkrunfwNotFoundError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "libkrunfwNotFound");
  }
}

/** A database of the peer failed; msb never raises it. */
export class DatabaseError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "database");
  }
}

/** An argument or a setting is not valid. */
export class InvalidConfigError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "invalidConfig");
  }
}

/** The image names no command, and none was given. */
export class NoDefaultCommandError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "noDefaultCommand");
  }
}

/** No sandbox has this name. */
export class SandboxNotFoundError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "sandboxNotFound");
  }
}

/** A sandbox of this name exists already. */
export class SandboxAlreadyExistsError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "sandboxAlreadyExists");
  }
}

/** Another sandbox has taken the name of this handle. */
export class SandboxReplacedError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "sandboxReplaced");
  }
}

/** The call needs a stopped sandbox, but it runs. */
export class SandboxStillRunningError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "sandboxStillRunning");
  }
}

/** The call needs a running sandbox, but it is stopped. */
export class SandboxNotRunningError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "sandboxNotRunning");
  }
}

/** The host or the sandbox could not do what was asked. */
export class RuntimeError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "runtime");
  }
}

/** A text is not valid JSON. */
export class JsonError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "json");
  }
}

/** The connection to `msb api` failed. */
export class ProtocolError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "protocol");
  }
}

/** A system call of the host failed. */
export class NixError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "nix");
  }
}

/** A command ran longer than its timeout and was killed. */
export class ExecTimeoutError extends MicrosandboxError {
  /** The timeout in milliseconds, if it is known. */
  readonly timeoutMs: number | null;

  constructor(message: string, options?: ErrorOptions & { timeoutMs?: number }) {
    super(message, options, "execTimeout");
    this.timeoutMs = options?.timeoutMs ?? null;
  }
}

/** The terminal of this program cannot be used. */
export class TerminalError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "terminal");
  }
}

/** A file operation inside a sandbox or volume failed. */
export class SandboxFsOpsError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "sandboxFsOps");
  }
}

/** The image is neither stored here nor at its registry. */
export class ImageNotFoundError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "imageNotFound");
  }
}

/** A sandbox uses the image. */
export class ImageInUseError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "imageInUse");
  }
}

/** No volume has this name. */
export class VolumeNotFoundError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "volumeNotFound");
  }
}

/** A volume of this name exists already. */
export class VolumeAlreadyExistsError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "volumeAlreadyExists");
  }
}

/** An image could not be fetched, read or stored. */
export class ImageError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "image");
  }
}

/** A change of the root filesystem could not be made. */
export class PatchFailedError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "patchFailed");
  }
}

/** The sandbox was created without metrics. */
export class MetricsDisabledError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "metricsDisabled");
  }
}

/** The host counts no usage for this sandbox. */
export class MetricsUnavailableError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "metricsUnavailable");
  }
}

/** The operation does not exist in this version of msb. */
export class UnsupportedOperationError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "unsupportedOperation");
  }
}

/** This host or this version of msb cannot do it. */
export class UnsupportedError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "unsupported");
  }
}

/** A failure without a class of its own. */
export class CustomError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "custom");
  }
}

/** The `msb` executable was not found. */
export class RuntimeNotInstalledError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "runtimeNotInstalled");
  }
}

/** The `msb` executable cannot be started. */
export class RuntimeIncompleteError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "runtimeIncomplete");
  }
}

/** A sandbox did not stop in time. */
export class SandboxStopTimedOutError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "sandboxStopTimedOut");
  }
}

/** A sandbox did not stop within the given time; it was not killed. */
export class StopTimeoutError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "stopTimeout");
  }
}

/** What is left of a snapshot whose source could not be resumed. */
export interface SnapshotRecovery {
  sourceSandbox: string;
  checkpointId: string;
  checkpointRoot: string;
  checkpointPath: string;
  artifact: Record<string, unknown> | null;
  detail: string;
  publicationError: string | null;
}

/** The source of a snapshot could not be resumed. */
export class SnapshotSourceRecoveryError extends MicrosandboxError {
  /** What is left, so that it can be recovered. */
  readonly recovery: SnapshotRecovery | null;

  constructor(message: string, options?: ErrorOptions & { recovery?: SnapshotRecovery }) {
    super(message, options, "snapshotSourceRecovery");
    this.recovery = options?.recovery ?? null;
  }
}

/** A path inside a sandbox or volume does not exist. */
export class PathNotFoundError extends SandboxFsOpsError {}

/** A command could not be started. */
export class ExecFailedError extends MicrosandboxError {
  /** The error number of execve(2), or null. */
  readonly errno: number | null;
  /** The name of the error number, such as `ENOENT`, or null. */
  readonly errnoName: string | null;

  constructor(message: string, options?: ErrorOptions & { errno?: number; errnoName?: string }) {
    super(message, options, "execFailed");
    this.errno = options?.errno ?? null;
    this.errnoName = options?.errnoName ?? null;
    this.stage = "exec";
  }
}

/** A sandbox could not be started. */
export class BootStartError extends MicrosandboxError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options, "bootStart");
  }
}

/** A failure of a job. It is not a {@link MicrosandboxError}. */
export class JobError extends Error {
  /** What failed, such as `not-found`. */
  readonly code: string;
  /** The job, if it is known. */
  readonly jobId?: string;

  constructor(code: string, message: string, jobId?: string) {
    super(message);
    this.name = "JobError";
    this.code = code;
    if (jobId !== undefined) this.jobId = jobId;
  }
}

/** The error of a call that this version of msb cannot perform. */
export function unsupported(what: string, hint?: string): UnsupportedError {
  const error = new UnsupportedError(`${what} is not supported by msb`);
  error.kind = "unsupported";
  if (hint !== undefined) error.hint = hint;
  return error;
}

type ErrorClass = new (message: string, options?: ErrorOptions) => MicrosandboxError;

/** Converts the payload of an ERROR frame to the class that programs expect. */
export function fromWire(failure: WireError, op: string): MicrosandboxError {
  const text = [failure.message, ...failure.causes].join(": ");
  const error = create(failure, op, text);
  error.kind = failure.kind;
  error.causes = failure.causes;
  if (failure.stage) error.stage = failure.stage;
  if (failure.hint) error.hint = failure.hint;
  return error;
}

function create(failure: WireError, op: string, text: string): MicrosandboxError {
  if (failure.kind === "command_not_found") {
    return new ExecFailedError(text, { errno: 2, errnoName: "ENOENT" });
  }
  if (failure.kind === "not_executable") {
    return new ExecFailedError(text, { errno: 13, errnoName: "EACCES" });
  }
  return new (classOf(failure, op, text))(text);
}

const STARTS = new Set(["sandbox_create", "sandbox_start", "run_stream", "exec_run"]);

function classOf(failure: WireError, op: string, text: string): ErrorClass {
  const noun = op.split("_")[0];
  switch (failure.kind) {
    case "invalid":
      return noun === "file" ? SandboxFsOpsError : InvalidConfigError;
    case "not_found":
      if (/\bno sandbox `/.test(text)) return SandboxNotFoundError;
      if (/\bno volume `/.test(text)) return VolumeNotFoundError;
      if (noun === "file") return PathNotFoundError;
      if (failure.stage === "image" || noun === "image") return ImageNotFoundError;
      if (/\bimage\b|\broot filesystem\b/.test(text)) return ImageNotFoundError;
      if (noun === "volume") return VolumeNotFoundError;
      if (noun === "sandbox") return SandboxNotFoundError;
      return CustomError;
    case "exists":
      if (noun === "file") return SandboxFsOpsError;
      if (/\bvolume `/.test(text)) return VolumeAlreadyExistsError;
      if (/\bsandbox `|\bchild `/.test(text)) return SandboxAlreadyExistsError;
      return CustomError;
    case "state":
      if (/\bnot running\b|\bhas ended\b|\bis stopped\b/.test(text)) return SandboxNotRunningError;
      if (/\bis running\b|\bstill running\b/.test(text)) return SandboxStillRunningError;
      if (noun === "image") return ImageInUseError;
      if (noun === "file") return SandboxFsOpsError;
      return RuntimeError;
    case "unsupported":
      return /\bno operation `/.test(text) ? UnsupportedOperationError : UnsupportedError;
    case "timeout":
      return noun === "exec" ? ExecTimeoutError : RuntimeError;
    case "protocol":
      return ProtocolError;
    case "host":
      if (noun === "file") return SandboxFsOpsError;
      if (failure.stage === "image" || noun === "image") return ImageError;
      if (/\bpatch\b/.test(text)) return PatchFailedError;
      if (STARTS.has(op) && failure.stage) return BootStartError;
      return IoError;
    case "denied":
    case "limit":
      return noun === "file" ? SandboxFsOpsError : RuntimeError;
    default:
      return CustomError;
  }
}
