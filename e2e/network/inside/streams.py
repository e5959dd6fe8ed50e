"""Streams of TCP, each as its arguments say; prints what became of it."""
import os
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

# Far longer than anything that answers at all takes: what is not over by then hangs.
HANG = 60


def connect(host, port):
    return socket.create_connection((host, int(port)), timeout=HANG)


def everything(one):
    parts = []
    while data := one.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def half(host, port, size):
    """Says all, closes its half, and still hears the answer."""
    with connect(host, port) as one:
        one.sendall(b"x" * int(size))
        one.shutdown(socket.SHUT_WR)
        print(everything(one).decode().strip())


def echo(host, port, size):
    """Gets back what it sent, and a goodbye after it has closed its half."""
    sent = os.urandom(int(size))
    with connect(host, port) as one:
        with ThreadPoolExecutor() as pool:
            got = pool.submit(everything, one)
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            print("same" if got.result() == sent + b"goodbye" else "different")


def turns(host, port, size):
    """Gets back what it sent, while both halves stay open."""
    sent = os.urandom(int(size))
    with connect(host, port) as one, ThreadPoolExecutor() as pool:
        got = pool.submit(lambda: one.makefile("rb").read(len(sent)))
        one.sendall(sent)
        print("same" if got.result() == sent else "different")


def once(host, port):
    with connect(host, port) as one:
        one.sendall(b"hello")
        one.shutdown(socket.SHUT_WR)
        return everything(one) == b"hellogoodbye"


def many(host, port, number):
    """Many short ones."""
    with ThreadPoolExecutor(20) as pool:
        print(sum(pool.map(lambda _: once(host, port), range(int(number)))))


def datagrams(host, port, number):
    """Many sockets that send one datagram each."""
    def one(_):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
            each.settimeout(HANG)
            each.connect((host, int(port)))
            each.send(b"hello")
            return each.recv(100) == b"hello"

    host = socket.gethostbyname(host)
    with ThreadPoolExecutor(20) as pool:
        print(sum(pool.map(one, range(int(number)))))


def hold(host, port, number):
    """As many as there may be at a time; then one ends and another takes its place."""
    held, refused = [], 0
    for _ in range(int(number)):
        try:
            held.append(connect(host, port))
        except ConnectionError:
            refused += 1
    print(f"{len(held)} open, {refused} refused")
    for one in held:
        one.sendall(b"still")
        assert one.recv(100) == b"still"
    for one in held:
        one.shutdown(socket.SHUT_WR)
        everything(one)
        one.close()
    for _ in range(200):
        try:
            print("again" if once(host, port) else "odd")
            return
        except ConnectionError:
            pass
    print("never again")


def idle(host, port, seconds):
    """Says nothing for long, and is heard nevertheless."""
    import time
    with connect(host, port) as one:
        one.sendall(b"a")
        assert one.recv(1) == b"a"
        time.sleep(float(seconds))
        one.sendall(b"b")
        print(one.recv(1).decode())


def abrupt(host, port):
    """Resets, and comes again."""
    for _ in range(50):
        one = connect(host, port)
        one.sendall(b"hello")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    print("fine" if once(host, port) else "odd")


def speaks(host, port):
    """Listens to a server that speaks first."""
    with connect(host, port) as one:
        print(one.recv(100).decode().strip())
        one.sendall(b"me too")
        print(one.recv(100).decode().strip())


def wait(host, port):
    """Holds a stream until its peer ends it: prints when it is open, and when it is over."""
    with connect(host, port) as one:
        one.sendall(b"a")
        assert one.recv(1) == b"a"
        print("open", flush=True)
        try:
            print("closed" if not one.recv(1) else "odd", flush=True)
        except ConnectionError:
            print("closed", flush=True)


globals()[sys.argv[1]](*sys.argv[2:])
