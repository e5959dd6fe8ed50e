//! The lifecycle of a sandbox: create, start, stop, drain, wait, rm.

use msb_e2e::{Msb, Process, ends, eventually};
use serde_json::json;

#[test]
fn a_sandbox_lives_as_the_readme_says() {
    for msb in Msb::each() {
        let create = "create --name box --cpus 1 --memory 256M -e A=1 -w /app --label team=x";
        assert_eq!(msb.words(create).line(), "box");
        let gave = msb.run(["exec", "box", "--", "sh", "-c", "echo $A; pwd; exit 7"]);
        assert_eq!((gave.code, gave.stdout.as_str()), (7, "1\n/app\n"));
        assert_eq!(msb.json(["ls", "--json"])[0]["labels"], json!({"team": "x"}));
        assert_eq!(msb.words("stop box").line(), "box");
        assert_eq!(msb.words("start box").line(), "box");
        assert_eq!(msb.words("rm -f box").line(), "box");
        assert_eq!(msb.words("ls -q").line(), "");
    }
}

#[test]
fn files_survive_stop_start_and_restart_while_processes_do_not() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let write = "echo kept > /root/a; chmod 640 /root/a; ln -s a /root/b; rm /etc/hosts";
        msb.run(["exec", "box", "--", "sh", "-c", write]).ok();
        msb.run(["exec", "-d", "box", "--", "sleep", "1000"]).ok();
        let before = msb.processes("box");
        for again in ["stop -t 100ms box", "start box", "restart -t 100ms box"] {
            msb.words(again).ok();
        }
        let look = "cat /root/b; stat -c %a /root/a; ls /etc/hosts 2>/dev/null; true";
        assert_eq!(msb.run(["exec", "box", "--", "sh", "-c", look]).line(), "kept\n640");
        assert_eq!(msb.json(["ps", "box", "--execs", "--json"]), json!([]));
        let alive: Vec<_> = before[1..].iter().filter(|one| one.is_alive()).collect();
        assert!(alive.is_empty(), "{alive:?}");
        eventually("its worker ends", || !before[0].is_alive());
    }
}

#[test]
fn memory_file_systems_start_empty_again() {
    for msb in Msb::each() {
        msb.words("create -n box --tmpfs /cache").ok();
        msb.run(["exec", "box", "--", "sh", "-c", "touch /cache/x /tmp/x /dev/shm/x"]).ok();
        msb.words("restart box").ok();
        let gave = msb.run(["exec", "box", "--", "find", "/cache", "/dev/shm", "-type", "f"]);
        assert_eq!(gave.line(), "");
    }
}

#[test]
fn stop_asks_first_and_kills_after_the_grace() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let polite = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done";
        let deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done";
        for (script, said) in [(polite, "up\nasked\n"), (deaf, "up\n")] {
            msb.words("start -q box").ok();
            let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", script]).line();
            let logs = || msb.run(["logs", "box", "--source", "stdout", "--exec", &id]).stdout;
            eventually("it is up", || logs() == "up\n");
            let before = msb.processes("box");
            msb.words("stop -t 1s box").ok();
            let alive: Vec<_> = before[1..].iter().filter(|one| one.is_alive()).collect();
            assert!(alive.is_empty(), "{alive:?}");
            eventually("its worker ends", || !before[0].is_alive());
            assert_eq!(logs(), said);
        }
    }
}

#[test]
fn stop_by_force_does_not_ask() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done";
        msb.run(["exec", "-d", "box", "--", "sh", "-c", script]).ok();
        eventually("it is up", || msb.run(["logs", "box"]).stdout == "up\n");
        msb.words("stop -f box").ok();
        assert_eq!(msb.run(["logs", "box"]).stdout, "up\n");
    }
}

#[test]
fn a_state_already_reached_is_a_note_and_no_error() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let gave = msb.words("start box").ok();
        assert_eq!(gave.stderr, "note: sandbox `box` runs already\n");
        msb.words("stop box").ok();
        let gave = msb.words("stop box").ok();
        assert_eq!(gave.stderr, "note: sandbox `box` was not running\n");
    }
}

#[test]
fn a_running_sandbox_is_removed_only_by_force() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let before = msb.processes("box");
        assert_eq!(msb.words("rm box").code, 125);
        assert!(before.iter().all(Process::is_alive), "{before:?}");
        msb.words("rm -f box").ok();
        let alive: Vec<_> = before[1..].iter().filter(|one| one.is_alive()).collect();
        assert!(alive.is_empty(), "{alive:?}");
        eventually("its worker ends", || !before[0].is_alive());
        assert!(!msb.home().join("sandboxes/box").exists());
    }
}

