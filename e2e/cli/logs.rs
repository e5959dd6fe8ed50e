//! `msb logs`: output of commands, bounded, kept until the sandbox is removed.

use msb_e2e::{Msb, ends, eventually};
use serde_json::Value;
use std::io::{BufRead, BufReader};

#[test]
fn logs_survive_stop_and_start_until_rm() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.words("exec box -- echo first").ok();
        msb.words("stop box").ok();
        assert_eq!(msb.words("logs box").stdout, "first\n");
        msb.words("start box").ok();
        msb.words("exec box -- echo second").ok();
        assert_eq!(msb.words("logs box").stdout, "first\nsecond\n");
        msb.words("rm -f box").ok();
        assert_eq!(msb.words("logs box").code, 125);
    }
}

#[test]
fn flags_choose_lines() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "echo apple; echo pear >&2; sleep 0.05; echo apple pie; printf 'no end'";
        msb.run(["exec", "box", "--", "sh", "-c", script]).ok();
        msb.words("exec box -- echo other").ok();
        let logs = |flags: &str| msb.words(&format!("logs box {flags}")).ok().stdout;
        assert_eq!(logs("--source stderr"), "pear\n");
        assert_eq!(logs("--source stdout --grep apple"), "apple\napple pie\n");
        assert_eq!(logs("--grep apple --tail 1"), "apple pie\n");
        assert_eq!(logs("--tail 1"), "other\n");
        assert_eq!(logs("--tail 0"), "");
        assert_eq!(logs("--exec 2"), "other\n");
        assert_eq!(logs("--exec 99"), "");
        assert_eq!(logs("--since 1h --exec 2"), "other\n");
        assert_eq!(logs("--until 1h"), "");
        assert_eq!(logs("--since 2999-01-01T00:00:00Z"), "");
        assert_eq!(logs("--until 2999-01-01T00:00:00Z --exec 2"), "other\n");
        for bad in ["--source nothing", "--since yesterday-ish", "--tail x"] {
            assert_eq!(msb.words(&format!("logs box {bad}")).code, 125, "{bad}");
        }
    }
}

#[test]
fn since_and_until_cut_between_two_moments() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for word in ["one", "two", "three"] {
            msb.run(["exec", "box", "--", "echo", word]).ok();
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        let all = msb.words("logs box --json").ok().stdout;
        let times: Vec<String> = all
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["time"].as_str().unwrap().into()
            })
            .collect();
        assert_eq!(msb.run(["logs", "box", "--since", &times[1]]).stdout, "two\nthree\n");
        assert_eq!(msb.run(["logs", "box", "--until", &times[1]]).stdout, "one\ntwo\n");
    }
}

#[test]
fn each_line_can_be_had_with_its_time_and_source() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo out; echo err >&2"]).ok();
        let gave = msb.words("logs box --json").ok().stdout;
        let mut lines: Vec<Value> =
            gave.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.sort_by_key(|line| line["text"].to_string());
        let told: Vec<String> = lines
            .iter()
            .map(|line| format!("{} {} {}", line["exec"], line["source"], line["text"]))
            .collect();
        assert_eq!(told, ["1 \"stderr\" \"err\"", "1 \"stdout\" \"out\""]);
        let stamped = msb.words("logs box -t --source stdout").line();
        let time = lines[1]["time"].as_str().unwrap();
        assert_eq!(stamped, format!("{time} out"));
    }
}

#[test]
fn binary_output_is_logged_as_it_was() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "import sys; sys.stdout.buffer.write(bytes(range(256)))";
        msb.run(["exec", "box", "--", "python3", "-c", script]).ok();
        let output = msb.command(["logs", "box"]).output().unwrap();
        assert_eq!(output.stdout, (0..=255).collect::<Vec<u8>>());
    }
}

#[test]
fn follow_goes_on_until_the_sandbox_ends() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.words("exec box -- echo before").ok();
        let mut child = msb.spawn(["logs", "-f", "box"]);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "before");
        msb.words("exec box -- echo during").ok();
        assert_eq!(lines.next().unwrap().unwrap(), "during");
        msb.words("stop box").ok();
        assert!(lines.next().is_none());
        ends(child).ok();
    }
}

#[test]
fn a_detached_command_is_logged_after_its_caller_has_left() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", "sleep 0.3; echo late"]).line();
        eventually("it has spoken", || msb.run(["logs", "box", "--exec", &id]).stdout == "late\n");
    }
}

#[test]
fn logs_are_bounded_and_keep_the_end() {
    const WRITTEN: u64 = 100 << 20;
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "yes 0123456789abcde | head -c 104857600; echo the end";
        let mut command = msb.command(["exec", "box", "--", "sh", "-c", script]);
        command.stdout(std::process::Stdio::null());
        assert!(command.status().unwrap().success());
        let kept: u64 = std::fs::read_dir(msb.home().join("sandboxes/box"))
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap())
            .filter(std::fs::Metadata::is_file)
            .map(|meta| meta.len())
            .sum();
        assert!(kept < WRITTEN / 2, "{kept} bytes are kept");
        assert_eq!(msb.words("logs box --tail 2").stdout, "0123456789abcde\nthe end\n");
    }
}

#[test]
fn numbers_of_execs_go_on_after_a_restart() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for word in ["a", "b"] {
            msb.run(["exec", "box", "--", "echo", word]).ok();
            msb.words("restart box").ok();
        }
        let ids = msb.json(["ps", "box", "--execs", "--all", "--json"]);
        let ids: Vec<u64> =
            ids.as_array().unwrap().iter().map(|exec| exec["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, [1, 2], "an id is never used twice");
        assert_eq!(msb.words("logs box --exec 2").stdout, "b\n");
    }
}

#[test]
fn a_log_that_could_not_be_written_is_told_as_incomplete() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        // The worker may write in the directory of its sandbox and nowhere else.
        let log = msb.home().join("sandboxes/box/output.log");
        std::os::unix::fs::symlink("/dev/null", &log).unwrap();
        assert_eq!(msb.words("exec box -- echo lost").line(), "lost");
        if msb.json(["inspect", "box"])["worker"]["log_failure"].is_null() {
            return msb_e2e::skip("this kernel has no Landlock");
        }
        let gave = msb.words("logs box").ok();
        assert!(gave.stderr.starts_with("note: the log is incomplete"), "{gave:#?}");
        assert_eq!(gave.stdout, "");
        msb.words("create -n fine").ok();
        assert_eq!(msb.words("logs fine").ok().stderr, "");
    }
}
