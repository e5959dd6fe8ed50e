// Files inside a sandbox or a volume.

import "./dispose";
import { resolve } from "node:path";
import type { FileMeta, Operations } from "./generated";
import { type SessionStream, hasKind, session } from "./session";
import { escapePath, toBytes, toText, unescapeBytes } from "./text";

/** The type of a file. */
export type FsEntryKind = "file" | "directory" | "symlink" | "other";

/** One entry of a directory. */
export interface FsEntry {
  /** The path: that of the directory and the name. */
  path: string;
  kind: FsEntryKind;
  /** The size of the content in bytes. */
  size: number;
  /** Permission bits, such as 0o644. */
  mode: number;
  modified: Date | null;
}

/** The attributes of a file. */
export interface FsMetadata {
  kind: FsEntryKind;
  /** The size of the content in bytes. */
  size: number;
  /** Permission bits, such as 0o644. */
  mode: number;
  /** Whether the mode has no write permission. */
  readonly: boolean;
  modified: Date | null;
  created: Date | null;
}

/** Where the files are. */
export interface FileTarget {
  sandbox?: string;
  volume?: string;
}

/** The contents of a file, in pieces. */
export class FsReadStream implements AsyncIterable<Uint8Array>, AsyncDisposable {
  readonly #stream: SessionStream;
  #first: Uint8Array | null;

  /** @internal */
  constructor(stream: SessionStream, first: Uint8Array | null) {
    this.#stream = stream;
    this.#first = first;
  }

  /** @internal */
  static async open(target: FileTarget, path: string): Promise<FsReadStream> {
    const stream = session().open("file_read", { ...target, path: escapePath(path) });
    // The first piece is awaited, so that a missing file fails here.
    return new FsReadStream(stream, await piece(stream));
  }

  /** The next piece, or null at the end of the file. */
  async recv(): Promise<Uint8Array | null> {
    const first = this.#first;
    if (first !== null) {
      this.#first = null;
      return first;
    }
    return piece(this.#stream);
  }

  /** The rest of the file. */
  async collect(): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for await (const bytes of this) pieces.push(bytes);
    return Buffer.concat(pieces);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    try {
      for (let bytes = await this.recv(); bytes !== null; bytes = await this.recv()) yield bytes;
    } finally {
      await this[Symbol.asyncDispose]();
    }
  }

  /** Ends the stream; the rest of the file is not read. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#stream.ended) return;
    this.#stream.consume(() => undefined);
    this.#stream.cancel();
    await this.#stream.result.catch(() => undefined);
  }
}

async function piece(stream: SessionStream): Promise<Uint8Array | null> {
  for (let item = await stream.next(); item !== null; item = await stream.next()) {
    if (item.kind === "data" && item.data.length > 0) return item.data;
  }
  return null;
}

/** A file that is written in pieces. It is complete after `close`. */
export class FsWriteSink implements AsyncDisposable {
  readonly #stream: SessionStream;

  /** @internal */
  constructor(target: FileTarget, path: string) {
    this.#stream = session().open("file_write", { ...target, path: escapePath(path) });
  }

  /** Writes bytes or text. Resolves when there is room for more. */
  async write(data: Uint8Array | string): Promise<void> {
    try {
      await this.#stream.write(toBytes(data));
    } catch (error) {
      // The reason of the failure, if the call has failed, says more.
      await this.#stream.result;
      throw error;
    }
  }

