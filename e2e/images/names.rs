//! Names of images: short ones, tags, digests, aliases, and what is no name.

use msb_e2e::images::{Image, Layout};
use msb_e2e::registry::Registry;
use msb_e2e::tar::Entry;
use msb_e2e::{Msb, gives};
use std::process::Command;

fn mirrored(registry: &Registry) -> String {
    format!("[registries.\"docker.io\"]\nmirrors = [\"{}\"]\n", registry.url())
}

#[test]
fn a_short_name_is_an_official_image_of_docker_hub() {
    let registry = Registry::shared();
    registry.push(Layout::busybox(), "library/short:latest");
    registry.push(Layout::busybox(), "team/short:2");
    let digest = &Layout::busybox().manifests[0];
    for msb in Msb::each_with_own_layers() {
        msb.write_config(&mirrored(registry));
        let full = format!("docker.io/library/short:latest@{digest}");
        assert_eq!(msb.run(["pull", "short"]).line(), full);
        let full = format!("docker.io/team/short:2@{digest}");
        assert_eq!(msb.run(["pull", "team/short:2"]).line(), full);
        // Every spelling of a name is that name.
        for name in
            ["short", "library/short", "docker.io/short:latest", "index.docker.io/library/short"]
        {
            let args = ["run", "--pull", "never", name, "--", "echo", "there"];
            assert_eq!(msb.run(args).line(), "there", "{name}");
        }
    }
}

#[test]
fn a_digest_names_exactly_one_image() {
    let registry = Registry::shared();
    let old = Image::busybox().entries([Entry::file("word", "old\n")]).layout();
    let new = Image::busybox().entries([Entry::file("word", "new\n")]).layout();
    registry.push(&old, "pinned:1");
    registry.push(&new, "pinned:1");
    let pinned = registry.name(&format!("pinned@{}", old.digest));
    let both = registry.name(&format!("pinned:1@{}", old.digest));
    for msb in Msb::each_with_own_layers() {
        for name in [&pinned, &both] {
            assert_eq!(msb.run(["run", name, "--", "cat", "/word"]).line(), "old");
        }
        let tagged = registry.name("pinned:1");
        assert_eq!(msb.run(["run", &tagged, "--", "cat", "/word"]).line(), "new");
        assert_eq!(
            msb.run(["run", "--pull", "never", &pinned, "--", "cat", "/word"]).line(),
            "old"
        );
        let nothing = registry.name(&format!("pinned@sha256:{}", "0".repeat(64)));
        let gave = msb.run(["pull", &nothing]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
    }
}

#[test]
fn an_alias_means_what_the_settings_say() {
    let registry = Registry::shared();
    let name = registry.push(Layout::busybox(), "team/tools:3");
    for msb in Msb::each_with_own_layers() {
        msb.write_config(&format!("[aliases]\ntools = \"{name}\"\n"));
        assert_eq!(msb.run(["run", "tools", "--", "echo", "there"]).line(), "there");
        let listed = msb.json(["image", "ls", "--json"]);
        assert_eq!(listed[0]["reference"], name.as_str());
        assert_eq!(msb.run(["image", "rm", "tools"]).line(), name);
    }
}

#[test]
fn a_missing_image_is_reported_as_missing() {
    let registry = Registry::shared();
    registry.push(Layout::busybox(), "exists:1");
    for msb in Msb::each_with_own_layers() {
        for name in ["exists:2", "never-was:1"] {
            let name = registry.name(name);
            let gave = msb.run(["pull", &name]);
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
            assert!(gave.stderr.starts_with("error: "), "{gave:?}");
            assert!(gave.stderr.contains(&name), "{gave:?}");
            let gave = msb.run(["image", "inspect", &name]);
            assert_eq!(gave.code, 125, "{gave:?}");
        }
        assert_eq!(msb.json(["image", "ls", "--json"]), serde_json::json!([]));
    }
}

#[test]
fn an_invalid_name_is_refused_before_any_request() {
    let msb = Msb::with_own_layers();
    for name in
        ["UPPER", "a b", "a//b", "a:", "a@sha256:1", "a@md5:00", ":1", "a:../../x", "-", "é"]
    {
        for words in [
            &["pull", name][..],
            &["run", name, "--", "true"],
            &["image", "inspect", name],
            &["image", "rm", name],
        ] {
            let gave = msb.run(words);
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{words:?}: {gave:?}");
            assert!(gave.stderr.starts_with("error: "), "{words:?}: {gave:?}");
        }
    }
}

#[test]
fn a_disk_image_is_refused_here_with_the_tier_that_takes_it() {
    for msb in Msb::each_with_own_layers() {
        let raw = msb.file("disk.img", vec![0; 1 << 20]);
        gives(Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-F"]).arg(raw)).ok();
        let header = [&b"QFI\xfb\0\0\0\x03"[..], &[0; 4096]].concat();
        msb.file("disk.qcow2", header);
        for disk in ["./disk.img", "./disk.qcow2"] {
            let gave = msb.run(["run", disk, "--", "true"]);
            assert_eq!(gave.code, 125, "{gave:?}");
            assert!(gave.stderr.contains("vm"), "{gave:?}");
        }
    }
}
