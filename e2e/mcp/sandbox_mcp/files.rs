//! Files and variables of a sandbox, with names and contents that shells misread.

use super::{SandboxMcpClient, mask};
use msb_e2e::Msb;
use serde_json::{Value, json};

const ODD: [&str; 9] = [
    "-n",
    "--help",
    "it's",
    "a \"b\" c",
    "$HOME `id` $(touch /workspace/pwned)",
    "two\nlines",
    "grüße 日本",
    "*",
    "back\\slash;touch /workspace/pwned",
];

#[test]
fn files_come_back_as_they_were_written() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        for (number, odd) in ODD.iter().enumerate() {
            let path = format!("/workspace/odd/{number}/{odd}");
            for content in [*odd, "", "\n", "ends\n\n", "tab\tand\r\nreturn"] {
                let write = json!({"path": path, "content": content});
                let said = mcp.says("write_file", write);
                assert_eq!(said, format!("Wrote {} bytes to {path}", content.len()));
                assert_eq!(mcp.says("read_file", json!({"path": path})), content, "{path}");
            }
        }
        // All of them at once, too.
        let files: serde_json::Map<String, Value> = ODD
            .iter()
            .map(|odd| (format!("/workspace/batch/{odd}"), json!(format!("{odd}\n"))))
            .collect();
        let names: Vec<String> = files.keys().cloned().collect();
        let said = mcp.masked("batch_write", json!({"files": json!(files).to_string()}));
        assert!(said.starts_with("Wrote 9 files (Nms): "), "{said}");
        for name in names {
            assert!(said.contains(&name), "{name} in {said}");
            let content = name.strip_prefix("/workspace/batch/").expect("it was put there");
            let read = mcp.says("read_file", json!({"path": name}));
            assert_eq!(read, format!("{content}\n"));
        }
        assert_eq!(mcp.run("ls -A /workspace | sort"), "batch\nodd");
        assert_eq!(mcp.run("ls -A /workspace/batch | wc -l").trim(), "10");
    }
}

#[test]
fn files_that_cannot_be_written_or_read_are_errors() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    mcp.run("mkdir /workspace/d; echo > /workspace/f");
    for path in ["/workspace/d", "/workspace/f/below", "/proc/version", ""] {
        let said = mcp.says("write_file", json!({"path": path, "content": "x"}));
        assert!(said.starts_with("Error: "), "{path}: {said}");
        let files = json!({path: "x"}).to_string();
        let said = mcp.says("batch_write", json!({"files": files}));
        assert!(said.starts_with("Error"), "{path}: {said}");
    }
    for path in ["/workspace/d", "/workspace/none", "/workspace/f/below", ""] {
        let said = mcp.says("read_file", json!({"path": path}));
        assert!(said.starts_with("Error: "), "{path}: {said}");
    }
    let said = mcp.says("batch_write", json!({"files": "{"}));
    assert!(said.starts_with("Error: invalid JSON: "), "{said}");
    let not = "Error: files must be a JSON object mapping paths to contents";
    for files in ["[1]", "3", "\"text\"", "null"] {
        assert_eq!(mcp.says("batch_write", json!({"files": files})), not, "{files}");
    }
    let said = mcp.says("batch_write", json!({"files": r#"{"/workspace/n": 3}"#}));
    assert!(said.starts_with("Error"), "{said}");
    assert_eq!(mcp.masked("batch_write", json!({"files": "{}"})), "Wrote 0 files (Nms): ");
}

#[test]
fn a_long_file_is_written_whole_and_read_in_part() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    let content = "0123456789".repeat(100_000);
    let write = json!({"path": "/workspace/long", "content": content});
    assert_eq!(mcp.says("write_file", write), "Wrote 1000000 bytes to /workspace/long");
    assert_eq!(mcp.run("wc -c < /workspace/long").trim(), "1000000");
    let read = mcp.says("read_file", json!({"path": "/workspace/long"}));
    assert!(read.starts_with(&content[..50_000]), "{}", &read[..100]);
    assert_eq!(read[50_000..], *"\n[truncated — 976.6KB total, showing first 48.8KB]");
    // A pipe without a writer and an endless device do not block the server.
    mcp.run("mkfifo /workspace/pipe");
    for path in ["/workspace/pipe", "/dev/zero"] {
        let call = json!({"name": "read_file", "arguments": {"path": path}});
        mcp.client.begin("tools/call", call);
        assert_eq!(mcp.run_in("other", "echo here"), "here", "beside {path}");
    }
}

#[test]
fn variables_reach_every_command_until_they_are_unset() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let none = "No persistent env vars set. Use env(action='set', key='FOO', value='bar').";
        assert_eq!(mcp.says("env", json!({})), none);
        for odd in ODD {
            let set = json!({"action": "set", "key": "ODD", "value": odd});
            assert_eq!(mcp.says("env", set), "Set ODD in 'default' (persists across commands)");
            assert_eq!(mcp.run("printenv ODD"), odd);
            let quoted = format!("export ODD='{}'", odd.replace('\'', "'\\''"));
            let listed = mcp.says("env", json!({}));
            assert_eq!(listed, format!("Persistent env vars in 'default':\n{quoted}"));
        }
        mcp.says("env", json!({"action": "set", "key": "_B2", "value": ""}));
        let said = mcp.says("python", json!({"code": "import os; print(sorted(k for k in os.environ if k in ('ODD', '_B2')))"}));
        assert!(said.starts_with("['ODD', '_B2']\n"), "{said}");
        mcp.says("bg", json!({"command": "printenv ODD > /workspace/bg", "name": "b"}));
        let waited = "until [ -s /workspace/bg ]; do sleep 0.02; done; cat /workspace/bg";
        assert_eq!(mcp.run(waited), ODD[ODD.len() - 1]);
        // They are the sandbox's: a shell that ends takes none along.
        mcp.run("exit 1");
        assert_eq!(mcp.run("printenv ODD"), ODD[ODD.len() - 1]);
        assert_eq!(mcp.run_in("other", "printenv ODD"), "[exit code 1]");
        let unset = json!({"action": "unset", "key": "ODD"});
        assert_eq!(mcp.says("env", unset), "Unset ODD in 'default'");
        assert_eq!(mcp.run("printenv ODD"), "[exit code 1]");
        for key in ["1x", "", "A B", "A;touch /workspace/pwned", "A=B", "ä", "A\nB"] {
            for action in ["set", "unset"] {
                let said = mcp.says("env", json!({"action": action, "key": key, "value": "y"}));
                assert!(said.starts_with("Error"), "{action} {key}: {said}");
            }
        }
        let said = mcp.says("env", json!({"action": "set", "key": "1x", "value": "y"}));
        assert_eq!(said, "Error: invalid env key '1x' (must be [A-Za-z_][A-Za-z0-9_]*)");
        let said = mcp.says("env", json!({"action": "change"}));
        assert!(said.starts_with("Error"), "{said}");
        assert_eq!(mcp.run("ls -A /workspace"), "bg");
    }
}

