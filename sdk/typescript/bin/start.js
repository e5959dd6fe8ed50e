// Runs `msb` in place of this process, as far as Node can: same streams, same exit.
"use strict";

const { spawn } = require("node:child_process");
const { resolveRuntime } = require("../dist/runtime.js");

/** Signals that a terminal or a supervisor sends, passed on to msb. */
const SIGNALS = ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"];

exports.start = function start(args) {
  let msb;
  try {
    msb = resolveRuntime().msbPath;
  } catch (error) {
    console.error(`error: ${error.message}`);
    if (error.hint) console.error(`hint: ${error.hint}`);
    process.exit(125);
  }
  const child = spawn(msb, args, { stdio: "inherit" });
  for (const signal of SIGNALS) process.on(signal, () => child.kill(signal));
  child.on("error", (error) => {
    console.error(`error: cannot start \`${msb}\`: ${error.message}`);
    process.exit(125);
  });
  child.on("exit", (code, signal) => {
    if (signal === null) process.exit(code);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  });
};
