//! Attacks through volumes: on the host, on other sandboxes, and on commands that read them.

use msb_e2e::{Msb, as_unprivileged_user, skip};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

/// Attack 1.
#[test]
fn dot_dot_in_a_path_of_a_volume_does_not_reach_the_host() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "volume-secret");
        let intruder = msb.file("intruder", "intruder");
        let target = format!("/var/tmp/msb-volume-{}", msb.uid());
        msb.words("volume create data").ok();
        let path = canary.display().to_string();
        for from in [
            path.clone(),
            format!("/../../../../../../../..{path}"),
            format!("/data/../../../..{path}"),
            "/../volume.json".to_owned(),
            "/../lock".to_owned(),
            format!("/proc/1/root{path}"),
            format!("/%2e%2e{}", path.replace('/', "%2f")),
        ] {
            for verb in ["cat", "ls"] {
                let gave = msb.run(["volume", verb, &format!("data:{from}")]);
                assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{verb} {from}");
            }
            let out = msb.scratch().join("out");
            msb.run(["volume", "cp", &format!("data:{from}"), out.to_str().unwrap()]);
            assert!(!out.exists(), "{from} came out");
        }
        for to in
            [path.clone(), format!("/../../../../../../../..{path}"), format!("/../../..{target}")]
        {
            msb.run(["volume", "cp", intruder.to_str().unwrap(), &format!("data:{to}")]);
            assert_eq!(fs::read_to_string(&canary).unwrap(), "volume-secret", "{to}");
            assert!(!std::path::Path::new(&target).exists(), "{to}");
        }
        assert_eq!(fs::read_dir(msb.home().join("volumes")).unwrap().count(), 1);
    }
}

/// Attack 2.
#[test]
fn links_in_a_volume_are_not_followed_out_of_it() {
    for msb in Msb::each() {
        let canary = msb.file("outside/canary", "linked-secret");
        let outside = canary.parent().unwrap().display().to_string();
        let intruder = msb.file("intruder", "intruder");
        msb.words("volume create data").ok();
        let script = format!(
            "cd /data; ln -s {outside}/canary file; ln -s {outside} dir; ln -s ../../../../.. up; \
             ln -s /proc/self/root root; ln -s / top; ln -s loop loop; ln -s ../volume.json record"
        );
        msb.shell_with(["-v", "data:/data"], &script).ok();
        for place in [
            "file",
            "dir/canary",
            &format!("up{outside}/canary"),
            "root/etc/passwd",
            "record",
            "loop",
        ] {
            let gave = msb.run(["volume", "cat", &format!("data:/{place}")]);
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{place}");
        }
        let gave = msb.run(["volume", "ls", "-q", "data:/dir"]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""));
        let own = "dir\nfile\nloop\nrecord\nroot\ntop\nup";
        for place in ["data:/up", "data:/top"] {
            assert_eq!(msb.run(["volume", "ls", "-q", place]).line(), own, "the volume itself");
        }
        for place in ["dir/new", "file", "dir/canary", "dir", "top/new", "record"] {
            msb.run(["volume", "cp", intruder.to_str().unwrap(), &format!("data:/{place}")]);
            assert_eq!(fs::read_to_string(&canary).unwrap(), "linked-secret", "{place}");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{place}");
        }
        msb.run(["volume", "inspect", "data"]).ok();
        let out = msb.scratch().join("out");
        msb.run(["volume", "cp", "data:/", out.to_str().unwrap()]).ok();
        let copied = fs::symlink_metadata(out.join("loop")).unwrap();
        assert!(copied.file_type().is_symlink(), "links are copied as links");
    }
}

/// Attack 2, while a sandbox changes a directory to a link and back.
#[test]
fn a_race_of_links_in_a_volume_does_not_lead_out() {
    for msb in Msb::each() {
        let canary = msb.file("outside/canary", "raced-secret");
        let outside = canary.parent().unwrap();
        let intruder = msb.file("intruder", "intruder");
        msb.words("volume create data").ok();
        msb.lasting("web", ["-v", "data:/data"]);
        let script = format!(
            "cd /data; mkdir real; echo own > real/canary; ln -s {} link; \
             while true; do mv -T real place; mv -T place real; mv -T link place; mv -T place link; done",
            outside.display()
        );
        msb.run(["exec", "-d", "web", "--", "sh", "-c", &script]).ok();
        for _ in 0..40 {
            let gave = msb.words("volume cat data:/place/canary");
            assert!(gave.stdout.is_empty() || gave.stdout == "own\n", "{gave:#?}");
            msb.run(["volume", "cp", intruder.to_str().unwrap(), "data:/place/new"]);
            assert_eq!(fs::read_dir(outside).unwrap().count(), 1);
        }
        assert_eq!(fs::read_to_string(&canary).unwrap(), "raced-secret");
    }
}

