//! Commands in a running sandbox.

use msb_e2e::{Msb, ends, eventually};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn an_exec_in_the_background_can_be_listed_watched_and_killed() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let id = msb.words("exec -d box -- sleep 1000").line();
        let listed = msb.json(["ps", "box", "--execs", "--json"]);
        assert_eq!(listed.as_array().unwrap().len(), 1);
        assert_eq!(listed[0]["id"].to_string(), id);
        assert_eq!(listed[0]["sandbox"], "box");
        assert_eq!(listed[0]["argv"], json!(["sleep", "1000"]));
        assert_eq!(listed[0]["exit"], json!(null));
        let before = msb.processes("box");
        assert_eq!(before.iter().filter(|one| one.name == "sleep").count(), 1, "{before:?}");
        msb.run(["kill", "box", &id]).ok();
        eventually("it ends", || msb.json(["ps", "box", "--execs", "--json"]) == json!([]));
        let ended = msb.json(["ps", "box", "--execs", "--all", "--json"]);
        assert_eq!(ended[0]["exit"]["signal"], 15);
        assert_eq!(msb.processes("box").iter().filter(|one| one.name == "sleep").count(), 0);
    }
}

#[test]
fn an_exec_in_the_background_outlives_its_caller_and_the_others_do_not() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let mut attended = msb.spawn(["exec", "box", "--", "sleep", "1111"]);
        msb.words("exec -d box -- sleep 2222").ok();
        let argv = || -> Vec<String> {
            let execs = msb.json(["ps", "box", "--execs", "--json"]);
            execs.as_array().unwrap().iter().map(|exec| exec["argv"][1].to_string()).collect()
        };
        eventually("both run", || argv().len() == 2);
        attended.kill().unwrap();
        attended.wait().unwrap();
        eventually("one is left", || argv() == ["\"2222\""]);
    }
}

#[test]
fn attach_shows_output_and_gives_the_exit_code() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "until [ -e /tmp/go ]; do echo tick; sleep 0.05; done; echo heard; exit 5";
        let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", script]).line();
        let mut attached = ["", "--no-stdin"].map(|flag| {
            let mut child = msb.spawn(["attach", "box", &id].into_iter().chain(flag.lines()));
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "tick");
            (child, lines)
        });
        msb.words("exec box -- touch /tmp/go").ok();
        for (child, lines) in &mut attached {
            assert_eq!(lines.last().unwrap().unwrap(), "heard");
            assert_eq!(child.wait().unwrap().code(), Some(5));
        }
    }
}

#[test]
fn attach_says_what_there_is_when_it_cannot_choose() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        assert_eq!(msb.words("attach box").code, 125);
        msb.words("exec -d box -- sleep 1000").ok();
        msb.words("exec -d box -- sleep 1000").ok();
        let gave = msb.words("attach box");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("msb ps box --execs"), "{gave:?}");
        assert_eq!(msb.words("attach box 99").code, 125);
    }
}

#[test]
fn kill_sends_the_signal_that_was_asked_for() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "trap 'echo usr1' USR1; trap 'echo hup' HUP; echo up; \
                      while :; do sleep 0.05; done";
        let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", script]).line();
        let logs = || msb.run(["logs", "box", "--source", "stdout"]).stdout;
        eventually("it is up", || logs() == "up\n");
        msb.run(["kill", "-s", "USR1", "box", &id]).ok();
        eventually("it heard", || logs() == "up\nusr1\n");
        msb.run(["kill", "-s", "SIGHUP", "box", &id]).ok();
        eventually("it heard again", || logs() == "up\nusr1\nhup\n");
        msb.run(["kill", "-s", "9", "box", &id]).ok();
        eventually("it is dead", || msb.json(["ps", "--execs", "--json"]) == json!([]));
        assert_eq!(msb.run(["kill", "-s", "NONSENSE", "box", &id]).code, 125);
        assert_eq!(msb.run(["kill", "box", &id]).code, 125, "it is over");
    }
}

