// Sandboxes: finding, running commands in, and ending them.

import "./dispose";
import { attach } from "./attach";
import { SandboxBuilder, camelCase } from "./builder";
import {
  CustomError,
  NoDefaultCommandError,
  SandboxNotRunningError,
  SandboxReplacedError,
  StopTimeoutError,
  unsupported,
} from "./errors";
import {
  AttachOptionsBuilder,
  type ExecHandle,
  ExecOptionsBuilder,
  type ExecOutput,
  Stdin,
  exitCode,
  run,
  start,
} from "./exec";
import { SandboxFsOps } from "./fs";
import type { Inspection, Stopped, Summary } from "./generated";
import { type Job, JobListBuilder, type JobPage, getJob, listJobs, startJob } from "./jobs";
import { CMD_LABEL, ENTRYPOINT_LABEL, METRICS_LABEL, visible } from "./labels";
import { type LogEntry, type LogReadOptions, LogStream, type LogStreamOptions, readLogs } from "./logs";
import { MetricsStream, type SandboxMetrics, measure } from "./metrics";
import { type ModifyOptions, type SandboxModificationPlan, modify } from "./modify";
import type { MountBuilder } from "./mounts";
import type { GuestFlush, SandboxStatus } from "./quantities";
import { RestoreBuilder } from "./restore";
import { hasKind, session } from "./session";
import { Snapshot, type SnapshotHandle } from "./snapshots";
import { SandboxSshOps } from "./ssh";
import { sleep } from "./text";
import { SandboxChildren, SandboxNetwork, Workspace } from "./workspace";

/** Time between SIGTERM and SIGKILL of `restart` and `destroy`, in milliseconds. */
const GRACE = 10_000;
/** A grace that never ends in practice: 30 days, in milliseconds. */
const NEVER = 2_592_000_000;
/** How often the status is read while one is waited for, in milliseconds. */
const POLL = 50;

/** The settings of a sandbox, as msb has planned them. Its members may change. */
export type SandboxConfig = Record<string, unknown>;

/** One page of a list of sandboxes. */
export interface SandboxPage {
  sandboxes: SandboxHandle[];
  nextCursor?: string;
}

/** How a sandbox ended. */
export interface SandboxStopResult {
  name: string;
  status: SandboxStatus;
  exitCode: number | null;
  signal: number | null;
  observedAt: Date;
  /** Why it ended, such as `stopped` or `max_duration`. */
  source: string | null;
}

export interface SandboxPingResult {
  name: string;
  latencyMs: number;
}

export interface SandboxTouchResult {
  name: string;
  activitySeq: number;
}

export interface RestartOptions {
  /** Kills it at once. Default false. */
  force?: boolean;
  /** Milliseconds between SIGTERM and SIGKILL. Default 10,000. */
  timeoutMs?: number;
  /** Whether it goes on when the program ends. Default false. */
  detached?: boolean;
}

export type DestroyOptions = Omit<RestartOptions, "detached">;

export interface ForkOptions {
  recordIntegrity?: boolean;
  guestFlush?: GuestFlush;
  volumes?: Record<string, (mount: MountBuilder) => MountBuilder>;
}

export type ForkOutcome = { name: string; sandbox: Sandbox } | { name: string; error: Error };
export type BranchOutcome = ForkOutcome;

export interface ExternalMountWarning {
  guestPath: string;
  reason: string;
  staleInodes: bigint[];
}

export interface DiskCompactionOptions {
  layers?: number;
  disk?: string;
  rootDiskOnly?: boolean;
  dryRun?: boolean;
}

export interface DiskCompactionResult {
  dryRun: boolean;
  inputLayers: number;
  selectedLayers: number;
  outputLayers: number;
  materializedBytes: number;
  totalUs: number;
  pauseUs: number;
  disks: Record<string, unknown>[];
}

/** Which sandboxes to list. */
export class SandboxListBuilder {
  /** @internal */
  most = Number.POSITIVE_INFINITY;
  /** @internal */
  after: string | undefined;
  /** @internal */
  readonly wanted: Record<string, string> = {};

  /** Sets the length of a page. */
  limit(count: number): this {
    this.most = count;
    return this;
  }

  /** Continues after the page before. */
  cursor(cursor: string): this {
    this.after = cursor;
    return this;
  }

