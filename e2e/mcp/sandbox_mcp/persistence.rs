//! State that outlives a command, a sandbox and a server: workspaces, history, snapshots, images.

use super::{SandboxMcpClient, untimed};
use msb_e2e::Msb;
use msb_e2e::images::Layout;
use serde_json::json;

#[test]
fn a_workspace_is_kept_until_it_is_wiped() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("echo kept > /workspace/f; echo gone > /root/g; X=1");
        let reset = "Fresh sandbox 'default' ready: mcp-sb-ID (workspace preserved)";
        assert_eq!(mcp.masked("reset", json!({})), reset);
        let look = "cat /workspace/f; ls /root/g 2> /dev/null; echo \"[$X]\"";
        assert_eq!(mcp.run(look), "kept\n[]");
        let said = mcp.masked("destroy", json!({"sandbox": "default"}));
        assert_eq!(said, "Destroyed sandbox 'default' (mcp-sb-ID)");
        assert_eq!(msb.words("ls -q").line(), "");
        let said = mcp.says("destroy", json!({"sandbox": "default"}));
        assert_eq!(said, "Error: no active sandbox 'default'");
        // The original forgot it when it was started again.
        mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run("cat /workspace/f"), "kept");
        mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run("cat /workspace/f"), "kept");
        assert_eq!(mcp.run_in("other", "ls -A /workspace"), "", "each has its own");
        let wipe = json!({"wipe_workspace": true});
        let wiped = "Fresh sandbox 'default' ready: mcp-sb-ID (workspace wiped)";
        assert_eq!(mcp.masked("reset", wipe), wiped);
        assert_eq!(mcp.run("ls -A /workspace"), "");
        // Also where there is none yet.
        let wipe = json!({"wipe_workspace": true, "sandbox": "third"});
        let wiped = "Fresh sandbox 'third' ready: mcp-sb-ID (workspace wiped)";
        assert_eq!(mcp.masked("reset", wipe), wiped);
    }
}

#[test]
fn sandboxes_are_made_on_first_use_and_shared_by_all_servers() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let none = "No active sandboxes. Use any sandbox tool to auto-create 'default'.";
        assert_eq!(mcp.says("list_all", json!({})), none);
        assert_eq!(mcp.says("health", json!({})), "No active sandboxes");
        assert_eq!(mcp.says("network_info", json!({})), "No active sandboxes.");
        assert_eq!(msb.words("ls -q").line(), "");
        mcp.says("write_file", json!({"path": "/workspace/f", "content": "x", "sandbox": "b"}));
        mcp.run("touch /tmp/mine");
        assert_eq!(msb.words("ls -q").line(), "b\ndefault");
        let inside = ["exec", "default", "--", "ls", "/tmp/mine"];
        assert_eq!(msb.run(inside).line(), "/tmp/mine");
        assert_eq!(msb.run(["exec", "b", "--", "cat", "/workspace/f"]).line(), "x");
        // A server that is started later finds them, and notices when they are removed.
        mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run("ls /tmp/mine"), "/tmp/mine");
        let listed = mcp.masked("list_all", json!({}));
        assert!(listed.lines().any(|line| line.starts_with("b  ")), "{listed}");
        msb.words("rm -f b").ok();
        let listed = mcp.masked("list_all", json!({}));
        assert!(!listed.lines().any(|line| line.starts_with("b  ")), "{listed}");
        // A sandbox that was stopped or removed is there again when it is needed.
        msb.words("stop default").ok();
        assert_eq!(mcp.run("ls /tmp/mine"), "/tmp/mine");
        msb.words("rm -f default").ok();
        assert_eq!(mcp.run("echo here"), "here");
    }
}

#[test]
fn history_is_kept_newest_first() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    let none = "No command history for 'nosuch'.";
    assert_eq!(mcp.says("history", json!({"sandbox": "nosuch"})), none);
    for number in 0..3 {
        mcp.run(&format!("echo number {number}; (exit {number})"));
    }
    let long = format!("echo {}", "x".repeat(500));
    mcp.run(&long);
    // Reading and looking is not among the commands.
    mcp.says("read_file", json!({"path": "/etc/passwd"}));
    mcp.says("stats", json!({}));
    let shown = |mcp: &mut SandboxMcpClient, limit: u32| {
        let said = mcp.masked("history", json!({ "limit": limit }));
        // A command that is being masked has no times in it.
        said.replace("Ns ago", "ago").replace("] Nms", "]")
    };
    let cut = &long[..200];
    let expected = format!(
        "Recent commands in 'default' (3 shown):\n   1. [ok] ago  {cut}\n   \
         2. [exit:2] ago  echo number 2; (exit 2)\n   3. [exit:1] ago  echo number 1; (exit 1)"
    );
    assert_eq!(shown(&mut mcp, 3), expected);
    drop(mcp);
    let mut mcp = SandboxMcpClient::open(&msb);
    assert_eq!(shown(&mut mcp, 3), expected, "after a restart");
    let all = shown(&mut mcp, 20);
    assert!(all.starts_with("Recent commands in 'default' (4 shown):\n"), "{all}");
    // Only the last hundred are kept.
    let calls: Vec<u64> = (0..120).map(|number| mcp.begin(&format!(": {number}"))).collect();
    mcp.client.ends(&calls);
    let all = shown(&mut mcp, 1000);
    assert!(all.starts_with("Recent commands in 'default' (100 shown):\n"), "{all}");
    for limit in [0, 1] {
        assert!(shown(&mut mcp, limit).lines().count() <= 2, "{limit}");
    }
}

