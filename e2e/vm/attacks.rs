//! Attacks on the machine process and on what it is connected to, by number of the list.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use msb_e2e::{Msb, Process};

use crate::lab::{self, SharedSandbox};

/// The VMM process: the one that maps the guest's memory.
fn machine(msb: &Msb, name: &str) -> Process {
    let all = msb.processes(name);
    let rss = |process: &Process| {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid));
        lab::number_after(&status.unwrap_or_default(), "VmRSS:").unwrap_or(0)
    };
    all.into_iter().max_by_key(rss).expect("a sandbox has processes")
}

/// Attack 25: seen from outside, as root, which may inspect any process.
#[test]
fn the_machine_process_is_jailed() {
    for msb in lab::each() {
        msb.lasting("box", ["-m", "128M"]);
        let machine = machine(&msb, "box");
        let proc = format!("/proc/{}", machine.pid);
        for namespace in ["user", "mnt", "pid", "net", "ipc", "uts"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
            assert_ne!(of(&machine.pid.to_string()), of("self"), "{namespace}");
        }
        let status = fs::read_to_string(format!("{proc}/status")).unwrap();
        assert_eq!(lab::number_after(&status, "NoNewPrivs:"), Some(1), "{status}");
        assert_eq!(lab::number_after(&status, "Seccomp:"), Some(2), "{status}");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim().to_owned()
        };
        // Only what reads the files of a directory image; it reaches no id that is not mapped.
        assert_eq!(field("CapEff:"), "0000000000000004", "{status}");
        assert_eq!(field("CapPrm:"), "0000000000000004", "{status}");
        // Not dumpable: its files in /proc belong to root.
        assert_eq!(fs::metadata(format!("{proc}/environ")).unwrap().uid(), 0);
        let environment = fs::read(format!("{proc}/environ")).unwrap();
        assert!(environment.iter().all(|byte| *byte == 0), "its environment");
        let network = fs::read_to_string(format!("{proc}/net/dev")).unwrap();
        let devices: Vec<&str> = network.lines().skip(2).collect();
        assert!(devices.len() <= 1 && devices.iter().all(|line| line.contains("lo:")), "{network}");

        let root = format!("{proc}/root");
        for hidden in ["home", "lab", "etc/passwd", "root", "usr/bin/msb", "bin/sh", "tmp"] {
            let path = Path::new(&root).join(hidden);
            let empty = fs::read_dir(&path).map(|mut dir| dir.next().is_none()).unwrap_or(false);
            assert!(!path.exists() || empty, "{hidden} can be seen");
        }
    }
}

/// Attack 25: with code of ours in the place of the machine monitor, after the jail is shut.
#[test]
fn a_monitor_that_was_taken_over_gets_nowhere() {
    for msb in lab::each() {
        let canary = msb.file("canary", "home-secret");
        let rootfs = msb.rootfs().display().to_string();
        let mut command = msb.command(["run", "-m", "128M", &rootfs, "--", "true"]);
        command.env("MSB_TEST_COMPROMISED", &canary);
        let gave = msb_e2e::gives(&mut command);
        assert!(gave.stderr.contains("attempts, all refused"), "{gave:#?}");
        assert!(!(gave.stdout + &gave.stderr).contains("home-secret"));
    }
}

/// Attack 26.
#[test]
fn no_port_of_the_host_but_ours_can_be_reached() {
    let Some(shared) = SharedSandbox::get() else { return };
    let inside = |words: &str| shared.msb.words(&format!("exec box -- inside {words}")).line();
    assert_eq!(inside("ports 2 200"), "open: []");
    for port in ["22", "80", "1024", "2375", "65535", "4294967294"] {
        assert_ne!(inside(&format!("vsock 2 {port}")), "connected", "{port}");
    }
    for cid in ["0", "3", "4", "1000"] {
        for port in ["1", "22", "1024"] {
            assert_ne!(inside(&format!("vsock {cid} {port}")), "connected", "{cid}:{port}");
        }
    }
}

