//! Images that travel as files: what others save is loaded, and what we save they read.

use msb_e2e::images::{Image, Layout, lister, unpack};
use msb_e2e::registry::{Registry, skopeo};
use msb_e2e::tar::Entry;
use msb_e2e::{Msb, eventually, gives, skip};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn layout() -> Layout {
    Image::busybox().entries([Entry::file("word", "travelled\n").owner(33, 33)]).layout()
}

/// Has skopeo write an image as a file that the user can read.
fn exported(msb: &Msb, layout: &Layout, kind: &str, file: &str, name: &str) -> PathBuf {
    let path = msb.scratch().join(file);
    let target = format!("{kind}:{}{name}", path.display());
    gives(skopeo("copy").arg(layout.skopeo()).arg(target)).ok();
    msb.chown(&path);
    path
}

fn word(msb: &Msb, name: &str) -> String {
    let script = "cat /word; stat -c %u /word";
    msb.run(["run", "--pull", "never", name, "--", "sh", "-c", script]).line()
}

#[test]
fn what_docker_saves_is_loaded_under_its_own_name() {
    for msb in Msb::each_with_own_layers() {
        let file = exported(&msb, &layout(), "docker-archive", "saved.tar", ":team/saved:1");
        let loaded = msb.run(["load", "-i", file.to_str().unwrap()]).line();
        let (name, digest) = loaded.split_once('@').unwrap();
        assert_eq!(name, "docker.io/team/saved:1");
        assert_eq!(word(&msb, "team/saved:1"), "travelled\n33");
        let listed = msb.json(["image", "ls", "--json"]);
        assert_eq!((&listed[0]["reference"], &listed[0]["digest"]), (&name.into(), &digest.into()));
    }
}

#[test]
fn an_oci_archive_keeps_its_digest() {
    let layout = layout();
    for msb in Msb::each_with_own_layers() {
        let file = exported(&msb, &layout, "oci-archive", "oci.tar", ":docker.io/team/oci:1");
        let loaded = msb.run(["load", "-i", file.to_str().unwrap()]).line();
        assert_eq!(loaded, format!("docker.io/team/oci:1@{}", layout.digest));
        assert_eq!(word(&msb, "team/oci:1"), "travelled\n33");
    }
}

#[test]
fn an_oci_layout_directory_is_loaded_under_a_name_given() {
    let layout = layout();
    for msb in Msb::each_with_own_layers() {
        let copied = msb.scratch().join("layout");
        gives(Command::new("cp").arg("-r").arg(layout.path()).arg(&copied)).ok();
        let gave = msb.json(["load", "--json", "-i", "./layout", "-t", "mine:2"]);
        assert_eq!(gave[0]["reference"], "docker.io/library/mine:2");
        assert_eq!(gave[0]["digest"], layout.digest.as_str());
        fs::remove_dir_all(copied).unwrap();
        assert_eq!(word(&msb, "mine:2"), "travelled\n33", "it does not need the directory");
    }
}

#[test]
fn an_archive_comes_from_stdin_and_may_be_compressed() {
    for msb in Msb::each_with_own_layers() {
        let docker = exported(&msb, &layout(), "docker-archive", "a.tar", ":team/a:1");
        let oci = exported(&msb, &layout(), "oci-archive", "b.tar", ":docker.io/team/b:1");
        for (file, name) in [(docker, "team/a:1"), (oci, "team/b:1")] {
            let whole = fs::read(&file).unwrap();
            let packed = ["gzip", "zstd"].map(|program| {
                let file = File::open(&file).unwrap();
                Command::new(program).arg("-c").stdin(file).output().unwrap().stdout
            });
            for bytes in [&whole, &packed[0], &packed[1]] {
                for args in [&["load"][..], &["load", "-i", "-"]] {
                    let loaded = msb.run_with(args, bytes).line();
                    assert!(loaded.starts_with(&format!("docker.io/{name}@sha256:")), "{loaded}");
                    assert_eq!(word(&msb, name), "travelled\n33");
                    msb.run(["image", "rm", name]).ok();
                    msb.run(["image", "prune"]).ok();
                }
            }
        }
    }
}

#[test]
fn what_is_no_image_is_refused_and_leaves_nothing() {
    for msb in Msb::each_with_own_layers() {
        let whole = fs::read(exported(&msb, &layout(), "oci-archive", "x.tar", ":a:1")).unwrap();
        msb.file("empty", "");
        msb.file("text", "hello");
        msb.file("short.tar", &whole[..whole.len() / 2]);
        msb.file("directory/file", "");
        for file in ["empty", "text", "short.tar", "directory", "no-such-file"] {
            let gave = msb.run(["load", "-i", file, "-t", "bad:1"]);
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{file}: {gave:?}");
            assert!(gave.stderr.starts_with("error: "), "{file}: {gave:?}");
        }
        assert_eq!(msb.json(["image", "ls", "--json"]), serde_json::json!([]));
    }
}

