//! `msb modify` and `msb rename`: limits, labels, timeouts and the name of a sandbox.

use msb_e2e::{Msb, eventually};
use serde_json::{Value, json};
use std::fs;

fn holds<'a>(changed: &'a Value, what: &str) -> &'a Value {
    let list = changed.as_array().expect("a list");
    let found = list.iter().find(|one| one["what"] == what);
    found.map_or(&Value::Null, |one| &one["holds"])
}

/// What the kernel holds a sandbox of root to, in bytes; none without a cgroup of v1.
fn memory_limit(msb: &Msb) -> Option<u64> {
    let limits = &msb.json(["inspect", "box"])["plan"]["limits"];
    let root = limits["cgroup"]["controllers"]["memory"].as_str()?;
    let owner = limits["cgroup_owner"].as_str()?;
    let file = format!("{root}/msb-{owner}-box/memory.limit_in_bytes");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[test]
fn limits_and_labels_change_at_once_where_they_can() {
    for msb in Msb::each() {
        msb.words("create -q -n box --memory 256M --label a=1 --label b=2 host").ok();
        let words = "modify box --memory 512M --pids 99 --label c=3 --label-rm a --env X=y";
        let dry = msb.json(format!("{words} --dry-run --json").split_whitespace());
        let before = msb.json(["inspect", "box"]);
        assert_eq!(before["plan"]["labels"], json!({"a": "1", "b": "2"}), "nothing has changed");
        let changed = msb.json(format!("{words} --json").split_whitespace());
        assert_eq!(changed, dry);
        assert_eq!(holds(&changed, "label c"), "now");
        assert_eq!(holds(&changed, "env X"), "now");
        let after = msb.json(["inspect", "box"]);
        assert_eq!(after["plan"]["labels"], json!({"b": "2", "c": "3"}));
        assert_eq!(after["plan"]["limits"]["memory"]["value"], json!((512u64 << 20).to_string()));
        if let Some(limit) = memory_limit(&msb) {
            assert_eq!((limit, holds(&changed, "memory")), (512 << 20, &json!("now")));
        }
        assert_eq!(msb.run(["exec", "box", "--", "sh", "-c", "echo $X"]).line(), "y");
        // It is still so after the next start.
        msb.words("restart -t 0s box").ok();
        assert_eq!(msb.run(["exec", "box", "--", "sh", "-c", "echo $X"]).line(), "y");
        let said = msb.words("modify box --memory 512M");
        assert!(said.stderr.contains("is so already"), "{said:#?}");
        let gave = msb.words("modify box");
        assert!(gave.code != 0 && gave.stderr.contains("nothing to change"), "{gave:#?}");
    }
}

#[test]
fn memory_below_what_is_used_is_refused_or_reclaimed_and_never_half() {
    let msb = Msb::new();
    msb.words("create -q -n box --memory 512M host").ok();
    if memory_limit(&msb).is_none() {
        return msb_e2e::skip("there is no cgroup v1");
    }
    let hold = "x=$(head -c 60000000 /dev/zero | tr '\\0' x); echo held; sleep 1000";
    msb.run(["exec", "-d", "box", "--", "sh", "-c", hold]).ok();
    eventually("it holds memory", || msb.words("logs box").stdout == "held\n");
    let gave = msb.words("modify box --memory 16M --label x=y");
    assert!(gave.stderr.contains("uses more memory than the new limit"), "{gave:#?}");
    assert_eq!(memory_limit(&msb), Some(512 << 20));
    assert_eq!(msb.json(["inspect", "box"])["plan"]["labels"], json!({}));
}

#[test]
fn clocks_change_while_it_runs_and_while_it_does_not() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        msb.words("stop -f box").ok();
        let changed = msb.json(["modify", "box", "--max-duration", "1h", "--json"]);
        assert_eq!(holds(&changed, "max-duration"), "next_start");
        assert_eq!(msb.json(["ls", "--json"])[0]["status"], "stopped");
        msb.words("start box").ok();
        assert!(msb.json(["inspect", "box"])["worker"]["ends"].is_string());
        let changed = msb.json(["modify", "box", "--max-duration", "0", "--json"]);
        assert_eq!(holds(&changed, "max-duration"), "now");
        assert!(msb.json(["inspect", "box"])["worker"]["ends"].is_null());
        msb.words("modify box --idle-timeout 500ms").ok();
        assert_eq!(msb.json(["wait", "box", "--json"])[0]["ending"], "idle");
    }
}

#[test]
fn what_a_host_cannot_give_changes_nothing() {
    let msb = Msb::new();
    msb.words("create -q -n box host").ok();
    for (words, why) in [
        ("modify box --restart always", "no command to restart"),
        ("modify box --pids 0", "at least one process"),
        ("modify box --label a=1 --label-rm a", "both set and removed"),
        ("modify nobody --label a=1", "no sandbox `nobody`"),
    ] {
        let gave = msb.words(words);
        assert!(gave.code != 0 && gave.stderr.contains(why), "{words}: {gave:#?}");
    }
}