  /** Only sandboxes with this label. */
  label(key: string, value: string): this {
    this.wanted[key] = value;
    return this;
  }

  labels(labels: Record<string, string>): this {
    Object.assign(this.wanted, labels);
    return this;
  }
}

/** What both a sandbox and a handle of one can do. */
abstract class SandboxControl {
  /** The name of the sandbox. */
  readonly name: string;
  /** An id that no later sandbox of the same name has. */
  readonly id: string;
  /** Where the sandbox runs: on this machine. */
  readonly backendKind: "local" | "cloud" = "local";
  protected readonly created: number;

  /** @internal */
  constructor(summary: Summary) {
    this.name = summary.name;
    this.created = summary.created;
    this.id = `${summary.name}-${summary.created.toString(36)}`;
  }

  /** Fails if another sandbox has taken the name. */
  protected async identify(): Promise<Summary> {
    const summary = await session().call("sandbox_summary", { name: this.name });
    if (summary.created !== this.created) {
      throw new SandboxReplacedError(`another sandbox has the name \`${this.name}\` now`);
    }
    return summary;
  }

  /** The resource usage now. */
  async metrics(): Promise<SandboxMetrics> {
    await this.identify();
    return measure(this.name);
  }

  /** Asks the sandbox for an answer. */
  async ping(): Promise<SandboxPingResult> {
    const from = performance.now();
    await session().invoke("session_ping", {});
    const { status } = await this.identify();
    if (status !== "running") {
      throw new SandboxNotRunningError(`sandbox \`${this.name}\` is not running`);
    }
    return { name: this.name, latencyMs: performance.now() - from };
  }

  /** Always fails: msb does not number activities. */
  touch(): Promise<SandboxTouchResult> {
    const hint = "a command or a file operation counts as activity";
    return Promise.reject(unsupported("a report of activity", hint));
  }

  /** Changes settings. Each change says whether it holds now or at the next start. */
  async modify(options: ModifyOptions = {}): Promise<SandboxModificationPlan> {
    await this.identify();
    return modify(this.name, options);
  }

  /** Stops the sandbox with SIGTERM. Waits without a limit and never kills. */
  async stop(): Promise<void> {
    await this.identify();
    await session().call("sandbox_stop", { name: this.name, grace_ms: NEVER });
  }

  /** As `stop`, but rejects after some milliseconds. It does not kill. */
  async stopWithTimeout(ms: number): Promise<void> {
    const { status } = await this.identify();
    if (status === "stopped" || status === "crashed") return;
    const late = new StopTimeoutError(`sandbox \`${this.name}\` did not stop in \`${String(ms)} ms\``);
    if (ms <= 0) throw late;
    await this.#within(ms, late, NEVER);
  }

  /** Kills the sandbox and waits until it has ended. */
  async kill(): Promise<void> {
    await this.identify();
    await session().call("sandbox_stop", { name: this.name, grace_ms: 0 });
  }

  /** As `kill`, but rejects after some milliseconds. */
  async killWithTimeout(ms: number): Promise<void> {
    await this.identify();
    await this.#within(ms, new StopTimeoutError(`sandbox \`${this.name}\` did not end in time`), 0);
  }