#[test]
fn signals_of_the_caller_reach_the_command() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "trap 'echo term; exit 3' TERM; echo up; while :; do sleep 0.05; done";
        let child = msb.spawn(["exec", "box", "--", "sh", "-c", script]);
        eventually("it is up", || msb.run(["logs", "box"]).stdout == "up\n");
        msb_e2e::signal_pid(child.id(), "TERM");
        let gave = ends(child);
        assert_eq!((gave.code, gave.stdout.as_str()), (3, "up\nterm\n"));
    }
}

#[test]
fn options_of_exec_hold_for_that_command_only() {
    for msb in Msb::each() {
        msb.words("create -n box -e A=1 -e B=1 -w /srv").ok();
        let shell = "echo $A $B; pwd; ulimit -n";
        let special = "exec -e B=2 -w /tmp --rlimit nofile=123 box -- sh -c".split(' ');
        let gave = msb.run(special.chain([shell]));
        assert_eq!(gave.line(), "1 2\n/tmp\n123");
        let plain = msb.run(["exec", "box", "--", "sh", "-c", shell]).line();
        assert!(plain.starts_with("1 1\n/srv\n") && !plain.ends_with("\n123"), "{plain}");
    }
}

#[test]
fn a_workdir_that_is_missing_fails_clearly() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let gave = msb.words("exec -w /no/such box -- true");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("/no/such"), "{gave:?}");
    }
}

#[test]
fn commands_run_as_the_user_that_was_asked_for() {
    let msb = Msb::new();
    let root = msb.rootfs();
    let image = root.to_str().unwrap();
    let ids = "id -u; id -g; echo $HOME";
    let run = |user: &str| msb.run(["run", "-u", user, image, "--", "sh", "-c", ids]);
    if !msb.is_root() {
        return msb_e2e::skip("other users inside need root or newuidmap");
    }
    assert_eq!(run("root").line(), "0\n0\n/root");
    assert_eq!(run("web").line(), "33\n33\n/tmp");
    assert_eq!(run("33:0").line(), "33\n0\n/tmp");
    assert_eq!(run("1234").line().lines().next(), Some("1234"));
    let gave = run("nobody-here");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("`nobody-here`"), "{gave:?}");

    msb.run(["create", "-n", "box", "-u", "web", image]).ok();
    assert_eq!(msb.words("exec box -- id -u").line(), "33");
    assert_eq!(msb.words("exec -u root box -- id -u").line(), "0");
}

#[test]
fn a_timeout_kills_the_whole_command_and_says_so() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "trap '' TERM; sleep 1000 & sleep 1000";
        let gave = msb.run(["exec", "--timeout", "300ms", "box", "--", "sh", "-c", script]);
        assert_eq!(gave.code, 124);
        assert!(gave.stderr.contains("timeout"), "{gave:?}");
        let ended = msb.json(["ps", "box", "--execs", "-a", "--json"]);
        assert_eq!(ended[0]["exit"]["ending"], "timeout");
        eventually("nothing of it is left", || {
            !msb.processes("box").iter().any(|process| process.name == "sleep")
        });
        assert_eq!(msb.words("exec box -- echo works").line(), "works");
    }
}

#[test]
fn two_execs_see_each_other_and_one_file_system() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.run(["exec", "-d", "box", "--", "sh", "-c", "echo $$ > /tmp/pid; sleep 1000"]).ok();
        let look =
            "until [ -s /tmp/pid ]; do sleep 0.05; done; kill -0 $(cat /tmp/pid) && echo seen";
        assert_eq!(msb.run(["exec", "box", "--", "sh", "-c", look]).line(), "seen");
    }
}

