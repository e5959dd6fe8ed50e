// Mounts of host directories, volumes and tmpfs.

import { resolve } from "node:path";
import { InvalidConfigError, unsupported } from "./errors";
import type { DiskImageFormat, HostPermissions, StatVirtualization } from "./quantities";
import { hasKind, session } from "./session";
import { mebibytes } from "./text";

/** Whether a named volume is created by the mount. */
export type NamedVolumeMode = "existing" | "create" | "ensure-exists";
/** The storage of a volume. */
export type VolumeKind = "dir" | "disk";

/** A mount as it is sent to msb. */
export interface MountConfig {
  guestPath: string;
  /** A mount of the Spec, or undefined for a tmpfs. */
  mount?: string;
  /** A tmpfs of the Spec. */
  tmpfs?: string;
  /** A volume that the mount creates. */
  volume?: { name: string; mode: NamedVolumeMode; kind: VolumeKind; sizeMib?: number };
}

/** A mount, filled in step by step. */
export class MountBuilder {
  #source: "bind" | "named" | "tmpfs" | undefined;
  #from = "";
  #readonly = false;
  #sizeMib: number | undefined;
  #volume: MountConfig["volume"];

  constructor(private readonly guestPath: string) {}

  /** Mounts a file or directory of the host. */
  bind(hostPath: string): this {
    if (hostPath.includes(":")) {
      throw new InvalidConfigError(`a mounted path has no colon: \`${hostPath}\``);
    }
    this.#source = "bind";
    this.#from = resolve(hostPath);
    return this;
  }

  /** Mounts a volume, which is created if it is missing. */
  named(name: string): this {
    return this.namedWith(name);
  }

  /** Mounts a volume with settings for the case that it is created. */
  namedWith(
    name: string,
    mode: NamedVolumeMode = "ensure-exists",
    kind: VolumeKind = "dir",
    sizeMib?: number,
    quotaMib?: number,
  ): this {
    this.#source = "named";
    this.#from = name;
    this.#volume = { name, mode, kind };
    const size = sizeMib ?? quotaMib;
    if (size !== undefined) this.#volume.sizeMib = size;
    return this;
  }

  /** Mounts a tmpfs; `size` limits it. */
  tmpfs(): this {
    this.#source = "tmpfs";
    return this;
  }

  disk(_hostPath: string): this {
    throw unsupported("a mount of a disk image", "use a volume of kind `disk`");
  }

  format(_format: DiskImageFormat): this {
    throw unsupported("the format of a mounted disk image");
  }

  fstype(_fstype: string): this {
    throw unsupported("the file system of a mounted disk image");
  }

  /** Mounts it read-only. */
  readonly(): this {
    this.#readonly = true;
    return this;
  }

  noexec(): this {
    throw unsupported("a mount with noexec", "leave it out: mounts allow execution");
  }

  /** Changes nothing: mounts are always nosuid. */
  nosuid(): this {
    return this;
  }

  /** Changes nothing: mounts are always nodev. */
  nodev(): this {
    return this;
  }

  /** Sets the size of a tmpfs or of a volume that is created, in MiB. */
  size(mib: number): this {
    this.#sizeMib = mib;
    return this;
  }

  /** Sets the size of a volume that is created, in MiB. */
  quota(mib: number): this {
    return this.size(mib);
  }

  /** Fails with `strict`: owners and modes are those of the host. */
  statVirtualization(policy: StatVirtualization): this {
    if (policy === "strict") throw unsupported("strict virtualization of owners and modes");
    return this;
  }

  /** Fails with `private`: modes that are set inside are set on the host. */
  hostPermissions(policy: HostPermissions): this {
    if (policy === "private") throw unsupported("modes that are not set on the host");
    return this;
  }

  owner(_uid: number, _gid: number): this {
    throw unsupported("an owner for a mount");
  }

  owned(_options?: { kind?: VolumeKind; sizeMib?: number; quotaMib?: number }): this {
    throw unsupported("a volume that belongs to a sandbox", "use `named` and remove the volume");
  }

  captured(): this {
    throw unsupported("a volume that is captured by a snapshot");
  }

  /** The mount as it is sent to msb. */
  build(): MountConfig {
    const guestPath = this.guestPath;
    if (!guestPath.startsWith("/") || guestPath.includes(":")) {
      throw new InvalidConfigError(`not a path to mount at: \`${guestPath}\``);
    }
    const suffix = this.#readonly ? ":ro" : "";
    switch (this.#source) {
      case undefined:
        throw new InvalidConfigError(`the mount at \`${guestPath}\` needs a source`);
      case "tmpfs":
        if (this.#readonly) throw new InvalidConfigError("a tmpfs is not read-only");
        return {
          guestPath,
          tmpfs: this.#sizeMib === undefined ? guestPath : `${guestPath}:${mebibytes(this.#sizeMib)}`,
        };
      case "bind":
        if (this.#sizeMib !== undefined) throw new InvalidConfigError("a bind mount has no size");
        return { guestPath, mount: `${this.#from}:${guestPath}${suffix}` };
      case "named": {
        const volume = this.#volume;
        if (volume !== undefined && this.#sizeMib !== undefined) volume.sizeMib = this.#sizeMib;
        const mount = `${this.#from}:${guestPath}${suffix}`;
        return volume === undefined ? { guestPath, mount } : { guestPath, mount, volume };
      }
    }
  }
}

/** Creates the volumes of mounts that are to exist. */
export async function prepareVolumes(mounts: readonly MountConfig[]): Promise<void> {
  for (const { volume } of mounts) {
    if (volume === undefined || volume.mode === "existing") continue;
    const { name, kind, sizeMib } = volume;
    try {
      const size = sizeMib === undefined ? {} : { size: mebibytes(sizeMib) };
      await session().call("volume_create", { name, kind, ...size });
    } catch (error) {
      if (volume.mode === "create" || !hasKind(error, "exists")) throw error;
    }
  }
}
