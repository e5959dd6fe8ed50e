// The public surface, by the table in contract.json. No sandbox is started.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as sdk from "msb-sdk";

const table = JSON.parse(readFileSync(new URL("contract.json", import.meta.url), "utf8"));

for (const [name, { static: statics, methods }] of Object.entries(table.classes)) {
  test(`${name} has its members`, () => {
    assert.ok(sdk[name], name);
    for (const member of statics) assert.equal(typeof sdk[name][member], "function", member);
    for (const member of methods) assert.equal(typeof sdk[name].prototype[member], "function", member);
  });
}

test("functions, values and lists exist", () => {
  for (const name of table.functions) assert.equal(typeof sdk[name], "function", name);
  for (const [name, value] of Object.entries(table.values)) assert.equal(sdk[name], value, name);
  for (const name of table.lists) assert.ok(sdk[name].length > 0, name);
});

for (const [name, code] of Object.entries(table.errors)) {
  test(`${name} has its code`, () => {
    const cause = new Error("below");
    const error = new sdk[name]("text", { cause });
    assert.ok(error instanceof sdk.MicrosandboxError && error instanceof Error);
    assert.deepEqual([error.name, error.code, error.message, error.cause], [name, code, "text", cause]);
  });
}

test("sizes are in MiB", () => {
  assert.deepEqual([sdk.KiB(512), sdk.MiB(3), sdk.GiB(1), sdk.TiB(1)], [0.5, 3, 1024, 1_048_576]);
});

test("setters return the builder, and a terminal consumes it", async () => {
  const builder = new sdk.SandboxBuilder("x");
  assert.equal(builder.image("host").cpus(1).memory(512).env("A", "b").label("k", "v"), builder);
  const config = await builder.build();
  assert.deepEqual([config.name, config.memory, config.cpus], ["x", String(512 << 20), "1"]);
  await assert.rejects(builder.build(), sdk.InvalidConfigError);
});

test("policies become rules of msb", () => {
  const { NetworkPolicy, NetworkBuilder } = sdk;
  const policy = NetworkPolicy.builder()
    .defaultDeny()
    .egress((r) => r.tcp().port(443).allowDomain("example.com").denyPrivate())
    .ingress((r) => r.allow((d) => d.cidr("10.0.0.0/8")))
    .build();
  const { spec } = new NetworkBuilder().policy(policy).build();
  assert.equal(spec.default, "deny");
  assert.deepEqual(spec.rules, [
    "allow@example.com:tcp:443",
    "deny@private:tcp:443",
    "allow:ingress@10.0.0.0/8",
    "deny:ingress@any",
  ]);
  assert.equal(new NetworkBuilder().policy(NetworkPolicy.none()).build().spec.reach, "none");
});

test("what msb cannot do is a typed error", () => {
  const { NetworkBuilder, MountBuilder, SecretBuilder, SandboxBuilder, UnsupportedError } = sdk;
  for (const call of [
    () => new NetworkBuilder().ipv4Pool("10.0.0.0/8"),
    () => new MountBuilder("/x").disk("/d.img"),
    () => new SecretBuilder().allowAnyHostDangerous(true),
    () => new SandboxBuilder("x").vsock("/s", 1),
    () => new SandboxBuilder("x").cpuPlacement("auto"),
    () => new SandboxBuilder("x").interceptTls(),
    () => new SandboxBuilder("x").logLevel("debug"),
    () => new SandboxBuilder("x").libkrunfwPath("/x"),
    () => new NetworkBuilder().onSecretViolation((b) => b),
    () => sdk.setup().version("1"),
    () => sdk.setup().skipVerify(true),
    () => sdk.setup().force(true),
    () => sdk.setDefaultBackend({ kind: "cloud", apiKey: "k" }),
  ]) {
    assert.throws(call, UnsupportedError);
  }
});

test("options without an effect are refused", async () => {
  const { Image, SandboxBuilder, Snapshot, UnsupportedError } = sdk;
  const host = () => new SandboxBuilder("x").image("host");
  for (const call of [
    () => host().cpus(1).maxCpus(2).build(),
    () => host().memory(256).maxMemory(512).build(),
    () => Image.save("x", { outputPath: "/x", format: "oci" }),
    () => Snapshot.save("x", "/x", { withParents: true }),
    () => Snapshot.save("x", "/x", { plainTar: false }),
    () => Snapshot.builder("x").fromSandbox("x").createArchive("/x", false),
  ]) {
    await assert.rejects(call, UnsupportedError);
  }
  await host().cpus(1).maxCpus(1).memory(256).maxMemory(256).build();
});
