//! Every tool of microsandbox-mcp on a real sandbox.

mod settings;

use msb_e2e::Msb;
use msb_e2e::mcp::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

struct MicrosandboxClient {
    client: Client,
    called: BTreeSet<String>,
}

impl MicrosandboxClient {
    fn open(msb: &Msb) -> Self {
        Self { client: Client::start(msb, &[]), called: BTreeSet::new() }
    }

    #[track_caller]
    fn envelope(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.client.call(tool, arguments);
        self.called.insert(tool.to_owned());
        let text = result["content"][0]["text"].as_str().expect("text");
        let envelope: Value = serde_json::from_str(text)
            .unwrap_or_else(|error| panic!("{tool}: no envelope ({error}): {text}"));
        assert_eq!(envelope["ok"], result["isError"] != true, "{tool}: {result}");
        envelope
    }

    #[track_caller]
    fn done(&mut self, tool: &str, arguments: Value) -> Value {
        let envelope = self.envelope(tool, arguments);
        assert_eq!(envelope["ok"], true, "{tool}: {envelope}");
        envelope["data"].clone()
    }

    #[track_caller]
    fn failed(&mut self, tool: &str, arguments: Value) -> Value {
        let envelope = self.envelope(tool, arguments);
        assert_eq!(envelope["ok"], false, "{tool}: {envelope}");
        envelope["error"].clone()
    }
}

#[test]
fn every_tool_does_what_it_says() {
    for msb in Msb::each() {
        let mut mcp = MicrosandboxClient::open(&msb);
        let tools = mcp.client.tools();
        let tools: BTreeSet<String> = tools
            .iter()
            .map(|tool| tool["name"].as_str().expect("it is there").to_owned())
            .collect();
        assert_eq!(tools.len(), 70);
        assert_eq!(mcp.done("runtime_check", json!({}))["installed"], true);
        assert_eq!(mcp.done("runtime_install", json!({}))["installed"], true);
        let ran = mcp.done("sandbox_run", json!({"command": "echo once"}));
        assert_eq!(ran["stdout"], "once\n");
        assert_eq!(mcp.done("sandbox_create", json!({"name": "box"}))["status"], "running");
        commands(&mut mcp);
        sessions(&mut mcp);
        files(&mut mcp, &msb);
        over_ssh(&mut mcp);
        volumes(&mut mcp);
        measured(&mut mcp);
        snapshots(&mut mcp);
        images(&mut mcp);
        life(&mut mcp);
        let missing: Vec<&String> = tools.difference(&mcp.called).collect();
        assert_eq!(missing, Vec::<&String>::new(), "every tool was called");
        resources(&mut mcp);
    }
}

fn commands(mcp: &mut MicrosandboxClient) {
    let ran = mcp.done("sandbox_exec", json!({"name": "box", "command": "echo", "args": ["a b"]}));
    assert_eq!((&ran["stdout"], &ran["success"]), (&json!("a b\n"), &json!(true)));
    let ran = mcp.done(
        "sandbox_shell",
        json!({"name": "box", "command": "echo $X; exit 3", "env": {"X": "y"}}),
    );
    assert_eq!((&ran["stdout"], &ran["exitCode"]), (&json!("y\n"), &json!(3)));
    let line = json!({"name": "box", "command": "false", "treatNonZeroAsError": true});
    assert_eq!(mcp.failed("sandbox_exec", line)["code"], "exec_failed");
    let long = json!({"name": "box", "command": "echo 12345", "maxBytes": 3});
    let envelope = mcp.envelope("sandbox_shell", long);
    assert_eq!(envelope["data"]["stdout"], "123");
    assert_eq!(envelope["truncated"][0]["totalBytes"], 6, "{envelope}");
    let unknown = mcp.failed("sandbox_exec", json!({"name": "nope", "command": "true"}));
    assert_eq!(unknown["message"], "sandbox not found: nope");
    let read = mcp.done("sandbox_logs_read", json!({"name": "box"}));
    assert_eq!(read["entries"][0]["text"], "a b\n");
    let stream = mcp.done("sandbox_logs_stream", json!({"name": "box", "limit": 1}));
    assert_eq!(stream["entries"].as_array().expect("it is there").len(), 1);
}