  async #within(ms: number, late: Error, grace: number): Promise<void> {
    const abort = new AbortController();
    const timer = setTimeout(() => {
      abort.abort(late);
    }, ms);
    try {
      const args = { name: this.name, grace_ms: grace };
      await session().call("sandbox_stop", args, { signal: abort.signal });
    } finally {
      clearTimeout(timer);
    }
  }

  /** Sends SIGTERM and does not wait. */
  async requestStop(): Promise<void> {
    await this.identify();
    const args = { name: this.name, grace_ms: NEVER };
    session().invoke("sandbox_stop", args, { background: true }).catch(() => undefined);
    await session().invoke("session_ping", {});
  }

  /** Sends SIGKILL and does not wait. */
  async requestKill(): Promise<void> {
    await this.identify();
    const args = { name: this.name, grace_ms: 0 };
    session().invoke("sandbox_stop", args, { background: true }).catch(() => undefined);
    await session().invoke("session_ping", {});
  }

  /** Lets commands end and takes no new ones. */
  async requestDrain(): Promise<void> {
    await this.identify();
    await session().call("sandbox_drain", { name: this.name });
  }

  /** Waits until the sandbox has a status. */
  async waitForStatus(status: SandboxStatus): Promise<SandboxHandle> {
    for (;;) {
      const summary = await this.identify();
      if (summary.status === status) return SandboxHandle.open(summary);
      await sleep(POLL);
    }
  }

  /** Waits until the sandbox has ended. */
  async waitUntilStopped(): Promise<SandboxStopResult> {
    const { stopped } = await session().call("sandbox_wait", { name: this.name });
    return stopResult(this.name, stopped ?? null);
  }

  /** Stops and starts the sandbox. Its files stay. */
  async restart(options: RestartOptions = {}): Promise<Sandbox> {
    await this.identify();
    const grace = options.force === true ? 0 : (options.timeoutMs ?? GRACE);
    await session().call("sandbox_stop", { name: this.name, grace_ms: grace });
    return startSandbox(this.name, options.detached !== true);
  }

  /** Stops and removes the sandbox. */
  async destroy(options: DestroyOptions = {}): Promise<void> {
    await this.identify();
    const grace = options.force === true ? 0 : (options.timeoutMs ?? GRACE);
    await session().call("sandbox_stop", { name: this.name, grace_ms: grace });
    try {
      await session().call("sandbox_remove", { name: this.name });
    } catch (error) {
      // An ephemeral sandbox is removed when it stops.
      if (!hasKind(error, "not_found")) throw error;
    }
  }

  /** Pauses all processes of the sandbox. */
  async pause(options: { guestFlush?: GuestFlush } = {}): Promise<void> {
    if (options.guestFlush === "required") throw unsupported("a flush before a pause");
    await this.identify();
    await session().call("sandbox_pause", { name: this.name });
  }

  /** Resumes a sandbox that is paused. */
  async resume(): Promise<void> {
    await this.identify();
    await session().call("sandbox_resume", { name: this.name });
  }

  /** Always fails: msb cannot fork a running sandbox yet. */
  fork(name: string, _options?: ForkOptions): Promise<Sandbox> {
    return Promise.reject(unsupported(`a fork to \`${name}\``, "take a snapshot and restore it"));
  }

  /** Always fails: msb cannot fork a running sandbox yet. */
  forkMany(names: readonly string[], _options?: ForkOptions): Promise<ForkOutcome[]> {
    const hint = "take a snapshot and restore it";
    return Promise.reject(unsupported(`a fork to \`${names.join("`, `")}\``, hint));
  }

  branch(name: string, options?: ForkOptions): Promise<Sandbox> {
    return this.fork(name, options);
  }

  branchMany(names: readonly string[], options?: ForkOptions): Promise<ForkOutcome[]> {
    return this.forkMany(names, options);
  }

  /** Always fails: the layers of msb need no compaction. */
  compact(_options?: DiskCompactionOptions): Promise<DiskCompactionResult> {
    return Promise.reject(unsupported("a compaction of disks"));
  }

  /** The log so far. */
  logs(options: LogReadOptions = {}): Promise<LogEntry[]> {
    return readLogs(this.name, options);
  }

  /** The log as a stream. */
  logStream(options: LogStreamOptions = {}): Promise<LogStream> {
    return Promise.resolve().then(() => new LogStream(this.name, options));
  }

  /** A job by its id. */
  getJob(id: string): Promise<Job> {
    return getJob(this.name, id);
  }

  /** The running jobs. */
  listJobs(): Promise<JobPage> {
    return listJobs(this.name, new JobListBuilder());
  }

  /** The jobs that a callback chooses. */
  listJobsWith(callback: (builder: JobListBuilder) => JobListBuilder): Promise<JobPage> {
    return listJobs(this.name, callback(new JobListBuilder()));
  }
}

function stopResult(name: string, stopped: Stopped | null): SandboxStopResult {
  const exit = stopped?.exit ?? null;
  return {
    name,
    status: stopped?.ending === "crashed" || stopped?.ending === "panicked" ? "crashed" : "stopped",
    exitCode: exit === null ? null : exitCode(exit),
    signal: exit?.signal ?? null,
    observedAt: new Date(),
    source: stopped?.ending ?? null,
  };
}

async function startSandbox(name: string, own: boolean): Promise<Sandbox> {
  const { changed } = await session().call("sandbox_start", { name }, { own });
  const summary = await session().call("sandbox_summary", { name });
  return new Sandbox(summary, own && changed);
}