/// A background process may write after its command has exited; one that never exits is not waited
/// for.
#[test]
fn output_of_background_processes_is_read_to_its_end() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let count = "(while kill -0 $$; do :; done; seq 20000; echo over) 2>&- & exit 3";
        let stays = "sleep 7300 & echo on";
        let floods = "yes & exit 4";
        for head in [&["exec", "box", "--"][..], &["run", "--isolation", "process", "--"]] {
            let gave = |script| msb.run(head.iter().copied().chain(["sh", "-c", script]));
            let counted = gave(count);
            assert_eq!((counted.code, counted.stdout.lines().count()), (3, 20001), "{head:?}");
            assert!(counted.stdout.ends_with("20000\nover\n"), "{head:?}");
            assert_eq!(gave(stays).line(), "on", "{head:?}");
            assert_eq!(gave(floods).code, 4, "{head:?}");
        }
        assert_eq!(msb.json(["ps", "box", "--execs", "--json"]), json!([]));
    }
}

#[test]
fn twenty_execs_at_once_keep_their_streams_separate() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let children: Vec<_> = (0..20)
            .map(|number| {
                let script = format!("for i in 1 2 3; do echo {number}; sleep 0.05; done");
                msb.spawn(["exec", "box", "--", "sh", "-c", &script])
            })
            .collect();
        for (number, child) in children.into_iter().enumerate() {
            assert_eq!(ends(child).ok().stdout, format!("{number}\n").repeat(3));
        }
    }
}

#[test]
fn a_thousand_execs_do_not_make_the_worker_grow() {
    for msb in Msb::each() {
        msb.run(["create", "-n", "box", msb.rootfs().to_str().unwrap()]).ok();
        let run = |count: usize| {
            for _ in 0..count {
                let mut command = msb.command(["exec", "--no-stdin", "box", "--", "true"]);
                let status = command.stdout(Stdio::null()).status().unwrap();
                assert!(status.success(), "{status}");
            }
        };
        let worker = msb.processes("box")[0].pid;
        // Anonymous memory: pages of the program come and go with the pressure on the host.
        let resident_kib = || {
            let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let descriptors = || fs::read_dir(format!("/proc/{worker}/fd")).map(Iterator::count);
        run(100);
        let resident_before = resident_kib();
        run(900);
        let resident_after = resident_kib();
        // Less than a hundred bytes for each Exec: nothing is kept of them.
        assert!(
            resident_after < resident_before + 100,
            "{resident_before} KiB, then {resident_after} KiB"
        );
        assert_eq!(msb.processes("box").len(), 2, "the worker and the guest");
        match descriptors() {
            // Some thirteen of its own; a leak would have left hundreds.
            Ok(_) => eventually("few are open", || descriptors().is_ok_and(|open| open < 30)),
            Err(error) => msb_e2e::skip(&format!("descriptors of the worker: {error}")),
        }
    }
}

#[test]
fn signals_ignored_by_the_caller_are_not_ignored_by_commands() {
    for msb in Msb::each() {
        let ignoring = |words: &str| {
            let script = format!("trap '' HUP INT QUIT USR1; exec \"$0\" {words}");
            let mut command = msb.user_command("/bin/sh");
            command.arg("-c").arg(script).arg(msb.binary());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let none = "SigIgn:\t0000000000000000";
        let look = "-- grep SigIgn /proc/self/status";
        assert_eq!(ends(ignoring(&format!("run {look}"))).line(), none);
        ends(ignoring("create -q -n box")).ok();
        assert_eq!(msb.words(&format!("exec box {look}")).line(), none);
        // What `nohup` is for.
        msb.words("exec box -- mkfifo /tmp/go").ok();
        let mut child = ignoring("exec box -- sh -c 'echo up; cat /tmp/go'");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        msb_e2e::signal_pid(child.id(), "HUP");
        msb.run(["exec", "box", "--", "sh", "-c", "echo on > /tmp/go"]).ok();
        assert_eq!(lines.next().unwrap().unwrap(), "on");
        assert_eq!(ends(child).code, 0);
    }
}
