//! Images with links through `/proc/self/fd`: the process that sets a sandbox up may have a host
//! directory open at that number.

use super::fixture::{ImageFixture, Transfer, busybox};
use msb_e2e::Msb;
use msb_e2e::raw_image::{Blob, RawImage, RawLayer};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// More than a worker has open when it makes a sandbox.
const NUMBERS: std::ops::Range<u32> = 0..32;

fn each() -> Vec<Msb> {
    Msb::each().into_iter().chain(Msb::with_one_id()).collect()
}

/// A link to something of the host, from whatever is open at a number.
fn through(number: u32, path: &Path) -> String {
    format!("/proc/self/fd/{number}{}{}", "/..".repeat(12), path.display())
}

/// Replaces a name of the root filesystem by a link.
fn relink(root: &Path, name: &str, target: &str) {
    let path = root.join(name);
    let _ = fs::remove_dir_all(&path);
    let _ = fs::remove_file(&path);
    symlink(target, path).expect("a link");
}

fn names(path: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
}

/// Attacks 7 and 13: nothing is made, mounted or shown where such a link leads.
#[test]
fn mount_points_behind_magic_links_are_not_made_on_the_host() {
    for msb in each() {
        let root = msb.rootfs();
        let canary = msb.file("victim/canary", "victim-secret");
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o600)).unwrap();
        let victim = canary.parent().unwrap();
        let shown = msb.file("shown/file", "shown");
        let volume = format!("{}:/data/volume", shown.parent().unwrap().display());
        let file = format!("{}:/data/file", shown.display());
        for number in NUMBERS {
            relink(&root, "data", &through(number, victim));
            for flags in [["--tmpfs", "/data/memory:1M"], ["-v", &volume], ["-v", &file]] {
                let gave = msb.shell_with(flags, "cat /data/canary");
                assert!(!gave.stdout.contains("victim-secret"), "{number} {flags:?} {gave:#?}");
                let left = names(victim);
                assert_eq!(left, BTreeSet::from([canary.clone()]), "{number} {flags:?}");
            }
        }
        fs::remove_file(root.join("data")).unwrap();
    }
}

/// Ordinary links of an image are resolved within it.
#[test]
fn mount_points_behind_ordinary_links_are_made_in_the_sandbox() {
    for msb in each() {
        let root = msb.rootfs();
        let shown = msb.file("shown/file", "shown");
        fs::create_dir_all(root.join("var/lib")).unwrap();
        relink(&root, "data", "/var/lib");
        msb.chown_tree(&root.join("var"));
        let volume = format!("{}:/data/volume:ro", shown.parent().unwrap().display());
        let file = format!("{}:/data/one/file:ro", shown.display());
        let gave = msb.shell_with(
            ["-v", &volume, "-v", &file, "--tmpfs", "/data/memory:1M"],
            "cat /var/lib/volume/file /var/lib/one/file; touch /var/lib/memory/x && echo made",
        );
        assert_eq!(gave.ok().stdout, "shownshownmade\n");
        fs::remove_file(root.join("data")).unwrap();
    }
}

/// Attacks 7, 13 and 17: the files of the network are put together from those of the image alone.
#[test]
fn no_file_of_the_host_becomes_a_file_of_the_network() {
    for msb in each() {
        let root = msb.rootfs();
        let canary = msb.file("secret", "network-secret");
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o600)).unwrap();
        let victim = msb.scratch().join("victim");
        fs::create_dir(&victim).unwrap();
        msb.chown(&victim);
        let look = "cat /etc/hosts /etc/resolv.conf";
        let flags = ["--net", "public"];
        for number in NUMBERS {
            relink(&root, "etc/hosts", &through(number, &canary));
            relink(&root, "etc/resolv.conf", &through(number, &victim.join("made")));
            let gave = msb.shell_with(flags, look);
            assert!(!gave.stdout.contains("network-secret"), "{number} {gave:#?}");
            assert_eq!(names(&victim), BTreeSet::new(), "{number}");
        }
        // What the kernel tells the process that sets a sandbox up about itself.
        for own in ["maps", "status", "mountinfo", "cmdline", "stat"] {
            relink(&root, "etc/hosts", &format!("/proc/self/{own}"));
            let gave = msb.shell_with(flags, look).ok();
            let lines: Vec<&str> = gave.stdout.lines().collect();
            assert_eq!(lines.first(), Some(&"127.0.0.1\tlocalhost"), "{own} {gave:#?}");
            assert_eq!(lines.len(), 5, "{own} {gave:#?}");
        }
        fs::remove_file(root.join("etc/hosts")).unwrap();
        fs::remove_file(root.join("etc/resolv.conf")).unwrap();
        fs::rename(root.join("etc"), root.join("aside")).unwrap();
        for number in NUMBERS {
            relink(&root, "etc", &through(number, &victim));
            let gave = msb.shell_with(flags, look);
            assert!(!gave.stdout.contains("network-secret"), "{number} {gave:#?}");
            assert_eq!(names(&victim), BTreeSet::new(), "{number}");
        }
    }
}

