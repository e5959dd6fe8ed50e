"""Requests that curl does not make; prints what became of each."""
import base64
import os
import select
import socket
import ssl
import struct
import sys

# Far longer than anything that answers at all takes: what is not over by then hangs.
HANG = 60


def outcome(error):
    return "timeout" if isinstance(error, TimeoutError) else "refused"


def connect(host, port):
    return socket.create_connection((host, int(port)), timeout=HANG)


def everything(one):
    parts = []
    try:
        while data := one.recv(1 << 16):
            parts.append(data)
    except TimeoutError:
        raise
    except OSError:
        pass
    return b"".join(parts)


def get(one, host, path="/whom"):
    one.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = everything(one)
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n")[0].split(b" ")
    return f"{words[1].decode()} {body.decode().strip()}" if len(words) > 1 else "refused"


def sni(address, port, name, host=None):
    """HTTPS at an address, under any name or (`-`) none."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with connect(address, port) as plain:
            server_name = None if name == "-" else name
            with context.wrap_socket(plain, server_hostname=server_name) as one:
                print(get(one, host or name))
    except OSError as error:
        print(outcome(error))


def host(address, port, name, path="/whom"):
    """HTTP at an address, under any name."""
    try:
        with connect(address, port) as one:
            print(get(one, name, path))
    except OSError as error:
        print(outcome(error))


def say(address, port, text):
    """Any bytes; what comes back, or refused if nothing does."""
    try:
        with connect(address, port) as one:
            one.sendall(text.encode().decode("unicode_escape").encode("latin-1"))
            one.shutdown(socket.SHUT_WR)
            print(everything(one).decode("latin-1").strip() or "refused")
    except OSError as error:
        print(outcome(error))


def trusted(name, port):
    """TLS as the sandbox trusts it."""
    context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE", "/world/ca.pem"))
    return context.wrap_socket(connect(name, port), server_hostname=name)


def websocket(name, token="", path="/ws-echo"):
    """A WebSocket that echoes short and long texts."""
    with trusted(name, 443) as one:
        key = base64.b64encode(os.urandom(16)).decode()
        secret = f"Authorization: Bearer {token}\r\n" if token else ""
        one.sendall(f"GET {path} HTTP/1.1\r\nHost: {name}\r\nUpgrade: websocket\r\n"
                    f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n{secret}"
                    "Sec-WebSocket-Version: 13\r\n\r\n".encode())
        file = one.makefile("rb")
        print(file.readline().decode().split(" ")[1])
        while file.readline().strip():
            pass
        if path == "/ws-secret":
            print(file.read(file.read(2)[1]).decode())
        for text in [b"hello", b"y" * 3000]:
            mask = os.urandom(4)
            size = (bytes([0x81, 0x80 | len(text)]) if len(text) < 126
                    else struct.pack(">BBH", 0x81, 0x80 | 126, len(text)))
            masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(text))
            one.sendall(size + mask + masked)
            front = file.read(2)
            length = front[1] & 127
            if length == 126:
                length = struct.unpack(">H", file.read(2))[0]
            print("same" if file.read(length) == text else "different")


def stream(name, word):
    """Reads the first half of a response; the second half comes only after that."""
    with trusted(name, 443) as one:
        one.sendall(f"GET /stream?{word} HTTP/1.1\r\nHost: {name}\r\n"
                    "Connection: close\r\n\r\n".encode())
        so_far = b""
        while b"data: first\n\n" not in so_far:
            data = one.recv(1000)
            assert data, so_far
            so_far += data
        with trusted(name, 443) as other:
            print(get(other, name, f"/open?{word}"))
        print("second" if b"data: second" in everything(one) else "nothing")


def unread(name, count):
    """Asks for much on many connections of HTTP/2, reads nothing until all have begun, then all."""
    def text(prefix, value):
        return prefix + bytes([len(value)]) + value.encode()

    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    context.set_alpn_protocols(["h2"])
    # Windows as large as they may be, so that the server does not wait for this end.
    begin = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1))
             + frame(8, 0, 0, struct.pack(">I", 1 << 30))
             + frame(1, 5, 1, b"\x82\x87" + text(b"\x04", "/big") + text(b"\x01", name)))
    all_of_them = []
    for _ in range(int(count)):
        one = context.wrap_socket(connect(name, 443), server_hostname=name)
        one.sendall(begin)
        all_of_them.append(one)
    waiting = list(all_of_them)
    while waiting:
        ready = select.select(waiting, [], [], HANG)[0]
        assert ready
        waiting = [one for one in waiting if one not in ready]
    for one in all_of_them:
        length, ended = 0, False
        file = one.makefile("rb")
        while not ended:
            head = file.read(9)
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            body = file.read(size)
            if kind == 0:
                length += len(body)
                ended = bool(flags & 1)
        assert length == 4 << 20, length
        one.close()
    print("all")


def guesses(name, value):
    """Has guesses echoed that are right up to each letter; the sizes in which each came back."""
    with trusted(name, 443) as one:
        file = one.makefile("rb")
        for right in range(len(value)):
            for guess in [value[:right].ljust(len(value), "#"), value[:right],
                          value[-right:].rjust(len(value), "#") if right else "#" * len(value)]:
                text = f"data: x\n{guess}".encode()
                one.sendall(f"POST /echo HTTP/1.1\r\nHost: {name}\r\n"
                            f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
                while file.readline().strip():
                    pass
                sizes, answer = [], b""
                while size := int(file.readline(), 16):
                    sizes.append(size)
                    answer += file.read(size)
                    file.readline()
                file.readline()
                assert answer == text, answer
                # One row of sizes for all guesses of one length.
                print(len(text), *sizes)


globals()[sys.argv[1]](*sys.argv[2:])
