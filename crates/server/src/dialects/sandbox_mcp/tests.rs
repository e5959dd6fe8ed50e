//! Tests of the tools over a fake `Api` that records calls and runs commands on this host.

use super::SandboxMcp;
use crate::dialect::{Dialect, ToolCall, ToolResult};
use crate::dialects::ServerConfig;
use crate::paths::HostPaths;
use crate::recorder::{FakeSandboxes, NO_CALLS, name};
use msb_spec::Spec;
use serde_json::{Value, json};
use std::sync::Arc;

struct TestClient {
    fake: FakeSandboxes,
    dialect: SandboxMcp,
}

impl TestClient {
    fn new() -> Self {
        let fake = FakeSandboxes::new(&[]).with_commands();
        let paths = Arc::new(HostPaths::below([std::env::temp_dir()], "the test"));
        let dialect = SandboxMcp::new(ServerConfig::new(fake.api(), paths, Spec::with_defaults()));
        Self { fake, dialect }
    }

    fn call(&self, tool: &str, arguments: Value) -> ToolResult {
        let Value::Object(arguments) = arguments else { panic!("not an object") };
        self.dialect.call(&ToolCall::new(tool, arguments))
    }

    fn text(&self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments);
        let text = answer.text.concat();
        assert!(!answer.failed, "{tool}: {text}");
        assert_eq!(answer.structured, Some(json!({ "result": text })), "{tool}");
        text
    }

    /// The output of a command, without its duration.
    fn exec(&self, command: &str) -> String {
        let text = self.text("exec", json!({"command": command, "workdir": "/"}));
        let (said, taken) = text.rsplit_once('\n').unwrap_or(("", &text));
        assert!(taken.starts_with('(') && taken.ends_with("ms)"), "{text}");
        said.to_owned()
    }
}

#[test]
fn names_and_schemas_are_those_of_sandbox_mcp() {
    let text = include_str!("../../../tests/dialects/sandbox-mcp.json");
    let theirs: Value = serde_json::from_str(text).unwrap();
    let theirs = theirs["tools"].as_array().unwrap();
    let client = TestClient::new();
    let ours = client.dialect.tools();
    assert_eq!((ours.len(), theirs.len()), (35, 35));
    for (our, their) in ours.iter().zip(theirs) {
        assert_eq!(our.name, their["name"]);
        assert_eq!(Value::Object((*our.input).clone()), their["inputSchema"], "{}", our.name);
        let output = our.output.as_deref().cloned().unwrap();
        assert_eq!(Value::Object(output), their["outputSchema"], "{}", our.name);
        assert!(our.description.len() > 30, "{}", our.name);
    }
}

#[test]
fn only_schema_violations_are_mcp_errors() {
    let client = TestClient::new();
    let failed = |tool: &str, arguments: Value| {
        let answer = client.call(tool, arguments);
        assert!(answer.failed && answer.structured.is_none(), "{tool}");
        answer.text.concat()
    };
    assert_eq!(
        failed("exec", json!({})),
        "Error executing tool exec: 1 validation error for execArguments\n\
         command\n  Field required [type=missing, input_type=dict]"
    );
    let wrong = failed("exec", json!({"command": 1, "timeout": "x"}));
    assert!(wrong.starts_with("Error executing tool exec: 2 validation errors"), "{wrong}");
    assert_eq!(failed("nosuchtool", json!({})), "Unknown tool: nosuchtool");
    // No sandbox was created for any of them.
    assert_eq!(client.fake.calls(), NO_CALLS);
    // Equivalent values are converted, and unknown arguments are ignored.
    let text = client.text("exec", json!({"command": "echo hi", "timeout": "5", "bogus": 1}));
    assert!(text.starts_with("hi\n"), "{text}");
    let none = client.text("destroy", json!({"sandbox": "nope"}));
    assert_eq!(none, "Error: no active sandbox 'nope'");
}

