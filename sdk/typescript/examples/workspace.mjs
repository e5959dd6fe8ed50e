// Reviews the changes of a sandbox before they reach the host.
import { mkdtempSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Sandbox } from "msb-sdk";

const directory = mkdtempSync(join(tmpdir(), "workspace-"));
const sandbox = await Sandbox.builder("review")
  .image("host")
  .disableNetwork()
  .workspace(`${directory}:/work`)
  .replace()
  .create();
await sandbox.shell("echo new > /work/file");
for (const change of await sandbox.workspace().diff()) console.log(change.what, change.path);
console.log("before", readdirSync(directory));
await sandbox.workspace().apply();
console.log("after", readdirSync(directory));
await sandbox.destroy();
