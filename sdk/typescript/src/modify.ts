// Changes to the settings of a sandbox that exists.

import { unsupported } from "./errors";
import type { Modify, Status } from "./generated";
import { session } from "./session";
import { mebibytes } from "./text";

export type ModificationPolicy = "no_restart" | "next_start" | "restart";
export type ModificationDisposition = "live" | "next start" | "requires restart" | "unsupported";
export type ChangeKind = "added" | "updated" | "removed";
export type SecretChangeKind =
  | "added"
  | "rotated"
  | "removed"
  | "renamed"
  | "hosts updated"
  | "placeholder updated";
export type ResourceKind = "cpus" | "memory";
export type ResourceConvergenceState =
  | "accepted"
  | "converging"
  | "applied"
  | "guest-refused"
  | "failed";

/** A change of a secret. */
export interface SecretModifySpec {
  env?: string;
  value?: string;
  store?: string;
  placeholder?: string;
  allowedHosts?: string[];
}

/** Changes of settings; what is left out stays as it is. */
export interface ModifyOptions {
  cpus?: number;
  maxCpus?: number;
  /** In MiB. */
  memory?: number;
  maxMemory?: number;
  rootDiskSize?: number;
  env?: Record<string, string>;
  envRemove?: string[];
  labels?: Record<string, string>;
  labelsRemove?: string[];
  workdir?: string;
  secrets?: Record<string, SecretModifySpec>;
  secretsRemove?: string[];
  policy?: ModificationPolicy;
  /** Only reports the changes. Default false. */
  dryRun?: boolean;
}

export interface ConfigPlannedChange {
  kind: "config";
  field: string;
  change: ChangeKind;
  before?: string;
  after?: string;
  /** When the change holds: now, or at the next start. */
  disposition: ModificationDisposition;
  reason?: string;
}

export interface SecretPlannedChange {
  kind: "secret";
  field: string;
  name: string;
  change: SecretChangeKind;
  beforeRef?: string;
  afterRef?: string;
  disposition: ModificationDisposition;
  allowHosts: string[];
  reason?: string;
}

export type PlannedChange = ConfigPlannedChange | SecretPlannedChange;

export interface ModificationConflict {
  field: string;
  message: string;
}

export type ModificationWarning = ModificationConflict;

export interface ResourceResizeStatus {
  resource: ResourceKind;
  requested: string;
  actual: string;
  enforced: string;
  state: ResourceConvergenceState;
}

/** What a change does, or would do. */
export interface SandboxModificationPlan {
  sandbox: string;
  status: Status;
  applied: boolean;
  policy: ModificationPolicy;
  changes: PlannedChange[];
  conflicts: ModificationConflict[];
  warnings: ModificationWarning[];
  resizeStatus: ResourceResizeStatus[];
}

const UNSUPPORTED = [
  "maxCpus",
  "maxMemory",
  "rootDiskSize",
  "envRemove",
  "workdir",
  "secrets",
  "secretsRemove",
] as const;

/** Changes settings of a sandbox. */
export async function modify(name: string, options: ModifyOptions): Promise<SandboxModificationPlan> {
  for (const field of UNSUPPORTED) {
    if (options[field] !== undefined) {
      throw unsupported(`a change of \`${field}\``, "create the sandbox again with `replace`");
    }
  }
  const policy = options.policy ?? "no_restart";
  const change: Modify = { dry_run: options.dryRun === true };
  if (options.cpus !== undefined) change.cpus = String(options.cpus);
  if (options.memory !== undefined) change.memory = mebibytes(options.memory);
  if (options.env !== undefined) change.env = options.env;
  if (options.labels !== undefined) change.labels = options.labels;
  if (options.labelsRemove !== undefined) change.unlabel = options.labelsRemove;
  const before = await session().call("sandbox_summary", { name });
  if (policy === "next_start" && before.status !== "stopped" && before.status !== "crashed") {
    throw unsupported("a change that waits for the next start", "stop the sandbox before `modify`");
  }
  if (policy === "restart") {
    throw unsupported("a change that restarts the sandbox", "call `restart` after `modify`");
  }
  const changes = await session().call("sandbox_modify", { name, change });
  return {
    sandbox: name,
    status: before.status,
    applied: options.dryRun !== true,
    policy,
    changes: changes.map(({ what, from, to, holds }) => ({
      kind: "config",
      field: what,
      change: from == null ? "added" : to == null ? "removed" : "updated",
      ...(from == null ? {} : { before: from }),
      ...(to == null ? {} : { after: to }),
      disposition: holds === "now" ? "live" : "next start",
    })),
    conflicts: [],
    warnings: [],
    resizeStatus: [],
  };
}
