// Secrets: the sandbox has a placeholder, and the gateway puts the value in requests.

import { InvalidConfigError, unsupported } from "./errors";
import type { Secret, SecretPlace } from "./generated";
import { type ViolationAction, ViolationActions } from "./quantities";

/** A secret with its value, as a sandbox is created with it. */
export interface SecretEntry {
  secret: Secret;
  value: string;
}

/** Where the value of a credential comes from. */
export interface SecretSource {
  kind: "env";
  variable: string;
}

/** Sources of credentials. */
export const SecretSource = {
  /** A variable of this program's environment. */
  env: (variable: string): SecretSource => ({ kind: "env", variable }),
} as const;

/** Refuses an action that the gateway does not take. */
export function checkViolation(action: ViolationAction): void {
  // A refused request is always recorded, so `block` and `block-and-log` are the same.
  if (action === "block-and-terminate") {
    throw unsupported("the violation action `block-and-terminate`", "use `block-and-log`");
  }
  if (!ViolationActions.includes(action)) {
    throw new InvalidConfigError(`not a violation action: \`${action}\``);
  }
}

/** What happens at a violation, of version 0.6 of the peer's API. */
export class ViolationActionBuilder {
  block(): this {
    return this;
  }

  blockAndLog(): this {
    return this;
  }

  blockAndTerminate(): this {
    checkViolation("block-and-terminate");
    return this;
  }
}

/** A secret, filled in step by step. */
export class SecretBuilder {
  #env: string | undefined;
  #value: string | undefined;
  readonly #hosts: string[] = [];
  readonly #places = new Set<SecretPlace>(["header"]);

  /** Sets the variable that holds the placeholder inside. */
  env(variable: string): this {
    this.#env = variable;
    return this;
  }

  /** Sets the value, which never enters the sandbox. */
  value(value: string): this {
    this.#value = value;
    return this;
  }

  /** Always fails: msb makes a random placeholder at each start. */
  placeholder(_placeholder: string): this {
    throw unsupported("a placeholder of your own", "leave it out: msb makes a random one");
  }

  /** Allows a host to get the value: `api.example.com`, or `*.example.com` for its subdomains. */
  allow(host: string): this {
    this.#hosts.push(host);
    return this;
  }

  allowHost(host: string): this {
    return this.allow(host);
  }

  allowHostPattern(pattern: string): this {
    return this.allow(pattern);
  }

  /** Fails with true: a secret needs the hosts that may get it. */
  allowAnyHostDangerous(allowed: boolean): this {
    if (allowed) throw unsupported("a secret for any host", "name the hosts with `allow`");
    return this;
  }

  /** Fails with false: the value is only sent over TLS with a verified certificate. */
  requireTlsIdentity(required: boolean): this {
    if (!required) throw unsupported("a secret without a verified TLS server");
    return this;
  }

  /** Always fails: the placeholder is refused at hosts that are not listed. */
  allowPlaceholderFor(_host: string): this {
    throw unsupported("a host that may get the placeholder");
  }

  allowPassthroughFor(host: string): this {
    return this.allowPlaceholderFor(host);
  }

  /** Fails with false: headers are always replaced. */
  substituteInHeaders(on: boolean): this {
    if (!on) throw unsupported("a secret that is not replaced in headers");
    return this;
  }

  /** Always fails: the headers in which placeholders are replaced are fixed. */
  substituteInHeaderFields(_fields: Iterable<string>): this {
    throw unsupported("a choice of header fields", "docs/network.md lists the headers");
  }

  /** Sets whether the placeholder is replaced in the query of a URL. */
  substituteInQuery(on: boolean): this {
    return this.#place("query", on);
  }

  /** Sets whether the placeholder is replaced in the body. */
  substituteInBody(on: boolean): this {
    return this.#place("body", on);
  }

  injectHeaders(on: boolean): this {
    return this.substituteInHeaders(on);
  }

  /** Fails with false: placeholders inside `Basic` are always replaced. */
  injectBasicAuth(on: boolean): this {
    return this.substituteInHeaders(on);
  }

  injectQuery(on: boolean): this {
    return this.substituteInQuery(on);
  }

  injectBody(on: boolean): this {
    return this.substituteInBody(on);
  }

  /** Sets what happens to a request with the placeholder to another host. */
  violationAction(action: ViolationAction): this {
    checkViolation(action);
    return this;
  }

  onViolation(callback: (builder: ViolationActionBuilder) => ViolationActionBuilder): this {
    callback(new ViolationActionBuilder());
    return this;
  }

  #place(place: SecretPlace, on: boolean): this {
    if (on) this.#places.add(place);
    else this.#places.delete(place);
    return this;
  }

  /** The secret; the variable, the value and a host are required. */
  build(): SecretEntry {
    if (this.#env === undefined) throw new InvalidConfigError("a secret needs `env`");
    if (this.#value === undefined) {
      throw new InvalidConfigError(`secret \`${this.#env}\` needs a value`);
    }
    if (this.#hosts.length === 0) {
      throw new InvalidConfigError(`secret \`${this.#env}\` needs a host: call \`allow\``);
    }
    const places = [...this.#places];
    const secret: Secret = { name: this.#env, hosts: this.#hosts, places, source: "given" };
    return { secret, value: this.#value };
  }
}

/** A secret in one call. */
export function secretEnv(variable: string, value: string, host: string): SecretEntry {
  return new SecretBuilder().env(variable).value(value).allow(host).build();
}
