// Runs code for msb and keeps its definitions. Requests arrive as frames on descriptor 3; output and
// the end of each call leave as frames on 4. Descriptors 1 and 2 of the code and of its child
// processes are FIFOs in the directory that the argument names: what is written there is text and
// never a frame.
'use strict';
const fs = require('fs'), net = require('net'), path = require('path'), vm = require('vm');
const util = require('util'), { Writable } = require('stream');
const { Worker } = require('worker_threads');

const ORDERS = 3, REPORTS = 4, HEADER = 10;
const FREE = 0, BUSY = 1, LOCK = 0, RUNNING = 1;
const shared = new Int32Array(new SharedArrayBuffer(8));
const directory = process.argv[1];
const open = (name) => fs.openSync(path.join(directory, name), fs.constants.O_RDONLY | fs.constants.O_NONBLOCK);
const pipes = { o: open('o'), e: open('e') };
for (const name of ['o', 'e']) fs.unlinkSync(path.join(directory, name));
fs.rmdirSync(directory);

// Shared with the worker thread below as source text: it cannot access definitions of this one.
const sharing = `
  const now = { held: false, writing: false };
  function report(kind, payload) {
    const frame = Buffer.concat([Buffer.from(kind + payload.length.toString(16).padStart(8, '0') + '\\n'), payload]);
    now.writing = true;
    for (let at = 0; at < frame.length;) {
      try { at += fs.writeSync(REPORTS, frame, at); } catch (error) { if (error.code !== 'EAGAIN') throw error; }
    }
    now.writing = false;
  }
  function drain() {
    const piece = Buffer.allocUnsafe(65536);
    for (const kind of ['o', 'e']) {
      for (;;) {
        let length = 0;
        try { length = fs.readSync(pipes[kind], piece, 0, piece.length, null); } catch (error) {
          if (error.code !== 'EAGAIN') throw error;
        }
        if (length === 0) break;
        report(kind, piece.subarray(0, length));
      }
    }
  }
  function locked(work) {
    while (Atomics.compareExchange(shared, LOCK, FREE, BUSY) !== FREE) Atomics.wait(shared, LOCK, BUSY, 1000);
    now.held = true;
    try { work(); } finally { now.held = false; Atomics.store(shared, LOCK, FREE); Atomics.notify(shared, LOCK); }
  }`;
const names = 'fs, shared, pipes, REPORTS, LOCK, FREE, BUSY';
const { report, drain, locked, now } =
  new Function(names, sharing + 'return { report, drain, locked, now };')(fs, shared, pipes, REPORTS, LOCK, FREE, BUSY);

// While code waits for a child process, only another thread can read the output of that process.
const pump = new Worker(`
  const { workerData: { shared, pipes, REPORTS, LOCK, RUNNING, FREE, BUSY } } = require('worker_threads');
  const fs = require('fs');
  ${sharing}
  for (;;) {
    Atomics.wait(shared, RUNNING, 0);
    locked(drain);
    Atomics.wait(shared, RUNNING, 1, 20);
  }`, { eval: true, workerData: { shared, pipes, REPORTS, LOCK, RUNNING, FREE, BUSY }, execArgv: [] });
pump.unref();

const say = (kind, payload) => locked(() => {
  drain();
  for (let at = 0; at < payload.length; at += 65536) report(kind, payload.subarray(at, at + 65536));
});
function stream(kind, fd) {
  const said = new Writable({
    decodeStrings: true,
    write(chunk, encoding, done) { say(kind, chunk); done(); },
  });
  said.fd = fd;
  return said;
}
const stdout = stream('o', 1), stderr = stream('e', 2);
for (const [name, value] of [['stdout', stdout], ['stderr', stderr]]) {
  Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => value });
}
globalThis.console = new console.Console({ stdout, stderr });
Object.assign(globalThis, { require: require('module').createRequire(process.cwd() + '/'), module, exports });

const DECLARED = /^Identifier '.*' has already been declared$/;
function told(error) {
  if (!(error instanceof Error)) return 'Uncaught ' + util.inspect(error);
  const own = (line) => !/^\s+at .*(\[eval\]|node:|internal\/)/.test(line);
  let text = String(error.stack || error).split('\n').filter(own).join('\n');
  if (DECLARED.test(error.message)) {
    text += '\nEarlier code declared it and its value is kept: assign to it without `const` or `let`, or put the code in a block';
  }
  return 'Uncaught ' + text;
}

