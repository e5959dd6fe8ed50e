//! The event log: what happened to a sandbox, by which caller, and that a change to it is found.

use msb_e2e::CmdOutput;
use msb_e2e::{Msb, eventually};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// It ended with this code.
fn code(gave: CmdOutput, code: i32) -> CmdOutput {
    assert_eq!(gave.code, code, "{}{}", gave.stdout, gave.stderr);
    gave
}

fn log(msb: &Msb, name: &str) -> PathBuf {
    msb.home().join("sandboxes").join(name).join("events.log")
}

fn events(msb: &Msb, line: &str) -> Vec<Value> {
    let gave = msb.words(line).ok();
    gave.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_command_is_recorded_with_its_caller_and_its_exit() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        code(msb.run(["exec", "box", "--", "sh", "-c", "exit 3"]), 3);
        code(msb.words("exec box -- nosuch"), 127);
        msb.words("exec --user nobody -t box -- true");
        let long = "x".repeat(100_000);
        msb.run(["exec", "box", "--", "true", &long]).ok();
        let all = events(&msb, "events box --execs --json");
        assert_eq!(all[0]["event"], "exec_started");
        assert_eq!(all[0]["argv"], serde_json::json!(["sh", "-c", "exit 3"]));
        assert_eq!(all[0]["by"], serde_json::json!({"surface": "cli"}));
        assert_eq!((&all[1]["event"], &all[1]["exec"]), (&"exec_ended".into(), &all[0]["exec"]));
        assert_eq!(all[1]["exit"]["code"], 3);
        assert!(all[1]["duration_ms"].is_u64());
        assert_eq!(
            (&all[2]["event"], &all[2]["reason"]),
            (&"exec_failed".into(), &"command_not_found".into())
        );
        let cut = all.iter().find(|event| event["cut"].is_u64()).unwrap();
        assert_eq!(cut["cut"], 100_000 - (4096 - 4));
        assert!(cut.to_string().len() < 5000);
        let text = msb.words("events box").ok().stdout;
        assert!(text.contains("began: cli, sh -c 'exit 3'"), "{text}");
        assert!(text.contains("ended: 3 after "), "{text}");
        // The first command as well, and what ran when everything ended.
        msb.words("run -d -n first -- sleep 1000").ok();
        msb.words("stop -f first").ok();
        let first = events(&msb, "events first --execs --json");
        assert_eq!(first[0]["by"]["surface"], "cli");
        assert_eq!(first[1]["exit"]["ending"], "stopped");
        msb.words("events verify").ok();
    }
}

#[test]
fn every_change_to_the_log_is_found() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for _ in 0..3 {
            msb.words("exec box -- true").ok();
        }
        let whole = msb.words("events verify box").line();
        assert_eq!(whole, "box  whole (8 events, 1 to 8)");
        let file = log(&msb, "box");
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let without = |left: &[usize]| -> String {
            let kept = lines.iter().enumerate().filter(|(at, _)| !left.contains(at));
            kept.map(|(_, line)| format!("{line}\n")).collect()
        };
        let swapped =
            text.replace(lines[3], "*").replace(lines[4], lines[3]).replace('*', lines[4]);
        for (changed, found) in [
            (text.replacen("cli", "sdk", 1), "event 3 was changed"),
            (without(&[3]), "event 4 is missing"),
            (without(&[3, 4]), "event 4 to 5 are missing"),
            (without(&[7]), "event 8 is missing"),
            (without(&[0]), "event 1 to 1 are missing"),
            (format!("{text}{}\n", lines[5]), "event 6 is out of order"),
            (swapped, "event 4 is missing"),
            (text[..text.len() - 20].to_owned(), "event 8 cannot be read"),
            (String::new(), "event 1 to 8 are missing"),
        ] {
            fs::write(&file, &changed).unwrap();
            let gave = code(msb.words("events verify"), 1);
            assert!(gave.stdout.contains(found), "{found}: {}", gave.stdout);
            assert!(gave.stderr.contains("not as they were written"), "{}", gave.stderr);
            let audit = code(msb.words("events verify --json"), 1);
            let audit: Value = serde_json::from_str(&audit.stdout).unwrap();
            assert!(audit[0]["damage"][0]["number"].is_u64(), "{audit}");
        }
        fs::write(&file, &text).unwrap();
        msb.words("events verify").ok();
    }
}

