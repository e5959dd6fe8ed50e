//! `msb skill`: the files lie where agents read them, and every command in them works.

use msb_e2e::{CmdOutput, Msb, ends, shared};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An agent, its directory below the home directory, and that in a project.
const AGENTS: [(&str, &str, &str); 5] = [
    ("claude-code", ".claude/skills", ".claude/skills"),
    ("codex", ".agents/skills", ".agents/skills"),
    ("cursor", ".cursor/skills", ".cursor/skills"),
    ("gemini", ".gemini/skills", ".gemini/skills"),
    ("copilot", ".copilot/skills", ".github/skills"),
];

const FILES: [&str; 5] = [
    "SKILL.md",
    "references/cli.md",
    "references/mcp.md",
    "references/network.md",
    "references/storage.md",
];

fn source(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../skills/msb").join(name);
    fs::read_to_string(path).expect("a file of the skill")
}

/// A directory of the test's own, as home and project at once.
fn begin(msb: &Msb, name: &str) -> PathBuf {
    msb.file(&format!("{name}/.keep"), "").parent().expect("a directory").to_owned()
}

#[track_caller]
fn words(msb: &Msb, home: &Path, line: &str) -> CmdOutput {
    let mut command = msb.command(line.split_whitespace());
    command.env("HOME", home).current_dir(home).stdout(Stdio::piped()).stderr(Stdio::piped());
    ends(command.spawn().expect("msb can be executed"))
}

#[track_caller]
fn is_installed(skill: &Path) {
    for name in FILES {
        assert_eq!(fs::read_to_string(skill.join(name)).expect("a file"), source(name), "{name}");
    }
}

#[test]
fn every_agent_finds_the_skill_where_it_looks() {
    for msb in Msb::each() {
        for (agent, of_user, of_project) in AGENTS {
            for (flag, directory) in [("", of_user), ("--project", of_project)] {
                let home = begin(&msb, &format!("{agent}{flag}"));
                let skill = home.join(directory).join("msb");
                let gave =
                    words(&msb, &home, &format!("skill install {agent} {flag} --dry-run")).ok();
                assert_eq!(gave.stdout.lines().count(), FILES.len(), "{gave:?}");
                assert!(!skill.exists());

                let gave = words(&msb, &home, &format!("skill install {agent} {flag}")).ok();
                assert!(gave.stdout.contains(&format!("A  {}", skill.join("SKILL.md").display())));
                is_installed(&skill);
                let mut summed = Command::new("sha256sum");
                summed.args(["-c", ".installed"]).current_dir(&skill).stdout(Stdio::null());
                assert!(summed.status().unwrap().success());

                let gave = words(&msb, &home, &format!("skill install {agent} {flag}")).ok();
                assert!(
                    gave.stdout.is_empty() && gave.stderr.contains("has it already"),
                    "{gave:?}"
                );

                msb.file(&format!("{agent}{flag}/{directory}/other/SKILL.md"), "theirs");
                words(&msb, &home, &format!("skill uninstall {agent} {flag} --dry-run")).ok();
                is_installed(&skill);
                let gave = words(&msb, &home, &format!("skill uninstall {agent} {flag}")).ok();
                assert_eq!(gave.stdout.lines().count(), FILES.len(), "{gave:?}");
                assert!(!skill.exists());
                assert!(home.join(directory).join("other/SKILL.md").exists());
                let gave = words(&msb, &home, &format!("skill uninstall {agent} {flag}"));
                assert_eq!(gave.code, 125);
                assert!(gave.stderr.starts_with("error: no skill of ours in `"), "{gave:?}");
            }
        }
        let home = begin(&msb, "dir");
        words(&msb, &home, "skill install --dir here/skills").ok();
        is_installed(&home.join("here/skills/msb"));
        words(&msb, &home, "skill uninstall --dir here/skills").ok();
        assert!(!home.join("here/skills/msb").exists());
        assert_eq!(words(&msb, &home, "skill install").code, 125);
    }
}

#[test]
fn files_that_a_user_changed_stay() {
    let msb = Msb::new();
    let home = begin(&msb, "user");
    let skill = home.join(".claude/skills/msb");
    words(&msb, &home, "skill install claude-code").ok();
    fs::write(skill.join("references/cli.md"), "mine").unwrap();
    fs::write(skill.join("own.md"), "mine").unwrap();
    fs::remove_file(skill.join("SKILL.md")).unwrap();
    let gave = words(&msb, &home, "skill install claude-code");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("references/cli.md` is not as it was installed"), "{gave:?}");
    assert!(!skill.join("SKILL.md").exists());

    words(&msb, &home, "skill install claude-code --force").ok();
    is_installed(&skill);
    fs::write(skill.join("references/cli.md"), "mine").unwrap();
    let gave = words(&msb, &home, "skill uninstall claude-code").ok();
    assert!(gave.stderr.contains("references/cli.md` is not as it was installed"), "{gave:?}");
    let left = |name: &str| skill.join(name).exists();
    assert!(left("references/cli.md") && left("own.md"));
    assert!(!left("SKILL.md") && !left("references/mcp.md") && !left(".installed"));

    // What was there before us, by the same name.
    fs::write(skill.join("SKILL.md"), "mine").unwrap();
    fs::remove_file(skill.join("references/cli.md")).unwrap();
    assert_eq!(words(&msb, &home, "skill install claude-code").code, 125);
    assert_eq!(fs::read_to_string(skill.join("SKILL.md")).unwrap(), "mine");
}

