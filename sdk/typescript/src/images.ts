// Images: the store of this host, the image of a new sandbox, and registries.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { ImageError, InvalidConfigError, unsupported } from "./errors";
import type { ImageInspection, ImageSummary, Registry, Spec } from "./generated";
import { msbCommand } from "./msb_command";
import type { DiskImageFormat } from "./quantities";
import { session } from "./session";
import { mebibytes } from "./text";

/** An image in the store. */
export class ImageHandle {
  readonly reference: string;
  readonly sizeBytes: number;
  readonly manifestDigest: string;
  readonly architecture: string;
  readonly os: string;
  readonly layerCount: number;
  readonly lastUsedAt: Date | null;
  readonly createdAt: Date | null;

  /** @internal */
  constructor(image: ImageSummary | ImageInspection) {
    const [os = "", architecture = ""] = image.platform.split("/");
    this.reference = image.reference;
    this.sizeBytes = image.size;
    this.manifestDigest = image.digest;
    this.architecture = architecture;
    this.os = os;
    this.layerCount = typeof image.layers === "number" ? image.layers : image.layers.length;
    this.lastUsedAt = image.used == null ? null : new Date(image.used);
    this.createdAt = image.created == null ? null : new Date(image.created);
  }

  /** Everything about the image. */
  inspect(): Promise<ImageDetail> {
    return Image.inspect(this.reference);
  }

  /** Removes the image from the store. */
  remove(options: { force?: boolean } = {}): Promise<void> {
    return Image.remove(this.reference, options);
  }
}

/** The run configuration of an image. */
export interface ImageConfigDetail {
  digest: string;
  env: string[];
  cmd: string[] | null;
  entrypoint: string[] | null;
  workingDir: string | null;
  user: string | null;
  labels: Record<string, string> | null;
  stopSignal: string | null;
}

/** One layer of an image. */
export interface ImageLayerDetail {
  diffId: string;
  blobDigest: string;
  mediaType: string | null;
  compressedSizeBytes: number | null;
  erofsSizeBytes: number | null;
  position: number;
}

/** Everything about an image. */
export interface ImageDetail {
  handle: ImageHandle;
  config: ImageConfigDetail | null;
  layers: ImageLayerDetail[];
}

/** What a removal of unused images removed. */
export interface ImagePruneReport {
  imageRefsRemoved: number;
  manifestsRemoved: number;
  layersRemoved: number;
  fsmetaRemoved: number;
  vmdkRemoved: number;
  bytesReclaimed: number | null;
  skippedInUse: number;
}

function detail(image: ImageInspection): ImageDetail {
  const { config } = image;
  const list = (items: string[] | undefined): string[] | null =>
    items === undefined || items.length === 0 ? null : items;
  return {
    handle: new ImageHandle(image),
    config: {
      digest: image.digest,
      env: config.env ?? [],
      cmd: list(config.cmd),
      entrypoint: list(config.entrypoint),
      workingDir: config.workdir ?? null,
      user: config.user ?? null,
      labels: config.labels ?? null,
      stopSignal: config.stop_signal ?? null,
    },
    layers: image.layers.map((layer, position) => ({
      diffId: layer.diff_id,
      blobDigest: layer.digest,
      mediaType: layer.media_type,
      compressedSizeBytes: layer.size,
      erofsSizeBytes: layer.unpacked,
      position,
    })),
  };
}

