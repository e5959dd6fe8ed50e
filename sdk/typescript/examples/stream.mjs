// Reads output as it comes, and writes stdin.
import { Sandbox } from "msb-sdk";

const sandbox = await Sandbox.builder("stream").image("host").disableNetwork().replace().create();
const handle = await sandbox.execStreamWith("cat", (options) => options.stdinPipe());
const stdin = await handle.takeStdin();
await stdin.write("one line\n");
await stdin.close();
for await (const event of handle) {
  if (event.kind === "stdout") process.stdout.write(event.data);
  if (event.kind === "exited") console.log("exit code", event.code);
}
await sandbox.destroy();
