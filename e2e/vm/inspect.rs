//! What doctor, metrics, logs and inspect show of a microVM.

use std::path::Path;

use serde_json::{Value, json};

use crate::lab::{self, SharedSandbox};

#[test]
fn doctor_finds_that_the_tier_works() {
    for msb in lab::each() {
        let checks = msb.json(["doctor", "--json"]);
        let checks: Vec<&Value> =
            checks.as_array().unwrap().iter().filter(|check| check["tier"] == "vm").collect();
        assert!(checks.len() >= 3, "{checks:#?}");
        let bad: Vec<_> = checks.iter().filter(|check| check["grade"] == "missing").collect();
        assert!(bad.is_empty(), "{bad:#?}");
        let gave = msb.words("doctor");
        assert!(gave.stdout.contains("vm: works"), "{gave:#?}");
    }
}

#[test]
fn auto_takes_the_machine_and_says_nothing() {
    let Some(msb) = lab::user() else { return };
    let rootfs = msb.rootfs().display().to_string();
    let mut command = msb.command(["create", "-q", "-n", "box", "-m", "128M", &rootfs]);
    let gave = msb_e2e::gives(command.env("MSB_ISOLATION", "auto"));
    assert_eq!((gave.code, gave.stderr.as_str()), (0, ""), "{gave:#?}");
    assert_eq!(msb.json(["inspect", "box"])["plan"]["isolation"], "vm");
    assert_eq!(msb.json(["ls", "--json"])[0]["isolation"], "vm");
}

#[test]
fn a_host_without_access_to_kvm_is_told_what_to_do() {
    let Some(msb) = lab::user() else { return };
    let gave = msb_e2e::gives(msb.command(["doctor", "--json"]).env("MSB_KERNEL", "/no/kernel"));
    assert!(gave.stdout.contains("/no/kernel") || gave.stdout.contains("MSB_KERNEL"), "{gave:#?}");
    let rootfs = msb.rootfs().display().to_string();
    let mut command = msb.command(["run", &rootfs, "--", "true"]);
    let gave = msb_e2e::gives(command.env("MSB_KERNEL", "/no/kernel"));
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("hint:"), "{gave:#?}");
}

#[test]
fn metrics_show_the_view_of_the_guest_and_of_the_host() {
    let Some(shared) = SharedSandbox::get() else { return };
    let metrics = &shared.msb.json(["metrics", "box", "--json"])[0];
    assert_eq!(metrics["memory_limit"], json!(256u64 << 20), "{metrics:#}");
    let host = metrics["memory"].as_u64().unwrap();
    assert!((1 << 20..512 << 20).contains(&host), "{metrics:#}");
    let guest = |what: &str| metrics["guest"][what].as_u64().unwrap_or(0);
    assert!((1 << 20..256 << 20).contains(&guest("memory")), "{metrics:#}");
    assert!((64 << 20..=256 << 20).contains(&guest("memory_total")), "{metrics:#}");
    assert!(guest("cpu_us") > 0, "{metrics:#}");
    assert!(metrics["cpu_us"].as_u64().unwrap() > 0, "{metrics:#}");
    assert!(metrics["pids"].as_u64().unwrap() >= 1, "{metrics:#}");
}

#[test]
fn the_console_is_in_the_system_log() {
    let Some(shared) = SharedSandbox::get() else { return };
    let system = shared.msb.words("logs box --system").ok();
    assert!(!system.stdout.contains('\x1b'), "{system:#?}");
    // A write to the kernel's log must not look like one of ours.
    shared.shell("printf 'note\\033[31m forged\\n' > /dev/kmsg");
    let system = shared.msb.words("logs box --system").ok();
    assert!(!system.stdout.contains('\x1b'), "{system:#?}");
}

#[test]
fn the_inside_looks_as_it_does_on_the_other_tier() {
    let Some(shared) = SharedSandbox::get() else { return };
    let look = "for path in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty \
                /dev/ptmx /dev/pts /dev/shm /dev/fd /dev/stdin /proc/self /sys/kernel /tmp /run; \
                do test -e $path || echo no $path; done; stat -c %a /dev/shm; \
                ip -o link | grep -v lo: | wc -l; cat /etc/hostname /proc/sys/kernel/hostname 2>/dev/null; \
                tr '\\000' ' ' </proc/1/cmdline | head -c 100; echo; id -G";
    let gave = shared.shell(look).ok();
    assert!(!gave.stdout.contains("no /"), "{gave:#?}");
    assert!(gave.stdout.contains("1777\n0\n"), "{gave:#?}");
    assert!(gave.stdout.contains("box\n"), "{gave:#?}");
    assert!(!Path::new("/lab/rootfs/run/made").exists());
}