fn sessions(mcp: &mut MicrosandboxClient) {
    let line = json!({"name": "box", "command": "cat; sleep 600", "shell": true});
    let begun = mcp.done("sandbox_exec_start", line);
    let id = begun["execSessionId"].clone();
    let write = json!({"execSessionId": id, "data": "hello\n", "close": true});
    assert_eq!(mcp.done("sandbox_exec_write_stdin", write)["written"], 6);
    let mut events = Vec::new();
    while !events.iter().any(|event: &Value| event["event"]["data"] == "hello\n") {
        let cursor = events.len();
        let poll = mcp.done("sandbox_exec_poll", json!({"execSessionId": id, "cursor": cursor}));
        events.extend(poll["events"].as_array().expect("it is there").iter().cloned());
        std::thread::sleep(Duration::from_millis(5));
    }
    mcp.done("sandbox_exec_signal", json!({"execSessionId": id, "signal": "kill"}));
    while mcp.done("sandbox_exec_poll", json!({"execSessionId": id}))["done"] != true {
        std::thread::sleep(Duration::from_millis(5));
    }
    mcp.done("sandbox_exec_close", json!({"execSessionId": id}));
    let gone = mcp.failed("sandbox_exec_poll", json!({"execSessionId": id}));
    assert!(
        gone["message"].as_str().expect("it is there").starts_with("exec session not found"),
        "{gone}"
    );
}

fn files(mcp: &mut MicrosandboxClient, msb: &Msb) {
    let at = |path: &str| json!({"name": "box", "path": path});
    mcp.done("sandbox_fs_mkdir", at("/root/d"));
    mcp.done("sandbox_fs_write", json!({"name": "box", "path": "/root/d/x", "content": "data"}));
    assert_eq!(mcp.done("sandbox_fs_read", at("/root/d/x"))["content"], "data");
    assert_eq!(mcp.done("sandbox_fs_list", at("/root/d"))[0]["path"], "/root/d/x");
    assert_eq!(mcp.done("sandbox_fs_stat", at("/root/d/x"))["size"], 4);
    mcp.done("sandbox_fs_copy", json!({"name": "box", "from": "/root/d/x", "to": "/root/d/y"}));
    mcp.done("sandbox_fs_rename", json!({"name": "box", "from": "/root/d/y", "to": "/root/d/z"}));
    assert_eq!(mcp.done("sandbox_fs_exists", at("/root/d/z"))["exists"], true);
    mcp.done("sandbox_fs_remove", at("/root/d/z"));
    assert_eq!(mcp.done("sandbox_fs_exists", at("/root/d/z"))["exists"], false);
    let host = msb.file("given", "from the host");
    let copy = json!({"name": "box", "hostPath": host, "guestPath": "/root/given"});
    mcp.done("sandbox_fs_copy_from_host", copy);
    let taken = msb.scratch().join("taken");
    let copy = json!({"name": "box", "guestPath": "/root/given", "hostPath": taken});
    mcp.done("sandbox_fs_copy_to_host", copy);
    assert_eq!(std::fs::read_to_string(taken).expect("it is there"), "from the host");
    let copy = json!({"name": "box", "hostPath": "/etc/passwd", "guestPath": "/root/p"});
    assert_eq!(mcp.failed("sandbox_fs_copy_from_host", copy)["code"], "host_path_denied");
}

fn volumes(mcp: &mut MicrosandboxClient) {
    assert_eq!(mcp.done("volume_create", json!({"name": "vol"}))["kind"], "dir");
    assert_eq!(mcp.done("volume_list", json!({}))[0]["name"], "vol");
    mcp.done("volume_inspect", json!({"name": "vol"}));
    let at = |path: &str| json!({"name": "vol", "path": path});
    mcp.done("volume_fs_mkdir", at("/d"));
    mcp.done("volume_fs_write", json!({"name": "vol", "path": "/d/x", "content": "v"}));
    assert_eq!(mcp.done("volume_fs_read", at("/d/x"))["content"], "v");
    mcp.done("volume_fs_copy", json!({"name": "vol", "from": "/d/x", "to": "/d/y"}));
    mcp.done("volume_fs_rename", json!({"name": "vol", "from": "/d/y", "to": "/d/z"}));
    assert_eq!(mcp.done("volume_fs_list", at("/d")).as_array().expect("it is there").len(), 2);
    assert_eq!(mcp.done("volume_fs_stat", at("/d/z"))["kind"], "file");
    assert_eq!(mcp.done("volume_fs_exists", at("/d/q"))["exists"], false);
    mcp.done("volume_fs_remove", at("/d"));
    mcp.done("volume_remove", json!({"name": "vol"}));
    assert_eq!(
        mcp.failed("volume_inspect", json!({"name": "vol"}))["message"],
        "volume not found: vol"
    );
}