/** A sandbox that exists, running or not. */
export class SandboxHandle extends SandboxControl {
  /** The status when the handle was made; `refresh` gives a newer one. */
  readonly status: SandboxStatus;
  /** The settings, as JSON. */
  readonly configJson: string;
  readonly createdAt: Date | null;
  /** Always null: msb does not record it. */
  readonly updatedAt: Date | null = null;

  /** @internal */
  constructor(summary: Summary, plan: object) {
    super(summary);
    this.status = summary.status;
    this.configJson = JSON.stringify(planConfig(plan));
    this.createdAt = new Date(summary.created);
  }

  /** @internal */
  static async open(summary: Summary): Promise<SandboxHandle> {
    const { plan } = await session().call("sandbox_inspect", { name: summary.name });
    return new SandboxHandle(summary, plan);
  }

  /** The settings. */
  config(): SandboxConfig {
    return JSON.parse(this.configJson) as SandboxConfig;
  }

  /** The handle as it is now. */
  async refresh(): Promise<SandboxHandle> {
    return SandboxHandle.open(await this.identify());
  }

  /** Starts the sandbox; it ends with this program. */
  async start(): Promise<Sandbox> {
    await this.identify();
    return startSandbox(this.name, true);
  }

  /** Starts the sandbox; it goes on when this program ends. */
  async startDetached(): Promise<Sandbox> {
    await this.identify();
    return startSandbox(this.name, false);
  }

  /** Connects to the running sandbox. It does not end with this program. */
  async connect(): Promise<Sandbox> {
    const summary = await this.identify();
    if (summary.status === "stopped" || summary.status === "crashed") {
      throw new SandboxNotRunningError(`sandbox \`${this.name}\` is not running`);
    }
    return new Sandbox(summary, false);
  }

