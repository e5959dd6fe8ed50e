//! Attacks on the kernel's own doors: system calls, /proc and /sys, terminals, privileges.

use msb_e2e::{Msb, ends, skip};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Attack 18.
#[test]
fn unneeded_system_calls_are_refused() {
    for msb in Msb::each() {
        msb.program("syscalls", include_str!("../programs/syscalls.c"));
        for flags in [&[][..], &["--security", "restricted"], &["-u", "33"]] {
            let gave = msb.shell_with(flags, "syscalls").ok();
            let others: Vec<&str> =
                gave.stdout.lines().filter(|line| !line.ends_with(" EPERM")).collect();
            assert_eq!(others, [""; 0], "{flags:?}");
            assert!(gave.stdout.lines().count() > 40);
        }
    }
}

/// Attack 18: what user namespaces need comes back with them, and nothing else.
#[test]
fn allowing_user_namespaces_opens_no_other_call() {
    let needed = [
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "mount",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "pivot_root",
        "setns",
        "umount2",
    ];
    for msb in Msb::each() {
        msb.program("syscalls", include_str!("../programs/syscalls.c"));
        let gave = msb.shell_with(["--allow-userns"], "syscalls").ok();
        for line in gave.stdout.lines() {
            let (name, said) = line.split_once(' ').unwrap();
            assert!(said == "EPERM" || needed.contains(&name) && said != "done", "{line}");
        }
    }
}

/// Attack 18: the same calls under the numbers of another ABI.
#[test]
fn other_calling_conventions_do_not_pass_the_filter() {
    for msb in Msb::each() {
        msb.program("syscalls", include_str!("../programs/syscalls.c"));
        let gave = msb.shell("syscalls x32").ok();
        let passed: Vec<&str> = gave
            .stdout
            .lines()
            .filter(|line| !line.ends_with(" EPERM") && !line.ends_with(" ENOSYS"))
            .collect();
        assert_eq!(passed, [""; 0]);
        assert_eq!(msb.shell("syscalls i386").line(), "killed");
    }
}

/// Attack 19: vsock reaches the host past every namespace, packets the wire, alg the kernel.
#[test]
fn socket_families_that_pass_namespaces_are_closed() {
    for msb in Msb::each() {
        msb.program("sockets", include_str!("../programs/sockets.c"));
        assert_eq!(msb.shell("sockets").line(), "tried");
        assert_eq!(msb.shell_with(["--security", "restricted"], "sockets").line(), "tried");
    }
}

/// Attack 21.
#[test]
fn what_the_whole_machine_obeys_cannot_be_written() {
    let obeyed = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/panic",
        "/proc/sys/kernel/sysrq",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/protected_symlinks",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/block/loop0/queue/nr_requests",
        "/sys/module/kernel/parameters/panic",
    ];
    let read = || obeyed.map(|path| fs::read(path).ok());
    let log = || {
        let output = Command::new("dmesg").output().unwrap();
        String::from_utf8_lossy(&output.stdout).matches("sysrq: ").count()
    };
    for msb in Msb::each() {
        let canary = msb.scratch().join("ran-by-the-kernel");
        let (before, logged) = (read(), log());
        let attack = format!(
            "for file in {}; do echo '|/bin/touch {}' > $file; chmod 666 $file; done; \
             for path in $(find / -name release_agent -o -name notify_on_release); do \
             echo '{1}' > $path; done; \
             echo h > /proc/sysrq-trigger; kill -SEGV $$",
            obeyed.join(" "),
            canary.display()
        );
        for flags in [&[][..], &["--allow-userns"], &["--security", "restricted"]] {
            msb.shell_with(flags, &attack);
        }
        let nested = format!(
            "unshare -Urm sh -c 'mkdir /tmp/c; mount -t cgroup -o rdma cgroup /tmp/c || \
             mount -t cgroup2 none /tmp/c; for file in /tmp/c/release_agent /tmp/c/*/release_agent; \
             do echo {} > $file; done; mount -o remount,rw,bind /proc/sys; \
             mount -t proc proc /proc; echo x > /proc/sys/kernel/core_pattern; \
             mount -t sysfs sys /sys; echo {0} > /sys/kernel/uevent_helper'",
            canary.display()
        );
        msb.shell_with(["--allow-userns"], &nested);
        assert!(read() == before, "a setting of the host changed");
        assert_eq!(log(), logged, "the kernel heard a sysrq");
        assert!(!canary.exists());
    }
}