#[test]
fn a_stopped_sandbox_takes_no_command_and_says_how_to_start_it() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.words("stop box").ok();
        let gave = msb.words("exec box -- true");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("msb start box"), "{gave:?}");
    }
}

#[test]
fn drain_takes_no_new_command_and_ends_with_the_last() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let wait_for_file = "until [ -e /tmp/go ]; do sleep 0.05; done; echo over";
        let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", wait_for_file]).line();
        msb.words("drain box").ok();
        assert_eq!(msb.json(["inspect", "box"])["status"], "draining");
        assert_eq!(msb.words("exec box -- true").code, 125);
        let go = msb.file("go", "");
        msb.run(["cp", go.to_str().unwrap(), "box:/tmp/go"]).ok();
        let gave = msb.json(["wait", "box", "--json"]);
        assert_eq!(gave[0]["ending"], "drained");
        assert_eq!(msb.json(["inspect", "box"])["status"], "stopped");
        assert_eq!(msb.run(["logs", "box", "--exec", &id]).stdout, "over\n");
    }
}

#[test]
fn drain_of_an_idle_sandbox_ends_it() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.words("drain box").ok();
        assert_eq!(msb.json(["wait", "box", "--json"])[0]["ending"], "drained");
    }
}

#[test]
fn wait_gives_the_commands_exit_code_and_how_it_ended() {
    for msb in Msb::each() {
        msb.run(["run", "-d", "-n", "a", "--", "sh", "-c", "sleep 0.3; exit 8"]).ok();
        let gave = msb.words("wait a");
        assert_eq!((gave.code, gave.stdout.as_str()), (8, "a  8\n"));
        let again = msb.words("wait a --json");
        let told: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
        assert_eq!(again.code, 8);
        let exit = json!({"code": 8, "signal": null, "ending": "own", "reached": null});
        assert_eq!(
            told,
            json!([{"name": "a", "ending": "own", "reason": null, "exit": exit, "status": 8}])
        );
    }
}

#[test]
fn verbs_take_several_names_and_labels() {
    for msb in Msb::each() {
        for (name, team) in [("a1", "x"), ("a2", "x"), ("b1", "y")] {
            msb.words(&format!("create -n {name} -l team={team} -l all=1")).ok();
        }
        assert_eq!(msb.words("ls -q --label team=x").line(), "a1\na2");
        assert_eq!(msb.words("ls -q --label team=x --label all=2").line(), "");
        assert_eq!(msb.words("stop --label team=x").line(), "a1\na2");
        let status = |name: &str| msb.json(["inspect", name])["status"].clone();
        assert_eq!([status("a1"), status("a2"), status("b1")], ["stopped", "stopped", "running"]);
        assert_eq!(msb.words("start a1 a2").line(), "a1\na2");
        assert_eq!(msb.words("restart a2 b1").line(), "a2\nb1");
        assert_eq!(msb.json(["ps", "--label", "team=y", "--json"])[0]["name"], "b1");
        assert_eq!(msb.json(["metrics", "a1", "b1", "--json"]).as_array().unwrap().len(), 2);
        assert_eq!(msb.words("drain --label all=1").line(), "a1\na2\nb1");
        assert_eq!(msb.words("wait a1 a2 b1").code, 0);
        assert_eq!(msb.words("rm --label team=x").line(), "a1\na2");
        assert_eq!(msb.words("ls -q").line(), "b1");
    }
}

#[test]
fn one_bad_name_among_several_does_not_keep_the_others() {
    for msb in Msb::each() {
        msb.words("create -n a").ok();
        msb.words("create -n b").ok();
        let gave = msb.words("stop a nobody b");
        assert_eq!((gave.code, gave.stdout.as_str()), (125, "a\nb\n"));
        assert!(gave.stderr.contains("`nobody`"), "{gave:?}");
    }
}

#[test]
fn a_label_that_matches_nothing_touches_nothing() {
    for msb in Msb::each() {
        msb.words("create -n a -l team=x").ok();
        msb.words("rm -f --label team=z");
        assert_eq!(msb.words("ls -q").line(), "a");
    }
}

