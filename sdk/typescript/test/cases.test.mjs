// The shared list of behaviour, on real sandboxes with the image `host`. One test for each case.
// MSB_PATH names the executable; the state directory is a temporary one.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

const home = mkdtempSync(join(tmpdir(), "msb-sdk-test-"));
process.env.MSB_HOME = home;
/** Directories of the host that sandboxes use; they must not be in the state directory. */
const shared = mkdtempSync(join(tmpdir(), "msb-sdk-shared-"));
const sdk = await import("msb-sdk");
const { Sandbox, Snapshot, Volume, Image, NetworkPolicy } = sdk;

const list = JSON.parse(readFileSync(new URL("../../cases.json", import.meta.url), "utf8")).cases;
const package_ = fileURLToPath(new URL("../", import.meta.url));
/** Longest wait for an event, in milliseconds; a case that is not over by then hangs. */
const LIMIT = 120_000;

/** The error class of each code in the list. */
const CLASSES = {
  "exec-timeout": "ExecTimeoutError",
  "exec-failed": "ExecFailedError",
  "microsandbox-error": "MicrosandboxError",
};

after(async () => {
  await sdk.closeSession();
  for (const directory of [home, shared]) rmSync(directory, { recursive: true, force: true });
});

let count = 0;
const name = () => `case-${process.pid}-${++count}`;
const builder = (box = name()) => Sandbox.builder(box).image("host").disableNetwork();

/** A sandbox that is ended after the case. */
async function box(t, change = (it) => it) {
  const sandbox = await change(builder()).create();
  t.after(() => remove(sandbox.name));
  return sandbox;
}

async function remove(box) {
  const handle = await Sandbox.get(box).catch(() => undefined);
  await handle?.destroy({ force: true }).catch(() => undefined);
}

const fails = (promise, className) =>
  assert.rejects(promise, (error) => {
    assert.ok(error instanceof sdk[className], `${error?.name}: ${error?.message}`);
    return true;
  });

/** Runs a program of its own with the package; resolves with its process. */
function program(code) {
  const child = spawn(process.execPath, ["--input-type=module", "-e", code], {
    cwd: package_,
    env: { ...process.env, MSB_HOME: home },
    stdio: ["ignore", "pipe", "inherit"],
  });
  return child;
}

async function firstLine(child) {
  let text = "";
  for await (const chunk of child.stdout) {
    text += chunk;
    if (text.includes("\n")) return text.trim();
  }
  return text.trim();
}

const started = (events) => events[0];

async function events(handle) {
  const all = [];
  for await (const event of handle) all.push(event);
  return all;
}

const text = (all, kind) =>
  Buffer.concat(all.filter((event) => event.kind === kind).map((event) => event.data)).toString();

/** Reads output until it contains a text. */
async function until(handle, wanted) {
  let seen = "";
  while (!seen.includes(wanted)) {
    const event = await handle.recv();
    assert.notEqual(event, null, `the end before ${wanted}: ${seen}`);
    if (event.data) seen += Buffer.from(event.data).toString();
  }
  return seen;
}