/// Attacks 21 and 22.
#[test]
fn what_tells_of_the_hosts_kernel_is_empty() {
    for msb in Msb::each() {
        let look = "for file in /proc/kallsyms /proc/kcore /proc/kmsg /proc/keys /proc/timer_list \
                    /proc/sched_debug; do head -c 64 $file 2>/dev/null; done; \
                    ls /sys/firmware /sys/kernel/debug /sys/kernel/tracing /proc/acpi /proc/scsi \
                    2>/dev/null | grep -v '^$' | grep -v ':$'; true";
        assert_eq!(msb.shell(look).line(), "");
        assert_eq!(msb.run(["run", "host", "--", "sh", "-c", look]).line(), "");
    }
}

/// Attack 22: disks of the host, loop devices of other sandboxes, and the holders of file locks.
#[test]
fn disks_and_locks_of_the_host_are_not_shown() {
    for msb in Msb::each().into_iter().chain(Msb::with_one_id()) {
        let locked = msb.file("locked", "");
        let file = fs::File::open(&locked).unwrap();
        file.lock().unwrap();
        let inode = format!(":{} ", file.metadata().unwrap().ino());
        assert!(fs::read_to_string("/proc/locks").unwrap().contains(&inode));
        let look = "for file in locks partitions diskstats swaps; do cat /proc/$file; done; \
                    find /proc/fs /sys/block /sys/class/block /sys/class/bdi /sys/dev/block \
                    /sys/devices/virtual/block /sys/devices/virtual/bdi /sys/fs/ext4 \
                    -mindepth 1 2>/dev/null; true";
        assert_eq!(msb.shell(look).line(), "");
    }
}

/// Attack 22: device nodes are the host's own, and what is done to them inside would be seen outside.
#[test]
fn device_nodes_of_the_host_are_not_changed() {
    let nodes = ["null", "zero", "full", "random", "urandom", "tty"].map(|n| format!("/dev/{n}"));
    let look = || {
        nodes.clone().map(|node| {
            let meta = fs::metadata(node).unwrap();
            (meta.mode(), meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec())
        })
    };
    for msb in Msb::each().into_iter().chain(Msb::with_one_id()) {
        let before = look();
        let list = nodes.join(" ");
        let attack = format!(
            "for node in {list}; do touch $node; chmod 600 $node; chown 1:1 $node; done 2>/dev/null; \
             echo on > /dev/null && head -c 1 /dev/zero | wc -c"
        );
        assert_eq!(msb.shell(&attack).line(), "1");
        assert_eq!(look(), before);
    }
}

/// Attack 22: layers, mounts and cgroups would show paths of the host, with user and directory.
#[test]
fn paths_of_the_host_are_not_shown() {
    for msb in Msb::each() {
        let shared = msb.file("shared-canary/file", "");
        let volume = format!("{}:/data", shared.parent().unwrap().display());
        let look = "cat /proc/self/mountinfo /proc/self/cgroup /proc/1/cgroup /proc/mounts";
        let gave = msb.shell_with(["-v", &volume], look).ok();
        let scratch = msb.scratch().parent().unwrap().file_name().unwrap().to_str().unwrap();
        let overlays = gave.stdout.lines().filter(|line| !line.contains(" /data "));
        let host_paths: Vec<&str> = overlays.filter(|line| line.contains(scratch)).collect();
        assert_eq!(host_paths, [""; 0]);
        let groups = gave.stdout.lines().filter(|line| line.contains(":/") && line.contains("msb"));
        assert_eq!(groups.count(), 0, "{}", gave.stdout);
    }
}

