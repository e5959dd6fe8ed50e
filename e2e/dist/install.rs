//! `install.sh`, pointed at a directory, as root and as an ordinary user.

use crate::{file, release, version};
use msb_e2e::{CmdOutput, Msb, gives, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A copy of the files that the installer reads: the user may not be able to enter the original's
/// directory.
fn copied(msb: &Msb) -> PathBuf {
    for path in [release().join("SHA256SUMS"), release().join("install.sh"), file(".tar.gz")] {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        msb.file(&format!("release/{name}"), fs::read(&path).expect("a file"));
    }
    msb.scratch().join("release")
}

fn install(msb: &Msb, from: &Path, more: &[&str]) -> CmdOutput {
    let mut sh = msb.user_command("/bin/sh");
    sh.arg(from.join("install.sh")).arg("--from").arg(from).args(more);
    gives(&mut sh)
}

/// All files below a directory, by their paths in it.
fn files(root: &Path) -> Vec<String> {
    let find = gives(Command::new("find").args([".", "-type", "f"]).current_dir(root));
    let mut files: Vec<String> = find.ok().stdout.lines().map(str::to_owned).collect();
    files.sort();
    files
}

#[test]
fn an_installed_msb_runs_a_sandbox() {
    for msb in Msb::each() {
        let from = copied(&msb);
        let gave = install(&msb, &from, &[]).ok();
        let bin = msb.scratch().join(".local/bin");
        assert!(gave.stderr.contains(&format!("{} is not on PATH", bin.display())), "{gave:?}");
        let installed = bin.join("msb");
        assert_eq!(gives(msb.user_command(&installed).arg("--version")).line(), version());
        let run = gives(msb.user_command(&installed).args(["run", "--", "echo", "hi"]));
        assert_eq!(run.line(), "hi");
    }
}

#[test]
fn everything_is_below_the_prefix_and_a_second_time_replaces_it() {
    let msb = Msb::new();
    let from = copied(&msb);
    let prefix = msb.scratch().join("prefix");
    let expected = [
        "./bin/msb",
        "./share/bash-completion/completions/msb",
        "./share/doc/msb/LICENSE",
        "./share/doc/msb/NOTICE",
        "./share/doc/msb/README.md",
        "./share/doc/msb/THIRD-PARTY-LICENSES.txt",
        "./share/fish/vendor_completions.d/msb.fish",
        "./share/zsh/site-functions/_msb",
    ];
    for _ in 0..2 {
        install(&msb, &from, &["--prefix", &prefix.display().to_string()]).ok();
        assert_eq!(files(&prefix), expected);
        fs::write(prefix.join("bin/msb"), "an older one").expect("a file");
    }
    assert!(!msb.scratch().join(".local").exists());
}

#[test]
fn a_directory_on_path_is_not_remarked_upon() {
    let msb = Msb::new();
    let from = copied(&msb);
    let bin = msb.scratch().join(".local/bin");
    let mut sh = msb.user_command("/bin/sh");
    sh.arg(from.join("install.sh")).arg("--from").arg(&from);
    let gave = gives(sh.env("PATH", format!("{}:/usr/bin:/bin", bin.display()))).ok();
    assert!(!gave.stderr.contains("PATH"), "{gave:?}");
}

#[test]
fn a_changed_archive_is_refused_and_nothing_is_installed() {
    let msb = Msb::new();
    let from = copied(&msb);
    let name = file(".tar.gz").file_name().expect("a file").to_owned();
    let mut bytes = fs::read(from.join(&name)).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(from.join(&name), bytes).expect("a file");
    let gave = install(&msb, &from, &[]);
    assert_eq!(gave.code, 1, "{gave:?}");
    assert!(gave.stderr.contains("error: the checksum of `"), "{gave:?}");
    assert!(!msb.scratch().join(".local").exists());
}

#[test]
fn a_release_without_this_machine_is_refused_by_name() {
    let msb = Msb::new();
    let from = copied(&msb);
    fs::write(from.join("SHA256SUMS"), "00  other.tar.gz\n").expect("a file");
    let gave = install(&msb, &from, &[]);
    assert_eq!(gave.code, 1, "{gave:?}");
    assert!(gave.stderr.contains("error: this release has no file `msb-"), "{gave:?}");
    assert!(!msb.scratch().join(".local").exists());
}

#[test]
fn a_full_or_closed_place_leaves_no_half_of_it() {
    let Some(msb) = Msb::as_user() else {
        return skip("no ordinary user: MSB_TEST_USER is not set");
    };
    let from = copied(&msb);
    // Root's, so the user can put nothing into it.
    let share = msb.scratch().join(".local/share");
    fs::create_dir_all(&share).expect("a directory");
    msb.chown(&msb.scratch().join(".local"));
    let gave = install(&msb, &from, &[]);
    assert_eq!(gave.code, 1, "{gave:?}");
    assert!(gave.stderr.contains("error: cannot make the directory `"), "{gave:?}");
    assert_eq!(files(&msb.scratch().join(".local")), [""; 0]);
}

#[test]
fn the_script_is_clean() {
    if !fs::exists("/usr/bin/shellcheck").unwrap_or(false) {
        return skip("shellcheck is not installed");
    }
    let script = release().join("install.sh");
    gives(Command::new("shellcheck").args(["--shell", "sh"]).arg(script)).ok();
}
