// Runs code in a sandbox.
import { Sandbox } from "msb-sdk";

const sandbox = await Sandbox.builder("hello").image("host").cpus(1).memory(512).replace().create();
const output = await sandbox.exec("python3", ["-c", "print('Hello!')"]);
console.log(output.stdout());
await sandbox.destroy();