#[test]
fn a_sandbox_is_made_on_first_use_and_only_then() {
    let client = TestClient::new();
    let none = client.text("list_all", json!({}));
    assert_eq!(none, "No active sandboxes. Use any sandbox tool to auto-create 'default'.");
    assert!(!client.fake.calls().iter().any(|call| call.operation == "sandbox_create"));
    client.exec("true");
    let made = client.fake.calls();
    let made = made.iter().find(|call| call.operation == "sandbox_create").unwrap();
    let made = &made.text;
    for part in [
        "mcp-workspace-default",
        "mcp-cache-pip-default",
        "mcp-cache-npm-default",
        "msb.dialect",
        "sandbox-mcp",
        "SpawnPolicy",
        "millis: 2000",
        "Bytes(536870912)",
    ] {
        assert!(made.contains(part), "{part}: {made}");
    }
    // `host` has no apk, so there is no cache for it.
    assert!(!made.contains("mcp-cache-apk"), "{made}");
    client.exec("true");
    assert_eq!(client.fake.calls(), NO_CALLS, "a warm command asks for nothing");
    let status = client.text("status", json!({}));
    assert!(status.contains("Image:    host (mcp-dev could not be built: "), "{status}");
}

#[test]
fn the_shell_stays_and_reports_each_stream() {
    let client = TestClient::new();
    assert_eq!(client.exec("echo hi; echo e >&2; (exit 3)"), "hi\n[stderr] e\n[exit code 3]");
    assert_eq!(client.exec("X=5; cd /tmp; pwd"), "/tmp");
    // Variables last, the directory is that of the call.
    assert_eq!(client.exec("echo $X; pwd"), "5\n/");
    assert_eq!(client.exec("printf 'no line end'"), "no line end");
    assert_eq!(client.exec("echo 'it''s'; cat"), "its");
    assert_eq!(client.exec("echo 'a\nb'"), "a\nb");
    let broken = client.exec("echo \"unterminated");
    assert!(broken.starts_with("[stderr] ") && broken.contains("[exit code 2]"), "{broken}");
    assert_eq!(client.exec("echo $X"), "5");
    // A background process does not block the call.
    assert_eq!(client.exec("sleep 5 & echo now"), "now");
    assert_eq!(client.exec("printf '\\001\\377\\000z' | wc -c | tr -d ' '"), "4");
}

#[test]
fn a_command_that_ends_the_shell_runs_once() {
    let client = TestClient::new();
    let place = std::env::temp_dir().join(format!("msb-once-{}", std::process::id()));
    let shown = place.display();
    let said = client.exec(&format!("echo x >>{shown}; echo out; exit 3"));
    assert_eq!(said, "out\n[exit code 3]");
    assert_eq!(std::fs::read_to_string(&place).unwrap(), "x\n");
    std::fs::remove_file(place).unwrap();
    assert_eq!(client.exec("echo there again"), "there again");
}

#[test]
fn a_timeout_ends_the_command_and_not_the_shell() {
    let client = TestClient::new();
    client.exec("X=7");
    for command in ["sleep 30; echo after", "while :; do :; done"] {
        let late = json!({"command": command, "timeout": 0.2, "workdir": "/"});
        let text = client.text("exec", late);
        assert!(text.starts_with("[stderr] Timed out after 0.2s\n[exit code -1]\n("), "{text}");
        assert_eq!(client.exec("echo $X"), "7", "{command}");
    }
    // A command that ignores the interrupt is killed with its shell.
    let stubborn = json!({"command": "trap '' INT; sleep 30", "timeout": 0.2, "workdir": "/"});
    let text = client.text("exec", stubborn);
    assert!(text.contains("Timed out after 0.2s") && text.contains("[exit code -1]"), "{text}");
    assert_eq!(client.exec("echo back"), "back");
}

#[test]
fn calls_at_once_do_not_mix() {
    let client = TestClient::new();
    client.exec("true");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..10 {
                    let said = client.exec(&format!("echo {number}a; echo {number}b >&2"));
                    assert_eq!(said, format!("{number}a\n[stderr] {number}b"));
                }
            });
        }
    });
}

#[test]
fn history_holds_the_newest_first() {
    let client = TestClient::new();
    client.exec("echo one");
    client.exec("(exit 4)");
    let text = client.text("history", json!({}));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Recent commands in 'default' (2 shown):");
    assert!(lines[1].starts_with("   1. [exit:4] ") && lines[1].ends_with("  (exit 4)"), "{text}");
    assert!(lines[2].starts_with("   2. [ok] ") && lines[2].ends_with("  echo one"), "{text}");
    let none = client.text("history", json!({"sandbox": "other"}));
    assert_eq!(none, "No command history for 'other'.");
}

