//! What is brought to the host, and what is not.

use super::Bench;
use msb_api::{LeftOut, RelPath, Selection};
use msb_spec::Kind;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn everything_that_was_changed_comes_to_the_host() {
    let bench = Bench::with(&[
        ("changed", "old"),
        ("gone", "x"),
        ("dir/a", "x"),
        ("dir/deep/b", "x"),
        ("file", "x"),
        ("full/x", "x"),
        ("link", "-> a"),
        ("mode", "x"),
    ]);
    bench.inside("changed", "new");
    bench.deleted("gone");
    bench.made_anew("dir");
    bench.inside("dir/c", "c");
    bench.inside("file/inner", "y");
    bench.inside("full", "a file");
    bench.inside("link", "-> b");
    bench.inside("mode", "x");
    fs::set_permissions(bench.upper().join("mode"), Permissions::from_mode(0o4751)).unwrap();
    bench.inside("new/tool", "#!x");
    bench.apply(&["**", "tool", "mode"]).unwrap();
    assert_eq!(
        bench.tree(),
        [
            "changed 644 \"new\"",
            "dir/ 755",
            "dir/c 644 \"c\"",
            "file/ 755",
            "file/inner 644 \"y\"",
            "full 644 \"a file\"",
            "link -> b",
            "mode 751 \"x\"",
            "new/ 755",
            "new/tool 755 \"#!x\"",
        ]
    );
    assert!(bench.diff().is_empty(), "{:?}", bench.told());
}

#[test]
fn one_conflict_keeps_everything_from_being_written() {
    let bench = Bench::with(&[("both", "old"), ("calm", "old")]);
    bench.inside("both", "theirs");
    bench.inside("calm", "theirs");
    bench.host("both", "ours");
    let before = bench.tree();
    let error = bench.apply(&[]).unwrap_err();
    assert_eq!((error.kind(), error.message()), (Kind::State, "1 conflict, nothing was written"));
    assert_eq!(bench.tree(), before);
    bench.apply(&["calm"]).unwrap();
    assert_eq!(bench.tree(), ["both 644 \"ours\"", "calm 644 \"theirs\""]);
}

/// Attack 45.
#[test]
fn what_the_host_would_run_comes_only_when_it_is_named() {
    let bench = Bench::with(&[("package.json", "{}"), ("src/x", "x")]);
    bench.inside("package.json", "{\"scripts\":{}}");
    bench.inside(".git/hooks/pre-commit", "#!evil");
    bench.inside(".GIT/config", "evil");
    bench.inside("src/package.json", "evil");
    bench.inside("src/x", "y");
    bench.inside("out", "-> /etc/passwd");
    for include in [&[][..], &["**"], &["*"]] {
        let applied = bench.apply(include).unwrap();
        let risky = applied.left_out.iter().filter(|(_, why)| *why == LeftOut::Risk).count();
        assert_eq!(risky, 5, "{include:?}");
    }
    assert_eq!(
        bench.tree(),
        [
            ".GIT/ 755",
            ".git/ 755",
            ".git/hooks/ 755",
            "package.json 644 \"{}\"",
            "src/ 755",
            "src/x 644 \"y\"",
        ]
    );
    bench.apply(&["package.json", ".git/**", "out"]).unwrap();
    assert_eq!(
        bench.tree(),
        [
            ".GIT/ 755",
            ".GIT/config 644 \"evil\"",
            ".git/ 755",
            ".git/hooks/ 755",
            ".git/hooks/pre-commit 755 \"#!evil\"",
            "out -> /etc/passwd",
            "package.json 644 \"{\\\"scripts\\\":{}}\"",
            "src/ 755",
            "src/package.json 644 \"evil\"",
            "src/x 644 \"y\"",
        ]
        .into_iter()
        .filter(|line| !line.starts_with(".GIT/config"))
        .collect::<Vec<_>>()
    );
}

