// Snapshots: saved filesystems to start sandboxes from.

import { createReadStream, createWriteStream } from "node:fs";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { resolve } from "node:path";
import { CustomError, IoError, unsupported } from "./errors";
import type { Snapshot as WireSnapshot } from "./generated";
import type { GuestFlush } from "./quantities";
import { hasKind, session } from "./session";

export type SnapshotScope = "disk" | "full";

/** What a snapshot holds. */
export type SnapshotState =
  | { kind: "file"; format: string | null; fstype: string | null; upper: { file: string | null; sizeBytes: bigint | null; integrity: { algorithm: string; digest: string } | null } }
  | { kind: "checkpoint"; checkpointId: string; manifest: Record<string, unknown> };

/** How a snapshot is saved. */
export interface SaveOpts {
  /** Fails with true. */
  withParents?: boolean;
  /** Includes the layers of its image. */
  withImage?: boolean;
  /** Default true, the only form; fails with false. */
  plainTar?: boolean;
  since?: string;
  lastLayers?: number;
}

/** How an archive is loaded. */
export interface LoadOpts {
  dest?: string;
  base?: string;
  group?: string;
  setHead?: boolean;
}

export interface HeadUpdate {
  group: string;
  previous?: string;
  head: string;
  reason: string;
  changed: boolean;
}

export interface SnapshotArchive {
  id: string;
  descriptorDigest: string | null;
  path: string;
}

export interface SnapshotVerifyReport {
  digest: string | null;
  path: string;
  upper: { kind: "notRecorded" } | { kind: "verified"; algorithm: string; digest: string };
}

/** Labels of a snapshot, which msb keeps in its note. */
interface SnapshotNote {
  labels: Record<string, string>;
}

function readNote(note: string | null | undefined): SnapshotNote {
  try {
    const parsed = JSON.parse(note ?? "") as Partial<SnapshotNote>;
    return { labels: parsed.labels ?? {} };
  } catch {
    return { labels: {} };
  }
}

abstract class SnapshotBase {
  /** The id, which never changes. */
  readonly id: string;
  /** Of the files above the image; null until msb has recorded it. */
  readonly digest: string | null;
  readonly sizeBytes: bigint | null;
  readonly imageRef: string;
  readonly format: string | null = null;
  readonly fstype: string | null = null;
  readonly scope: SnapshotScope = "disk";
  readonly reference: string;
  readonly referenceKind: "id" | "path" = "id";
  readonly headUpdate: HeadUpdate | null = null;
  readonly createdAt: Date;
  /** The name of the snapshot; msb has no paths of snapshots. */
  readonly path: string;

  /** @internal */
  constructor(snapshot: WireSnapshot) {
    this.id = snapshot.id;
    this.digest = snapshot.digest ?? null;
    this.sizeBytes = snapshot.bytes == null ? null : BigInt(snapshot.bytes);
    this.imageRef = snapshot.image;
    this.reference = snapshot.names[0] ?? snapshot.id;
    this.path = this.reference;
    this.createdAt = new Date(snapshot.created);
  }

  /** Saves the snapshot to an OCI archive. */
  saveTo(out: string, options: SaveOpts = {}): Promise<void> {
    return save(this.reference, out, options);
  }

  /** Always fails: msb counts the storage of all snapshots together. */
  storageUsage(): Promise<never> {
    return Promise.reject(unsupported("the storage of one snapshot", "use Storage.usage()"));
  }
}

/** A snapshot in a list. */
export class SnapshotHandle extends SnapshotBase {
  readonly name: string | null;
  readonly parentDigest: string | null;
  readonly stateKind = "file" as const;
  readonly checkpointManifestDigest: string | null = null;
  readonly locality: string = "local";
  readonly group: string | null = null;

  /** @internal */
  constructor(snapshot: WireSnapshot) {
    super(snapshot);
    this.name = snapshot.names[0] ?? null;
    this.parentDigest = snapshot.parent ?? null;
  }

  /** Everything about the snapshot. */
  open(): Promise<Snapshot> {
    return Snapshot.open(this.id);
  }

  /** Removes the snapshot. */
  remove(options: { force?: boolean } = {}): Promise<void> {
    return Snapshot.remove(this.id, options);
  }
}

/** A snapshot, taken or looked up. */
export class Snapshot extends SnapshotBase {
  readonly imageManifestDigest: string | null;
  readonly parent: string | null;
  readonly labels: Record<string, string>;
  readonly sourceSandbox: string | null;

