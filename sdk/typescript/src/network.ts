// The network of a sandbox: reach, ports, DNS, TLS, limits and secrets.

import { InvalidConfigError, JsonError, unsupported } from "./errors";
import type { NetworkSpec } from "./generated";
import { type Action, NetworkPolicy, NetworkPolicyBuilder, policyRules } from "./policy";
import type { ViolationAction } from "./quantities";
import { SecretBuilder, type SecretEntry, type SecretSource, checkViolation, secretEnv } from "./secrets";

const FIXED_ADDRESSES = "the gateway assigns the addresses; leave it out";
const OWN_CA = "each sandbox has a CA of its own, which it trusts; leave it out";
const HOST_CAS = "servers are verified with the CA certificates of the host; leave it out";

/** A published port, as msb writes it. */
export function published(host: number, guest: number, udp: boolean, address?: string): string {
  for (const port of [host, guest]) {
    if (!Number.isInteger(port) || port < 0 || port > 65_535) {
      throw new InvalidConfigError(`not a port: \`${String(port)}\``);
    }
  }
  const bind = address === undefined ? "" : `${address.includes(":") ? `[${address}]` : address}:`;
  return `${bind}${String(host)}:${String(guest)}${udp ? "/udp" : ""}`;
}

/** DNS of a sandbox. */
export class DnsBuilder {
  /** @internal */
  readonly servers: string[] = [];

  /** Fails with false: names never open private addresses. */
  rebindProtection(on: boolean): this {
    if (!on) throw unsupported("DNS without protection against rebinding");
    return this;
  }

  /** Sets the DNS servers, in place of the host's. */
  nameservers(servers: Iterable<string>): this {
    this.servers.push(...servers);
    return this;
  }

  /** Always fails: the timeout is fixed. */
  queryTimeoutMs(_ms: number): this {
    throw unsupported("a timeout of DNS queries", "the timeout is fixed; leave it out");
  }
}

/** TLS interception of a sandbox. It happens only for hosts of secrets and of HTTP rules. */
export class TlsBuilder {
  /** @internal */
  readonly bypassed: string[] = [];
  /** @internal */
  quicBlocked = false;

  /** Names a host that is never intercepted. */
  bypass(pattern: string): this {
    this.bypassed.push(pattern);
    return this;
  }

  /** Fails with false: servers are always verified. */
  verifyUpstream(on: boolean): this {
    if (!on) throw unsupported("TLS without verification of the server", HOST_CAS);
    return this;
  }

  /** Fails with false: servers are always verified. */
  verifyUpstreamFor(_pattern: string, on: boolean): this {
    return this.verifyUpstream(on);
  }

  /** Always fails: hosts of secrets are intercepted on every port. */
  interceptedPorts(_ports: Iterable<number>): this {
    throw unsupported("a choice of intercepted ports", "hosts of secrets are intercepted on every port");
  }

  /** Sets whether QUIC is refused, so that programs use TLS over TCP. */
  blockQuic(on: boolean): this {
    this.quicBlocked = on;
    return this;
  }

  upstreamCaCert(_path: string): this {
    throw unsupported("a CA certificate for servers", HOST_CAS);
  }

  upstreamCaCertFor(_pattern: string, _path: string): this {
    throw unsupported("a CA certificate for servers", HOST_CAS);
  }

  interceptCaCert(_path: string): this {
    throw unsupported("a CA certificate for interception", OWN_CA);
  }

  interceptCaKey(_path: string): this {
    throw unsupported("a CA key for interception", OWN_CA);
  }
}

/** Responses of the gateway to refused HTTP requests. */
export class HttpBuilder {
  /** Fails with false: a refused request always gets a response. */
  denyResponse(on: boolean): this {
    if (!on) throw unsupported("a refusal of requests without a response");
    return this;
  }

  /** Always fails: the text of the response is fixed. */
  denyMessage(_message: string): this {
    throw unsupported("a text for refused requests", "the response names the rule; leave it out");
  }
}

/** Addresses of the network device, which msb assigns itself. */
export class InterfaceOverridesBuilder {
  mac(_mac: string): this {
    throw unsupported("a MAC address", FIXED_ADDRESSES);
  }

  mtu(_mtu: number): this {
    throw unsupported("an MTU", FIXED_ADDRESSES);
  }

  ipv4(_address: string): this {
    throw unsupported("an IPv4 address", FIXED_ADDRESSES);
  }

  ipv6(_address: string): this {
    throw unsupported("an IPv6 address", FIXED_ADDRESSES);
  }
}

/** A limit of traffic in one direction. */
export class RateLimiterBuilder {
  /** @internal */
  bytesPerSecond: number | undefined;

  /** Limits the bytes in each interval. */
  bandwidth(bytes: number, ms: number): this {
    if (!(bytes > 0) || !(ms > 0)) {
      throw new InvalidConfigError(`not a rate: \`${String(bytes)} bytes in ${String(ms)} ms\``);
    }
    this.bytesPerSecond = Math.max(1, Math.round((bytes * 1000) / ms));
    return this;
  }