#[test]
fn patterns_choose_and_ignored_files_stay() {
    let bench = Bench::with(&[(".gitignore", "out\n"), ("a/x", "x"), ("a/y", "x"), ("b/z", "x")]);
    bench.inside("out/log", "x");
    bench.inside("new/deep/file", "x");
    bench.deleted("a");
    bench.deleted("b");
    let selection = Selection {
        include: vec!["new/deep/file".into(), "a/**".into(), "b".into()],
        exclude: vec!["a/y".into()],
        ..Selection::default()
    };
    bench.workspace.apply(&selection, false).unwrap();
    assert_eq!(
        bench.tree(),
        [
            ".gitignore 644 \"out\\n\"",
            "a/ 755",
            "a/y 644 \"x\"",
            "new/ 755",
            "new/deep/ 755",
            "new/deep/file 644 \"x\"",
        ]
    );
    bench.apply(&[]).unwrap();
    assert!(!bench.workspace.host.join("out").exists());
    let ignored = Selection { ignored: true, ..Selection::default() };
    bench.workspace.apply(&ignored, false).unwrap();
    assert!(bench.workspace.host.join("out/log").exists());
    let error = bench.apply(&["no-such"]).unwrap_err();
    assert_eq!(error.message(), "nothing that was changed fits `no-such`");
}

#[test]
fn nothing_is_brought_that_was_not_looked_at() {
    let bench = Bench::with(&[]);
    bench.inside("file", "shown to somebody");
    let digest = "0".repeat(64);
    let only = BTreeMap::from([(RelPath::parse("file").unwrap(), Some(digest))]);
    let selection = Selection { only: Some(only), ..Selection::default() };
    let error = bench.workspace.apply(&selection, false).unwrap_err();
    assert_eq!(error.message(), "changed while it was read: `file`");
    assert!(bench.tree().is_empty());
}

#[test]
fn what_was_brought_is_known_again() {
    let bench = Bench::with(&[("file", "old"), ("gone", "x")]);
    bench.inside("file", "one");
    bench.deleted("gone");
    bench.apply(&[]).unwrap();
    // The sandbox goes on, and its next change is no conflict with our own.
    bench.inside("file", "two!");
    assert_eq!(bench.told(), ["changed file"]);
    bench.apply(&[]).unwrap();
    // The user goes on, and the sandbox has nothing new to say.
    bench.host("file", "three");
    bench.host("gone", "again");
    assert!(bench.told().is_empty());
    bench.inside("file", "four!");
    assert_eq!(bench.told(), ["changed file conflict"]);
}

/// Attack 3.
#[test]
fn a_directory_that_became_a_link_leads_nowhere() {
    let bench = Bench::with(&[("dir/file", "old")]);
    let outside = bench.workspace.host.with_file_name("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "old").unwrap();
    bench.inside("dir/file", "evil");
    bench.inside("dir/new", "evil");
    let host = &bench.workspace.host;
    fs::rename(host.join("dir"), host.join("away")).unwrap();
    symlink(&outside, host.join("dir")).unwrap();
    assert!(bench.apply(&[]).is_err());
    assert_eq!(super::described(&outside), ["file 644 \"old\""]);
}

#[test]
fn changes_are_forgotten_in_part_and_as_a_whole() {
    let bench = Bench::with(&[("a", "x"), ("dir/b", "x"), ("anew/c", "x")]);
    bench.inside("a", "y");
    bench.inside("dir/b", "y");
    bench.inside("dir/new", "y");
    bench.made_anew("anew");
    bench.inside("anew/d", "x");
    let path = |text: &str| RelPath::parse(text).unwrap();
    assert_eq!(bench.workspace.discard(&[path("dir/b")]).unwrap(), 1);
    assert!(!bench.told().iter().any(|line| line.contains("dir/b")));
    let error = bench.workspace.discard(&[path("anew/d")]).unwrap_err();
    assert_eq!(error.message(), "cannot forget a part of `anew`");
    fs::create_dir_all(bench.upper().join("e/".repeat(400))).unwrap();
    fs::set_permissions(bench.upper().join("dir"), Permissions::from_mode(0o0)).unwrap();
    assert!(bench.workspace.discard(&[]).unwrap() > 3);
    assert!(bench.diff().is_empty());
    assert_eq!(fs::read_dir(&bench.workspace.changes).unwrap().count(), 0);
}
