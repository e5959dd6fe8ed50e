//! The crates that the executable consists of.
//!
//! `cargo tree` says which, because it resolves features as a build of these packages alone does;
//! `cargo metadata` has the facts about each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::TARGET;
use crate::workspace;

/// What is built into one executable: the program, and those that its build script embeds.
const PROGRAMS: &[&[&str]] = &[&["msb-cli"], &["msb-guest", "msb-ctl"]];

/// Name and version, which are unique in one build from one registry.
pub(super) type Key = (String, String);

/// A crate that the executable was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// Its licence as an SPDX expression.
    pub(super) license: Option<String>,
    pub(super) authors: Vec<String>,
    pub(super) repository: Option<String>,
    /// Where its source lies.
    pub(super) directory: PathBuf,
    /// SHA-256 of its archive; none for a crate of the workspace.
    pub(super) checksum: Option<String>,
    /// Whether it is in the executable. Macros and what only they use are not.
    pub(super) linked: bool,
    /// Other crates of the list that it depends on.
    pub(super) dependencies: BTreeSet<Key>,
}

impl Crate {
    pub(super) fn key(&self) -> Key {
        (self.name.clone(), self.version.clone())
    }

    /// Whether it comes from others.
    pub(super) fn is_third_party(&self) -> bool {
        self.checksum.is_some()
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    authors: Vec<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// None for a normal dependency.
    kind: Option<String>,
}

/// All crates that the executable is made from, by name and version.
pub(super) fn all() -> Result<Vec<Crate>> {
    let (mut used, mut linked) = (BTreeSet::new(), BTreeSet::new());
    for programs in PROGRAMS {
        used.extend(tree(programs, "normal")?);
        linked.extend(tree(programs, "normal,no-proc-macro")?);
    }
    let checksums = checksums(&fs::read_to_string(workspace::root().join("Cargo.lock"))?);
    let command = &mut workspace::cargo(&[
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        TARGET,
    ]);
    let metadata: Metadata = serde_json::from_str(&workspace::output(command)?)
        .context("cannot read cargo's metadata")?;
    let mut edges = edges(&metadata, &used);
    let mut crates = Vec::new();
    for package in metadata.packages {
        let key = (package.name.clone(), package.version.clone());
        if !used.contains(&key) {
            continue;
        }
        crates.push(Crate {
            license: package.license.as_deref().map(expression),
            directory: package.manifest_path.parent().unwrap_or(Path::new("/")).to_owned(),
            checksum: checksums.get(&key).cloned(),
            linked: linked.contains(&key),
            dependencies: edges.remove(&key).unwrap_or_default(),
            name: package.name,
            version: package.version,
            authors: package.authors,
            repository: package.repository,
        });
    }
    crates.sort_by_key(Crate::key);
    Ok(crates)
}

fn tree(programs: &[&str], edges: &str) -> Result<Vec<Key>> {
    let fixed = ["--target", TARGET, "--prefix", "none", "--format", "{p}", "--locked"];
    let mut command = workspace::cargo(&["tree", "--edges", edges]);
    command.args(fixed).args(programs.iter().flat_map(|name| ["--package", name]));
    Ok(workspace::output(&mut command)?.lines().filter_map(key_of_line).collect())
}

/// `serde_derive v1.0.0 (proc-macro) (*)`
fn key_of_line(line: &str) -> Option<Key> {
    let mut words = line.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((name.to_owned(), version.to_owned()))
}

/// The dependencies of each crate that is used, as far as they are used themselves.
fn edges(metadata: &Metadata, used: &BTreeSet<Key>) -> BTreeMap<Key, BTreeSet<Key>> {
    let key = |package: &Package| (package.name.clone(), package.version.clone());
    let keys: BTreeMap<&str, Key> =
        metadata.packages.iter().map(|package| (package.id.as_str(), key(package))).collect();
    let edges = metadata.resolve.nodes.iter().filter_map(|node| {
        let normal = |dependency: &&Dependency| {
            dependency.dep_kinds.iter().any(|dependency| dependency.kind.is_none())
        };
        let dependencies = node.deps.iter().filter(normal);
        let dependencies = dependencies.filter_map(|dependency| keys.get(dependency.pkg.as_str()));
        let dependencies = dependencies.filter(|key| used.contains(key)).cloned().collect();
        Some((keys.get(node.id.as_str())?.clone(), dependencies))
    });
    edges.collect()
}

/// Old manifests write `MIT/Apache-2.0`.
fn expression(license: &str) -> String {
    let parts: Vec<&str> = license.split('/').map(str::trim).collect();
    parts.join(" OR ")
}

/// The checksums of Cargo.lock by name and version.
fn checksums(lock: &str) -> BTreeMap<Key, String> {
    let mut checksums = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let value = |line: &str| {
                Some(line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned())
            };
            package.lines().find_map(value)
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (field("name"), field("version"), field("checksum"))
        {
            checksums.insert((name, version), checksum);
        }
    }
    checksums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargo_tree_names_a_crate() {
        let key = |name: &str, version: &str| Some((name.to_owned(), version.to_owned()));
        assert_eq!(key_of_line("serde v1.0.2"), key("serde", "1.0.2"));
        assert_eq!(key_of_line("a-b v0.1.0+x (proc-macro) (*)"), key("a-b", "0.1.0+x"));
        assert_eq!(key_of_line(""), None);
    }

    #[test]
    fn checksums_belong_to_a_version_and_the_workspace_has_none() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"r\"\n\
                    checksum = \"00ff\"\n\n[[package]]\nname = \"msb\"\nversion = \"0.1.0\"\n";
        let expected = [(("a".to_owned(), "1.0.0".to_owned()), "00ff".to_owned())];
        assert_eq!(checksums(lock), BTreeMap::from(expected));
    }

    #[test]
    fn old_expressions_become_spdx() {
        assert_eq!(expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(expression("(MIT OR Apache-2.0) AND ISC"), "(MIT OR Apache-2.0) AND ISC");
    }
}
