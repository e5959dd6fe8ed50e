//! Snapshots of microVMs: their disks are kept, and only machines look into them. Snapshots start on
//! either tier.

use std::fs;
use std::os::unix::fs::FileExt as _;

use msb_e2e::images::{Image, Layer, Packing};
use msb_e2e::tar::{Entry, Tar};
use msb_e2e::{Msb, eventually};
use serde_json::json;

use crate::lab;

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
        // While it runs: writers are paused, and go on.
        let taken = msb.json(["snapshot", "create", "live", "--from", "box", "--json"]);
        assert!(taken["paused_us"].is_u64() && taken["parent"].is_string(), "{taken}");
        msb.shell_in("box", "echo three > /root/a; sync").ok();
        msb.words("stop -t 5s box").ok();
        msb.words("clone --stopped box copy").ok();
        msb.words("rollback box base").ok();
        msb.words("restore --stopped live --name lively").ok();
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
        nothing_is_left(&msb);
    }
}

#[test]
fn a_disk_of_a_machine_is_verified() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["-m", "128M", "--disk", "16M"]);
    msb.shell_in("box", "echo one > /root/a").ok();
    msb.words("stop -t 5s box").ok();
    msb.words("snapshot create base --from box").ok();
    eventually("it is written down", || {
        msb.json(["snapshot", "inspect", "base"])["digest"].is_string()
    });
    assert!(msb.words("snapshot verify base").line().contains("intact"));
    let frozen = fs::read_dir(msb.home().join("frozen")).expect("it is there").flatten();
    let disk = frozen.map(|layer| layer.path().join("disk.img")).find(|disk| disk.exists());
    let disk = fs::File::options().read(true).write(true).open(disk.expect("a disk")).unwrap();
    // In the superblock, and where nothing was.
    for at in [1100, (16 << 20) - 3] {
        let mut byte = [0];
        disk.read_exact_at(&mut byte, at).unwrap();
        disk.write_all_at(&[byte[0] ^ 4], at).unwrap();
        assert_eq!(msb.words("snapshot verify base").code, 1, "{at}");
        disk.write_all_at(&byte, at).unwrap();
        msb.words("snapshot verify base").ok();
    }
}

/// A busybox, and files for a sandbox to change.
fn image() -> Image {
    let names = [
        "sh", "cat", "ls", "stat", "rm", "mkdir", "mv", "ln", "chown", "chmod", "mkfifo", "sync",
        "readlink",
    ];
    let base = Tar::default()
        .with(["bin", "srv", "srv/opaque", "srv/moved"].map(Entry::directory))
        .with([
            Entry::program("bin/busybox", fs::read("/bin/busybox").expect("the lab has it")),
            Entry::program("bin/inside", fs::read(lab::inside()).expect("the lab has it")),
            Entry::file("srv/gone", "gone"),
            Entry::file("srv/owned", "owned\n").owner(33, 34),
            Entry::file("srv/opaque/below", "below"),
            Entry::file("srv/moved/deep", "deep\n"),
        ])
        .with(names.map(|name| Entry::symlink(&format!("bin/{name}"), "busybox")));
    Image::new()
        .layer(&Layer::new(&base, Packing::Gzip))
        .config(&json!({ "Env": ["PATH=/bin"], "WorkingDir": "/srv" }))
}

fn loaded(msb: &Msb) {
    let layout = image().layout();
    let path = layout.path().display().to_string();
    msb.run(["load", "-i", &path, "-t", "changed:1"]).ok();
}

/// Everything that a layer has a way to say.
const CHANGE: &str = "set -e; echo one > a; chown 33:34 a; chmod 640 a; ln a b; rm gone; rm -r opaque; \
                      mkdir opaque; chmod 711 opaque; echo new > opaque/new; chown 5:6 owned; \
                      mv moved renamed; ln -s a link; mkfifo pipe; inside xattr a user.note text; sync";
const LOOK: &str = "cat a; stat -c '%n %a %u:%g %h' a b owned; stat -c '%n %a' opaque pipe; \
                    inside xattr b user.note; ls; ls opaque renamed; cat owned renamed/deep; \
                    readlink link";
const SEEN: &str = "one\na 640 33:34 2\nb 640 33:34 2\nowned 644 5:6 1\nopaque 711\npipe 644\n\
                    text\na\nb\nlink\nopaque\nowned\npipe\nrenamed\nopaque:\nnew\n\n\
                    renamed:\ndeep\nowned\ndeep\na";

/// What a sandbox sees that is started from this on a tier.
#[track_caller]
fn seen(msb: &Msb, isolation: &str, from: &str) -> String {
    let tier = ["run", "-q", "--no-net", "-m", "128M", "--isolation", isolation, from];
    let command = ["--", "sh", "-c", LOOK];
    msb.run(tier.into_iter().chain(command)).line()
}

/// Makes a sandbox of the image on a tier, changes files in it and takes a snapshot.
fn changed(msb: &Msb, isolation: &str) {
    loaded(msb);
    let tier = ["--no-net", "-m", "128M", "--isolation", isolation, "changed:1"];
    msb.run(["create", "-q", "-n", "box"].into_iter().chain(tier)).ok();
    msb.shell_in("box", CHANGE).ok();
    msb.words("stop -t 5s box").ok();
    msb.words("snapshot create base --from box").ok();
}

