//! Snapshots of microVMs: their disks are kept, and never looked into.

use crate::lab;
use msb_e2e::eventually;

#[test]
fn machines_start_from_snapshots_and_go_back_to_them() {
    for msb in lab::each() {
        msb.lasting("box", ["-m", "128M"]);
        let write = "echo one > /root/a; chown 33:34 /root/a; chmod 640 /root/a; ln /root/a /root/b; \
                     rm /etc/group; mv /etc /etc2; mkdir /etc; mv /etc2/* /etc; rmdir /etc2; sync; echo done";
        assert_eq!(msb.shell_in("box", write).line(), "done");
        // Not asked to end: its journal has to be played back before anybody else reads its disk.
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box").ok();
        let look =
            "cat /root/a; stat -c '%a %u:%g %h' /root/b; ls /etc/group /root/c 2>/dev/null; true";
        let seen = "one\n640 33:34 2";
        let rootfs = ["run", "-q", "-m", "128M", "snapshot:base", "--", "sh", "-c", look];
        assert_eq!(msb.run(rootfs).line(), seen);
        msb.words("start -q box").ok();
        assert_eq!(msb.shell_in("box", look).line(), seen);
        msb.shell_in("box", "echo two > /root/a; touch /root/c; sync").ok();
        // While it runs: whoever writes waits, and goes on.
        let taken = msb.json(["snapshot", "create", "live", "--from", "box", "--json"]);
        assert!(taken["paused_us"].is_u64() && taken["parent"].is_string(), "{taken}");
        msb.shell_in("box", "echo three > /root/a; sync").ok();
        msb.words("stop -t 5s box").ok();
        msb.words("clone box copy").ok();
        msb.words("rollback box base").ok();
        msb.words("restore live --name lively").ok();
        for (name, text) in [("box", "one"), ("copy", "three"), ("lively", "two")] {
            msb.run(["start", "-q", name]).ok();
            assert_eq!(msb.shell_in(name, "cat /root/a").line(), text, "{name}");
            msb.run(["stop", "-f", name]).ok();
        }
        msb.words("reset copy").ok();
        msb.words("start -q copy").ok();
        assert_eq!(msb.shell_in("copy", "ls /root").line(), "");
        msb.words("rm -f box copy lively").ok();
        msb.words("snapshot rm -f base live").ok();
        let left = || std::fs::read_dir(msb.home().join("frozen")).unwrap().flatten();
        eventually("no disk is left", || !left().any(|entry| entry.path().is_dir()));
    }
}

#[test]
fn a_disk_of_a_machine_is_verified_and_not_saved() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["-m", "128M", "--disk", "16M"]);
    msb.shell_in("box", "echo one > /root/a").ok();
    msb.words("stop -t 5s box").ok();
    msb.words("snapshot create base --from box").ok();
    eventually("it is written down", || {
        msb.json(["snapshot", "inspect", "base"])["digest"].is_string()
    });
    assert!(msb.words("snapshot verify base").line().contains("intact"));
    let gave = msb.words("snapshot save base -o x.tar");
    assert!(gave.code != 0 && gave.stderr.contains("does not look into"), "{gave:#?}");
    let gave = msb.run(["run", "--isolation", "process", "snapshot:base", "--", "true"]);
    assert!(gave.stderr.contains("`--isolation vm` starts it"), "{gave:#?}");
}