/// The link comes from a snapshot: its layer was written by a sandbox without a network.
#[test]
fn a_snapshot_with_magic_links_reads_nothing_when_it_has_a_network() {
    for msb in Msb::each() {
        msb.run(["create", "-q", "-n", "web", "--no-net", "host"]).ok();
        let script = "ln -sfn /proc/self/maps /etc/hosts && ln -sfn /proc/1/fd/3 /etc/resolv.conf";
        msb.shell_in("web", script).ok();
        msb.words("snapshot create linked --from web").ok();
        let gave = msb.words("run --net public snapshot:linked -- cat /etc/hosts /etc/resolv.conf");
        let gave = gave.ok();
        assert_eq!(gave.stdout.lines().count(), 5, "{gave:#?}");
        assert!(gave.stdout.starts_with("127.0.0.1\tlocalhost\n"), "{gave:#?}");
    }
}

/// Attack 7: what is shown of the kernel is where it belongs, or there is no sandbox.
#[test]
fn links_in_place_of_dev_proc_and_sys_are_refused() {
    for msb in each() {
        let root = msb.rootfs();
        let victim = msb.scratch().join("victim");
        fs::create_dir(&victim).unwrap();
        msb.chown(&victim);
        for name in ["dev", "proc", "sys"] {
            let targets = [3, 5, 7, 9, 11, 13].map(|number| through(number, &victim));
            for target in targets.into_iter().chain(["/tmp".to_owned()]) {
                relink(&root, name, &target);
                let gave = msb.shell("echo begun");
                assert!(!gave.stdout.contains("begun"), "{name} {target}");
                assert!(gave.stderr.contains(&format!("`/{name}`")), "{gave:#?}");
                assert_eq!(names(&victim), BTreeSet::new(), "{name} {target}");
            }
            fs::remove_file(root.join(name)).unwrap();
        }
        assert_eq!(msb.shell("echo begun").line(), "begun");
    }
}

/// Attack 7: as root the layers of all images lie side by side below one mount, with the sandbox's ids.
#[test]
fn no_layer_of_another_image_is_written_through_a_magic_link() {
    for fixture in ImageFixture::each() {
        let other =
            RawImage::new([busybox(), Blob::gzip(&RawLayer::new().file("other/canary", "other"))]);
        let (_, gave) = fixture.bring(&other, Transfer::DockerArchive);
        gave.ok();
        let found = std::process::Command::new("find")
            .arg(fixture.msb.home())
            .args(["-path", "*/other/canary"])
            .output()
            .expect("find");
        let found = String::from_utf8(found.stdout).unwrap();
        let victim = Path::new(found.lines().next().expect("a layer")).parent().unwrap().to_owned();
        let from_shelf: PathBuf =
            victim.iter().rev().take(3).collect::<Vec<_>>().iter().rev().collect();
        let mut layer = RawLayer::new();
        for number in NUMBERS {
            for (index, up) in ["", "/..", "/../..", "/../../.."].into_iter().enumerate() {
                let target = format!("/proc/self/fd/{number}{up}/{}", from_shelf.display());
                layer = layer.symlink(format!("m{number}-{index}"), target);
            }
        }
        let hostile = RawImage::new([busybox(), Blob::gzip(&layer)]);
        let (name, gave) = fixture.bring(&hostile, Transfer::DockerArchive);
        gave.ok();
        let before = names(&victim);
        for number in NUMBERS {
            for index in 0..4 {
                let memory = format!("/m{number}-{index}/made:1M");
                fixture.msb.run(["run", "-q", "--tmpfs", &memory, &name, "--", "true"]);
            }
            assert_eq!(names(&victim), before, "{number}");
        }
    }
}