/// Attack 4.
#[test]
fn special_files_in_a_volume_are_not_waited_for() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let script = "cd /data; mkfifo fifo; mknod null c 1 3; mknod disk b 259 0; \
                      nc -lU socket & sleep 0.2; echo file > file; ln file hard; ls | sort";
        let made = msb.shell_with(["-v", "data:/data"], script).ok().stdout;
        assert!(made.contains("fifo"), "{made}");
        assert!(!made.contains("null") && !made.contains("disk"), "{made}");
        let gave = msb.words("volume cat data:/fifo");
        assert!(gave.stderr.contains("not a file"), "{gave:#?}");
        let intruder = msb.file("intruder", "intruder");
        let out = msb.scratch().join("out");
        let gave = msb.run(["volume", "cp", "data:/", out.to_str().unwrap()]).ok();
        assert!(gave.stderr.contains("left out"), "{gave:#?}");
        for entry in fs::read_dir(&out).unwrap() {
            let kind = entry.unwrap().file_type().unwrap();
            assert!(kind.is_file() && !kind.is_fifo() && !kind.is_socket());
        }
        // The pipe is replaced, not written to.
        msb.run(["volume", "cp", intruder.to_str().unwrap(), "data:/fifo"]).ok();
        assert_eq!(msb.words("volume cat data:/fifo").line(), "intruder");
    }
}

/// Attack 5.
#[test]
fn what_is_made_setuid_in_a_volume_gains_nothing_outside() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let script = "cd /data; cp /bin/busybox suid; chown 0:0 suid; chmod 6755 suid; \
                      cp /bin/busybox user; chown 33:33 user; chmod 6755 user; chmod 777 .; true";
        msb.shell_with(["-v", "data:/data"], script);
        let out = msb.scratch().join("out");
        msb.run(["volume", "cp", "data:/", out.to_str().unwrap()]).ok();
        for entry in fs::read_dir(&out).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o6000, 0, "no such bit comes out");
        }
        let data = msb.home().join("volumes/data/data");
        for name in ["suid", "user"] {
            let found = fs::symlink_metadata(data.join(name)).unwrap();
            assert!(found.uid() != 0 && found.gid() != 0, "{name} is {}", found.uid());
            let Some(mut stranger) = as_unprivileged_user(data.join(name)) else {
                skip("only root can be another");
                continue;
            };
            let ran = stranger.args(["id"]).output().unwrap();
            assert!(!ran.status.success(), "another user got so far: {ran:?}");
        }
        // Nor does it in another sandbox.
        let script =
            "stat -c %a /data/user; mount | grep ' /data ' || cat /proc/mounts | grep ' /data '";
        let gave = msb.shell_with(["-v", "data:/data"], script).ok();
        assert!(gave.stdout.contains("nosuid") && gave.stdout.contains("nodev"), "{gave:#?}");
    }
}

/// A sandbox has the ids of its own volumes and of no other.
#[test]
fn a_volume_is_closed_to_sandboxes_that_were_not_given_it() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("ids of their own are for root's sandboxes");
    }
    msb.words("volume create one").ok();
    msb.words("volume create two").ok();
    let owner = |name: &str| {
        let found = fs::metadata(msb.home().join("volumes").join(name).join("data")).unwrap();
        (found.uid(), found.gid())
    };
    let (one, two) = (owner("one"), owner("two"));
    assert!(one.0 >= 0x4000_0000 && two.0 >= 0x4000_0000 && one != two);
    let script =
        "touch /one/x; stat -c %u:%g /one/x /one; chown 65535 /one/x; chown 65536 /one/x; true";
    let gave = msb.shell_with(["-v", "one:/one"], script).ok();
    assert_eq!(gave.stdout, "0:0\n0:0\n");
    let found = fs::metadata(msb.home().join("volumes/one/data/x")).unwrap();
    assert_eq!((found.uid(), found.gid()), (one.0 + 65535, one.1), "no id beyond its own");
    // What lies beside the files of a volume is not shown.
    let gave = msb.shell_with(["-v", "one:/one"], "cd /one; ls -A ..; cat ../volume.json ../lock");
    assert!(
        !gave.stdout.contains("volume.json") && !gave.stdout.contains("by_machine"),
        "{gave:#?}"
    );
}

/// Attack 15: what is mounted in a sandbox below a volume is not seen in another.
#[test]
fn mounts_below_a_volume_stay_in_their_sandbox() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        msb.words("volume create inner").ok();
        msb.lasting("web", ["-v", "data:/data", "-v", "inner:/data/below"]);
        msb.shell_in("web", "echo in > /data/below/x").ok();
        let gave = msb.shell_with(["-v", "data:/data"], "find /data -type f").ok();
        assert_eq!(gave.stdout, "");
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(&msb.home().display().to_string()), "{table}");
    }
}