// Hides the warning that `import()` in `vm` code is experimental.
const warn = process.emitWarning;
process.emitWarning = function (warning, ...rest) {
  if (!String(warning).includes('USE_MAIN_CONTEXT_DEFAULT_LOADER')) warn.call(process, warning, ...rest);
};

let count = 0, session;
function compile(code) {
  const options = { filename: `code ${++count}` };
  if (vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER) {
    options.importModuleDynamically = vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
  }
  return new vm.Script(code, options);
}
// `await` outside of a function is only for the engine's own console, which knows no `import()`.
function awaited(code) {
  if (!session) {
    globalThis[Symbol.for('msb.import')] = compile('(name) => import(name)').runInThisContext();
    session = new (require('inspector').Session)();
    session.connect();
  }
  const place = Symbol.for('msb.value');
  return new Promise((resolve, reject) => {
    const expression = code.replace(/\bawait(\s+)import\s*\(/g, `await$1globalThis[Symbol.for('msb.import')](`);
    const options = { expression, replMode: true, awaitPromise: true };
    session.post('Runtime.evaluate', options, (failed, answer) => {
      if (failed) return reject(failed);
      const thrown = answer.exceptionDetails, { objectId, value } = (thrown ? thrown.exception : answer.result) || {};
      const end = (it) => (thrown ? reject(it) : resolve(it));
      if (!objectId) return end(value);
      const functionDeclaration = `function () { globalThis[Symbol.for('msb.value')] = this; }`;
      session.post('Runtime.callFunctionOn', { objectId, functionDeclaration }, () => {
        const kept = globalThis[place];
        delete globalThis[place];
        end(kept);
      });
    });
  });
}
function evaluate(code) {
  let script;
  try { script = compile(code); } catch (error) {
    if (!(error instanceof SyntaxError) || !/\bawait\b/.test(code)) throw error;
    return awaited(code);
  }
  try { return script.runInThisContext({ breakOnSigint: true, displayErrors: false }); } catch (error) {
    // An interrupt stops whatever runs, even this. A partial frame cannot be repaired.
    if (now.writing || now.held || stdout.writableLength || stderr.writableLength) process.exit(1);
    throw error;
  }
}

const orders = [];
let current;
function end(mark) {
  const { number } = current;
  current = undefined;
  locked(() => { drain(); report('d', Buffer.concat([number, Buffer.from(mark)])); });
  Atomics.store(shared, RUNNING, 0);
  next();
}
function failed(error) {
  stderr.write(told(error) + '\n');
}
function next() {
  if (current || orders.length === 0) return;
  const order = current = orders.shift();
  Atomics.store(shared, RUNNING, 1);
  Atomics.notify(shared, RUNNING);
  const ended = (work) => { if (current === order) { const mark = work(); if (current === order) end(mark); } };
  const shown = (value) => ended(() => {
    if (value !== undefined) stdout.write(util.inspect(value) + '\n');
    return '+';
  });
  const broken = (error) => ended(() => { failed(error); return '-'; });
  try {
    const value = evaluate(order.code);
    if (value && typeof value.then === 'function') value.then(shown, broken);
    else setImmediate(shown, value);
  } catch (error) { broken(error); }
}
process.on('SIGINT', () => {
  if (current) { stderr.write('Uncaught: interrupted\n'); end('-'); }
});
for (const name of ['uncaughtException', 'unhandledRejection']) process.on(name, failed);

let unread = Buffer.alloc(0);
const input = new net.Socket({ fd: ORDERS, readable: true, writable: false });
input.on('data', (piece) => {
  unread = Buffer.concat([unread, piece]);
  while (unread.length >= HEADER) {
    const length = parseInt(unread.toString('latin1', 1, 9), 16);
    if (unread.length < HEADER + length) break;
    const order = unread.subarray(HEADER, HEADER + length);
    unread = unread.subarray(HEADER + length);
    orders.push({ number: Buffer.from(order.subarray(0, 8)), code: order.toString('utf8', 8) });
  }
  next();
});
input.on('close', () => process.exit(0));
locked(() => report('r', Buffer.alloc(0)));
