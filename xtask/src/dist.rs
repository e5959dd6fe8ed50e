//! Makes everything that a release ships, in one directory. docs/releasing.md says what each file is.
//!
//! The same source, executable and tools give the same bytes: files are in order, their times are
//! those of the release, and nothing names this machine.

mod changelog;
mod crates;
mod deb;
mod files;
mod kernel;
mod licenses;
mod options;
mod runtime;
mod sbom;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::packages::{self, Need};
use crate::workspace;
use files::{put, put_program};
pub(crate) use options::Options;

const NEEDS: &[Need] = &[
    Need::Command("dpkg-deb", "dpkg"),
    Need::Command("tar", "tar"),
    Need::Command("gzip", "gzip"),
    Need::Command("git", "git"),
];

/// What the executable is built for.
const TARGET: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};

const INSTALLER: &str = include_str!("../dist/install.sh");

/// Names and times of a release.
#[derive(Debug, Clone)]
struct Release {
    version: String,
    repository: String,
    /// Seconds since 1970 that all files are from.
    epoch: u64,
    /// `epoch` as RFC 3339, for JSON.
    timestamp: String,
    /// `epoch` as RFC 2822, for changelogs of Debian.
    date: String,
    quick: bool,
}

impl Release {
    fn read(quick: bool) -> Result<Self> {
        let Workspace { version, repository } = workspace_facts()?;
        let epoch = epoch()?;
        let (timestamp, date) =
            (date(epoch, "+%Y-%m-%dT%H:%M:%SZ")?, date(epoch, "+%a, %d %b %Y %H:%M:%S +0000")?);
        Ok(Self { version, repository, epoch, timestamp, date, quick })
    }

    /// The level for gzip.
    fn compression(&self) -> u32 {
        if self.quick { 1 } else { 9 }
    }

    /// What the names of files for this machine begin with.
    fn stem(&self) -> String {
        format!("msb-{}-{}-linux", self.version, env::consts::ARCH)
    }
}

/// What the archive and the package have in common.
struct Contents {
    msb: Vec<u8>,
    readme: String,
    license: String,
    notice: String,
    changelog: String,
    third_party: String,
    completions: Completions,
    /// Manual pages by the names of their files.
    manual: BTreeMap<String, String>,
}

/// Completion scripts, one for each shell.
struct Completions {
    bash: String,
    zsh: String,
    fish: String,
}