  /** @internal */
  constructor(snapshot: WireSnapshot) {
    super(snapshot);
    this.imageManifestDigest = snapshot.image_digest ?? null;
    this.parent = snapshot.parent ?? null;
    this.labels = readNote(snapshot.note).labels;
    this.sourceSandbox = snapshot.sandbox;
  }

  /** What the snapshot holds: files. */
  get state(): SnapshotState {
    const integrity = this.digest === null ? null : { algorithm: "sha256", digest: this.digest };
    const upper = { file: null, sizeBytes: this.sizeBytes, integrity };
    return { kind: "file", format: null, fstype: null, upper };
  }

  /** A snapshot that is filled in step by step. */
  static builder(name: string): SnapshotBuilder {
    return new SnapshotBuilder(name);
  }

  /** A snapshot by its name or id. */
  static async open(name: string): Promise<Snapshot> {
    return new Snapshot(await session().call("snapshot_inspect", { name }));
  }

  /** A snapshot by its name, id or digest. */
  static async get(nameOrDigest: string): Promise<SnapshotHandle> {
    if (!nameOrDigest.includes(":")) {
      return new SnapshotHandle(await session().call("snapshot_inspect", { name: nameOrDigest }));
    }
    const all = await session().call("snapshot_list", {});
    const found = all.find(({ digest }) => digest === nameOrDigest);
    if (found === undefined) throw new CustomError(`no snapshot \`${nameOrDigest}\``);
    return new SnapshotHandle(found);
  }

  /** All snapshots. */
  static async list(): Promise<SnapshotHandle[]> {
    return (await session().call("snapshot_list", {})).map((one) => new SnapshotHandle(one));
  }

  /** Always fails: snapshots are in the store of msb, not in directories. */
  static listDir(_directory: string): Promise<Snapshot[]> {
    return Promise.reject(unsupported("snapshots in a directory", "use Snapshot.list()"));
  }

  /** Removes a snapshot by its name or id. */
  static async remove(name: string, options: { force?: boolean } = {}): Promise<void> {
    await session().call("snapshot_remove", { name, force: options.force === true });
  }

  /** The number of snapshots: the store of msb needs no index. */
  static async reindex(directory?: string): Promise<number> {
    if (directory !== undefined) throw unsupported("an index of a directory");
    return (await session().call("snapshot_list", {})).length;
  }

  /** Saves a snapshot to an OCI archive. */
  static save(name: string, out: string, options: SaveOpts = {}): Promise<void> {
    return save(name, out, options);
  }

  /** Loads a snapshot from an archive. `dest` is its name. */
  static load(archive: string, dest?: string): Promise<SnapshotHandle> {
    return load(archive, dest);
  }

  static loadWithOptions(archive: string, options: LoadOpts): Promise<SnapshotHandle> {
    for (const field of ["base", "group", "setHead"] as const) {
      if (options[field] !== undefined && options[field] !== false) {
        return Promise.reject(unsupported(`the option \`${field}\` of a load`));
      }
    }
    return load(archive, options.dest);
  }

  static async loadMany(archives: readonly string[], options: LoadOpts = {}): Promise<SnapshotHandle[]> {
    const loaded: SnapshotHandle[] = [];
    for (const archive of archives) loaded.push(await Snapshot.loadWithOptions(archive, options));
    return loaded;
  }

  static groupHead(_selector: string): Promise<HeadUpdate> {
    return Promise.reject(unsupported("groups of snapshots"));
  }

  /** Compares the snapshot with what was recorded about it. */
  async verify(): Promise<SnapshotVerifyReport> {
    const report = await session().call("snapshot_verify", { name: this.id });
    if (!report.intact) {
      throw new CustomError(`the snapshot was changed: ${report.differences.join(", ")}`);
    }
    const upper =
      report.recorded === 0 || this.digest === null
        ? ({ kind: "notRecorded" } as const)
        : ({ kind: "verified", algorithm: "sha256", digest: this.digest } as const);
    return { digest: this.digest, path: this.path, upper };
  }

  copyTo(_path: string): never {
    throw unsupported("a copy of a snapshot with other labels", "use saveTo()");
  }
}

/** A snapshot, filled in step by step. */
export class SnapshotBuilder {
  #sandbox: string | undefined;
  #force = false;
  readonly #labels: Record<string, string> = {};

