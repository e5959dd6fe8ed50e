//! Images whose links lead through `/proc/self/fd`: whatever sets a sandbox up may have a directory of
//! the host open at that number.

use super::scene::{Scene, Way, busybox};
use msb_e2e::forge::{Blob, Image, Layer};
use msb_e2e::{Msb, skip};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
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

/// The same links of an ordinary image lead to what they mean in it.
#[test]
fn mount_points_behind_ordinary_links_are_made_in_the_sandbox() {
    for msb in each() {
        let root = msb.rootfs();
        let shown = msb.file("shown/file", "shown");
        fs::create_dir_all(root.join("var/lib")).unwrap();
        relink(&root, "data", "/var/lib");
        msb.own_tree(&root.join("var"));
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

fn may_have_network(msb: &Msb) -> bool {
    let device = fs::metadata("/dev/net/tun").is_ok_and(|meta| meta.mode() & 0o006 == 0o006);
    let may = device || msb.is_root();
    if !may {
        skip("/dev/net/tun is not for everybody here");
    }
    may
}

/// Attacks 7, 13 and 17: the files of the network are put together from those of the image alone.
#[test]
fn no_file_of_the_host_becomes_a_file_of_the_network() {
    for msb in each().into_iter().filter(may_have_network) {
        let root = msb.rootfs();
        let canary = msb.file("secret", "network-secret");
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o600)).unwrap();
        let victim = msb.scratch().join("victim");
        fs::create_dir(&victim).unwrap();
        msb.own(&victim);
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

/// The same by a snapshot, whose layer a sandbox without a network wrote.
#[test]
fn a_snapshot_with_magic_links_reads_nothing_when_it_has_a_network() {
    for msb in Msb::each().into_iter().filter(may_have_network) {
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
        msb.own(&victim);
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
    for scene in Scene::each() {
        let other =
            Image::new([busybox(), Blob::gzip(&Layer::new().file("other/canary", "other"))]);
        let (_, gave) = scene.bring(&other, Way::DockerArchive);
        gave.ok();
        let found = std::process::Command::new("find")
            .arg(scene.msb.home())
            .args(["-path", "*/other/canary"])
            .output()
            .expect("find");
        let found = String::from_utf8(found.stdout).unwrap();
        let victim = Path::new(found.lines().next().expect("a layer")).parent().unwrap().to_owned();
        let from_shelf: PathBuf =
            victim.iter().rev().take(3).collect::<Vec<_>>().iter().rev().collect();
        let mut layer = Layer::new();
        for number in NUMBERS {
            for (index, up) in ["", "/..", "/../..", "/../../.."].into_iter().enumerate() {
                let target = format!("/proc/self/fd/{number}{up}/{}", from_shelf.display());
                layer = layer.symlink(format!("m{number}-{index}"), target);
            }
        }
        let hostile = Image::new([busybox(), Blob::gzip(&layer)]);
        let (name, gave) = scene.bring(&hostile, Way::DockerArchive);
        gave.ok();
        let before = names(&victim);
        for number in NUMBERS {
            for index in 0..4 {
                let memory = format!("/m{number}-{index}/made:1M");
                scene.msb.run(["run", "-q", "--tmpfs", &memory, &name, "--", "true"]);
            }
            assert_eq!(names(&victim), before, "{number}");
        }
    }
}