  /** Completes the file. */
  async close(): Promise<void> {
    await this.#stream.end();
    await this.#stream.result;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** The streams of a volume have the same form. */
export { FsReadStream as VolumeFsReadStream, FsWriteSink as VolumeFsWriteSink };

type FileOperation = Extract<keyof Operations, `file_${string}`>;

/** Files of a volume. Paths are relative to its root. */
export class VolumeFs {
  protected readonly target: FileTarget;

  /** @internal */
  constructor(target: FileTarget) {
    this.target = target;
  }

  /** Reads a whole file. */
  async read(path: string): Promise<Uint8Array> {
    return (await this.readStream(path)).collect();
  }

  /** Reads a whole file as UTF-8 text. */
  async readToString(path: string): Promise<string> {
    return toText(await this.read(path));
  }

  /** Reads a file in pieces. */
  readStream(path: string): Promise<FsReadStream> {
    return FsReadStream.open(this.target, path);
  }

  /** Writes a file in pieces. An existing file is replaced. */
  writeStream(path: string): Promise<FsWriteSink> {
    return Promise.resolve().then(() => new FsWriteSink(this.target, path));
  }

  /** Writes a whole file. An existing file is replaced. */
  async write(path: string, data: Uint8Array | string): Promise<void> {
    const sink = await this.writeStream(path);
    await sink.write(data);
    await sink.close();
  }

  /** Lists a directory, sorted by name. */
  async list(path: string): Promise<FsEntry[]> {
    const entries = await this.call("file_list", { path: escapePath(path) });
    const base = path.endsWith("/") ? path : `${path}/`;
    return entries.map((meta) => entry(`${base}${toText(unescapeBytes(meta.name))}`, meta));
  }

  /** Creates a directory and its parents; an existing one is no error. */
  async mkdir(path: string): Promise<void> {
    await this.call("file_mkdir", { path: escapePath(path), parents: true });
  }

  /** Removes a directory and everything below it. */
  async removeDir(path: string): Promise<void> {
    await this.call("file_remove", { path: escapePath(path), recursive: true });
  }

  /** Removes a file. */
  async remove(path: string): Promise<void> {
    await this.call("file_remove", { path: escapePath(path) });
  }

  /** Copies a file or directory within the same place. */
  async copy(from: string, to: string): Promise<void> {
    await this.call("file_copy", { from: escapePath(from), to: escapePath(to) });
  }

  /** Renames a file or directory. */
  async rename(from: string, to: string): Promise<void> {
    await this.call("file_rename", { from: escapePath(from), to: escapePath(to) });
  }

  /** The attributes of a file; symbolic links are followed. */
  async stat(path: string): Promise<FsMetadata> {
    return metadata(await this.call("file_stat", { path: escapePath(path), follow: true }));
  }

  /** Whether there is something at a path. */
  async exists(path: string): Promise<boolean> {
    try {
      await this.call("file_stat", { path: escapePath(path), follow: false });
      return true;
    } catch (error) {
      if (error instanceof Error && error.name === "PathNotFoundError") return false;
      if (hasKind(error, "invalid") && /not a directory/i.test(String(error))) return false;
      throw error;
    }
  }

  /** @internal */
  protected call<K extends FileOperation>(
    op: K,
    args: Operations[K]["args"],
  ): Promise<Operations[K]["result"]> {
    return session().call(op, { ...args, ...this.target });
  }
}

/** Files of a sandbox, as root. */
export class SandboxFsOps extends VolumeFs {
  /** Copies a file or directory of the host into the sandbox. */
  async copyFromHost(hostPath: string, guestPath: string): Promise<void> {
    await this.call("file_push", { from: resolve(hostPath), to: escapePath(guestPath) });
  }

  /** Copies a file or directory of the sandbox to the host. */
  async copyToHost(guestPath: string, hostPath: string): Promise<void> {
    await this.call("file_pull", { from: escapePath(guestPath), to: resolve(hostPath) });
  }

  /** Creates a symbolic link. */
  async symlink(target: string, path: string): Promise<void> {
    await this.call("file_symlink", { target: escapePath(target), path: escapePath(path) });
  }

  /** The path without symbolic links. */
  async realPath(path: string): Promise<string> {
    const { path: real } = await this.call("file_real", { path: escapePath(path) });
    return toText(unescapeBytes(real));
  }

  /** The target of a symbolic link. */
  async readLink(path: string): Promise<string> {
    const meta = await this.call("file_stat", { path: escapePath(path), follow: false });
    return toText(unescapeBytes(meta.target ?? ""));
  }
}

function kindOf(meta: FileMeta): FsEntryKind {
  const kinds: readonly string[] = ["file", "directory", "symlink"];
  return kinds.includes(meta.kind) ? (meta.kind as FsEntryKind) : "other";
}

function entry(path: string, meta: FileMeta): FsEntry {
  return {
    path,
    kind: kindOf(meta),
    size: meta.size,
    mode: meta.mode,
    modified: new Date(meta.modified),
  };
}

function metadata(meta: FileMeta): FsMetadata {
  return {
    kind: kindOf(meta),
    size: meta.size,
    mode: meta.mode,
    readonly: (meta.mode & 0o222) === 0,
    modified: new Date(meta.modified),
    created: meta.created == null ? null : new Date(meta.created),
  };
}
