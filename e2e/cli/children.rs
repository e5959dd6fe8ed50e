//! Sandboxes made for sandboxes: they count against the parent's budget, and no orphan stays.

use msb_e2e::{CmdOutput, Msb, Process, ends, eventually};
use serde_json::json;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A small policy: children of 64M, which two processors and any memory are enough for.
const POLICY: &str = "max=3,total=6,cpus=3,memory=256M,child-cpus=1,child-memory=64M,ttl=none";

fn parent(msb: &Msb, policy: &str) {
    msb.run(["create", "-q", "-n", "lead", "--spawn", policy, "host"]).ok();
}

#[track_caller]
fn refused(gave: &CmdOutput, why: &str) {
    assert!(gave.code == 125 && gave.stderr.contains(why), "{gave:#?}");
}

#[test]
fn a_child_lives_within_its_parents_budget() {
    for msb in Msb::each() {
        parent(&msb, POLICY);
        assert_eq!(msb.words("spawn -q lead").line(), "lead-child-0001");
        let asked = ["spawn", "--json", "-n", "scout", "--cpus", "9", "-m", "9G", "lead"];
        let child = msb.json(asked);
        assert_eq!(child["parent"], "lead");
        // Cut down to what each may have.
        assert_eq!((&child["cpus"], &child["memory"]), (&json!(1.0), &json!(67_108_864)));
        assert_eq!(msb.words("exec scout -- echo in").line(), "in");
        assert_eq!(msb.words("children -q lead").line(), "lead-child-0001\nscout");
        assert_eq!(msb.json(["children", "--json", "lead"])["children"][1], child);
        refused(&msb.words("spawn lead -m 1M"), "too little memory");
        refused(&msb.words("spawn lead --image ./other"), "is not allowed for its children");
        refused(&msb.words("spawn lead -n scout"), "already exists");
        msb.words("spawn -q lead").ok();
        refused(&msb.words("spawn lead"), "no more than 3 at once");
        // One that is gone makes room, but was one.
        for _ in 0..3 {
            msb.words("rm -f scout").ok();
            msb.words("spawn -q -n scout lead").ok();
        }
        msb.words("rm -f scout").ok();
        refused(&msb.words("spawn lead"), "no more than 6 in its life");
        let listed = msb.json(["children", "--json", "lead"]);
        assert_eq!((&listed["spawned"], &listed["max_total"]), (&json!(6), &json!(6)));
        refused(&msb.words("spawn lead-child-0001"), "may have no children");
        refused(&msb.words("spawn nobody"), "no sandbox `nobody`");
        msb.words("rm -f lead").ok();
        assert_eq!(msb.words("ls -q").line(), "");
    }
}

#[test]
fn a_child_is_never_saved_and_needs_a_running_parent_with_a_policy() {
    let msb = Msb::new();
    parent(&msb, POLICY);
    msb.words("spawn -q -n scout lead").ok();
    refused(&msb.words("snapshot create s --from scout"), "children are not kept");
    refused(&msb.words("clone scout two"), "children are not kept");
    msb.words("stop -f lead").ok();
    // It runs on, but there are no more.
    assert_eq!(msb.words("exec scout -- echo on").line(), "on");
    refused(&msb.words("spawn lead"), "is not running");
    msb.words("create -q -n plain host").ok();
    refused(&msb.words("spawn plain"), "may have no children");
    assert_eq!(msb.json(["children", "--json", "plain"])["max_total"], json!(null));
}

