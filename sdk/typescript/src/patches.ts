// Changes to the files of a sandbox before its first command.

import { resolve } from "node:path";
import type { Patch as WirePatch } from "./generated";
import { toBytes, toText } from "./text";

/** Options of a file that a patch writes. */
export interface PatchFileOptions {
  /** Permission bits, such as 0o755. */
  mode?: number;
  /** Whether an existing file is replaced. Default false: it is an error. */
  replace?: boolean;
}

/** One change of the root filesystem. */
export type Patch =
  | ({ kind: "text"; path: string; content: string } & PatchFileOptions)
  | ({ kind: "file"; path: string; content: Uint8Array } & PatchFileOptions)
  | ({ kind: "copyFile"; src: string; dst: string } & PatchFileOptions)
  | { kind: "copyDir"; src: string; dst: string; replace?: boolean }
  | { kind: "symlink"; target: string; link: string; replace?: boolean }
  | { kind: "mkdir"; path: string; mode?: number }
  | { kind: "remove"; path: string }
  | { kind: "append"; path: string; content: string };

/** Changes of the root filesystem, in order. */
export class PatchBuilder {
  readonly #patches: Patch[] = [];

  #add(patch: Patch): this {
    this.#patches.push(patch);
    return this;
  }

  /** Writes a file with this text. */
  text(path: string, content: string, options: PatchFileOptions = {}): this {
    return this.#add({ kind: "text", path, content, ...options });
  }

  /** Writes a file with these bytes. */
  file(path: string, content: Uint8Array | string, options: PatchFileOptions = {}): this {
    return this.#add({ kind: "file", path, content: toBytes(content), ...options });
  }

  /** Copies a file of the host. */
  copyFile(src: string, dst: string, options: PatchFileOptions = {}): this {
    return this.#add({ kind: "copyFile", src, dst, ...options });
  }

  /** Copies a directory of the host. */
  copyDir(src: string, dst: string, options: { replace?: boolean } = {}): this {
    return this.#add({ kind: "copyDir", src, dst, ...options });
  }

  /** Creates a symbolic link. */
  symlink(target: string, link: string, options: { replace?: boolean } = {}): this {
    return this.#add({ kind: "symlink", target, link, ...options });
  }

  /** Creates a directory and its parents. */
  mkdir(path: string, options: { mode?: number } = {}): this {
    return this.#add({ kind: "mkdir", path, ...options });
  }

  /** Removes a file or a tree. */
  remove(path: string): this {
    return this.#add({ kind: "remove", path });
  }

  /** Appends text to a file. */
  append(path: string, content: string): this {
    return this.#add({ kind: "append", path, content });
  }

  /** The changes so far. */
  build(): Patch[] {
    return [...this.#patches];
  }
}

/** Converts a change to those of msb. */
export function wirePatches(patch: Patch): WirePatch[] {
  const patches: WirePatch[] = [];
  const path = pathOf(patch);
  const isNew = !["append", "mkdir", "remove"].includes(patch.kind);
  const replaces = "replace" in patch && patch.replace;
  if (isNew && !replaces) patches.push({ absent: { path } });
  patches.push(wirePatch(patch, path));
  if ("mode" in patch) patches.push({ mode: { path, mode: patch.mode } });
  return patches;
}

function pathOf(patch: Patch): string {
  if ("dst" in patch) return patch.dst;
  return patch.kind === "symlink" ? patch.link : patch.path;
}

function wirePatch(patch: Patch, path: string): WirePatch {
  switch (patch.kind) {
    case "text":
      return { text: { path, content: patch.content } };
    case "file": {
      const text = toText(patch.content);
      const isText = Buffer.compare(Buffer.from(text, "utf8"), patch.content) === 0;
      return isText
        ? { text: { path, content: text } }
        : { bytes: { path, content: [...patch.content] } };
    }
    case "copyFile":
    case "copyDir":
      return { copy: { from: resolve(patch.src), to: path } };
    case "symlink":
      return { symlink: { path, target: patch.target } };
    case "mkdir":
      return { mkdir: { path } };
    case "remove":
      return { remove: { path } };
    case "append":
      return { append: { path, content: patch.content } };
  }
}
