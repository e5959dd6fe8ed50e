// Jobs: commands that go on without the program that started them.

import "./dispose";
import { InvalidConfigError, JobError } from "./errors";
import { type ExecSettings, exitCode, started } from "./exec";
import type { ExecEntry, Exit } from "./generated";
import { type LogEntry, type LogReadSource, LogStream, readLogs } from "./logs";
import { type SessionStream, session } from "./session";
import { toBytes } from "./text";

const SIGKILL = 9;
/** Most bytes of one write to the stdin of a job. */
const MAX_STDIN = 16_384;
/** Longest single wait for a job, in milliseconds; it is repeated until the job has ended. */
const WAIT_STEP = 60_000;

export type JobState = "starting" | "running" | "exited" | "failed" | "lost";

/** The state of a job. */
export interface JobInfo {
  id: string;
  /** Always null: msb does not report it. */
  runtimeBootId: string | null;
  command: string[];
  state: JobState;
  tty: boolean;
  /** Always null: msb does not report it. */
  stdinClosed: boolean | null;
  pid: number | null;
  /** Milliseconds since 1970. */
  createdAt: number;
  startedAt: number | null;
  /** Always null: msb does not report it. */
  finishedAt: number | null;
  exitCode: number | null;
  timedOut: boolean;
  error: string | null;
  failure: Record<string, unknown> | null;
}

/** One page of a list of jobs. */
export interface JobPage {
  items: JobInfo[];
  nextCursor: string | null;
}

/** How a job ended. */
export interface JobExit {
  code: number;
  success: boolean;
  timedOut: boolean;
}

/** One entry of the output of a job. */
export interface JobLogEntry {
  /** Milliseconds since 1970. */
  timestamp: number;
  source: string;
  data: Buffer;
  cursor: string;
}

/** Which entries of the output to read. */
export interface JobLogOptions {
  tail?: number;
  /** Milliseconds since 1970. */
  since?: number;
  /** Milliseconds since 1970. */
  until?: number;
  sources?: LogReadSource[];
  fromCursor?: string;
  follow?: boolean;
}

/** Something that an attached job did. */
export type JobEvent =
  | { type: "output"; value: JobLogEntry }
  | { type: "gap"; value: Record<string, unknown> }
  | { type: "completed"; value: JobInfo };

/** Which jobs to list. */
export class JobListBuilder {
  /** @internal */
  everything = false;
  /** @internal */
  most = 50;
  /** @internal */
  after = 0;

  /** Includes jobs that have ended. */
  all(on = true): this {
    this.everything = on;
    return this;
  }

  /** Sets the length of a page. Default 50. */
  limit(count: number): this {
    this.most = count;
    return this;
  }

  /** Continues after the page before. */
  cursor(cursor: string): this {
    this.after = Number(cursor);
    return this;
  }
}

/** How to attach to a job. */
export class JobAttachOptionsBuilder {
  /** @internal */
  isReadOnly = false;
  /** @internal */
  recentBytes: number | undefined;
  /** @internal */
  after: string | undefined;

  /** Takes no input. */
  readOnly(on = true): this {
    this.isReadOnly = on;
    return this;
  }

  /** First sends the last bytes of the output so far. */
  replayRecent(bytes: number): this {
    this.recentBytes = bytes;
    return this;
  }

  /** First sends the output after a cursor. */
  replayAfter(cursor: string): this {
    this.after = cursor;
    return this;
  }
}

function info(entry: ExecEntry): JobInfo {
  const { exit } = entry;
  return {
    id: String(entry.id),
    runtimeBootId: null,
    command: entry.argv,
    state: exit == null ? "running" : "exited",
    tty: entry.tty,
    stdinClosed: null,
    pid: exit == null ? entry.pid : null,
    createdAt: entry.started,
    startedAt: entry.started,
    finishedAt: null,
    exitCode: exit == null ? null : exitCode(exit),
    timedOut: exit?.ending === "timeout",
    error: null,
    failure: null,
  };
}

function logEntry(entry: LogEntry): JobLogEntry {
  const { timestamp, source, data, cursor } = entry;
  return { timestamp: timestamp.getTime(), source, data: Buffer.from(data), cursor };
}

