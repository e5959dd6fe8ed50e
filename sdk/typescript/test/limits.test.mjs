// Both module systems, the commands of the package, and much data with little memory.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

const home = mkdtempSync(join(tmpdir(), "msb-sdk-test-"));
process.env.MSB_HOME = home;
const sdk = await import("msb-sdk");

after(async () => {
  await sdk.closeSession();
  rmSync(home, { recursive: true, force: true });
});

test("import and require give the same classes", () => {
  const required = createRequire(import.meta.url)("msb-sdk");
  assert.equal(required.Sandbox, sdk.Sandbox);
  assert.deepEqual(
    Object.keys(required).sort(),
    Object.keys(sdk)
      .filter((key) => !["default", "module.exports", "__esModule"].includes(key))
      .sort(),
  );
});

test("the command of the package runs msb", () => {
  const command = fileURLToPath(new URL("../bin/msb.js", import.meta.url));
  assert.match(execFileSync(process.execPath, [command, "--version"], { encoding: "utf8" }), /msb/);
});

test("100 MB through stdin and stdout need little memory", { timeout: 300_000 }, async () => {
  const size = 100_000_000;
  const sandbox = await sdk.Sandbox.builder("flow").image("host").disableNetwork().create();
  const handle = await sandbox.execStreamWith("cat", (options) => options.stdinPipe());
  const stdin = await handle.takeStdin();
  const piece = Buffer.alloc(1_000_000, "x");
  const writing = (async () => {
    for (let sent = 0; sent < size; sent += piece.length) await stdin.write(piece);
    await stdin.close();
  })();
  const before = process.memoryUsage().rss;
  let [received, highest] = [0, 0];
  for await (const event of handle) {
    if (event.kind === "stdout") received += event.data.length;
    highest = Math.max(highest, process.memoryUsage().rss);
  }
  await writing;
  await sandbox.destroy({ force: true });
  assert.equal(received, size);
  // Less than the data: pieces that were read are garbage, which Node collects when it likes.
  assert.ok(highest - before < 80_000_000, String(highest - before));
});