#[test]
fn what_runs_in_the_background_is_read_and_ended() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let command = "echo 'it''s'; echo e >&2; pwd; sleep 1000";
        let bg = json!({"command": command, "name": "w", "workdir": "/tmp"});
        let said = mcp.masked("bg", bg);
        let use_it = "Use logs('w') to read output, kill('w') to stop.";
        assert_eq!(said, format!("Started [w] PID N\n{use_it}"));
        let rule = "─".repeat(40);
        let all = format!("[w] PID N (alive) — {command}\n{rule}\nits\ne\n/tmp\n");
        msb_e2e::eventually("all is printed", || mcp.masked("logs", json!({"name": "w"})) == all);
        let tail = mcp.masked("logs", json!({"name": "w", "tail": 1}));
        assert_eq!(tail, format!("[w] PID N (alive) — {command}\n{rule}\n/tmp\n"));
        assert!(mcp.says("status", json!({})).contains("  bg:1  "));
        let none = "Error: no background process 'nope' in sandbox 'default'. Running: w";
        assert_eq!(mcp.says("logs", json!({"name": "nope"})), none);
        assert_eq!(mcp.says("kill", json!({"name": "nope"})), none);
        // Names that are paths, or more than a name, do nothing of that.
        for name in ["/../../workspace/x", "a;touch /workspace/pwned", "a' 'b"] {
            mcp.says("bg", json!({"command": "true", "name": name}));
        }
        let said = mcp.masked("kill", json!({"name": "w"}));
        assert_eq!(said.trim_end(), "Killed [w] PID N\nLast output:\nits\ne\n/tmp");
        let gone = || !super::process_names(&msb, "default").contains(&"sleep".to_owned());
        msb_e2e::eventually("all of it has ended", gone);
        // One that is not named gets a name; one that has ended says so; none is stubborn.
        let said = mcp.says("bg", json!({"command": "exit 3"}));
        let name = &said["Started [".len()..said.find(']').expect("its name")];
        assert_eq!(mask(name), "bg-ID");
        let dead = || mcp.says("logs", json!({ "name": name })).contains(" (dead) — exit 3\n");
        msb_e2e::eventually("it has ended", dead);
        let stubborn = "trap '' TERM INT HUP; sleep 1000; sleep 1000";
        mcp.says("bg", json!({"command": stubborn, "name": "s"}));
        let said = mcp.masked("kill", json!({"name": "s"}));
        assert!(said.starts_with("Killed [s] PID N"), "{said}");
        msb_e2e::eventually("all of it has ended", gone);
        assert_eq!(mcp.run("ls -A /workspace"), "");
    }
}
