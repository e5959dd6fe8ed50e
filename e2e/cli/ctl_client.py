"""A client of the socket, written from docs/children.md alone: one request for each connection."""

import json
import socket
import sys
import threading


def lines(request, path="/run/sandbox-ctl.sock"):
    """Every line that is answered, as text."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.sendall((request if isinstance(request, str) else json.dumps(request)).encode() + b"\n")
        with s.makefile("rb") as f:
            return [json.loads(line) for line in f]


def ask(method, **params):
    (answer,) = lines({"id": "1", "method": method, "params": params})
    assert answer["id"] == "1", answer
    return answer


def done(method, **params):
    answer = ask(method, **params)
    assert "result" in answer, answer
    return answer["result"]


def refused(code, message, method, **params):
    error = ask(method, **params)["error"]
    assert (error["code"], error["message"]) == (code, message), error


def everything():
    assert done("ping") == {"ok": True, "parent": "lead"}
    child = done("spawn", name="k1", cpus=1, memory="128M")
    assert (child["name"], child["image"], child["cpus"], child["memory_mb"]) == ("k1", "host", 1, 128), child
    assert child["ip"] is None and child["expires_at"] > 1e9, child
    (listed,) = done("list")["children"]
    assert listed == {key: child[key] for key in listed} and set(child) - set(listed) == {"ip"}, listed
    ran = done("exec", name="k1", command="echo hi; echo e >&2; false", timeout=5)
    assert ran["name"] == "k1", ran
    duration = ran["result"].pop("duration_ms")
    assert duration > 0 and ran["result"] == {"stdout": "hi", "stderr": "e", "exit_code": 1}, ran
    late = done("exec", name="k1", command="echo a; exec sleep 99", timeout=2.5)["result"]
    assert (late["exit_code"], late["stdout"]) == (-1, "a") and "Timed out after 2.5s" in late["stderr"], late
    assert done("exec", name="k1", command="pwd", workdir="/usr")["result"]["stdout"] == "/usr"
    much = done("exec", name="k1", command="head -c 300000 /dev/zero | tr '\\0' x")["result"]["stdout"]
    assert 50_000 <= len(much) < 50_100 and "300000" in much[-60:], len(much)
    refused("NOT_FOUND", "Child 'zz' not found under 'lead'", "exec", name="zz", command="true")
    refused("INVALID_REQUEST", "params.command required", "exec", name="k1")
    ran = done("run", command="echo eph")
    assert ran["name"] == "lead-child-0002" and ran["result"]["stdout"] == "eph", ran
    refused("PERMISSION_DENIED", "Image 'evil' not allowed for children of 'lead'", "spawn", image="evil")
    refused("INVALID_REQUEST", "Sandbox 'k1' already exists", "spawn", name="k1")
    refused("INVALID_REQUEST", "Unknown method: bogus", "bogus")
    refused("INVALID_REQUEST", "params.name required", "destroy")
    for wrong, begin in [("not json", "Invalid JSON: "), ("[1]", "Request must be a JSON object")]:
        (answer,) = lines(wrong)
        assert answer["id"] is None and answer["error"]["message"].startswith(begin), answer
    (answer,) = lines({"id": "10"})
    assert answer == {"id": "10", "error": {"code": "INVALID_REQUEST", "message": "Missing method"}}, answer
    (answer,) = lines({"id": "11", "method": "list", "params": [1]})
    assert answer["error"]["message"] == "params must be an object", answer
    *pieces, last = lines({"id": 7, "method": "exec", "params": {
        "name": "k1", "command": "echo one; sleep 0.2; echo two >&2; printf '\\377'; exit 9", "stream": True}})
    said = [(piece["stream"], piece.get("data", piece.get("base64"))) for piece in pieces]
    assert sorted(said) == [("stderr", "two\n"), ("stdout", "/w=="), ("stdout", "one\n")], said
    assert last["id"] == 7 and last["result"]["result"]["exit_code"] == 9, last
    assert done("destroy", name="k1") == {"ok": True, "message": "Destroyed sandbox 'k1' (k1)"}
    refused("NOT_FOUND", "Child 'k1' not found under 'lead'", "destroy", name="k1")
    for _ in range(3):
        done("spawn", memory="64M")
    refused("LIMIT_REACHED", "Concurrent child limit reached", "spawn")


def storm():
    """Fifty at once: how many were made, and what the others were told."""
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask("spawn"))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refusals = {answer["error"]["code"] for answer in answers if "error" in answer}
    assert refusals == {"LIMIT_REACHED"}, answers
    print(sum("result" in answer for answer in answers))


def hostile():
    """Whatever is sent, an answer comes or the connection closes; afterwards all is as before."""
    (answer,) = lines("x" * 70_000)
    assert answer["error"]["code"] == "INVALID_REQUEST" and "too large" in answer["error"]["message"], answer
    deep = lines("[" * 60_000)
    assert deep[0]["error"]["code"] == "INVALID_REQUEST", deep
    for wrong in [b"\xff\xfe\n", b"\0\n", b"{\n", b"\n", b'{"method":1e999}\n', b'{"method":"ping","id":{}}\n']:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect("/run/sandbox-ctl.sock")
            # Descriptors (SCM_RIGHTS) are never taken.
            socket.send_fds(s, [wrong], [s.fileno()])
            assert s.makefile("rb").readline().startswith(b'{"'), wrong
    for path in ["/etc", "../../etc", "/", "snapshot:x", "a" * 1000, "host\n"]:
        answer = ask("spawn", image=path)
        assert answer["error"]["code"] in ("PERMISSION_DENIED", "INVALID_REQUEST"), (path, answer)
    for name in ["lead", "other", "../other", "", "a/b", "x" * 300, "-rf"]:
        for method in ["destroy", "exec"]:
            answer = ask(method, name=name, command="true")
            assert answer["error"]["code"] in ("NOT_FOUND", "INVALID_REQUEST"), (name, answer)
        answer = ask("spawn", name=name) if name else {"error": {}}
        if name in ("lead", "other"):
            # Names of the host's sandboxes are neither known nor taken inside.
            assert answer["result"]["container"].startswith("lead-child-"), (name, answer)
            done("destroy", name=name)
        else:
            assert "error" in answer, (name, answer)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for s in silent:
        s.connect("/run/sandbox-ctl.sock")
        s.sendall(b'{"method":')
    answers = []
    flood = lambda: answers.extend(ask("ping") for _ in range(60))
    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy = [answer for answer in answers if "error" in answer]
    assert busy and all(answer["error"]["code"] == "LIMIT_REACHED" for answer in busy), busy


globals()[sys.argv[1]]()
