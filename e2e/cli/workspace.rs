//! `--workspace`, `msb diff`, `apply` and `discard`: nothing touches the host before it was meant to.

mod git_patch;
mod kills;
mod nameless;
mod ownership;
mod random;

use msb_e2e::terminal::Terminal;
use msb_e2e::{CmdOutput, Msb};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A project of the user's with these files.
fn project(msb: &Msb, files: &[(&str, &str)]) -> PathBuf {
    let root = msb.scratch().join("project");
    fs::create_dir_all(&root).expect("a directory");
    msb.chown(&root);
    for (path, text) in files {
        let mut parent = root.join(path);
        msb.file(&format!("project/{path}"), text);
        while parent.pop() && parent != root {
            msb.chown(&parent);
        }
    }
    root
}

/// A tree as text: for each path its kind, permissions and content, in order.
fn described(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).expect("it was listed");
        let name = path.strip_prefix(root).expect("below the root").as_os_str().as_bytes();
        let name = name.escape_ascii();
        let mode = meta.mode() & 0o7777;
        if meta.is_symlink() {
            found.push(format!("{name} -> {}", fs::read_link(&path).expect("a link").display()));
        } else if meta.is_dir() {
            found.push(format!("{name}/ {mode:o}"));
            let entries = fs::read_dir(&path).expect("a directory").flatten();
            waiting.extend(entries.map(|entry| entry.path()));
        } else {
            let content = fs::read(&path).expect("a file");
            found.push(format!("{name} {mode:o} {}", content.escape_ascii()));
        }
    }
    found.sort();
    found
}

/// Runs a script in a sandbox that is kept, with the project as its workspace.
fn inside(msb: &Msb, script: &str) -> CmdOutput {
    msb.run(["exec", "box", "--", "sh", "-c", script])
}

fn keep(msb: &Msb) {
    msb.words("create -n box --workspace project").ok();
}

#[test]
fn a_run_leaves_the_host_as_it_was_and_says_how_to_go_on() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a.txt", "one\n"), ("old/x", "x")]);
        let before = described(&root);
        let script = "pwd; cat a.txt; echo two >> a.txt; rm -r old; echo new > new.txt; cat a.txt";
        let gave = msb.run(["run", "--workspace", "project", "--", "sh", "-c", script]).ok();
        assert_eq!(gave.stdout, "/workspace\none\none\ntwo\n");
        assert_eq!(described(&root), before);
        let listed = msb.json(["ls", "--json"]);
        let name = listed[0]["name"].as_str().unwrap().to_owned();
        assert!(gave.stderr.contains(&format!("`msb apply {name}`")), "{}", gave.stderr);
        let diff = msb.run(["diff", &name]).ok();
        assert_eq!(diff.stdout, "M  a.txt\nA  new.txt\nD  old/x\n");
        for verb in [&["start", name.as_str()][..], &["exec", &name, "--", "true"]] {
            let gave = msb.run(verb);
            let message = format!("error: sandbox `{name}` has ended; only its changes are kept\n");
            assert!(gave.stderr.starts_with(&message), "{gave:#?}");
            assert!(gave.stderr.contains(&format!("hint: `msb diff {name}`")), "{gave:#?}");
        }
        assert_eq!(listed[0]["status"], "review");
        let row = msb.words("ls").ok().stdout.lines().nth(1).unwrap().to_owned();
        assert!(row.contains("changes to review") && !row.contains("stopped"), "{row}");
        msb.run(["apply", &name]).ok();
        assert_eq!(described(&root), ["/ 755", "a.txt 644 one\\ntwo\\n", "new.txt 644 new\\n"]);
    }
}

#[test]
fn what_a_run_leaves_is_gone_when_nothing_is_left_to_review() {
    for msb in Msb::each() {
        project(&msb, &[("a", "1"), ("b", "1"), (".gitignore", "out\n")]);
        let left = |script: &str| {
            msb.run(["run", "-q", "--workspace", "project", "--", "sh", "-c", script]).ok();
            msb.words("ls -q").line()
        };
        let is_gone = || msb.words("ls -q").line().is_empty();
        // All of it applied, or discarded.
        let name = left("echo 2 > a; rm b");
        let gave = msb.run(["apply", &name]).ok();
        assert!(gave.stderr.contains("had nothing else and is gone"), "{gave:#?}");
        assert!(is_gone());
        let name = left("echo 3 > a");
        msb.run(["discard", &name]).ok();
        assert!(is_gone());
        // Piece by piece.
        let name = left("echo 4 > a; echo new > c");
        msb.run(["apply", &name, "--dry-run"]).ok();
        msb.run(["apply", &name, "--include", "a"]).ok();
        assert_eq!(msb.run(["diff", &name]).line(), "A  c");
        msb.run(["discard", &name, "c"]).ok();
        assert!(is_gone());
        // What the host ignores was not applied and is not lost.
        let name = left("echo 5 > a; echo x > out");
        let gave = msb.run(["apply", &name]).ok();
        assert!(gave.stderr.contains(&format!("`msb discard {name}` forgets")), "{gave:#?}");
        msb.run(["apply", &name, "--ignored"]).ok();
        assert!(is_gone());
        // A sandbox with a name stays.
        msb.run(["run", "-q", "-n", "fix", "--workspace", "project", "--", "touch", "d"]).ok();
        msb.words("apply fix").ok();
        assert_eq!(msb.json(["ls", "--json"])[0]["status"], "stopped");
    }
}

