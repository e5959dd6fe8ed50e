//! What is applied to the host, and what is not.

use super::ReviewFixture;
use msb_api::{LeftOut, RelPath, Selection};
use msb_spec::Kind;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn everything_that_was_changed_comes_to_the_host() {
    let fixture = ReviewFixture::with(&[
        ("changed", "old"),
        ("gone", "x"),
        ("dir/a", "x"),
        ("dir/deep/b", "x"),
        ("file", "x"),
        ("full/x", "x"),
        ("link", "-> a"),
        ("mode", "x"),
    ]);
    fixture.inside("changed", "new");
    fixture.deleted("gone");
    fixture.opaque("dir");
    fixture.inside("dir/c", "c");
    fixture.inside("file/inner", "y");
    fixture.inside("full", "a file");
    fixture.inside("link", "-> b");
    fixture.inside("mode", "x");
    fs::set_permissions(fixture.upper().join("mode"), Permissions::from_mode(0o4751)).unwrap();
    fixture.inside("new/tool", "#!x");
    fixture.apply(&["**", "tool", "mode"]).unwrap();
    assert_eq!(
        fixture.tree(),
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
    assert!(fixture.diff().is_empty(), "{:?}", fixture.summary());
}

#[test]
fn one_conflict_keeps_everything_from_being_written() {
    let fixture = ReviewFixture::with(&[("both", "old"), ("calm", "old")]);
    fixture.inside("both", "theirs");
    fixture.inside("calm", "theirs");
    fixture.host("both", "ours");
    let before = fixture.tree();
    let error = fixture.apply(&[]).unwrap_err();
    assert_eq!((error.kind(), error.message()), (Kind::State, "1 conflict, nothing was written"));
    assert_eq!(fixture.tree(), before);
    fixture.apply(&["calm"]).unwrap();
    assert_eq!(fixture.tree(), ["both 644 \"ours\"", "calm 644 \"theirs\""]);
}

/// Attack 45.
#[test]
fn what_the_host_would_run_comes_only_when_it_is_named() {
    let fixture = ReviewFixture::with(&[("package.json", "{}"), ("src/x", "x")]);
    fixture.inside("package.json", "{\"scripts\":{}}");
    fixture.inside(".git/hooks/pre-commit", "#!evil");
    fixture.inside(".GIT/config", "evil");
    fixture.inside("src/package.json", "evil");
    fixture.inside("src/x", "y");
    fixture.inside("out", "-> /etc/passwd");
    for include in [&[][..], &["**"], &["*"]] {
        let applied = fixture.apply(include).unwrap();
        let risky = applied.left_out.iter().filter(|(_, why)| *why == LeftOut::Risk).count();
        assert_eq!(risky, 5, "{include:?}");
    }
    assert_eq!(
        fixture.tree(),
        [
            ".GIT/ 755",
            ".git/ 755",
            ".git/hooks/ 755",
            "package.json 644 \"{}\"",
            "src/ 755",
            "src/x 644 \"y\"",
        ]
    );
    fixture.apply(&["package.json", ".git/**", "out"]).unwrap();
    assert_eq!(
        fixture.tree(),
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
    let fixture =
        ReviewFixture::with(&[(".gitignore", "out\n"), ("a/x", "x"), ("a/y", "x"), ("b/z", "x")]);
    fixture.inside("out/log", "x");
    fixture.inside("new/deep/file", "x");
    fixture.deleted("a");
    fixture.deleted("b");
    let selection = Selection {
        include: vec!["new/deep/file".into(), "a/**".into(), "b".into()],
        exclude: vec!["a/y".into()],
        ..Selection::default()
    };
    fixture.workspace.apply(&selection, false).unwrap();
    assert_eq!(
        fixture.tree(),
        [
            ".gitignore 644 \"out\\n\"",
            "a/ 755",
            "a/y 644 \"x\"",
            "new/ 755",
            "new/deep/ 755",
            "new/deep/file 644 \"x\"",
        ]
    );
    fixture.apply(&[]).unwrap();
    assert!(!fixture.workspace.host.join("out").exists());
    let ignored = Selection { ignored: true, ..Selection::default() };
    fixture.workspace.apply(&ignored, false).unwrap();
    assert!(fixture.workspace.host.join("out/log").exists());
    let error = fixture.apply(&["no-such"]).unwrap_err();
    assert_eq!(error.message(), "no change matches `no-such`");
}

#[test]
fn nothing_is_brought_that_was_not_looked_at() {
    let fixture = ReviewFixture::with(&[]);
    fixture.inside("file", "shown to somebody");
    let digest = "0".repeat(64);
    let only = BTreeMap::from([(RelPath::parse("file").unwrap(), Some(digest))]);
    let selection = Selection { only: Some(only), ..Selection::default() };
    let error = fixture.workspace.apply(&selection, false).unwrap_err();
    assert_eq!(error.message(), "changed while it was read: `file`");
    assert!(fixture.tree().is_empty());
}

#[test]
fn what_was_brought_is_known_again() {
    let fixture = ReviewFixture::with(&[("file", "old"), ("gone", "x")]);
    fixture.inside("file", "one");
    fixture.deleted("gone");
    fixture.apply(&[]).unwrap();
    // The sandbox continues. Its next change does not conflict with the apply.
    fixture.inside("file", "two!");
    assert_eq!(fixture.summary(), ["changed file"]);
    fixture.apply(&[]).unwrap();
    // The user continues. The sandbox has no new change.
    fixture.host("file", "three");
    fixture.host("gone", "again");
    assert!(fixture.summary().is_empty());
    fixture.inside("file", "four!");
    assert_eq!(fixture.summary(), ["changed file conflict"]);
}

/// Attack 3.
#[test]
fn a_directory_that_became_a_link_leads_nowhere() {
    let fixture = ReviewFixture::with(&[("dir/file", "old")]);
    let outside = fixture.workspace.host.with_file_name("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "old").unwrap();
    fixture.inside("dir/file", "evil");
    fixture.inside("dir/new", "evil");
    let host = &fixture.workspace.host;
    fs::rename(host.join("dir"), host.join("away")).unwrap();
    symlink(&outside, host.join("dir")).unwrap();
    assert!(fixture.apply(&[]).is_err());
    assert_eq!(super::list_tree(&outside), ["file 644 \"old\""]);
}

#[test]
fn changes_are_forgotten_in_part_and_as_a_whole() {
    let fixture = ReviewFixture::with(&[("a", "x"), ("dir/b", "x"), ("anew/c", "x")]);
    fixture.inside("a", "y");
    fixture.inside("dir/b", "y");
    fixture.inside("dir/new", "y");
    fixture.opaque("anew");
    fixture.inside("anew/d", "x");
    let path = |text: &str| RelPath::parse(text).unwrap();
    assert_eq!(fixture.workspace.discard(&[path("dir/b")]).unwrap(), 1);
    assert!(!fixture.summary().iter().any(|line| line.contains("dir/b")));
    let error = fixture.workspace.discard(&[path("anew/d")]).unwrap_err();
    assert_eq!(error.message(), "cannot discard a part of `anew`");
    fs::create_dir_all(fixture.upper().join("e/".repeat(400))).unwrap();
    fs::set_permissions(fixture.upper().join("dir"), Permissions::from_mode(0o0)).unwrap();
    assert!(fixture.workspace.discard(&[]).unwrap() > 3);
    assert!(fixture.diff().is_empty());
    assert_eq!(fs::read_dir(&fixture.workspace.changes).unwrap().count(), 0);
}
