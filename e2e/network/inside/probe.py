"""Tries what its arguments say, all at once, and prints a line for each.

`tcp HOST PORT`: open, refused, timeout, unknown (no such name).
`udp HOST PORT`: open is a port that echoes.
`name HOST`: the addresses, or unknown.
`ask TYPE HOST [SERVER]`: the response code and how many answers, of a DNS server.
"""
import errno
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

# Far longer than anything that answers at all takes: what is not over by then hangs.
HANG = 60
REFUSED = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM,
           errno.ECONNRESET, errno.EADDRNOTAVAIL, errno.EINVAL}
TYPES = {"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28,
         "SRV": 33, "SVCB": 64, "HTTPS": 65, "AXFR": 252, "ANY": 255}
CODES = {0: "ok", 1: "format", 2: "failed", 3: "nxdomain", 4: "unimplemented", 5: "refused"}


def outcome(error):
    if isinstance(error, socket.gaierror):
        return "unknown"
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "timeout"
    if error.errno in REFUSED:
        return "refused"
    return f"odd: {error}"


def tcp(host, port):
    with socket.create_connection((host, int(port)), timeout=HANG):
        return "open"


def udp(host, port):
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as one:
        one.settimeout(HANG)
        one.connect(address)
        one.send(b"hello")
        return "open" if one.recv(100) == b"hello" else "odd answer"


def name(host):
    found = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
    return " ".join(sorted({address[0] for *_, address in found}))


def ask(kind, host, server="198.18.0.1"):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in host.split("."))
    question = labels + b"\0" + struct.pack(">HH", TYPES[kind], 1)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.settimeout(HANG)
        one.connect((server, 53))
        one.send(struct.pack(">HHHHHH", 4711, 0x0100, 1, 0, 0, 0) + question)
        answer = one.recv(4096)
    _id, flags, _questions, answers = struct.unpack(">HHHH", answer[:8])
    return f"{CODES.get(flags & 15, flags & 15)} {answers}"


def run(text):
    verb, *words = text.split()
    try:
        return {"tcp": tcp, "udp": udp, "name": name, "ask": ask}[verb](*words)
    except OSError as error:
        return outcome(error)


with ThreadPoolExecutor(64) as pool:
    for line in pool.map(run, sys.argv[1:]):
        print(line)
