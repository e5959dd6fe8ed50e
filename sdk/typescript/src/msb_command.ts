// Runs the `msb` command for what the table of Operations does not have.

import { execFile } from "node:child_process";
import { CustomError, MicrosandboxError } from "./errors";
import { configuredHome, resolveRuntime } from "./runtime";

/** Largest output of a command, in bytes. */
const MAX_OUTPUT = 64 << 20;

/** Runs `msb` with these arguments. The result is its stdout. */
export function msbCommand(
  args: readonly string[],
  failure: new (message: string, options?: ErrorOptions) => MicrosandboxError = CustomError,
): Promise<string> {
  const home = configuredHome();
  const env = home === undefined ? process.env : { ...process.env, MSB_HOME: home };
  return new Promise((resolve, reject) => {
    const { msbPath } = resolveRuntime();
    execFile(msbPath, args, { env, maxBuffer: MAX_OUTPUT }, (error, stdout, stderr) => {
      if (error === null) {
        resolve(stdout);
        return;
      }
      const text = stderr.replace(/^error: /, "").trim();
      reject(new failure(text === "" ? error.message : text, { cause: error }));
    });
  });
}
