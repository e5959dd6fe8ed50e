// The builder of sandboxes.

import { InvalidConfigError, unsupported } from "./errors";
import type { Registry, SpawnPolicy, Spec } from "./generated";
import { ImageBuilder, RegistryConfigBuilder, RootDiskBuilder, applyImage, applyRootDisk, intoRootfsSource } from "./images";
import { CMD_LABEL, ENTRYPOINT_LABEL, METRICS_LABEL, isHidden } from "./labels";
import { MountBuilder, type MountConfig, prepareVolumes } from "./mounts";
import { NetworkBuilder, OutboundProxyBuilder } from "./network";
import { type Patch, PatchBuilder, wirePatches } from "./patches";
import { CreationProgressCreate, PullProgressCreate, ProgressFeed } from "./progress";
import type { CpuPlacement, DeploymentProfile, LogLevel, PullPolicy, RlimitResource, SecurityProfile, TransparentHugePages } from "./quantities";
import { type SandboxConfig, Sandbox } from "./sandbox";
import { SecretBuilder, secretEnv } from "./secrets";
import { type CallOptions, hasKind, session } from "./session";
import { mebibytes, seconds } from "./text";

/** Time between SIGTERM and SIGKILL for a sandbox that is replaced, in milliseconds. */
const REPLACE_GRACE = 10_000;
const MAX_NAME = 128;
const MODIFY_LATER = "leave it out: `modify` raises limits without a bound";
const NO_LEVELS = "leave it out: the log has the output of commands and messages of msb";

/** Options of an init program. */
export class InitOptionsBuilder {
  /** @internal */
  readonly argv: string[] = [];
  /** @internal */
  readonly variables: Record<string, string> = {};

  arg(value: string): this {
    this.argv.push(value);
    return this;
  }

  args(values: Iterable<string>): this {
    this.argv.push(...values);
    return this;
  }

  env(key: string, value: string): this {
    this.variables[key] = value;
    return this;
  }

  envs(variables: Record<string, string>): this {
    Object.assign(this.variables, variables);
    return this;
  }
}

type Callback<B> = (builder: B) => B;

/** A sandbox, filled in step by step. `create` starts it. */
export class SandboxBuilder {
  readonly #spec: Spec;
  readonly #mounts: MountConfig[] = [];
  #network = new NetworkBuilder();
  #registry: RegistryConfigBuilder | undefined;
  #detached = false;
  #replaceGrace: number | undefined;
  #hasImage = false;
  #consumed = false;
  #maxCpus: string | undefined;
  #maxMemory: string | undefined;

  constructor(name: string) {
    if (name === "" || Buffer.byteLength(name) > MAX_NAME) {
      throw new InvalidConfigError(`a sandbox name has 1 to ${String(MAX_NAME)} bytes: \`${name}\``);
    }
    this.#spec = { name };
  }