/// A terminal of the sandbox's own: what is typed into it stays there.
#[test]
fn keys_pushed_into_a_terminal_do_not_reach_the_caller() {
    for msb in Msb::each() {
        msb.program("terminal", include_str!("../programs/terminal.c"));
        let (binary, rootfs) = (msb.binary(), msb.rootfs());
        for flag in ["-t", "--no-tty"] {
            let line = format!(
                "{} run {flag} {} -- terminal; read -r -t 2 line; echo \"host read <$line>\"",
                binary.display(),
                rootfs.display()
            );
            let mut script = msb.user_command("script");
            script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/bash");
            script.stdout(Stdio::piped()).stderr(Stdio::piped());
            let gave = ends(script.spawn().unwrap());
            assert!(gave.stdout.contains("tried"), "{gave:#?}");
            // `script` types an end of file itself when its own stdin is at its end.
            assert!(gave.stdout.replace('\u{4}', "").contains("host read <>"), "{gave:#?}");
            assert!(!gave.stdout.contains("pushed"), "{gave:#?}");
        }
    }
}

/// Without `-t` there is no terminal at all, least of all the caller's.
#[test]
fn the_callers_terminal_cannot_be_opened() {
    for msb in Msb::each() {
        let (binary, rootfs) = (msb.binary(), msb.rootfs());
        let line = format!(
            "{} run --no-tty {} -- sh -c 'echo intruder > /dev/tty; echo intruder > /dev/console; \
             for tty in /dev/pts/*; do echo intruder > $tty; done; true'",
            binary.display(),
            rootfs.display()
        );
        let mut script = msb.user_command("script");
        script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh");
        let gave = ends(script.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert!(!gave.stdout.contains("intruder"), "{gave:#?}");
    }
}

/// What `restricted` promises, as the kernel tells it.
#[test]
fn the_restricted_profile_has_no_privileges_and_no_way_to_new_ones() {
    for msb in Msb::each() {
        let look = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status";
        let gave = msb.shell_with(["--security", "restricted"], look).ok();
        for line in gave.stdout.lines() {
            let (name, value) = line.split_once(":\t").unwrap();
            let wanted = match name {
                "NoNewPrivs" => "1",
                "Seccomp" => "2",
                _ => "0000000000000000",
            };
            assert_eq!(value, wanted, "{name}");
        }
        assert_eq!(gave.stdout.lines().count(), 7, "{gave:#?}");
    }
}

/// What root inside keeps is what an ordinary image needs, and never what reaches the machine.
#[test]
fn dangerous_capabilities_are_gone_even_for_root() {
    // Of <linux/capability.h>: net_admin, net_raw, sys_module, sys_rawio, sys_ptrace, sys_admin,
    // sys_boot, sys_time, mknod, mac_admin, syslog, bpf, dac_read_search.
    let dangerous: u64 =
        [12, 13, 16, 17, 19, 21, 22, 25, 27, 33, 34, 39, 2].map(|n| 1 << n).iter().sum();
    for msb in Msb::each() {
        for flags in [&[][..], &["--allow-userns"]] {
            let gave = msb.shell_with(flags, "grep ^Cap /proc/self/status").ok();
            for line in gave.stdout.lines() {
                let held = u64::from_str_radix(line.split_once(":\t").unwrap().1, 16).unwrap();
                assert_eq!(held & dangerous, 0, "{line}");
            }
        }
    }
}

/// A set-id program in a restricted sandbox gives its caller nothing.
#[test]
fn setuid_programs_do_nothing_in_a_restricted_sandbox() {
    let Some(root) = Msb::each().into_iter().find(Msb::is_root) else {
        return skip("needs several ids inside, so root");
    };
    root.program("setid", include_str!("../programs/setid.c"));
    root.lasting("web", ["--security", "restricted"]);
    root.shell_in("web", "cp /bin/setid /tmp/setid; chmod 4755 /tmp/setid");
    let gave = root.run(["exec", "-u", "33", "web", "--", "/tmp/setid"]);
    assert_eq!(gave.line(), "uid 33 euid 33 gid 33 egid 33");
}
