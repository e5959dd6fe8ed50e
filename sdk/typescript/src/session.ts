// One session with `msb api`: frames, streams, credit and cancellation (docs/session-protocol.md).
// It knows no sandboxes; the modules above it do.

import { type ChildProcess, spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { IoError, MicrosandboxError, ProtocolError, RuntimeIncompleteError, fromWire } from "./errors";
import type { Error as WireError, Operations, Progress } from "./generated";
import { configuredHome, resolveRuntime } from "./runtime";

const HELLO = 0;
const REQUEST = 1;
const RESPONSE = 2;
const ERROR = 3;
const EVENT = 4;
const DATA = 5;
const STDOUT = 6;
const STDERR = 7;
const END = 8;
const CREDIT = 9;
const CANCEL = 10;
const CONTROL = 11;

const HEADER = 9;
const PROTOCOL = 1;
/** Bytes that each side may send on a stream before it needs credit. */
const INITIAL_CREDIT = 262_144;
/** Credit is granted in steps of this size: fewer frames, and the peer never runs dry. */
const CREDIT_STEP = INITIAL_CREDIT / 4;
/** Most bytes of one DATA frame; the limit of the protocol is 1 MiB. */
const PIECE = 65_536;

/** Options of one call. */
export interface CallOptions {
  /** Cancels the call and what it started. */
  signal?: AbortSignal | undefined;
  /** Whether a sandbox that this call starts belongs to the session. */
  own?: boolean;
  /** Whether the program may end while the call is open. */
  background?: boolean;
  /** Receives the progress of a call that takes time. */
  onProgress?: (progress: Progress) => void;
}

/** One frame of a stream, before its end. */
export type StreamItem =
  | { kind: "event"; event: Record<string, unknown> }
  | { kind: "data"; data: Buffer }
  | { kind: "stdout"; data: Buffer }
  | { kind: "stderr"; data: Buffer };

interface QueueEntry {
  item: StreamItem;
  bytes: number;
}

interface Deferred<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: unknown) => void;
}

function deferred<T>(): Deferred<T> {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<T>((ok, fail) => {
    resolve = ok;
    reject = fail;
  });
  return { promise, resolve, reject };
}

/** One call on a session, with its frames in both directions. */
export class SessionStream {
  /** The body of the RESPONSE; rejects with the error of the call. */
  readonly result: Promise<unknown>;
  readonly #session: Session;
  readonly #number: number;
  readonly #op: string;
  readonly #done = deferred<unknown>();
  #queue: QueueEntry[] = [];
  #waiting: (() => void) | undefined;
  #consumer: ((item: StreamItem) => void) | undefined;
  #ended = false;
  #failure: Error | undefined;
  #sendCredit = INITIAL_CREDIT;
  #creditWaiters: (() => void)[] = [];
  #consumed = 0;
  #writes: Promise<void> = Promise.resolve();
  #stopListening: (() => void) | undefined;