const cases = {
  async exec_binary_output(t) {
    const sandbox = await box(t);
    const output = await sandbox.exec("sh", ["-c", "printf '\\377\\000\\376'"]);
    assert.deepEqual([...output.stdoutBytes()], [0xff, 0, 0xfe]);
  },
  async exec_large_output(t) {
    const sandbox = await box(t);
    const output = await sandbox.exec("head", ["-c", "8000000", "/dev/zero"]);
    assert.equal(output.stdoutBytes().length, 8_000_000);
  },
  async exec_large_stdin(t) {
    const sandbox = await box(t);
    const output = await sandbox.execWith("wc", (o) => o.arg("-c").stdinBytes(Buffer.alloc(4_000_000)));
    assert.equal(output.stdout().trim(), "4000000");
  },
  async exec_parallel(t) {
    const sandbox = await box(t);
    const all = await Promise.all(
      Array.from({ length: 64 }, (_, n) => sandbox.exec("sh", ["-c", `echo ${n}`])),
    );
    assert.deepEqual(all.map((output) => output.stdout()), all.map((_, n) => `${n}\n`));
  },
  async exec_stopped_sandbox(t) {
    const sandbox = await box(t);
    await sandbox.stop();
    await fails(sandbox.exec("true"), "SandboxNotRunningError");
  },
  async shell_script(t) {
    const sandbox = await box(t);
    assert.equal((await sandbox.shell("x=1; echo $((x+1)) | tr 2 3")).stdout(), "3\n");
  },
  async exec_default(t) {
    const sandbox = await box(t, (b) => b.cmd(["echo", "default"]));
    assert.equal((await sandbox.execDefault()).stdout(), "default\n");
  },
  async exec_default_missing(t) {
    const sandbox = await box(t);
    await fails(sandbox.execDefault(), "NoDefaultCommandError");
  },
  async stream_events_in_order(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStream("sh", ["-c", "echo a; echo b >&2; exit 4"]);
    const all = await events(handle);
    assert.equal(started(all).kind, "started");
    assert.ok(started(all).pid > 0);
    assert.equal(text(all, "stdout"), "a\n");
    assert.equal(text(all, "stderr"), "b\n");
    assert.deepEqual(all.at(-1), { kind: "exited", code: 4 });
    assert.equal(await handle.recv(), null);
  },
  async stream_stdin_pipe(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStreamWith("cat", (o) => o.stdinPipe());
    const stdin = await handle.takeStdin();
    await stdin.write("one");
    await until(handle, "one");
    await stdin.write("two");
    await until(handle, "two");
    await stdin.close();
    assert.equal((await handle.wait()).code, 0);
  },
  async stream_stdin_taken_once(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStreamWith("cat", (o) => o.stdinPipe());
    const stdin = await handle.takeStdin();
    assert.notEqual(stdin, null);
    assert.equal(await handle.takeStdin(), null);
    await stdin.close();
    await handle.wait();
    const other = await sandbox.execStream("true");
    assert.equal(await other.takeStdin(), null);
    await other.wait();
  },
  async stream_wait(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStream("sh", ["-c", "echo x; exit 5"]);
    assert.deepEqual(await handle.wait(), { code: 5, success: false });
  },
  async stream_collect(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStream("sh", ["-c", "echo x"]);
    assert.equal((await handle.collect()).stdout(), "x\n");
  },
  async stream_signal(t) {
    const sandbox = await box(t);
    const script = 'trap "exit 7" TERM; echo ready; while :; do sleep 0.05; done';
    const handle = await sandbox.execStream("sh", ["-c", script]);
    await until(handle, "ready");
    await handle.signal(15);
    assert.equal((await handle.wait()).code, 7);
  },
  async stream_kill(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStream("sleep", ["60"]);
    await handle.kill();
    assert.deepEqual(await handle.wait(), { code: 137, success: false });
  },
  async stream_resize(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStreamWith("sh", (o) =>
      o.args(["-c", "read x; stty size"]).tty(true).stdinPipe(),
    );
    await handle.resize(40, 100);
    await (await handle.takeStdin()).write("go\n");
    await until(handle, "40 100");
    await handle.wait();
  },
  async stream_missing_program(t) {
    const sandbox = await box(t);
    await fails(sandbox.execStream("no-such-program-here"), "ExecFailedError");
  },
  async stream_cancel(t) {
    const sandbox = await box(t);
    const abort = new AbortController();
    const running = sandbox.exec("sleep", ["61"], { signal: abort.signal });
    const isRunning = async () =>
      (await sandbox.exec("sh", ["-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])).stdout().includes("sleep 61");
    while (!(await isRunning()));
    abort.abort();
    await assert.rejects(running, { name: "AbortError" });
    while (await isRunning());
    assert.equal((await sandbox.exec("true")).code, 0);
  },
  async stream_slow_reader(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStream("head", ["-c", "20000000", "/dev/zero"]);
    await handle.recv();
    assert.equal((await sandbox.exec("echo", ["other"])).stdout(), "other\n");
    assert.equal(Buffer.byteLength(text(await events(handle), "stdout")), 20_000_000);
  },
  async fs_write_read(t) {
    const sandbox = await box(t);
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
    await sandbox.fs().write("/tmp/x", bytes);
    assert.deepEqual(Buffer.from(await sandbox.fs().read("/tmp/x")), bytes);
    assert.match((await sandbox.exec("wc", ["-c", "/tmp/x"])).stdout(), /^256 /);
  },
  async fs_read_text(t) {
    const sandbox = await box(t);
    await sandbox.fs().write("/tmp/x", "grüße");
    assert.equal(await sandbox.fs().readToString("/tmp/x"), "grüße");
  },
  async fs_read_missing(t) {
    const sandbox = await box(t);
    await fails(sandbox.fs().read("/no/such/file"), "PathNotFoundError");
    await fails(sandbox.fs().read("/no/such/file"), "SandboxFsOpsError");
  },
  async fs_write_replaces(t) {
    const sandbox = await box(t);
    await sandbox.fs().write("/tmp/x", "long contents");
    await sandbox.fs().write("/tmp/x", "short");
    assert.equal(await sandbox.fs().readToString("/tmp/x"), "short");
  },
  async fs_stream(t) {
    const sandbox = await box(t);
    const bytes = Buffer.alloc(3_000_000, "abc");
    const sink = await sandbox.fs().writeStream("/tmp/x");
    for (let at = 0; at < bytes.length; at += 100_000) await sink.write(bytes.subarray(at, at + 100_000));
    await sink.close();
    const pieces = [];
    for await (const piece of await sandbox.fs().readStream("/tmp/x")) pieces.push(piece);
    assert.ok(pieces.length > 1);
    assert.ok(Buffer.concat(pieces).equals(bytes));
  },
  async fs_list(t) {
    const sandbox = await box(t);
    const fs = sandbox.fs();
    await fs.mkdir("/tmp/d");
    await fs.write("/tmp/d/b", "12345");
    await fs.mkdir("/tmp/d/a");
    await sandbox.exec("ln", ["-s", "b", "/tmp/d/c"]);
    const entries = (await fs.list("/tmp/d")).sort((one, other) => (one.path < other.path ? -1 : 1));
    assert.deepEqual(entries.map(({ path, kind }) => [path, kind]), [
      ["/tmp/d/a", "directory"],
      ["/tmp/d/b", "file"],
      ["/tmp/d/c", "symlink"],
    ]);
    assert.equal(entries[1].size, 5);
    assert.equal(entries[1].mode & 0o777, 0o644);
  },
  async fs_mkdir_remove_dir(t) {
    const fs = (await box(t)).fs();
    await fs.mkdir("/tmp/m/n");
    await fs.write("/tmp/m/n/file", "x");
    assert.equal(await fs.exists("/tmp/m/n"), true);
    await fs.removeDir("/tmp/m");
    assert.equal(await fs.exists("/tmp/m"), false);
  },
  async fs_remove(t) {
    const fs = (await box(t)).fs();
    await fs.write("/tmp/x", "x");
    await fs.remove("/tmp/x");
    assert.equal(await fs.exists("/tmp/x"), false);
    await fails(fs.remove("/tmp/x"), "PathNotFoundError");
  },
  async fs_copy_rename(t) {
    const fs = (await box(t)).fs();
    await fs.write("/tmp/1", "contents");
    await fs.copy("/tmp/1", "/tmp/2");
    await fs.rename("/tmp/2", "/tmp/3");
    assert.equal(await fs.readToString("/tmp/1"), "contents");
    assert.equal(await fs.readToString("/tmp/3"), "contents");
    assert.equal(await fs.exists("/tmp/2"), false);
  },
  async fs_stat(t) {
    const sandbox = await box(t);
    const fs = sandbox.fs();
    await fs.write("/tmp/x", "12345");
    await sandbox.exec("chmod", ["640", "/tmp/x"]);
    const file = await fs.stat("/tmp/x");
    assert.deepEqual([file.kind, file.size, file.mode & 0o7777, file.readonly], ["file", 5, 0o640, false]);
    assert.equal((await fs.stat("/tmp")).kind, "directory");
    await fails(fs.stat("/no/such"), "PathNotFoundError");
  },
  async fs_exists(t) {
    const fs = (await box(t)).fs();
    await fs.write("/tmp/x", "");
    assert.deepEqual(
      [await fs.exists("/tmp/x"), await fs.exists("/tmp"), await fs.exists("/tmp/none")],
      [true, true, false],
    );
  },
  async fs_copy_host(t) {
    const fs = (await box(t)).fs();
    const [from, to] = [join(shared, "copy-from"), join(shared, "copy-to")];
    writeFileSync(from, "host bytes");
    await fs.copyFromHost(from, "/tmp/x");
    await fs.copyToHost("/tmp/x", to);
    assert.equal(readFileSync(to, "utf8"), "host bytes");
  },
  async lifecycle_three_lines(t) {
    const sandbox = await box(t, (b) => b.cpus(1).memory(512));
    assert.equal((await sandbox.exec("echo", ["Hello!"])).stdout(), "Hello!\n");
    await sandbox.stop();
    assert.equal((await Sandbox.get(sandbox.name)).status, "stopped");
  },
  async lifecycle_name_and_id(t) {
    const box_ = name();
    const sandbox = await builder(box_).create();
    t.after(() => remove(box_));
    assert.equal(sandbox.name, box_);
    assert.equal((await Sandbox.get(box_)).id, sandbox.id);
  },
  async lifecycle_duplicate(t) {
    const sandbox = await box(t);
    await fails(builder(sandbox.name).create(), "SandboxAlreadyExistsError");
  },
  async lifecycle_replace(t) {
    const sandbox = await box(t);
    await sandbox.fs().write("/root-file", "x");
    const other = await builder(sandbox.name).replace().create();
    assert.equal(await other.fs().exists("/root-file"), false);
    assert.notEqual(other.id, sandbox.id);
  },
  async lifecycle_replaced_handle(t) {
    const sandbox = await box(t);
    const handle = await Sandbox.get(sandbox.name);
    await builder(sandbox.name).replaceWithTimeout(0).create();
    await fails(handle.connect(), "SandboxReplacedError");
  },
  async lifecycle_get_list(t) {
    const mark = name();
    const one = await box(t, (b) => b.label("mark", mark).label("which", "one"));
    const two = await box(t, (b) => b.labels({ mark, which: "two" }));
    assert.equal((await Sandbox.get(one.name)).status, "running");
    const all = (await Sandbox.list()).sandboxes.map((handle) => handle.name);
    assert.ok(all.includes(one.name) && all.includes(two.name));
    const page = await Sandbox.listWith((l) => l.label("mark", mark).label("which", "two"));
    assert.deepEqual(page.sandboxes.map((handle) => handle.name), [two.name]);
    const first = await Sandbox.listWith((l) => l.label("mark", mark).limit(1));
    const second = await Sandbox.listWith((l) => l.label("mark", mark).limit(1).cursor(first.nextCursor));
    assert.deepEqual([first, second].map((p) => p.sandboxes[0].name).sort(), [one.name, two.name].sort());
    assert.equal(second.nextCursor, undefined);
  },
  async lifecycle_get_missing() {
    await fails(Sandbox.get("no-such-sandbox"), "SandboxNotFoundError");
  },
  async lifecycle_stop_start(t) {
    const sandbox = await box(t);
    await sandbox.fs().write("/kept", "kept");
    await sandbox.stop();
    assert.equal((await Sandbox.get(sandbox.name)).status, "stopped");
    const again = await Sandbox.start(sandbox.name);
    assert.equal((await Sandbox.get(sandbox.name)).status, "running");
    assert.equal(await again.fs().readToString("/kept"), "kept");
  },
  async lifecycle_connect(t) {
    const sandbox = await box(t);
    const other = await (await Sandbox.get(sandbox.name)).connect();
    assert.equal(other.ownsLifecycle, false);
    assert.equal((await other.exec("echo", ["same"])).stdout(), "same\n");
  },
  async lifecycle_connect_or_create(t) {
    const box_ = name();
    t.after(() => remove(box_));
    const first = await builder(box_).connectOrCreate();
    await first.fs().write("/mark", "x");
    const second = await builder(box_).connectOrCreate();
    assert.equal(await second.fs().exists("/mark"), true);
  },
  async lifecycle_remove(t) {
    const sandbox = await box(t);
    await fails(Sandbox.remove(sandbox.name), "SandboxStillRunningError");
    await sandbox.stop();
    await Sandbox.remove(sandbox.name);
    await fails(Sandbox.get(sandbox.name), "SandboxNotFoundError");
  },
  async lifecycle_kill(t) {
    const sandbox = await box(t);
    const handle = await sandbox.execStream("sleep", ["60"]);
    await sandbox.kill();
    assert.equal((await Sandbox.get(sandbox.name)).status, "stopped");
    await handle.wait().catch(() => undefined);
  },
  async lifecycle_wait_until_stopped(t) {
    const sandbox = await box(t);
    const waiting = sandbox.waitUntilStopped();
    await sandbox.stop();
    const result = await waiting;
    assert.deepEqual([result.name, result.status], [sandbox.name, "stopped"]);
  },
  async lifecycle_restart(t) {
    const sandbox = await box(t);
    const again = await sandbox.restart();
    assert.equal(again.id, sandbox.id);
    assert.equal((await again.exec("true")).code, 0);
  },
  async lifecycle_pause_resume(t) {
    const sandbox = await box(t);
    try {
      await sandbox.pause();
    } catch (error) {
      assert.ok(error instanceof sdk.UnsupportedError, String(error));
      return;
    }
    assert.equal((await Sandbox.get(sandbox.name)).status, "paused");
    await sandbox.resume();
    assert.equal((await sandbox.exec("true")).code, 0);
  },
  async lifecycle_scope(t) {
    const sandbox = await box(t);
    // What `await using` does at the end of a block. The peer's TypeScript SDK stops, and keeps.
    await sandbox[Symbol.asyncDispose]();
    assert.equal((await Sandbox.get(sandbox.name)).status, "stopped");
  },
  async lifecycle_killed_program(t) {
    const box_ = name();
    t.after(() => remove(box_));
    const child = program(`
      import { Sandbox } from "msb-sdk";
      await Sandbox.builder("${box_}").image("host").disableNetwork().create();
      console.log("created");
      setInterval(() => {}, 1000);
    `);
    assert.equal(await firstLine(child), "created");
    child.kill("SIGKILL");
    assert.equal((await (await Sandbox.get(box_)).waitUntilStopped()).name, box_);
  },
  async lifecycle_detached(t) {
    const box_ = name();
    t.after(() => remove(box_));
    const child = program(`
      import { Sandbox } from "msb-sdk";
      await Sandbox.builder("${box_}").image("host").disableNetwork().detached(true).create();
    `);
    assert.deepEqual(await once(child, "exit"), [0, null]);
    const sandbox = await (await Sandbox.get(box_)).connect();
    assert.equal((await sandbox.exec("echo", ["on"])).stdout(), "on\n");
  },
  async lifecycle_detach(t) {
    const box_ = name();
    t.after(() => remove(box_));
    const child = program(`
      import { Sandbox } from "msb-sdk";
      const sandbox = await Sandbox.builder("${box_}").image("host").disableNetwork().create();
      await sandbox.detach();
    `);
    assert.deepEqual(await once(child, "exit"), [0, null]);
    const sandbox = await (await Sandbox.get(box_)).connect();
    assert.equal((await sandbox.exec("true")).code, 0);
  },
  async lifecycle_forked_child(t) {
    const sandbox = await box(t);
    const child = program(`
      import { Sandbox } from "msb-sdk";
      const sandbox = await (await Sandbox.get("${sandbox.name}")).connect();
      console.log((await sandbox.exec("echo", ["child"])).stdout());
    `);
    assert.equal(await firstLine(child), "child");
    if (child.exitCode === null) await once(child, "exit");
    assert.equal((await sandbox.exec("true")).code, 0);
  },
  async lifecycle_bad_arguments() {
    await fails(Sandbox.builder(name()).create(), "InvalidConfigError");
    assert.throws(() => Sandbox.builder("x".repeat(200)), sdk.InvalidConfigError);
    assert.throws(() => builder().cpus(-1), sdk.InvalidConfigError);
  },
  async lifecycle_max_duration(t) {
    const sandbox = await box(t, (b) => b.maxDuration(1));
    assert.equal((await sandbox.waitUntilStopped()).status, "stopped");
  },
  async modify_labels_now(t) {
    const mark = name();
    const sandbox = await box(t);
    const plan = await sandbox.modify({ labels: { mark } });
    assert.equal(plan.applied, true);
    const page = await Sandbox.listWith((l) => l.label("mark", mark));
    assert.deepEqual(page.sandboxes.map((handle) => handle.name), [sandbox.name]);
  },
  async modify_dry_run(t) {
    const sandbox = await box(t, (b) => b.memory(512));
    const before = await sandbox.config();
    const plan = await sandbox.modify({ memory: 256, dryRun: true });
    assert.equal(plan.applied, false);
    assert.equal(plan.changes.length, 1);
    assert.deepEqual((await sandbox.config()).limits, before.limits);
  },
  async ping_touch(t) {
    const sandbox = await box(t);
    const ping = await sandbox.ping();
    assert.equal(ping.name, sandbox.name);
    assert.ok(ping.latencyMs >= 0);
    await fails(sandbox.touch(), "UnsupportedError");
  },
  async metrics(t) {
    const sandbox = await box(t, (b) => b.memory(512));
    const metrics = await sandbox.metrics();
    assert.ok(metrics.memoryBytes > 0);
    assert.ok(metrics.memoryLimitBytes === 512 * 1024 * 1024 || metrics.memoryLimitBytes === 0);
    const stream = await sandbox.metricsStream(10);
    const [one, two] = [await stream.recv(), await stream.recv()];
    assert.ok(two.uptimeMs >= one.uptimeMs);
    await stream.close();
  },
  async all_metrics(t) {
    const [one, two] = [await box(t), await box(t)];
    const all = await sdk.allSandboxMetrics();
    assert.ok(all[one.name] && all[two.name]);
  },
  async logs(t) {
    const sandbox = await box(t);
    await sandbox.exec("sh", ["-c", "echo a; echo b >&2"]);
    const shown = (entries) => entries.map((entry) => `${entry.source}:${entry.text().trim()}`).sort();
    assert.deepEqual(shown(await sandbox.logs()), ["stderr:b", "stdout:a"]);
    assert.equal((await sandbox.logs({ tail: 1 })).length, 1);
    assert.deepEqual(shown(await sandbox.logs({ sources: ["stdout"] })), ["stdout:a"]);
  },
  async log_stream_follow(t) {
    const sandbox = await box(t);
    const stream = await sandbox.logStream({ follow: true });
    await sandbox.exec("echo", ["later"]);
    let cursor;
    for await (const entry of stream) {
      assert.equal(entry.text(), "later\n");
      cursor = entry.cursor;
      break;
    }
    await sandbox.exec("echo", ["last"]);
    const rest = await sandbox.logStream({ fromCursor: cursor });
    assert.equal((await rest.recv()).text(), "last\n");
    assert.equal(await rest.recv(), null);
  },
  async job_detached(t) {
    const sandbox = await box(t);
    const job = await sandbox.execDetached("sh", ["-c", "echo j; exit 6"]);
    assert.deepEqual(await job.wait(), { code: 6, success: false, timedOut: false });
    assert.equal((await job.inspect()).state, "exited");
    assert.equal((await job.logs())[0].data.toString(), "j\n");
  },
  async job_list_kill(t) {
    const sandbox = await box(t);
    const job = await sandbox.execDetached("sleep", ["60"]);
    const page = await sandbox.listJobs();
    assert.deepEqual(page.items.map(({ id, state }) => [id, state]), [[job.id, "running"]]);
    await (await sandbox.getJob(job.id)).kill();
    assert.equal((await job.wait()).code, 137);
    await assert.rejects(sandbox.getJob("9999"), sdk.JobError);
  },
  async job_attach(t) {
    const sandbox = await box(t);
    const job = await sandbox.execDetached("cat");
    const first = await job.attach();
    await first.writeStdin("one\n");
    const event = await first.recv();
    assert.deepEqual([event.type, event.value.data.toString()], ["output", "one\n"]);
    await first.detach();
    const second = await job.attach();
    await job.eof();
    let last;
    for await (const one of second) last = one;
    assert.equal(last.type, "completed");
    assert.equal((await job.wait()).code, 0);
  },
  async volume_shared(t) {
    const volume = await Volume.builder(name()).create();
    t.after(() => Volume.remove(volume.name).catch(() => undefined));
    const one = await box(t, (b) => b.volume("/data", (m) => m.named(volume.name)));
    const two = await box(t, (b) => b.volume("/data", (m) => m.named(volume.name).readonly()));
    assert.equal((await one.exec("sh", ["-c", "echo shared >/data/x"])).code, 0);
    assert.equal((await two.exec("cat", ["/data/x"])).stdout(), "shared\n");
    assert.notEqual((await two.exec("sh", ["-c", "echo no >/data/x"])).code, 0);
  },
  async volume_crud() {
    const name_ = name();
    await Volume.builder(name_).label("a", "b").create();
    const handle = await Volume.get(name_);
    assert.deepEqual(handle.labels, [["a", "b"]]);
    assert.ok((await Volume.list()).some((one) => one.name === name_));
    await handle.fs().write("/x", "in a volume");
    assert.equal(await handle.fs().readToString("/x"), "in a volume");
    await fails(Volume.builder(name_).create(), "VolumeAlreadyExistsError");
    await handle.remove();
    await fails(Volume.get(name_), "VolumeNotFoundError");
  },
  async volume_bind(t) {
    const directory = mkdtempSync(join(shared, "bind-"));
    const sandbox = await box(t, (b) => b.volume("/mnt/x", (m) => m.bind(directory)));
    await sandbox.shell("echo inside >/mnt/x/file");
    assert.equal(readFileSync(join(directory, "file"), "utf8"), "inside\n");
  },
  async volume_tmpfs(t) {
    const sandbox = await box(t, (b) => b.volume("/scratch", (m) => m.tmpfs().size(1)));
    assert.equal((await sandbox.shell("head -c 100000 /dev/zero >/scratch/x")).code, 0);
    assert.notEqual((await sandbox.shell("head -c 2000000 /dev/zero >/scratch/y")).code, 0);
  },
  async snapshot_restore(t) {
    const sandbox = await box(t);
    await sandbox.fs().write("/saved", "saved");
    await sandbox.stop();
    const [snapshot, other] = [name(), name()];
    await (await Sandbox.get(sandbox.name)).snapshot(snapshot);
    t.after(() => Snapshot.remove(snapshot, { force: true }).catch(() => undefined));
    assert.ok((await Snapshot.list()).some((one) => one.name === snapshot));
    const restored = await Sandbox.restore(snapshot).name(other).restore();
    t.after(() => remove(other));
    assert.equal(restored.ownsLifecycle, false);
    assert.equal(await restored.fs().readToString("/saved"), "saved");
  },
  async snapshot_save_load(t) {
    const sandbox = await box(t);
    await sandbox.fs().write("/saved", "saved");
    const [snapshot, other, archive] = [name(), name(), join(shared, "snapshot.tar")];
    await Snapshot.builder(snapshot).fromSandbox(sandbox.name).label("k", "v").create();
    assert.deepEqual((await Snapshot.open(snapshot)).labels, { k: "v" });
    await Snapshot.save(snapshot, archive);
    await sandbox.stop();
    await Snapshot.remove(snapshot);
    const loaded = await Snapshot.load(archive);
    t.after(() => Snapshot.remove(loaded.id, { force: true }).catch(() => undefined));
    const restored = await Sandbox.restore(loaded).name(other).restore();
    t.after(() => remove(other));
    assert.equal(await restored.fs().readToString("/saved"), "saved");
  },
  async snapshot_missing() {
    await fails(Snapshot.get("no-such-snapshot"), "MicrosandboxError");
    await fails(Snapshot.remove("no-such-snapshot"), "MicrosandboxError");
  },
  async image_list_missing() {
    assert.ok(Array.isArray(await Image.list()));
    await fails(Image.inspect("no-such-image"), "ImageNotFoundError");
  },
  async image_missing_never() {
    const creating = Sandbox.builder(name()).image("no-such-image").pullPolicy("never").create();
    await fails(creating, "ImageNotFoundError");
  },
  async secret_placeholder(t) {
    const value = "the-value-of-the-secret";
    const box_ = name();
    t.after(() => remove(box_));
    const build = Sandbox.builder(box_).image("host").secretEnv("API_KEY", value, "example.com");
    const sandbox = await network(t, build.create());
    if (sandbox === undefined) return;
    const inside = (await sandbox.exec("printenv", ["API_KEY"])).stdout().trim();
    assert.ok(inside !== "" && inside !== value, inside);
    for (const entry of readdirSync(home, { recursive: true, withFileTypes: true })) {
      if (!entry.isFile()) continue;
      const path = join(entry.path ?? entry.parentPath, entry.name);
      assert.ok(!readFileSync(path).includes(value), path);
    }
  },
  async network_none(t) {
    const sandbox = await box(t, (b) => b.network((n) => n.policy(NetworkPolicy.none())));
    const script = "import socket; socket.create_connection(('192.0.2.1', 80), 5)";
    assert.notEqual((await sandbox.exec("python3", ["-c", script])).code, 0);
  },
  async network_ports(t) {
    const box_ = name();
    t.after(() => remove(box_));
    const server = net.createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address();
    server.close();
    await once(server, "close");
    const sandbox = await network(t, Sandbox.builder(box_).image("host").port(port, 8000).create());
    if (sandbox === undefined) return;
    await sandbox.fs().write("/srv/page/hello", "from the sandbox");
    const job = await sandbox.execDetached("python3", ["-m", "http.server", "8000", "-d", "/srv/page"]);
    const get = () =>
      new Promise((resolve) => {
        http
          .get({ port, host: "127.0.0.1", path: "/hello" }, (response) => {
            response.setEncoding("utf8");
            let body = "";
            response.on("data", (chunk) => (body += chunk));
            response.on("end", () => resolve(body));
          })
          .on("error", () => resolve(undefined));
      });
    let body;
    while ((body = await get()) !== "from the sandbox") assert.equal((await job.inspect()).state, "running", body);
  },
  async workspace_diff_apply(t) {
    const directory = mkdtempSync(join(shared, "work-"));
    const sandbox = await box(t, (b) => b.workspace(`${directory}:/work`));
    await sandbox.fs().write("/work/new", "new");
    assert.deepEqual(readdirSync(directory), []);
    const changes = await sandbox.workspace().diff();
    assert.deepEqual(changes.map(({ path, what }) => [path, what]), [["new", "added"]]);
    assert.equal((await sandbox.workspace().apply()).applied.length, 1);
    assert.equal(readFileSync(join(directory, "new"), "utf8"), "new");
  },
  async workspace_discard(t) {
    const directory = mkdtempSync(join(shared, "work-"));
    const sandbox = await box(t, (b) => b.workspace(`${directory}:/work`));
    await sandbox.fs().write("/work/new", "new");
    await sandbox.stop();
    assert.equal(await sandbox.workspace().discard(), 1);
    assert.deepEqual(await sandbox.workspace().diff(), []);
    assert.deepEqual(readdirSync(directory), []);
  },
  async unsupported_is_typed(t) {
    const sandbox = await box(t);
    await fails(sandbox.fork("other"), "UnsupportedError");
    assert.throws(() => Snapshot.builder("s").fromSandbox(sandbox.name).full(), sdk.UnsupportedError);
    await fails(Sandbox.get("other"), "SandboxNotFoundError");
  },
  async replace_is_named() {
    assert.throws(
      () => Sandbox.builder("x").fromSnapshot("s"),
      (error) => /Sandbox\.restore/.test(error.hint),
    );
  },
};

/** Skips a case on a host where sandboxes get no network device. */
async function network(t, creating) {
  try {
    return await creating;
  } catch (error) {
    if (!(error instanceof sdk.UnsupportedError)) throw error;
    t.skip(`SKIP: ${error.message}`);
    return undefined;
  }
}

/** A case with a command, as the list has it. */
async function runCommand(t, one) {
  const sandbox = await box(t);
  const options = one.options ?? {};
  const running = sandbox.execWith(one.command[0], (o) => {
    o.args(one.command.slice(1));
    if (options.env) o.envs(options.env);
    if (options.cwd) o.cwd(options.cwd);
    if (options.stdin) o.stdinBytes(options.stdin);
    if (options.timeout) o.timeout(options.timeout * 1000);
    if (options.tty) o.tty(true);
    for (const { resource, soft, hard } of options.rlimits ?? []) o.rlimitRange(resource, soft, hard);
    return o;
  });
  if (one.expect.error !== undefined) return fails(running, CLASSES[one.expect.error]);
  const output = await running;
  const seen = { exit_code: output.code, stdout: output.stdout(), stderr: output.stderr() };
  assert.deepEqual(seen, one.expect);
}

for (const one of list) {
  const run = one.command === undefined ? cases[one.name] : (t) => runCommand(t, one);
  test(one.name, { timeout: LIMIT }, async (t) => {
    assert.ok(run, "the case has no test");
    await run(t);
  });
}
