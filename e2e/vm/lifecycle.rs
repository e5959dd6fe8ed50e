//! The lifecycle of a microVM: start, stop, pause, kill, kernel panic.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use msb_e2e::{Msb, Process, ends, eventually, gives};
use serde_json::json;

use crate::lab;

#[test]
fn files_survive_stop_and_start_while_processes_do_not() {
    for msb in lab::each() {
        msb.lasting("box", ["-m", "128M"]);
        let write = "echo kept > /root/a; chmod 640 /root/a; ln -s a /root/b; rm /etc/group; \
                     chown 33:34 /root/a; touch /tmp/gone /dev/shm/gone";
        msb.shell_in("box", write).ok();
        msb.words("exec -d box -- sleep 1000").ok();
        let before = msb.processes("box");
        msb.words("stop -t 2s box").ok();
        eventually("nothing is left", || !before.iter().any(Process::is_alive));
        assert_eq!(msb.json(["inspect", "box"])["status"], "stopped");
        msb.words("start box").ok();
        let look = "cat /root/b; stat -c '%a %u:%g' /root/a; ls /etc/group /dev/shm 2>/dev/null; \
                    ps | grep -c '[s]leep 1000'; true";
        let gave = msb.shell_in("box", look);
        assert_eq!(gave.stdout, "kept\n640 33:34\n/dev/shm:\n0\n", "{gave:#?}");
    }
}

#[test]
fn stop_asks_commands_first() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["-m", "128M"]);
    let polite =
        "trap 'echo asked > /root/said; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", polite]).line();
    eventually("it is up", || msb.run(["logs", "box", "--exec", &id]).stdout == "up\n");
    msb.words("stop -t 20s box").ok();
    msb.words("start box").ok();
    assert_eq!(msb.words("exec box -- cat /root/said").line(), "asked");
}

/// Attack 44.
#[test]
fn a_killed_worker_leaves_a_file_system_that_mounts() {
    for msb in lab::each() {
        msb.lasting("box", ["-m", "128M"]);
        let write = "for i in $(seq 20); do echo $i > /root/$i; done; sync; echo done";
        assert_eq!(msb.shell_in("box", write).line(), "done");
        let busy = "while :; do for i in $(seq 50); do echo $i > /tmp-$i; done; rm /tmp-*; done";
        msb.run(["exec", "-d", "box", "--", "sh", "-c", busy]).ok();
        let attended = msb.spawn(["exec", "box", "--", "sleep", "1000"]);
        let before = msb.processes("box");
        before[0].signal("KILL");
        assert_eq!(ends(attended).code, 125);
        eventually("no process is left", || !before.iter().any(Process::is_alive));
        let listed = msb.words("ls").ok();
        assert!(listed.stderr.contains("its worker was killed"), "{listed:#?}");
        assert_eq!(msb.json(["inspect", "box"])["status"], "crashed");
        msb.words("start -q box").ok();
        assert_eq!(msb.shell_in("box", "ls /root | grep -c .; cat /root/20").line(), "20\n20");
        nothing_is_mounted(&msb);
    }
}

#[test]
fn a_forced_stop_leaves_a_file_system_that_mounts() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["-m", "128M"]);
    msb.shell_in("box", "echo kept > /root/a; sync").ok();
    let busy = "while :; do echo x > /root/b; rm /root/b; done";
    msb.run(["exec", "-d", "box", "--", "sh", "-c", busy]).ok();
    msb.words("stop -f box").ok();
    assert_eq!(msb.json(["inspect", "box"])["status"], "stopped");
    msb.words("start -q box").ok();
    assert_eq!(msb.words("exec box -- cat /root/a").line(), "kept");
}

/// Attack 44: each of its processes, one after the other.
#[test]
fn whichever_process_is_killed_all_of_them_end() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["-m", "128M"]);
    let count = msb.processes("box").len();
    assert!(count >= 2, "{:?}", msb.processes("box"));
    for turn in 1..count.min(4) {
        msb.words("start -q box").ok();
        let before = msb.processes("box");
        before[turn].signal("KILL");
        eventually("no process is left", || !before.iter().any(Process::is_alive));
        assert_eq!(msb.words("exec box -- true").code, 125);
        let status = msb.json(["inspect", "box"])["status"].clone();
        assert!(status == "crashed" || status == "stopped", "{status}");
    }
}

