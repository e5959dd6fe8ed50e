// A command at the terminal of this program.

import { TerminalError, InvalidConfigError } from "./errors";
import { exitCode, started } from "./exec";
import type { Command, Exit } from "./generated";
import { session } from "./session";

/** The keys that detach unless others are set: Ctrl-P, Ctrl-Q. */
const DETACH_KEYS = "ctrl-p,ctrl-q";

/** The bytes of keys such as `ctrl-p,ctrl-q` or `a`. */
export function parseKeys(text: string): number[] {
  return text.split(",").map((part) => {
    const control = /^ctrl-([a-z@[\\\]^_])$/i.exec(part);
    if (control?.[1] !== undefined) return control[1].toUpperCase().charCodeAt(0) & 0x1f;
    if (part.length === 1) return part.charCodeAt(0);
    throw new InvalidConfigError(`not keys to detach with: \`${text}\``);
  });
}

/** Removes the detach keys from input, and says whether they were complete. */
class KeyWatch {
  #held: number[] = [];

  constructor(private readonly keys: readonly number[]) {}

  take(input: Buffer): { bytes: Buffer; detached: boolean } {
    const passed: number[] = [];
    for (const byte of input) {
      this.#held.push(byte);
      while (this.#held.some((one, at) => one !== this.keys[at])) {
        passed.push(this.#held.shift() as number);
      }
      if (this.#held.length === this.keys.length) {
        return { bytes: Buffer.from(passed), detached: true };
      }
    }
    return { bytes: Buffer.from(passed), detached: false };
  }
}

/** Runs a command at this program's terminal. The result is its exit code; 0 after a detach. */
export async function attach(sandbox: string, command: Command, keys?: string): Promise<number> {
  const { stdin, stdout } = process;
  if (!stdin.isTTY || !stdout.isTTY) {
    const error = new TerminalError("stdin and stdout of this program are not a terminal");
    error.hint = "use exec or execStream";
    throw error;
  }
  const size = (): { rows: number; cols: number } => ({ rows: stdout.rows, cols: stdout.columns });
  const watch = new KeyWatch(parseKeys(keys ?? DETACH_KEYS));
  const stream = session().open("exec_stream", {
    name: sandbox,
    command: { ...command, tty: size(), stdin: "streamed" },
  });
  await started(stream);
  const onInput = (chunk: Buffer): void => {
    const { bytes, detached } = watch.take(chunk);
    if (bytes.length > 0) stream.write(bytes).catch(() => undefined);
    if (detached) stream.detach().catch(() => undefined);
  };
  const onResize = (): void => {
    stream.control({ resize: size() });
  };
  stdin.setRawMode(true);
  stdin.on("data", onInput);
  stdin.resume();
  stdout.on("resize", onResize);
  try {
    for (let item = await stream.next(); item !== null; item = await stream.next()) {
      if (item.kind === "stdout" || item.kind === "stderr") stdout.write(item.data);
    }
    const exit = (await stream.result) as Exit | { detached: true };
    return "detached" in exit ? 0 : exitCode(exit);
  } finally {
    stdout.off("resize", onResize);
    stdin.off("data", onInput);
    stdin.pause();
    stdin.setRawMode(false);
  }
}
