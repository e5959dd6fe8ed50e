//! Real images do real work: apt, pip and npm install inside, without a network.

use crate::users::pulled_users;
use msb_e2e::debian;
use msb_e2e::images::{Layout, digest};
use msb_e2e::registry::Registry;
use msb_e2e::{Msb, gives};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn pushed(layout: &Layout, name: &str) -> String {
    Registry::shared().push(layout, &format!("languages/{name}:1"))
}

/// A package `tiny` with a program `tiny`, and a repository with nothing else.
fn deb(msb: &Msb, by: &str) -> PathBuf {
    let control = "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\n\
                   Description: says the answer\n";
    let at = |path: &str| format!("{by}/{path}");
    msb.file(&at("tree/DEBIAN/control"), control);
    let owned = "#!/bin/sh\nchown daemon:daemon /usr/share/tiny\n";
    for (path, text) in [("DEBIAN/postinst", owned), ("usr/bin/tiny", "#!/bin/sh\necho 42\n")] {
        let path = msb.file(&at(&format!("tree/{path}")), text);
        gives(Command::new("chmod").arg("755").arg(path)).ok();
    }
    msb.file(&at("tree/usr/share/tiny/text"), "tiny\n");
    let built = msb.file(&at("repository/tiny.deb"), "");
    let tree = msb.scratch().join(at("tree"));
    let flags = ["--build", "--root-owner-group"];
    gives(Command::new("dpkg-deb").args(flags).args([&tree, &built])).ok();
    let sum = digest(&built);
    let index = format!(
        "{control}Filename: ./tiny.deb\nSize: {}\nSHA256: {}\n",
        fs::metadata(&built).expect("just built").len(),
        sum.trim_start_matches("sha256:")
    );
    msb.file(&at("repository/Packages"), index);
    msb.scratch().join(at("repository"))
}

#[test]
fn apt_installs_a_package_from_a_repository_of_files() {
    let name = pushed(debian::debian(), "debian");
    for msb in pulled_users().iter() {
        let copy = format!("{}:/repository", deb(msb, "apt").display());
        let script = "set -e; echo 'deb [trusted=yes] file:/repository ./' >/etc/apt/sources.list; \
                      rm -f /etc/apt/sources.list.d/*; \
                      apt-get update -q >/log 2>&1 || { cat /log; exit 1; }; \
                      apt-get install -qy tiny >/log 2>&1 || { cat /log; exit 1; }; \
                      tiny; dpkg -s tiny | grep ^Status";
        let gave = msb.run(["run", "--copy", &copy, &name, "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "42\nStatus: install ok installed");
    }
}

#[test]
fn dpkg_installs_and_removes_a_package_and_gives_files_away() {
    let name = pushed(debian::debian(), "debian");
    for msb in pulled_users().iter() {
        let copy = format!("{}:/repository", deb(msb, "dpkg").display());
        let script = "set -e; dpkg -i /repository/tiny.deb >/log 2>&1 || { cat /log; exit 1; }; \
                      tiny; stat -c %U /usr/share/tiny; dpkg -P tiny >/log 2>&1; ! test -e /usr/bin/tiny";
        let gave = msb.run(["run", "--copy", &copy, &name, "--", "sh", "-c", script]);
        let owner = if msb.has_one_id() { "root" } else { "daemon" };
        assert_eq!(gave.line(), format!("42\n{owner}"));
    }
}

#[test]
fn pip_installs_a_wheel_that_python_then_finds() {
    let name = pushed(debian::python(), "python");
    for msb in pulled_users().iter() {
        let script = "import sys, zipfile\n\
                      with zipfile.ZipFile(sys.argv[1] + '/tiny-1-py3-none-any.whl', 'w') as z:\n\
                      \x20   z.writestr('tiny.py', 'answer = 42\\n')\n\
                      \x20   d = 'tiny-1.dist-info/'\n\
                      \x20   z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n')\n\
                      \x20   z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
                      \x20   z.writestr(d + 'RECORD', 'tiny.py,,\\n')\n";
        let wheels = msb.scratch().join("wheels");
        fs::create_dir(&wheels).unwrap();
        gives(Command::new("python3").args(["-c", script]).arg(&wheels)).ok();
        msb.chown(&wheels);
        let copy = format!("{}:/wheels", wheels.display());
        let script = "pip install -q --no-index --find-links /wheels --break-system-packages tiny \
                      2>&1 && python3 -c 'import tiny; print(tiny.answer)'";
        let gave = msb.run(["run", "--copy", &copy, &name, "--", "sh", "-c", script]);
        assert_eq!(gave.ok().stdout.lines().last(), Some("42"));
    }
}

#[test]
fn npm_installs_a_program_that_is_then_on_the_path() {
    let name = pushed(debian::node(), "node");
    for msb in pulled_users().iter() {
        let package =
            "{\"name\": \"tiny\", \"version\": \"1.0.0\", \"bin\": {\"tiny\": \"tiny.js\"}}";
        msb.file("package/package.json", package);
        msb.file("package/tiny.js", "#!/usr/bin/env node\nconsole.log(6 * 7)\n");
        let archive = msb.scratch().join("tiny.tgz");
        let mut tar = Command::new("tar");
        tar.arg("-czf").arg(&archive).arg("-C").arg(msb.scratch()).arg("package");
        gives(&mut tar).ok();
        msb.chown(&archive);
        let copy = format!("{}:/tiny.tgz", archive.display());
        let script = "npm install -g --offline --no-audit --no-fund /tiny.tgz >/log 2>&1 \
                      || { cat /log; exit 1; }; tiny";
        let gave = msb.run(["run", "--copy", &copy, &name, "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "42");
    }
}

#[test]
fn python_and_node_are_the_commands_of_their_images() {
    let python = pushed(debian::python(), "python");
    let node = pushed(debian::node(), "node");
    for msb in pulled_users().iter() {
        assert_eq!(msb.run_with(["run", &python], b"print(6 * 7)\n").line(), "42");
        assert_eq!(msb.run_with(["run", &node], b"console.log(6 * 7)\n").line(), "42");
        let inspected = msb.json(["image", "inspect", "--json", &python]);
        let below = inspected["layers"][0]["shared_with"].to_string();
        assert!(below.contains(&node), "Debian is below both: {inspected}");
    }
}