pub(crate) fn command(options: &[&str]) -> Result<ExitCode> {
    println!("{}", make(&Options::parse(options)?)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Makes a release of an executable that was built before, quickly and without the kernel.
pub(crate) fn for_tests(msb: &Path) -> Result<PathBuf> {
    let (msb, out) = (Some(msb.to_owned()), Some(workspace::target().join("dist-test")));
    make(&Options { msb, out, tag: None, no_kernel: true, quick: true })
}

/// Makes the directory and returns where it is. It appears when everything is in it.
pub(crate) fn make(options: &Options) -> Result<PathBuf> {
    packages::install(NEEDS)?;
    let out = options.out.clone().unwrap_or_else(|| workspace::target().join("dist"));
    let out = std::path::absolute(out)?;
    ensure!(
        !out.exists() || out.join(SUMS).is_file(),
        "`{}` was not made by this command, so it is not replaced",
        out.display()
    );
    let release = Release::read(options.quick)?;
    let changelog = text("CHANGELOG.md")?;
    let notes = changelog::notes(&changelog, &release.version, options.tag.as_deref())?;
    let msb = match &options.msb {
        Some(msb) => fs::canonicalize(msb).with_context(|| format!("no `{}`", msb.display()))?,
        None => workspace::build(&["--locked", "--profile", "dist"], "msb")?,
    };
    let mut aside = out.clone().into_os_string();
    aside.push(".partial");
    let aside = PathBuf::from(aside);
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    let (work, files) = (aside.join("work"), aside.join("files"));
    fs::create_dir_all(&work)?;
    fs::create_dir_all(&files)?;
    check(&release, &msb, &work)?;
    fill(&release, &msb, &notes, &work, &files)?;
    if !options.no_kernel {
        kernel::make(&release, &msb, &work, &files)?;
    }
    sum(&files)?;
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::rename(&files, &out).with_context(|| format!("cannot make `{}`", out.display()))?;
    fs::remove_dir_all(&aside)?;
    Ok(out)
}

/// Everything but the kernel and the checksums.
fn fill(release: &Release, msb: &Path, notes: &str, work: &Path, files: &Path) -> Result<()> {
    let crates = crates::all()?;
    let libraries = runtime::libraries()?;
    let completion = |shell: &str| run_msb(msb, work, &["completion", shell]);
    let contents = Contents {
        msb: fs::read(msb)?,
        readme: text("README.md")?,
        license: text("LICENSE")?,
        notice: text("NOTICE")?,
        changelog: text("CHANGELOG.md")?,
        third_party: licenses::text(release, &crates, &libraries)?,
        completions: Completions {
            bash: completion("bash")?,
            zsh: completion("zsh")?,
            fish: completion("fish")?,
        },
        manual: manual(msb, work)?,
    };
    let stem = release.stem();
    lay_out(&contents, &work.join("archive"), &stem)?;
    files::tar_gz(release, &work.join("archive"), &stem, &files.join(format!("{stem}.tar.gz")))?;
    deb::make(release, &contents, work, files)?;
    put_program(files, &stem, &contents.msb)?;
    put(files, "THIRD-PARTY-LICENSES.txt", &contents.third_party)?;
    put(files, "RELEASE-NOTES.md", notes)?;
    let installer = INSTALLER.replace("@VERSION@", &release.version);
    put_program(files, "install.sh", installer.replace("@REPOSITORY@", &release.repository))?;
    let sbom = sbom::document(release, &crates, &libraries, &files::sha256(msb)?);
    put(files, &format!("{stem}.cdx.json"), serde_json::to_string_pretty(&sbom)? + "\n")
}

/// The directory in the archive. `install.sh` knows these names.
fn lay_out(contents: &Contents, root: &Path, stem: &str) -> Result<()> {
    put_program(root, &format!("{stem}/msb"), &contents.msb)?;
    for (name, text) in [
        ("README.md", &contents.readme),
        ("LICENSE", &contents.license),
        ("NOTICE", &contents.notice),
        ("THIRD-PARTY-LICENSES.txt", &contents.third_party),
        ("completions/msb.bash", &contents.completions.bash),
        ("completions/_msb", &contents.completions.zsh),
        ("completions/msb.fish", &contents.completions.fish),
    ] {
        put(root, &format!("{stem}/{name}"), text)?;
    }
    for (name, text) in &contents.manual {
        put(root, &format!("{stem}/man/man1/{name}"), text)?;
    }
    Ok(())
}

/// The manual pages that the executable writes.
fn manual(msb: &Path, work: &Path) -> Result<BTreeMap<String, String>> {
    let directory = work.join("man");
    run_msb(msb, work, &["docs", "--man", &directory.display().to_string()])?;
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(&directory)? {
        let entry = entry?;
        pages.insert(
            entry.file_name().to_string_lossy().into_owned(),
            fs::read_to_string(entry.path())?,
        );
    }
    ensure!(pages.contains_key("msb.1"), "there is no manual page of msb");
    Ok(pages)
}

/// Name of the file with all checksums.
const SUMS: &str = "SHA256SUMS";

fn sum(files: &Path) -> Result<()> {
    let mut sha256sum = Command::new("sha256sum");
    let sums = workspace::output(sha256sum.args(files::names(files)?).current_dir(files))?;
    put(files, SUMS, sums)
}

/// Whether the executable is what the names of the files say.
fn check(release: &Release, msb: &Path, work: &Path) -> Result<()> {
    let said = run_msb(msb, work, &["--version"])?;
    let wanted = format!("msb {}", release.version);
    let said = said.lines().next().unwrap_or_default();
    ensure!(said == wanted, "`{}` is `{said}`, not `{wanted}`", msb.display());
    ensure!(is_static(&fs::read(msb)?), "`{}` is not a static executable", msb.display());
    Ok(())
}

/// Whether an ELF file of 64 bits asks for no dynamic linker.
fn is_static(elf: &[u8]) -> bool {
    /// Type of the program header that names the dynamic linker.
    const INTERPRETER: u64 = 3;
    let number = |at: usize, size: usize| {
        let bytes = elf.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let headers = || {
        let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count)
            .map(|index| number((first + index * size) as usize, 4))
            .collect::<Option<Vec<_>>>()
    };
    elf.starts_with(b"\x7fELF\x02") && headers().is_some_and(|types| !types.contains(&INTERPRETER))
}

/// The output of msb, with a state directory of its own.
fn run_msb(msb: &Path, work: &Path, arguments: &[&str]) -> Result<String> {
    workspace::output(Command::new(msb).args(arguments).env("MSB_HOME", work.join("home")))
}

fn text(name: &str) -> Result<String> {
    fs::read_to_string(workspace::root().join(name))
        .with_context(|| format!("cannot read `{name}`"))
}

/// What cargo knows about the package of the executable.
#[derive(Deserialize)]
struct Workspace {
    version: String,
    repository: String,
}

fn workspace_facts() -> Result<Workspace> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<serde_json::Value>,
    }
    let mut command = workspace::cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Metadata = serde_json::from_str(&workspace::output(&mut command)?)?;
    let mut packages = metadata.packages.into_iter();
    let package = packages.find(|package| package["name"] == "msb-cli");
    let package = package.context("the workspace has no package `msb-cli`")?;
    serde_json::from_value(package).context("cannot read cargo's metadata")
}

/// `SOURCE_DATE_EPOCH`, or the time of the last commit.
fn epoch() -> Result<u64> {
    let number = |text: &str| text.trim().parse().with_context(|| format!("not a time: `{text}`"));
    match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => number(&text),
        Err(env::VarError::NotPresent) => {
            let mut git = Command::new("git");
            let log = git.args(["log", "-1", "--format=%ct"]).current_dir(workspace::root());
            number(&workspace::output(log).context("SOURCE_DATE_EPOCH is not set")?)
        }
        Err(error) => bail!("cannot read SOURCE_DATE_EPOCH: {error}"),
    }
}

fn date(epoch: u64, format: &str) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", &format!("--date=@{epoch}"), format]).env("LC_ALL", "C");
    Ok(workspace::output(&mut date)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(types: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        (bytes[32], bytes[54], bytes[56]) = (64, 56, types.len() as u8);
        for kind in types {
            bytes.push(*kind);
            bytes.extend([0; 55]);
        }
        bytes
    }

    #[test]
    fn an_executable_with_a_dynamic_linker_is_not_static() {
        assert!(is_static(&elf(&[1, 1])));
        assert!(!is_static(&elf(&[1, 3])));
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(&elf(&[1, 1])[..100]));
    }
}