/// Attack 27: connections without end, and nonsense on each, on the port of the worker.
#[test]
fn a_flood_of_connections_does_not_stop_the_sandbox_or_its_neighbour() {
    let Some(msb) = lab::user() else { return };
    lab::with_inside(&msb);
    msb.lasting("box", ["-m", "128M"]);
    let before = msb.processes("box");
    let files = |process: &Process| {
        fs::read_dir(format!("/proc/{}/fd", process.pid)).map(Iterator::count).unwrap_or(0)
    };
    let open: usize = before.iter().map(files).sum();
    for _ in 0..2 {
        msb.words("exec box -- inside flood 1 2000");
        // A flood may end its own machine, and nothing else.
        let gave = msb.words("exec box -- echo here");
        assert!(gave.stdout == "here\n" || gave.stderr.contains("is not running"), "{gave:?}");
    }
    msb_e2e::eventually("what was opened is closed", || {
        before.iter().map(files).sum::<usize>() < open + 20
    });
    if let Some(shared) = SharedSandbox::get() {
        assert_eq!(shared.shell("echo here").line(), "here");
    }
}

/// Attack 28.
#[test]
fn text_of_the_guest_reaches_no_terminal_as_it_is() {
    let Some(shared) = SharedSandbox::get() else { return };
    let msb = &shared.msb;
    let name = "\u{1b}[31mred\u{202e}\nforged";
    msb.run(["exec", "box", "--", name]);
    msb.run(["exec", "-d", "box", "--", "sh", "-c", "sleep 60", name]).ok();
    for words in ["ps box --execs -a", "ps", "ls", "logs box --system", "metrics box"] {
        let gave = msb.words(words);
        let text = gave.stdout + &gave.stderr;
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{words}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{words}: {text:?}");
    }
}

/// Attack 40.
#[test]
fn only_declared_variables_are_inside() {
    let Some(shared) = SharedSandbox::get() else { return };
    let mut command = shared.msb.command(["exec", "box", "--", "env"]);
    let gave = msb_e2e::gives(command.env("SECRET_OF_THE_CALLER", "canary-variable"));
    assert!(gave.stdout.contains("A=1\n"), "{gave:#?}");
    assert!(!gave.stdout.contains("canary-variable"), "{gave:#?}");
    let everywhere = "cat /proc/*/environ /proc/cmdline 2>/dev/null | tr '\\000' '\\n'";
    let gave = shared.shell(everywhere);
    for word in ["canary-variable", "MSB_HOME", "MSB_TEST_USER", "MSB_KERNEL", "LAB_ROOTFS"] {
        assert!(!gave.stdout.contains(word), "{word}: {gave:#?}");
    }
}

/// Attack 43.
#[test]
fn descriptors_run_out_only_for_the_process_that_takes_them() {
    let Some(shared) = SharedSandbox::get() else { return };
    let few = "exec --rlimit nofile=64:64 box -- inside files";
    assert_eq!(shared.msb.words(few).line(), "61");
    shared.msb.words("exec box -- inside files").ok();
    assert_eq!(shared.shell("echo here").line(), "here");
}

/// The disk of the image is shared by all: root inside cannot write it.
#[test]
fn disks_that_are_not_the_sandboxs_own_cannot_be_written() {
    let Some(shared) = SharedSandbox::get() else { return };
    let attack = "mknod /root/vda b 254 0; for disk in /dev/vda /root/vda; do \
                  blockdev --setrw $disk; dd if=/dev/zero of=$disk bs=512 count=1; done; \
                  rm -f /root/vda; echo over";
    assert_eq!(shared.shell(attack).stdout, "over\n");
    let images = shared.msb.home().join("guest");
    for entry in fs::read_dir(&images).into_iter().flatten().flatten() {
        let bytes = fs::read(entry.path()).unwrap();
        assert!(bytes[1024..1028] == [0xe2, 0xe1, 0xf5, 0xe0], "{:?} was written", entry.path());
    }
}

/// Each device is code of the VMM that parses what the guest writes. The balloon of the present
/// VMM hands lengths of the guest to madvise(2) unchecked, so there must be none.
#[test]
fn the_machine_has_the_listed_virtio_devices_and_no_balloon() {
    const NETWORK: &str = "0x0001";
    const BLOCK: &str = "0x0002";
    const CONSOLE: &str = "0x0003";
    const VSOCK: &str = "0x0013";
    const FILE_SYSTEM: &str = "0x001a";
    /// The VMM's own, which tells that the machine was restored.
    const GENERATION: &str = "0x4d47";
    let Some(shared) = SharedSandbox::get() else { return };
    let gave = shared.shell("cat /sys/bus/virtio/devices/*/device").ok();
    let devices: Vec<&str> = gave.stdout.lines().collect();
    assert!(devices.contains(&CONSOLE) && devices.contains(&VSOCK), "{gave:#?}");
    let listed = [NETWORK, BLOCK, CONSOLE, VSOCK, FILE_SYSTEM, GENERATION];
    assert!(devices.iter().all(|device| listed.contains(device)), "{gave:#?}");
}
