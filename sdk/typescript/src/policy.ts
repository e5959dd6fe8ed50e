// Network policies: rules, destinations and their conversion to the rules of msb.

import { InvalidConfigError, unsupported } from "./errors";
import type { DestinationGroup, NetworkProfile } from "./quantities";

export type Action = "allow" | "deny";
export type Direction = "egress" | "ingress" | "any";
export type Protocol = "tcp" | "udp" | "icmpv4" | "icmpv6";

/** What a rule matches. */
export type Destination =
  | { kind: "any" }
  | { kind: "cidr"; cidr: string }
  | { kind: "domain"; domain: string }
  | { kind: "domainSuffix"; suffix: string }
  | { kind: "group"; group: DestinationGroup };

/** What a rule matches. */
export const Destination = {
  /** Every address. */
  any: (): Destination => ({ kind: "any" }),
  /** An address or a range, such as `10.0.0.0/8`. */
  cidr: (cidr: string): Destination => ({ kind: "cidr", cidr }),
  /** One domain name. */
  domain: (domain: string): Destination => ({ kind: "domain", domain }),
  /** A domain name and its subdomains. */
  domainSuffix: (suffix: string): Destination => ({ kind: "domainSuffix", suffix }),
  /** A group of addresses, such as `private`. */
  group: (group: DestinationGroup): Destination => ({ kind: "group", group }),
} as const;

/** Ports from `start` to `end`, both included. */
export interface PortRange {
  start: number;
  end: number;
}

/** Ports of a rule. */
export const PortRange = {
  /** One port of a rule. */
  single: (port: number): PortRange => ({ start: port, end: port }),
  /** Ports from the first to the last. */
  range: (start: number, end: number): PortRange => ({ start, end }),
} as const;

/** A rule of a policy. The first rule that matches decides. */
export interface Rule {
  direction: Direction;
  destination: Destination;
  /** No protocol means all of them. */
  protocols: Protocol[];
  /** No port means all of them. */
  ports: PortRange[];
  action: Action;
}

function rule(action: Action, direction: Direction, destination: Destination): Rule {
  return { direction, destination, protocols: [], ports: [], action };
}

function dns(action: Action): Rule {
  return {
    direction: "egress",
    destination: Destination.group("host"),
    protocols: ["udp", "tcp"],
    ports: [PortRange.single(53)],
    action,
  };
}

/** Rules of a policy. */
export const Rule = {
  allowEgress: (destination: Destination): Rule => rule("allow", "egress", destination),
  denyEgress: (destination: Destination): Rule => rule("deny", "egress", destination),
  allowIngress: (destination: Destination): Rule => rule("allow", "ingress", destination),
  denyIngress: (destination: Destination): Rule => rule("deny", "ingress", destination),
  allowAny: (destination: Destination): Rule => rule("allow", "any", destination),
  denyAny: (destination: Destination): Rule => rule("deny", "any", destination),
  /** Allows DNS queries to the gateway, which msb allows for every name that a rule allows. */
  allowDns: (): Rule => dns("allow"),
  /** Denies DNS queries to the gateway. */
  denyDns: (): Rule => dns("deny"),
} as const;

/** Which flows a sandbox may open and accept. */
export interface NetworkPolicy {
  defaultEgress: Action;
  defaultIngress: Action;
  rules: Rule[];
}

const PROFILES: readonly NetworkProfile[] = ["public", "private", "host"];

/** Policies that are often needed. */
export const NetworkPolicy = {
  /** A policy that is filled in step by step. */
  builder: (): NetworkPolicyBuilder => new NetworkPolicyBuilder(),
  /** No network at all. */
  none: (): NetworkPolicy => ({ defaultEgress: "deny", defaultIngress: "deny", rules: [] }),
  /** Everything but the metadata services of clouds. */
  allowAll: (): NetworkPolicy => ({ defaultEgress: "allow", defaultIngress: "allow", rules: [] }),
  /** The groups that are named, and nothing else. */
  fromProfiles: (profiles: Iterable<NetworkProfile>): NetworkPolicy => {
    const chosen = new Set(profiles);
    for (const profile of chosen) {
      if (!PROFILES.includes(profile)) {
        throw new InvalidConfigError(`not a network profile: \`${profile}\``);
      }
    }
    const rules = PROFILES.filter((profile) => chosen.has(profile)).map((profile) =>
      Rule.allowEgress(Destination.group(profile)),
    );
    return {
      defaultEgress: "deny",
      defaultIngress: "allow",
      rules: chosen.size === 0 ? rules : [Rule.allowDns(), ...rules],
    };
  },
} as const;

/** A destination, in the callback of `allow` and `deny`. */
export class RuleDestinationBuilder {
  /** @internal */
  readonly destinations: Destination[] = [];