#[test]
fn a_machine_is_saved_and_loaded() {
    for msb in lab::each() {
        changed(&msb, "vm");
        let file = msb.scratch().join("base.tar").display().to_string();
        msb.run(["snapshot", "save", "base", "-o", &file]).ok();
        // The helper VM that exported the disk is gone.
        assert_eq!(msb.json(["ls", "--json"]).as_array().map(Vec::len), Some(1));
        msb.words("rm box").ok();
        msb.words("snapshot rm base").ok();
        assert_eq!(msb.run(["snapshot", "load", &file, "--name", "again"]).ok().line(), "again");
        for tier in ["process", "vm"] {
            assert_eq!(seen(&msb, tier, "snapshot:again"), SEEN, "{tier}");
        }
        msb.words("snapshot rm again").ok();
        nothing_is_left(&msb);
    }
}

#[test]
fn a_snapshot_of_a_machine_starts_as_a_process() {
    for msb in lab::each() {
        crosses(&msb, "vm", "process");
    }
}

#[test]
fn a_snapshot_of_a_process_starts_as_a_machine() {
    for msb in lab::each() {
        crosses(&msb, "process", "vm");
    }
}

#[track_caller]
fn crosses(msb: &Msb, taken: &str, other: &str) {
    changed(msb, taken);
    // The second time it is there already.
    for _ in 0..2 {
        assert_eq!(seen(msb, other, "snapshot:base"), SEEN);
    }
    // A sandbox keeps what it lies on, and can be saved in turn.
    let tier = ["--no-net", "-m", "128M", "--isolation", other, "snapshot:base"];
    msb.run(["create", "-q", "-n", "over"].into_iter().chain(tier)).ok();
    msb.words("rm box").ok();
    msb.words("snapshot rm base").ok();
    msb.shell_in("over", "set -e; rm a; echo more > opaque/more").ok();
    msb.words("stop -t 5s over").ok();
    msb.words("snapshot create base --from over").ok();
    let file = msb.scratch().join("over.tar").display().to_string();
    msb.run(["snapshot", "save", "base", "--with-image", "-o", &file]).ok();
    msb.words("rm over").ok();
    msb.words("snapshot rm base").ok();
    nothing_is_left(msb);
    msb.run(["snapshot", "load", &file]).ok();
    let look = "cat b; stat -c '%u:%g' b owned; ls . opaque; inside xattr b user.note";
    let seen = "one\n33:34\n5:6\n.:\nb\nlink\nopaque\nowned\npipe\nrenamed\n\n\
                opaque:\nmore\nnew\ntext";
    for tier in ["process", "vm"] {
        let run = ["run", "-q", "--no-net", "-m", "128M", "--isolation", tier, "snapshot:base"];
        let gave = msb.run(run.into_iter().chain(["--", "sh", "-c", look]));
        assert_eq!(gave.line(), seen, "{tier}");
    }
    msb.words("snapshot rm base").ok();
}

#[test]
fn snapshots_of_a_directory_start_on_the_other_tier() {
    let Some(msb) = lab::user() else { return };
    let place = msb.rootfs().join("srv");
    fs::create_dir_all(place.join("opaque")).expect("a directory");
    fs::write(place.join("opaque/below"), "below").expect("a file");
    fs::write(place.join("gone"), "gone").expect("a file");
    for path in ["", "opaque", "opaque/below", "gone"] {
        msb.chown(&place.join(path));
    }
    let change =
        "set -e; cd /srv; rm gone; rm -r opaque; mkdir opaque; echo new > opaque/new; sync";
    for (taken, other) in [("vm", "process"), ("process", "vm")] {
        msb.lasting("box", ["--no-net", "-m", "128M", "--isolation", taken]);
        msb.shell_in("box", change).ok();
        msb.words("stop -t 5s box").ok();
        msb.words("snapshot create base --from box").ok();
        let run = ["run", "-q", "--no-net", "-m", "128M", "--isolation", other, "snapshot:base"];
        let look = ["--", "sh", "-c", "ls /srv /srv/opaque; cat /srv/opaque/new"];
        let gave = msb.run(run.into_iter().chain(look)).line();
        assert_eq!(gave, "/srv:\nopaque\n\n/srv/opaque:\nnew\nnew", "{taken} on {other}");
        msb.words("rm box").ok();
        msb.words("snapshot rm base").ok();
    }
    nothing_is_left(&msb);
}

#[test]
fn a_killed_machine_is_repaired_without_its_secrets() {
    let Some(msb) = lab::user() else { return };
    let file = msb.file("token", "secret-value");
    let secret = format!("TOKEN={}@api.example.com", file.display());
    msb.lasting("box", ["-m", "128M", "--secret-file", &secret]);
    msb.shell_in("box", "echo one > /root/a; sync").ok();
    msb.words("stop -f box").ok();
    fs::remove_file(file).expect("it is not in use");
    msb.words("snapshot create base --from box").ok();
    let run = ["run", "-q", "--no-net", "-m", "128M", "snapshot:base", "--", "cat", "/root/a"];
    assert_eq!(msb.run(run).line(), "one");
}

/// No layer is kept that nothing needs.
#[track_caller]
fn nothing_is_left(msb: &Msb) {
    let left = || fs::read_dir(msb.home().join("frozen")).into_iter().flatten().flatten();
    eventually("nothing is left", || !left().any(|entry| entry.path().is_dir()));
}