  bandwidthBurst(_bytes: number): this {
    throw unsupported("a burst of bandwidth");
  }

  ops(_count: number, _ms: number): this {
    throw unsupported("a limit of packets");
  }

  opsBurst(_count: number): this {
    throw unsupported("a burst of packets");
  }
}

/** Limits of traffic in both directions. */
export class NetworkRateLimiterBuilder {
  /** @internal */
  egressRate: number | undefined;

  /** Limits what the sandbox sends. */
  egress(callback: (builder: RateLimiterBuilder) => RateLimiterBuilder): this {
    this.egressRate = callback(new RateLimiterBuilder()).bytesPerSecond;
    return this;
  }

  /** Always fails: only what a sandbox sends can be limited. */
  ingress(_callback: (builder: RateLimiterBuilder) => RateLimiterBuilder): this {
    throw unsupported("a limit of incoming traffic", "limit what the sandbox sends");
  }
}

const PROXY_HINT = "the proxy of the host's environment (HTTPS_PROXY, NO_PROXY) is used";

/** Only by way of {@link OutboundProxyBuilder}. */
export class Socks4ProxyBuilder {
  userId(_id: string): this {
    return this;
  }
}

/** Only by way of {@link OutboundProxyBuilder}. */
export class Socks5ProxyBuilder {
  credentials(_user: string, _password: SecretSource): this {
    return this;
  }
}

/** A proxy of one sandbox, which msb does not have. */
export class OutboundProxyBuilder {
  socks4(_address: string): Socks4ProxyBuilder {
    throw unsupported("a SOCKS proxy", PROXY_HINT);
  }

  socks5(_address: string): Socks5ProxyBuilder {
    throw unsupported("a SOCKS proxy", PROXY_HINT);
  }

  httpConnect(_address: string): Socks5ProxyBuilder {
    throw unsupported("a proxy for one sandbox", PROXY_HINT);
  }
}

/** A network as it is sent to msb, with the values of its secrets. */
export interface NetworkConfig {
  spec: NetworkSpec;
  /** Values of secrets, by name. They are sent once and stored nowhere. */
  secrets: Record<string, string>;
}

type Callback<B> = (builder: B) => B;

/** A network, filled in step by step. */
export class NetworkBuilder {
  #enabled = true;
  #policy: NetworkPolicy | undefined;
  readonly #ports: string[] = [];
  readonly #dns: string[] = [];
  readonly #bypass: string[] = [];
  readonly #secrets: SecretEntry[] = [];
  #quicBlocked = false;
  #maxConnections: number | undefined;
  #maxTcp: number | undefined;
  #maxUdp: number | undefined;
  #egressRate: number | undefined;
  #trustHostCas = false;
  #join: string | undefined;
  readonly #rules: string[] = [];

  /** Sets whether there is a network. */
  enabled(on: boolean): this {
    this.#enabled = on;
    return this;
  }

  /** Publishes a TCP port on 127.0.0.1. */
  port(host: number, guest: number): this {
    return this.#publish(published(host, guest, false));
  }

  /** Publishes a TCP port on an address of the host. */
  portBind(address: string, host: number, guest: number): this {
    return this.#publish(published(host, guest, false, address));
  }

  /** Publishes a UDP port on 127.0.0.1. */
  portUdp(host: number, guest: number): this {
    return this.#publish(published(host, guest, true));
  }

  /** Publishes a UDP port on an address of the host. */
  portUdpBind(address: string, host: number, guest: number): this {
    return this.#publish(published(host, guest, true, address));
  }

