// The resource usage of sandboxes.

import "./dispose";
import { MetricsDisabledError } from "./errors";
import type { Metrics } from "./generated";
import { METRICS_LABEL } from "./labels";
import { session } from "./session";
import { sleep } from "./text";

/** The resource usage of a sandbox at one moment. */
export interface SandboxMetrics {
  /** Percent of one CPU since the last sample of this program, or since the start. */
  cpuPercent: number;
  vcpuTimeNs: number;
  memoryBytes: number;
  memoryAvailableBytes: number | null;
  memoryHostResidentBytes: number | null;
  memoryLimitBytes: number;
  diskReadBytes: number;
  diskWriteBytes: number;
  netRxBytes: number;
  netTxBytes: number;
  upperUsedBytes: number | null;
  upperFreeBytes: number | null;
  upperHostAllocatedBytes: number | null;
  uptimeMs: number;
  timestamp: Date;
}

interface CpuSample {
  cpuUs: number;
  uptimeMs: number;
}

/** The last sample of each sandbox, to compute the usage since then. */
const samples = new Map<string, CpuSample>();
/** Sandboxes whose last sample is remembered. */
const REMEMBERED = 1024;

function cpuPercent(metrics: Metrics): number {
  const before = samples.get(metrics.name);
  if (samples.size >= REMEMBERED) samples.clear();
  samples.set(metrics.name, { cpuUs: metrics.cpu_us, uptimeMs: metrics.uptime_ms });
  const from =
    before !== undefined && before.uptimeMs < metrics.uptime_ms ? before : { cpuUs: 0, uptimeMs: 0 };
  const span = (metrics.uptime_ms - from.uptimeMs) * 1000;
  return span > 0 ? (Math.max(0, metrics.cpu_us - from.cpuUs) / span) * 100 : 0;
}

function fromWire(metrics: Metrics): SandboxMetrics {
  const { guest } = metrics;
  const used = guest?.memory ?? metrics.memory;
  const limit = metrics.memory_limit ?? guest?.memory_total ?? 0;
  return {
    cpuPercent: cpuPercent(metrics),
    vcpuTimeNs: metrics.cpu_us * 1000,
    memoryBytes: used,
    memoryAvailableBytes: limit > 0 ? Math.max(0, limit - used) : null,
    memoryHostResidentBytes: metrics.memory,
    memoryLimitBytes: limit,
    diskReadBytes: metrics.disk_traffic?.read ?? 0,
    diskWriteBytes: metrics.disk_traffic?.written ?? 0,
    netRxBytes: metrics.net?.received ?? 0,
    netTxBytes: metrics.net?.sent ?? 0,
    upperUsedBytes: metrics.disk ?? null,
    upperFreeBytes: null,
    upperHostAllocatedBytes: metrics.disk ?? null,
    uptimeMs: metrics.uptime_ms,
    timestamp: new Date(),
  };
}

/** Measures one sandbox. */
export async function measure(name: string): Promise<SandboxMetrics> {
  const { labels } = await session().call("sandbox_summary", { name });
  if (labels[METRICS_LABEL] === "off") {
    throw new MetricsDisabledError(`sandbox \`${name}\` was created without metrics`);
  }
  return fromWire(await session().call("sandbox_metrics", { name }));
}

/** Measures all running sandboxes, by name. */
export async function allSandboxMetrics(): Promise<Record<string, SandboxMetrics>> {
  const all: Record<string, SandboxMetrics> = {};
  const running = (await session().call("sandbox_list", {})).filter(
    ({ status, labels }) => status === "running" && labels[METRICS_LABEL] !== "off",
  );
  await Promise.all(
    running.map(async ({ name }) => {
      try {
        all[name] = fromWire(await session().call("sandbox_metrics", { name }));
      } catch {
        // It has ended while the others were measured.
      }
    }),
  );
  return all;
}

/** Samples of one sandbox, in an interval. */
export class MetricsStream implements AsyncIterable<SandboxMetrics>, AsyncDisposable {
  readonly #abort = new AbortController();
  #first = true;

  /** @internal */
  constructor(
    private readonly name: string,
    private readonly intervalMs: number,
  ) {}

  /** The next sample, or null after `close`. */
  async recv(): Promise<SandboxMetrics | null> {
    if (this.#abort.signal.aborted) return null;
    if (!this.#first) {
      try {
        await sleep(this.intervalMs, this.#abort.signal);
      } catch {
        return null;
      }
    }
    this.#first = false;
    return measure(this.name);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<SandboxMetrics> {
    for (let sample = await this.recv(); sample !== null; sample = await this.recv()) yield sample;
  }

  /** Ends the stream. */
  close(): Promise<void> {
    this.#abort.abort();
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
