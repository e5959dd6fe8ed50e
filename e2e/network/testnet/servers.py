"""The servers of the world that only tests need.

`outside` serves the internet: servers that echo requests, and servers that must not be reached.
`home` serves the machine that msb runs on. Every connection to a canary is a line of
log/canaries.log; every request that was understood is a line of log/requests.log.
"""
import base64
import gzip
import hashlib
import http.server
import json
import select
import socket
import socketserver
import ssl
import struct
import sys
import threading

LOCK = threading.Lock()
IP_FREEBIND = 15


def note(log, text):
    with LOCK, open(f"log/{log}.log", "a") as file:
        file.write(text + "\n")


def serve(handler, address, port, kind=socket.SOCK_STREAM):
    """Listens now, and serves each connection or datagram in a thread."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Addresses that the machine gets later can be listened at, too.
    if family == socket.AF_INET:
        listener.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
    listener.bind((address, port))

    def streams():
        listener.listen(1024)
        while True:
            peer, whence = listener.accept()
            threading.Thread(target=quietly, args=(handler, peer, whence), daemon=True).start()

    def datagrams():
        while True:
            data, whence = listener.recvfrom(65536)
            handler(listener, whence, data)

    if kind == socket.SOCK_STREAM:
        listener.listen(1024)
    target = streams if kind == socket.SOCK_STREAM else datagrams
    threading.Thread(target=target, daemon=True).start()


def quietly(handler, peer, whence):
    try:
        handler(peer, whence)
    except OSError:
        pass
    finally:
        peer.close()


def canary(address, port):
    """A canary: no sandbox may reach it."""
    def stream(peer, _whence):
        note("canaries", f"tcp {address} {port}")
        peer.sendall(b"canary\n")

    def datagram(listener, whence, _data):
        note("canaries", f"udp {address} {port}")
        listener.sendto(b"canary", whence)

    serve(stream, address, port)
    serve(datagram, address, port, socket.SOCK_DGRAM)


def echo(peer, _whence):
    """Says everything back, and goodbye when the other side has said all."""
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.sendall(b"goodbye")


def count(peer, _whence):
    """Reads to the end, then tells how much it was and what."""
    digest, total = hashlib.sha256(), 0
    while data := peer.recv(1 << 20):
        digest.update(data)
        total += len(data)
    peer.sendall(f"{total} {digest.hexdigest()}\n".encode())


def first(peer, _whence):
    """Speaks first, like SSH does."""
    peer.sendall(b"hello, I speak first\n")
    while data := peer.recv(65536):
        peer.sendall(data)


def endless(peer, _whence):
    """Has always more to say, once it was asked."""
    peer.recv(100)
    while True:
        peer.sendall(bytes(1 << 16))


def echo_datagram(listener, whence, data):
    listener.sendto(data, whence)


class Tells(http.server.BaseHTTPRequestHandler):
    """Tells what it was sent, in JSON."""
    protocol_version = "HTTP/1.1"
    timeout = 300
    gates = {}

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass

    def log_message(self, *_words):
        pass

    def body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def answer(self, status, data, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_any(self):
        if self.path.startswith("/ws"):
            return self.socket()
        if self.path.startswith("/upload"):
            return self.upload()
        body = self.body()
        told = {
            "method": self.command,
            "path": self.path,
            "headers": [[name.lower(), value] for name, value in self.headers.items()],
            "body": body.decode("latin-1"),
            "at": self.connection.getsockname()[0],
        }
        note("requests", json.dumps(told))
        secret = self.headers.get("authorization", "") or self.headers.get("x-api-key", "")
        data = json.dumps(told).encode() + b"\n"
        path = self.path.split("?")[0]
        if path == "/in-header":
            self.answer(200, b"see above\n", [("x-echo", secret), ("set-cookie", f"k={secret}")])
        elif path == "/in-reason":
            self.send_response(200, f"fine {secret}")
            self.send_header("content-length", "0")
            self.end_headers()
        elif path == "/in-trailer":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.send_header("trailer", "x-echo")
            self.end_headers()
            self.chunk(b"see below")
            self.wfile.write(f"0\r\nx-echo: {secret}\r\n\r\n".encode())
        elif path == "/in-parts":
            # One byte a chunk, so that no part of it alone is the value.
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for byte in secret.encode():
                self.chunk(bytes([byte]))
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/echo":
            # What was sent, in one chunk; its end comes behind it.
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.chunk(body)
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/big":
            # More than anybody on the way should hold.
            self.answer(200, bytes(4 << 20))
        elif path == "/zipped":
            if "gzip" in self.headers.get("accept-encoding", ""):
                self.answer(200, gzip.compress(data), [("content-encoding", "gzip")])
            else:
                self.answer(200, data)
        elif path == "/redirect":
            self.answer(302, b"", [("location", "https://evil.example.net/landed")])
        elif path == "/stream":
            # The second half comes only when a client has read the first and says so.
            gate = self.gates.setdefault(self.path, threading.Event())
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.chunk(b"data: first\n\n")
            gate.wait(60)
            self.chunk(b"data: second\n\n")
            self.wfile.write(b"0\r\n\r\n")
        elif path == "/open":
            self.gates.setdefault(self.path.replace("/open", "/stream"), threading.Event()).set()
            self.answer(200, b"opened\n")
        else:
            self.answer(200, data)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = do_TRACE = do_any

    def upload(self):
        """A body of any size, of which the sum is told."""
        digest, total = hashlib.sha256(), int(self.headers["content-length"])
        left = total
        while left:
            data = self.rfile.read(min(left, 1 << 20))
            if not data:
                return
            digest.update(data)
            left -= len(data)
        self.answer(200, f"{total} {digest.hexdigest()}\n".encode())

    def socket(self):
        """A WebSocket that echoes."""
        note("requests", json.dumps({
            "method": self.command,
            "path": self.path,
            "headers": [[name.lower(), value] for name, value in self.headers.items()],
            "body": "",
            "at": self.connection.getsockname()[0],
        }))
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "upgrade")
        self.send_header("sec-websocket-accept", accept)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        if self.path.startswith("/ws-secret"):
            secret = self.headers.get("authorization", "").encode()
            self.wfile.write(bytes([0x81, len(secret)]) + secret)
            self.wfile.flush()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            size = head[1] & 127
            if size == 126:
                size = struct.unpack(">H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
            front = bytes([0x81, size]) if size < 126 else struct.pack(">BBH", 0x81, 126, size)
            self.wfile.write(front + text)
            self.wfile.flush()


def trusted():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("server.pem", "server.key")
    return context


def tells(address, port, tls):
    class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 1024

        def handle_error(self, *_):
            pass

        def get_request(self):
            peer, whence = super().get_request()
            return peer, whence

        def finish_request(self, request, client_address):
            if tls:
                request.settimeout(60)
                request = tls.wrap_socket(request, server_side=True)
            super().finish_request(request, client_address)

    server = Server((address, port), Tells)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def raw(peer, _whence):
    """Notes every byte that comes over TLS, and answers each read alike."""
    peer.settimeout(60)
    with trusted().wrap_socket(peer, server_side=True) as stream:
        while data := stream.recv(65536):
            note("raw", data.decode("latin-1").encode("unicode_escape").decode())
            stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nraw\n")


def question(data):
    """The name and type that a DNS message asks for, and where the question ends."""
    labels, at = [], 12
    while data[at]:
        labels.append(data[at + 1:at + 1 + data[at]].decode())
        at += 1 + data[at]
    return ".".join(labels).lower(), struct.unpack(">H", data[at + 1:at + 3])[0], at + 5


def answered(data, addresses):
    """A DNS answer with A records that live for no time."""
    _name, kind, end = question(data)
    records = addresses if kind == 1 else []
    head = data[:2] + struct.pack(">HHHHH", 0x8580, 1, len(records), 0, 0)
    tail = b"".join(
        b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(address)
        for address in records
    )
    return head + data[12:end] + tail


def foreign(listener, whence, data):
    note("foreign", question(data)[0])
    listener.sendto(answered(data, ["203.0.113.10"]), whence)


FLIPS = {"private": "10.9.9.9", "meta": "169.254.169.254", "local": "127.0.0.1"}
ASKED = {}


def weird(listener, whence, data):
    """`KIND.weird.example.net` is answered in a way that no server answers."""
    name, _kind, end = question(data)
    good = answered(data, ["203.0.113.10"])
    word = name.split(".")[0]
    # An alias that leads to a private address, as an answer of a server that knows both.
    alias = data[:2] + struct.pack(">HHHHH", 0x8580, 1, 2, 0, 0) + data[12:end] \
        + b"\xc0\x0c" + struct.pack(">HHIH", 5, 1, 60, 6) + b"\x01a\x01b\xc0\x12" \
        + b"\x01a\x01b\xc0\x12" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton("10.9.9.9")
    answers = {
        "loop": good[:end] + b"\xc0" + bytes([end]) + good[end + 2:],
        "short": good[:-3],
        "otherid": bytes([good[0] ^ 1]) + good[1:],
        "othername": good.replace(b"\x09othername", b"\x09somebody1"),
        "count": good[:6] + b"\xff\xff" + good[8:],
        "alias": alias,
        "rebound": answered(data, ["127.0.0.1", "10.9.9.9", "169.254.169.254", "0.0.0.0"]),
    }
    listener.sendto(answers.get(word, good), whence)


def flip(listener, whence, data):
    """`WORD.KIND.flip.example.net` is public when it is asked for first, and then is not."""
    name, kind, _ = question(data)
    if name.endswith(".weird.example.net"):
        return weird(listener, whence, data)
    before = ASKED.get(name, 0)
    if kind == 1:
        ASKED[name] = before + 1
    bad = FLIPS.get(name.split(".")[1], "10.9.9.9")
    listener.sendto(answered(data, [bad if before else "203.0.113.10"]), whence)


def proxy(password, tls=None):
    """A proxy of an office, which only knows CONNECT and plain GET."""
    log = "tls-proxy" if tls else "proxy"

    def handle(peer, _whence):
        if tls:
            peer = tls.wrap_socket(peer, server_side=True)
        file = peer.makefile("rb")
        first_line = file.readline().decode("latin-1").strip()
        heads = []
        while line := file.readline().strip():
            heads.append(line.decode("latin-1"))
        wanted = f"proxy-authorization: basic {base64.b64encode(password.encode()).decode()}"
        if password and not any(head.lower() == wanted.lower() for head in heads):
            note(log, f"407 {first_line}")
            peer.sendall(b"HTTP/1.1 407 Who?\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        note(log, first_line)
        method, target, _version = first_line.split(" ")
        if method == "TRACE" or target.endswith("/heads"):
            # All that it was told, as TRACE asks for and as careless servers do.
            told = "\n".join(heads).encode()
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(told), told))
            return
        if method != "CONNECT":
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nby proxy\r\n")
            return
        host, port = target.rsplit(":", 1)
        # The proxy of an office resolves names by itself.
        with socket.create_connection((host.strip("[]"), int(port))) as server:
            peer.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            ends = {peer: server, server: peer}
            while ends:
                held = [peer] if tls and peer.pending() else []
                for one in held or select.select(list(ends), [], [])[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    ends[one].sendall(data)
    return handle


def outside():
    for address in ["10.9.9.9", "172.16.9.9", "100.64.0.9", "169.254.169.254", "169.254.9.9",
                    "169.254.42.42", "169.254.0.23", "100.100.100.200", "168.63.129.16",
                    "192.0.0.192", "fd00:9::9", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42",
                    "192.168.77.1"]:
        for port in [80, 443, 7000]:
            canary(address, port)
    for port in [53, 853]:
        canary("198.51.100.53", port)
    for port in [443, 853]:
        canary("203.0.113.20", port)
        canary("2001:db8::20", port)
    for address in ["203.0.113.10", "10.9.9.10", "2001:db8::10", "203.0.113.18", "203.0.113.22",
                    "169.254.42.7", "64:ff9b::cb00:710a", "2002:cb00:710a::1",
                    "64:ff9b::c633:6402"]:
        serve(echo, address, 7000)
        serve(count, address, 7001)
        serve(first, address, 7002)
        serve(endless, address, 7003)
        serve(echo_datagram, address, 7000, socket.SOCK_DGRAM)
        serve(echo_datagram, address, 443, socket.SOCK_DGRAM)
    serve(foreign, "198.51.100.54", 53, socket.SOCK_DGRAM)
    tls = trusted()
    for address in ["203.0.113.11", "203.0.113.21"]:
        for port in [443, 8443]:
            tells(address, port, tls)
        for port in [80, 8080]:
            tells(address, port, None)
    tells("127.0.0.1", 9000, None)
    serve(raw, "203.0.113.13", 443)


def home():
    for address in ["127.0.0.1", "198.51.100.2", "192.168.77.2", "::1", "2001:db8:1::2"]:
        canary(address, 7777)
        serve(first, address, 7778)
    serve(first, "203.0.113.22", 7000)
    serve(flip, "127.0.0.1", 5300, socket.SOCK_DGRAM)
    serve(proxy(""), "127.0.0.1", 3128)
    serve(proxy("worker:pass word"), "127.0.0.1", 3129)
    serve(proxy("worker:pass word", trusted()), "127.0.0.1", 3130)


{"outside": outside, "home": home}[sys.argv[1]]()
open(f"{sys.argv[1]}.ready", "w").close()
threading.Event().wait()