  /** Sets the image: a name, or a path of the host. */
  image(reference: string): this {
    applyImage(this.#spec, intoRootfsSource(reference));
    this.#hasImage = true;
    return this;
  }

  /** Sets the image by a callback. */
  imageWith(callback: Callback<ImageBuilder>): this {
    callback(new ImageBuilder()).apply(this.#spec);
    this.#hasImage = true;
    return this;
  }

  /** Sets the size of the writable layer in MiB, or more of it by a callback. */
  rootDisk(disk: number | Callback<RootDiskBuilder>): this {
    const builder = new RootDiskBuilder();
    applyRootDisk(this.#spec, typeof disk === "number" ? builder.size(disk) : disk(builder));
    return this;
  }

  /** Sets when the image is fetched. */
  pullPolicy(policy: PullPolicy): this {
    this.#spec.pull = policy;
    return this;
  }

  /** Sets how the registry of the image is reached. */
  registry(callback: Callback<RegistryConfigBuilder>): this {
    this.#registry = callback(new RegistryConfigBuilder());
    return this;
  }

  /** Always fails: `Sandbox.restore` starts from a snapshot. */
  fromSnapshot(snapshot: string): this {
    throw unsupported(`a builder from the snapshot \`${snapshot}\``, "use Sandbox.restore(snapshot)");
  }

  /** Sets the number of CPUs. */
  cpus(count: number): this {
    if (!(count > 0)) throw new InvalidConfigError(`not a number of CPUs: \`${String(count)}\``);
    this.#spec.cpus = String(count);
    return this;
  }

  /** Fails unless it equals `cpus`: a later change has no bound. Checked at the end. */
  maxCpus(count: number): this {
    if (!(count > 0)) throw new InvalidConfigError(`not a number of CPUs: \`${String(count)}\``);
    this.#maxCpus = String(count);
    return this;
  }

  /** Sets the memory in MiB. */
  memory(mib: number): this {
    if (!(mib > 0)) throw new InvalidConfigError(`not an amount of memory: \`${String(mib)}\``);
    this.#spec.memory = mebibytes(mib);
    return this;
  }

  /** Fails unless it equals `memory`: a later change has no bound. Checked at the end. */
  maxMemory(mib: number): this {
    if (!(mib > 0)) throw new InvalidConfigError(`not an amount of memory: \`${String(mib)}\``);
    this.#maxMemory = mebibytes(mib);
    return this;
  }

  /** Fails unless it is `inherit`: the sandbox runs on the CPUs of this program. */
  cpuPlacement(placement: CpuPlacement): this {
    if (placement !== "inherit") throw unsupported("a placement of CPUs");
    return this;
  }

  placementProfile(_profile: string): this {
    throw unsupported("a placement profile");
  }

  thp(_mode: TransparentHugePages): this {
    throw unsupported("a choice of huge pages");
  }

  /** Sets the working directory of commands. */
  workdir(path: string): this {
    this.#spec.workdir = path;
    return this;
  }

  /** Sets the shell of `shell` and `attachShell`. */
  shell(shell: string): this {
    this.#spec.shell = shell;
    return this;
  }

  /** Sets the user of commands: a name, a number, or either with `:group`. */
  user(user: string): this {
    this.#spec.user = user;
    return this;
  }

  hostname(name: string): this {
    this.#spec.hostname = name;
    return this;
  }

  /** Sets the words before the default command. */
  entrypoint(words: readonly string[]): this {
    return this.#label(ENTRYPOINT_LABEL, JSON.stringify(words));
  }

  /** Sets the default command, which `execDefault` runs. */
  cmd(words: readonly string[]): this {
    return this.#label(CMD_LABEL, JSON.stringify(words));
  }

  /** Sets one environment variable of all commands. */
  env(key: string, value: string): this {
    (this.#spec.env ??= {})[key] = value;
    return this;
  }

  /** Sets several environment variables of all commands. */
  envs(variables: Record<string, string>): this {
    for (const [key, value] of Object.entries(variables)) this.env(key, value);
    return this;
  }

  /** Puts a script on PATH. */
  script(name: string, body: string): this {
    (this.#spec.scripts ??= []).push({ name, body });
    return this;
  }

  /** Puts several scripts on PATH. */
  scripts(scripts: Record<string, string>): this {
    for (const [name, body] of Object.entries(scripts)) this.script(name, body);
    return this;
  }

  /** Limits a resource of all commands. */
  rlimit(resource: RlimitResource, limit: number): this {
    return this.rlimitRange(resource, limit, limit);
  }

  rlimitRange(resource: RlimitResource, soft: number, hard: number): this {
    (this.#spec.rlimits ??= []).push(`${resource}=${String(soft)}:${String(hard)}`);
    return this;
  }

  /** Runs the image's own init as PID 1. */
  init(program: string, args: readonly string[] = []): this {
    this.#spec.init = { program, args: [...args] };
    return this;
  }

  initWith(program: string, callback: Callback<InitOptionsBuilder>): this {
    const options = callback(new InitOptionsBuilder());
    this.#spec.init = { program, args: options.argv, env: options.variables };
    return this;
  }

  /** Sets whether the sandbox goes on when the program ends. Default false. */
  detached(on = true): this {
    this.#detached = on;
    return this;
  }

  /** Sets whether the sandbox is removed when it stops. Default false. */
  ephemeral(on = true): this {
    this.#spec.ephemeral = on;
    return this;
  }

  /** Replaces a sandbox of the same name: SIGTERM, 10 seconds, SIGKILL. */
  replace(): this {
    return this.replaceWithTimeout(REPLACE_GRACE);
  }

  /** Replaces a sandbox of the same name; 0 kills it at once. */
  replaceWithTimeout(ms: number): this {
    this.#replaceGrace = ms;
    return this;
  }

  /** Stops the sandbox some seconds after its start. */
  maxDuration(secs: number): this {
    this.#spec.max_duration = seconds(secs);
    return this;
  }

  /** Stops the sandbox after some seconds without a command. */
  idleTimeout(secs: number): this {
    this.#spec.idle_timeout = seconds(secs);
    return this;
  }

  /** Sets a label, by which sandboxes are found. */
  label(key: string, value: string): this {
    if (isHidden(key)) throw new InvalidConfigError(`this label is reserved for msb: \`${key}\``);
    return this.#label(key, value);
  }

  labels(labels: Record<string, string>): this {
    for (const [key, value] of Object.entries(labels)) this.label(key, value);
    return this;
  }

  #label(key: string, value: string): this {
    (this.#spec.labels ??= {})[key] = value;
    return this;
  }

  security(profile: SecurityProfile): this {
    this.#spec.security = profile;
    return this;
  }

  deploymentProfile(profile: DeploymentProfile): this {
    if (profile !== "single-tenant") throw unsupported("the deployment profile `multi-tenant`");
    return this;
  }

  /** Gives the sandbox no network. */
  disableNetwork(): this {
    this.#network.enabled(false);
    return this;
  }

  /** Sets the network by a callback. */
  network(callback: Callback<NetworkBuilder>): this {
    this.#network = callback(this.#network);
    return this;
  }

  /** Publishes a TCP port on 127.0.0.1. */
  port(host: number, guest: number): this {
    this.#network.port(host, guest);
    return this;
  }

  portBind(address: string, host: number, guest: number): this {
    this.#network.portBind(address, host, guest);
    return this;
  }

  portUdp(host: number, guest: number): this {
    this.#network.portUdp(host, guest);
    return this;
  }

  portUdpBind(address: string, host: number, guest: number): this {
    this.#network.portUdpBind(address, host, guest);
    return this;
  }

  vsock(_path: string, _port: number): this {
    throw unsupported("a vsock route", "publish a port");
  }

  vsockDgram(_path: string, _port: number): this {
    throw unsupported("a vsock route", "publish a port");
  }

  proxy(callback: (builder: OutboundProxyBuilder) => unknown): this {
    callback(new OutboundProxyBuilder());
    return this;
  }

  /** Always fails: msb intercepts TLS only for the hosts of secrets and of HTTP rules. */
  interceptTls(): this {
    throw unsupported("an interception of all TLS", "hosts of secrets and HTTP rules are intercepted");
  }

  /** Adds a secret, of which the sandbox only has a placeholder. */
  secret(callback: Callback<SecretBuilder>): this {
    this.#network.addSecret(callback(new SecretBuilder()).build());
    return this;
  }

  /** Adds a secret for one host. */
  secretEnv(variable: string, value: string, allowedHost: string): this {
    this.#network.addSecret(secretEnv(variable, value, allowedHost));
    return this;
  }

  /** Mounts something at a path. */
  volume(guestPath: string, callback: Callback<MountBuilder>): this {
    this.#mounts.push(callback(new MountBuilder(guestPath)).build());
    return this;
  }

  /** Changes files before the first command. */
  patch(callback: Callback<PatchBuilder>): this {
    for (const patch of callback(new PatchBuilder()).build()) this.addPatch(patch);
    return this;
  }

  addPatch(patch: Patch): this {
    (this.#spec.patches ??= []).push(...wirePatches(patch));
    return this;
  }

  /** Always fails: the log of a sandbox has no levels. */
  logLevel(_level: LogLevel): this {
    throw unsupported("a log level of one sandbox", NO_LEVELS);
  }

  /** Changes nothing: a sandbox prints no messages of its own to this program. */
  quietLogs(): this {
    return this;
  }

  metricsSampleIntervalMs(ms: number): this {
    return this.#label(METRICS_LABEL, ms === 0 ? "off" : String(ms));
  }

  /** Makes `metrics` fail with `MetricsDisabledError`. */
  disableMetricsSample(): this {
    return this.#label(METRICS_LABEL, "off");
  }

  /** Always fails: msb has no such library. */
  libkrunfwPath(_path: string): this {
    throw unsupported("a path of libkrunfw", "leave it out: msb has its own VMM");
  }

  // Beyond the peer's API.

  /** Shows a host directory copy-on-write: `DIR` or `DIR:GUEST`. */
  workspace(directory: string): this {
    this.#spec.workspace = directory;
    return this;
  }

  /** Allows children, within a budget. */
  spawnPolicy(policy: SpawnPolicy): this {
    this.#spec.spawn = policy;
    return this;
  }

  /** Sets the isolation tier. Default `auto`. */
  isolation(tier: "auto" | "vm" | "process"): this {
    this.#spec.isolation = tier;
    return this;
  }

  #finish(): { spec: Spec; secrets: Record<string, string> } {
    if (this.#consumed) throw new InvalidConfigError("the builder was used already");
    if (!this.#hasImage) throw new InvalidConfigError("an image is required: call `image`");
    if (this.#maxCpus !== undefined && this.#maxCpus !== this.#spec.cpus) {
      throw unsupported("`maxCpus` other than `cpus`", MODIFY_LATER);
    }
    if (this.#maxMemory !== undefined && this.#maxMemory !== this.#spec.memory) {
      throw unsupported("`maxMemory` other than `memory`", MODIFY_LATER);
    }
    this.#consumed = true;
    const { spec: network, secrets } = this.#network.build();
    const spec: Spec = { ...this.#spec, network };
    const mounts = this.#mounts.flatMap(({ mount }) => (mount === undefined ? [] : [mount]));
    const tmpfs = this.#mounts.flatMap(({ tmpfs: one }) => (one === undefined ? [] : [one]));
    if (mounts.length > 0) spec.mounts = mounts;
    if (tmpfs.length > 0) spec.tmpfs = tmpfs;
    return { spec, secrets };
  }

  /** The settings so far; nothing is started. The builder is consumed. */
  build(): Promise<SandboxConfig> {
    return Promise.resolve().then(() => {
      const { spec } = this.#finish();
      return camelCase(spec);
    });
  }

  /** Creates and starts the sandbox. */
  create(options: { signal?: AbortSignal } = {}): Promise<Sandbox> {
    return this.#create(options);
  }

  async #create(options: CallOptions): Promise<Sandbox> {
    const { spec, secrets } = this.#finish();
    const name = spec.name ?? "";
    await prepareVolumes(this.#mounts);
    if (this.#replaceGrace !== undefined) await stopReplaced(name, this.#replaceGrace);
    const registry = this.#registry?.build();
    try {
      const args: { spec: Spec; replace: boolean; secrets?: Record<string, string>; registry?: Registry } = {
        spec,
        replace: this.#replaceGrace !== undefined,
      };
      if (Object.keys(secrets).length > 0) args.secrets = secrets;
      if (registry !== undefined) args.registry = registry.registry;
      const own = !this.#detached;
      const summary = await session().call("sandbox_create", args, { ...options, own });
      return new Sandbox(summary, own);
    } finally {
      registry?.cleanup();
    }
  }

  /** Connects to a sandbox of this name, starts it if it is stopped, or creates it. */
  async connectOrCreate(options: { signal?: AbortSignal } = {}): Promise<Sandbox> {
    const name = this.#spec.name ?? "";
    try {
      const handle = await Sandbox.get(name);
      return await handle.connectOrStart({ detached: this.#detached });
    } catch (error) {
      if (!hasKind(error, "not_found")) throw error;
    }
    return this.create(options);
  }

  /** Creates the sandbox and reports the progress of the pull. */
  createWithPullProgress(): Promise<PullProgressCreate> {
    return Promise.resolve().then(() => new PullProgressCreate(this.#feed()));
  }

  /** Creates the sandbox and reports all progress. */
  createWithProgress(): Promise<CreationProgressCreate> {
    return Promise.resolve().then(() => new CreationProgressCreate(this.#feed()));
  }

  #feed(): ProgressFeed {
    return new ProgressFeed(this.#spec.image ?? "", (options) => this.#create(options));
  }
}

async function stopReplaced(name: string, graceMs: number): Promise<void> {
  try {
    await session().call("sandbox_stop", { name, grace_ms: graceMs });
  } catch (error) {
    if (!hasKind(error, "not_found")) throw error;
  }
}

/** Changes the names of all members to camelCase, but not those of maps with free keys. */
export function camelCase(value: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(value as Record<string, unknown>).map(([key, member]) => {
      const name = key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
      const isMap = name === "env" || name === "labels";
      const nested = typeof member === "object" && member !== null && !Array.isArray(member);
      return [name, nested && !isMap ? camelCase(member) : member];
    }),
  );
}
