// The start of a sandbox from a snapshot.

import { InvalidConfigError, unsupported } from "./errors";
import type { Changes } from "./generated";
import { MountBuilder, type MountConfig, prepareVolumes } from "./mounts";
import { published } from "./network";
import { CreationProgressCreate, ProgressFeed } from "./progress";
import type { NetworkPolicyBuilder } from "./policy";
import type { LogLevel, SecurityProfile } from "./quantities";
import { Sandbox } from "./sandbox";
import { type CallOptions, session } from "./session";
import type { Snapshot, SnapshotHandle } from "./snapshots";
import { mebibytes } from "./text";

const AS_SOURCE = "the sandbox has the settings of its source; change them with `modify`";

/** A sandbox from a snapshot, filled in step by step. It is always detached. */
export class RestoreBuilder {
  readonly #snapshot: string;
  #name: string | undefined;
  #cpus: number | undefined;
  #memory: number | undefined;
  readonly #changes: Changes = {};
  readonly #mounts: MountConfig[] = [];

  /** @internal */
  constructor(snapshot: string | Snapshot | SnapshotHandle) {
    this.#snapshot = typeof snapshot === "string" ? snapshot : snapshot.reference;
  }

  /** Sets the name of the sandbox. It is required. */
  name(name: string): this {
    this.#name = name;
    return this;
  }

  cpus(count: number): this {
    this.#cpus = count;
    return this;
  }

  /** Sets the memory in MiB. */
  memory(mib: number): this {
    this.#memory = mib;
    return this;
  }

  networkPolicyJson(_json: string): this {
    throw unsupported("a network policy of a restore", AS_SOURCE);
  }

  networkPolicyFromBuilder(_builder: NetworkPolicyBuilder): this {
    throw unsupported("a network policy of a restore", AS_SOURCE);
  }

  maxConnections(_count: number): this {
    throw unsupported("a limit of connections of a restore", AS_SOURCE);
  }

  maxTcpConnections(count: number): this {
    return this.maxConnections(count);
  }

  maxUdpConnections(count: number): this {
    return this.maxConnections(count);
  }

  disableNetwork(): this {
    throw unsupported("a restore without the network of its source", AS_SOURCE);
  }

  security(_profile: SecurityProfile): this {
    throw unsupported("a security profile of a restore", AS_SOURCE);
  }

  maxDuration(_secs: number): this {
    throw unsupported("a duration of a restore", AS_SOURCE);
  }

  idleTimeout(_secs: number): this {
    throw unsupported("an idle timeout of a restore", AS_SOURCE);
  }

  /** Leaves out mounts and ports that this host does not have. */
  allowMissingResources(): this {
    this.#changes.lenient = true;
    return this;
  }

  /** Changes nothing: mounts and ports of the source are used. */
  dangerouslyInheritResources(): this {
    return this;
  }

  snapshotBase(_base: string): this {
    throw unsupported("a base of a restore");
  }

  /** Changes nothing: a snapshot of msb has files only. */
  diskOnly(): this {
    return this;
  }

  cowMemory(): this {
    throw unsupported("memory of a snapshot");
  }

  forked(): this {
    return this.cowMemory();
  }

  externalMountPolicy(policy: "strict" | "relaxed"): this {
    this.#changes.lenient = policy === "relaxed";
    return this;
  }

  /** Always fails: the log of a sandbox has no levels. */
  logLevel(_level: LogLevel): this {
    throw unsupported("a log level of one sandbox", "leave it out");
  }

  user(user: string): this {
    this.#changes.user = user;
    return this;
  }

  volume(guestPath: string, callback: (mount: MountBuilder) => MountBuilder): this {
    const config = callback(new MountBuilder(guestPath)).build();
    this.#mounts.push(config);
    if (config.mount !== undefined) (this.#changes.mounts ??= []).push(config.mount);
    if (config.tmpfs !== undefined) (this.#changes.tmpfs ??= []).push(config.tmpfs);
    return this;
  }

  #port(port: string): this {
    (this.#changes.ports ??= []).push(port);
    return this;
  }

  port(host: number, guest: number): this {
    return this.#port(published(host, guest, false));
  }

  portBind(address: string, host: number, guest: number): this {
    return this.#port(published(host, guest, false, address));
  }

  portUdp(host: number, guest: number): this {
    return this.#port(published(host, guest, true));
  }

  portUdpBind(address: string, host: number, guest: number): this {
    return this.#port(published(host, guest, true, address));
  }

  tcpAcceptQueueSize(_size: number): this {
    throw unsupported("a size of the accept queue");
  }

  vsock(_path: string, _port: number): this {
    throw unsupported("a vsock route", "publish a port");
  }

  vsockDgram(_path: string, _port: number): this {
    throw unsupported("a vsock route", "publish a port");
  }

  /** Starts the sandbox. */
  restore(options: { signal?: AbortSignal } = {}): Promise<Sandbox> {
    return this.#restore(options);
  }

  /** Starts the sandbox and reports progress. */
  restoreWithProgress(): Promise<CreationProgressCreate> {
    const create = (options: CallOptions): Promise<Sandbox> => this.#restore(options);
    return Promise.resolve().then(
      () => new CreationProgressCreate(new ProgressFeed(this.#snapshot, create)),
    );
  }

  async #restore(options: CallOptions): Promise<Sandbox> {
    const to = this.#name;
    if (to === undefined) throw new InvalidConfigError("a restore needs `name`");
    await prepareVolumes(this.#mounts);
    const changes = Object.keys(this.#changes).length === 0 ? null : this.#changes;
    await session().call("snapshot_restore", { name: this.#snapshot, to, changes }, options);
    if (this.#cpus !== undefined || this.#memory !== undefined) {
      const cpus = this.#cpus === undefined ? {} : { cpus: String(this.#cpus) };
      const memory = this.#memory === undefined ? {} : { memory: mebibytes(this.#memory) };
      await session().call("sandbox_modify", { name: to, change: { ...cpus, ...memory } });
    }
    return Sandbox.startDetached(to);
  }
}
