//! The image's own init as PID 1.

use msb_e2e::{Msb, eventually};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;

fn users_and_one_id() -> Vec<Msb> {
    Msb::each().into_iter().chain(Msb::with_one_id()).collect()
}

#[track_caller]
fn create(msb: &Msb, init: &str, root: &std::path::Path) {
    let image = root.to_str().expect("a plain path");
    msb.run(["create", "-n", "box", "--init", init, image]).ok();
}

#[track_caller]
fn holds(msb: &Msb, path: &str, text: &str) {
    let read = || msb.run(["exec", "box", "--", "cat", path]).stdout;
    eventually(&format!("{path} holds {text:?}"), || read() == text);
}

#[test]
fn services_of_s6_are_started_restarted_and_stopped() {
    for msb in users_and_one_id() {
        create(&msb, "auto", &msb.s6_rootfs());
        holds(&msb, "/proc/1/comm", "s6-svscan\n");
        holds(&msb, "/begun", "begun\n");
        // s6 has it again once it is gone.
        let pid = "s6-svstat -o pid /etc/services/counted";
        msb.shell_in("box", &format!("kill $({pid})")).ok();
        holds(&msb, "/begun", "begun\nbegun\n");
        msb.words("stop box").ok();
        let log = msb.run(["logs", "box", "--system"]).ok().stdout;
        assert!(log.contains("polite runs"), "{log}");
        msb.words("start box").ok();
        // What it was told when it was stopped, and what began a third time.
        assert_eq!(msb.run(["exec", "box", "--", "cat", "/ended"]).line(), "polite");
        holds(&msb, "/begun", "begun\nbegun\nbegun\n");
    }
}

#[test]
fn commands_and_files_go_on_beside_an_init() {
    for msb in users_and_one_id() {
        create(&msb, "/init", &msb.s6_rootfs());
        assert_eq!(msb.shell_in("box", "exit 3").code, 3);
        let file = msb.file("here", "a file\n");
        msb.run(["cp", file.to_str().unwrap(), "box:/there"]).ok();
        assert_eq!(msb.run(["exec", "box", "--", "cat", "/there"]).line(), "a file");
        // An orphan is the init's, as everywhere.
        let script = "(sleep 100 & echo $! > /orphan); exit 0";
        msb.shell_in("box", script).ok();
        let parent = "grep PPid /proc/$(cat /orphan)/status";
        assert_eq!(msb.shell_in("box", parent).line(), "PPid:\t1");
        // A command's own number is the one inside.
        let mut child = msb.spawn(["exec", "box", "--", "sleep", "1234"]);
        eventually("it is listed", || {
            let listed = msb.json(["ps", "box", "--execs", "--json"]);
            listed.as_array().is_some_and(|execs| execs.len() == 1)
        });
        let listed = msb.json(["ps", "box", "--execs", "--json"]);
        let pid = listed[0]["pid"].as_u64().unwrap();
        let line = msb.shell_in("box", &format!("tr '\\0' ' ' < /proc/{pid}/cmdline")).stdout;
        assert!(line.contains("sleep 1234"), "{line} {listed}");
        child.kill().unwrap();
        child.wait().unwrap();
        let gave = msb.run(["exec", "box", "--tty", "--", "tty"]);
        assert!(gave.stdout.starts_with("/dev/pts/"), "{gave:?}");
    }
}

#[test]
fn an_init_is_paused_with_everything_that_it_runs() {
    for msb in users_and_one_id() {
        create(&msb, "auto", &msb.s6_rootfs());
        holds(&msb, "/begun", "begun\n");
        msb.words("pause box").ok();
        // Stopped by a signal, or frozen: the kernel shows that as waiting for a disk, or in its freezer.
        let stands = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let state = stat.rsplit_once(") ").unwrap().1.chars().next();
            let waits = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            matches!(state, Some('T' | 'D')) || waits.contains("freezer")
        };
        let inside: Vec<_> = msb.processes("box").into_iter().skip(2).collect();
        assert!(inside.iter().any(|process| process.name == "s6-svscan"), "{inside:?}");
        let going: Vec<_> = inside.iter().filter(|one| !stands(one.pid)).collect();
        assert!(going.is_empty(), "{going:?}");
        msb.words("resume box").ok();
        assert_eq!(msb.run(["exec", "box", "--", "echo", "on"]).line(), "on");
        msb.words("stop box").ok();
    }
}

