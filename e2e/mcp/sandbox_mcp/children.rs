//! Children: what the default policy allows, and what it does not.

use super::{SandboxMcpClient, mask, write_config};
use msb_e2e::{Msb, Process, eventually};
use serde_json::json;

/// The image that sandboxes have, as `status` tells it.
#[track_caller]
pub(super) fn image(mcp: &mut SandboxMcpClient) -> String {
    let status = mcp.says("status", json!({}));
    let line = status.lines().find_map(|line| line.strip_prefix("Image:"));
    // Why it is not the one that there should be may be told beside it.
    line.and_then(|line| line.split_whitespace().next()).expect("the image").to_owned()
}

fn spawned(name: &str, image: &str) -> String {
    format!(
        "Spawned child '{name}': mcp-sb-ID\n  Parent: default\n  Image: {image}\n  \
         Resources: 2 CPUs, 512MB\n  TTL: Ns remaining"
    )
}

#[test]
fn children_are_made_within_the_usual_policy() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        // Only a sandbox that there is has children.
        let said = mcp.says("spawn", json!({}));
        assert_eq!(said, "Error: ValueError: No active sandbox 'default'");
        let said = mcp.says("spawn", json!({"parent": "nope"}));
        assert!(said.starts_with("Error: "), "{said}");
        mcp.run("true");
        let none = "No active children for 'default' (0/10 lifetime spawns used)";
        assert_eq!(mcp.says("children", json!({})), none);
        let none = "No active children for 'zz' (no spawn policy configured)";
        assert_eq!(mcp.says("children", json!({"parent": "zz"})), none);
        let image = image(&mut mcp);
        let first = mcp.says("spawn", json!({}));
        assert_eq!(mask(&first), spawned("default-child-0000", &image));
        let left = first.rsplit_once("TTL: ").and_then(|(_, it)| it.split('s').next());
        let left: u32 = left.and_then(|it| it.parse().ok()).expect(&first);
        assert!((200..=300).contains(&left), "{first}");
        for (arguments, said) in [
            (
                json!({"name": "bad name!"}),
                "ValueError: Invalid child name: 'bad name!' (must match [A-Za-z0-9._-]+)",
            ),
            (
                json!({"image": "evil"}),
                "PermissionError: Image 'evil' not allowed for children of 'default'",
            ),
            (json!({"memory": "zz"}), "ValueError: Invalid memory string: 'zz'"),
            (json!({"memory": "32M"}), "ValueError: memory must be >= 64M"),
        ] {
            assert_eq!(mcp.says("spawn", arguments), format!("Error: {said}"));
        }
        // More than there is for each is cut down; nothing that failed was counted.
        let second = mcp.masked("spawn", json!({"cpus": 9, "memory": "9G"}));
        assert_eq!(second, spawned("default-child-0001", &image));
        let third = mcp.masked("spawn", json!({"name": "scout", "cpus": 1, "memory": "64mb"}));
        let expected = spawned("scout", &image).replace("2 CPUs, 512MB", "1 CPUs, 64MB");
        assert_eq!(third, expected);
        let said = mcp.says("spawn", json!({}));
        assert_eq!(said, "Error: SpawnLimitError: Concurrent child limit reached");
        let row = |name: &str, size: &str| {
            format!("  {name}: mcp-sb-ID ({size}, image={image}) TTL=Ns idle=Ns\n")
        };
        let expected = format!(
            "Children of 'default' (3 active):\n{}{}{}Lifetime spawns: 3/10",
            row("default-child-0000", "2 CPUs, 512MB"),
            row("default-child-0001", "2 CPUs, 512MB"),
            row("scout", "1 CPUs, 64MB"),
        );
        assert_eq!(mcp.masked("children", json!({})), expected);
        assert_eq!(msb.json(["children", "--json", "default"])["spawned"], 3);
        limits_hold(&msb, &mut mcp);
    }
}