#[test]
fn a_platform_of_an_archive_can_be_chosen() {
    let others = Image::busybox().platform("linux", "arm", Some("v7"));
    let layout = Layout::index(&[Image::busybox(), others]);
    for msb in Msb::each_with_own_layers() {
        let path = layout.path().to_str().unwrap();
        let args = ["load", "-i", path, "-t", "arm:1", "--platform", "linux/arm/v7"];
        let expected = format!("docker.io/library/arm:1@{}", layout.manifests[1]);
        assert_eq!(msb.run(args).line(), expected);
        let args = ["load", "-i", path, "-t", "own:1"];
        let expected = format!("docker.io/library/own:1@{}", layout.manifests[0]);
        assert_eq!(msb.run(args).line(), expected);
    }
}

/// Pulls [`layout`] and saves it as both kinds of archive at once.
fn saved(msb: &Msb, layout: &Layout) -> (String, PathBuf) {
    let name = Registry::shared().push(layout, "archives/saved:1");
    msb.run(["pull", &name]).ok();
    msb.run(["save", "-o", "out.tar", &name]).ok();
    (name, msb.scratch().join("out.tar"))
}

fn inspected(msb: &Msb, source: &str) -> Value {
    let raw = gives(msb.skopeo("inspect").args(["--raw", source])).ok();
    serde_json::from_str(&raw.stdout).expect("a manifest is JSON")
}

#[test]
fn skopeo_reads_what_we_save_in_both_ways() {
    let layout = layout();
    for msb in Msb::each_with_own_layers() {
        let (_, file) = saved(&msb, &layout);
        let manifest = inspected(&msb, &format!("oci-archive:{}", file.display()));
        assert_eq!(manifest, layout.manifest(0), "to the byte, or the digest would change");

        let again = msb.scratch().join("again");
        let source = format!("docker-archive:{}", file.display());
        let target = format!("oci:{}:latest", again.display());
        gives(msb.skopeo("copy").args([&source, &target])).ok();
        let config = inspected(&msb, &source)["config"]["digest"].clone();
        assert_eq!(config, layout.manifest(0)["config"]["digest"]);
        if msb.is_root() {
            same_trees(&unpack(&again, "latest"), &layout.unpacked());
        }
    }
}

fn same_trees(one: &Path, other: &Path) {
    let list = |tree| gives(Command::new(lister()).arg(tree)).line();
    assert_eq!(list(one), list(other));
}

#[test]
fn umoci_unpacks_the_directory_that_we_save() {
    let layout = layout();
    let name = Registry::shared().push(&layout, "archives/directory:1");
    let msb = Msb::with_own_layers();
    if !msb.is_root() {
        return skip("umoci gives files away only as root");
    }
    msb.run(["pull", &name]).ok();
    msb.run(["save", "--format", "dir", "-o", "out", &name]).ok();
    let out = msb.scratch().join("out");
    let index: Value = serde_json::from_slice(&fs::read(out.join("index.json")).unwrap()).unwrap();
    let annotation = &index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"];
    same_trees(&unpack(&out, annotation.as_str().unwrap()), &layout.unpacked());
    let gave = msb.run(["save", "--format", "dir", "-o", "out", &name]);
    assert_eq!(gave.code, 125, "what is there is not overwritten: {gave:?}");
}

#[test]
fn podman_loads_and_lists_what_we_save() {
    let msb = Msb::with_own_layers();
    if !msb.is_root() {
        return skip("podman needs a session or root");
    }
    let (name, file) = saved(&msb, &layout());
    let podman = |args: &[&str]| {
        let mut command = Command::new("podman");
        for flag in ["--root", "--runroot", "--tmpdir"] {
            command.arg(flag).arg(msb.scratch().join(format!("podman{flag}")));
        }
        command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]).args(args);
        gives(&mut command)
    };
    podman(&["load", "-q", "-i", file.to_str().unwrap()]).ok();
    let listed = podman(&["images", "--noheading", "--format", "{{.Repository}}:{{.Tag}}"]).line();
    assert_eq!(listed, name);
}

#[test]
fn what_we_save_we_load_with_the_same_digest() {
    let layout = layout();
    let other = Image::busybox().entries([Entry::file("word", "other\n")]).layout();
    let names = [
        Registry::shared().push(&layout, "archives/first:1"),
        Registry::shared().push(&other, "archives/second:1"),
    ];
    for (msb, fresh) in Msb::each_with_own_layers().into_iter().zip(Msb::each_with_own_layers()) {
        let pulled = msb.run(["pull", &names[0], &names[1]]).line();
        let file = msb.scratch().join("both.tar");
        let out = File::create(&file).unwrap();
        let status = msb.command(["save", &names[0], &names[1]]).stdout(out).status().unwrap();
        assert!(status.success());
        let loaded = fresh.run_with(["load"], &fs::read(&file).unwrap()).line();
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&loaded), sorted(&pulled));
        assert_eq!(word(&fresh, &names[0]), "travelled\n33");
    }
}

#[test]
fn an_archive_is_not_written_to_a_terminal() {
    let name = Registry::shared().push(&layout(), "archives/terminal:1");
    let msb = Msb::with_own_layers();
    msb.run(["pull", &name]).ok();
    let gave = msb.on_terminal(&format!("save {name}"));
    assert_eq!(gave.code, 125, "{gave:?}");
    assert!(gave.stdout.contains("-o"), "it says the way: {gave:?}");
}

