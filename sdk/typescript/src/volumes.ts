// Volumes: files that outlive a sandbox.

import { unsupported } from "./errors";
import { VolumeFs } from "./fs";
import type { Volume as WireVolume } from "./generated";
import type { VolumeKind } from "./mounts";
import { session } from "./session";
import { mebibytes } from "./text";

/** A volume, as it was when it was looked up. */
export class VolumeHandle {
  readonly name: string;
  readonly isDefault: boolean;
  readonly kind: VolumeKind;
  readonly quotaMib: number | null;
  readonly usedBytes: number;
  readonly capacityBytes: number | null;
  readonly diskFormat: string | null;
  /** Always null: msb does not report it. */
  readonly diskFstype: string | null = null;
  readonly labels: [string, string][];
  readonly createdAt: Date;

  /** @internal */
  constructor(volume: WireVolume) {
    const size = volume.size ?? null;
    this.name = volume.name;
    this.isDefault = false;
    this.kind = volume.kind;
    this.quotaMib = size === null ? null : size / 1_048_576;
    this.usedBytes = volume.used;
    this.capacityBytes = size;
    this.diskFormat = volume.kind === "disk" ? "raw" : null;
    this.labels = Object.entries(volume.labels);
    this.createdAt = new Date(volume.created);
  }

  /** Removes the volume. Fails if a sandbox uses it. */
  remove(): Promise<void> {
    return Volume.remove(this.name);
  }

  /** The files of the volume. */
  fs(): VolumeFs {
    return new VolumeFs({ volume: this.name });
  }
}

/** A volume, filled in step by step. */
export class VolumeBuilder {
  #kind: VolumeKind = "dir";
  #sizeMib: number | undefined;
  readonly #labels: Record<string, string> = {};

  constructor(private readonly name: string) {}

  /** Stores the files in a directory of the host. This is the default. */
  directory(): this {
    this.#kind = "dir";
    return this;
  }

  /** Stores the files in a disk image, which has a size. */
  disk(): this {
    this.#kind = "disk";
    return this;
  }

  /** Limits what it may hold, in MiB. */
  quota(mib: number): this {
    return this.size(mib);
  }

  /** Sets what it may hold, in MiB. */
  size(mib: number): this {
    this.#sizeMib = mib;
    return this;
  }

  /** Sets a label of the volume. */
  label(key: string, value: string): this {
    this.#labels[key] = value;
    return this;
  }

  /** The settings so far. */
  build(): { name: string; kind: VolumeKind; size?: string; labels: Record<string, string> } {
    const size = this.#sizeMib === undefined ? {} : { size: mebibytes(this.#sizeMib) };
    return { name: this.name, kind: this.#kind, labels: { ...this.#labels }, ...size };
  }

  /** Creates the volume. */
  async create(): Promise<Volume> {
    const { name } = await session().call("volume_create", this.build());
    return new Volume(name);
  }
}

/** A volume by its name. */
export class Volume {
  /** @internal */
  constructor(readonly name: string) {}

  /** A volume that is filled in step by step. */
  static builder(name: string): VolumeBuilder {
    return new VolumeBuilder(name);
  }

  /** A volume that exists. */
  static async get(name: string): Promise<VolumeHandle> {
    return new VolumeHandle(await session().call("volume_inspect", { name }));
  }

  /** Always fails: msb has no volume that every sandbox gets. */
  static getDefault(): Promise<VolumeHandle> {
    return Promise.reject(unsupported("a default volume", "create a volume and mount it"));
  }

  /** All volumes. */
  static async list(): Promise<VolumeHandle[]> {
    return (await session().call("volume_list", {})).map((volume) => new VolumeHandle(volume));
  }

  /** Removes a volume. Fails if a sandbox uses it. */
  static async remove(name: string): Promise<void> {
    await session().call("volume_remove", { name });
  }

  /** Always fails: the place of a volume on the host is internal. Use {@link fs}. */
  get path(): string {
    throw unsupported("the host path of a volume", "use `fs()`");
  }

  /** The files of the volume. */
  fs(): VolumeFs {
    return new VolumeFs({ volume: this.name });
  }
}
