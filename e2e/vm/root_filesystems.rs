//! Root filesystems of a microVM: images, `host`, directories, disks.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use msb_e2e::images::{Image, Layer, Packing};
use msb_e2e::tar::{Entry, Tar};
use msb_e2e::{Msb, ends, gives};
use serde_json::json;

use crate::lab;

/// A busybox with a few of its names, and what layers do to each other.
fn image() -> Image {
    let busybox = fs::read("/bin/busybox").expect("the lab has it");
    let names = ["sh", "cat", "ls", "stat", "id", "echo", "sleep", "rm", "find", "env", "mount"];
    let base = Tar::default()
        .with(
            ["bin", "etc", "tmp", "proc", "sys", "dev", "srv", "srv/opaque"].map(Entry::directory),
        )
        .with([
            Entry::program("bin/busybox", busybox),
            Entry::file("etc/passwd", "root:x:0:0:root:/:/bin/sh\nweb:x:33:33:web:/srv:/bin/sh\n"),
            Entry::file("etc/group", "root:x:0:\nweb:x:33:\n"),
            Entry::file("srv/owned", "owned").owner(33, 34).mode(0o640),
            Entry::file("srv/gone", "gone"),
            Entry::file("srv/changed", "first"),
            Entry::file("srv/opaque/below", "below"),
            Entry::hard_link("srv/hard", "srv/owned"),
        ])
        .with(names.map(|name| Entry::symlink(&format!("bin/{name}"), "busybox")));
    let top = [
        Entry::whiteout("srv/gone"),
        Entry::file("srv/changed", "second"),
        Entry::opaque("srv/opaque"),
        Entry::file("srv/opaque/above", "above"),
        Entry::program("bin/set-id", "#!/bin/sh\n").mode(0o4755),
    ];
    Image::new().layer(&Layer::new(&base, Packing::Gzip)).entries(top).config(&json!({
        "Env": ["PATH=/bin", "FROM=image"],
        "Cmd": ["sh", "-c", "echo the command of the image"],
        "User": "web",
        "WorkingDir": "/srv",
    }))
}

fn loaded(msb: &Msb) {
    let layout = image().layout();
    let path = layout.path().display().to_string();
    msb.run(["load", "-i", &path, "-t", "layered:1"]).ok();
}

#[test]
fn an_image_of_the_store_is_as_its_layers_say() {
    for msb in lab::each() {
        loaded(&msb);
        let command = "the command of the image";
        assert_eq!(msb.words("run layered:1").line(), command);
        let script = "id -un; pwd; echo $FROM; cat changed; echo; ls; ls opaque; \
                      stat -c '%u:%g %a %h' owned; stat -c %a /bin/set-id";
        let gave = msb.run(["run", "layered:1", "--", "sh", "-c", script]);
        let wanted = "web\n/srv\nimage\nsecond\nchanged\nhard\nopaque\nowned\nabove\n\
                      33:34 640 2\n4755";
        assert_eq!(gave.line(), wanted);
    }
}

#[test]
fn what_one_sandbox_writes_no_other_of_the_image_sees() {
    let Some(msb) = lab::user() else { return };
    loaded(&msb);
    msb.words("create -q -n one layered:1").ok();
    msb.words("create -q -n two layered:1").ok();
    let write = "echo mine > /srv/changed; rm /srv/owned; echo new > /srv/new; ls /srv; mount";
    let gave = msb.run(["exec", "-u", "root", "one", "--", "sh", "-c", write]).ok();
    assert!(gave.stdout.starts_with("changed\nhard\nnew\nopaque\n"), "{gave:#?}");
    let look = "cat /srv/changed; echo; ls /srv";
    let seen = msb.run(["exec", "two", "--", "sh", "-c", look]).line();
    assert_eq!(seen, "second\nchanged\nhard\nopaque\nowned");
    let again = msb.run(["run", "layered:1", "--", "sh", "-c", look]).line();
    assert_eq!(again, seen);
}

#[test]
fn the_host_image_has_the_programs_of_this_machine_and_can_be_written() {
    for msb in lab::each() {
        let script = "test -x /usr/bin/setpriv && echo there; echo x > /usr/local/made && \
                      echo y > /etc/made && cat /usr/local/made /etc/made; ls /root /home 2>&1";
        let gave = msb.run(["run", "--", "sh", "-c", script]);
        assert!(gave.stdout.starts_with("there\nx\ny\n"), "{gave:#?}");
        assert!(!gave.stdout.contains("lab"), "a home of the host: {gave:#?}");
        assert!(!fs::exists("/usr/local/made").unwrap() && !fs::exists("/etc/made").unwrap());
    }
}

#[test]
fn a_directory_stays_as_it_is() {
    let Some(msb) = lab::user() else { return };
    let rootfs = msb.rootfs();
    let before = fs::read_dir(&rootfs).unwrap().count();
    let script = "rm -r /etc/passwd /usr; echo x > /new; mkdir /dir; mv /bin/yes /bin/moved; \
                  chmod 700 /bin; ls /new /dir /bin/moved /etc; ls /usr 2>/dev/null; true";
    let gave = msb.shell(script).ok();
    assert_eq!(gave.stdout.lines().next(), Some("/bin/moved"), "{gave:#?}");
    assert_eq!(fs::read_dir(&rootfs).unwrap().count(), before);
    assert!(rootfs.join("etc/passwd").exists() && rootfs.join("bin/yes").is_symlink());
}

/// An ext4 with the busybox of the tests.
fn disk(msb: &Msb) -> PathBuf {
    let rootfs = msb.rootfs();
    let disk = msb.file("disk.img", "");
    let file = File::options().write(true).open(&disk).expect("just made");
    file.set_len(64 << 20).expect("room for holes");
    gives(Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).args([&rootfs, &disk])).ok();
    disk
}

#[test]
fn a_disk_is_an_image_that_no_sandbox_changes() {
    let Some(msb) = lab::user() else { return };
    let disk = disk(&msb);
    let plain = disk.display().to_string();
    let typed = format!("{plain}:fstype=ext4");
    let before = fs::read(&disk).unwrap();
    let write = "echo changed > /etc/passwd; echo new > /new; sync; cat /new /etc/passwd";
    let gave = msb.run(["run", &typed, "--", "sh", "-c", write]);
    assert_eq!(gave.line(), "new\nchanged");
    assert_eq!(msb.run(["run", &plain, "--", "ls", "/new"]).code, 1);
    assert!(fs::read(&disk).unwrap() == before, "the disk was changed");
    gives(Command::new("e2fsck").args(["-f", "-n"]).arg(&disk)).ok();
}

#[test]
fn five_at_once_all_work() {
    let Some(msb) = lab::user() else { return };
    let rootfs = msb.rootfs().display().to_string();
    let begin = |number: i32| {
        let script = format!("echo {number}; exit {number}");
        msb.spawn(["run", "-m", "128M", "--cpus", "1", &rootfs, "--", "sh", "-c", &script])
    };
    let children: Vec<_> = (1..=5).map(begin).collect();
    for (number, child) in (1..=5).zip(children) {
        let gave = ends(child);
        assert_eq!((gave.code, gave.stdout.clone()), (number, format!("{number}\n")), "{gave:#?}");
    }
}
