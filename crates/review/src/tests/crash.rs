//! A killed apply is complete or undone, wherever it was killed.

use super::ReviewFixture;
use crate::failpoint::tried::killed_after;
use std::fs;

fn prepared() -> ReviewFixture {
    let fixture = ReviewFixture::with(&[
        ("changed", "old"),
        ("gone", "x"),
        ("dir/a", "x"),
        ("dir/deep/b", "x"),
        ("file", "x"),
        ("full/x", "x"),
        ("mode", "x"),
    ]);
    fixture.inside("changed", "new");
    fixture.deleted("gone");
    fixture.deleted("dir");
    fixture.inside("file/inner/most", "y");
    fixture.inside("full", "a file");
    fixture.inside("mode", "x");
    fixture.inside("link", "-> file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(fixture.upper().join("mode"), mode).unwrap();
    fixture
}

/// More than there are failpoints.
const MOST: u32 = 2000;

#[test]
fn killed_anywhere_it_is_undone_or_done() {
    let fixture = prepared();
    let before = fixture.tree();
    fixture.apply(&[]).unwrap();
    let after = fixture.tree();
    assert_ne!(before, after);
    let mut seen = [0, 0];
    for places in 0..MOST {
        let fixture = prepared();
        if killed_after(places, || fixture.apply(&[])).is_some() {
            assert!(seen[0] > 20 && seen[1] > 3, "{seen:?}");
            return;
        }
        let left = fixture.diff();
        let tree = fixture.tree();
        assert!(tree == before || tree == after, "killed at {places}: {tree:#?}");
        assert_eq!(left.is_empty(), tree == after, "killed at {places}");
        seen[usize::from(tree == after)] += 1;
        // It can be applied again.
        fixture.apply(&[]).unwrap();
        assert_eq!(fixture.tree(), after, "killed at {places}");
        assert!(fixture.diff().is_empty());
    }
    panic!("it was never done");
}

#[test]
fn killed_while_it_was_undone_it_is_undone_the_next_time() {
    let before = prepared().tree();
    for places in 0..MOST {
        let fixture = prepared();
        assert!(killed_after(24, || fixture.apply(&[])).is_none());
        let whole = killed_after(places, || fixture.diff()).is_some();
        fixture.diff();
        assert_eq!(fixture.tree(), before, "killed at {places}");
        if whole {
            assert!(places > 5, "{places}");
            return;
        }
    }
    panic!("it was never undone");
}

#[test]
fn files_that_others_changed_meanwhile_stay() {
    for places in 0..MOST {
        let fixture = prepared();
        if killed_after(places, || fixture.apply(&[])).is_some() {
            return;
        }
        fixture.host("changed", "theirs");
        let _ = fs::write(fixture.workspace.host.join("gone"), "theirs");
        fixture.diff();
        let host = &fixture.workspace.host;
        assert_eq!(fs::read_to_string(host.join("changed")).unwrap(), "theirs", "{places}");
        assert_eq!(fs::read_to_string(host.join("gone")).unwrap(), "theirs", "{places}");
        let ours = |name: &str| name.starts_with(".msb-apply");
        let names = fs::read_dir(host).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(!names.into_iter().any(|name| ours(&name.to_string_lossy())), "{places}");
    }
}