/** The store of images. */
export const Image = {
  /** An image in the store. */
  async get(reference: string): Promise<ImageHandle> {
    return new ImageHandle(await session().call("image_inspect", { name: reference }));
  },

  /** All images in the store. */
  async list(): Promise<ImageHandle[]> {
    return (await session().call("image_list", {})).map((image) => new ImageHandle(image));
  },

  /** Everything about an image in the store. */
  async inspect(reference: string): Promise<ImageDetail> {
    return detail(await session().call("image_inspect", { name: reference }));
  },

  /** Removes an image. Fails if a sandbox uses it, unless `force` is set. */
  async remove(reference: string, options: { force?: boolean } = {}): Promise<void> {
    await session().call("image_remove", { name: reference, force: options.force === true });
  },

  /** Removes images that no sandbox uses. */
  async prune(): Promise<ImagePruneReport> {
    const report = await session().call("image_prune", { all: true });
    const left = await session().call("image_list", {});
    return {
      imageRefsRemoved: report.images.length,
      manifestsRemoved: report.images.length,
      layersRemoved: report.layers,
      fsmetaRemoved: 0,
      vmdkRemoved: report.disks,
      bytesReclaimed: report.bytes,
      skippedInUse: left.filter((image) => image.sandboxes.length > 0).length,
    };
  },

  /** Loads images from an archive of docker or OCI, or from an OCI directory. */
  async load(path: string, options: { tag?: string } = {}): Promise<ImageHandle[]> {
    const tag = options.tag === undefined ? [] : ["--tag", options.tag];
    const args = ["load", "--quiet", "--json", "--input", resolve(path), ...tag];
    const loaded = JSON.parse(await msbCommand(args, ImageError)) as ImageInspection[];
    return loaded.map((image) => new ImageHandle(image));
  },

  /**
   * Saves images to a file that docker, podman and msb read. The file is an OCI archive that also
   * has the index of docker, so `format` fails: there is nothing to choose.
   */
  async save(
    reference: string | readonly string[],
    options: { outputPath: string; format?: "docker" | "oci" },
  ): Promise<void> {
    if (options.format !== undefined) {
      throw unsupported("a format of a saved image", "leave it out: the file has both formats");
    }
    const names = typeof reference === "string" ? [reference] : reference;
    await msbCommand(["save", "--output", resolve(options.outputPath), ...names], ImageError);
  },

  /** Fetches an image from its registry. */
  async pull(
    reference: string,
    options: { registry?: Registry; signal?: AbortSignal } = {},
  ): Promise<ImageHandle> {
    const registry = options.registry ?? null;
    const pulled = await session().call(
      "image_pull",
      { name: reference, registry },
      { signal: options.signal },
    );
    return new ImageHandle(pulled);
  },
} as const;

/** What a root filesystem comes from. */
export type RootfsSource =
  | { kind: "oci"; reference: string; upperSizeMib?: number }
  | { kind: "bind"; path: string }
  | { kind: "disk"; path: string; fstype?: string };

function looksLikePath(text: string): boolean {
  return /^(\/|\.\.?(\/|$)|~)/.test(text);
}

/** Converts text to the source of a root filesystem: a path, or the name of an image. */
export function intoRootfsSource(source: string | RootfsSource): RootfsSource {
  if (typeof source !== "string") return source;
  return looksLikePath(source)
    ? { kind: "bind", path: source }
    : { kind: "oci", reference: source };
}

/** The writable layer of a sandbox. */
export class RootDiskBuilder {
  /** @internal */
  sizeMib: number | undefined;
  /** @internal */
  inMemory = false;

  /** Limits the size, in MiB. */
  size(mib: number): this {
    this.sizeMib = mib;
    return this;
  }

  /** Keeps the writable layer in memory; the sandbox has to be ephemeral. */
  tmpfs(): this {
    this.inMemory = true;
    return this;
  }

  flat(): this {
    throw unsupported("a flat root disk");
  }

  disk(_path: string): this {
    throw unsupported("a disk image as the writable layer");
  }

  format(_format: "raw" | "qcow2"): this {
    throw unsupported("a format of the root disk");
  }

  fstype(_fstype: string): this {
    throw unsupported("a file system of the root disk");
  }

  /** Fails with `copy` and `reflink`: msb mounts images and copies nothing. */
  cloneStrategy(strategy: "auto" | "copy" | "reflink"): this {
    if (strategy !== "auto") throw unsupported("a strategy to clone the root disk");
    return this;
  }
}

/** The image of a sandbox, filled in step by step. */
export class ImageBuilder {
  #source: RootfsSource | undefined;
  #rootDisk = new RootDiskBuilder();

