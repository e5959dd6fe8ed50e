//! `msb diff --patch` in a pipe: `git apply` makes of the host's files what the sandbox made.

use super::random::Dice;
use super::{inside, keep, project};
use msb_e2e::{Msb, gives};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// What git keeps of a tree: files with their bit to execute, and links.
fn kept_by_git(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).expect("it was listed");
        let name = path.strip_prefix(root).expect("below the root").as_os_str().as_bytes();
        let name = name.escape_ascii();
        if meta.is_symlink() {
            let target = fs::read_link(&path).expect("a link");
            found.push(format!("{name} -> {}", target.as_os_str().as_bytes().escape_ascii()));
        } else if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory").flatten();
            let entries = entries.filter(|entry| entry.file_name() != ".git");
            waiting.extend(entries.map(|entry| entry.path()));
        } else {
            let content = fs::read(&path).expect("a file");
            found.push(format!("{name} {:o} {}", meta.mode() & 0o100, content.escape_ascii()));
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    gives(Command::new("cp").arg("-a").arg(from).arg(to)).ok();
}

/// A copy of the project that is a repository of its own, with the patch applied to it.
fn patched(msb: &Msb, root: &Path, patch: &str) -> Vec<String> {
    let (target, file) = (msb.scratch().join("patched"), msb.file("a.patch", patch));
    copy(root, &target);
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.args(words).current_dir(&target).env("HOME", msb.scratch());
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        gives(&mut command)
    };
    git(&["init", "-q"]).ok();
    if !patch.is_empty() {
        let gave = git(&["apply", "--whitespace=nowarn", file.to_str().expect("a plain path")]);
        assert_eq!(gave.code, 0, "{}\n{patch}", gave.stderr);
    }
    let tree = kept_by_git(&target);
    fs::remove_dir_all(&target).expect("a directory of ours");
    tree
}

#[test]
fn a_patch_has_every_kind_of_change() {
    for msb in Msb::each() {
        let files = [
            ("text", "a\nb\nc\n"),
            ("crlf", "a\r\nb\r\n"),
            ("old name", "same content\n"),
            ("to-link", "x\n"),
            ("to-dir", "x\n"),
            ("from-dir/x", "x\n"),
            ("gone/deep/x", "x"),
            ("mode", "x\n"),
            ("empty-gone", ""),
            ("end", "no newline"),
            (".gitignore", "out\n"),
            ("leaves", "for an ignored place\n"),
        ];
        let root = project(&msb, &files);
        fs::write(root.join("bytes"), b"\0one").unwrap();
        msb.chown(&root.join("bytes"));
        std::os::unix::fs::symlink("text", root.join("link")).unwrap();
        keep(&msb);
        let before = msb.scratch().join("before");
        copy(&root, &before);
        let script = r#"
            sed -i s/b/B/ text; sed -i s/b/B/ crlf; mv 'old name' 'new name'
            rm to-link; ln -s text to-link
            rm to-dir; mkdir to-dir; echo y > to-dir/y
            rm -r from-dir; echo z > from-dir
            rm -r gone empty-gone; : > empty-new
            chmod 755 mode; printf 'no newline either' > end
            printf '\0two\377' > bytes; ln -sfn 'else
where' link
            printf '\033[2J' > escape; printf 'caf\351\n' > latin
            echo q > 'quo"te'; echo n > 'new
line'; echo b > 'back\slash'; echo s > ' spaces '; echo u > ümlaut
            echo '#!/bin/sh' > Makefile; chmod 755 Makefile
        "#;
        inside(&msb, script).ok();
        gives(Command::new("sh").args(["-c", script]).current_dir(&before)).ok();
        let patch = msb.words("diff box -p").ok();
        assert_eq!(patched(&msb, &root, &patch.stdout), kept_by_git(&before));
        let plain = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
        let text = patch.stdout.replace("\r\n", "\n");
        assert!(text.chars().all(plain), "{text:?}");
        // Git cannot know these; each is told in the patch and none spoils it.
        inside(&msb, "mkdir empty .git; echo in git > .git/config; chmod 600 crlf; mkfifo pipe")
            .ok();
        inside(&msb, "mkdir out; mv leaves out").ok();
        fs::remove_file(before.join("leaves")).unwrap();
        let patch = msb.words("diff box -p").ok();
        assert_eq!(patched(&msb, &root, &patch.stdout), kept_by_git(&before));
        for line in [
            "# not in this patch, git keeps no directories: A  empty/\n",
            "# not in this patch, git takes no patch for this path: A  .git/config\n",
            "# not in this patch, git keeps no special files: !  pipe",
        ] {
            assert!(patch.stdout.contains(line), "{line}{}", patch.stdout);
        }
        assert!(patch.stderr.contains("3 changes have no form in a git patch"), "{}", patch.stderr);
    }
}

