"""Requests that name one host in the clear and another in some other way, each on its own.

`hosts.py ADDRESS ALLOWED DENIED WORD` prints for each its name and the status that came back.
"""
import socket
import sys

HANG = 60
ADDRESS, ALLOWED, DENIED, WORD = sys.argv[1:]
END = "Connection: close\r\n\r\n"
HOST = f"Host: {ALLOWED}\r\n"
OTHER = f"Host: {DENIED}\r\n"

CASES = {
    "absolute": f"GET http://{DENIED}/{WORD} HTTP/1.1\r\n{HOST}{END}",
    "absolute and host": f"GET http://{ALLOWED}/{WORD} HTTP/1.1\r\n{OTHER}{END}",
    "absolute old": f"GET http://{DENIED}/{WORD} HTTP/1.0\r\n{HOST}\r\n",
    "two hosts": f"GET /{WORD} HTTP/1.1\r\n{HOST}{OTHER}{END}",
    "two hosts turned": f"GET /{WORD} HTTP/1.1\r\n{OTHER}{HOST}{END}",
    "space before colon": f"GET /{WORD} HTTP/1.1\r\nHost : {DENIED}\r\n{HOST}{END}",
    "folded": f"GET /{WORD} HTTP/1.1\r\nHost: {ALLOWED}\r\n {DENIED}\r\n{END}",
    "bare line ends": f"GET /{WORD} HTTP/1.1\nHost: {DENIED}\nX: y\r\n{HOST}{END}",
    "empty lines first": f"\r\n\nGET /{WORD} HTTP/1.1\n{OTHER}\n",
    "nul": f"GET /{WORD} HTTP/1.1\r\nHost: {ALLOWED}\0.{DENIED}\r\n{END}",
    "user": f"GET /{WORD} HTTP/1.1\r\nHost: {ALLOWED}@{DENIED}\r\n{END}",
    "absolute user": f"GET http://{ALLOWED}@{DENIED}/{WORD} HTTP/1.1\r\n{HOST}{END}",
    "too old": f"GET /{WORD}\r\n\r\n",
    "no host": f"GET /{WORD} HTTP/1.1\r\n{END}",
    "too new": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "connect": f"CONNECT {DENIED}:80 HTTP/1.1\r\n{HOST}\r\n",
    "second": f"GET /fine-{WORD[1:]} HTTP/1.1\r\n{HOST}\r\nGET /{WORD} HTTP/1.1\r\n{OTHER}{END}",
    "hidden in a body": f"POST /fine-{WORD[1:]} HTTP/1.1\r\n{HOST}Content-Length: 6\r\n"
    f"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /{WORD} HTTP/1.1\r\n{OTHER}{END}",
}


def status(text):
    answer = b""
    try:
        with socket.create_connection((ADDRESS, 80), timeout=HANG) as one:
            one.sendall(text.encode("latin-1"))
            while data := one.recv(65536):
                answer += data
    except TimeoutError:
        return "timeout"
    except OSError:
        pass
    return answer[9:12].decode() or "closed"


socket.getaddrinfo(ALLOWED, 80)
for case, text in CASES.items():
    print(f"{case}: {status(text)}")
