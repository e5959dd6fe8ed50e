// The log of a sandbox: output of commands and messages of the system.

import "./dispose";
import { InvalidConfigError } from "./errors";
import type { LogLine } from "./generated";
import { type SessionStream, session } from "./session";
import { toText, unescapeBytes } from "./text";

/** Where an entry of the log came from. */
export type LogSource = "stdout" | "stderr" | "output" | "system";
/** A source to read, or all of them. */
export type LogReadSource = LogSource | "all";

/** Which entries to read. */
export interface LogReadOptions {
  /** Only the last entries. */
  tail?: number;
  since?: Date;
  until?: Date;
  /** Default: `stdout`, `stderr` and `output`. */
  sources?: LogReadSource[];
}

/** Which entries to follow. */
export interface LogStreamOptions {
  /** Default: `stdout`, `stderr` and `output`. */
  sources?: LogReadSource[];
  since?: Date;
  /** Continues after the entry with this cursor. Excludes `since`. */
  fromCursor?: string;
  until?: Date;
  /** Whether the stream waits for further entries. Default false. */
  follow?: boolean;
}

/** One entry of the log: a line, with its line end if it has one. */
export interface LogEntry {
  timestamp: Date;
  source: LogSource;
  /** The number of the Exec, or null for messages of the system. */
  sessionId: number | null;
  data: Uint8Array;
  /** Continues a stream after this entry. */
  cursor: string;
  /** The data as text. */
  text(): string;
}

interface LogQuery extends LogStreamOptions {
  exec?: number;
}

/** The entries of a log, as they are written. */
export class LogStream implements AsyncIterable<LogEntry>, AsyncDisposable {
  readonly #stream: SessionStream;
  readonly #query: LogQuery;
  readonly #sources: Set<string>;
  #queue: LogEntry[] = [];
  #position: number;

  /** @internal */
  constructor(sandbox: string, query: LogQuery) {
    if (query.since !== undefined && query.fromCursor !== undefined) {
      throw new InvalidConfigError("`since` and `fromCursor` exclude each other");
    }
    const skip = query.fromCursor === undefined ? 0 : Number(query.fromCursor);
    if (!Number.isSafeInteger(skip) || skip < 0) {
      throw new InvalidConfigError(`not a cursor of a log: \`${query.fromCursor ?? ""}\``);
    }
    const sources: LogReadSource[] = query.sources ?? ["stdout", "stderr", "output"];
    this.#sources = new Set<string>(
      sources.includes("all") ? ["stdout", "stderr", "output", "system"] : sources,
    );
    // `output` is the output of terminals, which msb records as stdout.
    if (this.#sources.has("output")) this.#sources.add("stdout");
    this.#query = query;
    this.#position = skip;
    this.#stream = session().open(
      "sandbox_logs_follow",
      { name: sandbox, skip, follow: query.follow === true },
      { background: false },
    );
  }

  /** The next entry, or null at the end. */
  async recv(): Promise<LogEntry | null> {
    for (;;) {
      const entry = this.#queue.shift();
      if (entry !== undefined) return entry;
      const item = await this.#stream.next();
      if (item === null) return null;
      if (item.kind !== "event") continue;
      for (const line of (item.event["items"] ?? []) as LogLine[]) this.#take(line);
    }
  }

  #take(line: LogLine): void {
    this.#position += 1;
    const { exec, since, until } = this.#query;
    if (!this.#sources.has(line.source)) return;
    if (exec !== undefined && line.exec !== exec) return;
    if (since !== undefined && line.time < since.getTime()) return;
    if (until !== undefined && line.time > until.getTime()) return;
    const data = unescapeBytes(line.bytes);
    this.#queue.push({
      timestamp: new Date(line.time),
      source: line.source,
      sessionId: line.source === "system" ? null : line.exec,
      data,
      cursor: String(this.#position),
      text: () => toText(data),
    });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<LogEntry> {
    try {
      for (let entry = await this.recv(); entry !== null; entry = await this.recv()) yield entry;
    } finally {
      await this.close();
    }
  }

  /** Ends the stream. */
  async close(): Promise<void> {
    if (this.#stream.ended) return;
    this.#stream.consume(() => undefined);
    this.#stream.cancel();
    await this.#stream.result.catch(() => undefined);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Reads the entries that there are. */
export async function readLogs(
  sandbox: string,
  options: LogReadOptions & { exec?: number; fromCursor?: string } = {},
): Promise<LogEntry[]> {
  const { tail, ...query } = options;
  const entries: LogEntry[] = [];
  for await (const entry of new LogStream(sandbox, { ...query, follow: false })) {
    entries.push(entry);
    if (tail !== undefined && entries.length > tail) entries.shift();
  }
  return entries;
}