  constructor(private readonly name: string) {}

  /** Sets the sandbox, running or not. */
  fromSandbox(sandbox: string | { name: string }): this {
    this.#sandbox = typeof sandbox === "string" ? sandbox : sandbox.name;
    return this;
  }

  destDir(_path: string): this {
    throw unsupported("a directory for a snapshot", "use saveTo()");
  }

  label(key: string, value: string): this {
    this.#labels[key] = value;
    return this;
  }

  /** Replaces a snapshot of the same name. */
  force(): this {
    this.#force = true;
    return this;
  }

  /** Changes nothing: msb always records digests. */
  recordIntegrity(): this {
    return this;
  }

  resumable(): this {
    throw unsupported("a snapshot of memory", "leave it out: the filesystem is saved");
  }

  full(): this {
    throw unsupported("a snapshot of memory", "leave it out: the filesystem is saved");
  }

  group(_group: string): this {
    throw unsupported("groups of snapshots");
  }

  guestFlush(mode: GuestFlush): this {
    if (mode === "required") throw unsupported("a flush before a snapshot");
    return this;
  }

  /** Takes the snapshot. */
  async create(): Promise<Snapshot> {
    if (this.#sandbox === undefined) throw new CustomError("a snapshot needs `fromSandbox`");
    const labels = Object.keys(this.#labels).length > 0;
    const note = labels ? { note: JSON.stringify({ labels: this.#labels }) } : {};
    const of = this.#sandbox;
    const take = async (name: string): Promise<Snapshot> =>
      new Snapshot(await session().call("snapshot_create", { name, of, ...note }));
    if (!this.#force) return take(this.name);
    // The old snapshot is removed only after the new one was taken.
    const temporary = `msb-new-${randomUUID()}`;
    const { id } = await take(temporary);
    try {
      await Snapshot.remove(this.name, { force: true });
    } catch (error) {
      if (!hasKind(error, "not_found")) {
        await Snapshot.remove(temporary);
        throw error;
      }
    }
    await session().call("snapshot_tag", { name: temporary, to: this.name });
    await Snapshot.remove(temporary);
    return Snapshot.open(id);
  }

  /** Takes the snapshot and saves it to an archive. */
  async createArchive(out: string, plainTar = true): Promise<SnapshotArchive> {
    refuseCompression(plainTar);
    const snapshot = await this.create();
    await snapshot.saveTo(out);
    return { id: snapshot.id, descriptorDigest: snapshot.digest, path: resolve(out) };
  }
}

async function save(name: string, out: string, options: SaveOpts): Promise<void> {
  if (options.withParents === true) {
    throw unsupported("an archive with the parents as snapshots", "save each of them");
  }
  refuseCompression(options.plainTar);
  if (options.since !== undefined || options.lastLayers !== undefined) {
    throw unsupported("an archive with a part of the layers");
  }
  const stream = session().open("snapshot_save", { name, whole: options.withImage === true });
  const file = createWriteStream(resolve(out));
  let failure: Error | undefined;
  file.on("error", (error) => {
    failure = error;
  });
  for (let item = await stream.next(); item !== null; item = await stream.next()) {
    if (failure !== undefined) break;
    if (item.kind === "data" && !file.write(item.data)) await Promise.race([once(file, "drain"), once(file, "close")]);
  }
  if (failure === undefined) {
    await stream.result;
    await new Promise<void>((done) => file.end(done));
  }
  if (failure !== undefined) {
    stream.cancel();
    throw new IoError(`cannot write \`${out}\``, { cause: failure });
  }
}

function refuseCompression(plainTar: boolean | undefined): void {
  if (plainTar === false) throw unsupported("a compressed archive", "compress the file");
}

async function load(archive: string, name?: string): Promise<SnapshotHandle> {
  const file = createReadStream(resolve(archive));
  await once(file, "open").catch((error: unknown) => {
    throw new IoError(`cannot read \`${archive}\``, { cause: error });
  });
  const stream = session().open("snapshot_load", name === undefined ? {} : { name });
  try {
    for await (const chunk of file) await stream.write(chunk as Buffer);
    await stream.end();
  } catch (error) {
    stream.cancel();
    await stream.result;
    throw error;
  }
  return new SnapshotHandle((await stream.result) as WireSnapshot);
}