#[test]
fn another_version_is_replaced_and_its_list_believed_no_further() {
    let msb = Msb::new();
    let home = begin(&msb, "user");
    let skill = home.join(".github/skills/msb");
    let digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
    let list = ["SKILL.md", "references/gone.md", "../../../outside", "/etc/hostname", "kept.md"];
    let list: String = list.iter().map(|name| format!("{digest}  {name}\n")).collect();
    for (name, text) in [
        ("msb/SKILL.md", "foo"),
        ("msb/references/gone.md", "foo"),
        ("msb/kept.md", "bar"),
        ("msb/.installed", &list),
        ("../../outside", "foo"),
    ] {
        msb.file(&format!("user/.github/skills/{name}"), text);
    }
    let gave = words(&msb, &home, "skill install copilot --project").ok();
    assert!(gave.stdout.contains("M  ") && gave.stdout.contains("D  "), "{gave:?}");
    is_installed(&skill);
    assert!(!skill.join("references/gone.md").exists());
    assert_eq!(fs::read_to_string(skill.join("kept.md")).unwrap(), "bar");
    assert_eq!(fs::read_to_string(home.join("outside")).unwrap(), "foo");

    fs::remove_dir_all(&skill).unwrap();
    let outside = begin(&msb, "outside");
    symlink(&outside, &skill).unwrap();
    let gave = words(&msb, &home, "skill install copilot --project");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("leads out of this project"), "{gave:?}");
    assert!(!outside.join("SKILL.md").exists());
}

#[test]
fn the_skill_can_be_read_without_installing_it() {
    let msb = Msb::new();
    assert_eq!(msb.words("skill show").ok().stdout, source("SKILL.md"));
    for name in ["network", "network.md"] {
        let shown = msb.run(["skill", "show", name]).ok().stdout;
        assert_eq!(shown, source("references/network.md"));
    }
    let gave = msb.words("skill show ../../x");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("cli, network, storage and mcp"), "{gave:?}");
}

/// What stands between fences of a kind, and where.
fn blocks(kind: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in FILES {
        let text = source(name);
        for (number, part) in text.split("\n```").enumerate().skip(1).step_by(2) {
            let (head, body) = part.split_once('\n').expect("a block has lines");
            if head == kind {
                found.push((format!("{name}, block {number}"), body.to_owned()));
            }
        }
    }
    found
}

/// Bash with `msb` from a directory.
#[track_caller]
fn shell(msb: &Msb, script: &str, programs: &Path, directory: &Path) -> CmdOutput {
    let mut command = msb.user_command("bash");
    let path = [programs.as_os_str(), OsStr::new(":/usr/local/bin:/usr/bin:/bin")];
    command.args(["-euo", "pipefail", "-c", script]).env("PATH", path.join(OsStr::new("")));
    command.current_dir(directory).stdout(Stdio::piped()).stderr(Stdio::piped());
    ends(command.spawn().expect("bash can be executed"))
}

#[test]
fn every_command_of_the_skill_works() {
    for msb in Msb::each() {
        let scripts = blocks("sh");
        assert!(scripts.len() > 15, "{}", scripts.len());
        for (number, (place, script)) in scripts.iter().enumerate() {
            let directory = begin(&msb, &format!("block-{number}"));
            let gave = shell(&msb, script, shared(), &directory);
            assert_eq!(gave.code, 0, "{place}:\n{script}\n{}\n{}", gave.stdout, gave.stderr);
        }
        // They clean up behind themselves, as the skill tells agents to.
        for listing in ["ls -q", "volume ls -q", "snapshot ls -q", "sync ls -q"] {
            assert_eq!(msb.words(listing).ok().stdout, "", "{listing}");
        }
    }
}

#[test]
fn every_command_that_needs_a_network_is_understood() {
    let msb = Msb::new();
    let real = shared().join("msb");
    // Flags are read up to the one that asks for help, which is put where the command begins.
    let check = format!(
        "#!/bin/bash\nwords=()\nfor word; do [ \"$word\" = -- ] && break; words+=(\"$word\"); done\n\
         exec {} \"${{words[@]}}\" --help > /dev/null\n",
        real.display()
    );
    let program = msb.file("check/msb", check);
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let programs = program.parent().unwrap();
    let scripts = blocks("sh network");
    assert!(scripts.len() > 4, "{}", scripts.len());
    for (place, script) in scripts {
        assert!(script.lines().all(|line| line.starts_with("msb ")), "{place}: {script}");
        let gave = shell(&msb, &script, programs, msb.scratch());
        assert_eq!(gave.code, 0, "{place}:\n{script}\n{}", gave.stderr);
    }
    let gave = shell(&msb, "msb run --no-such-flag -- true", programs, msb.scratch());
    assert_ne!(gave.code, 0);
}
