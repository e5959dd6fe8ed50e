//! `msb api --stdio`: the session protocol, frame by frame.

use msb_e2e::{Msb, ends, eventually, signal_pid};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const HELLO: u8 = 0;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const ERROR: u8 = 3;
const EVENT: u8 = 4;
const DATA: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const END: u8 = 8;
const CREDIT: u8 = 9;
const CANCEL: u8 = 10;
const CONTROL: u8 = 11;

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).expect("as it should be").to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(stream.to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// A program with a session.
struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    last: u32,
    /// Frames of other streams that came first.
    waiting: HashMap<u32, VecDeque<(u8, Vec<u8>)>>,
}

impl Client {
    /// Starts msb, without a HELLO.
    fn silent(msb: &Msb) -> Self {
        let mut command = msb.command(["api", "--stdio"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("as it should be");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("as it should be"));
        Self { child, stdin, stdout, last: 0, waiting: HashMap::new() }
    }

    fn open(msb: &Msb) -> Self {
        let mut client = Self::silent(msb);
        client.send(HELLO, 0, br#"{"protocol": 1, "client": "test/1"}"#);
        let (kind, hello) = client.next(0);
        let hello: Value = serde_json::from_slice(&hello).expect("as it should be");
        assert_eq!((kind, &hello["protocol"]), (HELLO, &json!(1)), "{hello}");
        assert_eq!(hello["version"], env!("CARGO_PKG_VERSION"));
        client
    }

    fn send(&mut self, kind: u8, stream: u32, payload: &[u8]) {
        self.stdin
            .as_mut()
            .expect("as it should be")
            .write_all(&frame(kind, stream, payload))
            .expect("as it should be");
    }

    /// Sends a request and returns its stream.
    fn request(&mut self, request: &Value) -> u32 {
        self.last += 1;
        self.send(REQUEST, self.last, request.to_string().as_bytes());
        self.last
    }

    /// The next frame of a stream.
    fn next(&mut self, stream: u32) -> (u8, Vec<u8>) {
        loop {
            if let Some(frame) = self.waiting.get_mut(&stream).and_then(VecDeque::pop_front) {
                return frame;
            }
            let mut head = [0; 9];
            self.stdout.read_exact(&mut head).expect("a frame");
            let length = u32::from_le_bytes(head[..4].try_into().expect("as it should be"));
            let of = u32::from_le_bytes(head[5..].try_into().expect("as it should be"));
            let mut payload = vec![0; length as usize];
            self.stdout.read_exact(&mut payload).expect("a payload");
            self.waiting.entry(of).or_default().push_back((head[4], payload));
        }
    }

    /// The frames of a stream until it ends, with credit for each.
    fn all(&mut self, stream: u32) -> Vec<(u8, Vec<u8>)> {
        let mut frames = Vec::new();
        loop {
            let (kind, payload) = self.next(stream);
            if [EVENT, DATA, STDOUT, STDERR].contains(&kind) {
                let bytes = u32::try_from(payload.len()).expect("as it should be").to_le_bytes();
                self.send(CREDIT, stream, &bytes);
            }
            frames.push((kind, payload));
            if kind == RESPONSE || kind == ERROR {
                return frames;
            }
        }
    }

    /// The result of a call: the response, or the error.
    fn call(&mut self, request: &Value) -> Result<Value, Value> {
        let stream = self.request(request);
        end_of(&self.all(stream))
    }

    fn ok(&mut self, request: &Value) -> Value {
        self.call(request).unwrap_or_else(|error| panic!("{request}: {error}"))
    }

    fn create(&mut self, name: &str, own: bool) {
        let spec = json!({"name": name, "image": "host"});
        let made = self.ok(&json!({"op": "sandbox_create", "own": own, "args": {"spec": spec}}));
        assert_eq!((&made["name"], &made["status"]), (&json!(name), &json!("running")));
    }

    fn exec(&mut self, name: &str, argv: &[&str], stdin: &str) -> u32 {
        let command = json!({"argv": argv, "stdin": stdin});
        self.request(&json!({"op": "exec_stream", "args": {"name": name, "command": command}}))
    }

    /// Ends the session as a program does that closes its pipes.
    fn close(mut self) -> i32 {
        drop(self.stdin.take());
        ends(self.child).code
    }
}

fn end_of(frames: &[(u8, Vec<u8>)]) -> Result<Value, Value> {
    let (kind, payload) = frames.last().expect("an end");
    let value = serde_json::from_slice(payload).expect("JSON");
    if *kind == RESPONSE { Ok(value) } else { Err(value) }
}

fn output(frames: &[(u8, Vec<u8>)], kind: u8) -> String {
    let pieces = frames.iter().filter(|(of, _)| *of == kind).map(|(_, bytes)| &bytes[..]);
    String::from_utf8(pieces.collect::<Vec<_>>().concat()).expect("text")
}

/// The names of the running sandboxes, sorted.
fn running(msb: &Msb) -> Vec<String> {
    let list = msb.json(["ls", "--json"]);
    let running =
        list.as_array().expect("as it should be").iter().filter(|it| it["status"] == "running");
    running.map(|it| it["name"].as_str().expect("as it should be").to_owned()).collect()
}

#[test]
fn a_program_runs_commands_in_its_own_sandbox() {
    for msb in Msb::each() {
        let mut client = Client::open(&msb);
        client.create("box", true);
        let stream = client.exec("box", &["sh", "-c", "echo out; echo err >&2; exit 3"], "closed");
        let frames = client.all(stream);
        let started: Value = serde_json::from_slice(&frames[0].1).unwrap();
        assert_eq!((frames[0].0, &started["started"]["sandbox"]), (EVENT, &json!("box")));
        assert_eq!(
            (&output(&frames, STDOUT)[..], &output(&frames, STDERR)[..]),
            ("out\n", "err\n")
        );
        assert_eq!(end_of(&frames).unwrap()["code"], 3);

        let stream = client.exec("box", &["wc", "-c"], "streamed");
        client.send(DATA, stream, b"hello ");
        client.send(DATA, stream, b"world");
        client.send(END, stream, b"");
        assert_eq!(output(&client.all(stream), STDOUT), "11\n");

        assert_eq!(client.ok(&json!({"op": "session_owned"})), json!(["box"]));
        assert_eq!(client.close(), 0);
        eventually("the sandbox has ended", || running(&msb).is_empty());
        msb.words("rm box").ok();
    }
}

#[test]
fn a_program_that_is_killed_takes_its_sandboxes_along() {
    for msb in Msb::each() {
        let mut client = Client::open(&msb);
        client.create("box", true);
        client.create("kept", true);
        client.ok(&json!({"op": "session_release", "args": {"name": "kept"}}));
        client.create("free", false);
        signal_pid(client.child.id(), "KILL");
        eventually("the owned one has ended", || running(&msb) == ["free", "kept"]);
        ends(client.child);
        for name in ["box", "kept", "free"] {
            msb.run(["rm", "-f", name]).ok();
        }
    }
}

/// The pipes stay open in another process.
#[test]
fn a_session_ends_with_its_parent_even_if_a_child_of_that_holds_the_pipes() {
    let msb = Msb::new();
    let program = r#"
import json, os, struct, subprocess, sys, time
session = subprocess.Popen([sys.argv[1], "api", "--stdio", "--parent", str(os.getpid())],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def send(kind, stream, value):
    payload = json.dumps(value).encode()
    session.stdin.write(struct.pack("<IBI", len(payload), kind, stream) + payload)
    session.stdin.flush()
def read():
    length, kind, stream = struct.unpack("<IBI", session.stdout.read(9))
    return kind, json.loads(session.stdout.read(length))
send(0, 0, {"protocol": 1})
read()
spec = {"name": "box", "image": "host"}
send(1, 1, {"op": "sandbox_create", "own": True, "args": {"spec": spec}})
while read()[0] != 2:
    pass
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    time.sleep(1000)
print(child, flush=True)
os.kill(os.getpid(), 9)
"#;
    let mut command = msb.user_command("python3");
    let binary = msb.binary();
    let ended = msb_e2e::gives(command.args(["-c", program]).arg(binary));
    let holder: u32 = ended.stdout.trim().parse().expect("the pid of the child");
    eventually("the sandbox has ended", || running(&msb).is_empty());
    signal_pid(holder, "KILL");
    msb.words("rm box").ok();
}

#[test]
fn another_parent_than_the_own_is_refused() {
    let msb = Msb::new();
    let gave = msb.words("api --stdio --parent 1");
    assert!(
        gave.code == 125 && gave.stderr.contains("not the process that started msb"),
        "{gave:?}"
    );
}

#[test]
fn a_cancelled_command_is_killed() {
    for msb in Msb::each() {
        let mut client = Client::open(&msb);
        client.create("box", true);
        // One that reads nothing, with input that waits.
        let stream = client.exec("box", &["sleep", "1000"], "streamed");
        client.send(DATA, stream, &[0; 256 << 10]);
        let (kind, _) = client.next(stream);
        assert_eq!(kind, EVENT);
        client.send(CANCEL, stream, b"");
        let error = end_of(&client.all(stream)).expect_err("it was cancelled");
        assert_eq!(error["message"], "the call was cancelled");
        eventually("it was killed", || msb.json(["ps", "box", "--execs", "--json"]) == json!([]));

        // A signal overtakes input as well.
        let stream = client.exec("box", &["sleep", "1000"], "streamed");
        client.send(DATA, stream, &[0; 256 << 10]);
        client.send(CONTROL, stream, br#"{"signal": 15}"#);
        assert_eq!(end_of(&client.all(stream)).unwrap()["signal"], 15);
        client.close();
        eventually("it ends", || running(&msb).is_empty());
        msb.words("rm box").ok();
    }
}

#[test]
fn a_detached_command_goes_on() {
    let msb = Msb::new();
    let mut client = Client::open(&msb);
    client.create("box", false);
    let stream = client.exec("box", &["sleep", "1000"], "closed");
    client.next(stream);
    client.send(CONTROL, stream, br#""detach""#);
    assert_eq!(end_of(&client.all(stream)).unwrap(), json!({"detached": true}));
    client.close();
    let execs = msb.json(["ps", "box", "--execs", "--json"]);
    assert_eq!(execs.as_array().map(Vec::len), Some(1), "{execs}");
    msb.words("rm -f box").ok();
}

#[test]
fn output_waits_for_credit_and_holds_up_no_other_call() {
    let msb = Msb::new();
    let mut client = Client::open(&msb);
    client.create("box", true);
    let stream = client.exec("box", &["head", "-c", "1000000", "/dev/zero"], "closed");
    // The slow stream has no credit left; another call is answered.
    client.ok(&json!({"op": "session_ping"}));
    let ping = client.exec("box", &["echo", "here"], "closed");
    assert_eq!(output(&client.all(ping), STDOUT), "here\n");
    let received = |client: &Client| -> usize {
        let frames = client.waiting.get(&stream);
        frames.map_or(0, |frames| frames.iter().map(|(_, bytes)| bytes.len()).sum())
    };
    assert!(received(&client) <= 256 << 10, "{}", received(&client));
    assert_eq!(output(&client.all(stream), STDOUT).len(), 1_000_000);
    client.close();
}

#[test]
fn files_and_archives_come_and_go_in_pieces() {
    let msb = Msb::new();
    let mut client = Client::open(&msb);
    client.create("box", true);
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let at = |op: &str| json!({"op": op, "args": {"sandbox": "box", "path": "/root/file"}});
    let stream = client.request(&at("file_write"));
    let mut credit = 256 << 10;
    for piece in content.chunks(64 << 10) {
        while credit < piece.len() {
            let (kind, bytes) = client.next(stream);
            assert_eq!(kind, CREDIT);
            credit += u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
        }
        client.send(DATA, stream, piece);
        credit -= piece.len();
    }
    client.send(END, stream, b"");
    assert_eq!(end_of(&client.all(stream)).unwrap(), json!({"count": content.len()}));
    let stream = client.request(&at("file_read"));
    let read: Vec<u8> =
        client.all(stream).into_iter().filter(|it| it.0 == DATA).flat_map(|it| it.1).collect();
    assert!(read == content);
    // A part of a file is not taken for the whole.
    let stream = client
        .request(&json!({"op": "file_write", "args": {"sandbox": "box", "path": "/root/part"}}));
    client.send(DATA, stream, b"half");
    client.send(CANCEL, stream, b"");
    assert!(end_of(&client.all(stream)).is_err());
    client.close();
}

#[test]
fn errors_are_those_of_the_http_api() {
    let msb = Msb::new();
    let mut client = Client::open(&msb);
    for (request, kind) in [
        (json!({"op": "sandbox_summary", "args": {"name": "none"}}), "not_found"),
        (json!({"op": "sandbox_summary", "args": {"name": "../a"}}), "invalid"),
        (json!({"op": "sandbox_summary"}), "invalid"),
        (json!({"op": "sandbox_summary", "args": {"name": "a", "more": 1}}), "invalid"),
        (json!({"op": "sandbox_list", "own": true}), "invalid"),
        (json!({"op": "no_such_thing"}), "unsupported"),
        (json!({"op": "session_release", "args": {"name": "none"}}), "state"),
        (json!([]), "invalid"),
    ] {
        let error = client.call(&request).expect_err("it is wrong");
        assert_eq!(error["kind"], kind, "{request}: {error}");
    }
    assert_eq!(client.ok(&json!({"op": "sandbox_list"})), json!([]));
    assert_eq!(client.close(), 0);
}

/// Each ends the session with an error on stream 0.
#[test]
fn violations_of_the_protocol_end_the_session() {
    let msb = Msb::new();
    let ping = br#"{"op": "session_ping"}"#;
    let cases: [(&str, Vec<Vec<u8>>); 7] = [
        ("first frame", vec![frame(REQUEST, 1, ping)]),
        ("version 1", vec![frame(HELLO, 0, br#"{"protocol": 2}"#)]),
        ("not as expected", vec![frame(HELLO, 0, b"hello")]),
        ("kind 12", vec![frame(12, 0, b"")]),
        ("bytes at most", vec![vec![0, 0, 0, 255, DATA, 0, 0, 0, 0]]),
        (
            "not greater",
            vec![
                frame(HELLO, 0, br#"{"protocol": 1}"#),
                frame(REQUEST, 5, ping),
                frame(REQUEST, 5, ping),
            ],
        ),
        (
            "only the server",
            vec![
                frame(HELLO, 0, br#"{"protocol": 1}"#),
                frame(REQUEST, 1, br#"{"op": "sandbox_logs_follow", "args": {"name": "box"}}"#),
                frame(STDOUT, 1, b""),
            ],
        ),
    ];
    msb.words("create -n box").ok();
    for (why, frames) in cases {
        let mut client = Client::silent(&msb);
        for bytes in frames {
            client.stdin.as_mut().unwrap().write_all(&bytes).unwrap();
        }
        let error = loop {
            let (kind, payload) = client.next(0);
            if kind == ERROR {
                break String::from_utf8(payload).unwrap();
            }
        };
        assert!(error.contains(why), "{why}: {error}");
        assert_eq!(ends(client.child).code, 125, "{why}");
    }
    msb.words("rm -f box").ok();
}

#[test]
fn a_hundred_calls_at_once_are_answered_rightly() {
    let msb = Msb::new();
    let mut client = Client::open(&msb);
    client.create("box", true);
    let streams: Vec<(usize, u32)> = (0..100)
        .map(|number| (number, client.exec("box", &["echo", &number.to_string()], "closed")))
        .collect();
    for (number, stream) in streams {
        assert_eq!(output(&client.all(stream), STDOUT), format!("{number}\n"));
    }
    client.close();
}

#[test]
fn logs_are_listed_and_followed() {
    let msb = Msb::new();
    let mut client = Client::open(&msb);
    client.create("box", true);
    let stream = client.exec("box", &["echo", "first"], "closed");
    client.all(stream);
    let follow = |follow: bool| json!({"op": "sandbox_logs_follow", "args": {"name": "box", "follow": follow}});
    let stream = client.request(&follow(false));
    assert!(output(&client.all(stream), EVENT).contains("first"));
    let stream = client.request(&follow(true));
    assert!(String::from_utf8(client.next(stream).1).unwrap().contains("first"));
    let exec = client.exec("box", &["echo", "second"], "closed");
    client.all(exec);
    assert!(String::from_utf8(client.next(stream).1).unwrap().contains("second"));
    client.send(CANCEL, stream, b"");
    assert!(end_of(&client.all(stream)).is_err());
    client.close();
}