  /** @internal */
  constructor(session: Session, number: number, op: string, signal?: AbortSignal) {
    this.#session = session;
    this.#number = number;
    this.#op = op;
    this.result = this.#done.promise;
    // The failure is also reported by `next`: a caller may read only one of the two.
    this.result.catch(() => undefined);
    if (signal !== undefined) {
      const onAbort = (): void => {
        this.cancel();
        this.finish(signal.reason as Error);
      };
      signal.addEventListener("abort", onAbort, { once: true });
      this.#stopListening = () => {
        signal.removeEventListener("abort", onAbort);
      };
    }
  }

  /** Whether the call is over. */
  get ended(): boolean {
    return this.#ended;
  }

  /** The next frame, or null at the end. Rejects if the call has failed. */
  async next(): Promise<StreamItem | null> {
    for (;;) {
      const entry = this.#queue.shift();
      if (entry !== undefined) {
        this.#grant(entry.bytes);
        return entry.item;
      }
      if (this.#ended) {
        if (this.#failure !== undefined) throw this.#failure;
        return null;
      }
      await new Promise<void>((resolve) => {
        const before = this.#waiting;
        this.#waiting = () => {
          before?.();
          resolve();
        };
      });
    }
  }

  /** Passes every frame to `consumer` as it arrives, also those that wait already. */
  consume(consumer: (item: StreamItem) => void): void {
    this.#consumer = consumer;
    for (const entry of this.#queue.splice(0)) {
      this.#grant(entry.bytes);
      consumer(entry.item);
    }
  }

  /** Sends bytes as credit allows. Resolves when all of them were sent. */
  write(bytes: Uint8Array): Promise<void> {
    const sent = this.#writes.then(() => this.#send(bytes));
    this.#writes = sent.catch(() => undefined);
    return sent;
  }

  /** Ends the input of the call, after everything that was written. */
  end(): Promise<void> {
    const sent = this.#writes.then(() => {
      if (!this.#ended) this.#session.send(END, this.#number);
    });
    this.#writes = sent;
    return sent;
  }

  /** Sends a signal, a terminal size or a detach to the command. */
  control(message: unknown): void {
    if (!this.#ended) this.#session.send(CONTROL, this.#number, Buffer.from(JSON.stringify(message)));
  }

  /** Cancels the call and what it started. */
  cancel(): void {
    if (!this.#ended) this.#session.send(CANCEL, this.#number);
  }

  /** Lets the program end while the call is open. */
  toBackground(): void {
    this.#session.toBackground(this.#number);
  }

  /** Detaches from the command, which goes on. Resolves with the RESPONSE of msb. */
  async detach(): Promise<void> {
    if (this.#ended) return;
    this.control("detach");
    await this.result;
  }

  async #send(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      while (this.#sendCredit === 0 && !this.#ended) {
        await new Promise<void>((resolve) => this.#creditWaiters.push(resolve));
      }
      if (this.#ended) throw new IoError("the stream has ended and takes no more bytes");
      const length = Math.min(bytes.length - at, this.#sendCredit, PIECE);
      this.#sendCredit -= length;
      this.#session.send(DATA, this.#number, bytes.subarray(at, at + length));
      at += length;
    }
    if (bytes.length === 0 && this.#ended) throw new IoError("the stream has ended");
  }

  #grant(bytes: number): void {
    this.#consumed += bytes;
    if (this.#consumed < CREDIT_STEP || this.#ended) return;
    const credit = Buffer.allocUnsafe(4);
    credit.writeUInt32LE(this.#consumed, 0);
    this.#consumed = 0;
    this.#session.send(CREDIT, this.#number, credit);
  }

  /** @internal */
  receive(kind: number, payload: Buffer): void {
    if (kind === CREDIT) {
      this.#sendCredit += payload.readUInt32LE(0);
      for (const wake of this.#creditWaiters.splice(0)) wake();
      return;
    }
    if (kind === RESPONSE) {
      this.finish(undefined, parse(payload));
      return;
    }
    if (kind === ERROR) {
      this.finish(fromWire(parse(payload) as WireError, this.#op));
      return;
    }
    if (this.#ended) return;
    const item = itemOf(kind, payload);
    if (this.#consumer !== undefined) {
      this.#grant(payload.length);
      this.#consumer(item);
    } else {
      this.#queue.push({ item, bytes: payload.length });
      this.#wake();
    }
  }

  /** @internal */
  finish(failure: Error | undefined, value?: unknown): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#failure = failure;
    this.#stopListening?.();
    if (failure === undefined) this.#done.resolve(value);
    else this.#done.reject(failure);
    for (const wake of this.#creditWaiters.splice(0)) wake();
    this.#wake();
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.();
  }
}

function parse(payload: Buffer): unknown {
  return JSON.parse(payload.toString("utf8")) as unknown;
}

function itemOf(kind: number, payload: Buffer): StreamItem {
  switch (kind) {
    case EVENT:
      return { kind: "event", event: parse(payload) as Record<string, unknown> };
    case DATA:
      return { kind: "data", data: payload };
    case STDOUT:
      return { kind: "stdout", data: payload };
    case STDERR:
      return { kind: "stderr", data: payload };
    default:
      throw new ProtocolError(`msb sent a frame of an unknown kind: \`${String(kind)}\``);
  }
}

interface Referable {
  ref?: () => void;
  unref?: () => void;
}

/** A child process `msb api --stdio` and the calls on it. */
export class Session {
  readonly #child: ChildProcess;
  readonly #in: Writable;
  readonly #out: Readable;
  readonly #streams = new Map<number, SessionStream>();
  /** Open calls that keep the program running. */
  readonly #foreground = new Set<number>();
  #last = 0;
  #rest: Buffer = Buffer.alloc(0);
  #failure: Error | undefined;

  /** Starts the child process. Calls may follow at once. */
  constructor() {
    const { msbPath } = resolveRuntime();
    const home = configuredHome();
    const env = home === undefined ? process.env : { ...process.env, MSB_HOME: home };
    this.#child = spawn(msbPath, ["api", "--stdio", "--parent", String(process.pid)], {
      env,
      stdio: ["pipe", "pipe", "inherit"],
    });
    const { stdin, stdout } = this.#child;
    if (stdin === null || stdout === null) throw new ProtocolError("`msb api` has no pipes");
    this.#in = stdin;
    this.#out = stdout;
    this.#child.on("error", (error) => {
      this.#fail(new RuntimeIncompleteError(`\`${msbPath}\` cannot be started`, { cause: error }));
    });
    this.#child.on("exit", (code, signal) => {
      // Frames that are still in the pipe come before the end of stdout.
      const ended = (): void => {
        const how = signal ?? String(code);
        this.#fail(new ProtocolError(`\`msb api\` has ended: \`${how}\``));
      };
      if (this.#out.readableEnded || this.#out.destroyed) ended();
      else this.#out.once("close", ended);
    });
    stdin.on("error", () => undefined);
    stdout.on("error", () => undefined);
    stdout.on("data", (chunk: Buffer) => {
      this.#receive(chunk);
    });
    this.#child.unref();
    this.#ref(false);
    const hello = { protocol: PROTOCOL, client: "msb-sdk-typescript/0.1.0" };
    this.send(HELLO, 0, Buffer.from(JSON.stringify(hello)));
  }

  /** Whether the child process has ended. */
  get failed(): boolean {
    return this.#failure !== undefined;
  }

  /** Performs an Operation: one request, one response. */
  async call<K extends keyof Operations>(
    op: K,
    args: Operations[K]["args"],
    options: CallOptions = {},
  ): Promise<Operations[K]["result"]> {
    return this.invoke(op, args, options);
  }

  /** Performs a call by its name, with arguments that are not checked. */
  async invoke(op: string, args: object, options: CallOptions = {}): Promise<unknown> {
    const stream = this.open(op, args, options);
    stream.consume((item) => {
      if (item.kind !== "event") return;
      const progress = item.event["progress"];
      if (progress !== undefined) options.onProgress?.(progress as Progress);
    });
    return stream.result;
  }

  /** Begins a call whose frames the caller reads itself. */
  open(op: string, args: object, options: CallOptions = {}): SessionStream {
    options.signal?.throwIfAborted();
    if (this.#failure !== undefined) throw this.#failure;
    this.#last += 1;
    const number = this.#last;
    const stream = new SessionStream(this, number, op, options.signal);
    this.#streams.set(number, stream);
    if (options.background !== true) {
      this.#foreground.add(number);
      this.#ref(true);
    }
    const request = options.own === true ? { op, args, own: true } : { op, args };
    this.send(REQUEST, number, Buffer.from(JSON.stringify(request)));
    return stream;
  }

  /** Ends the session; sandboxes that belong to it stop. */
  close(): Promise<void> {
    const child = this.#child;
    return new Promise((resolve) => {
      if (child.exitCode !== null || child.signalCode !== null) {
        resolve();
        return;
      }
      child.ref();
      child.once("exit", () => {
        resolve();
      });
      this.#in.end();
    });
  }

  /** @internal */
  send(kind: number, stream: number, payload?: Uint8Array): void {
    if (this.#failure !== undefined) return;
    const length = payload?.length ?? 0;
    // One buffer for small frames: one write(2) instead of two.
    const small = length <= 4096;
    const head = Buffer.allocUnsafe(HEADER + (small ? length : 0));
    head.writeUInt32LE(length, 0);
    head.writeUInt8(kind, 4);
    head.writeUInt32LE(stream, 5);
    if (payload === undefined) {
      this.#in.write(head);
    } else if (small) {
      head.set(payload, HEADER);
      this.#in.write(head);
    } else {
      this.#in.cork();
      this.#in.write(head);
      // A copy: the caller may change its bytes before the pipe takes them.
      this.#in.write(Buffer.from(payload));
      this.#in.uncork();
    }
  }

  #receive(chunk: Buffer): void {
    let bytes = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : chunk;
    while (bytes.length >= HEADER) {
      const length = bytes.readUInt32LE(0);
      if (bytes.length < HEADER + length) break;
      const kind = bytes.readUInt8(4);
      const stream = bytes.readUInt32LE(5);
      const payload = bytes.subarray(HEADER, HEADER + length);
      bytes = bytes.subarray(HEADER + length);
      this.#dispatch(kind, stream, payload);
    }
    this.#rest = bytes;
  }

  #dispatch(kind: number, number: number, payload: Buffer): void {
    if (number === 0) {
      if (kind === ERROR) this.#fail(fromWire(parse(payload) as WireError, "session"));
      return;
    }
    const stream = this.#streams.get(number);
    if (stream === undefined) return;
    if (kind === RESPONSE || kind === ERROR) this.#forget(number);
    stream.receive(kind, payload);
  }

  /** @internal */
  toBackground(number: number): void {
    if (this.#foreground.delete(number) && this.#foreground.size === 0) this.#ref(false);
  }

  #forget(number: number): void {
    this.#streams.delete(number);
    this.toBackground(number);
  }

  /** Keeps the program running while calls are open, and only then. */
  #ref(on: boolean): void {
    for (const pipe of [this.#in, this.#out] as Referable[]) {
      if (on) pipe.ref?.();
      else pipe.unref?.();
    }
  }

  #fail(error: Error): void {
    if (this.#failure !== undefined) return;
    this.#failure = error;
    const open = [...this.#streams.values()];
    this.#streams.clear();
    this.#foreground.clear();
    this.#ref(false);
    for (const stream of open) stream.finish(error);
  }
}

let current: Session | undefined;

/** The session of this thread. It is started by the first call, and again if it has failed. */
export function session(): Session {
  if (current === undefined || current.failed) current = new Session();
  return current;
}

/** Ends the session of this thread, if there is one. Its sandboxes stop. */
export async function closeSession(): Promise<void> {
  const ended = current;
  current = undefined;
  await ended?.close();
}

/** Whether an error has a kind of msb. */
export function hasKind(error: unknown, kind: string): boolean {
  return error instanceof MicrosandboxError && error.kind === kind;
}
