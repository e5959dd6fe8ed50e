//! `msb image bootstrap`: images from the packages of the host's distribution.
//!
//! One test makes a real image, which takes most of a minute. The others have an `mmdebstrap` of
//! their own, which notes how it was called and gives the tests' small root filesystem.

use msb_e2e::{CmdOutput, Msb, ends};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};

/// Makes a directory with an `mmdebstrap` that runs a shell script, and gives a PATH with it. The
/// script finds an archive at `$TAR` and a place for notes at `$NOTES`.
fn with_program(msb: &Msb, script: &str) -> String {
    let tar = msb.scratch().join("root.tar");
    let made =
        Command::new("tar").arg("-C").arg(msb.rootfs()).arg("-cf").arg(&tar).arg(".").status();
    assert!(made.is_ok_and(|status| status.success()), "tar");
    let notes = msb.file("notes/empty", "").with_file_name("");
    let script = format!("#!/bin/sh\nTAR={}\nNOTES={}\n{script}\n", tar.display(), notes.display());
    let text = msb.file("mmdebstrap.sh", script);
    let program = msb.file("bin/mmdebstrap", "");
    // Another process writes it: one that is open for writing cannot be executed.
    let installed = Command::new("install").arg("-m755").args([&text, &program]).status();
    assert!(installed.is_ok_and(|status| status.success()), "install");
    format!("{}:/usr/bin:/bin", program.parent().expect("a directory").display())
}

/// Notes the arguments and what came on stdin, and gives the archive.
const NOTING: &str = r#"printf '%s\n' "$@" >"$NOTES/arguments"; cat >"$NOTES/stdin"
echo 'I: creating tarball...' >&2; exec cat "$TAR""#;

#[track_caller]
fn bootstrap(msb: &Msb, path: &str, args: &[&str]) -> CmdOutput {
    let mut command = msb.command([&["image", "bootstrap"], args].concat());
    command.env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
    ends(command.spawn().expect("msb can be executed"))
}

fn noted(msb: &Msb, what: &str) -> String {
    fs::read_to_string(msb.scratch().join("notes").join(what)).expect("it was noted")
}

#[test]
fn a_real_image_is_made_from_the_packages_of_this_host() {
    let msb = Msb::as_user().unwrap_or_default();
    // Without the limit of other tests: a mirror may be slow.
    let made = msb.spawn(["image", "bootstrap", "python", "-t", "made/python:1"]);
    let made = CmdOutput::from(made.wait_with_output().expect("it ends"));
    assert!(made.clone().ok().stdout.starts_with("docker.io/made/python:1@sha256:"), "{made:?}");
    assert_eq!(made.stderr, "", "silent without a terminal");
    let inside = "set -e; python3 -c 'print(6 * 7)'; pip --version >/dev/null; \
                  python3 -m venv --without-pip /tmp/v; /tmp/v/bin/python -c 'print(43)'; \
                  stat -c %u /usr/bin/passwd; stat -c %G /etc/shadow; \
                  ls /etc/hostname /etc/resolv.conf 2>/dev/null || echo nothing of the host";
    let gave = msb.run(["run", "--pull", "never", "made/python:1", "--", "sh", "-c", inside]);
    assert_eq!(gave.line(), "42\n43\n0\nshadow\nnothing of the host");
    // What it runs if nothing is said.
    let gave = msb.run_with(["run", "made/python:1"], b"print(44)");
    assert_eq!(gave.line(), "44");
}

#[test]
fn an_image_has_the_name_and_the_command_of_its_base() {
    for msb in Msb::each() {
        let path = with_program(&msb, NOTING);
        for (base, command) in [("debian", "bash"), ("python", "python3"), ("node", "node")] {
            let gave = bootstrap(&msb, &path, &[base, "--suite", "trixie", "--json"]).ok();
            let made: Value = serde_json::from_str(&gave.stdout).expect("JSON");
            let names: Vec<&str> = made
                .as_array()
                .expect("a list")
                .iter()
                .map(|image| image["reference"].as_str().expect("a name"))
                .collect();
            let named = |tag: &str| format!("docker.io/library/{base}:{tag}");
            assert_eq!(names, [named("trixie"), named("latest")]);
            let shown = msb.json(["image", "inspect", base, "--json"]);
            assert_eq!(shown["config"]["cmd"], json!([command]));
            assert!(
                shown["config"]["env"][0].as_str().expect("text").starts_with("PATH=/usr/local")
            );
            assert_eq!(shown["layers"].as_array().map(Vec::len), Some(1));
            assert_eq!(msb.run(["run", base, "--", "echo", "runs"]).line(), "runs");
        }
    }
}