  /** An image by its name, from a registry or the store. */
  oci(reference: string): this {
    this.#source = { kind: "oci", reference };
    return this;
  }

  /** A directory of the host as the root filesystem. */
  bind(directory: string): this {
    this.#source = { kind: "bind", path: directory };
    return this;
  }

  /** A disk image of the host as the root filesystem. */
  disk(path: string): this {
    this.#source = { kind: "disk", path };
    return this;
  }

  /** Sets the size of the writable layer in MiB, or more of it by a callback. */
  rootDisk(disk: number | ((builder: RootDiskBuilder) => RootDiskBuilder)): this {
    this.#rootDisk =
      typeof disk === "number" ? new RootDiskBuilder().size(disk) : disk(new RootDiskBuilder());
    return this;
  }

  /** Sets the size of the writable layer in MiB. */
  upperSize(mib: number): this {
    return this.rootDisk(mib);
  }

  /** Sets the file system of a disk image. */
  fstype(fstype: string): this {
    if (this.#source?.kind !== "disk") {
      throw new InvalidConfigError("`fstype` is for a disk image");
    }
    this.#source.fstype = fstype;
    return this;
  }

  /** @internal */
  apply(spec: Spec): void {
    if (this.#source === undefined) throw new InvalidConfigError("an image is required");
    applyImage(spec, this.#source);
    applyRootDisk(spec, this.#rootDisk);
  }
}

/** Sets the image of a Spec. */
export function applyImage(spec: Spec, source: RootfsSource): void {
  switch (source.kind) {
    case "oci":
      spec.image = source.reference;
      if (source.upperSizeMib !== undefined) spec.disk = mebibytes(source.upperSizeMib);
      break;
    case "bind":
      spec.image = resolve(source.path.replace(/^~(?=$|\/)/, process.env["HOME"] ?? "~"));
      break;
    case "disk":
      spec.image = `${resolve(source.path)}${source.fstype === undefined ? "" : `:fstype=${source.fstype}`}`;
      break;
  }
}

/** Sets the writable layer of a Spec. */
export function applyRootDisk(spec: Spec, disk: RootDiskBuilder): void {
  if (disk.sizeMib !== undefined) spec.disk = mebibytes(disk.sizeMib);
  // The writable layer of an ephemeral sandbox is in memory.
  if (disk.inMemory) spec.ephemeral = true;
}

/** A login at a registry. */
export interface RegistryAuth {
  kind: "anonymous" | "basic";
  username?: string;
  password?: string;
}

/** How a registry is reached. */
export class RegistryConfigBuilder {
  readonly #registry: Registry = {};
  #certificates: Uint8Array[] = [];

  /** Logs in to the registry. */
  auth(auth: RegistryAuth): this {
    if (auth.kind === "basic") {
      if (auth.username === undefined || auth.password === undefined) {
        throw new InvalidConfigError("basic auth needs a username and a password");
      }
      this.#registry.login = { user: auth.username, password: auth.password };
    }
    return this;
  }

  /** Reaches the registry over plain HTTP, or without a verified certificate. */
  insecure(): this {
    this.#registry.insecure = true;
    return this;
  }

  /** Adds CA certificates, as PEM. */
  caCerts(pem: Uint8Array): this {
    this.#certificates.push(pem);
    return this;
  }

  /** Sets a file with CA certificates, as PEM. */
  caCertsPath(path: string): this {
    this.#registry.ca = resolve(path);
    return this;
  }

  /** How the registry is reached; certificates are written to a file for the time of a call. */
  build(): { registry: Registry; cleanup: () => void } {
    if (this.#certificates.length === 0) {
      return { registry: { ...this.#registry }, cleanup: () => undefined };
    }
    const directory = mkdtempSync(join(tmpdir(), "msb-sdk-"));
    const path = join(directory, "ca.pem");
    writeFileSync(path, Buffer.concat(this.#certificates));
    const cleanup = (): void => {
      rmSync(directory, { recursive: true, force: true });
    };
    return { registry: { ...this.#registry, ca: path }, cleanup };
  }
}

export type { DiskImageFormat };
