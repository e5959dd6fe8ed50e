# Runs code for msb and keeps its definitions. Requests arrive as frames on the original stdin; output
# and the end of each call leave as frames on the original stdout. The code itself gets other
# descriptors 0, 1 and 2: what it or its child processes write there is text and never a frame.
import ast, builtins, codeop, fcntl, io, linecache, os, select, signal, sys, threading, traceback
import types

HEADER = 10
COROUTINE = 0x80
ORDERS = os.fdopen(os.dup(0), "rb", buffering=0)
REPORTS = os.dup(1)
LOCK = threading.RLock()
PIPES = {}
DRIVER = os.getpid()
state = {"running": False, "writing": 0, "interrupted": False}


def report(kind, payload):
    view = memoryview(("%s%08x\n" % (kind, len(payload))).encode() + bytes(payload))
    while view:
        view = view[os.write(REPORTS, view):]


def drain():
    for kind, pipe in PIPES.items():
        while True:
            try:
                said = os.read(pipe, 65536)
            except BlockingIOError:
                break
            if not said:
                break
            report(kind, said)


def say(kind, payload):
    # An interrupt in the middle of a frame would leave a partial frame.
    main = threading.current_thread() is threading.main_thread()
    state["writing"] += main
    try:
        with LOCK:
            drain()
            for at in range(0, len(payload), 65536):
                report(kind, payload[at:at + 65536])
    finally:
        state["writing"] -= main
    if main and state["interrupted"] and not state["writing"]:
        state["interrupted"] = False
        raise KeyboardInterrupt


class Said(io.RawIOBase):
    def __init__(self, kind, number):
        self.kind, self.number = kind, number

    def writable(self):
        return True

    def fileno(self):
        return self.number

    def write(self, text):
        text = bytes(text)
        if os.getpid() != DRIVER:
            os.write(self.number, text)
        elif text:
            say(self.kind, text)
        return len(text)


def stream(kind, number):
    return io.TextIOWrapper(Said(kind, number), "utf-8", "backslashreplace", write_through=True)


def pump():
    ready = select.poll()
    for pipe in PIPES.values():
        ready.register(pipe, select.POLLIN)
    while True:
        ready.poll()
        with LOCK:
            drain()


def interrupt(signal_number, frame):
    if os.getpid() != DRIVER:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    elif state["writing"]:
        state["interrupted"] = True
    elif state["running"]:
        raise KeyboardInterrupt


def exactly(count):
    read = b""
    while len(read) < count:
        piece = ORDERS.read(count - len(read))
        if not piece:
            os._exit(0)
        read += piece
    return read


class Code:
    def __init__(self):
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self.module
        self.count = 0
        self.loop = None
        self.flags = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
        self.compiler = codeop.Compile()
        self.compiler.flags |= self.flags

    def value(self, compiled):
        result = eval(compiled, self.module.__dict__)
        if compiled.co_flags & COROUTINE:
            import asyncio
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            return self.loop.run_until_complete(result)
        return result

    def run(self, text):
        self.count += 1
        name = "<code %d>" % self.count
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        try:
            tree = ast.parse(text, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            self.value(self.compiler(tree, name, "exec"))
            if last is not None:
                shown = self.value(self.compiler(ast.Expression(last.value), name, "eval"))
                if shown is not None:
                    builtins._ = None
                    print(repr(shown))
                    builtins._ = shown
            return b"+"
        except SystemExit as end:
            if end.code not in (None, 0):
                print("SystemExit: %s" % (end.code,), file=sys.stderr)
                return b"-"
            return b"+"
        except BaseException as error:
            state["running"] = False
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != name:
                trace = trace.tb_next
            told = traceback.TracebackException(type(error), error, trace)
            if told.stack and told.stack[-1].name == interrupt.__name__:
                told.stack.pop()
            sys.stderr.write("".join(told.format()))
            return b"-"


def serve():
    code = Code()
    report("r", b"")
    while True:
        length = int(exactly(HEADER)[1:9], 16)
        order = exactly(length)
        number, text = order[:8], order[8:].decode("utf-8", "replace")
        state["running"], state["interrupted"] = True, False
        ended = b"-"
        try:
            try:
                ended = code.run(text)
            finally:
                state["running"] = False
                if os.getpid() != DRIVER:
                    # A forked copy of this process: its exit is not the end of the call.
                    os._exit(0)
            for each in (sys.stdout, sys.stderr):
                try:
                    each.flush()
                except Exception:
                    pass
        except KeyboardInterrupt:
            pass
        with LOCK:
            drain()
            report("d", number + ended)


def begin():
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for kind, number in (("o", 1), ("e", 2)):
        inside, outside = os.pipe()
        os.dup2(outside, number)
        os.close(outside)
        os.set_blocking(inside, False)
        PIPES[kind] = inside
        try:
            fcntl.fcntl(inside, 1031, 1 << 20)
        except OSError:
            pass
    sys.stdin = open(0, "r", closefd=False)
    sys.stdout = sys.__stdout__ = stream("o", 1)
    sys.stderr = sys.__stderr__ = stream("e", 2)
    sys.argv = [""]
    # The built-in `exit` and `quit` close stdin.
    builtins.exit = builtins.quit = sys.exit
    signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=pump, daemon=True).start()
    serve()


begin()