/// The guest sees other PIDs than the processes inside do.
#[test]
fn beside_an_init_processes_of_a_check_end_with_it_and_no_others_do() {
    for msb in users_and_one_id() {
        let root = msb.s6_rootfs();
        // Sessions of others, by as many numbers as the guest may have for those of its checks.
        let script = "#!/bin/sh\nfor i in $(seq 60); do busybox setsid sleep 8888 & done\nwait\n";
        let service = root.join("etc/services/crowd");
        fs::create_dir_all(&service).unwrap();
        fs::write(service.join("run"), script).unwrap();
        let run = service.join("run");
        let status = std::process::Command::new("chmod").arg("755").arg(run).status();
        assert!(status.unwrap().success());
        msb.chown_tree(&root);
        let health = "sleep 7777 & echo checked >> /checked; exit 0";
        let words = ["create", "-n", "box", "--init", "auto", "--health", health];
        let rest = ["--health-interval", "100ms", root.to_str().unwrap()];
        msb.run(words.into_iter().chain(rest)).ok();
        let alive = |what: &str| {
            let count = format!("ps -o args | grep -c '^sleep {what}$'; true");
            msb.shell_in("box", &count).line()
        };
        eventually("the crowd is there", || alive("8888") == "60");
        eventually("it was looked at", || {
            let count = msb.shell_in("box", "cat /checked | wc -l").line();
            count.parse::<u32>().is_ok_and(|count| count > 10)
        });
        // One may be on its way.
        let left = alive("7777");
        assert!(left == "0" || left == "1", "{left}");
        assert_eq!(alive("8888"), "60");
    }
}

#[test]
fn busybox_reads_its_inittab_and_powers_off() {
    for msb in users_and_one_id() {
        create(&msb, "auto", &msb.busybox_init_rootfs());
        let log = || msb.run(["logs", "box", "--system"]).ok().stdout;
        eventually("the service runs", || log().contains("polite runs"));
        assert!(log().contains("inittab read"), "{}", log());
        // From outside, in the language that it understands as that.
        msb.words("stop box").ok();
        assert!(log().contains("poweroff"), "{}", log());
        msb.words("start box").ok();
        assert_eq!(msb.run(["exec", "box", "--", "cat", "/shut", "/ended"]).line(), "polite");
        // From inside.
        msb.run(["exec", "box", "--", "poweroff"]);
        let ended = msb.json(["wait", "box", "--json"]);
        assert_eq!(ended[0]["ending"], json!("own"), "{ended}");
        assert_eq!(ended[0]["exit"]["code"], json!(0), "{ended}");
    }
}

#[test]
fn a_sandbox_ends_with_its_init() {
    for msb in Msb::each() {
        let root = msb.services_rootfs("brief");
        let script = "#!/bin/sh\necho \"$0 $* $FROM $EXTRA $HOME\"\nsleep 1\nexit 7\n";
        fs::write(root.join("init"), script).unwrap();
        let status = std::process::Command::new("chmod").arg("755").arg(root.join("init")).status();
        assert!(status.unwrap().success());
        msb.chown_tree(&root);
        let conf = format!(
            "image = {root:?}\nenv = {{ FROM = \"box\" }}\n\
             init = {{ program = \"/init\", args = [\"a\", \"b c\"], env = {{ EXTRA = \"more\" }} }}\n"
        );
        msb.file("box.toml", conf);
        msb.words("create -n box --conf box.toml").ok();
        // `msb wait` ends with the exit code of the init.
        assert_eq!(msb.words("wait box").code, 7);
        let stopped = &msb.json(["inspect", "box"])["stopped"];
        assert_eq!(stopped["ending"], json!("own"), "{stopped}");
        assert_eq!(stopped["exit"]["code"], json!(7), "{stopped}");
        let log = msb.run(["logs", "box", "--system"]).line();
        assert_eq!(log, "/init a b c box more /root");
    }
}