#[test]
fn a_rename_keeps_everything_else() {
    for msb in Msb::each() {
        msb.words("create -q -n box --label a=1 host").ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo kept > /root/a"]).ok();
        let gave = msb.words("rename box other");
        assert!(gave.stderr.contains("msb stop box"), "{gave:#?}");
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box").ok();
        msb.words("create -q -n taken host").ok();
        let gave = msb.words("rename box taken");
        assert!(gave.stderr.contains("already exists"), "{gave:#?}");
        assert_eq!(msb.words("rename box other").line(), "other");
        let gave = msb.words("start box");
        assert!(gave.stderr.contains("no sandbox `box`"), "{gave:#?}");
        msb.words("start other").ok();
        let look = "cat /root/a; hostname; echo $MSB_SANDBOX";
        let gave = msb.run(["exec", "other", "--", "sh", "-c", look]);
        assert!(gave.stdout.starts_with("kept\nother\n"), "{gave:#?}");
        msb.words("stop -f other").ok();
        assert_eq!(msb.words("restore --stopped base --name again").line(), "again");
        msb.words("start other").ok();
        msb.words("stop -f other").ok();
        msb.words("rollback other base").ok();
        msb.words("rm -f other again taken").ok();
    }
}

#[test]
fn a_start_waits_for_the_holder_of_the_lock() {
    let msb = Msb::new();
    msb.words("create -q -n box host").ok();
    msb.words("stop -f box").ok();
    std::thread::scope(|scope| {
        let changes: Vec<_> = (0..6)
            .map(|n| {
                let msb = &msb;
                scope.spawn(move || msb.words(&format!("modify box --label l{n}=x")))
            })
            .collect();
        for _ in 0..4 {
            let gave = msb.words("start box");
            assert_eq!((gave.code, gave.stdout.as_str()), (0, "box\n"), "{gave:#?}");
            msb.words("stop -f box").ok();
        }
        for change in changes {
            change.join().expect("no panic").ok();
        }
    });
    let labels = msb.json(["inspect", "box"])["plan"]["labels"].clone();
    assert_eq!(labels.as_object().map(serde_json::Map::len), Some(6), "{labels}");
}

#[test]
fn variables_that_break_every_command_are_refused() {
    let msb = Msb::new();
    msb.words("create -q -n box host").ok();
    for n in 0..15 {
        let gave = msb.run(["modify", "box", "--env", &format!("V{n}={}", "x".repeat(100_000))]);
        let fits = n < 10;
        assert_eq!(gave.code == 0, fits, "{n}: {}", gave.stderr);
        assert_eq!(gave.stderr.contains("1 MiB is the most"), !fits);
    }
    msb.words("exec box -- true").ok();
}

#[test]
fn a_restart_that_is_not_wanted_any_more_does_not_happen() {
    for msb in Msb::each() {
        msb.run(["create", "-q", "-n", "box", "--restart", "always", "host", "--", "false"]).ok();
        let restarts = || msb.json(["inspect", "box"])["worker"]["restarts"].as_u64();
        // The next one is more than a second away.
        eventually("it was begun again", || restarts() >= Some(4));
        msb.words("modify box --restart no").ok();
        let before = msb.words("events box --json").ok().stdout.matches("\"restarted\"").count();
        assert_eq!(msb.words("wait box").code, 1);
        let after = msb.words("events box --json").ok().stdout.matches("\"restarted\"").count();
        assert_eq!(before, after);
    }
}

#[test]
fn a_rename_killed_between_its_steps_leaves_one_of_the_two_names() {
    let msb = Msb::new();
    msb.words("create -q -n box host").ok();
    msb.words("stop -f box").ok();
    let at = |name: &str| msb.home().join("sandboxes").join(name);
    // As it is when the directory has its new name and the Plan has not.
    let before = fs::read_to_string(at("box").join("plan.json")).unwrap();
    msb.words("rename box other").ok();
    let after = fs::read_to_string(at("other").join("plan.json")).unwrap();
    fs::write(at("other").join("plan.renamed"), &after).unwrap();
    fs::write(at("other").join("plan.json"), &before).unwrap();
    assert_eq!(msb.json(["inspect", "other"])["name"], "other");
    msb.words("start other").ok();
    assert_eq!(fs::read_to_string(at("other").join("plan.json")).unwrap(), after);
    assert!(!at("other").join("plan.renamed").exists());
    let said = msb.words("events other --json").ok().stdout;
    assert_eq!(said.matches("\"renamed\"").count(), 2, "one by the rename, one by its completion");
    msb.words("stop -f other").ok();
    // As it is when nothing has happened yet.
    fs::write(at("other").join("plan.renamed"), &before).unwrap();
    msb.words("start other").ok();
    assert!(!at("other").join("plan.renamed").exists());
}