#[test]
fn a_pushed_image_is_the_one_that_was_pulled() {
    let layout = layout();
    let (from, to) = (Registry::plain(), Registry::with_password());
    let name = from.push(&layout, "app:1");
    for (msb, fresh) in Msb::each_with_own_layers().into_iter().zip(Msb::each_with_own_layers()) {
        msb.run(["pull", &name]).ok();
        let target = to.name("team/app:2");
        let gave = msb.run(["push", &name, &target]);
        assert_eq!(gave.code, 125, "there is no login: {gave:?}");
        assert!(gave.stderr.contains("msb registry login"), "{gave:?}");
        for one in [&msb, &fresh] {
            let args = ["registry", "login", "-u", "agent", "--password-stdin", to.address()];
            one.run_with(args, msb_e2e::registry::PASSWORD.as_bytes()).ok();
        }
        msb.run(["push", &name, &target]).ok();
        let manifest: Value = serde_json::from_str(&to.manifest("team/app:2")).unwrap();
        assert_eq!(manifest, layout.manifest(0));
        let pulled = fresh.run(["pull", &target]).line();
        assert_eq!(pulled, format!("{target}@{}", layout.digest));
        assert_eq!(word(&fresh, &target), "travelled\n33");
    }
}

#[test]
fn what_the_registry_has_is_not_pushed_again() {
    let registry = Registry::plain();
    let name = registry.push(&layout(), "app:1");
    let msb = Msb::with_own_layers();
    msb.run(["pull", &name]).ok();
    let before = registry.requests().len();
    msb.run(["push", &name, &registry.name("app:2")]).ok();
    let sent: Vec<_> = registry.requests().split_off(before);
    let uploads = sent.iter().filter(|one| one.method == "PATCH" || one.method == "PUT");
    let blobs: Vec<_> = uploads.filter(|one| one.path.contains("/blobs/")).collect();
    assert!(blobs.is_empty(), "{blobs:#?}");
}

#[test]
fn a_loaded_image_is_pushed_without_having_been_pulled() {
    let registry = Registry::with_tls();
    let ca = registry.ca();
    let layout = layout();
    for msb in Msb::each_with_own_layers() {
        let file = exported(&msb, &layout, "docker-archive", "loaded.tar", ":team/loaded:1");
        msb.run(["load", "-i", file.to_str().unwrap()]).ok();
        let target = registry.name("loaded:1");
        msb.run(["push", "--ca", ca.to_str().unwrap(), "team/loaded:1", &target]).ok();
        let manifest: Value = serde_json::from_str(&registry.manifest("loaded:1")).unwrap();
        assert_eq!(manifest["config"]["digest"], layout.manifest(0)["config"]["digest"]);
        let gave = msb.run(["push", "--ca", ca.to_str().unwrap(), "no-such:1", &target]);
        assert_eq!(gave.code, 125, "{gave:?}");
    }
}

#[test]
fn a_snapshot_that_came_with_its_image_is_verified_down_to_the_lowest_layer() {
    for msb in Msb::each_with_own_layers() {
        let file = exported(&msb, &layout(), "oci-archive", "oci.tar", ":docker.io/team/oci:1");
        msb.run(["load", "-q", "-i", file.to_str().unwrap()]).ok();
        msb.words("create -q -n box team/oci:1").ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo more >> /word; echo own > /own"]).ok();
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box").ok();
        msb.words("snapshot save base --with-image -o base.tar").ok();
        msb.words("snapshot load -q -n again base.tar").ok();
        let known = || msb.json(["snapshot", "inspect", "again"])["digest"].is_string();
        eventually("it is written down what it holds", known);
        let told = msb.json(["snapshot", "verify", "--json", "again"]);
        assert!(told[0]["intact"] == true && told[0]["layers"].as_u64() >= Some(3), "{told}");
        // One bit of the top layer, and one of the image itself.
        for (name, whole) in [("own", "own\n"), ("bin/busybox", "\x7fELF")] {
            let file = unpacked(&msb, name, whole.as_bytes());
            let modified = file.metadata().and_then(|meta| meta.modified()).unwrap();
            file.write_at(&[whole.as_bytes()[1] ^ 1], 1).unwrap();
            file.set_modified(modified).unwrap();
            let gave = msb.words("snapshot verify again");
            let said = format!("/{name} has changed");
            assert!(gave.code == 1 && gave.stdout.contains(&said), "{gave:#?}");
            file.write_at(&whole.as_bytes()[1..2], 1).unwrap();
            file.set_modified(modified).unwrap();
        }
        msb.words("snapshot verify again").ok();
    }
}

/// A file of this name, which begins so, among unpacked layers.
fn unpacked(msb: &Msb, name: &str, beginning: &[u8]) -> File {
    let below = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let layers = below(&msb.home().join("layers")).flat_map(|owner| below(&owner.path()));
    let files = layers.map(|layer| layer.path().join("fs").join(name));
    let begins = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(beginning));
    let path = files.into_iter().find(begins).expect("a layer that has it");
    File::options().write(true).open(path).expect("a file")
}
