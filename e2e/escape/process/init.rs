//! Attacks where PID 1 is the image's own: the guest is beside it, and may be no nearer.

use msb_e2e::{Msb, Process, eventually};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

fn each() -> Vec<Msb> {
    Msb::each().into_iter().chain(Msb::with_one_id()).collect()
}

/// A root filesystem with this script as init.
fn root(msb: &Msb, script: &str) -> PathBuf {
    let root = msb.services_rootfs("hostile");
    let init = root.join("init");
    fs::write(&init, format!("#!/bin/sh\n{script}\n")).expect("a file");
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).expect("its mode");
    msb.chown_tree(&root);
    root
}

#[track_caller]
fn create(msb: &Msb, flags: &[&str], script: &str) {
    let root = root(msb, script);
    let words = ["create", "-n", "web", "--init", "/init"];
    msb.run([&words[..], flags, &[root.to_str().expect("a plain path")]].concat()).ok();
}

const FOREVER: &str = "while :; do sleep 100; done";

/// Attack 17: processes inside have no PID for the guest, so they cannot trace, read or kill it.
#[test]
fn the_guest_is_not_to_be_found_beside_an_init() {
    for msb in each() {
        msb.program("memory", include_str!("../programs/memory.c"));
        create(&msb, &[], FOREVER);
        let names = msb.shell_in("web", "cat /proc/[0-9]*/comm").stdout;
        assert!(!names.contains("msb"), "{names}");
        let parents = msb.shell_in("web", "grep PPid /proc/1/status /proc/self/status").line();
        assert_eq!(parents.matches("PPid:\t0").count(), 2, "{parents}");
        // Everything that can be named, but for the init and the attack itself.
        let outside: Vec<String> =
            msb.processes("web").iter().take(2).map(|one| one.pid.to_string()).collect();
        let attack = format!("memory {}", outside.join(" "));
        let gave = msb.shell_in("web", &attack).ok();
        assert!(!gave.stdout.contains("done"), "{gave:#?}");
    }
}

/// Attack 20: what it can kill it may kill, and the guest goes on.
#[test]
fn killing_everything_beside_an_init_leaves_the_guest() {
    for msb in each() {
        create(&msb, &[], FOREVER);
        msb.shell_in("web", "kill -9 -1; for pid in $(seq 1 64); do kill -9 $pid; done");
        assert_eq!(msb.run(["exec", "web", "--", "echo", "on"]).line(), "on");
        // From PID 1 itself, too.
        msb.words("rm -f web").ok();
        fs::remove_dir_all(msb.scratch().join("hostile")).unwrap();
        create(&msb, &[], "kill -9 -1; while :; do sleep 0.1; kill -9 -1; done");
        eventually("a command gets through", || {
            msb.run(["exec", "web", "--", "echo", "on"]).stdout == "on\n"
        });
        msb.words("rm -f web").ok();
    }
}

/// Attacks 1 to 22 are tried by commands; an init has what they have.
#[test]
fn an_init_has_exactly_what_a_command_has() {
    for msb in each() {
        for profile in ["default", "restricted"] {
            create(&msb, &["--security", profile], FOREVER);
            let look = "grep -E 'Cap|NoNewPrivs|Seccomp|Uid|Gid|Groups' /proc/PID/status; \
                        for ns in /proc/PID/ns/*; do readlink $ns; done; \
                        readlink /proc/PID/root; cat /proc/PID/limits /proc/PID/cgroup";
            let of = |pid: &str| msb.shell_in("web", &look.replace("PID", pid)).ok().stdout;
            assert_eq!(of("1"), of("$$"), "{profile}");
            assert!(of("1").contains("Seccomp:\t2"), "{}", of("1"));
            let open = msb.shell_in("web", "ls /proc/1/fd | tr '\\n' ' '").line();
            // A shell that reads a script has that open, too.
            assert!(open == "0 1 10 2 " || open == "0 1 2 ", "{open}");
            msb.words("rm -f web").ok();
            fs::remove_dir_all(msb.scratch().join("hostile")).unwrap();
        }
    }
}

/// Attack 24: an init that ignores all signals ends with its worker.
#[test]
fn an_init_does_not_outlive_its_worker() {
    for msb in each() {
        create(&msb, &[], "trap '' HUP INT TERM USR1 USR2\nwhile :; do sleep 100; done");
        let processes = msb.processes("web");
        assert!(processes.iter().any(|one| one.name == "init"), "{processes:?}");
        processes[0].signal("KILL");
        eventually("nothing is left", || !processes.iter().any(Process::is_alive));
    }
}

/// Attack 17: the guest holds its own /proc, and a command is its child before it is executed.
#[test]
fn no_working_directory_leads_to_the_guest_beside_an_init() {
    for msb in each() {
        create(&msb, &[], FOREVER);
        for number in 3..12 {
            let place = format!("/proc/self/fd/{number}");
            let gave = msb.run(["exec", "-w", &place, "web", "--", "cat", "1/comm", "1/status"]);
            assert_eq!(gave.stdout, "", "{place}");
            // Nor does a file that is copied out.
            let out = msb.scratch().join("out");
            msb.run(["cp", &format!("web:{place}/1/status"), out.to_str().unwrap()]);
            assert!(!out.exists(), "{place}");
        }
    }
}
