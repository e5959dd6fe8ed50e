// Finds the `msb` executable, and reports where it was found.

import { accessSync, constants, statSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, join } from "node:path";
import { execFile } from "node:child_process";
import { RuntimeIncompleteError, RuntimeNotInstalledError, unsupported } from "./errors";

/** Where an executable was found. */
export type RuntimeOrigin = "environment" | "sdk_package" | "configuration" | "home" | "installed";

/** How the executable is searched for. */
export interface RuntimeConfig {
  /** The state directory, in place of `MSB_HOME`. */
  home?: string;
  /** The executable, in place of the search. */
  msbPath?: string;
  /** Fails if it is set: msb has no such library. */
  libkrunfwPath?: string;
}

/** The executable that calls use. */
export interface ResolvedRuntime {
  msbPath: string;
  libkrunfwPath: string | null;
  origin: RuntimeOrigin;
}

function refuseLibrary(path: string | undefined): void {
  if (path !== undefined) throw unsupported("a path of libkrunfw", "leave it out: msb has its own VMM");
}

let configured: RuntimeConfig = {};

/** Sets the executable and the state directory for sessions that start later. */
export function configureRuntime(config: RuntimeConfig): void {
  refuseLibrary(config.libkrunfwPath);
  configured = { ...config };
}

/** The state directory that was configured, if any. */
export function configuredHome(): string | undefined {
  return configured.home;
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

/** The executable of the package for this platform, if that package is installed. */
function packaged(): string | undefined {
  const name = `msb-sdk-${process.platform}-${process.arch}`;
  try {
    const path = require.resolve(`${name}/bin/msb`);
    return isExecutable(path) ? path : undefined;
  } catch {
    return undefined;
  }
}

function home(config: RuntimeConfig): string {
  return config.home ?? process.env["MSB_HOME"] ?? join(homedir(), ".msb");
}

/** The first executable in the order of the search, or undefined. */
function find(config: RuntimeConfig): ResolvedRuntime | undefined {
  refuseLibrary(config.libkrunfwPath);
  const found = (msbPath: string, origin: RuntimeOrigin): ResolvedRuntime => ({
    msbPath,
    libkrunfwPath: null,
    origin,
  });
  if (config.msbPath !== undefined) {
    if (!isExecutable(config.msbPath)) {
      throw new RuntimeNotInstalledError(`no executable at \`${config.msbPath}\``);
    }
    return found(config.msbPath, "configuration");
  }
  const named = process.env["MSB_PATH"];
  if (named !== undefined && named !== "") {
    if (!isExecutable(named)) {
      throw new RuntimeNotInstalledError(`MSB_PATH names no executable: \`${named}\``);
    }
    return found(named, "environment");
  }
  const own = packaged();
  if (own !== undefined) return found(own, "sdk_package");
  for (const directory of (process.env["PATH"] ?? "").split(delimiter)) {
    const path = join(directory, "msb");
    if (directory !== "" && isExecutable(path)) return found(path, "installed");
  }
  const path = join(home(config), "bin", "msb");
  return isExecutable(path) ? found(path, "home") : undefined;
}

/**
 * The executable that calls use: `MSB_PATH`, the package of this platform, PATH, then
 * `bin/msb` of the state directory.
 */
export function resolveRuntime(config?: RuntimeConfig): ResolvedRuntime {
  const runtime = find(config ?? configured);
  if (runtime !== undefined) return runtime;
  const error = new RuntimeNotInstalledError("the `msb` executable was not found");
  error.hint = "install msb, or set MSB_PATH to its path";
  throw error;
}

/** Whether an executable is found. */
export function isRuntimeInstalled(config?: RuntimeConfig): boolean {
  try {
    return find(config ?? configured) !== undefined;
  } catch {
    return false;
  }
}

/** Whether an executable is found. */
export function isInstalled(): boolean {
  return isRuntimeInstalled();
}

/** The executable, or an error if there is none: this package downloads nothing. */
export function ensureRuntime(config?: RuntimeConfig): Promise<ResolvedRuntime> {
  return Promise.resolve().then(() => resolveRuntime(config));
}

/** The executable, or a typed error: msb is installed by its packages, not by a program. */
export function installRuntime(config?: RuntimeConfig): Promise<ResolvedRuntime> {
  return ensureRuntime(config).catch((error: unknown) => {
    if (!(error instanceof RuntimeNotInstalledError)) throw error;
    throw unsupported("a download of the executable", "install the package of msb for this platform");
  });
}

/** As {@link installRuntime}, without its result. */
export async function install(): Promise<void> {
  await installRuntime();
}

/** The version that an executable reports. */
export function resolveRuntimeVersion(path?: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const msb = path ?? resolveRuntime().msbPath;
    execFile(msb, ["--version"], (error, stdout) => {
      if (error) {
        reject(new RuntimeIncompleteError(`\`${msb}\` cannot be started`, { cause: error }));
      } else {
        resolve(stdout.trim().split(/\s+/).pop() ?? "");
      }
    });
  });
}

/** Always fails: msb has no such library. */
export function setRuntimeLibkrunfwPath(path: string): void {
  refuseLibrary(path);
}

const PACKAGED = "leave it out: msb is installed by its packages";

/** The steps of an installation, of version 0.6 of the peer's API. */
export class Setup {
  #config: RuntimeConfig = {};

  /** Sets the state directory. */
  baseDir(path: string): this {
    this.#config.home = path;
    return this;
  }

  /** Always fails: the version is that of the installed executable. */
  version(_version: string): this {
    throw unsupported("a choice of the version", PACKAGED);
  }

  /** Fails with true: packages are verified by their package manager. */
  skipVerify(skip: boolean): this {
    if (skip) throw unsupported("an installation without verification", PACKAGED);
    return this;
  }

  /** Fails with true: nothing is downloaded. */
  force(force: boolean): this {
    if (force) throw unsupported("a repeated installation", PACKAGED);
    return this;
  }

  /** Finds the executable, or fails. */
  async install(): Promise<void> {
    await installRuntime(this.#config);
  }
}

/** The steps of an installation. */
export function setup(): Setup {
  return new Setup();
}
