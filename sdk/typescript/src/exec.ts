// Commands in a sandbox: options, output, running commands and their stdin.

import "./dispose";
import { ExecTimeoutError, InvalidConfigError, fromWire } from "./errors";
import type { Command, Ending, Exit, Started } from "./generated";
import type { RlimitResource } from "./quantities";
import { type SessionStream, session } from "./session";
import { milliseconds, toBytes, toText } from "./text";

/** Size of a terminal until it is resized. */
const TERMINAL = { rows: 24, cols: 80 };
const SIGKILL = 9;

/** What a command reads. */
export interface StdinMode {
  kind: "null" | "pipe" | "bytes";
  data?: Uint8Array;
}

/** What a command reads: nothing, a pipe of the program, or bytes. */
export const Stdin = {
  /** Nothing: the end of the file at once. */
  null: (): StdinMode => ({ kind: "null" }),
  /** What the program writes to the sink of `takeStdin`. */
  pipe: (): StdinMode => ({ kind: "pipe" }),
  /** These bytes, then the end of the file. */
  bytes: (data: Uint8Array | string): StdinMode => ({ kind: "bytes", data: toBytes(data) }),
} as const;

/** How a command ended. */
export interface ExitStatus {
  /** Its exit code; 128+n after signal n. */
  code: number;
  /** Whether the code is zero. */
  success: boolean;
}

/** Something that a running command did. */
export type ExecEvent =
  | { kind: "started"; pid: number }
  | { kind: "stdout"; data: Uint8Array }
  | { kind: "stderr"; data: Uint8Array }
  | { kind: "exited"; code: number };

/** Settings of one command, as the protocol has them. */
export interface ExecSettings {
  command: Command;
  stdin: StdinMode;
  timeoutMs?: number;
  signal?: AbortSignal;
}

abstract class CommandOptions {
  protected readonly argv: string[] = [];
  protected readonly options: Command = {};

  /** Adds one argument to the command. */
  arg(value: string): this {
    this.argv.push(value);
    return this;
  }

  /** Adds several arguments to the command. */
  args(values: Iterable<string>): this {
    this.argv.push(...values);
    return this;
  }

  /** Sets the working directory. */
  cwd(path: string): this {
    this.options.workdir = path;
    return this;
  }

  /** Sets the user: a name, a number, or either with `:group`. */
  user(user: string): this {
    this.options.user = user;
    return this;
  }

  /** Sets one environment variable. */
  env(key: string, value: string): this {
    (this.options.env ??= []).push([key, value]);
    return this;
  }

  /** Sets several environment variables. */
  envs(variables: Record<string, string>): this {
    for (const [key, value] of Object.entries(variables)) this.env(key, value);
    return this;
  }

  /** Limits a resource; soft and hard limit are the same. */
  rlimit(resource: RlimitResource, limit: number): this {
    return this.rlimitRange(resource, limit, limit);
  }

  /** Limits a resource with a soft and a hard limit. */
  rlimitRange(resource: RlimitResource, soft: number, hard: number): this {
    (this.options.rlimits ??= []).push(`${resource}=${String(soft)}:${String(hard)}`);
    return this;
  }
}

/** Options of one command. */
export class ExecOptionsBuilder extends CommandOptions {
  #stdin: StdinMode | undefined;
  #timeoutMs: number | undefined;
  #signal: AbortSignal | undefined;

  /** Kills the command after some milliseconds; the call rejects with `ExecTimeoutError`. */
  timeout(ms: number): this {
    if (!(ms >= 0)) throw new InvalidConfigError(`not a number of milliseconds: \`${String(ms)}\``);
    this.#timeoutMs = ms;
    return this;
  }

  /** Gives the command an empty stdin. This is the default. */
  stdinNull(): this {
    return this.stdin(Stdin.null());
  }

  /** Gives the command a pipe, which `takeStdin` of the handle writes to. */
  stdinPipe(): this {
    return this.stdin(Stdin.pipe());
  }

  /** Gives the command these bytes, then the end of the file. */
  stdinBytes(data: Uint8Array | string): this {
    return this.stdin(Stdin.bytes(data));
  }

  /** Sets what the command reads. */
  stdin(mode: StdinMode): this {
    this.#stdin = mode;
    return this;
  }

  /** Gives the command a terminal, on which stdout and stderr are one. */
  tty(on: boolean): this {
    this.options.tty = on ? { ...TERMINAL } : null;
    return this;
  }

  /** Kills the command when the signal aborts. */
  abortSignal(signal: AbortSignal): this {
    this.#signal = signal;
    return this;
  }