function query(id: string, options: JobLogOptions): {
  exec: number;
  since?: Date;
  until?: Date;
  sources?: LogReadSource[];
  fromCursor?: string;
} {
  const { since, until, sources, fromCursor } = options;
  return {
    exec: Number(id),
    ...(since === undefined ? {} : { since: new Date(since) }),
    ...(until === undefined ? {} : { until: new Date(until) }),
    ...(sources === undefined ? {} : { sources }),
    ...(fromCursor === undefined ? {} : { fromCursor }),
  };
}

/** The output of a job, as it is written. */
export class JobLogStream implements AsyncIterable<JobLogEntry>, AsyncDisposable {
  readonly #logs: LogStream;

  /** @internal */
  constructor(sandbox: string, id: string, options: JobLogOptions) {
    this.#logs = new LogStream(sandbox, { ...query(id, options), follow: options.follow === true });
  }

  /** The next entry, or null at the end. */
  async next(): Promise<JobLogEntry | null> {
    const entry = await this.#logs.recv();
    return entry === null ? null : logEntry(entry);
  }

  /** Ends the stream. */
  close(): Promise<void> {
    return this.#logs.close();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<JobLogEntry> {
    try {
      for (let entry = await this.next(); entry !== null; entry = await this.next()) yield entry;
    } finally {
      await this.close();
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** A connection to a running job. */
export class JobAttachment implements AsyncIterable<JobEvent>, AsyncDisposable {
  readonly #job: Job;
  readonly #stream: SessionStream;
  readonly #replay: JobLogEntry[];
  readonly #readOnly: boolean;
  #over = false;

  /** @internal */
  constructor(job: Job, stream: SessionStream, replay: JobLogEntry[], readOnly: boolean) {
    this.#job = job;
    this.#stream = stream;
    this.#replay = replay;
    this.#readOnly = readOnly;
  }

  /** The next event, or null after the last one or after `detach`. */
  async recv(): Promise<JobEvent | null> {
    const before = this.#replay.shift();
    if (before !== undefined) return { type: "output", value: before };
    if (this.#over) return null;
    for (let item = await this.#stream.next(); item !== null; item = await this.#stream.next()) {
      if (item.kind !== "stdout" && item.kind !== "stderr") continue;
      const value = { timestamp: Date.now(), source: item.kind, data: item.data, cursor: "" };
      return { type: "output", value };
    }
    this.#over = true;
    const exit = (await this.#stream.result) as Exit | { detached: true };
    return "detached" in exit ? null : { type: "completed", value: await this.#job.inspect() };
  }

  /** Writes to the stdin of the job, at most 16 KiB at once. */
  async writeStdin(data: Uint8Array | string): Promise<void> {
    if (this.#readOnly) throw new JobError("read-only", "the attachment is read-only", this.#job.id);
    const bytes = toBytes(data);
    if (bytes.length > MAX_STDIN) {
      throw new InvalidConfigError(`a write to a job has ${String(MAX_STDIN)} bytes at most`);
    }
    await this.#stream.write(bytes);
  }

  /** Changes the size of the terminal. */
  resize(rows: number, cols: number): Promise<void> {
    this.#stream.control({ resize: { rows, cols } });
    return Promise.resolve();
  }

  /** Ends the connection; the job goes on. */
  async detach(): Promise<void> {
    await this.#stream.detach();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<JobEvent> {
    for (let event = await this.recv(); event !== null; event = await this.recv()) yield event;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.detach();
  }
}

/** A command that goes on without the program that started it. */
export class Job {
  /** @internal */
  constructor(
    private readonly sandbox: string,
    readonly id: string,
  ) {}

  /** The state of the job. */
  async inspect(): Promise<JobInfo> {
    const found = (await jobEntries(this.sandbox)).find((entry) => String(entry.id) === this.id);
    if (found === undefined) throw notFound(this.id);
    return info(found);
  }

  /** Waits for the end of the job. */
  async wait(): Promise<JobExit> {
    for (;;) {
      const { exit } = await session().call("exec_wait", {
        name: this.sandbox,
        id: Number(this.id),
        limit_ms: WAIT_STEP,
      });
      if (exit == null) continue;
      const code = exitCode(exit);
      return { code, success: code === 0, timedOut: exit.ending === "timeout" };
    }
  }

  /** Sends a signal to the job, by its number. */
  async signal(signal: number): Promise<void> {
    await session().call("exec_signal", { name: this.sandbox, id: Number(this.id), signal });
  }

  /** Kills the job with SIGKILL. */
  kill(): Promise<void> {
    return this.signal(SIGKILL);
  }

  /** Ends the stdin of the job. */
  async eof(): Promise<void> {
    const stream = this.#open(true);
    await started(stream);
    stream.consume(() => undefined);
    await stream.end();
    // The input is processed before this answer; the stream stays open for it.
    await session().invoke("session_ping", {});
  }

  /** The output so far. */
  async logs(options: JobLogOptions = {}): Promise<JobLogEntry[]> {
    const tail = options.tail === undefined ? {} : { tail: options.tail };
    return (await readLogs(this.sandbox, { ...query(this.id, options), ...tail })).map(logEntry);
  }

  /** The output, as a stream. */
  logStream(options: JobLogOptions = {}): Promise<JobLogStream> {
    return Promise.resolve().then(() => new JobLogStream(this.sandbox, this.id, options));
  }

  /** The output, as a stream that waits for more. */
  followLogs(options: JobLogOptions = {}): Promise<JobLogStream> {
    return this.logStream({ ...options, follow: true });
  }

  /** Attaches to the job. */
  attach(): Promise<JobAttachment> {
    return this.attachWith((options) => options);
  }

  /** Attaches to the job, with options. */
  async attachWith(
    callback: (options: JobAttachOptionsBuilder) => JobAttachOptionsBuilder,
  ): Promise<JobAttachment> {
    const options = callback(new JobAttachOptionsBuilder());
    const stream = this.#open(false);
    await started(stream);
    let replay: JobLogEntry[] = [];
    if (options.after !== undefined) replay = await this.logs({ fromCursor: options.after });
    else if (options.recentBytes !== undefined) replay = recent(await this.logs(), options.recentBytes);
    return new JobAttachment(this, stream, replay, options.isReadOnly);
  }

  #open(background: boolean): SessionStream {
    const args = { name: this.sandbox, id: Number(this.id) };
    return session().open("exec_attach", args, { background });
  }
}

function recent(entries: JobLogEntry[], bytes: number): JobLogEntry[] {
  let left = bytes;
  const kept: JobLogEntry[] = [];
  for (const entry of entries.reverse()) {
    if (left <= 0) break;
    const data = entry.data.subarray(Math.max(0, entry.data.length - left));
    left -= data.length;
    kept.unshift({ ...entry, data });
  }
  return kept;
}

function notFound(id: string): JobError {
  return new JobError("not-found", `no job \`${id}\``, id);
}

async function jobEntries(sandbox: string): Promise<ExecEntry[]> {
  return session().call("exec_list", { name: sandbox });
}

/** Starts a job. */
export async function startJob(sandbox: string, settings: ExecSettings): Promise<Job> {
  const command = { ...settings.command, detached: true };
  const stream = session().open("exec_stream", { name: sandbox, command });
  const { id } = await started(stream);
  stream.consume(() => undefined);
  if (settings.stdin.kind === "bytes") {
    await stream.write(settings.stdin.data ?? new Uint8Array());
    await stream.end();
    await session().invoke("session_ping", {});
  }
  await stream.detach();
  return new Job(sandbox, String(id));
}

/** A job by its id. */
export async function getJob(sandbox: string, id: string): Promise<Job> {
  const job = new Job(sandbox, id);
  await job.inspect();
  return job;
}

/** One page of the jobs of a sandbox, the oldest first. */
export async function listJobs(sandbox: string, options: JobListBuilder): Promise<JobPage> {
  const all = (await jobEntries(sandbox)).filter(
    (entry) => entry.id > options.after && (options.everything || entry.exit == null),
  );
  all.sort((one, other) => one.id - other.id);
  const page = all.slice(0, options.most);
  const last = page.at(-1);
  const nextCursor = all.length > page.length && last !== undefined ? String(last.id) : null;
  return { items: page.map(info), nextCursor };
}
