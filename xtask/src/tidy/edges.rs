//! Which crate may depend on which. Edges go down only, so that the rules a crate stands for
//! (no I/O, no async, no network) hold for everything below it too.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Finding;
use crate::workspace;

/// Each crate and what it may depend on, also in tests and build scripts. A crate that is not
/// listed here is a finding: decide its place first.
const EDGES: &[(&str, &[&str])] = &[
    ("msb-spec", &[]),
    ("msb-sys", &[]),
    ("msb-erofs", &[]),
    ("msb-ext4", &[]),
    ("msb-ctl", &[]),
    ("msb-log", &["msb-spec"]),
    ("msb-wire", &["msb-spec"]),
    ("msb-api", &["msb-wire", "msb-spec"]),
    ("msb-jail", &["msb-log", "msb-spec", "msb-sys"]),
    ("msb-image", &["msb-log", "msb-erofs", "msb-ext4", "msb-jail", "msb-spec", "msb-sys"]),
    ("msb-gateway", &["msb-log", "msb-wire", "msb-spec", "msb-sys"]),
    ("msb-review", &["msb-api", "msb-spec", "msb-sys"]),
    ("msb-vm", &["msb-spec", "msb-sys"]),
    ("msb-kernel", &["msb-spec", "msb-sys"]),
    ("msb-guest", &["msb-wire", "msb-spec", "msb-sys"]),
    (
        "msb-worker",
        &[
            "msb-log",
            "msb-erofs",
            "msb-vm",
            "msb-guest",
            "msb-jail",
            "msb-wire",
            "msb-spec",
            "msb-sys",
        ],
    ),
    (
        "msb-engine",
        &[
            "msb-log",
            "msb-api",
            "msb-image",
            "msb-jail",
            "msb-kernel",
            "msb-review",
            "msb-wire",
            "msb-spec",
            "msb-sys",
        ],
    ),
    ("msb-client", &["msb-api", "msb-spec", "msb-sys"]),
    ("msb-server", &["msb-log", "msb-api", "msb-spec", "msb-sys"]),
    ("msb-ssh", &["msb-log", "msb-api", "msb-spec", "msb-sys"]),
    ("microsandbox", &["msb-engine", "msb-client", "msb-api", "msb-wire", "msb-spec", "msb-sys"]),
    (
        "msb-cli",
        &[
            "msb-log",
            "msb-server",
            "msb-ssh",
            "msb-client",
            "msb-engine",
            "msb-worker",
            "msb-gateway",
            "microsandbox",
            "msb-api",
            "msb-image",
            "msb-jail",
            "msb-wire",
            "msb-spec",
            "msb-sys",
        ],
    ),
    // Black-box tests and tools see what users see, or they would break with the insides.
    ("msb-e2e", &["microsandbox", "msb-wire"]),
    ("xtask", &[]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Present for what lies in this repository.
    path: Option<PathBuf>,
}

pub(super) fn findings(root: &Path) -> Result<Vec<Finding>> {
    let metadata = workspace::output(&mut workspace::cargo(&[
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
        "--offline",
    ]))?;
    let metadata: Metadata =
        serde_json::from_str(&metadata).context("cannot read cargo's metadata")?;
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let path = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
        let manifest = fs::read_to_string(&package.manifest_path)
            .with_context(|| format!("cannot read `{}`", package.manifest_path.display()))?;
        for (dependency, message) in breaches(package) {
            findings.push(Finding {
                path: path.to_string_lossy().into_owned(),
                line: line_of(&manifest, dependency),
                message,
            });
        }
    }
    Ok(findings)
}

/// The dependency, or the package itself, and what is wrong with it.
fn breaches(package: &Package) -> Vec<(&str, String)> {
    let name = package.name.as_str();
    let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
        return vec![(name, format!("`{name}` has no place in the table of edges"))];
    };
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    ours.map(|dependency| dependency.name.as_str())
        .filter(|to| !allowed.contains(to))
        .map(|to| (to, format!("`{name}` may not depend on `{to}`")))
        .collect()
}

fn line_of(manifest: &str, dependency: &str) -> usize {
    let names = |line: &str| {
        line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
            || line.contains(&format!("\"{dependency}\""))
    };
    manifest.lines().position(names).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|name| Dependency { name: (*name).to_owned(), path: Some("crates".into()) })
            .collect();
        Package { name: name.to_owned(), manifest_path: PathBuf::new(), dependencies }
    }

    #[test]
    fn an_edge_of_the_table_is_good() {
        assert_eq!(breaches(&package("msb-worker", &["msb-jail", "msb-sys"])), []);
    }

    #[test]
    fn a_dependency_from_elsewhere_is_no_edge() {
        let mut foreign = package("msb-spec", &["serde"]);
        foreign.dependencies[0].path = None;
        assert_eq!(breaches(&foreign), []);
    }

    #[test]
    fn an_edge_upwards_is_found() {
        assert_eq!(
            breaches(&package("msb-spec", &["msb-engine"])),
            [("msb-engine", "`msb-spec` may not depend on `msb-engine`".to_owned())]
        );
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        assert_eq!(breaches(&package("msb-extra", &[])).len(), 1);
    }

    #[test]
    fn no_edge_of_the_table_goes_up() {
        for (index, (from, to)) in EDGES.iter().enumerate() {
            for name in *to {
                let below = EDGES.iter().position(|(crate_name, _)| crate_name == name);
                assert!(below.is_some_and(|below| below < index), "{from} → {name}");
            }
        }
    }

    #[test]
    fn the_line_of_a_dependency_is_found_in_its_manifest() {
        let manifest =
            "[package]\nname = \"msb-wire\"\n\n[dependencies]\nmsb-spec.workspace = true\n";
        assert_eq!(line_of(manifest, "msb-spec"), 5);
        assert_eq!(line_of(manifest, "msb-wire"), 2);
        assert_eq!(line_of(manifest, "absent"), 1);
    }
}
