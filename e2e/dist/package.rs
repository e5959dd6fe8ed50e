//! The archive, the Debian package and the checksums.

use crate::{file, release, version};
use msb_e2e::{Msb, gives};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

fn dpkg_deb(action: &str) -> String {
    gives(Command::new("dpkg-deb").arg(action).arg(file(".deb"))).line()
}

/// Runs an executable that was unpacked for a user.
fn runs(msb: &Msb, program: &Path) {
    assert_eq!(gives(msb.user_command(program).arg("--version")).line(), version());
    let run = gives(msb.user_command(program).args(["run", "--", "echo", "hi"]));
    assert_eq!(run.line(), "hi");
}

#[test]
fn the_package_says_what_it_is() {
    let info = dpkg_deb("--info");
    for line in [
        "Package: msb-sandbox".to_owned(),
        format!("Version: {}-1", env!("CARGO_PKG_VERSION")),
        "Recommends: ca-certificates, uidmap".to_owned(),
    ] {
        assert!(info.lines().any(|found| found.trim() == line), "{line}: {info}");
    }
    // It is static.
    assert!(!info.contains("Depends:"), "{info}");
}

#[test]
fn the_package_has_every_file_and_all_are_roots() {
    let contents = dpkg_deb("--contents");
    let entries: Vec<Vec<&str>> =
        contents.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(entries.iter().all(|entry| entry[1] == "root/root"), "{contents}");
    let mut files: BTreeSet<(&str, &str)> = entries
        .iter()
        .filter(|entry| entry[0].starts_with('-'))
        .map(|entry| (entry[0], entry[5]))
        .collect();
    // Each command has a manual page.
    let is_page = |(_, name): &(&str, &str)| name.starts_with("./usr/share/man/man1/msb");
    for page in ["msb", "msb-run", "msb-volume-rm"] {
        let page = format!("./usr/share/man/man1/{page}.1.gz");
        assert!(files.contains(&("-rw-r--r--", page.as_str())), "{page}: {contents}");
    }
    files.retain(|file| !is_page(file));
    let doc = "./usr/share/doc/msb-sandbox";
    let names = ["NOTICE", "README.md", "THIRD-PARTY-LICENSES.txt.gz", "changelog.Debian.gz"];
    let names = names.iter().chain(&["changelog.gz", "copyright"]);
    let mut expected: Vec<String> = names.map(|name| format!("{doc}/{name}")).collect();
    expected.push("./usr/share/bash-completion/completions/msb".to_owned());
    expected.push("./usr/share/fish/vendor_completions.d/msb.fish".to_owned());
    expected.push("./usr/share/lintian/overrides/msb-sandbox".to_owned());
    expected.push("./usr/share/zsh/vendor-completions/_msb".to_owned());
    let mut expected: BTreeSet<(&str, &str)> =
        expected.iter().map(|name| ("-rw-r--r--", name.as_str())).collect();
    expected.insert(("-rwxr-xr-x", "./usr/bin/msb"));
    assert_eq!(files, expected);
}

#[test]
fn the_executable_of_the_package_runs_a_sandbox() {
    for msb in Msb::each() {
        let package = msb.file("msb.deb", fs::read(file(".deb")).expect("a file"));
        let root = msb.scratch().join("root");
        gives(msb.user_command("/usr/bin/dpkg-deb").arg("-x").arg(package).arg(&root)).ok();
        runs(&msb, &root.join("usr/bin/msb"));
    }
}

#[test]
fn the_archive_and_the_bare_executable_hold_the_same_msb() {
    let msb = Msb::new();
    let archive = file(".tar.gz");
    gives(msb.user_command("/bin/tar").arg("-xzf").arg(&archive)).ok();
    let name = archive.file_name().expect("a file").to_string_lossy().into_owned();
    let stem = name.strip_suffix(".tar.gz").expect("an archive");
    let unpacked = msb.scratch().join(stem);
    runs(&msb, &unpacked.join("msb"));
    let read = |path: &Path| fs::read(path).expect("a file");
    assert!(read(&unpacked.join("msb")) == read(&release().join(stem)), "they differ");
    for name in ["LICENSE", "NOTICE", "README.md", "THIRD-PARTY-LICENSES.txt", "completions/_msb"] {
        assert!(unpacked.join(name).is_file(), "{name}");
    }
    assert!(unpacked.join("man/man1/msb-run.1").is_file());
}

#[test]
fn every_file_has_its_checksum() {
    let check = ["--check", "--strict", "--quiet", "SHA256SUMS"];
    gives(Command::new("sha256sum").args(check).current_dir(release())).ok();
    let sums = fs::read_to_string(release().join("SHA256SUMS")).expect("a file");
    let summed: BTreeSet<String> =
        sums.lines().filter_map(|line| Some(line.split_once("  ")?.1.to_owned())).collect();
    let entries = fs::read_dir(release()).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: BTreeSet<String> =
        names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(names.remove("SHA256SUMS"));
    assert_eq!(summed, names);
}

#[test]
fn the_notes_are_those_of_the_changelog() {
    let notes = fs::read_to_string(release().join("RELEASE-NOTES.md")).expect("a file");
    let changelog = concat!(env!("CARGO_MANIFEST_DIR"), "/../CHANGELOG.md");
    let changelog = fs::read_to_string(changelog).expect("a file");
    assert!(!notes.trim().is_empty() && changelog.contains(notes.trim()), "{notes}");
}