/// What children may not do, and how they end.
fn limits_hold(msb: &Msb, mcp: &mut SandboxMcpClient) {
    assert_eq!(mcp.run_in("scout", "echo in; pwd"), "in\n/workspace");
    let child = json!({"sandbox": "scout"});
    for (tool, arguments, said) in [
        (
            "expose",
            json!({"port": 1, "host_port": 18433, "sandbox": "scout"}),
            "port forwarding not permitted on child sandboxes",
        ),
        (
            "reset",
            child.clone(),
            "reset not permitted on child sandboxes (use destroy_child instead)",
        ),
        ("destroy", child, "use destroy_child to destroy child sandboxes"),
        (
            "clone",
            json!({"source": "scout", "target": "q"}),
            "cloning from a child sandbox is not permitted",
        ),
        (
            "snapshot",
            json!({"snapshot_name": "z", "sandbox": "scout"}),
            "snapshots not permitted on child sandboxes",
        ),
        (
            "spawn",
            json!({"parent": "scout"}),
            "PermissionError: Sandbox 'scout' is not permitted to spawn children",
        ),
        (
            "destroy_child",
            json!({"name": "default"}),
            "'default' is not a child sandbox (use destroy instead)",
        ),
        ("destroy_child", json!({"name": "zz"}), "no active sandbox 'zz'"),
    ] {
        assert_eq!(mcp.says(tool, arguments), format!("Error: {said}"), "{tool}");
    }
    let said = mcp.says("restore", json!({"snapshot_name": "z", "sandbox": "scout"}));
    assert!(said.starts_with("Error: "), "{said}");
    let said = mcp.masked("destroy_child", json!({"name": "scout"}));
    assert_eq!(said, "Destroyed sandbox 'scout' (mcp-sb-ID)");
    // Those that are left end with a reset of their parent, which forgets no number.
    let processes: Vec<Process> =
        ["default-child-0000", "default-child-0001"].map(|it| msb.processes(it)).concat();
    assert!(!processes.is_empty());
    mcp.says("reset", json!({}));
    eventually("they are gone", || !processes.iter().any(Process::is_alive));
    assert_eq!(msb.words("ls -q").line(), "default");
    let none = "No active children for 'default' (3/10 lifetime spawns used)";
    assert_eq!(mcp.says("children", json!({})), none);
    // And with its end, by a server that was started later.
    assert!(mcp.says("spawn", json!({})).starts_with("Spawned child 'default-child-0003'"));
    *mcp = SandboxMcpClient::open(msb);
    let said = mcp.masked("children", json!({}));
    assert!(said.contains("(1 active)") && said.ends_with("Lifetime spawns: 4/10"), "{said}");
    mcp.says("destroy", json!({"sandbox": "default"}));
    assert_eq!(msb.words("ls -q").line(), "");
}

/// Ten in a life, of which a reset is a part.
#[test]
fn the_total_of_children_is_limited() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    mcp.run("true");
    for number in 0..10 {
        let said = mcp.says("spawn", json!({"name": "again", "memory": "64M", "cpus": 1}));
        assert!(said.starts_with("Spawned child 'again'"), "{number}: {said}");
        if number == 5 {
            mcp.says("reset", json!({}));
            continue;
        }
        mcp.says("destroy_child", json!({"name": "again"}));
    }
    let said = mcp.says("spawn", json!({}));
    assert!(said.starts_with("Error: SpawnLimitError: "), "{said}");
    assert_eq!(
        mcp.says("children", json!({})),
        "No active children for 'default' (10/10 lifetime spawns used)"
    );
}

/// Twenty at once get what there is.
#[test]
fn a_storm_of_spawns_gets_three() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    mcp.run("true");
    let spawn = || json!({"name": "spawn", "arguments": {"cpus": 1, "memory": "64M"}});
    let calls: Vec<u64> = (0..20).map(|_| mcp.client.begin("tools/call", spawn())).collect();
    let results = mcp.client.ends(&calls);
    let said: Vec<String> = results.iter().map(super::text_of).collect();
    let (made, not): (Vec<&String>, Vec<&String>) =
        said.iter().partition(|it| it.starts_with("Spawned child '"));
    assert_eq!(made.len(), 3, "{said:#?}");
    for refused in not {
        assert_eq!(refused, "Error: SpawnLimitError: Concurrent child limit reached");
    }
    assert_eq!(msb.words("ls -q").line().lines().count(), 4);
}

/// Policies of config.toml are for this dialect, too.
#[test]
fn a_policy_of_the_config_is_applied() {
    let msb = Msb::new();
    write_config(
        &msb,
        "[spawn.default]\nmax_concurrent = 1\nmax_total = 2\nchild_memory = '64M'\n",
    );
    let mut mcp = SandboxMcpClient::open(&msb);
    mcp.run("true");
    let said = mcp.says("spawn", json!({}));
    assert!(said.contains("64MB"), "{said}");
    let said = mcp.says("spawn", json!({}));
    assert_eq!(said, "Error: SpawnLimitError: Concurrent child limit reached");
    let said = mcp.says("children", json!({}));
    assert!(said.ends_with("Lifetime spawns: 1/2"), "{said}");
}