#[test]
fn a_file_that_is_too_large_for_a_patch_is_an_error() {
    let msb = Msb::new();
    let root = project(&msb, &[("a", "1\n")]);
    keep(&msb);
    inside(&msb, "echo 2 > a; truncate -s 1T large").ok();
    let gave = msb.words("diff box -p");
    assert_eq!(gave.code, 125, "{gave:?}");
    assert!(gave.stderr.contains("1 file is too large for a patch: `large`"), "{}", gave.stderr);
    assert!(gave.stdout.contains("# not in this patch, too large: A  large\n"), "{}", gave.stdout);
    assert_eq!(patched(&msb, &root, &gave.stdout), ["a 0 2\\n"]);
}

/// Names that patches have to quote, and few of them, so that many steps meet.
const NAMES: [&str; 6] = ["a", "b c", "q\"u\\ote", "new\nline", " b/x ", "ü\u{202e}"];

/// What files hold, for `printf`.
const CONTENTS: [&str; 8] = [
    "",
    "one\\ntwo\\nthree\\nfour\\nfive\\nsix\\nseven\\neight\\nnine\\n",
    "one\\ntwo\\n3\\nfour\\nfive\\nsix\\nseven\\neight\\n9",
    "dos\\r\\nlines\\r\\n",
    "\\000binary\\377\\001",
    "\\033[31mred\\n",
    "caf\\351\\n",
    "-- a\\n++ b\\n@@ -1 +1 @@\\ndiff --git a/x b/x\\n",
];

fn step(dice: &mut Dice) -> String {
    let path = |dice: &mut Dice| {
        let depth = 1 + dice.below(2);
        let parts: Vec<&str> =
            (0..depth).map(|_| NAMES[dice.below(NAMES.len() as u64) as usize]).collect();
        format!("'{}'", parts.join("/"))
    };
    let (one, two) = (path(dice), path(dice));
    let content = CONTENTS[dice.below(CONTENTS.len() as u64) as usize];
    match dice.below(9) {
        0..=2 => format!("mkdir -p -- \"$(dirname -- {one})\"; printf -- '{content}' > {one}"),
        3 => format!("printf -- '{content}' >> {one}"),
        4 => format!("rm -rf -- {one}"),
        5 => format!("mv -T -- {one} {two}"),
        6 => format!("rm -rf -- {one}; mkdir {one}; printf -- '{content}' > {one}/x"),
        7 => {
            format!("rm -rf -- {one}; ln -s -- \"$(printf -- '{content}' | tr -d '\\000')\" {one}")
        }
        _ => format!("test -L {one} || test -d {one} || chmod {} {one}", 644 + 111 * dice.below(2)),
    }
}

#[test]
fn git_makes_of_random_trees_what_the_sandbox_made() {
    const ROUNDS: u32 = 8;
    const STEPS: u32 = 25;
    for seed in 1..=2u64 {
        let msb = Msb::new();
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let root = project(&msb, &[]);
        let steps = |dice: &mut Dice| -> String {
            let lines: String = (0..STEPS).map(|_| step(dice) + "\n").collect();
            format!("umask 022\nexec 2>/dev/null\n{lines}true\n")
        };
        // What the host has is random, too.
        gives(Command::new("sh").arg("-c").arg(steps(&mut dice)).current_dir(&root)).ok();
        let plain = msb.scratch().join("plain");
        copy(&root, &plain);
        keep(&msb);
        for round in 0..ROUNDS {
            let script = steps(&mut dice);
            inside(&msb, &script).ok();
            gives(Command::new("sh").arg("-c").arg(&script).current_dir(&plain)).ok();
            let patch = msb.words("diff box -p --ignored").ok();
            let (made, expected) = (patched(&msb, &root, &patch.stdout), kept_by_git(&plain));
            assert_eq!(made, expected, "seed {seed}, round {round}:\n{}", patch.stdout);
        }
    }
}