#[test]
fn an_init_begins_after_what_is_put_into_the_sandbox() {
    for msb in Msb::each() {
        let root = msb.s6_rootfs();
        let create = ["create", "-n", "box", "--init", "auto", "--text"];
        let text = ["/etc/services/polite/run=#!/bin/sh\necho patched\nexec sleep 100\n"];
        msb.run(create.into_iter().chain(text).chain([root.to_str().unwrap()])).ok();
        let log = || msb.run(["logs", "box", "--system"]).ok().stdout;
        eventually("the patched service runs", || log().contains("patched"));
    }
}

#[test]
fn a_command_runs_beside_an_init_and_ends_the_sandbox() {
    for msb in Msb::each() {
        let root = msb.s6_rootfs();
        let script = "until grep s6-svscan /proc/1/comm; do sleep 0.1; done";
        let words = ["run", "--init", "auto", root.to_str().unwrap(), "--", "sh", "-c", script];
        assert_eq!(msb.run(words).line(), "s6-svscan");
    }
}

#[test]
fn an_init_that_cannot_be_is_an_error_and_leaves_nothing() {
    for msb in Msb::each() {
        let root = msb.services_rootfs("none");
        symlink("/bin/missing", root.join("dangling")).unwrap();
        symlink("usr/lib/systemd/systemd", root.join("fake")).unwrap();
        fs::create_dir_all(root.join("usr/lib/systemd")).unwrap();
        fs::copy("/bin/busybox", root.join("usr/lib/systemd/systemd")).unwrap();
        msb.chown_tree(&root);
        let image = root.to_str().unwrap();
        for (init, code, says) in [
            ("/dangling", 127, "init not found inside: `/dangling`"),
            ("/etc/passwd", 126, "the init cannot be executed: `/etc/passwd`"),
            ("/tmp", 126, "the init cannot be executed: `/tmp`"),
            ("/fake", 125, "systemd does not run on the `process` tier: `/fake`"),
            ("/usr/lib/systemd/systemd", 125, "systemd does not run on the `process` tier"),
            ("auto", 125, "systemd does not run on the `process` tier: `/usr/lib/systemd/systemd`"),
            ("init", 125, "not an init: `init`"),
        ] {
            let gave = msb.run(["create", "-n", "box", "--init", init, image]);
            assert_eq!(gave.code, code, "{init}: {gave:?}");
            assert!(gave.stderr.contains(says), "{init}: {gave:?}");
            // Where something is put into it first, too.
            let gave = msb.run(["create", "-n", "box", "--mkdir", "/x", "--init", init, image]);
            assert!(gave.stderr.contains(says), "{init}: {gave:?}");
            assert_eq!(msb.json(["ls", "--json"]), json!([]));
        }
        fs::remove_dir_all(root.join("usr/lib/systemd")).unwrap();
        let gave = msb.run(["create", "-n", "box", "--init", "auto", image]);
        assert_eq!(gave.code, 127, "{gave:?}");
        assert!(gave.stderr.contains("the image has no init"), "{gave:?}");
        assert!(gave.stderr.contains("hint: `--init PATH` names one"), "{gave:?}");
    }
}

#[test]
fn an_init_that_does_not_end_is_killed_after_its_grace() {
    for msb in Msb::each() {
        let root = msb.services_rootfs("stubborn");
        fs::write(root.join("init"), "#!/bin/sh\nwhile :; do sleep 1; done\n").unwrap();
        let status = std::process::Command::new("chmod").arg("755").arg(root.join("init")).status();
        assert!(status.unwrap().success());
        msb.chown_tree(&root);
        create(&msb, "auto", &root);
        let processes = msb.processes("box");
        msb.words("stop box --timeout 1s").ok();
        eventually("nothing is left", || processes.iter().all(|process| !process.is_alive()));
        let stopped = &msb.json(["inspect", "box"])["stopped"];
        assert_eq!(stopped["ending"], json!("stopped"), "{stopped}");
    }
}