#[test]
fn a_snapshot_brings_back_everything_but_the_workspace() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let none = "No snapshots saved. Use snapshot('name') to create one.";
        assert_eq!(mcp.says("list_snapshots", json!({})), none);
        mcp.run("echo one > /root/f; echo one > /workspace/f; mkdir -p /opt/d; ln -s x /opt/d/l");
        let saved = mcp.masked("snapshot", json!({"snapshot_name": "s1"}));
        let form = saved.strip_prefix("Snapshot 's1' saved from mcp-sb-ID (");
        let form = form.and_then(|it| it.strip_suffix(", Nms)")).expect(&saved);
        let (kind, size) = form.split_once(", ").expect(&saved);
        assert!(["full", "incremental"].contains(&kind), "{saved}");
        assert!(size.ends_with('B') && size.starts_with(|it: char| it.is_ascii_digit()), "{saved}");
        mcp.says("snapshot", json!({"snapshot_name": "a2"}));
        let listed = mcp.says("list_snapshots", json!({}));
        assert_eq!(listed, "Available snapshots:\n  - a2\n  - s1");
        mcp.run("echo two > /root/f; echo two > /workspace/f; rm -r /opt/d; GONE=1");
        let said = mcp.masked("restore", json!({"snapshot_name": "s1"}));
        assert_eq!(said, "Restored 's1' as 'default': mcp-sb-ID");
        let look = "cat /root/f /workspace/f; readlink /opt/d/l; echo \"[$GONE]\"";
        assert_eq!(mcp.run(look), "one\ntwo\nx\n[]");
        // Into another sandbox, and by a server that was started later.
        mcp = SandboxMcpClient::open(&msb);
        let other = json!({"snapshot_name": "s1", "sandbox": "other"});
        assert_eq!(mcp.masked("restore", other), "Restored 's1' as 'other': mcp-sb-ID");
        assert_eq!(mcp.run_in("other", "cat /root/f; ls -A /workspace"), "one");
        let said = mcp.says("restore", json!({"snapshot_name": "nope"}));
        assert_eq!(said, "Error: snapshot 'nope' not found. Use list_snapshots().");
        let gone = json!({"snapshot_name": "s1"});
        assert_eq!(mcp.says("delete_snapshot", gone.clone()), "Deleted snapshot 's1'");
        let said = mcp.says("delete_snapshot", gone);
        assert_eq!(said, "Error: snapshot 's1' not found. Available: a2");
        assert_eq!(mcp.run_in("other", "cat /root/f"), "one");
    }
}

#[test]
fn a_clone_is_a_sandbox_of_its_own() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("echo one > /root/f");
        let clone = json!({"source": "default", "target": "c2"});
        let said = mcp.masked("clone", clone.clone());
        let form = said.strip_prefix("Cloned 'default' -> 'c2': mcp-sb-ID (");
        let size = form.and_then(|it| it.strip_suffix(", Nms)")).expect(&said);
        assert!(size.ends_with('B'), "{said}");
        assert_eq!(mcp.run_in("c2", "cat /root/f; echo two > /root/f; X=1"), "one");
        assert_eq!(mcp.run("cat /root/f; echo \"[$X]\""), "one\n[]");
        let said = mcp.says("clone", clone);
        assert!(said.starts_with("Error") && said.contains("'c2'"), "{said}");
        let said = mcp.says("clone", json!({"source": "nope", "target": "c3"}));
        assert_eq!(said, "Error: no active sandbox 'nope' to clone");
        assert_eq!(msb.words("ls -q").line(), "c2\ndefault");
    }
}

#[test]
fn an_image_is_built_and_listed() {
    let msb = Msb::new();
    let layout = Layout::busybox().path().to_str().expect("a path of ours");
    msb.run(["load", "-q", "-i", layout, "-t", "base"]).ok();
    let mut mcp = SandboxMcpClient::open(&msb);
    let text = "FROM base\nRUN echo made > /made\nENV A=b\n";
    let build = json!({"name": "img1", "containerfile": text});
    assert_eq!(mcp.masked("build_image", build), "Built image 'img1' (Nms)");
    let said = msb.run(["run", "img1", "--", "sh", "-c", "cat /made; echo $A"]).line();
    assert_eq!(said, "made\nb");
    let images = mcp.says("images", json!({}));
    let head: Vec<&str> = images.lines().next().expect("a head").split_whitespace().collect();
    assert_eq!(head, ["NAME", "TAG", "DIGEST"]);
    for name in ["base", "img1"] {
        let is_it = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.first().is_some_and(|it| it.ends_with(name)) && words.get(1) == Some(&"latest")
        };
        assert!(images.lines().any(is_it), "{name}: {images}");
    }
    for (name, text) in [
        ("img2", "FROM base\nRUN exit 3\n"),
        ("img2", "FROM no-such-image:1\n"),
        ("img2", "NOT A STEP\n"),
        ("img2", ""),
        ("../img2", "FROM base\n"),
        ("--file=/etc/passwd", "FROM base\n"),
    ] {
        let said = mcp.says("build_image", json!({"name": name, "containerfile": text}));
        assert!(said.starts_with("Error building image: "), "{name} {text}: {said}");
    }
    // Nothing of the host is in reach of a build.
    let copy = json!({"name": "img3", "containerfile": "FROM base\nCOPY / /all\n"});
    mcp.says("build_image", copy);
    let look = ["run", "--pull", "never", "img3", "--", "sh", "-c", "find /all -name config.toml"];
    assert!(!msb.run(look).stdout.contains("config.toml"));
    assert!(!mcp.says("images", json!({})).contains("img2"));
}

#[test]
fn what_is_untimed_is_what_a_command_said() {
    assert_eq!(untimed("a (1ms)\nb\n(2.5ms)"), "a (1ms)\nb");
    assert_eq!(untimed("(2ms)"), "");
}
