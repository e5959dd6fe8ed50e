//! Servers that are killed.

use super::{SandboxMcpClient, write_config};
use msb_e2e::{Msb, eventually, signal_pid};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_server_that_is_killed_while_it_spawns_leaves_nothing_by_half() {
    let msb = Msb::new();
    let policy = "[spawn.default]\nmax_concurrent = 50\nmax_total = 50\ncpus = 50\n\
                  memory = '50G'\nchild_memory = '64M'\n";
    write_config(&msb, policy);
    for round in 0..12u64 {
        let mut mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run("echo works"), "works");
        mcp.client.begin("tools/call", json!({"name": "spawn", "arguments": {"cpus": 1}}));
        std::thread::sleep(Duration::from_millis(round * 2));
        signal_pid(mcp.client.pid(), "KILL");
    }
    msb.words("doctor --repair").ok();
    let listed = msb.json(["children", "--json", "default"]);
    let there = listed["children"].as_array().expect("a list");
    assert!(there.len() as u64 <= listed["spawned"].as_u64().expect("a number"), "{listed}");
    for child in there {
        let name = child["name"].as_str().expect("a name");
        let gave = msb.run(["exec", name, "--", "echo", "x"]);
        let listed = || msb.json(["children", "--json", "default"]).to_string().contains(name);
        assert!(gave.stdout == "x\n" || !listed(), "{gave:#?}");
    }
    let mut mcp = SandboxMcpClient::open(&msb);
    let count = there.len();
    let said = mcp.says("children", json!({}));
    match count {
        0 => assert!(said.starts_with("No active children for 'default' ("), "{said}"),
        _ => {
            assert!(said.starts_with(&format!("Children of 'default' ({count} active)")), "{said}")
        }
    }
    mcp.says("destroy", json!({"sandbox": "default"}));
    assert_eq!(msb.words("ls -q").line(), "");
}

/// Its commands end with it, its sandboxes do not.
#[test]
fn a_server_that_is_killed_leaves_no_command_and_every_sandbox() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("echo kept > /root/f");
        mcp.begin("sleep 1000");
        let sleeps = || super::process_names(&msb, "default").contains(&"sleep".to_owned());
        eventually("the command runs", sleeps);
        // As a user it is a child of the program that changes to that user, which executes it.
        signal_pid(mcp.client.pid(), "KILL");
        eventually("it has ended", || !sleeps());
        let mut mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run("cat /root/f"), "kept");
        let history = mcp.says("history", json!({"limit": 20}));
        assert!(history.contains("echo kept > /root/f"), "{history}");
    }
}

/// Two clients have a shell each, or one; both find what the other has made.
#[test]
fn two_servers_share_sandboxes() {
    let msb = Msb::new();
    let (mut one, mut two) = (SandboxMcpClient::open(&msb), SandboxMcpClient::open(&msb));
    let calls = [one.begin("echo one > /workspace/1"), two.begin("echo two > /workspace/2")];
    one.client.end(calls[0]);
    two.client.end(calls[1]);
    assert_eq!(one.run("cat /workspace/1 /workspace/2"), "one\ntwo");
    assert_eq!(two.run("cat /workspace/1 /workspace/2"), "one\ntwo");
    two.says("reset", json!({}));
    assert_eq!(one.run("cat /workspace/1"), "one");
    two.says("destroy", json!({"sandbox": "default"}));
    assert_eq!(one.run("cat /workspace/2"), "two");
}