/// Attack 44: the caller of an ephemeral one.
#[test]
fn a_killed_run_leaves_nothing() {
    for msb in lab::each() {
        let rootfs = msb.rootfs().display().to_string();
        let mut run = msb.spawn(["run", "-m", "128M", &rootfs, "--", "sleep", "600"]);
        eventually("it runs", || msb.words("ps --execs").stdout.contains("sleep"));
        let before = Process::tree(run.id());
        run.kill().unwrap();
        run.wait().unwrap();
        eventually("all of it is dead", || !before.iter().any(Process::is_alive));
        msb.words("ls").ok();
        assert_eq!(fs::read_dir(msb.home().join("sandboxes")).unwrap().count(), 0);
        nothing_is_mounted(&msb);
    }
}

/// Attack 44: at moments of a start.
#[test]
fn a_start_that_is_killed_leaves_nothing() {
    let Some(msb) = lab::user() else { return };
    let rootfs = msb.rootfs().display().to_string();
    for moment in [20, 200, 1000, 2500] {
        let mut child = msb.spawn(["run", "-m", "128M", &rootfs, "--", "sleep", "600"]);
        std::thread::sleep(Duration::from_millis(moment));
        let before = Process::tree(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("no process is left", || !before.iter().any(Process::is_alive));
        eventually("the next command works", || msb.words("ls").code == 0);
        let left = || fs::read_dir(msb.home().join("sandboxes")).into_iter().flatten().next();
        eventually("no directory is left", || left().is_none());
    }
    nothing_is_mounted(&msb);
}

#[track_caller]
fn nothing_is_mounted(msb: &Msb) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    assert!(!mounts.contains(&msb.scratch().display().to_string()), "{mounts}");
}

#[test]
fn a_paused_machine_uses_no_processor_and_its_clock_is_right_afterwards() {
    for msb in lab::each() {
        msb.lasting("box", ["-m", "128M", "--cpus", "1"]);
        let spin = "while :; do :; done";
        msb.run(["exec", "-d", "box", "--", "sh", "-c", spin]).ok();
        eventually("it spins", || lab::ticks(&msb, "box") > 300);
        msb.words("pause box").ok();
        assert_eq!(msb.json(["inspect", "box"])["status"], "paused");
        // What was on its way when it was paused.
        std::thread::sleep(Duration::from_secs(1));
        let before = lab::ticks(&msb, "box");
        std::thread::sleep(Duration::from_secs(10));
        let used = lab::ticks(&msb, "box") - before;
        assert!(used < 30, "{used} hundredths of a second in ten");
        msb.words("resume box").ok();
        assert_eq!(msb.json(["inspect", "box"])["status"], "running");
        eventually("the clock is right", || {
            let inside: u64 = msb.shell_in("box", "date +%s").line().parse().unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            now.abs_diff(inside) < 5
        });
        msb.words("pause box").ok();
        msb.words("rm -f box").ok();
    }
}

#[test]
fn a_guest_kernel_that_panics_is_reported_with_its_last_words() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["-m", "128M"]);
    let before = msb.processes("box");
    let gave = msb.shell_in("box", PANIC);
    assert_eq!(gave.code, 125, "{gave:#?}");
    eventually("nothing is left", || !before.iter().any(Process::is_alive));
    let inspected = msb.json(["inspect", "box"]);
    assert_eq!(inspected["stopped"]["ending"], "panicked", "{inspected:#}");
    let reason = inspected["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("panicked"), "{inspected:#}");
    let console = msb.words("logs box --system").ok().stdout;
    assert!(console.contains("Kernel panic - not syncing"), "{console}");
    msb.words("start -q box").ok();
    assert_eq!(msb.words("exec box -- echo again").line(), "again");
}

/// What root may do to its own kernel.
const PANIC: &str = "sync; echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; \
                     echo 2 > /proc/sys/vm/panic_on_oom; tail /dev/zero; sleep 20";

#[test]
fn the_disk_is_whole_after_a_clean_stop() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["-m", "128M"]);
    msb.shell_in("box", "dd if=/dev/urandom of=/file bs=1M count=4 2>/dev/null").ok();
    msb.words("stop box").ok();
    let disks: Vec<_> = fs::read_dir(msb.home().join("sandboxes/box"))
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "img"))
        .collect();
    assert_eq!(disks.len(), 1, "{disks:?}");
    let checked = gives(Command::new("e2fsck").args(["-f", "-n"]).arg(&disks[0]));
    assert_eq!(checked.code, 0, "{checked:#?}");
    assert_eq!(json!(msb.words("start box").code), json!(0));
}
