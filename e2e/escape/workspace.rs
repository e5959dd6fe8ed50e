//! Attacks on a review: the sandbox owns the changes, and goes on while they are read.

use msb_e2e::{Msb, skip};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

fn project(msb: &Msb, files: &[(&str, &str)]) -> PathBuf {
    let root = msb.scratch().join("project");
    fs::create_dir_all(&root).expect("a directory");
    msb.chown(&root);
    for (path, text) in files {
        msb.file(&format!("project/{path}"), text);
    }
    root
}

fn inside(msb: &Msb, script: &str) {
    msb.run(["exec", "box", "--", "sh", "-c", script]).ok();
}

/// Every path below a directory with what it holds.
fn everything(root: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).expect("it was listed");
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory").flatten();
            waiting.extend(entries.map(|entry| entry.path()));
        }
        found.push((path, meta));
    }
    found
}

/// Attack 45.
#[test]
fn what_the_host_would_run_is_not_brought_unless_it_is_named() {
    for msb in Msb::each() {
        let root = project(&msb, &[("src/a", "1"), (".git/HEAD", "ref: refs/heads/main")]);
        msb.words("create -n box --workspace project").ok();
        inside(
            &msb,
            "for f in .git/config .git/hooks/pre-commit .git/info/attributes .GIT/config .gitmodules \
             .gitattributes .envrc .vscode/tasks.json .claude/settings.json .mcp.json .cursor/rules \
             .idea/x.xml CLAUDE.md AGENTS.md Makefile sub/package.json .venv/bin/python pyvenv.cfg \
             .github/workflows/ci.yml .npmrc build.rs conftest.py setup.py .pre-commit-config.yaml \
             .cargo/config.toml bare/config bare/HEAD Cargo.toml eslint.config.js .clangd MODULE.bazel \
             mix.exs .git/rebase-merge/git-rebase-todo .unheard-of/settings src/b; do \
             mkdir -p $(dirname $f); echo evil > $f; done; ln -s src .husky; ln -s ../../etc up; \
             ln -s /etc/shadow abs; echo '#!' > run.sh; chmod 755 run.sh",
        );
        for flags in
            ["", "--include **", "--include *", "--include src", "--include src/**", "--ignored"]
        {
            msb.words(&format!("apply box {flags}"));
        }
        let brought: Vec<String> = everything(&root)
            .into_iter()
            .filter(|(_, meta)| !meta.is_dir())
            .map(|(path, _)| path.strip_prefix(&root).unwrap().display().to_string())
            .collect();
        let mut brought: Vec<&str> = brought.iter().map(String::as_str).collect();
        brought.sort_unstable();
        assert_eq!(brought, [".git/HEAD", "src/a", "src/b"]);
        let json = msb.json(["diff", "box", "--json"]);
        let flagged = json["changes"].as_array().unwrap().iter();
        assert_eq!(flagged.filter(|change| change["risk"].is_object()).count(), 38);
        msb.words("apply box --include .envrc --include .git/config").ok();
        assert_eq!(fs::read_to_string(root.join(".envrc")).unwrap(), "evil\n");
        assert_eq!(fs::read_to_string(root.join(".git/config")).unwrap(), "evil\n");
        assert!(!root.join(".git/hooks/pre-commit").exists());
    }
}

/// Attack 45: the parts of a repository, one apply after the other.
#[test]
fn a_repository_is_not_built_over_several_applies() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1"), ("old/HEAD", "ref: refs/heads/main\n")]);
        msb.words("create -n box --workspace project").ok();
        let settings = "[core] bare = true\n fsmonitor = touch /tmp/ran\n";
        for directory in ["new", "old"] {
            let script = format!(
                "cd {directory} || mkdir {directory} && cd {directory}; \
                mkdir -p objects refs/heads hooks; printf '{settings}' > config; \
                echo '#!/bin/sh' > hooks/post-checkout; echo x > refs/heads/main"
            );
            inside(&msb, &script);
        }
        msb.words("apply box").ok();
        inside(&msb, "echo 'ref: refs/heads/main' > new/HEAD");
        msb.words("apply box").ok();
        msb.words("apply box --include **").ok();
        assert!(!root.join("new/HEAD").exists());
        assert!(!root.join("old/config").exists());
        assert!(!root.join("old/hooks/post-checkout").exists());
        assert!(root.join("old/refs/heads/main").exists());
    }
}

/// Attacks 2 and 4: what is shown as a file may be a link when it is read.
#[test]
fn links_that_come_and_go_bring_nothing_of_the_host() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1")]);
        msb.file("secret/canary", "the-secret-of-the-host");
        let secret = msb.scratch().join("secret");
        msb.words("create -n box --workspace project").ok();
        let script = format!(
            "while :; do mkdir d; echo plain > d/canary; echo plain > canary; rm -r d; \
             ln -s {0} d; rm canary; ln -s {0}/canary canary; rm d; rm canary; mkfifo canary; \
             rm canary; done",
            secret.display()
        );
        msb.run(["exec", "-d", "box", "--", "sh", "-c", &script]).ok();
        for _ in 0..40 {
            let shown = msb.words("diff box -p");
            assert!(!shown.stdout.contains("the-secret"), "{}", shown.stdout);
            msb.words("apply box --include canary --include d/**");
            for (path, meta) in everything(&root) {
                assert!(!meta.file_type().is_fifo(), "{}", path.display());
                if meta.is_file() {
                    assert!(!fs::read_to_string(&path).unwrap().contains("the-secret"));
                }
            }
        }
        let canary = fs::read_to_string(secret.join("canary")).unwrap();
        assert_eq!(canary, "the-secret-of-the-host");
        msb.words("stop -f box").ok();
    }
}