#[test]
fn sandboxes_without_the_label_are_not_touched() {
    let client = TestClient::new();
    let name = name("default");
    let theirs = FakeSandboxes::new(&["default"]);
    let summary = theirs.state.sandboxes.lock().unwrap().remove(&name).unwrap();
    client.fake.state.sandboxes.lock().unwrap().insert(name, summary);
    let text = client.text("exec", json!({"command": "true"}));
    assert!(text.starts_with("Error: the sandbox `default` exists and was not created"), "{text}");
    assert!(client.text("list_all", json!({})).starts_with("No active sandboxes."));
}

/// Properties with effects only inside a sandbox; the e2e tests check these.
const INSIDE: [(&str, &str); 4] =
    [("python", "code"), ("logs", "tail"), ("git_clone", "shallow"), ("restore", "sandbox")];

/// Replaces times and random names, which differ every time.
fn steady(text: &str) -> String {
    let ends = |letter: char| !letter.is_ascii_alphanumeric() && letter != '.';
    let mut steady = String::new();
    for word in text.split_inclusive(ends) {
        let bare = word.trim_end_matches(ends);
        let by_chance = bare.len() == 6 && bare.bytes().all(|byte| byte.is_ascii_hexdigit());
        let pid = bare.len() > 2 && bare.bytes().all(|byte| byte.is_ascii_digit());
        let time = bare.strip_suffix("ms").is_some_and(|time| time.parse::<f64>().is_ok());
        match by_chance || pid || time {
            true => steady.push('#'),
            false => steady.push_str(word),
        }
    }
    steady
}

