//! The image cache: shared layers, listings, rm and prune.

use msb_e2e::Msb;
use msb_e2e::images::{Image, Layer, Layout, own_architecture};
use msb_e2e::registry::Registry;
use msb_e2e::tar::Entry;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Names of the layers that are unpacked: 64 hexadecimal digits, in a directory by owners.
fn layers(msb: &Msb) -> Vec<String> {
    let mut all: Vec<String> = entries(&msb.home().join("layers"))
        .iter()
        .flat_map(|owners| entries(&msb.home().join("layers").join(owners)))
        .filter(|name| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .collect();
    all.sort();
    all
}

fn blobs(msb: &Msb) -> Vec<String> {
    entries(&msb.home().join("blobs/sha256"))
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn listed(msb: &Msb) -> Vec<String> {
    let listed = msb.json(["image", "ls", "--json"]);
    let listed = listed.as_array().expect("a list");
    listed.iter().map(|one| one["reference"].as_str().expect("text").to_owned()).collect()
}

fn with_file(word: &str) -> Layout {
    Image::busybox().entries([Entry::file(word, word.repeat(5000))]).layout()
}

#[test]
fn a_layer_of_several_images_exists_once() {
    for msb in Msb::each_with_own_layers() {
        let registry = Registry::plain();
        let (left, right) = (with_file("left"), with_file("right"));
        let names = [registry.push(&left, "left:1"), registry.push(&right, "right:1")];
        for name in &names {
            msb.run(["pull", name]).ok();
        }
        let shared = Layer::busybox();
        assert_eq!(registry.fetched(shared.digest()).len(), 1);
        let ids = [left.diff_ids(), right.diff_ids()].concat();
        let mut expected: Vec<&str> = ids.iter().map(|id| &id["sha256:".len()..]).collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(layers(&msb), expected);
        let list = msb.json(["image", "ls", "--json"]);
        for one in list.as_array().unwrap() {
            let number = |key: &str| one[key].as_u64().unwrap_or_else(|| panic!("{key}: {one}"));
            assert_eq!(number("size"), number("own") + number("shared"), "{one}");
            assert!(number("own") >= 20_000 && number("shared") >= 100_000, "{one}");
            assert_eq!(number("layers"), 2);
        }
        let inspected = msb.json(["image", "inspect", "--json", &names[0]]);
        assert_eq!(inspected["layers"][0]["shared_with"], json!([names[1]]));
        assert_eq!(inspected["layers"][1]["shared_with"], json!([]));
    }
}

#[test]
fn a_listing_tells_what_there_is() {
    let layout = with_file("listed");
    let name = Registry::shared().push(&layout, "listed:1");
    for msb in Msb::each_with_own_layers() {
        assert_eq!(msb.json(["image", "ls", "--json"]), json!([]));
        let before = now();
        msb.run(["pull", &name]).ok();
        msb.run(["create", "-n", "box", &name]).ok();
        let list = msb.json(["image", "ls", "--json"]);
        let one = &list[0];
        assert_eq!(list.as_array().unwrap().len(), 1);
        assert_eq!(one["reference"], name.as_str());
        assert_eq!(one["digest"], layout.digest.as_str());
        assert_eq!(one["platform"], format!("linux/{}", own_architecture()));
        assert_eq!(one["layers"], 2);
        assert_eq!(one["created"], "2020-09-13T12:26:40.000Z");
        assert_eq!(one["sandboxes"], json!(["box"]));
        for key in ["pulled", "used"] {
            let at = one[key].as_str().unwrap_or_else(|| panic!("{key}: {one}")).to_owned();
            assert!((before.clone()..=now()).contains(&at), "{key}: {one}");
        }
        let keys: Vec<&String> = one.as_object().unwrap().keys().collect();
        let mut expected = ["reference", "digest", "platform", "size", "own", "shared", "layers"]
            .into_iter()
            .chain(["created", "pulled", "used", "sandboxes"])
            .collect::<Vec<_>>();
        expected.sort_unstable();
        let mut keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected);

        let table = msb.words("image ls").line();
        let words: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(words, ["IMAGE", "DIGEST", "PLATFORM", "SIZE", "OWN", "USED", "SANDBOXES"]);
        assert!(table.lines().nth(1).unwrap().starts_with(&name), "{table}");
    }
}

/// The time as listings write it: of two texts the later is the larger.
fn now() -> String {
    let date = std::process::Command::new("date").args(["-u", "+%FT%T.%3NZ"]).output();
    String::from_utf8(date.expect("date can be executed").stdout).expect("text").trim().to_owned()
}

#[test]
fn inspect_tells_each_layer_and_how_it_came_to_be() {
    let layout = with_file("inspected");
    let name = Registry::shared().push(&layout, "inspected:1");
    let manifest = layout.manifest(0);
    let config = layout.read(manifest["config"]["digest"].as_str().unwrap());
    for msb in Msb::each_with_own_layers() {
        msb.run(["pull", &name]).ok();
        let inspected = msb.json(["image", "inspect", "--json", &name]);
        assert_eq!(inspected["index"], Value::Null);
        for (at, layer) in inspected["layers"].as_array().unwrap().iter().enumerate() {
            assert_eq!(layer["digest"], manifest["layers"][at]["digest"]);
            assert_eq!(layer["size"], manifest["layers"][at]["size"]);
            assert_eq!(layer["media_type"], manifest["layers"][at]["mediaType"]);
            assert_eq!(layer["diff_id"], config["rootfs"]["diff_ids"][at]);
            assert!(layer["unpacked"].as_u64().unwrap() > 0);
        }
        assert_eq!(inspected["history"].as_array().unwrap().len(), 2);
        assert!(inspected["history"].to_string().contains("the tests"));
        let text = msb.run(["image", "inspect", &name]).line();
        assert!(text.contains(&layout.digest), "{text}");
    }
}

#[test]
fn an_image_in_use_is_removed_only_by_force_and_its_sandbox_lives_on() {
    let layout = with_file("in-use");
    let name = Registry::shared().push(&layout, "in-use:1");
    for msb in Msb::each_with_own_layers() {
        msb.run(["create", "-n", "box", &name]).ok();
        let gave = msb.run(["image", "rm", &name]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        assert!(gave.stderr.contains("box"), "{gave:?}");
        assert_eq!(listed(&msb), [name.as_str()]);

        assert_eq!(msb.run(["image", "rm", "-f", &name]).line(), name);
        assert_eq!(listed(&msb), [""; 0]);
        msb.run(["image", "prune", "--all"]).ok();
        assert_eq!(layers(&msb).len(), 2, "the sandbox keeps its layers");
        let script = ["exec", "box", "--", "test", "-s", "/in-use"];
        msb.run(script).ok();
        msb.run(["stop", "box"]).ok();
        msb.run(["start", "box"]).ok();
        msb.run(script).ok();

        msb.run(["rm", "-f", "box"]).ok();
        msb.run(["image", "prune"]).ok();
        assert_eq!((layers(&msb), blobs(&msb)), (vec![], vec![]));
    }
}

#[test]
fn several_names_of_one_image_are_removed_one_by_one() {
    let registry = Registry::shared();
    let layout = with_file("renamed");
    let names = ["renamed:1", "renamed:2"].map(|name| registry.push(&layout, name));
    for msb in Msb::each_with_own_layers() {
        msb.run(["pull", &names[0], &names[1]]).ok();
        assert_eq!(msb.run(["image", "rm", &names[0]]).line(), names[0]);
        msb.run(["image", "prune"]).ok();
        assert_eq!(listed(&msb), [names[1].as_str()]);
        msb.run(["run", "--pull", "never", &names[1], "--", "test", "-s", "/renamed"]).ok();
        let gave = msb.run(["image", "rm", &names[0]]);
        assert_eq!(gave.code, 125, "{gave:?}");
    }
}

#[test]
fn prune_takes_what_nothing_uses_and_nothing_else() {
    let registry = Registry::shared();
    let kept = registry.push(&with_file("kept"), "kept:1");
    let used = registry.push(&with_file("used"), "used:1");
    let gone = registry.push(&with_file("gone"), "gone:1");
    for msb in Msb::each_with_own_layers() {
        msb.run(["pull", &kept]).ok();
        msb.run(["create", "-n", "box", &used]).ok();
        msb.run(["create", "-n", "last", &gone]).ok();
        msb.run(["image", "rm", "-f", &gone]).ok();
        msb.run(["rm", "-f", "last"]).ok();
        let before = (layers(&msb), blobs(&msb));
        assert_eq!(before.0.len(), 4);

        let dry = msb.run(["image", "prune", "--dry-run"]).ok();
        assert_eq!((layers(&msb), blobs(&msb)), before, "{dry:?}");
        let done = msb.json(["image", "prune", "--json"]);
        assert_eq!(layers(&msb).len(), 3, "{done}");
        assert!(done.to_string().bytes().any(|byte| byte.is_ascii_digit()), "{done}");
        assert_eq!(listed(&msb).len(), 2);

        let said = msb.run(["image", "prune", "--all"]).ok();
        assert!(!said.stdout.is_empty() || !said.stderr.is_empty(), "it says what it did");
        assert_eq!(listed(&msb), [used.as_str()]);
        assert_eq!(layers(&msb).len(), 2);
        msb.run(["exec", "box", "--", "test", "-s", "/used"]).ok();
    }
}

#[test]
fn prune_of_old_images_leaves_new_ones() {
    let name = Registry::shared().push(&with_file("new"), "new:1");
    for msb in Msb::each_with_own_layers() {
        msb.run(["pull", &name]).ok();
        msb.run(["image", "prune", "--all", "--older-than", "1h"]).ok();
        assert_eq!(listed(&msb), [name.as_str()]);
    }
}

#[test]
fn corrupt_cache_entries_are_fetched_again() {
    let registry = Registry::plain();
    let layout = with_file("broken");
    let name = registry.push(&layout, "broken:1");
    for msb in Msb::each_with_own_layers() {
        msb.run(["pull", &name]).ok();
        msb.run(["image", "rm", &name]).ok();
        for blob in blobs(&msb) {
            let path = msb.home().join("blobs/sha256").join(blob);
            let mut content = fs::read(&path).unwrap();
            content[0] ^= 1;
            let _ = fs::remove_file(&path);
            fs::write(&path, content).unwrap();
            msb.chown(&path);
        }
        for owners in entries(&msb.home().join("layers")) {
            let _ = fs::remove_dir_all(msb.home().join("layers").join(owners));
        }
        let gave = msb.run(["run", &name, "--", "test", "-s", "/broken"]);
        assert_eq!(gave.code, 0, "{gave:?}");
    }
}
