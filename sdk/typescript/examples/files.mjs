// Reads and writes files inside, and limits a command by an AbortSignal.
import { Sandbox } from "msb-sdk";

const sandbox = await Sandbox.builder("files").image("host").disableNetwork().replace().create();
await sandbox.fs().write("/tmp/note", "written from outside\n");
console.log((await sandbox.exec("cat", ["/tmp/note"])).stdout());
try {
  await sandbox.exec("sleep", ["60"], { signal: AbortSignal.timeout(200) });
} catch (error) {
  console.log("ended by", error.name);
}
await sandbox.destroy();