#[test]
fn every_property_acts() {
    let place = std::env::temp_dir().join(format!("msb-acts-{}", std::process::id()));
    std::fs::create_dir_all(place.join("other")).unwrap();
    let (here, other) = (place.to_str().unwrap(), place.join("other"));
    let other = other.to_str().unwrap();
    let slow = json!({"command": "sleep 0.5", "workdir": "/"});
    let log = "of-a-test";
    let table = [
        ("exec", json!({"command": "echo a", "workdir": "/"}), "command", json!("echo b")),
        ("exec", slow, "timeout", json!(0.1)),
        ("exec", json!({"command": "pwd", "workdir": "/"}), "workdir", json!("/tmp")),
        ("exec", json!({"command": "cat", "workdir": "/"}), "stdin", json!("x")),
        ("python", json!({"code": "1"}), "timeout", json!(-1)),
        ("write_file", json!({"path": "/a", "content": ""}), "path", json!("/b")),
        ("write_file", json!({"path": "/a", "content": ""}), "content", json!("x")),
        ("read_file", json!({"path": "/a"}), "path", json!("/b")),
        ("install", json!({"packages": "-a"}), "packages", json!("-b")),
        ("reset", json!({}), "wipe_workspace", json!(true)),
        ("upload", json!({"local_path": here}), "local_path", json!(other)),
        ("upload", json!({"local_path": here}), "sandbox_path", json!("/x")),
        (
            "download",
            json!({"sandbox_path": "/a", "local_path": here}),
            "sandbox_path",
            json!("/b"),
        ),
        ("download", json!({"sandbox_path": "/a", "local_path": here}), "local_path", json!("/b")),
        ("bg", json!({"command": "true", "name": log}), "command", json!("false")),
        ("bg", json!({"command": "true", "name": log}), "name", json!("not a name")),
        ("bg", json!({"command": "true", "name": log}), "workdir", json!("/x")),
        ("logs", json!({"name": "a"}), "name", json!("b")),
        ("kill", json!({"name": "a"}), "name", json!("b")),
        ("snapshot", json!({"snapshot_name": "a"}), "snapshot_name", json!("b")),
        ("restore", json!({"snapshot_name": "a"}), "snapshot_name", json!("b")),
        ("delete_snapshot", json!({"snapshot_name": "a"}), "snapshot_name", json!("b")),
        ("git_clone", json!({"repo": "-a"}), "repo", json!("-b")),
        ("git_clone", json!({"repo": "/nope"}), "branch", json!("-b")),
        ("git_clone", json!({"repo": "/nope"}), "token", json!("\n")),
        ("git_clone", json!({"repo": "/nope"}), "path", json!("/elsewhere")),
        ("sync_start", json!({"local_dir": here}), "local_dir", json!(other)),
        ("sync_start", json!({"local_dir": here}), "sandbox_dir", json!("/x")),
        ("sync_stop", json!({"job_id": "a"}), "job_id", json!("b")),
        ("env", json!({}), "action", json!("nonsense")),
        ("env", json!({"action": "set", "key": "A"}), "key", json!("B")),
        ("env", json!({"action": "set", "key": "A"}), "value", json!("\0")),
        ("clone", json!({"source": "a", "target": "b"}), "source", json!("c")),
        ("clone", json!({"source": "default", "target": "b"}), "target", json!("c")),
        ("batch_write", json!({"files": "{}"}), "files", json!("[]")),
        ("destroy", json!({"sandbox": "a"}), "sandbox", json!("b")),
        ("exec", json!({"command": "true"}), "sandbox", json!("b")),
        ("python", json!({"code": "1"}), "sandbox", json!("b")),
        ("write_file", json!({"path": "/a", "content": ""}), "sandbox", json!("b")),
        ("read_file", json!({"path": "/a"}), "sandbox", json!("b")),
        ("install", json!({"packages": "$(nothing)"}), "sandbox", json!("b")),
        ("reset", json!({}), "sandbox", json!("b")),
        ("upload", json!({"local_path": here}), "sandbox", json!("b")),
        ("download", json!({"sandbox_path": "/a", "local_path": here}), "sandbox", json!("b")),
        ("bg", json!({"command": "true", "name": log}), "sandbox", json!("b")),
        ("logs", json!({"name": "a"}), "sandbox", json!("b")),
        ("kill", json!({"name": "a"}), "sandbox", json!("b")),
        ("stats", json!({}), "sandbox", json!("b")),
        ("snapshot", json!({"snapshot_name": "a"}), "sandbox", json!("b")),
        ("git_clone", json!({"repo": "/nope"}), "sandbox", json!("b")),
        ("sync_start", json!({"local_dir": here}), "sandbox", json!("b")),
        ("env", json!({}), "sandbox", json!("b")),
        ("batch_write", json!({"files": "{}"}), "sandbox", json!("b")),
        ("expose", json!({"port": 80}), "sandbox", json!("b")),
        ("history", json!({}), "sandbox", json!("b")),
        ("build_image", json!({"name": "a", "containerfile": "FROM a"}), "name", json!("b")),
        ("build_image", json!({"name": "a", "containerfile": "x"}), "containerfile", json!("y")),
        ("expose", json!({"port": 80}), "port", json!(81)),
        ("expose", json!({"port": 80}), "host_port", json!(8080)),
        ("unexpose", json!({"port": 80}), "port", json!(81)),
        ("spawn", json!({}), "image", json!("x")),
        ("spawn", json!({}), "parent", json!("x")),
        ("spawn", json!({}), "name", json!("x")),
        ("spawn", json!({}), "cpus", json!(1)),
        ("spawn", json!({}), "memory", json!("64M")),
        ("children", json!({}), "parent", json!("x")),
        ("destroy_child", json!({"name": "a"}), "name", json!("b")),
        ("history", json!({}), "limit", json!(0)),
    ];
    let mut acted = std::collections::BTreeSet::new();
    for (tool, arguments, property, value) in table {
        let seen = |arguments: &Value| {
            let client = TestClient::new();
            client.exec("true");
            client.fake.calls();
            let text = client.text(tool, arguments.clone());
            let calls: Vec<String> =
                client.fake.calls().iter().map(|call| steady(&call.to_string())).collect();
            (steady(&text), calls)
        };
        let mut changed = arguments.clone();
        changed[property] = value;
        let (before, again, after) = (seen(&arguments), seen(&arguments), seen(&changed));
        assert_eq!(before, again, "{tool}: the same twice");
        assert_ne!(before, after, "{tool}: {property}");
        acted.insert((tool, property));
    }
    for tool in TestClient::new().dialect.tools() {
        for property in tool.input["properties"].as_object().unwrap().keys() {
            let row = (tool.name.as_str(), property.as_str());
            assert!(acted.contains(&row) || INSIDE.contains(&row), "{row:?} is not tried");
        }
    }
    std::fs::remove_dir_all(place).unwrap();
    // Commands of this test run on this host, and so their logs are here.
    let _ = std::fs::remove_file(format!("/tmp/_mcp_bg_{log}.log"));
}
