//! Every tool in turn, with the texts that the original was heard to say.

use super::{SandboxMcpClient, children, contract, untimed};
use msb_e2e::images::Layout;
use msb_e2e::{Msb, free_port};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A tool, what it is asked, and what it says.
type Line<'a> = (&'a str, Value, &'a str);

#[track_caller]
fn recite(mcp: &mut SandboxMcpClient, lines: &[Line<'_>]) {
    for (tool, arguments, expected) in lines {
        let said = mcp.masked(tool, arguments.clone());
        // The original kept the last line end of a command, or did not.
        assert_eq!(said.replace("\n\n", "\n"), *expected, "{tool} {arguments}");
    }
}

#[test]
fn every_tool_says_what_the_original_says() {
    let msb = Msb::new();
    let layout = Layout::busybox().path().to_str().expect("a path of ours");
    msb.run(["load", "-q", "-i", layout, "-t", "base"]).ok();
    let mut mcp = SandboxMcpClient::open(&msb);
    commands(&mut mcp);
    looks(&mut mcp);
    files(&msb, &mut mcp);
    kept(&mut mcp);
    children(&mut mcp);
    ends(&mut mcp);
    let all: BTreeSet<String> = contract::names().into_iter().collect();
    assert_eq!(mcp.called, all, "every tool was called");
}

fn commands(mcp: &mut SandboxMcpClient) {
    let none = "No active sandboxes. Use any sandbox tool to auto-create 'default'.";
    let set = "Set FOO in 'default' (persists across commands)";
    let listed = "Persistent env vars in 'default':\nexport FOO='b'\\''ar'";
    let unset = "No persistent env vars set. Use env(action='set', key='FOO', value='bar').";
    let files = r#"{"/workspace/x/1":"a","/workspace/x/2":"b"}"#;
    let started = "Started [w] PID N\nUse logs('w') to read output, kill('w') to stop.";
    let no_process = "Error: no background process 'nope' in sandbox 'default'. Running: w";
    recite(
        mcp,
        &[
            ("list_all", json!({}), none),
            (
                "exec",
                json!({"command": "echo hi; echo e >&2; exit 3"}),
                "hi\n[stderr] e\n[exit code 3]\n(Nms)",
            ),
            ("exec", json!({"command": "cat", "stdin": "abc"}), "abc\n(Nms)"),
            (
                "exec",
                json!({"command": "sleep 3", "timeout": 0.5}),
                "[stderr] Timed out after Ns\n[exit code -1]\n(Nms)",
            ),
            ("python", json!({"code": "print(1)"}), "1\n(Nms)"),
            (
                "write_file",
                json!({"path": "/workspace/a.txt", "content": "hello"}),
                "Wrote 5 bytes to /workspace/a.txt",
            ),
            ("read_file", json!({"path": "/workspace/a.txt"}), "hello"),
            (
                "batch_write",
                json!({ "files": files }),
                "Wrote 2 files (Nms): /workspace/x/1, /workspace/x/2",
            ),
            ("env", json!({"action": "set", "key": "FOO", "value": "b'ar"}), set),
            ("env", json!({}), listed),
            ("exec", json!({"command": "echo $FOO"}), "b'ar\n(Nms)"),
            ("env", json!({"action": "unset", "key": "FOO"}), "Unset FOO in 'default'"),
            ("env", json!({}), unset),
            ("bg", json!({"command": "echo done; sleep 1000", "name": "w"}), started),
            ("logs", json!({"name": "nope"}), no_process),
        ],
    );
    let rule = "─".repeat(40);
    let all = format!("[w] PID N (alive) — echo done; sleep 1000\n{rule}\ndone\n");
    msb_e2e::eventually("it has said it", || mcp.masked("logs", json!({"name": "w"})) == all);
    let said = mcp.masked("kill", json!({"name": "w"}));
    assert_eq!(said.trim_end(), "Killed [w] PID N\nLast output:\ndone");
    // Without a network: what it says is git's.
    let said = mcp.masked("git_clone", json!({"repo": "https://example.invalid/a/b.git"}));
    assert!(said.starts_with("Error cloning: ") && said.ends_with("\n(Nms)"), "{said}");
    assert!(mcp.says("install", json!({"packages": "--evil"})).starts_with("Error: "));
    let history = mcp.masked("history", json!({}));
    assert!(history.contains("] Nms Ns ago  echo $FOO\n"), "{history}");
    assert!(history.contains("[exit:3] Nms Ns ago  echo hi; echo e >&2; exit 3"), "{history}");
}

/// What tells of sandboxes, by the form of its lines.
fn looks(mcp: &mut SandboxMcpClient) {
    let status = mcp.masked("status", json!({}));
    let lines: Vec<&str> = status.lines().collect();
    let words: Vec<&str> = lines[0].split("  ").filter(|word| !word.is_empty()).collect();
    assert_eq!(words[0].trim(), "default");
    assert_eq!(
        words[1..4].iter().map(|it| it.trim()).collect::<Vec<_>>(),
        ["mcp-sb-ID", "shell:alive", "idle:Ns"]
    );
    assert_eq!(words[4], "2cpu/512M");
    let count = words[5].strip_prefix("cmds:").expect(&status);
    assert!(count.parse::<u32>().is_ok_and(|count| count >= 5), "{status}");
    let begins = ["Image:", "Volumes:", "Network:"];
    for (line, begin) in lines[1..].iter().zip(begins) {
        assert!(line.starts_with(begin), "{status}");
    }
    assert_eq!(lines.len(), 4, "{status}");
    let health = mcp.masked("health", json!({}));
    let (head, line) = health.split_once('\n').expect(&health);
    assert_eq!(head, "1 sandbox(es), 0 issue(s)");
    assert!(line.starts_with("default:  shell=ok  disk="), "{health}");
    for word in ["%  mem=", "%  up=", "  procs="] {
        assert!(line.contains(word), "{word}: {health}");
    }
    let stats = mcp.masked("stats", json!({}));
    let heads: Vec<&str> = stats.lines().map(|it| it.split(':').next().expect("a head")).collect();
    assert!(stats.starts_with("Sandbox: mcp-sb-ID ('default', 2cpu/512M)\n"), "{stats}");
    for head in ["Memory", "CPU", "PIDs", "Disk", "Uptime", "History"] {
        assert!(heads.contains(&head), "{head}: {stats}");
    }
    let memory = stats.lines().find(|line| line.starts_with("Memory: ")).expect("memory");
    assert!(memory.contains("B / 512.0MB (") && memory.ends_with("%)"), "{stats}");
    let history = stats.lines().find(|line| line.starts_with("History: ")).expect("history");
    assert!(history.ends_with(" commands"), "{stats}");
    let info = mcp.masked("network_info", json!({}));
    assert!(info.starts_with("default       mcp-sb-ID  ip:"), "{info}");
}

fn files(msb: &Msb, mcp: &mut SandboxMcpClient) {
    let up = msb.file("bin/x", "program").with_file_name("");
    let up = up.to_str().expect("a path").trim_end_matches('/');
    let to = msb.scratch().join("dl.txt");
    let to = to.to_str().expect("a path");
    let said = mcp.masked("upload", json!({"local_path": up, "sandbox_path": "/workspace/up"}));
    let begin = format!("Uploaded {up}/ -> /workspace/up (1 files, ");
    assert!(said.starts_with(&begin) && said.ends_with("B tar, Nms)"), "{said}");
    let back = json!({"sandbox_path": "/workspace/a.txt", "local_path": to});
    let downloaded = format!("Downloaded /workspace/a.txt -> {to} (5B, Nms)");
    assert_eq!(mcp.masked("download", back), downloaded);
    let said = mcp.masked("sync_start", json!({"local_dir": up, "sandbox_dir": "/workspace/s"}));
    let begin = format!("Sync started [sync-ID]: {up} -> default:/workspace/s\nInitial sync: 1 ");
    assert!(said.starts_with(&begin), "{said}");
    assert_eq!(
        mcp.says("sync_stop", json!({"job_id": "x"}))[..28],
        *"Error: no sync job 'x'. Acti"
    );
}

fn kept(mcp: &mut SandboxMcpClient) {
    let saved = mcp.masked("snapshot", json!({"snapshot_name": "s1"}));
    assert!(saved.starts_with("Snapshot 's1' saved from mcp-sb-ID ("), "{saved}");
    recite(
        mcp,
        &[
            ("list_snapshots", json!({}), "Available snapshots:\n  - s1"),
            ("restore", json!({"snapshot_name": "s1"}), "Restored 's1' as 'default': mcp-sb-ID"),
            ("delete_snapshot", json!({"snapshot_name": "s1"}), "Deleted snapshot 's1'"),
            (
                "delete_snapshot",
                json!({"snapshot_name": "s1"}),
                "Error: snapshot 's1' not found. Available: none",
            ),
            (
                "build_image",
                json!({"name": "img1", "containerfile": "FROM base"}),
                "Built image 'img1' (Nms)",
            ),
        ],
    );
    assert!(mcp.says("images", json!({})).contains("img1"));
    // Without a network there is nothing to forward to, or there is: both are answers.
    let (port, other) = (free_port(), free_port());
    let said = mcp.says("expose", json!({"port": 8000, "host_port": port}));
    let forwards = said.starts_with(&format!("Forwarding localhost:{port} -> 'default':8000\n"));
    assert!(forwards || said.starts_with("Error"), "{said}");
    let said = mcp.says("unexpose", json!({ "port": other }));
    assert!(
        said.starts_with(&format!("Error: no forward on localhost:{other}. Active: ")),
        "{said}"
    );
    let said = mcp.masked("clone", json!({"source": "default", "target": "c2"}));
    assert!(said.starts_with("Cloned 'default' -> 'c2': mcp-sb-ID ("), "{said}");
}

fn children(mcp: &mut SandboxMcpClient) {
    let image = children::image(mcp);
    let spawned = format!(
        "Spawned child 'default-child-0000': mcp-sb-ID\n  Parent: default\n  Image: {image}\n  \
         Resources: 2 CPUs, 512MB\n  TTL: Ns remaining"
    );
    let listed = format!(
        "Children of 'default' (1 active):\n  default-child-0000: mcp-sb-ID (2 CPUs, 512MB, \
         image={image}) TTL=Ns idle=Ns\nLifetime spawns: 1/10"
    );
    recite(mcp, &[("spawn", json!({}), &spawned), ("children", json!({}), &listed)]);
    let said = mcp.says("exec", json!({"command": "echo in", "sandbox": "default-child-0000"}));
    assert_eq!(untimed(&said), "in");
    let rule = "─".repeat(65);
    let head = format!("Name          Container         Shell       Idle  Resources\n{rule}\n");
    let list = mcp.masked("list_all", json!({}));
    assert!(list.starts_with(&head), "{list}");
    // Columns are as wide as the original's, and a long name pushes the others aside.
    for row in [
        "default       mcp-sb-ID     alive  ",
        "c2            mcp-sb-ID     ",
        "default-child-0000  mcp-sb-ID     alive  ",
    ] {
        let is_it = |line: &str| line.starts_with(row) && line.ends_with("Ns  2cpu/512M");
        assert!(list.lines().any(is_it), "{row}: {list}");
    }
    assert_eq!(list.lines().count(), 5, "{list}");
    recite(
        mcp,
        &[(
            "destroy_child",
            json!({"name": "default-child-0000"}),
            "Destroyed sandbox 'default-child-0000' (mcp-sb-ID)",
        )],
    );
}

fn ends(mcp: &mut SandboxMcpClient) {
    recite(
        mcp,
        &[
            (
                "reset",
                json!({"sandbox": "c2", "wipe_workspace": true}),
                "Fresh sandbox 'c2' ready: mcp-sb-ID (workspace wiped)",
            ),
            ("reset", json!({}), "Fresh sandbox 'default' ready: mcp-sb-ID (workspace preserved)"),
            ("children", json!({}), "No active children for 'default' (1/10 lifetime spawns used)"),
            ("destroy", json!({"sandbox": "c2"}), "Destroyed sandbox 'c2' (mcp-sb-ID)"),
            ("destroy", json!({"sandbox": "c2"}), "Error: no active sandbox 'c2'"),
        ],
    );
}