  /** As `connect`, but rejects if msb has not answered after some milliseconds. */
  async connectWithTimeout(ms: number): Promise<Sandbox> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(new CustomError(`sandbox \`${this.name}\` did not answer in \`${String(ms)} ms\``));
      }, ms);
    });
    try {
      return await Promise.race([this.connect(), late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Connects to the sandbox, and starts it before if it is stopped. */
  async connectOrStart(options: { detached?: boolean } = {}): Promise<Sandbox> {
    const { status } = await this.identify();
    if (status === "stopped" || status === "crashed") {
      return startSandbox(this.name, options.detached !== true);
    }
    return this.connect();
  }

  /** Removes the stopped sandbox. */
  async remove(): Promise<void> {
    await this.identify();
    await session().call("sandbox_remove", { name: this.name });
  }

  /** Takes a snapshot of the filesystem. */
  async snapshot(name: string): Promise<Snapshot> {
    await this.identify();
    return Snapshot.builder(name).fromSandbox(this.name).create();
  }

  /** Always fails: msb counts the storage of all sandboxes together. */
  storageUsage(): Promise<never> {
    return Promise.reject(unsupported("the storage of one sandbox", "use Storage.usage()"));
  }
}

function planConfig(plan: object): SandboxConfig {
  const config = camelCase(plan);
  config["labels"] = visible((config["labels"] ?? {}) as Record<string, string>);
  return config;
}

type ExecCallback = (options: ExecOptionsBuilder) => ExecOptionsBuilder;
type AttachCallback = (options: AttachOptionsBuilder) => AttachOptionsBuilder;

/** Options of one call of the exec family, beyond the peer's API. */
export interface ExecCallOptions {
  /** Kills the command when it aborts. */
  signal?: AbortSignal;
}

/** A running sandbox. */
export class Sandbox extends SandboxControl implements AsyncDisposable {
  /** Whether the sandbox ends with this program. */
  ownsLifecycle: boolean;
  #shell: string | undefined;

  /** @internal */
  constructor(summary: Summary, owns: boolean) {
    super(summary);
    this.ownsLifecycle = owns;
  }

  /** A sandbox that is filled in step by step. */
  static builder(name: string): SandboxBuilder {
    return new SandboxBuilder(name);
  }

  /** Starts a stopped sandbox; it ends with this program. */
  static start(name: string): Promise<Sandbox> {
    return startSandbox(name, true);
  }

  /** Starts a stopped sandbox; it goes on when this program ends. */
  static startDetached(name: string): Promise<Sandbox> {
    return startSandbox(name, false);
  }

  /** A sandbox by its name. */
  static async get(name: string): Promise<SandboxHandle> {
    return SandboxHandle.open(await session().call("sandbox_summary", { name }));
  }

  /** All sandboxes. */
  static list(): Promise<SandboxPage> {
    return Sandbox.listWith((options) => options);
  }

  /** The sandboxes that a callback chooses, sorted by name. */
  static async listWith(
    callback: (options: SandboxListBuilder) => SandboxListBuilder,
  ): Promise<SandboxPage> {
    const { most, after, wanted } = callback(new SandboxListBuilder());
    const all = (await session().call("sandbox_list", {}))
      .filter(({ labels }) => Object.entries(wanted).every(([key, value]) => labels[key] === value))
      .sort((one, other) => (one.name < other.name ? -1 : 1))
      .filter(({ name }) => after === undefined || name > after);
    const page = all.slice(0, most);
    const opened = await Promise.all(
      page.map((summary) =>
        SandboxHandle.open(summary).catch((error: unknown) => {
          // It was removed while the others were read.
          if (hasKind(error, "not_found")) return undefined;
          throw error;
        }),
      ),
    );
    const sandboxes = opened.filter((handle): handle is SandboxHandle => handle !== undefined);
    const last = page.at(-1);
    return all.length > page.length && last !== undefined
      ? { sandboxes, nextCursor: last.name }
      : { sandboxes };
  }

  /** Removes a stopped sandbox. */
  static async remove(name: string): Promise<void> {
    await session().call("sandbox_remove", { name });
  }

  /** A sandbox that starts from a snapshot. */
  static restore(snapshot: string | Snapshot | SnapshotHandle): RestoreBuilder {
    return new RestoreBuilder(snapshot);
  }

  /** Runs a command to its end. A code other than zero is a result, not an error. */
  exec(cmd: string, args: Iterable<string> = [], options: ExecCallOptions = {}): Promise<ExecOutput> {
    return this.execWith(cmd, (builder) => withCall(builder.args(args), options));
  }

  /** Runs a command to its end, with options. */
  async execWith(cmd: string, callback: ExecCallback): Promise<ExecOutput> {
    return run(this.name, callback(new ExecOptionsBuilder()).settings([cmd]));
  }

  /** Starts a command; the handle has its output as it comes. */
  execStream(cmd: string, args: Iterable<string> = [], options: ExecCallOptions = {}): Promise<ExecHandle> {
    return this.execStreamWith(cmd, (builder) => withCall(builder.args(args), options));
  }

  /** Starts a command, with options. */
  async execStreamWith(cmd: string, callback: ExecCallback): Promise<ExecHandle> {
    return start(this.name, callback(new ExecOptionsBuilder()).settings([cmd]));
  }

  /** Runs the default command: that of the builder, or of the image. */
  execDefault(): Promise<ExecOutput> {
    return this.execDefaultWith((builder) => builder);
  }

  async execDefaultWith(callback: ExecCallback): Promise<ExecOutput> {
    const command = await this.#defaultCommand();
    return run(this.name, callback(new ExecOptionsBuilder()).settings(command));
  }

  execDefaultStream(): Promise<ExecHandle> {
    return this.execDefaultStreamWith((builder) => builder);
  }

  async execDefaultStreamWith(callback: ExecCallback): Promise<ExecHandle> {
    const command = await this.#defaultCommand();
    return start(this.name, callback(new ExecOptionsBuilder()).settings(command));
  }

  /** Runs a script in the shell of the sandbox. */
  async shell(script: string, options: ExecCallOptions = {}): Promise<ExecOutput> {
    return this.exec(await this.#shellProgram(), ["-c", script], options);
  }

  /** Starts a script in the shell of the sandbox. */
  async shellStream(script: string, options: ExecCallOptions = {}): Promise<ExecHandle> {
    return this.execStream(await this.#shellProgram(), ["-c", script], options);
  }

  /** Runs a command at the terminal of this program. The result is its exit code. */
  attach(cmd: string, args: Iterable<string> = []): Promise<number> {
    return this.attachWith(cmd, (options) => options.args(args));
  }

  async attachWith(cmd: string, callback: AttachCallback): Promise<number> {
    const { command, detachKeys } = callback(new AttachOptionsBuilder()).settings([cmd]);
    return attach(this.name, command, detachKeys);
  }

  attachDefault(): Promise<number> {
    return this.attachDefaultWith((options) => options);
  }

  async attachDefaultWith(callback: AttachCallback): Promise<number> {
    const program = await this.#defaultCommand();
    const { command, detachKeys } = callback(new AttachOptionsBuilder()).settings(program);
    return attach(this.name, command, detachKeys);
  }

  async attachShell(): Promise<number> {
    return this.attach(await this.#shellProgram());
  }

  /** Starts a job: it goes on when this program ends. Its stdin is a pipe that stays open. */
  execDetached(cmd: string, args: Iterable<string> = []): Promise<Job> {
    return this.execDetachedWith(cmd, (options) => options.args(args));
  }

  async execDetachedWith(cmd: string, callback: ExecCallback): Promise<Job> {
    return startJob(this.name, callback(new ExecOptionsBuilder()).settings([cmd], Stdin.pipe()));
  }

  /** The files of the sandbox. */
  fs(): SandboxFsOps {
    return new SandboxFsOps({ sandbox: this.name });
  }

  /** Logins without keys, in the form of SSH. */
  ssh(): SandboxSshOps {
    return new SandboxSshOps(this);
  }

  /** The settings of the sandbox. */
  async config(): Promise<SandboxConfig> {
    return planConfig((await this.#inspect()).plan);
  }

  /** The resource usage in an interval of milliseconds. */
  async metricsStream(intervalMs: number): Promise<MetricsStream> {
    const { labels } = await this.identify();
    const kept = Number(labels[METRICS_LABEL]);
    return new MetricsStream(this.name, intervalMs > 0 ? intervalMs : kept > 0 ? kept : 1000);
  }

  /** Gives the sandbox away: it goes on when this program ends. */
  async detach(): Promise<void> {
    if (!this.ownsLifecycle) return;
    await session().invoke("session_release", { name: this.name });
    this.ownsLifecycle = false;
  }

  /** Warnings of a restore; msb has none. */
  restoreWarnings(): Promise<ExternalMountWarning[]> {
    return Promise.resolve([]);
  }

  /** Stops the sandbox if it ends with this program. For code without `await using`. */
  async close(): Promise<void> {
    if (!this.ownsLifecycle) return;
    try {
      await this.stop();
    } catch {
      // It has ended already, or was replaced.
    }
  }

  /** As {@link close}. The sandbox is not removed. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  // Beyond the peer's API.

  /** The host directory that the sandbox sees copy-on-write. */
  workspace(): Workspace {
    return new Workspace(this.name);
  }

  /** Decisions, flows, rules and ports of its network. */
  network(): SandboxNetwork {
    return new SandboxNetwork(this.name);
  }

  /** Sandboxes that this sandbox has made. */
  children(): SandboxChildren {
    return new SandboxChildren(this.name);
  }

  async #inspect(): Promise<Inspection> {
    return session().call("sandbox_inspect", { name: this.name });
  }

  async #shellProgram(): Promise<string> {
    const { shell } = (await this.#inspect()).plan as { shell?: string };
    this.#shell ??= shell ?? "/bin/sh";
    return this.#shell;
  }

  async #defaultCommand(): Promise<string[]> {
    const summary = await session().call("sandbox_summary", { name: this.name });
    const words = (label: string): string[] | undefined => {
      const text = summary.labels[label];
      return text === undefined ? undefined : (JSON.parse(text) as string[]);
    };
    let [entrypoint, cmd] = [words(ENTRYPOINT_LABEL), words(CMD_LABEL)];
    if (entrypoint === undefined || cmd === undefined) {
      try {
        const { config } = await session().call("image_inspect", { name: summary.image });
        // A new entrypoint drops the command of the image, as in a Containerfile.
        cmd ??= entrypoint === undefined ? (config.cmd ?? []) : [];
        entrypoint ??= config.entrypoint ?? [];
      } catch {
        // A directory, or the image `host`: neither has a command.
      }
    }
    const command = [...(entrypoint ?? []), ...(cmd ?? [])];
    if (command.length === 0) {
      throw new NoDefaultCommandError(`sandbox \`${this.name}\` has no default command`);
    }
    return command;
  }
}

function withCall(builder: ExecOptionsBuilder, options: ExecCallOptions): ExecOptionsBuilder {
  return options.signal === undefined ? builder : builder.abortSignal(options.signal);
}