#[test]
fn a_run_that_changed_nothing_leaves_nothing() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a.txt", "one\n"), ("dir/b", "x")]);
        let quiet = ["cat a.txt", "touch dir/b; echo x > y; rm y", "printf x > dir/b"];
        for script in quiet {
            let gave = msb.run(["run", "--workspace", "project", "--", "sh", "-c", script]).ok();
            assert_eq!(gave.stderr, "", "{script}");
            assert_eq!(msb.json(["ls", "--json"]), serde_json::json!([]), "{script}");
        }
        assert_eq!(fs::read_dir(msb.home().join("sandboxes")).unwrap().count(), 0);
        assert_eq!(described(&root), ["/ 755", "a.txt 644 one\\n", "dir/ 755", "dir/b 644 x"]);
    }
}

#[test]
fn a_sandbox_that_lasts_keeps_its_changes_and_can_go_on() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1"), ("b", "1")]);
        keep(&msb);
        inside(&msb, "echo 2 > a; mkdir d; echo d > d/e").ok();
        msb.words("stop box").ok();
        msb.words("start box").ok();
        assert_eq!(inside(&msb, "cat a d/e").line(), "2\nd");
        assert_eq!(msb.words("diff box").line(), "M  a\nA  d/e");
        msb.words("apply box").ok();
        inside(&msb, "echo 3 > a; rm b").ok();
        assert_eq!(msb.words("diff box --name-only").line(), "a\nb");
        msb.words("apply box").ok();
        let after = ["/ 755", "a 644 3\\n", "d/ 755", "d/e 644 d\\n"];
        assert_eq!(described(&root), after);
        assert_eq!(msb.words("diff box").line(), "");
    }
}

#[test]
fn a_conflict_is_shown_and_nothing_is_written() {
    for msb in Msb::each() {
        let root = project(&msb, &[("both", "1"), ("calm", "1"), ("gone", "1")]);
        keep(&msb);
        inside(&msb, "echo in > both; echo in > calm; rm gone; echo in > new").ok();
        msb.file("project/both", "out");
        msb.file("project/gone", "out");
        msb.file("project/new", "out");
        let before = described(&root);
        let gave = msb.words("apply box");
        assert_eq!(gave.code, 125);
        let message = "error: cannot apply the changes of sandbox `box`\n  \
                       cause: 3 conflicts, nothing was written\n  \
                       cause: `both`: changed on the host since the sandbox saw it\n";
        assert!(gave.stderr.starts_with(message), "{}", gave.stderr);
        assert_eq!(described(&root), before);
        let json = msb.json(["diff", "box", "--json"]);
        let conflicts = json["changes"].as_array().unwrap();
        let conflicts = conflicts.iter().filter(|one| one["conflict"] == "changed_on_host");
        assert_eq!(conflicts.count(), 3);
        // The sandbox's version wins where it is said so, and only there.
        assert_eq!(msb.words("apply box --overwrite new").code, 125);
        assert_eq!(described(&root), before);
        msb.words("apply box --include new --overwrite new").ok();
        assert_eq!(fs::read_to_string(root.join("new")).unwrap(), "in\n");
        msb.words("apply box --include calm").ok();
        assert_eq!(fs::read_to_string(root.join("calm")).unwrap(), "in\n");
        msb.words("stop box").ok();
        msb.words("discard box both new gone").ok();
        msb.words("start box").ok();
        assert_eq!(inside(&msb, "cat both new gone calm").line(), "outin\noutin");
    }
}

