//! The licences of everything in the executable that comes from others, as one text.
//!
//! The texts are those in the sources of the crates. Each is printed once, below the names of the
//! crates that have it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Release;
use super::crates::Crate;
use super::runtime::Library;

const APACHE: &str = include_str!("../../../LICENSE");
const BSD: &str = include_str!("../../dist/licenses/BSD-3-Clause.txt");
const LGPL: &str = include_str!("../../dist/licenses/LGPL-2.1.txt");
const MIT: &str = include_str!("../../dist/licenses/MIT.txt");

/// Texts for crates without a licence file in their archive.
const STANDARD: &[(&str, &str)] = &[("Apache-2.0", APACHE), ("MIT", MIT), ("BSD-3-Clause", BSD)];

/// How the names of licence files begin, in lower case.
const BEGINNINGS: &[&str] = &["license", "licence", "unlicense", "copying", "copyright", "notice"];

/// The C library zstd gives a choice of two licences. We take the other one, in `zstd/LICENSE`.
const NOT_TAKEN: &[(&str, &str)] = &[("zstd-sys", "zstd/COPYING")];

const RULE: &str =
    "--------------------------------------------------------------------------------";

/// THIRD-PARTY-LICENSES.txt.
pub(super) fn text(release: &Release, crates: &[Crate], libraries: &[Library]) -> Result<String> {
    let crates: Vec<&Crate> = crates.iter().filter(|krate| krate.is_third_party()).collect();
    let mut list = format!(
        "Software of other authors in msb {}\n\n\
         The executable `msb` contains or was made with the crates below. Their licences follow, each\n\
         once, with the names of the crates that come with it.\n\n",
        release.version
    );
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for krate in &crates {
        list += &line(krate);
        let mut texts = texts(krate)?;
        if texts.is_empty() {
            texts = standard(krate)?;
            // The standard texts name no owner of the copyright.
            if !krate.authors.is_empty() {
                list += &format!("    Copyright (c) {}\n", krate.authors.join(", "));
            }
        }
        for text in texts {
            let name = format!("{} {}", krate.name, krate.version);
            by_text.entry(text).or_default().insert(name);
        }
    }
    let mut sections: Vec<_> = by_text.into_iter().collect();
    // Those of many crates first. Names break ties, and texts are all different.
    sections.sort_by(|(one, ones), (other, others)| {
        others.len().cmp(&ones.len()).then_with(|| ones.cmp(others)).then_with(|| one.cmp(other))
    });
    for (text, names) in sections {
        let names: Vec<String> = names.into_iter().collect();
        list += &format!("\n{RULE}\n{}\n\n{text}", wrapped("Used by: ", &names));
    }
    Ok(list + &runtime(release, libraries))
}

fn line(krate: &Crate) -> String {
    let license = krate.license.as_deref().unwrap_or("licence file");
    let repository = krate.repository.as_deref().unwrap_or_default();
    let line = format!("  {} {}  {license}  {repository}", krate.name, krate.version);
    line.trim_end().to_owned() + "\n"
}

/// The C library is under the LGPL, which asks for its text, for a notice, and that the executable
/// can be linked with another version of the library.
fn runtime(release: &Release, libraries: &[Library]) -> String {
    let mut out = format!("\n{RULE}\nLibraries that are linked statically besides the crates:\n\n");
    for Library { name, version, license, copyright, source } in libraries {
        out += &format!("  {name} {version}  {license}  {source}\n    {copyright}\n");
    }
    out += &format!(
        "\nrust-std is covered by the texts of MIT and Apache-2.0 above. The executable may also contain\n\
         parts of the GCC runtime library (libgcc), under GPL-3.0 with the GCC Runtime Library\n\
         Exception 3.1, which asks nothing of programs that are compiled with it.\n\n\
         glibc is covered by the GNU Lesser General Public License, version 2.1 or later. To link msb\n\
         with a changed glibc, build it from its source, {repository}\n\
         at the tag v{version}, with `cargo xtask dist` on a machine with that library.\n\n{LGPL}",
        repository = release.repository,
        version = release.version,
    );
    out
}

