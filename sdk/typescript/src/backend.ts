// The backend, the raw agent of the peer, and the storage of this host.

import { unsupported } from "./errors";
import { session } from "./session";

/** Where sandboxes run. msb has the local backend only. */
export type Backend =
  | "local"
  | { kind: "cloud"; url?: string; apiKey: string }
  | { kind: "cloud"; profile: string };

export interface BackendInfo {
  kind: "local" | "cloud";
  apiUrl?: string;
  source: string;
  profile?: string;
}

/** Sets the backend; only `local` is supported. */
export function setDefaultBackend(backend: Backend): void {
  if (backend !== "local") throw unsupported("the cloud backend", "docs/remote.md: `msb server`");
}

/** Runs a function with a backend; only `local` is supported. */
export async function withDefaultBackend<T>(backend: Backend, fn: () => T | Promise<T>): Promise<T> {
  setDefaultBackend(backend);
  return fn();
}

export function defaultBackendKind(): "local" | "cloud" {
  return "local";
}

export function defaultBackendInfo(): BackendInfo {
  return { kind: "local", source: "default" };
}

export const FLAG_TERMINAL = 1;
export const FLAG_SESSION_START = 2;
export const FLAG_SHUTDOWN = 4;

export interface AgentConnectOptions {
  timeoutMs?: number;
}

/** A raw frame of the peer's agent. */
export interface RawFrame {
  id: number;
  flags: number;
  body: Buffer;
}

const AGENT_HINT = "use `Sandbox`; docs/session-protocol.md has the protocol of msb";

/** Always fails: the peer's agent protocol is not part of msb. */
export const AgentClient = {
  connectSandbox(_name: string, _options?: AgentConnectOptions): Promise<never> {
    return Promise.reject(unsupported("the raw agent protocol", AGENT_HINT));
  },
  connect(_path: string, _options?: AgentConnectOptions): Promise<never> {
    return Promise.reject(unsupported("the raw agent protocol", AGENT_HINT));
  },
  socketPath(_name: string): string {
    throw unsupported("the raw agent protocol", AGENT_HINT);
  },
} as const;

export interface StorageItemUsage {
  name: string;
  path: string;
  logicalBytes: bigint | null;
  allocatedBytes: bigint | null;
  inUse: boolean | null;
  reclaimable: boolean | null;
  reasons: string[];
}

/** The storage of one kind of thing. */
export interface StorageCategoryUsage {
  count: number | null;
  inUse: number | null;
  logicalBytes: bigint | null;
  allocatedBytes: bigint | null;
  reclaimableLogicalBytes: bigint | null;
  items: StorageItemUsage[];
  notes: string[];
}

export interface StorageUsage {
  images: StorageCategoryUsage;
  snapshots: StorageCategoryUsage;
  sandboxes: StorageCategoryUsage;
  volumes: StorageCategoryUsage;
  branchMemory: StorageCategoryUsage;
  snapshotMemory: StorageCategoryUsage;
  notes: string[];
}

export interface MemoryCacheReport {
  dryRun: boolean;
  entries: Record<string, unknown>[];
  filesRemoved: number;
  logicalBytesRemoved: bigint;
  physicalBytesReclaimed: bigint | null;
  truncated: boolean;
}

function category(count: number, bytes: number | null, reclaimable: number | null = null): StorageCategoryUsage {
  const big = (value: number | null): bigint | null => (value === null ? null : BigInt(value));
  return {
    count,
    inUse: null,
    logicalBytes: big(bytes),
    allocatedBytes: big(bytes),
    reclaimableLogicalBytes: big(reclaimable),
    items: [],
    notes: [],
  };
}

/** The storage of this host. */
export const Storage = {
  /** What uses the disk. */
  async usage(): Promise<StorageUsage> {
    const disk = await session().call("disk_usage", {});
    const { blobs, disks, host_layers, layers, unfinished } = disk.images;
    const images = blobs + disks + host_layers + layers + unfinished;
    return {
      images: category(disk.images.images, images, disk.reclaimable_all),
      snapshots: category(disk.snapshots, disk.frozen_bytes),
      sandboxes: category(disk.sandboxes, disk.sandbox_bytes),
      volumes: category(disk.volumes, disk.volume_bytes),
      branchMemory: category(0, 0),
      snapshotMemory: category(0, 0),
      notes: [],
    };
  },

  /** Removes memory of forks and snapshots. msb has none, so there is nothing to remove. */
  prune(options: { dryRun?: boolean; olderThanSeconds?: number } = {}): Promise<MemoryCacheReport> {
    return Promise.resolve({
      dryRun: options.dryRun === true,
      entries: [],
      filesRemoved: 0,
      logicalBytesRemoved: 0n,
      physicalBytesReclaimed: 0n,
      truncated: false,
    });
  },
} as const;