#[test]
fn a_file_that_the_host_has_removed_does_not_come_back_by_itself() {
    for msb in Msb::each() {
        let root = project(&msb, &[("d/changed", "1\n"), ("d/moved", "2\n"), ("top", "3\n")]);
        keep(&msb);
        let script = "echo in >> d/changed; mv d/moved d/other; echo in >> top; echo in > d/new; \
                      mv top top2; echo in >> top2";
        inside(&msb, script).ok();
        let conflicts = || -> Vec<String> {
            let json = msb.json(["diff", "box", "--json"]);
            let changes = json["changes"].as_array().unwrap().iter();
            let conflicts = changes.filter(|one| one["conflict"] == "removed_on_host");
            conflicts.map(|one| one["path"].as_str().unwrap().to_owned()).collect()
        };
        // Other names alone are none.
        assert_eq!(conflicts(), [""; 0]);
        fs::remove_file(root.join("d/changed")).unwrap();
        assert_eq!(conflicts(), ["d/changed"]);
        let before = described(&root);
        let gave = msb.words("apply box");
        let said = "`d/changed`: removed on the host since the sandbox saw it";
        assert!(gave.code == 125 && gave.stderr.contains(said), "{}", gave.stderr);
        assert_eq!(described(&root), before);
        msb.words("apply box --exclude d/changed").ok();
        let after =
            ["/ 755", "d/ 755", "d/new 644 in\\n", "d/other 644 2\\n", "top2 644 3\\nin\\nin\\n"];
        assert_eq!(described(&root), after);
        // What was brought there by us is known, however it was written.
        fs::remove_file(root.join("d/new")).unwrap();
        inside(&msb, "echo again > d/x; mv d/x d/new").ok();
        assert_eq!(conflicts(), ["d/changed", "d/new"]);
        msb.words("apply box --overwrite d/changed --overwrite d/new").ok();
        assert_eq!(fs::read_to_string(root.join("d/changed")).unwrap(), "1\nin\n");
        assert_eq!(msb.words("diff box").line(), "");
    }
}

#[test]
fn changes_are_only_forgotten_while_nothing_runs() {
    for msb in Msb::each() {
        project(&msb, &[("a", "1"), ("d/x", "1")]);
        keep(&msb);
        inside(&msb, "echo 2 > a; rm -r d; mkdir n; chmod 0 n; echo 3 > z; chmod 0 z").ok();
        let gave = msb.words("discard box");
        assert!(gave.stderr.contains("sandbox `box` is running"), "{}", gave.stderr);
        msb.words("stop box").ok();
        msb.words("discard box /workspace/a").ok();
        assert_eq!(msb.words("diff box").line(), "D  d/x\nA  n/\nA  z");
        msb.words("discard box").ok();
        assert_eq!(msb.words("diff box").line(), "");
        msb.words("start box").ok();
        assert_eq!(inside(&msb, "cat a d/x; ls").line(), "11a\nd");
    }
}

#[test]
fn differences_are_shown_as_they_were_asked_for() {
    for msb in Msb::each() {
        let root =
            project(&msb, &[("text", "a\nb\nc\n"), (".gitignore", "out\n"), ("old", "same")]);
        fs::write(root.join("bytes"), b"\0one").unwrap();
        msb.chown(&root.join("bytes"));
        keep(&msb);
        inside(
            &msb,
            "sed -i s/b/B/ text; mv old new; printf '\\0two!' > bytes; mkdir out; echo x > out/y",
        )
        .ok();
        inside(&msb, "chmod 755 text; printf x > package.json").ok();
        let patch = msb.words("diff box -p").ok();
        let shown = "# needs --include: a file that can be executed now\n\
                     diff --git a/text b/text\nold mode 100644\nnew mode 100755\n\
                     index de980441c3ab03a8c07dda1ad27b8a11f39deb1e..";
        assert!(patch.stdout.contains(shown), "{}", patch.stdout);
        let lines = "--- a/text\n+++ b/text\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n";
        assert!(patch.stdout.contains(lines), "{}", patch.stdout);
        assert!(patch.stdout.contains("rename from old\nrename to new\n"), "{}", patch.stdout);
        assert!(patch.stdout.contains("GIT binary patch\nliteral 5\n"), "{}", patch.stdout);
        assert!(patch.stderr.contains("2 changes are left out by the host's .gitignore"));
        let stat = msb.words("diff box --stat").ok();
        assert!(stat.stdout.contains("text         | +1 -1\n"), "{}", stat.stdout);
        assert_eq!(msb.words("diff box --name-only text bytes").line(), "bytes\ntext");
        let all = msb.words("diff box --ignored").line();
        assert!(all.contains("A  out/y"), "{all}");
        assert!(all.contains("M  package.json") || all.contains("A  package.json"), "{all}");
        let json = msb.json(["diff", "box", "--json", "text"]);
        assert_eq!(json["changes"][0]["before"]["mode"], "0644");
        assert_eq!(json["guest"], "/workspace");
    }
}