  /** @internal */
  settings(program: readonly string[], defaultStdin: StdinMode = Stdin.null()): ExecSettings {
    const stdin = this.#stdin ?? defaultStdin;
    const command: Command = { ...this.options, argv: [...program, ...this.argv] };
    if (stdin.kind !== "null") command.stdin = "streamed";
    if (this.#timeoutMs !== undefined) command.timeout = milliseconds(this.#timeoutMs);
    const settings: ExecSettings = { command, stdin };
    if (this.#timeoutMs !== undefined) settings.timeoutMs = this.#timeoutMs;
    if (this.#signal !== undefined) settings.signal = this.#signal;
    return settings;
  }
}

/** Options of a command that gets the terminal of this program. */
export class AttachOptionsBuilder extends CommandOptions {
  #detachKeys: string | undefined;

  /** Sets the keys that detach, such as `ctrl-p,ctrl-q`. */
  detachKeys(keys: string): this {
    this.#detachKeys = keys;
    return this;
  }

  /** @internal */
  settings(program: readonly string[]): { command: Command; detachKeys?: string } {
    const command: Command = { ...this.options, argv: [...program, ...this.argv] };
    return this.#detachKeys === undefined ? { command } : { command, detachKeys: this.#detachKeys };
  }
}

/** The exit code as a shell shows it: 128+n after signal n. */
export function exitCode(exit: Exit): number {
  if (exit.ending === "timeout") return 124;
  return exit.code ?? (exit.signal != null ? 128 + exit.signal : 125);
}

/** The output of a command that has ended. */
export class ExecOutput {
  /** How it ended: code and success. */
  readonly status: ExitStatus;
  /** Why it ended: by itself, killed by a limit, or with its sandbox. */
  readonly ending: Ending;
  readonly #stdout: Buffer;
  readonly #stderr: Buffer;

  /** @internal */
  constructor(exit: Exit, stdout: Buffer, stderr: Buffer) {
    const code = exitCode(exit);
    this.status = { code, success: code === 0 };
    this.ending = exit.ending;
    this.#stdout = stdout;
    this.#stderr = stderr;
  }

  /** The exit code; 128+n after signal n. */
  get code(): number {
    return this.status.code;
  }

  /** Whether the exit code is zero. */
  get success(): boolean {
    return this.status.success;
  }

  /** The stdout as text. */
  stdout(): string {
    return toText(this.#stdout);
  }

  /** The stderr as text. */
  stderr(): string {
    return toText(this.#stderr);
  }

  /** The stdout as it was written. */
  stdoutBytes(): Uint8Array {
    return this.#stdout;
  }

  /** The stderr as it was written. */
  stderrBytes(): Uint8Array {
    return this.#stderr;
  }
}

/** The stdin of a running command. */
export class ExecSink implements AsyncDisposable {
  readonly #stream: SessionStream;

  /** @internal */
  constructor(stream: SessionStream) {
    this.#stream = stream;
  }

  /** Writes bytes or text. Resolves when the command has room for more. */
  write(data: Uint8Array | string): Promise<void> {
    return this.#stream.write(toBytes(data));
  }

  /** Ends the input: the command reads the end of the file. */
  close(): Promise<void> {
    return this.#stream.end();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** A running command. */
export class ExecHandle implements AsyncIterable<ExecEvent>, AsyncDisposable {
  /** The number of the Exec in its sandbox. */
  readonly id: string;
  /** The process id inside the sandbox. */
  readonly pid: number;
  readonly #stream: SessionStream;
  readonly #timeoutMs: number | undefined;
  #stdin: ExecSink | null;
  #first = true;
  #over = false;

  /** @internal */
  constructor(stream: SessionStream, started: Started, settings: ExecSettings) {
    this.#stream = stream;
    this.id = String(started.id);
    this.pid = started.pid;
    this.#timeoutMs = settings.timeoutMs;
    this.#stdin = settings.stdin.kind === "pipe" ? new ExecSink(stream) : null;
    if (settings.stdin.kind === "bytes") feed(stream, settings.stdin.data ?? new Uint8Array());
  }

  /** The next event, or null after the last one. */
  async recv(): Promise<ExecEvent | null> {
    if (this.#first) {
      this.#first = false;
      return { kind: "started", pid: this.pid };
    }
    if (this.#over) return null;
    for (;;) {
      const item = await this.#stream.next();
      if (item === null) {
        this.#over = true;
        const exit = (await this.#stream.result) as Exit;
        this.#check(exit);
        return { kind: "exited", code: exitCode(exit) };
      }
      if (item.kind === "stdout" || item.kind === "stderr") return item;
    }
  }

  /** The stdin of the command: once, and only with `stdinPipe`; otherwise null. */
  takeStdin(): Promise<ExecSink | null> {
    const stdin = this.#stdin;
    this.#stdin = null;
    return Promise.resolve(stdin);
  }

  /** Waits for the end. Output that was not read is dropped. */
  async wait(): Promise<ExitStatus> {
    this.#over = true;
    this.#stream.consume(() => undefined);
    const exit = (await this.#stream.result) as Exit;
    this.#check(exit);
    const code = exitCode(exit);
    return { code, success: code === 0 };
  }

  /** Waits for the end and returns the output that was not read yet. */
  async collect(): Promise<ExecOutput> {
    this.#over = true;
    const output = await collect(this.#stream);
    this.#check(output.exit);
    return new ExecOutput(output.exit, output.stdout, output.stderr);
  }

  /** Sends a signal, by its number, to the command. */
  signal(signal: number): Promise<void> {
    this.#stream.control({ signal });
    return Promise.resolve();
  }

  /** Kills the command with SIGKILL. */
  kill(): Promise<void> {
    return this.signal(SIGKILL);
  }

  /** Changes the size of the terminal, in characters. */
  resize(rows: number, cols: number): Promise<void> {
    this.#stream.control({ resize: { rows, cols } });
    return Promise.resolve();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ExecEvent> {
    for (let event = await this.recv(); event !== null; event = await this.recv()) yield event;
  }

  /** Kills the command if it still runs. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#over = true;
    if (this.#stream.ended) return;
    this.#stream.consume(() => undefined);
    this.#stream.cancel();
    await this.#stream.result.catch(() => undefined);
  }

  #check(exit: Exit): void {
    if (exit.ending === "timeout") throw timedOut(this.#timeoutMs);
  }
}

function timedOut(timeoutMs: number | undefined): ExecTimeoutError {
  const message =
    timeoutMs === undefined
      ? "the command was killed by its timeout"
      : `the command ran longer than its timeout and was killed: \`${String(timeoutMs)} ms\``;
  const error = new ExecTimeoutError(message, timeoutMs === undefined ? {} : { timeoutMs });
  error.kind = "timeout";
  return error;
}

/** Writes all bytes and ends the input. A command that does not read them is no failure. */
function feed(stream: SessionStream, data: Uint8Array): void {
  stream.write(data).then(
    () => stream.end(),
    () => undefined,
  );
}

/** Gathers the rest of a command's output. */
export async function collect(
  stream: SessionStream,
): Promise<{ exit: Exit; stdout: Buffer; stderr: Buffer }> {
  const stdout: Buffer[] = [];
  const stderr: Buffer[] = [];
  stream.consume((item) => {
    if (item.kind === "stdout") stdout.push(item.data);
    else if (item.kind === "stderr") stderr.push(item.data);
  });
  const exit = (await stream.result) as Exit;
  return { exit, stdout: Buffer.concat(stdout), stderr: Buffer.concat(stderr) };
}

/** Runs a command to its end. */
export async function run(sandbox: string, settings: ExecSettings): Promise<ExecOutput> {
  const stream = session().open(
    "exec_stream",
    { name: sandbox, command: settings.command },
    { signal: settings.signal },
  );
  if (settings.stdin.kind === "bytes") feed(stream, settings.stdin.data ?? new Uint8Array());
  else if (settings.stdin.kind === "pipe") void stream.end();
  const output = await collect(stream);
  if (output.exit.ending === "timeout") throw timedOut(settings.timeoutMs);
  return new ExecOutput(output.exit, output.stdout, output.stderr);
}

/** Starts a command; the handle has its output. */
export async function start(sandbox: string, settings: ExecSettings): Promise<ExecHandle> {
  const stream = session().open(
    "exec_stream",
    { name: sandbox, command: settings.command },
    { signal: settings.signal },
  );
  return new ExecHandle(stream, await started(stream), settings);
}

/** Waits until the command of a stream has started. */
export async function started(stream: SessionStream): Promise<Started> {
  for (;;) {
    const item = await stream.next();
    if (item === null) {
      const causes = ["the command ended before it started"];
      throw fromWire({ kind: "protocol", message: "msb sent no start", causes }, "exec_stream");
    }
    if (item.kind === "event" && "started" in item.event) return item.event["started"] as Started;
  }
}