  #publish(port: string): this {
    this.#ports.push(port);
    return this;
  }

  /** Sets the policy: which flows are allowed. */
  policy(policy: NetworkPolicy | NetworkPolicyBuilder): this {
    this.#policy = policy instanceof NetworkPolicyBuilder ? policy.build() : policy;
    return this;
  }

  /** Sets the policy from its JSON form. */
  policyJson(text: string): this {
    return this.policy(parsePolicy(text));
  }

  /** Sets the policy from a builder. */
  policyFromBuilder(builder: NetworkPolicyBuilder): this {
    return this.policy(builder);
  }

  /** Adds a rule in the form of msb, such as `allow@api.example.com:http:GET:/v1/`. */
  rule(rule: string): this {
    this.#rules.push(rule);
    return this;
  }

  /** Joins a named network, whose members reach each other by name. */
  join(name: string): this {
    this.#join = name;
    return this;
  }

  dns(callback: Callback<DnsBuilder>): this {
    this.#dns.push(...callback(new DnsBuilder()).servers);
    return this;
  }

  tls(callback: Callback<TlsBuilder>): this {
    const tls = callback(new TlsBuilder());
    this.#bypass.push(...tls.bypassed);
    this.#quicBlocked ||= tls.quicBlocked;
    return this;
  }

  http(callback: Callback<HttpBuilder>): this {
    callback(new HttpBuilder());
    return this;
  }

  /** Adds a secret. */
  secret(callback: Callback<SecretBuilder>): this {
    this.#secrets.push(callback(new SecretBuilder()).build());
    return this;
  }

  /** Always fails: msb makes a random placeholder. Use {@link secretEnvSimple}. */
  secretEnv(_variable: string, _value: string, placeholder: string, _host: string): this {
    new SecretBuilder().placeholder(placeholder);
    return this;
  }

  /** Adds a secret for one host. */
  secretEnvSimple(variable: string, value: string, host: string): this {
    this.#secrets.push(secretEnv(variable, value, host));
    return this;
  }

  /** @internal */
  addSecret(entry: SecretEntry): this {
    this.#secrets.push(entry);
    return this;
  }

  secretViolationAction(action: ViolationAction): this {
    checkViolation(action);
    return this;
  }

  /** Always fails: a request with the placeholder to another host is refused and recorded. */
  onSecretViolation(_callback: (builder: { [key: string]: unknown }) => unknown): this {
    throw unsupported("a violation action by a callback", "use `secretViolationAction`");
  }

  interface(callback: Callback<InterfaceOverridesBuilder>): this {
    callback(new InterfaceOverridesBuilder());
    return this;
  }

  /** Limits the open flows. */
  maxConnections(count: number): this {
    this.#maxConnections = count;
    return this;
  }

  /** Limits the open flows; with `maxUdpConnections`, their sum is the limit. */
  maxTcpConnections(count: number): this {
    this.#maxTcp = count;
    return this;
  }

  /** Limits the open flows; with `maxTcpConnections`, their sum is the limit. */
  maxUdpConnections(count: number): this {
    this.#maxUdp = count;
    return this;
  }

  tcpAcceptQueueSize(_size: number): this {
    throw unsupported("a size of the accept queue");
  }

  maxInboundTcpConnections(_count: number): this {
    throw unsupported("a limit of incoming connections");
  }

  nat64Prefix(_prefix: string): this {
    throw unsupported("a NAT64 prefix", "deny it by its range");
  }

  /** Fails with false: rules are always enforced by the server's name. */
  strict(on: boolean): this {
    if (!on) throw unsupported("a network whose names are not checked");
    return this;
  }

  ipv4Pool(_range: string): this {
    throw unsupported("a pool of IPv4 addresses", FIXED_ADDRESSES);
  }

  ipv6Pool(_range: string): this {
    throw unsupported("a pool of IPv6 addresses", FIXED_ADDRESSES);
  }

  /** Sets whether programs inside trust the CA certificates of the host. */
  trustHostCAs(on: boolean): this {
    this.#trustHostCas = on;
    return this;
  }

  rateLimiter(callback: Callback<NetworkRateLimiterBuilder>): this {
    this.#egressRate = callback(new NetworkRateLimiterBuilder()).egressRate;
    return this;
  }

  /** The network as it is sent to msb. */
  build(): NetworkConfig {
    const spec: NetworkSpec = {};
    const policy = this.#policy;
    const rules = [...this.#rules];
    if (this.#quicBlocked) rules.unshift("deny@any:udp:443");
    if (!this.#enabled || (policy !== undefined && isNone(policy) && rules.length === 0)) {
      spec.reach = "none";
    } else if (policy !== undefined) {
      spec.default = policy.defaultEgress satisfies Action;
      rules.push(...policyRules(policy));
    } else {
      spec.reach = defaultReach();
    }
    if (rules.length > 0) spec.rules = rules;
    if (this.#ports.length > 0) spec.ports = this.#ports;
    if (this.#dns.length > 0) spec.dns = this.#dns;
    if (this.#bypass.length > 0) spec.bypass = this.#bypass;
    if (this.#trustHostCas) spec.trust_host_cas = true;
    if (this.#join !== undefined) spec.join = this.#join;
    if (this.#egressRate !== undefined) spec.egress_rate = String(this.#egressRate);
    const most = this.#maxConnections ?? sum(this.#maxTcp, this.#maxUdp);
    if (most !== undefined) spec.max_connections = most;
    if (this.#secrets.length > 0) spec.secrets = this.#secrets.map((entry) => entry.secret);
    const values = this.#secrets.map((entry) => [entry.secret.name, entry.value] as const);
    return { spec, secrets: Object.fromEntries(values) };
  }
}

function isNone(policy: NetworkPolicy): boolean {
  const { defaultEgress, defaultIngress, rules } = policy;
  return defaultEgress === "deny" && defaultIngress === "deny" && rules.length === 0;
}

function sum(one: number | undefined, other: number | undefined): number | undefined {
  return one === undefined && other === undefined ? undefined : (one ?? 0) + (other ?? 0);
}

/** The reach of a sandbox without a policy: that of the command line. */
export function defaultReach(): NonNullable<NetworkSpec["reach"]> {
  return (process.env["MSB_NET"] ?? "public") as NonNullable<NetworkSpec["reach"]>;
}

/** Parses the JSON form of a policy. */
export function parsePolicy(text: string): NetworkPolicy {
  try {
    const policy = JSON.parse(text) as Partial<NetworkPolicy>;
    return { defaultEgress: "deny", defaultIngress: "allow", rules: [], ...policy };
  } catch (error) {
    throw new JsonError("a network policy is not valid JSON", { cause: error });
  }
}