/// A stopped sandbox has only files, and `verify` reads them before any command repairs them.
#[test]
fn a_truncated_log_of_a_stopped_sandbox_is_found_before_and_after_a_repair() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.words("exec box -- true").ok();
        msb.words("stop box").ok();
        msb.words("events verify").ok();
        let file = log(&msb, "box");
        let head = file.with_file_name("events.head");
        let (text, end) = (fs::read_to_string(&file).unwrap(), fs::read(&head).unwrap());
        let first_three: String = text.split_inclusive('\n').take(3).collect();
        let plain: String = text
            .lines()
            .map(|line| format!("{}}}\n", line.split_once(",\"chain\":").unwrap().0))
            .collect();
        for (changed, kept, found) in [
            (Some(&first_three), false, "event 3 may not be the last"),
            (Some(&first_three), true, "event 4 to 5 are missing"),
            (None, false, "event 1 is missing, with all after it"),
            (None, true, "event 1 to 5 are missing"),
            (Some(&plain), true, "event 5 has no hash"),
        ] {
            let _ = fs::remove_file(&file);
            let _ = fs::remove_file(&head);
            if let Some(changed) = changed {
                fs::write(&file, changed).unwrap();
            }
            if kept {
                fs::write(&head, &end).unwrap();
            }
            let gave = code(msb.words("events verify"), 1);
            assert!(gave.stdout.contains(found), "{found}: {}", gave.stdout);
            // A repair appends to what is left, which does not hide the gap.
            msb.words("ls").ok();
            code(msb.words("events verify"), 1);
        }
    }
}

/// Of a log that was begun anew once, the older file has gone.
#[test]
fn a_missing_older_half_of_a_log_is_found() {
    let msb = Msb::new();
    msb.words("create -n box").ok();
    let long = "x".repeat(4000);
    let rotated = log(&msb, "box").with_file_name("events.log.1");
    let begun = "msb runs often enough to fill a log";
    let mut runs = 0;
    while !rotated.exists() {
        runs += 1;
        assert!(runs < 2000, "{begun}");
        msb.run(["exec", "box", "--", "true", &long]).ok();
    }
    msb.words("events verify").ok();
    fs::write(&rotated, "").unwrap();
    let gave = code(msb.words("events verify"), 1);
    assert!(gave.stdout.contains("event 1 to "), "{}", gave.stdout);
}

#[test]
fn the_chain_goes_on_when_the_worker_does_not() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let head = msb.words("events verify box --head").line();
        assert_eq!(head.split_whitespace().nth(1), Some("2"));
        msb.words("stop box").ok();
        msb.words("start box").ok();
        let started = events(&msb, "events box --json");
        let worker = started.iter().rev().find_map(|event| event["worker"].as_u64()).unwrap();
        msb_e2e::signal_pid(u32::try_from(worker).unwrap(), "KILL");
        eventually("it is noticed", || msb.words("ls").ok().stdout.contains("crashed"));
        let all = events(&msb, "events box --json");
        let numbers: Vec<u64> = all.iter().map(|it| it["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
        assert_eq!(all[all.len() - 2]["event"], "repaired");
        msb.words("events verify").ok();
        // A line that is removed while nothing runs does not come back with the next start.
        let file = log(&msb, "box");
        let text = fs::read_to_string(&file).unwrap();
        let kept = text.trim_end().rsplit_once('\n').unwrap().0;
        fs::write(&file, format!("{kept}\n")).unwrap();
        msb.words("start box").ok();
        let gave = code(msb.words("events verify box"), 1);
        assert!(
            gave.stdout.contains(&format!("event {} is missing", all.len())),
            "{}",
            gave.stdout
        );
    }
}

#[test]
fn a_log_without_a_chain_is_read_and_continued() {
    let msb = Msb::new();
    msb.words("create -n box").ok();
    msb.words("stop box").ok();
    let file = log(&msb, "box");
    let text = fs::read_to_string(&file).unwrap();
    let plain: String = text
        .lines()
        .map(|line| format!("{}}}\n", line.split(",\"chain\"").next().unwrap()))
        .collect();
    fs::write(&file, plain).unwrap();
    fs::remove_file(file.with_extension("head")).unwrap();
    let line = msb.words("events verify box").line();
    assert_eq!(line, "box  has no chain: an older msb wrote it (3 events, 1 to 3)");
    msb.words("start box").ok();
    let line = msb.words("events verify box").line();
    assert_eq!(line, "box  whole, the first 3 without a chain (4 events, 1 to 4)");
}

#[test]
fn events_of_all_sandboxes_are_shown_by_time_also_of_later_ones() {
    use std::io::{BufRead, BufReader};
    for msb in Msb::each() {
        msb.words("create -n one").ok();
        msb.words("create -n other").ok();
        msb.words("exec one -- true").ok();
        let all = events(&msb, "events --json");
        let times: Vec<&str> = all.iter().map(|it| it["time"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
        let of = |name: &str| all.iter().filter(|it| it["sandbox"] == name).count();
        assert_eq!((of("one"), of("other")), (4, 2));
        let mut child = msb.spawn(["events", "-f"]);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut until =
            |what: &str| drop(lines.find(|it| it.as_ref().unwrap().contains(what)).unwrap());
        until("one    exec 1 ended");
        msb.words("create -n later").ok();
        msb.words("exec later -- true").ok();
        until("later  exec 1 ended");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