  #add(destination: Destination): this {
    this.destinations.push(destination);
    return this;
  }

  /** One IP address. */
  ip(address: string): this {
    return this.#add(Destination.cidr(address));
  }

  /** A range of addresses. */
  cidr(cidr: string): this {
    return this.#add(Destination.cidr(cidr));
  }

  /** One domain name. */
  domain(domain: string): this {
    return this.#add(Destination.domain(domain));
  }

  /** A domain name and its subdomains. */
  domainSuffix(suffix: string): this {
    return this.#add(Destination.domainSuffix(suffix));
  }

  /** A group of addresses. */
  group(group: DestinationGroup): this {
    return this.#add(Destination.group(group));
  }

  /** Every address. */
  any(): this {
    return this.#add(Destination.any());
  }
}

/** The groups that `allowLocal` and `denyLocal` stand for. */
const LOCAL: readonly DestinationGroup[] = ["loopback", "link-local", "host"];

/** Rules with common protocols and ports. Both add up within one callback. */
export class RuleBuilder {
  /** @internal */
  readonly rules: Rule[] = [];
  #direction: Direction;
  readonly #protocols: Protocol[] = [];
  readonly #ports: PortRange[] = [];

  constructor(direction: Direction = "egress") {
    this.#direction = direction;
  }

  /** Rules for flows that the sandbox opens. */
  egress(): this {
    this.#direction = "egress";
    return this;
  }

  /** Rules for flows that peers open. */
  ingress(): this {
    this.#direction = "ingress";
    return this;
  }

  /** Rules for both directions. */
  any(): this {
    this.#direction = "any";
    return this;
  }

  tcp(): this {
    return this.#protocol("tcp");
  }

  udp(): this {
    return this.#protocol("udp");
  }

  icmpv4(): this {
    return this.#protocol("icmpv4");
  }

  icmpv6(): this {
    return this.#protocol("icmpv6");
  }

  #protocol(protocol: Protocol): this {
    this.#protocols.push(protocol);
    return this;
  }

  port(port: number): this {
    this.#ports.push(PortRange.single(port));
    return this;
  }

  portRange(start: number, end: number): this {
    this.#ports.push(PortRange.range(start, end));
    return this;
  }

  ports(ports: Iterable<number>): this {
    for (const port of ports) this.port(port);
    return this;
  }

  #add(action: Action, destination: Destination): this {
    this.rules.push({
      direction: this.#direction,
      destination,
      protocols: [...this.#protocols],
      ports: [...this.#ports],
      action,
    });
    return this;
  }

  #groups(action: Action, groups: readonly DestinationGroup[]): this {
    for (const group of groups) this.#add(action, Destination.group(group));
    return this;
  }

  allowPublic(): this {
    return this.#groups("allow", ["public"]);
  }
  denyPublic(): this {
    return this.#groups("deny", ["public"]);
  }
  allowPrivate(): this {
    return this.#groups("allow", ["private"]);
  }
  denyPrivate(): this {
    return this.#groups("deny", ["private"]);
  }
  allowLoopback(): this {
    return this.#groups("allow", ["loopback"]);
  }
  denyLoopback(): this {
    return this.#groups("deny", ["loopback"]);
  }
  allowLinkLocal(): this {
    return this.#groups("allow", ["link-local"]);
  }
  denyLinkLocal(): this {
    return this.#groups("deny", ["link-local"]);
  }
  allowMeta(): this {
    return this.#groups("allow", ["metadata"]);
  }
  denyMeta(): this {
    return this.#groups("deny", ["metadata"]);
  }
  allowMulticast(): this {
    return this.#groups("allow", ["multicast"]);
  }
  denyMulticast(): this {
    return this.#groups("deny", ["multicast"]);
  }
  allowHost(): this {
    return this.#groups("allow", ["host"]);
  }
  denyHost(): this {
    return this.#groups("deny", ["host"]);
  }
  allowLocal(): this {
    return this.#groups("allow", LOCAL);
  }
  denyLocal(): this {
    return this.#groups("deny", LOCAL);
  }

  allowDomain(domain: string): this {
    return this.#add("allow", Destination.domain(domain));
  }
  denyDomain(domain: string): this {
    return this.#add("deny", Destination.domain(domain));
  }
  allowDomains(domains: Iterable<string>): this {
    for (const domain of domains) this.allowDomain(domain);
    return this;
  }
  denyDomains(domains: Iterable<string>): this {
    for (const domain of domains) this.denyDomain(domain);
    return this;
  }
  allowDomainSuffix(suffix: string): this {
    return this.#add("allow", Destination.domainSuffix(suffix));
  }
  denyDomainSuffix(suffix: string): this {
    return this.#add("deny", Destination.domainSuffix(suffix));
  }
  allowDomainSuffixes(suffixes: Iterable<string>): this {
    for (const suffix of suffixes) this.allowDomainSuffix(suffix);
    return this;
  }
  denyDomainSuffixes(suffixes: Iterable<string>): this {
    for (const suffix of suffixes) this.denyDomainSuffix(suffix);
    return this;
  }

  /** Allows destinations that a callback names. */
  allow(callback: (builder: RuleDestinationBuilder) => RuleDestinationBuilder): this {
    return this.#destinations("allow", callback);
  }

  /** Denies destinations that a callback names. */
  deny(callback: (builder: RuleDestinationBuilder) => RuleDestinationBuilder): this {
    return this.#destinations("deny", callback);
  }

  #destinations(
    action: Action,
    callback: (builder: RuleDestinationBuilder) => RuleDestinationBuilder,
  ): this {
    for (const one of callback(new RuleDestinationBuilder()).destinations) this.#add(action, one);
    return this;
  }
}