/// Attack 3: a directory of the host that becomes a link while changes are brought there.
#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    for msb in Msb::each() {
        let root = project(&msb, &[("dir/a", "1"), ("other/a", "1")]);
        msb.file("outside/a", "untouched");
        let outside = msb.scratch().join("outside");
        msb.words("create -n box --workspace project").ok();
        inside(&msb, "for i in $(seq 50); do echo evil > dir/n$i; done; echo evil > dir/a");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (dir, away) = (root.join("dir"), root.join("away"));
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::rename(&dir, &away);
                    let _ = symlink(&outside, &dir);
                    let _ = fs::remove_file(&dir);
                    let _ = fs::rename(&away, &dir);
                }
            });
            for _ in 0..30 {
                msb.words("apply box");
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let names: Vec<_> = fs::read_dir(&outside).unwrap().flatten().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(fs::read_to_string(outside.join("a")).unwrap(), "untouched");
    }
}

/// Attacks 4 and 5.
#[test]
fn bits_devices_and_pipes_do_not_reach_the_host() {
    for msb in Msb::each() {
        let root = project(&msb, &[("tool", "1"), ("pipe", "1"), ("hole", "1")]);
        msb.words("create -n box --workspace project").ok();
        inside(
            &msb,
            "cp /bin/true suid; chmod 6755 suid; chmod 4755 tool; mkdir sticky; chmod 3777 sticky; \
             rm pipe; mkfifo pipe; mkfifo other; ln suid hard; mknod null c 1 3; rm hole; \
             mknod hole c 0 0; true",
        );
        msb.words("diff box -p").ok();
        msb.words("apply box --include ** --include tool --include suid --include hard").ok();
        for (path, meta) in everything(&root) {
            assert_eq!(meta.mode() & 0o7000, 0, "{}", path.display());
            let kind = meta.file_type();
            assert!(kind.is_dir() || kind.is_file(), "{}", path.display());
            assert!(kind.is_dir() || meta.nlink() == 1, "{}", path.display());
        }
        assert_eq!(fs::read_to_string(root.join("pipe")).unwrap(), "1");
        assert!(root.join("suid").exists());
    }
}

/// Attacks 6 and 28.
#[test]
fn names_and_texts_do_not_reach_a_terminal_as_they_are() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1\n")]);
        msb.words("create -n box --workspace project").ok();
        let script = "touch \"$(printf 'e\\033[2Jx')\" \"$(printf 'n\\nl')\" \"$(printf '\\377')\" \
                      \"$(printf '\\342\\200\\256rtl')\"; printf 'x\\033]0;owned\\007\\r\\n' > a; \
                      ln -s \"$(printf 'to\\033[31m')\" link";
        inside(&msb, script);
        let quiet = |text: &str| text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control());
        for line in [
            "diff box",
            "diff box -p",
            "diff box --stat",
            "diff box --name-only",
            "diff box --json",
            "apply box --dry-run",
        ] {
            let gave = msb.words(line).ok();
            assert!(quiet(&gave.stdout) && quiet(&gave.stderr), "{line}: {gave:?}");
            assert!(!gave.stdout.contains('\u{202e}'), "{line}");
        }
        let shown = msb.on_terminal("diff box -p");
        assert!(
            !shown.stdout.contains("\u{1b}[2J") && !shown.stdout.contains("\u{1b}]0"),
            "{shown:?}"
        );
        msb.words("apply box").ok();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 6);
    }
}

/// Attack 1: a path to be forgotten or shown is below the workspace.
#[test]
fn dot_dot_paths_do_not_leave_the_workspace() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "untouched");
        project(&msb, &[("a", "1")]);
        msb.words("create -n box --workspace project").ok();
        inside(&msb, "echo 2 > a");
        msb.words("stop box").ok();
        let own = canary.display().to_string();
        for path in ["..", "../canary", "a/../../canary", "/etc/passwd", "", &own] {
            for verb in ["diff", "discard"] {
                let gave = msb.run([verb, "box", "--", path]);
                assert_ne!(gave.code, 0, "{verb} {path}");
            }
        }
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert_eq!(msb.words("diff box").line(), "M  a");
    }
}

/// Attack 5: what is shown copy-on-write cannot be written by any way around the overlay.
#[test]
fn the_host_directory_cannot_be_written_from_inside() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1")]);
        let before = fs::metadata(root.join("a")).unwrap();
        msb.words("create -n box --workspace project").ok();
        inside(
            &msb,
            "echo 2 > a; mount -o remount,rw /workspace; mount -o bind /workspace /mnt; \
             umount /workspace; umount -l /workspace; echo 3 > /workspace/a; rm -rf /workspace/*; true",
        );
        let after = fs::metadata(root.join("a")).unwrap();
        assert_eq!((after.ino(), after.ctime_nsec()), (before.ino(), before.ctime_nsec()));
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1");
    }
}

/// The notes of a review are read back as anybody could have written them.
#[test]
fn a_forged_journal_removes_nothing() {
    for msb in Msb::each() {
        if !msb.is_root() {
            skip("a user's own state directory is the user's");
            continue;
        }
        let root = project(&msb, &[("a", "1"), ("precious/b", "1")]);
        msb.words("create -n box --workspace project").ok();
        let notes = msb.home().join("sandboxes/box/review");
        for staging in ["precious", "../../..", ".msb-apply-", ".msb-apply-../../etc", "/etc"] {
            let text = format!("{{\"staging\":\"{staging}\",\"steps\":[]}}");
            for name in ["journal.json", "committed.json"] {
                fs::write(notes.join(name), &text).unwrap();
                assert_ne!(msb.words("diff box").code, 0, "{staging}");
                fs::remove_file(notes.join(name)).unwrap();
            }
        }
        assert!(root.join("precious/b").exists());
        msb.words("diff box").ok();
    }
}