#[test]
fn a_name_is_taken_until_it_is_replaced() {
    for msb in Msb::each() {
        msb.words("create -n box -l version=1").ok();
        msb.run(["exec", "box", "--", "touch", "/first"]).ok();
        let gave = msb.words("create -n box -l version=2");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.starts_with("error: sandbox `box` already exists\n"), "{gave:?}");
        assert_eq!(msb.words("exec box -- ls /first").line(), "/first");
        let before = msb.processes("box");
        msb.words("create -n box -l version=2 --replace").ok();
        assert_eq!(msb.words("exec box -- ls /first").code, 2);
        assert_eq!(msb.json(["ls", "--json"])[0]["labels"], json!({"version": "2"}));
        let alive: Vec<_> = before[1..].iter().filter(|one| one.is_alive()).collect();
        assert!(alive.is_empty(), "{alive:?}");
        eventually("its worker ends", || !before[0].is_alive());
    }
}

#[test]
fn a_create_that_cannot_work_replaces_nothing() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.run(["exec", "box", "--", "touch", "/first"]).ok();
        assert_eq!(msb.words("create -n box --replace -v /no/such:/x").code, 125);
        assert_eq!(msb.words("exec box -- ls /first").line(), "/first");
    }
}

#[test]
fn of_two_creators_of_one_name_exactly_one_wins() {
    for msb in Msb::each() {
        for _ in 0..5 {
            let creators: Vec<_> = (0..4).map(|_| msb.spawn(["create", "-n", "one"])).collect();
            let gave: Vec<_> = creators.into_iter().map(ends).collect();
            let mut codes: Vec<i32> = gave.iter().map(|one| one.code).collect();
            codes.sort_unstable();
            assert_eq!(codes, [0, 125, 125, 125], "{gave:#?}");
            assert_eq!(msb.words("exec one -- echo works").line(), "works");
            msb.words("rm -f one").ok();
        }
    }
}

#[test]
fn a_bad_name_is_refused_before_anything_is_touched() {
    for msb in Msb::each() {
        let long = "a".repeat(129);
        let bad = ["", ".", "..", "../x", "a/b", "-x", ".x", "_x", "a b", "a\n", "ä", &long];
        for name in bad {
            for verb in ["create", "run"] {
                let gave = msb.run([verb, &format!("--name={name}")]);
                assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{name:?}");
            }
            for verb in ["start", "stop", "rm", "inspect", "wait", "drain", "restart"] {
                assert_eq!(msb.run([verb, "--", name]).code, 125, "{verb} {name:?}");
            }
        }
        assert!(!msb.home().join("sandboxes").exists(), "something was made");
    }
}

#[test]
fn the_longest_name_works_everywhere() {
    for msb in Msb::each() {
        let name = format!("A.b_c-{}", "9".repeat(122));
        msb.run(["create", "-n", &name, "--memory", "64M"]).ok();
        assert_eq!(msb.run(["exec", &name, "--", "echo", "works"]).line(), "works");
        msb.run(["restart", &name]).ok();
        assert_eq!(msb.run(["ls", "-q"]).line(), name);
        msb.run(["rm", "-f", &name]).ok();
    }
}

#[test]
fn the_same_name_in_two_homes_is_two_sandboxes() {
    let (one, other) = (Msb::new(), Msb::new());
    one.words("create -n same --memory 64M --pids 50").ok();
    other.words("create -n same --memory 128M --pids 60").ok();
    assert_eq!(one.json(["metrics", "same", "--json"])[0]["pids_limit"], 50);
    one.words("rm -f same").ok();
    assert_eq!(other.words("exec same -- echo works").line(), "works");
    assert_eq!(other.json(["metrics", "same", "--json"])[0]["pids"], 1);
}

#[test]
fn listings_without_json_are_tables_with_headings() {
    for msb in Msb::each() {
        msb.words("create -n box -l team=x").ok();
        let headings = |line: &str| {
            let gave = msb.words(line).ok();
            gave.stdout.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(headings("ls"), "NAME STATUS IMAGE ISOLATION PORTS AGE LABELS");
        assert_eq!(headings("ps"), "NAME STATUS EXECS MEMORY PIDS AGE");
        assert_eq!(headings("ps --execs"), "SANDBOX ID PID STATUS AGE COMMAND");
        assert_eq!(
            headings("metrics"),
            "NAME CPU CPU TIME MEMORY INSIDE LIMIT PIDS DISK NET IN NET OUT UP"
        );
    }
}

#[test]
fn metrics_tell_what_is_used() {
    for msb in Msb::each() {
        msb.words("create -n box --memory 512M").ok();
        let before = msb.json(["metrics", "box", "--json"])[0].clone();
        let script = "import time; x = bytearray(100 << 20)
begun = time.process_time()
while time.process_time() - begun < 0.5: pass
open('/big', 'wb').write(bytes(20 << 20)); print('up', flush=True); time.sleep(1000)";
        msb.run(["exec", "-d", "box", "--", "python3", "-c", script]).ok();
        eventually("it is up", || msb.run(["logs", "box"]).stdout == "up\n");
        let after = msb.json(["metrics", "box", "--json"])[0].clone();
        let grew = |what: &str| after[what].as_u64().unwrap() - before[what].as_u64().unwrap();
        assert!(grew("memory") >= 100 << 20, "{before} {after}");
        assert!(grew("cpu_us") >= 500_000, "{before} {after}");
        assert!(grew("disk") >= 20 << 20, "{before} {after}");
        assert_eq!(grew("pids"), 1, "{before} {after}");
        assert_eq!(after["memory_limit"], 512 << 20);
    }
}

#[test]
fn a_watch_of_metrics_goes_on_until_it_is_ended() {
    use std::io::{BufRead, BufReader};
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let mut child = msb.spawn(["metrics", "-w", "--interval", "100ms", "box"]);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let of_box = lines.map(Result::unwrap).filter(|line| line.contains("box"));
        assert_eq!(of_box.take(3).count(), 3);
        child.kill().unwrap();
        child.wait().unwrap();
        for refused in ["metrics -w --interval 99ms box", "metrics --interval 1s box"] {
            assert_ne!(msb.words(refused).code, 0, "{refused}");
        }
    }
}

