//! Volumes in microVMs: directories through virtio-fs, disks as devices of their own.

use std::fs;

use crate::lab;

#[test]
fn a_directory_volume_is_shared_by_machines_and_by_the_host() {
    for msb in lab::each() {
        msb.words("volume create data").ok();
        msb.lasting("one", ["-v", "data:/data"]);
        msb.shell_in("one", "echo from one > /data/x; mkdir /data/dir; sync").ok();
        let script = "cat /in/x; echo bad > /in/x; mount -o remount,rw /in; echo bad > /in/x; \
                      touch /in/new; cat /in/x";
        let gave = msb.shell_with(["-v", "data:/in:ro"], script);
        assert_eq!(gave.stdout, "from one\nfrom one\n", "{gave:#?}");
        assert_eq!(msb.words("volume cat data:/x").line(), "from one");
        assert_eq!(msb.words("volume ls -q data:/").line(), "dir\nx");
        msb.file("in", "from the host");
        msb.words("volume cp in data:/dir/in").ok();
        assert_eq!(msb.shell_in("one", "cat /data/dir/in").line(), "from the host");
        let flags = ["--isolation", "process", "-v", "data:/data"];
        assert_eq!(msb.shell_with(flags, "cat /data/x; echo process > /data/y").line(), "from one");
        assert_eq!(msb.shell_in("one", "cat /data/y").line(), "process");
        let gave = msb.words("volume rm data");
        assert!(gave.stderr.contains("volume `data` is used by `one`"), "{gave:#?}");
        msb.words("rm -f one").ok();
        msb.words("volume rm data").ok();
    }
}

#[test]
fn the_size_of_a_directory_volume_holds_in_a_machine() {
    let msb = msb_e2e::Msb::new();
    if !lab::is_here() || !msb.is_root() {
        return;
    }
    if !fs::exists("/dev/loop-control").unwrap_or(false) {
        return msb_e2e::skip("the kernel of this lab has no loop devices");
    }
    msb.words("volume create data --size 32M").ok();
    let script = "dd if=/dev/zero of=/data/x bs=1M count=64 2>&1; rm /data/x; \
                  echo small > /data/y; cat /data/y";
    let gave = msb.shell_with(["-v", "data:/data"], script).ok();
    assert!(gave.stdout.contains("No space left on device"), "{gave:#?}");
    assert!(gave.stdout.ends_with("\nsmall\n"), "{gave:#?}");
    assert_eq!(msb.words("volume cat data:/y").line(), "small");
}

#[test]
fn a_disk_outlives_its_machines_and_has_one_writer() {
    for msb in lab::each() {
        msb.words("volume create data --kind disk --size 32M").ok();
        let write = "echo kept > /data/x; chown 33:44 /data/x; mkdir /data/dir";
        msb.shell_with(["-v", "data:/data"], write).ok();
        assert_eq!(msb.json(["volume", "inspect", "data"])["by_machine"], true);
        msb.lasting("one", ["-v", "data:/data"]);
        let read =
            "cat /data/x; stat -c %u:%g /data/x; grep ' /data ' /proc/mounts | cut -d' ' -f3";
        assert_eq!(msb.shell_in("one", read).line(), "kept\n33:44\next4");
        let gave = msb.shell_with(["-v", "data:/data:ro"], "true");
        assert!(gave.stderr.contains("volume `data` is a disk that is in use"), "{gave:#?}");
        let gave =
            msb.shell_in("one", "dd if=/dev/zero of=/data/big bs=1M count=64 2>&1; rm /data/big");
        assert!(gave.stdout.contains("No space left on device"), "{gave:#?}");
        msb.words("stop one").ok();
        let attack = "cat /data/x; mount -o remount,rw /data; echo bad > /data/x; \
                      device=$(grep ' /data ' /proc/mounts | cut -d' ' -f1); \
                      dd if=/dev/zero of=$device bs=4k count=9 conv=fsync; cat /data/x";
        let gave = msb.shell_with(["-v", "data:/data:ro"], attack);
        assert_eq!(gave.stdout, "kept\nkept\n", "{gave:#?}");
        msb.words("start one").ok();
        assert_eq!(msb.shell_in("one", "cat /data/x").line(), "kept");
        msb.words("rm -f one").ok();
    }
}

/// The host's kernel never mounts what a guest's could have written.
#[test]
fn a_disk_corrupted_by_a_machine_harms_no_other_sandbox() {
    for msb in lab::each() {
        msb.words("volume create data --kind disk --size 32M").ok();
        let attack = "device=$(grep ' /data ' /proc/mounts | cut -d' ' -f1); \
                      dd if=/dev/urandom of=$device bs=64k count=9 conv=fsync 2>/dev/null; echo done";
        msb.shell_with(["-v", "data:/data"], attack);
        let gave = msb.shell_with(["--isolation", "process", "-v", "data:/data"], "true");
        let told = if msb.is_root() { "a microVM has written" } else { "which needs a microVM" };
        assert!(gave.stderr.contains(told), "{gave:#?}");
        let gave = msb.shell_with(["-v", "data:/data"], "true");
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stderr.contains("mount"), "{gave:#?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("volumes/data"), "{mounts}");
        msb.words("volume rm data").ok();
    }
}