fn measured(mcp: &mut MicrosandboxClient) {
    assert!(mcp.done("sandbox_metrics", json!({"name": "box"}))["memoryBytes"].is_u64());
    assert!(mcp.done("sandbox_metrics_all", json!({}))["box"].is_object());
    let stream =
        mcp.done("sandbox_metrics_stream", json!({"name": "box", "samples": 2, "intervalMs": 10}));
    assert_eq!(stream["samples"].as_array().expect("it is there").len(), 2);
}

fn snapshots(mcp: &mut MicrosandboxClient) {
    let made = mcp.done("snapshot_create", json!({"name": "snap", "fromSandbox": "box"}));
    assert_eq!(made["sourceSandbox"], "box", "{made}");
    assert_eq!(mcp.done("snapshot_list", json!({}))[0]["name"], "snap");
    mcp.done("snapshot_inspect", json!({"pathOrName": "snap"}));
    mcp.done("snapshot_verify", json!({"pathOrName": "snap"}));
    mcp.done("snapshot_reindex", json!({}));
    mcp.done("snapshot_save", json!({"pathOrName": "snap", "out": "snap.tar"}));
    assert_eq!(
        mcp.done("sandbox_restore", json!({"name": "two", "snapshot": "snap"}))["status"],
        "running"
    );
    let read = json!({"name": "two", "path": "/root/d/x"});
    assert_eq!(mcp.done("sandbox_fs_read", read)["content"], "data");
    mcp.done("sandbox_remove", json!({"name": "two", "force": true}));
    mcp.done("snapshot_remove", json!({"pathOrName": "snap"}));
    mcp.done("snapshot_load", json!({"archive": "snap.tar"}));
    mcp.done("snapshot_remove", json!({"pathOrNames": ["snap"]}));
}

fn images(mcp: &mut MicrosandboxClient) {
    mcp.done("image_list", json!({}));
    mcp.failed("image_inspect", json!({"reference": "none.example/none"}));
    mcp.failed("image_remove", json!({"reference": "none.example/none"}));
    let refused = mcp.failed("image_prune", json!({"confirm": false}));
    assert_eq!(refused["message"], "image_prune requires confirm: true");
    mcp.done("image_prune", json!({"confirm": true}));
}

fn life(mcp: &mut MicrosandboxClient) {
    assert_eq!(mcp.done("sandbox_list", json!({}))[0]["name"], "box");
    assert_eq!(mcp.done("sandbox_status", json!({"name": "box"}))[0]["status"], "running");
    assert_eq!(mcp.done("sandbox_inspect", json!({"name": "box"}))["name"], "box");
    assert_eq!(mcp.done("sandbox_stop", json!({"name": "box", "force": true}))[0]["stopped"], true);
    assert_eq!(mcp.done("sandbox_start", json!({"name": "box"}))[0]["started"], true);
    assert_eq!(mcp.done("sandbox_drain", json!({"name": "box"}))[0]["drainRequested"], true);
    assert_eq!(mcp.done("sandbox_wait", json!({"name": "box"}))[0]["name"], "box");
    assert_eq!(mcp.done("sandbox_remove", json!({"names": ["box"]}))[0]["removed"], true);
    let missing = mcp.failed("sandbox_stop", json!({}));
    assert_eq!(missing["message"], "at least one selector is required");
}

