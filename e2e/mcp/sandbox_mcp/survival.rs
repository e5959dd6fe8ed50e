//! Servers that are killed.

use super::{Desk, settle};
use msb_e2e::{Msb, eventually, signal_pid};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_server_that_is_killed_while_it_spawns_leaves_nothing_by_half() {
    let msb = Msb::new();
    let policy = "[spawn.default]\nmax_concurrent = 50\nmax_total = 50\ncpus = 50\n\
                  memory = '50G'\nchild_memory = '64M'\n";
    settle(&msb, policy);
    for round in 0..12u64 {
        let mut desk = Desk::open(&msb);
        assert_eq!(desk.run("echo works"), "works");
        desk.client.begin("tools/call", json!({"name": "spawn", "arguments": {"cpus": 1}}));
        std::thread::sleep(Duration::from_millis(round * 2));
        signal_pid(desk.client.pid(), "KILL");
    }
    msb.words("doctor --repair").ok();
    let brood = msb.json(["children", "--json", "default"]);
    let there = brood["children"].as_array().expect("a list");
    assert!(there.len() as u64 <= brood["spawned"].as_u64().expect("a number"), "{brood}");
    for child in there {
        let name = child["name"].as_str().expect("a name");
        let gave = msb.run(["exec", name, "--", "echo", "x"]);
        let listed = || msb.json(["children", "--json", "default"]).to_string().contains(name);
        assert!(gave.stdout == "x\n" || !listed(), "{gave:#?}");
    }
    let mut desk = Desk::open(&msb);
    let count = there.len();
    let said = desk.says("children", json!({}));
    match count {
        0 => assert!(said.starts_with("No active children for 'default' ("), "{said}"),
        _ => {
            assert!(said.starts_with(&format!("Children of 'default' ({count} active)")), "{said}")
        }
    }
    desk.says("destroy", json!({"sandbox": "default"}));
    assert_eq!(msb.words("ls -q").line(), "");
}

/// Its commands end with it, its sandboxes do not.
#[test]
fn a_server_that_is_killed_leaves_no_command_and_every_sandbox() {
    for msb in Msb::each() {
        let mut desk = Desk::open(&msb);
        desk.run("echo kept > /root/f");
        desk.begin("sleep 1000");
        let sleeps = || super::process_names(&msb, "default").contains(&"sleep".to_owned());
        eventually("the command runs", sleeps);
        // As a user it is a child of the program that changes to that user, which executes it.
        signal_pid(desk.client.pid(), "KILL");
        eventually("it has ended", || !sleeps());
        let mut desk = Desk::open(&msb);
        assert_eq!(desk.run("cat /root/f"), "kept");
        let history = desk.says("history", json!({"limit": 20}));
        assert!(history.contains("echo kept > /root/f"), "{history}");
    }
}

/// Two clients have a shell each, or one; both find what the other has made.
#[test]
fn two_servers_share_sandboxes() {
    let msb = Msb::new();
    let (mut one, mut two) = (Desk::open(&msb), Desk::open(&msb));
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
