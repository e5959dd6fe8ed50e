// Beyond the peer's API: workspaces, network verdicts and children.

import type { Applied, Change, Child, ChildSpec, Depth, NetRecord, NetTable, Policy, Selection } from "./generated";
import { session } from "./session";

/** A host directory that a sandbox sees copy-on-write. */
export class Workspace {
  /** @internal */
  constructor(private readonly sandbox: string) {}

  /** The changes that the sandbox has made; `patches` and `digests` are computed on demand. */
  diff(options: { below?: string[]; depth?: Depth } = {}): Promise<Change[]> {
    return session().call("workspace_diff", { name: this.sandbox, ...options });
  }

  /** Copies changes to the host. Without a selection: all that need not be named. */
  apply(options: { selection?: Selection; dryRun?: boolean } = {}): Promise<Applied> {
    const selection = options.selection === undefined ? {} : { selection: options.selection };
    const dryRun = options.dryRun === true;
    return session().call("workspace_apply", { name: this.sandbox, dry_run: dryRun, ...selection });
  }

  /** Discards changes of a stopped sandbox. The result is their number. */
  async discard(paths: string[] = []): Promise<number> {
    return (await session().call("workspace_discard", { name: this.sandbox, paths })).count;
  }
}

/** The network of a running sandbox. */
export class SandboxNetwork {
  /** @internal */
  constructor(private readonly sandbox: string) {}

  /** The decisions so far: allowed and denied flows, DNS queries and requests. */
  verdicts(): Promise<NetRecord[]> {
    return session().call("network_events", { name: this.sandbox });
  }

  /** The open flows, the policy and the published ports. */
  table(): Promise<NetTable> {
    return session().call("network_table", { name: this.sandbox });
  }

  /** Puts rules before those in force, until the sandbox stops. */
  addRules(rules: string[]): Promise<Policy> {
    return session().call("network_allow", { name: this.sandbox, rules });
  }

  /** Publishes a port, such as `127.0.0.1:8080:80/tcp`. */
  publish(port: string): Promise<string> {
    return session().call("port_publish", { name: this.sandbox, port });
  }

  /** Withdraws a published port. */
  async withdraw(port: string): Promise<void> {
    await session().call("port_withdraw", { name: this.sandbox, port });
  }
}

/** Sandboxes that a sandbox has made. */
export class SandboxChildren {
  /** @internal */
  constructor(private readonly sandbox: string) {}

  /** The children, and how many were made in all. */
  async list(): Promise<Child[]> {
    return (await session().call("child_list", { name: this.sandbox })).children;
  }

  /** Makes a child, within the budget of the sandbox. */
  spawn(spec: ChildSpec = {}): Promise<Child> {
    return session().call("child_spawn", { name: this.sandbox, spec });
  }

  /** Removes a child and its children. */
  async remove(child: string): Promise<void> {
    await session().call("child_remove", { name: this.sandbox, child });
  }
}