/// As a session of SSH and one of SFTP would do it.
fn over_ssh(mcp: &mut MicrosandboxClient) {
    let said = mcp.done(
        "sandbox_ssh_exec",
        json!({"name": "box", "command": "echo $0; pwd; echo $TERM >&2; exit 3", "term": "vt100"}),
    );
    assert_eq!((&said["status"], &said["success"]), (&json!(3), &json!(false)));
    let home = said["stdout"].as_str().expect("text").lines().nth(1).expect("a home").to_owned();
    assert_eq!(said["stderr"], "vt100\n");
    let tty = json!({"name": "box", "command": "test -t 1 && echo $TERM", "tty": true});
    assert_eq!(mcp.done("sandbox_ssh_exec", tty)["stdout"], "xterm\r\n");
    let wrong = json!({"name": "box", "command": "true", "term": "a\0b"});
    assert_eq!(mcp.failed("sandbox_ssh_exec", wrong)["message"], "term contains a zero byte");
    for path in ["", "."] {
        let here = json!({"name": "box", "path": path});
        assert_eq!(mcp.done("sandbox_sftp_realpath", here)["realPath"], json!(home));
    }
    let file =
        json!({"name": "box", "path": "sftp/file", "content": "aGVsbG8=", "encoding": "base64"});
    mcp.failed("sandbox_sftp_write", file.clone());
    let directory = json!({"name": "box", "path": "sftp"});
    assert_eq!(mcp.done("sandbox_sftp_mkdir", directory.clone())["created"], true);
    mcp.failed("sandbox_sftp_mkdir", directory.clone());
    assert_eq!(mcp.done("sandbox_sftp_write", file)["written"], 5);
    let read =
        mcp.done("sandbox_sftp_read", json!({"name": "box", "path": "sftp/file", "maxBytes": 4}));
    assert_eq!((&read["content"], &read["encoding"]), (&json!("hell"), &json!("utf8")));
    let link = json!({"name": "box", "target": "file", "linkPath": "sftp/link"});
    assert_eq!(mcp.done("sandbox_sftp_symlink", link.clone())["created"], true);
    mcp.failed("sandbox_sftp_symlink", link);
    let link = json!({"name": "box", "path": "sftp/link"});
    assert_eq!(mcp.done("sandbox_sftp_readlink", link.clone())["target"], "file");
    let real = mcp.done("sandbox_sftp_realpath", link.clone())["realPath"].clone();
    assert_eq!(real, json!(format!("{}/sftp/file", home.trim_end_matches('/'))));
    mcp.failed("sandbox_sftp_readlink", json!({"name": "box", "path": "sftp/file"}));
    let taken = json!({"name": "box", "from": "sftp/file", "to": "sftp/link"});
    mcp.failed("sandbox_sftp_rename", taken);
    let free = json!({"name": "box", "from": "sftp/file", "to": "sftp/other"});
    assert_eq!(mcp.done("sandbox_sftp_rename", free)["renamed"], true);
    mcp.failed("sandbox_sftp_remove", json!({"name": "box", "path": "sftp/other", "kind": "dir"}));
    mcp.failed("sandbox_sftp_remove", json!({"name": "box", "path": "sftp", "kind": "dir"}));
    for (path, kind) in [("sftp/other", "file"), ("sftp/link", "file"), ("sftp", "dir")] {
        let removed = json!({"name": "box", "path": path, "kind": kind});
        assert_eq!(mcp.done("sandbox_sftp_remove", removed)["removed"], true);
    }
}

fn resources(mcp: &mut MicrosandboxClient) {
    let all = mcp.client.ask("resources/list", json!({}))["resources"].clone();
    assert_eq!(all.as_array().expect("it is there").len(), 7);
    for resource in all.as_array().expect("it is there") {
        let read = mcp.client.ask("resources/read", json!({"uri": resource["uri"]}));
        let text = read["contents"][0]["text"].as_str().expect("text");
        serde_json::from_str::<Value>(text).expect("it is there");
    }
}

/// A client, or an attacker that injects its prompts, uses only those variables of the host that
/// were listed for that very host.
#[test]
fn no_variable_of_the_host_is_read_unless_it_is_listed() {
    let msb = Msb::new();
    let mut command = msb.command(["mcp", "--secret-env", "LISTED@api.example,*.b.example"]);
    command.env("LISTED", "listed-value").env("OTHER", "other-value");
    let mut mcp = MicrosandboxClient { client: Client::over(command), called: BTreeSet::new() };
    let asked = |variable: &str, host: &str| {
        json!({"name": "box", "image": "host", "secrets": [
            {"envVar": "TOKEN", "valueEnv": variable, "allowedHost": host},
        ]})
    };
    for (variable, host) in [
        ("OTHER", "api.example"),
        ("PATH", "api.example"),
        ("LISTED", "evil.example"),
        ("LISTED", "*.example"),
        ("LISTED", "b.example"),
        // Whether a variable is set is not told either.
        ("UNSET", "api.example"),
    ] {
        let error = mcp.failed("sandbox_create", asked(variable, host));
        assert_eq!(error["code"], "dangerous_operation_disabled", "{variable}@{host}: {error}");
        let mut run = asked(variable, host);
        run["command"] = json!("true");
        let error = mcp.failed("sandbox_run", run);
        assert_eq!(error["code"], "dangerous_operation_disabled", "{variable}@{host}: {error}");
    }
    assert_eq!(msb.words("ls -q").ok().stdout, "");
    drop(mcp);
    // Without the option there is none at all.
    let mut command = msb.command(["mcp"]);
    command.env("LISTED", "listed-value");
    let mut mcp = MicrosandboxClient { client: Client::over(command), called: BTreeSet::new() };
    let error = mcp.failed("sandbox_create", asked("LISTED", "api.example"));
    assert_eq!(error["code"], "dangerous_operation_disabled", "{error}");
    assert_eq!(msb.words("ls -q").ok().stdout, "");
}
