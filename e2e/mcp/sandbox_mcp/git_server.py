"""Git over HTTP for clients with a token. The token is looked for in every command line.

Usage: git_server.py SHA256-OF-THE-TOKEN
"""

import base64
import glob
import hashlib
import http.server
import os
import subprocess
import sys


def tokens(header):
    """Those words of a header that are the token."""
    if not header.startswith("Basic "):
        return []
    words = base64.b64decode(header[6:]).decode().split(":", 1)
    return [word for word in words if hashlib.sha256(word.encode()).hexdigest() == sys.argv[1]]


def look(token):
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                if token.encode() in file.read():
                    return f"in {path}"
        except OSError:
            pass
    return "not in ps"


class Git(http.server.BaseHTTPRequestHandler):
    def answer(self):
        known = tokens(self.headers.get("Authorization", ""))
        if not known:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        with open("/tmp/looked", "w") as file:
            file.write(look(known[0]))
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": "/srv/git",
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        backend = ["git", "http-backend"]
        ran = subprocess.run(backend, env=environment, input=body, stdout=subprocess.PIPE)
        head, _, content = ran.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        status = dict(lines).pop("Status", "200 OK")
        self.send_response(int(status.split(" ")[0]))
        for name, value in lines:
            if name != "Status":
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer


server = http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Git)
open("/tmp/serving", "w").close()
server.serve_forever()