/// The texts that come with a crate.
fn texts(krate: &Crate) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(&krate.directory, &mut files)
        .with_context(|| format!("cannot read the source of `{}`", krate.name))?;
    files.retain(|path| {
        let path = path.strip_prefix(&krate.directory).unwrap_or(path);
        !NOT_TAKEN.iter().any(|(name, file)| krate.name == *name && path == Path::new(file))
    });
    let read = |path: &PathBuf| -> Result<String> {
        let bytes = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        Ok(normalised(&String::from_utf8_lossy(&bytes)))
    };
    files.iter().map(read).collect()
}

/// Licence files anywhere in a source: crates that bundle C have one beside that.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() && is_license(&entry.file_name().to_string_lossy()) {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// `LICENSE-MIT`, `COPYING.txt`; not `license.rs`.
fn is_license(name: &str) -> bool {
    let name = name.to_lowercase();
    let code = [".rs", ".c", ".h", ".py", ".sh"].iter().any(|end| name.ends_with(end));
    !code && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// All parts of an expression with AND, of each the first alternative with a known text.
fn standard(krate: &Crate) -> Result<Vec<String>> {
    let Crate { name, version, license, .. } = krate;
    let Some(license) = license else {
        bail!("crate `{name} {version}` has neither a licence nor a licence file");
    };
    let known = |id: &str| STANDARD.iter().find(|(known, _)| *known == id).map(|(_, text)| *text);
    let mut texts = Vec::new();
    for part in license.split(" AND ") {
        let Some(text) = part.split(" OR ").find_map(known) else {
            bail!(
                "crate `{name} {version}` has no licence file, and no text is known for `{part}`"
            );
        };
        texts.push(normalised(text));
    }
    Ok(texts)
}

/// Texts that differ in blanks at their ends only are the same.
fn normalised(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned() + "\n"
}

fn wrapped(first: &str, names: &[String]) -> String {
    let mut lines = vec![first.to_owned()];
    for (index, name) in names.iter().enumerate() {
        let comma = if index + 1 < names.len() { "," } else { "" };
        let line = lines.last_mut().expect("there is a first line");
        if line.len() + name.len() > RULE.len() && !line.trim().is_empty() {
            lines.push(format!("  {name}{comma} "));
        } else {
            *line += &format!("{name}{comma} ");
        }
    }
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_files(license: &str) -> Crate {
        Crate {
            name: "a".to_owned(),
            version: "1.0.0".to_owned(),
            license: Some(license.to_owned()),
            authors: Vec::new(),
            repository: None,
            directory: PathBuf::new(),
            checksum: Some("00".to_owned()),
            linked: true,
            dependencies: BTreeSet::new(),
        }
    }

    #[test]
    fn a_crate_without_a_file_gets_the_text_of_each_licence_that_holds() {
        let given = |license: &str| standard(&without_files(license)).unwrap();

        assert_eq!(given("Apache-2.0 AND BSD-3-Clause"), [normalised(APACHE), normalised(BSD)]);
        assert_eq!(given("Unlicense OR MIT"), [normalised(MIT)]);
    }

    #[test]
    fn a_licence_without_a_text_is_an_error_that_names_the_crate() {
        let error = standard(&without_files("MPL-2.0")).unwrap_err().to_string();
        assert!(error.contains("`a 1.0.0`") && error.contains("`MPL-2.0`"), "{error}");
    }

    #[test]
    fn files_are_taken_by_their_names() {
        assert!(is_license("LICENSE-MIT") && is_license("COPYING.txt") && is_license("License.md"));
        assert!(!is_license("license.rs") && !is_license("README.md"));
    }

    #[test]
    fn texts_that_differ_in_blanks_are_one() {
        assert_eq!(normalised("\n a \r\nb\n\n"), normalised(" a\nb"));
    }
}
