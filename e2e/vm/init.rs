//! The image's own init as PID 1 of what is in a microVM.

use std::path::Path;

use msb_e2e::{Msb, eventually, skip};
use serde_json::json;

use crate::lab;

/// What `cargo xtask lab` made of Debian's packages; see `xtask/src/lab/systemd.rs`.
const SYSTEMD: &str = "/lab/systemd";

#[track_caller]
fn holds(msb: &Msb, path: &str, text: &str) {
    let read = || msb.run(["exec", "box", "--", "cat", path]).stdout;
    eventually(&format!("{path} holds {text:?}"), || read() == text);
}

#[test]
fn init_of_s6_runs_its_services_in_a_machine() {
    let Some(msb) = lab::user() else { return };
    let root = msb.s6_rootfs();
    msb.run(["create", "-n", "box", "--init", "auto", root.to_str().unwrap()]).ok();
    holds(&msb, "/proc/1/comm", "s6-svscan\n");
    holds(&msb, "/begun", "begun\n");
    assert_eq!(msb.shell_in("box", "cat /proc/self/cgroup").line(), "0::/msb");
    msb.words("pause box").ok();
    msb.words("resume box").ok();
    msb.words("stop box").ok();
    let log = msb.run(["logs", "box", "--system"]).ok().stdout;
    assert!(log.contains("polite runs"), "{log}");
    msb.words("start box").ok();
    assert_eq!(msb.run(["exec", "box", "--", "cat", "/ended"]).line(), "polite");
    holds(&msb, "/begun", "begun\nbegun\n");
    // A power-off that bypasses PID 1 ends the machine.
    msb.run(["exec", "box", "--", "sh", "-c", "busybox poweroff -f; sleep 100"]);
    msb.words("wait box");
    let stopped = &msb.json(["inspect", "box"])["stopped"];
    assert_eq!(stopped["ending"], json!("powered_off"), "{stopped}");
}

#[test]
fn init_that_is_missing_in_a_machine_is_an_error() {
    let Some(msb) = lab::user() else { return };
    let root = msb.services_rootfs("none");
    msb.chown_tree(&root);
    let gave = msb.run(["create", "-n", "box", "--init", "auto", root.to_str().unwrap()]);
    assert_eq!(gave.code, 127, "{gave:?}");
    assert!(gave.stderr.contains("the image has no init"), "{gave:?}");
}

#[test]
fn init_systemd_reaches_its_target_in_a_machine() {
    if !lab::is_here() {
        return;
    }
    if !Path::new(SYSTEMD).exists() {
        return skip("the lab was made without root, and has no systemd");
    }
    let msb = Msb::new();
    let unit = "/etc/systemd/system/hello.service=[Service]\nType=oneshot\n\
                ExecStart=/bin/sh -c 'cat /proc/self/cgroup > /hello'\n";
    let create = ["create", "-n", "box", "-m", "512M", "--cpus", "2", "--init", "auto", "--text"];
    msb.run(create.into_iter().chain([unit, SYSTEMD])).ok();
    // It has enough to do without us asking again and again.
    msb.shell_in("box", "until test -S /run/systemd/private; do sleep 1; done").ok();
    let state = msb.shell_in("box", "systemctl is-system-running --wait").stdout;
    let failed = msb.run(["exec", "box", "--", "systemctl", "--failed", "--no-legend"]).stdout;
    assert_eq!(state, "running\n", "{failed}");
    // What it runs lies beside what we run.
    let script = "systemctl start hello && cat /proc/1/comm /hello /proc/self/cgroup";
    let lines = msb.shell_in("box", script).line();
    assert_eq!(lines, "systemd\n0::/system.slice/hello.service\n0::/msb");
    msb.words("stop box --timeout 60s").ok();
    let stopped = &msb.json(["inspect", "box"])["stopped"];
    assert_eq!(stopped["ending"], json!("stopped"), "{stopped}");
    assert_ne!(stopped["exit"], json!(null), "it ended by itself within its time: {stopped}");
}