/// Fifty at once get three.
#[test]
fn a_storm_of_spawns_gets_no_more_than_there_is() {
    for msb in Msb::each() {
        parent(&msb, "max=40,total=50,cpus=40,memory=192M,child-cpus=1,child-memory=64M");
        let spawn = || {
            let mut command = msb.command(["spawn", "-q", "lead"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("msb can be executed")
        };
        let all: Vec<_> = (0..50).map(|_| spawn()).collect();
        let gave: Vec<CmdOutput> = all.into_iter().map(ends).collect();
        let (made, not): (Vec<&CmdOutput>, Vec<&CmdOutput>) =
            gave.iter().partition(|it| it.code == 0);
        assert_eq!(made.len(), 3, "{gave:#?}");
        not.into_iter().for_each(|gave| refused(gave, "192M of memory together"));
        let listed = msb.json(["children", "--json", "lead"]);
        assert_eq!(
            (listed["children"].as_array().unwrap().len(), &listed["spawned"]),
            (3, &json!(3))
        );
        msb.words("rm -f lead").ok();
        assert_eq!(msb.words("ls -q").line(), "");
    }
}

#[test]
fn a_child_ends_at_its_time() {
    let msb = Msb::new();
    parent(&msb, "default,ttl=2s,child-memory=64M");
    let since = Instant::now();
    msb.words("spawn -q -n brief lead").ok();
    let expires = msb.json(["children", "--json", "lead"])["children"][0]["expires"].clone();
    assert!(expires.as_str().is_some_and(|time| time.ends_with('Z')), "{expires}");
    eventually("it is gone", || msb.words("children -q lead").line().is_empty());
    let lived = since.elapsed();
    assert!(lived >= Duration::from_secs(2), "{lived:?}");
}

#[test]
fn children_end_with_a_reset_and_with_removal() {
    for msb in Msb::each() {
        parent(&msb, POLICY);
        for again in ["reset lead", "rm lead"] {
            msb.words("start -q lead");
            msb.words("spawn -q -n scout lead").ok();
            let processes = msb.processes("scout");
            assert!(!processes.is_empty());
            msb.words("stop -f lead").ok();
            msb.words(again).ok();
            eventually("its processes are gone", || !processes.iter().any(Process::is_alive));
            assert!(!msb.words("ls -q").line().contains("scout"), "{again}");
        }
        assert_eq!(msb.words("ls -q").line(), "");
    }
}

#[test]
fn grandchildren_have_half_and_end_with_the_ancestor() {
    let msb = Msb::new();
    parent(&msb, "default,max=4,total=4,cpus=4,memory=512M,child-cpus=1,child-memory=64M,nested");
    msb.words("spawn -q -n child lead").ok();
    for name in ["grand1", "grand2"] {
        msb.run(["spawn", "-q", "-n", name, "child"]).ok();
    }
    refused(&msb.words("spawn child"), "no more than 2 at once");
    refused(&msb.words("spawn grand1"), "may have no children");
    // Those of its child count: four processors are for all.
    msb.words("spawn -q -n last lead").ok();
    refused(&msb.words("spawn lead"), "all below `lead` may have 4 cpus together");
    let processes = ["child", "grand1", "grand2", "last"].map(|name| msb.processes(name)).concat();
    msb.words("rm -f lead").ok();
    // No other command had to clean up.
    eventually("their processes are gone", || !processes.iter().any(Process::is_alive));
    assert_eq!(msb.words("ls -q").line(), "");
}

/// `msb spawn` is killed at any moment: each child is counted, and works or is gone.
#[test]
fn a_killed_spawn_leaves_no_half_made_child() {
    let msb = Msb::new();
    parent(&msb, "max=100,total=100,cpus=100,memory=100G,child-cpus=1,child-memory=64M");
    for round in 0..25u32 {
        let mut command = msb.command(["spawn", "-q", "lead"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("msb can be executed");
        std::thread::sleep(Duration::from_micros(u64::from(round) * 400));
        let _ = child.kill();
        let _ = child.wait();
    }
    // The next command tidies up.
    msb.words("doctor --repair").ok();
    let listed = msb.json(["children", "--json", "lead"]);
    let there = listed["children"].as_array().unwrap();
    assert!(there.len() as u64 <= listed["spawned"].as_u64().unwrap(), "{listed}");
    for child in there {
        let name = child["name"].as_str().unwrap();
        let gave = msb.run(["exec", name, "--", "echo", "x"]);
        // A child of a spawn that was just killed may be about to be removed.
        let listed = || msb.json(["children", "--json", "lead"]).to_string().contains(name);
        assert!(gave.stdout == "x\n" || !listed(), "{gave:#?}");
    }
    msb.words("rm -f lead").ok();
    assert_eq!(msb.words("ls -q").line(), "");
}

/// The children of a parent that removed itself at its end are removed by the next command.
#[test]
fn orphans_are_removed() {
    let msb = Msb::new();
    parent(&msb, POLICY);
    msb.words("spawn -q -n scout lead").ok();
    msb.words("stop -f lead").ok();
    // As if `msb rm` had been killed in the middle of the removal.
    fs::remove_dir_all(msb.home().join("sandboxes/lead")).expect("it is there");
    let said = msb.words("doctor --repair").line();
    assert_eq!(said, "removed sandbox `scout`: its parent is gone");
    assert_eq!(msb.words("ls -q").line(), "");
}

#[test]
fn a_policy_is_settled_by_name_or_label() {
    let msb = Msb::new();
    let settings = "[spawn.lead]\nmax_concurrent = 1\nchild_memory = '64M'\n\
                    [spawn.'label:role=lead']\nmax_concurrent = 2\nchild_memory = '64M'\n";
    fs::write(msb.home().join("config.toml"), settings).expect("it is there");
    msb.chown(&msb.home().join("config.toml"));
    msb.words("create -q -n lead host").ok();
    // By its name it would have children in turn; but it was made from inside, perhaps.
    msb.words("create -q -n other -l role=lead host").ok();
    msb.words("spawn -q lead").ok();
    refused(&msb.words("spawn lead"), "no more than 1 at once");
    msb.words("rm -f lead").ok();
    msb.words("spawn -q other -n lead").ok();
    refused(&msb.words("spawn lead"), "may have no children");
    fs::write(msb.home().join("config.toml"), "[spawn.lead]\nmax_total = 0\n").expect("a file");
    refused(&msb.words("create -n wrong host"), "allows no child");
}