#[test]
fn each_file_can_be_asked_about() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1"), ("b", "1"), ("c", "1"), ("gone/x", "1")]);
        keep(&msb);
        inside(&msb, "echo 2 > a; echo 2 > b; echo 2 > c; rm -r gone; echo evil > Makefile").ok();
        let gave = msb.run_with(["apply", "box", "-i"], b"n\nd\n?\ny\nn\nq\n").ok();
        assert!(gave.stderr.contains("nothing was applied"), "{}", gave.stderr);
        assert!(gave.stdout.contains("+2\n"), "{}", gave.stdout);
        // The end of what is typed is no yes.
        msb.run_with(["apply", "box", "-i"], b"n\ny\n").ok();
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1");
        // Makefile, a, then all.
        msb.run_with(["apply", "box", "-i"], b"n\nn\na\n").ok();
        let after = ["/ 755", "a 644 1", "b 644 2\\n", "c 644 2\\n"];
        assert_eq!(described(&root), after);
    }
}

#[test]
fn at_a_terminal_one_key_answers_for_each_file() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1"), ("b", "1"), ("c", "1")]);
        keep(&msb);
        inside(&msb, "echo 2 > a; echo 2 > b; echo 2 > c").ok();
        let command = msb.command(["apply", "box", "-i"]);
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.shows("(1/3) apply this [y,n,d,a,q,?]? ");
        terminal.types("?");
        terminal.shows("q  apply nothing at all");
        terminal.types("d");
        terminal.shows("+2");
        // An arrow is no answer; what is typed ahead is.
        terminal.types("\u{1b}[A");
        terminal.types("yny");
        terminal.shows("(3/3) apply this");
        let (code, shown) = terminal.ends();
        assert_eq!(code, 0, "{shown}");
        assert!(shown.contains("applied 2 of 3 changes"), "{shown}");
        assert_eq!(described(&root), ["/ 755", "a 644 2\\n", "b 644 1", "c 644 2\\n"]);
        for leave in ["q", "\u{3}", "\u{4}"] {
            let mut terminal = Terminal::start(&command, 24, 80);
            terminal.shows("(1/1) apply this");
            terminal.types(leave);
            let (code, shown) = terminal.ends();
            assert!(code == 0 && shown.contains("nothing was applied"), "{shown}");
        }
        let gave = msb.words("apply box").ok();
        assert_eq!(gave.stderr, "note: applied 1 of 1 change\n");
    }
}

#[test]
fn a_directory_that_is_no_project_is_refused() {
    for msb in Msb::each() {
        msb.file("file", "x");
        fs::create_dir_all(msb.home().join("inner")).unwrap();
        let scratch = msb.scratch().display().to_string();
        let inner = msb.home().join("inner").display().to_string();
        for (place, why) in [
            ("/", "it is the whole host"),
            (scratch.as_str(), "the state of msb is kept in"),
            (inner.as_str(), "the state of msb is kept in"),
            ("file", "a workspace is a directory"),
            ("no-such", "no such file or directory"),
            ("..", "state of msb"),
        ] {
            let gave = msb.run(["run", "--workspace", place, "--", "true"]);
            assert_eq!(gave.code, 125, "{place}");
            assert!(gave.stderr.contains(why), "{place}: {}", gave.stderr);
        }
        project(&msb, &[("x", "x")]);
        let gave = msb.run(["run", "--workspace", "project:/", "--", "true"]);
        assert!(gave.stderr.contains("cannot replace the root"), "{}", gave.stderr);
        msb.words("create -n plain").ok();
        let gave = msb.words("diff plain");
        assert!(gave.stderr.contains("sandbox `plain` has no workspace"), "{}", gave.stderr);
    }
}

#[test]
fn it_appears_where_it_is_asked_for() {
    for msb in Msb::each() {
        let root = project(&msb, &[("x", "x"), ("sub/y", "y")]);
        fs::set_permissions(&root, Permissions::from_mode(0o750)).unwrap();
        symlink("project", msb.scratch().join("link")).unwrap();
        let line = |words: &str| msb.words(words).line();
        assert_eq!(line("run --workspace link:/work/here -- pwd"), "/work/here");
        assert_eq!(line("run --workspace project --workdir /tmp -- cat /workspace/sub/y"), "y");
        assert_eq!(line("run --workspace project -- stat -c %a:%u:%g . x"), "750:0:0\n644:0:0");
        assert!(line("run --workspace project --dry-run").contains("copy-on-write"));
        let shown = line("run --workspace project -v project/sub:/workspace/sub:ro -- sh -c ls");
        assert_eq!(shown, "sub\nx");
    }
}
