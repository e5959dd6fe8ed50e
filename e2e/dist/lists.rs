//! The software bill of materials and the licences name every crate that `cargo tree` does.

use crate::{file, release};
use msb_e2e::gives;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Name and version of the crates that msb is made from on Linux; those of the workspace have a path.
fn crates() -> Vec<(String, bool)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut tree = Command::new(cargo);
    tree.args(["tree", "--package", "msb-cli", "--edges", "normal", "--target", &target]);
    tree.args(["--prefix", "none", "--format", "{p}", "--locked", "--offline"]);
    let said = gives(tree.current_dir(env!("CARGO_MANIFEST_DIR"))).line();
    let crates = said.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some((format!("{name} {version}"), line.contains("(/")))
    });
    let crates: Vec<_> = crates.collect();
    assert!(crates.len() > 100, "{crates:?}");
    crates
}

fn components() -> Vec<Value> {
    let text = fs::read_to_string(file(".cdx.json")).expect("a file");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["bomFormat"], "CycloneDX");
    assert_eq!(document["metadata"]["component"]["name"], "msb");
    document["components"].as_array().expect("a list").clone()
}

#[test]
fn the_bill_of_materials_has_every_crate() {
    let components = components();
    let name = |component: &Value| {
        let text = |field: &str| component[field].as_str().expect("text").to_owned();
        format!("{} {}", text("name"), text("version"))
    };
    let listed: BTreeSet<String> = components.iter().map(name).collect();
    let missing: Vec<_> = crates().into_iter().filter(|(name, _)| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for library in ["glibc", "rust-std"] {
        assert!(components.iter().any(|component| component["name"] == library), "{library}");
    }
}

#[test]
fn every_crate_of_a_registry_has_a_licence_a_checksum_and_a_package_url() {
    let ours: BTreeSet<String> =
        crates().into_iter().filter(|(_, own)| *own).map(|(name, _)| name).collect();
    for component in components() {
        let (name, version) = (component["name"].as_str(), component["version"].as_str());
        let (name, version) = (name.expect("a name"), version.expect("a version"));
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        let own = ours.contains(&format!("{name} {version}")) || name == "msb-ctl";
        if own || ["glibc", "rust-std"].contains(&name) {
            continue;
        }
        let url = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
        assert_eq!(component["purl"], url, "{component}");
        let digest = component["hashes"][0]["content"].as_str().expect("a checksum");
        assert!(digest.len() == 64 && component["hashes"][0]["alg"] == "SHA-256", "{component}");
    }
}

#[test]
fn the_licences_name_every_crate_of_others_and_have_a_text_for_each() {
    let text = fs::read_to_string(release().join("THIRD-PARTY-LICENSES.txt")).expect("a file");
    let (list, texts) = text.split_once("\n---").expect("a list, then texts");
    let used: String = texts.split("\n\n").filter(|part| part.contains("Used by: ")).collect();
    let used = used.split_whitespace().collect::<Vec<_>>().join(" ");
    for (name, own) in crates() {
        if own {
            continue;
        }
        assert!(list.contains(&format!("\n  {name}  ")), "{name} is not listed");
        assert!(used.contains(&name), "{name} has no text");
    }
    assert!(texts.contains("GNU LESSER GENERAL PUBLIC LICENSE"), "the licence of the C library");
}
