//! `msb --remote`: the same commands on the sandboxes of a server.
//!
//! The client has a state directory of its own, so that anything done there would be seen.

use msb_e2e::terminal::Terminal;
use msb_e2e::{CmdOutput, Msb, ends, eventually, signal_pid};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// A server, and a client with another state directory.
struct RemoteClient {
    server: Msb,
    client: Msb,
    url: String,
    key: String,
}

impl RemoteClient {
    /// A server for each user that there is to test as.
    fn each() -> Vec<Self> {
        Msb::each().into_iter().map(Self::start).collect()
    }

    fn start(server: Msb) -> Self {
        Self::start_with(server, "")
    }

    fn start_with(server: Msb, flags: &str) -> Self {
        let own = server.scratch().display();
        let url = server.words(&format!("server start -dp 0 --host-path {own} {flags}")).line();
        let key = server.words("server keygen --expire 1h -n *").line();
        Self { server, client: Msb::new(), url, key }
    }

    fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.client.command(["--remote", &self.url]);
        command.args(args).env("MSB_API_KEY", &self.key);
        command
    }

    fn spawn<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("msb can be executed")
    }

    #[track_caller]
    fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> CmdOutput {
        ends(self.spawn(args))
    }

    #[track_caller]
    fn words(&self, line: &str) -> CmdOutput {
        self.run(line.split_whitespace())
    }

    #[track_caller]
    fn fed(&self, line: &str, stdin: &[u8]) -> CmdOutput {
        let file = self.client.file("stdin", stdin);
        let mut command = self.command(line.split_whitespace());
        command.stdin(fs::File::open(file).expect("it was written"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        ends(command.spawn().expect("msb can be executed"))
    }

    /// What both sides say to the same question, which must be the same.
    #[track_caller]
    fn agreed(&self, line: &str) -> Value {
        let read = |gave: CmdOutput| -> Value {
            serde_json::from_str(&gave.stdout).unwrap_or_else(|error| panic!("{error}: {gave:#?}"))
        };
        let ours = read(self.words(line).ok());
        assert_eq!(ours, read(self.server.words(line).ok()), "{line}");
        ours
    }
}

impl Drop for RemoteClient {
    fn drop(&mut self) {
        let _: CmdOutput = self.server.words("server stop");
    }
}

#[test]
fn a_command_runs_there_with_its_streams_and_exit_code() {
    for there in RemoteClient::each() {
        let gave = there.run(["run", "host", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
        let (stdout, stderr) = ("out\n".to_owned(), "err\n".to_owned());
        assert_eq!(gave, CmdOutput { code: 3, stdout, stderr });
        assert_eq!(there.fed("run -- cat", b"one\ntwo").ok().stdout, "one\ntwo");
        assert_eq!(there.fed("run --no-stdin -- cat", b"unread").ok().stdout, "");
        assert_eq!(there.words("run -- no-such-program").code, 127);
        assert_eq!(there.words("run --timeout 100ms -- sleep 99").code, 124);
        let many = there.run(["run", "--", "seq", "1", "100000"]).ok();
        assert_eq!(many.stdout.lines().count(), 100_000);
        assert_eq!(there.run(["run", "-e", "A=b", "--", "sh", "-c", "echo $A"]).line(), "b");
        assert_eq!(there.words("ls -q").ok().stdout, "", "nothing is kept");
    }
}

#[test]
fn a_command_with_a_name_leaves_its_sandbox_there() {
    for there in RemoteClient::each() {
        let made = there.run(["run", "-n", "box", "--", "sh", "-c", "echo x > /tmp/x; echo done"]);
        assert_eq!(made.line(), "done");
        let listed = there.agreed("ls --json");
        assert_eq!((&listed[0]["name"], &listed[0]["status"]), (&"box".into(), &"stopped".into()));
        assert_eq!(there.words("start box").line(), "box");
        assert_eq!(there.words("exec box -- cat /tmp/x").line(), "x");
        let taken = there.words("create -n box");
        assert!(taken.stderr.contains("`box`"), "{taken:#?}");
        assert_eq!(there.words("rm -f box").line(), "box");
        assert_eq!(there.words("run -d -n back -- sleep 99").line(), "back");
        assert_eq!(there.words("ps --execs").ok().stdout.lines().count(), 2);
        let never = there.words("run -d -n never -- no-such-program");
        assert!(never.stderr.contains("`no-such-program`"), "{never:#?}");
        assert_eq!((never.code, never.stdout.as_str()), (127, ""));
        assert_eq!(there.words("ls -q").line(), "back");
        assert_eq!(there.words("run -d -n quick -- true").line(), "quick");
        there.words("rm -f quick").ok();
        assert_eq!(there.words("stop -f back").line(), "back");
        assert_eq!(there.server.words("ls -q").line(), "back");
    }
}

#[test]
fn execs_are_started_followed_and_ended() {
    for there in RemoteClient::each() {
        assert_eq!(there.words("create -n box").line(), "box");
        assert_eq!(there.fed("exec box -- wc -c", &[b'x'; 300_000]).line(), "300000");
        assert_eq!(there.run(["exec", "box", "--", "sh", "-c", "exit 42"]).code, 42);
        assert_eq!(there.words("exec box -- no-such-program").code, 127);
        assert_eq!(there.words("exec -w /tmp box -- pwd").line(), "/tmp");
        let id = there.run(["exec", "-d", "box", "--", "sh", "-c", "echo said; sleep 99"]).line();
        eventually("it is in the log", || there.words("logs box").stdout.contains("said"));
        assert_eq!(there.agreed("ps --execs --json")[0]["id"].to_string(), id);
        there.words(&format!("kill -s KILL box {id}")).ok();
        eventually("it is over", || there.words("ps --execs box").stdout.lines().count() == 1);
        let followed = there.spawn(["logs", "-f", "box"]);
        there.words("stop -f box").ok();
        assert!(ends(followed).ok().stdout.contains("said"));
        assert!(there.words("events box").ok().stdout.contains("stopped"));
        assert_eq!(there.words("rm box").line(), "box");
    }
}

/// A signal to the client is forwarded to the command.
#[test]
fn a_signal_reaches_the_command() {
    let there = RemoteClient::start(Msb::new());
    there.words("create -n box").ok();
    let script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done";
    let child = there.spawn(["exec", "box", "--", "sh", "-c", script]);
    eventually("it runs", || there.words("logs box").stdout.contains("ready"));
    signal_pid(child.id(), "INT");
    let gave = ends(child);
    assert_eq!((gave.code, gave.stdout.as_str()), (7, "ready\ncaught\n"), "{gave:#?}");
}

#[test]
fn a_terminal_there_is_like_one_here() {
    let there = RemoteClient::start(Msb::new());
    let mut terminal = Terminal::start(&there.command(["run", "-q", "--", "sh"]), 31, 97);
    terminal.types("stty size\n");
    terminal.shows("31 97");
    terminal.resize(20, 60);
    // Keys do not wait for what was changed before.
    eventually("the new size", || {
        terminal.types("stty size\n");
        std::thread::sleep(std::time::Duration::from_millis(100));
        terminal.shown().contains("20 60")
    });
    terminal.types("exit 5\n");
    assert_eq!(terminal.ends().0, 5);
    assert_eq!(there.words("ls -q").ok().stdout, "", "it is removed");
}

/// A command in the background is joined: what it has said, what it says, and how it ends.
#[test]
fn a_command_that_runs_there_is_joined() {
    for there in RemoteClient::each() {
        there.words("create -n box").ok();
        let nothing = there.words("attach box");
        assert!(nothing.stderr.contains("nothing runs in `box`"), "{nothing:#?}");
        let script = "echo early; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo late; exit 6";
        there.run(["exec", "-d", "box", "--", "sh", "-c", script]).ok();
        eventually("it has begun", || there.words("logs box").stdout.contains("early"));
        let mut joined = there.spawn(["attach", "box"]);
        let mut out = joined.stdout.take().expect("a pipe");
        // Not before it takes part, or there would be nothing to join.
        let mut early = [0; 6];
        out.read_exact(&mut early).expect("what was said before");
        there.words("exec box -- touch /tmp/go").ok();
        let mut late = String::new();
        out.read_to_string(&mut late).expect("what is said then");
        assert_eq!((&early, late.as_str()), (b"early\n", "late\n"));
        assert_eq!(ends(joined).code, 6);
    }
}

/// The detach keys leave a command running on the server, and `msb attach` joins it again.
#[test]
fn a_command_is_left_running_and_joined_again() {
    let there = RemoteClient::start(Msb::new());
    there.words("create -n box").ok();
    let mut terminal = Terminal::start(&there.command(["exec", "box", "--", "cat"]), 24, 80);
    terminal.types("first\n");
    eventually("it answers", || terminal.shown().matches("first").count() >= 2);
    terminal.types("\x10\x11");
    assert_eq!(terminal.ends().0, 0);
    assert_eq!(there.agreed("ps --execs --json").as_array().map_or(0, Vec::len), 1);
    let mut again = Terminal::start(&there.command(["attach", "box"]), 24, 80);
    eventually("it is joined", || again.shown().contains("first"));
    again.types("second\n");
    eventually("it answers", || again.shown().matches("second").count() >= 2);
    again.types("\x04");
    assert_eq!(again.ends().0, 0);
    let nothing = there.words("attach box");
    assert!(nothing.stderr.contains("nothing runs in `box`"), "{nothing:#?}");
}

/// What a command does not read does not keep its end from being told.
#[test]
fn a_command_that_reads_nothing_ends_as_it_should() {
    let there = RemoteClient::start(Msb::new());
    there.words("create -n box").ok();
    let much = vec![b'x'; 8 << 20];
    for _ in 0..5 {
        assert_eq!(there.fed("exec box -- head -c 3", &much).ok().stdout, "xxx");
        assert_eq!(there.fed("run -- false", &much).code, 1);
    }
}

/// A closed stdout ends the command, as in any pipe.
#[test]
fn a_reader_that_leaves_ends_the_command() {
    let there = RemoteClient::start(Msb::new());
    let mut child = there.spawn(["run", "--", "yes"]);
    let mut some = [0; 4];
    let mut out = child.stdout.take().expect("a pipe");
    out.read_exact(&mut some).expect("it says something");
    drop(out);
    let gave = ends(child);
    assert_eq!((gave.code, &some), (128 + 13, b"y\ny\n"), "{gave:#?}");
}

#[test]
fn files_go_in_and_come_out() {
    for there in RemoteClient::each() {
        there.words("create -n box").ok();
        there.client.file("tree/a/one", "1");
        there.client.file("tree/two", [0xff, 0, 7]);
        there.words("cp tree box:/tmp/tree").ok();
        assert_eq!(there.words("exec box -- cat /tmp/tree/a/one").ok().stdout, "1");
        there.words("cp box:/tmp/tree back").ok();
        let back = there.client.scratch().join("back");
        assert_eq!(fs::read(back.join("two")).unwrap(), [0xff, 0, 7]);
        assert_eq!(fs::read(back.join("a/one")).unwrap(), b"1");
        there.words("stop -f box").ok();
        there.words("cp box:/tmp/tree/two two").ok();
        assert_eq!(fs::read(there.client.scratch().join("two")).unwrap(), [0xff, 0, 7]);
        assert_eq!(there.agreed("ls --json")[0]["status"], "stopped", "it sleeps again");
        let absent = there.words("cp box:/no/such x");
        assert_ne!(absent.code, 0, "{absent:#?}");
    }
}

#[test]
fn snapshots_and_volumes_are_kept_there() {
    for there in RemoteClient::each() {
        there.words("create -n box").ok();
        there.run(["exec", "box", "--", "sh", "-c", "echo kept > /root/x"]).ok();
        assert_eq!(there.words("snapshot create snap --from box").line(), "snap");
        // What is written down about it behind our back is there from now on.
        there.words("snapshot verify snap").ok();
        there.agreed("snapshot ls --json");
        assert_eq!(there.words("restore snap --name again --start").line(), "again");
        assert_eq!(there.words("exec again -- cat /root/x").line(), "kept");
        there.words("snapshot save snap -o snap.tar").ok();
        assert!(there.client.scratch().join("snap.tar").exists());
        there.words("rm -f box again").ok();
        there.words("snapshot rm snap").ok();
        assert_eq!(there.words("snapshot load snap.tar -n back").line(), "back");

        assert_eq!(there.words("volume create store").line(), "store");
        there.client.file("v", "in a volume");
        there.words("volume cp v store:/v").ok();
        assert_eq!(there.words("volume cat store:/v").ok().stdout, "in a volume");
        assert_eq!(there.words("volume ls -q store:/").line(), "v");
        assert_eq!(there.words("run -v store:/s -- cat /s/v").ok().stdout, "in a volume");
        there.agreed("volume inspect store");
        assert_eq!(there.words("volume rm store").line(), "store");
        assert!(there.words("df").ok().stdout.contains("snapshots"));
    }
}

#[test]
fn a_workspace_there_is_looked_at_from_here() {
    let there = RemoteClient::start(Msb::new());
    let project = there.server.file("project/file", "before\n");
    let project = project.parent().unwrap().display().to_string();
    there.run(["create", "-n", "box", "--workspace", &project]).ok();
    there.run(["exec", "box", "--", "sh", "-c", "echo after > /workspace/file"]).ok();
    assert!(there.words("diff -p box").ok().stdout.contains("+after"));
    there.agreed("diff --json box");
    there.words("apply box").ok();
    assert_eq!(fs::read_to_string(format!("{project}/file")).unwrap(), "after\n");
}

#[test]
fn what_fails_says_where_and_why() {
    let there = RemoteClient::start(Msb::new());
    let refused = |gave: CmdOutput, words: &str| {
        assert_eq!(gave.code, 125, "{gave:#?}");
        assert!(gave.stderr.contains(words), "{words}: {gave:#?}");
    };
    refused(there.words("exec nobody -- true"), "`nobody`");
    refused(there.words("inspect nobody"), "`nobody`");
    refused(there.words("run -v ./here:/x -- true"), "has to be absolute: `./here`");
    refused(there.words("run ./rootfs -- true"), "has to be absolute");
    refused(there.words("run --copy ./a:/b -- true"), "has to be absolute");
    refused(there.words("sync start ./src box:/app"), "has to be absolute");
    refused(there.words("run -v /etc:/x -- true"), "/etc");
    refused(there.words("run -d --rm -- true"), "`msb run --detach --rm`");
    refused(there.words("pull --platform linux/arm64 alpine"), "`--platform`");
    for verb in ["build -t x .", "doctor", "prune", "registry ls", "server status", "mcp", "save x"]
    {
        let gave = there.words(verb);
        assert!(gave.stderr.contains("cannot be done through a server"), "{verb}: {gave:#?}");
        refused(gave, "run it where the server is");
    }
    let ask = |url: &str, key: &str| {
        let mut command = there.client.command(["ls"]);
        command.env("MSB_REMOTE", url).env("MSB_API_KEY", key);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        ends(command.spawn().expect("msb can be executed"))
    };
    ask(&there.url, &there.key).ok();
    refused(ask(&there.url, "msb_e30.e30.AAAA"), "error: ");
    refused(ask(&there.url, ""), "error: ");
    refused(ask("http://127.0.0.1:1", &there.key), "127.0.0.1:1");
    refused(ask("nonsense", &there.key), "nonsense");
    let mut twice = there.command(["ls", "--remote", &there.url]);
    refused(msb_e2e::gives(&mut twice), "given twice");
    let here = there.client.home().join("sandboxes");
    let made = fs::read_dir(here).into_iter().flatten().count();
    assert_eq!(made, 0, "nothing was done here instead");
}

#[test]
fn services_changes_and_names_are_the_servers() {
    for there in RemoteClient::each() {
        let script = ["--", "sh", "-c", "echo life; sleep 1000"];
        let words =
            "create -q --name svc --restart always --health true --health-interval 100ms host";
        assert_eq!(there.run(words.split_whitespace().chain(script)).line(), "svc");
        eventually("it is well", || there.words("ls --json").ok().stdout.contains(r#""healthy""#));
        assert_eq!(there.agreed("ls --json")[0]["health"], "healthy");
        let changed = there.words("modify svc --label a=b --restart no --json").ok().stdout;
        assert!(changed.contains("\"label a\"") && changed.contains("\"now\""), "{changed}");
        assert_eq!(there.agreed("inspect svc")["plan"]["restart"], "no");
        there.words("stop -f svc").ok();
        assert_eq!(there.words("rename svc other").line(), "other");
        assert_eq!(there.agreed("ls --json")[0]["labels"]["a"], "b");
    }
}

#[test]
fn a_server_with_tls_is_known_by_its_fingerprint() {
    for msb in Msb::each() {
        let remote = RemoteClient::start_with(msb, "--tls-self-signed");
        let (bare, pin) = remote.url.split_once('#').expect("a fingerprint");
        assert!(bare.starts_with("https://127.0.0.1:") && pin.starts_with("sha256:"), "{bare}");
        assert_eq!(remote.words("run -q -- echo there").line(), "there");
        assert_eq!(remote.words("ls -q").line(), "");
        let status = remote.server.words("server status").ok().stdout;
        assert!(status.contains(&remote.url), "{status}");
        let other = format!("{bare}#sha256:{}", "00".repeat(32));
        for (url, why) in [(other.as_str(), "another fingerprint"), (bare, "certificate")] {
            let mut command = remote.client.command(["--remote", url, "ls"]);
            command.env("MSB_API_KEY", &remote.key);
            let gave = CmdOutput::from(command.output().expect("msb can be executed"));
            assert_ne!(gave.code, 0, "{gave:?}");
            assert!(gave.stderr.contains(why), "{url}: {gave:?}");
        }
        // The certificate is kept, and so is the fingerprint.
        remote.server.words("server stop").ok();
        let again = remote.server.words("server start -dp 0 --tls-self-signed").line();
        assert_eq!(again.split_once('#').expect("a fingerprint").1, pin);
    }
}

#[test]
fn a_certificate_and_its_key_are_checked_at_the_start() {
    let msb = Msb::new();
    let (chain, key) = (msb.file("chain.pem", "none"), msb.file("key.pem", "none"));
    let flags = ["--tls-cert", chain.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let gave = msb.run(["server", "start", "-p", "0"].into_iter().chain(flags));
    assert_eq!(gave.code, 125, "{gave:?}");
    assert!(gave.stderr.contains("certificate"), "{gave:?}");
}

/// As a reverse proxy on the same machine sends requests on.
#[test]
fn names_of_a_reverse_proxy_have_to_be_allowed() {
    use std::io::Write;
    let msb = Msb::new();
    let refused = msb.words("server start --dev -dp 0 --allowed-host box.example");
    assert_eq!(refused.code, 125, "{refused:?}");
    assert_eq!(msb.words("server start -dp 0 --allowed-host box.example/x").code, 125);
    let remote = RemoteClient::start_with(msb, "--allowed-host box.example");
    let address = remote.url.strip_prefix("http://").expect("no TLS");
    for (host, status) in
        [("box.example", "200"), ("BOX.example:443", "200"), ("evil.example", "403")]
    {
        let mut stream = std::net::TcpStream::connect(address).expect("a server listens");
        let request = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is read");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an end");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
    }
}
