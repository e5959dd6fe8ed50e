//! The software bill of materials: CycloneDX 1.6 as JSON.
//!
//! The same input gives the same bytes: components are in order, the time is that of the release, and
//! there is no serial number.

use serde_json::{Value, json};

use super::Release;
use super::crates::{Crate, Key};
use super::runtime::Library;

/// Names the executable among the components.
const PROGRAM: &str = "msb";

/// What the executable is made of. `digest` is its SHA-256.
pub(super) fn document(
    release: &Release,
    crates: &[Crate],
    libraries: &[Library],
    digest: &str,
) -> Value {
    let mut components: Vec<Value> = crates.iter().map(component).collect();
    components.extend(libraries.iter().map(library));
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.timestamp,
            "tools": { "components": [
                { "type": "application", "name": "cargo xtask dist", "version": release.version },
            ] },
            "component": {
                "type": "application",
                "bom-ref": PROGRAM,
                "name": PROGRAM,
                "version": release.version,
                "licenses": [{ "expression": "Apache-2.0" }],
                "hashes": [{ "alg": "SHA-256", "content": digest }],
                "externalReferences": [{ "type": "vcs", "url": release.repository }],
            },
        },
        "components": components,
        "dependencies": dependencies(crates, libraries),
    })
}

fn component(krate: &Crate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(&krate.key()),
        "name": krate.name,
        "version": krate.version,
        "scope": if krate.linked { "required" } else { "excluded" },
    });
    if let Some(license) = &krate.license {
        component["licenses"] = json!([{ "expression": license }]);
    }
    if let Some(repository) = &krate.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    // A crate of the workspace is in no registry.
    if let Some(checksum) = &krate.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        component["purl"] = json!(purl(&krate.name, &krate.version));
    }
    component
}

/// A version may have a `+`, which a package URL writes as `%2B`.
fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn library(library: &Library) -> Value {
    json!({
        "type": "library",
        "bom-ref": reference_of(library),
        "name": library.name,
        "version": library.version,
        "scope": "required",
        "licenses": [{ "expression": library.license }],
        "copyright": library.copyright,
        "externalReferences": [{ "type": "website", "url": library.source }],
    })
}

/// The graph. The executable depends on the packages that its programs are built from.
fn dependencies(crates: &[Crate], libraries: &[Library]) -> Vec<Value> {
    let is_root = |krate: &&Crate| {
        !krate.is_third_party()
            && !crates.iter().any(|other| other.dependencies.contains(&krate.key()))
    };
    let roots = crates.iter().filter(is_root).map(|krate| reference(&krate.key()));
    let on: Vec<String> = roots.chain(libraries.iter().map(reference_of)).collect();
    let mut graph = vec![json!({ "ref": PROGRAM, "dependsOn": on })];
    graph.extend(crates.iter().map(|krate| {
        let on: Vec<String> = krate.dependencies.iter().map(reference).collect();
        json!({ "ref": reference(&krate.key()), "dependsOn": on })
    }));
    graph
}

fn reference((name, version): &Key) -> String {
    format!("{name}@{version}")
}

fn reference_of(library: &Library) -> String {
    format!("{}@{}", library.name, library.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn krate(name: &str, checksum: Option<&str>, on: &[&str]) -> Crate {
        Crate {
            name: name.to_owned(),
            version: "1.0.0+x".to_owned(),
            license: Some("MIT".to_owned()),
            authors: Vec::new(),
            repository: None,
            directory: PathBuf::new(),
            checksum: checksum.map(str::to_owned),
            linked: name != "derive",
            dependencies: on.iter().map(|on| (on.to_string(), "1.0.0+x".to_owned())).collect(),
        }
    }

    #[test]
    fn a_crate_of_a_registry_has_a_checksum_and_a_package_url() {
        assert_eq!(
            component(&krate("a", Some("00"), &[])),
            json!({
                "type": "library", "bom-ref": "a@1.0.0+x", "name": "a", "version": "1.0.0+x",
                "scope": "required", "licenses": [{ "expression": "MIT" }],
                "hashes": [{ "alg": "SHA-256", "content": "00" }], "purl": "pkg:cargo/a@1.0.0%2Bx",
            })
        );
        assert_eq!(component(&krate("derive", None, &[]))["scope"], "excluded");
        assert_eq!(component(&krate("own", None, &[]))["purl"], Value::Null);
    }

    #[test]
    fn the_executable_depends_on_what_nothing_else_depends_on() {
        let crates =
            [krate("cli", None, &["own"]), krate("own", None, &["a"]), krate("a", Some("0"), &[])];
        let graph = dependencies(&crates, &[]);
        assert_eq!(graph[0], json!({ "ref": "msb", "dependsOn": ["cli@1.0.0+x"] }));
        assert_eq!(graph[2], json!({ "ref": "own@1.0.0+x", "dependsOn": ["a@1.0.0+x"] }));
    }
}