#[test]
fn a_listing_tells_how_a_sandbox_ended() {
    for msb in Msb::each() {
        msb.words("run -n good -- true").ok();
        msb.run(["run", "-n", "failed", "--", "sh", "-c", "exit 3"]);
        msb.run(["run", "-n", "late", "--timeout", "100ms", "--", "sleep", "1000"]);
        msb.words("create -n halted").ok();
        msb.words("stop -f halted").ok();
        let rows = msb.json(["ls", "--json"]);
        let row = |name: &str| {
            let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
            (row["status"].clone(), row["exit_code"].clone(), row["reason"].clone())
        };
        let stopped = || json!("stopped");
        assert_eq!(row("good"), (stopped(), json!(0), json!(null)));
        assert_eq!(row("failed"), (stopped(), json!(3), json!(null)));
        assert_eq!(row("halted"), (stopped(), json!(null), json!("it was stopped")));
        assert_eq!(row("late").2, "its timeout passed");
        let table = msb.words("ls").ok().stdout;
        let status = |name: &str| {
            let line = table.lines().find(|line| line.starts_with(name)).unwrap();
            line.split("  ").filter(|cell| !cell.is_empty()).nth(1).unwrap().trim().to_owned()
        };
        assert_eq!(status("good"), "stopped, exit 0");
        assert_eq!(status("failed"), "stopped, exit 3");
        assert_eq!(status("halted"), "stopped");
        assert!(status("late").ends_with(", its timeout passed"), "{table}");
    }
}

#[test]
fn json_has_what_the_tables_have_and_times_are_texts() {
    for msb in Msb::each() {
        msb.words("create -n box --label team=x").ok();
        let id = msb.words("exec -d box -- sleep 1000").line();
        let row = msb.json(["ps", "--json"])[0].clone();
        assert_eq!((&row["name"], &row["status"]), (&json!("box"), &json!("running")));
        assert_eq!((&row["execs"], &row["labels"]), (&json!(1), &json!({"team": "x"})));
        assert!(row["memory"].is_u64() && row["pids"].is_u64(), "{row}");
        let is_time = |value: &serde_json::Value| {
            value.as_str().is_some_and(|text| text.len() == 24 && text.ends_with('Z'))
        };
        assert!(is_time(&row["created"]), "{row}");
        let listed = msb.json(["ls", "--json"])[0].clone();
        for (key, value) in listed.as_object().unwrap() {
            assert_eq!(&row[key], value, "{key}");
        }
        let exec = msb.json(["ps", "--execs", "--json"])[0].clone();
        assert!(
            exec["id"].as_u64().map(|it| it.to_string()).as_deref() == Some(&id[..])
                && is_time(&exec["started"]),
            "{exec}"
        );
        let inspected = msb.json(["inspect", "box"]);
        assert!(is_time(&inspected["plan"]["created"]), "{inspected}");
        assert!(is_time(&inspected["worker"]["started"]), "{inspected}");
        msb.words("snapshot create base --from box").ok();
        msb.words("volume create data").ok();
        for list in ["snapshot", "volume"] {
            let listed = msb.json([list, "ls", "--json"]);
            assert!(is_time(&listed[0]["created"]), "{listed}");
        }
        msb.words("stop -f box").ok();
        let row = msb.json(["ps", "box", "--json"])[0].clone();
        assert_eq!((&row["status"], &row["memory"]), (&json!("stopped"), &json!(null)));
    }
}