#[test]
fn packages_and_mirrors_are_passed_to_mmdebstrap() {
    let msb = Msb::new();
    let path = with_program(&msb, NOTING);
    let mirror = "http://mirror.example/debian";
    let flags = ["--suite", "trixie", "--packages", "git,curl", "--packages", "g++", "-t", "x"];
    let gave = bootstrap(&msb, &path, &[&["python", "--mirror", mirror], &flags[..]].concat()).ok();
    assert!(gave.stdout.starts_with("docker.io/library/x:latest@sha256:"), "{gave:?}");
    let arguments = noted(&msb, "arguments");
    let includes = arguments.lines().find_map(|line| line.strip_prefix("--include="));
    let packages = includes.expect("packages");
    assert!(packages.starts_with("python3,") && packages.ends_with(",git,curl,g++"), "{packages}");
    let last: Vec<&str> = arguments.lines().rev().take(4).collect();
    assert_eq!(last, [mirror, "-", "trixie", "--"]);
    assert_eq!(noted(&msb, "stdin"), "");
}

#[test]
fn without_a_mirror_the_sources_of_apt_are_passed_on() {
    for msb in Msb::each() {
        let path = with_program(&msb, NOTING);
        bootstrap(&msb, &path, &["debian"]).ok();
        let sources = noted(&msb, "stdin");
        assert!(sources.starts_with("Types: deb\nURIs: http"), "{sources}");
        let arguments = noted(&msb, "arguments");
        let mode = if msb.is_root() { "--mode=auto" } else { "--mode=unshare" };
        assert!(arguments.lines().any(|line| line == mode), "{arguments}");
    }
}

#[test]
fn a_failed_bootstrap_leaves_nothing() {
    for msb in Msb::each() {
        for (script, told) in [
            ("head -c 100000 \"$TAR\"; echo 'E: no more space' >&2; exit 3", "no more space"),
            ("exit 3", "exit status: 3"),
            ("kill -9 $$", "signal: 9"),
            ("echo 'E: Unable to locate package xyz' >&2; exit 1", "there is no such package"),
            ("echo nonsense", "damaged"),
        ] {
            let path = with_program(&msb, script);
            let gave = bootstrap(&msb, &path, &["debian"]);
            assert_eq!(gave.code, 125, "{script}");
            assert!(gave.stderr.starts_with("error: cannot make `debian`\n"), "{gave:?}");
            assert!(gave.stderr.contains(told), "{script}: {gave:?}");
            assert_eq!(msb.json(["image", "ls", "--json"]), json!([]));
            let blobs = fs::read_dir(msb.home().join("blobs/sha256"));
            assert_eq!(blobs.map_or(0, Iterator::count), 0, "{script}");
        }
    }
}

#[test]
fn missing_or_wrong_input_is_reported_at_once() {
    let msb = Msb::new();
    let gave = bootstrap(&msb, "/no/such", &["debian"]);
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("hint: `apt install mmdebstrap`"), "{gave:?}");
    let path = with_program(&msb, "exit 99");
    for (args, told) in [
        (&["ruby"][..], "unknown kind of image: `ruby`"),
        (&["debian", "--suite", "../x"], "not the name of a release: `../x`"),
        (&["debian", "--packages=-o"], "not the name of a package: `-o`"),
        (&["debian", "--packages", "a b"], "not the name of a package: `a b`"),
        (&["debian", "--mirror", "file:///x"], "not the address of a mirror: `file:///x`"),
        (&["debian", "--mirror", "http://me:hunter2@x"], "not the address of a mirror: `x`"),
        (&["debian", "-t", "No"], "not the name of an image: `No`"),
    ] {
        let gave = bootstrap(&msb, &path, args);
        assert_eq!(gave.code, 125, "{args:?}");
        assert!(gave.stderr.contains(told), "{args:?}: {gave:?}");
        assert!(!gave.stderr.contains("hunter2"), "{gave:?}");
    }
}