/** A policy, filled in step by step. It denies egress and allows ingress unless told otherwise. */
export class NetworkPolicyBuilder {
  readonly #policy: NetworkPolicy = { defaultEgress: "deny", defaultIngress: "allow", rules: [] };

  /** Allows what no rule matches, in both directions. */
  defaultAllow(): this {
    return this.defaultEgress("allow").defaultIngress("allow");
  }

  /** Denies what no rule matches, in both directions. */
  defaultDeny(): this {
    return this.defaultEgress("deny").defaultIngress("deny");
  }

  defaultEgress(action: Action): this {
    this.#policy.defaultEgress = action;
    return this;
  }

  defaultIngress(action: Action): this {
    this.#policy.defaultIngress = action;
    return this;
  }

  /** Adds rules; the callback chooses the direction. */
  rule(callback: (builder: RuleBuilder) => RuleBuilder): this {
    return this.#add("egress", callback);
  }

  /** Adds rules for flows that the sandbox opens. */
  egress(callback: (builder: RuleBuilder) => RuleBuilder): this {
    return this.#add("egress", callback);
  }

  /** Adds rules for flows that peers open. */
  ingress(callback: (builder: RuleBuilder) => RuleBuilder): this {
    return this.#add("ingress", callback);
  }

  /** Adds rules for both directions. */
  any(callback: (builder: RuleBuilder) => RuleBuilder): this {
    return this.#add("any", callback);
  }

  #add(direction: Direction, callback: (builder: RuleBuilder) => RuleBuilder): this {
    this.#policy.rules.push(...callback(new RuleBuilder(direction)).rules);
    return this;
  }

  /** The policy, as a value that does not change any more. */
  build(): NetworkPolicy {
    return { ...this.#policy, rules: [...this.#policy.rules] };
  }
}

/** Converts a policy to rules of msb, in the order in which they are matched. */
export function policyRules(policy: NetworkPolicy): string[] {
  const rules = policy.rules.flatMap(wireRules);
  // Explicit, because the default of msb is for flows of both directions.
  rules.push(`${policy.defaultIngress}:ingress@any`);
  return rules;
}

function isDnsOfGateway(one: Rule): boolean {
  return (
    one.destination.kind === "group" &&
    one.destination.group === "host" &&
    one.ports.length === 1 &&
    one.ports[0]?.start === 53 &&
    one.ports[0].end === 53
  );
}

function wireRules(one: Rule): string[] {
  if (isDnsOfGateway(one)) {
    if (one.action === "deny") {
      throw unsupported("a rule that denies DNS", "deny the names: a denied name is not resolved");
    }
    // The gateway answers queries for every name that a rule allows.
    return [];
  }
  const directions = one.direction === "any" ? ["egress", "ingress"] : [one.direction];
  const traffic = wireTraffic(one);
  return directions.flatMap((direction) =>
    wireTargets(one, direction).flatMap((target) =>
      traffic.map((suffix) => {
        const way = direction === "egress" ? "" : ":ingress";
        return `${one.action}${way}@${target}${suffix}`;
      }),
    ),
  );
}

function wireTraffic(one: Rule): string[] {
  const ports = one.ports
    .map(({ start, end }) => (start === end ? String(start) : `${String(start)}-${String(end)}`))
    .join(",");
  const suffix = ports === "" ? "" : `:${ports}`;
  const protocols = one.protocols.length === 0 && ports !== "" ? ["tcp", "udp"] : one.protocols;
  if (protocols.length === 0) return [""];
  const icmp = protocols.some((protocol) => protocol.startsWith("icmp")) ? [":icmp"] : [];
  const others = protocols.filter((protocol) => !protocol.startsWith("icmp"));
  return [...new Set(others.map((protocol) => `:${protocol}${suffix}`)), ...icmp];
}

function wireTargets(one: Rule, direction: string): string[] {
  const { destination } = one;
  switch (destination.kind) {
    case "any":
      return ["any"];
    case "cidr":
      return [wireRange(destination.cidr)];
    case "domain":
    case "domainSuffix": {
      if (direction === "ingress") {
        if (one.direction === "any") return [];
        throw new InvalidConfigError("an ingress rule matches addresses, not names");
      }
      if (destination.kind === "domain") return [destination.domain];
      const suffix = destination.suffix.replace(/^\*?\./, "");
      return [suffix, `*.${suffix}`];
    }
    case "group":
      switch (destination.group) {
        case "link-local":
          return ["169.254.0.0/16", "[fe80::]/10"];
        case "multicast":
          // Multicast is always refused.
          if (one.action === "deny") return [];
          throw unsupported("multicast");
        default:
          return [destination.group];
      }
  }
}

function wireRange(cidr: string): string {
  if (!cidr.includes(":")) return cidr;
  const [address = "", bits] = cidr.split("/");
  return bits === undefined ? `[${address}]` : `[${address}]/${bits}`;
}
