"""Frames that no kernel sends, and some that mean nothing at all.

Where frames are not permitted, packets with headers written by us; both need CAP_NET_RAW.

Prints how many were sent, or why none.
"""
import os
import random
import socket
import struct
import sys

GATEWAY = bytes([2, 0x6D, 0x73, 0x62, 0, 1])
GUEST = bytes([2, 0x6D, 0x73, 0x62, 0, 2])
random.seed(int(sys.argv[1]))


def four(protocol, payload, source="198.18.0.2", target="203.0.113.10", flags=0, size=None,
         head=5):
    length = 20 + len(payload) if size is None else size
    fields = struct.pack(">BBHHHBBH4s4s", 0x40 | head, 0, length, 1, flags, 64, protocol, 0,
                         socket.inet_aton(source), socket.inet_aton(target))
    total = sum(struct.unpack(">10H", fields))
    total = (total & 0xFFFF) + (total >> 16)
    total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return fields[:10] + struct.pack(">H", total) + fields[12:] + payload


def six(following, payload, target="2001:db8::10", size=None):
    length = len(payload) if size is None else size
    return struct.pack(">IHBB16s16s", 0x60000000, length, following, 64,
                       socket.inet_pton(socket.AF_INET6, "fd6d:7362::2"),
                       socket.inet_pton(socket.AF_INET6, target)) + payload


def tcp(flags, port=80, offset=5, payload=b""):
    return struct.pack(">HHIIBBHHH", 40000, port, 1, 1, offset << 4, flags, 1000, 0, 0) + payload


def udp(port, payload=b"x", size=None):
    return struct.pack(">HHHH", 40000, port, 8 + len(payload) if size is None else size, 0) + payload


def frames():
    ip = b"\x08\x00"
    ip6 = b"\x86\xdd"
    # Streams that were never opened, with every combination of flags.
    for flags in range(256):
        yield ip, four(6, tcp(flags))
    # Lengths that lie.
    for size in [0, 1, 19, 20, 21, 39, 65535]:
        yield ip, four(6, tcp(2), size=size)
        yield ip, four(17, udp(80), size=size)
        yield ip, four(17, udp(80, size=size))
        yield ip6, six(17, udp(80), size=size)
    for words in range(16):
        yield ip, four(6, tcp(2), head=words)
        yield ip, four(6, tcp(2, offset=words))
    # Pieces, and pieces that overlap.
    for flags in [0x2000, 0x2001, 0x0001, 0x1FFF, 0x3FFF, 0x4000, 0x8000]:
        yield ip, four(17, udp(80, b"y" * 64), flags=flags)
        yield ip, four(6, tcp(2), flags=flags)
    yield ip6, six(44, struct.pack(">BBHI", 17, 0, 1, 7) + udp(80))
    # From others, to itself, to unused addresses.
    for source in ["203.0.113.10", "127.0.0.1", "198.18.0.1", "0.0.0.0", "255.255.255.255",
                   "224.0.0.1", "10.9.9.10"]:
        yield ip, four(6, tcp(2), source=source)
        yield ip, four(17, udp(7000), source=source, target="203.0.113.10")
        yield ip, four(6, tcp(2), target=source)
        yield ip, four(17, udp(53), target=source)
        yield ip, four(1, b"\x08\x00\xf7\xff" + bytes(4), target=source)
    # Headers before headers.
    for following in range(256):
        yield ip6, six(following, bytes([following, 0]) + bytes(6) * 5)
    # ARP and neighbour discovery that claim to be the gateway.
    for operation in range(4):
        yield b"\x08\x06", struct.pack(">HHBBH6s4s6s4s", 1, 0x800, 6, 4, operation, GUEST,
                                       socket.inet_aton("198.18.0.1"), GATEWAY,
                                       socket.inet_aton("198.18.0.1"))
    for kind in range(128, 144):
        yield ip6, six(58, bytes([kind, 0]) + os.urandom(30), target="fd6d:7362::1")
        yield ip6, six(58, bytes([kind, 0]) + os.urandom(2), target="ff02::1")
    # Questions that are none.
    for size in range(40):
        yield ip, four(17, udp(53, os.urandom(size)), target="198.18.0.1")
    loop = struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1"
    yield ip, four(17, udp(53, loop), target="198.18.0.1")
    yield ip, four(17, udp(53, loop[:12] + b"\x3f" * 400), target="198.18.0.1")
    # And noise.
    for _ in range(2000):
        yield random.choice([ip, ip6, b"\x08\x06", b"\x81\x00", os.urandom(2)]), \
            os.urandom(random.choice([0, 1, 8, 19, 20, 40, 60, 200, 1500]))
    for _ in range(2000):
        good = bytearray(random.choice([four(6, tcp(2, 7000), target="203.0.113.10"),
                                        four(17, udp(7000), target="203.0.113.10"),
                                        six(6, tcp(2)), six(17, udp(80))]))
        for _ in range(random.randint(1, 4)):
            good[random.randrange(len(good))] = random.randrange(256)
        # Wherever a flipped bit leads, it is not where others count visitors.
        yield random.choice([ip, ip6]), bytes(good)


def wire():
    """A way to send, with what it is given of each frame."""
    try:
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        one.bind(("eth0", 0))
        return lambda kind, packet: one.send(GATEWAY + GUEST + kind + packet)
    except OSError:
        pass
    try:
        other = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    except OSError:
        return None
    return lambda _kind, packet: other.sendto(packet, ("203.0.113.10", 0))


send = wire()
if send is None:
    print("not permitted")
    sys.exit()
sent = 0
for kind, packet in frames():
    try:
        send(kind, packet)
        sent += 1
    except OSError:
        pass
print("sent" if sent > 1000 else f"only {sent}")
