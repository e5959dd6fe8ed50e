//! An apply that is killed leaves all of it or nothing, wherever it was.

use super::Bench;
use crate::fault::tried::killed_after;
use std::fs;

fn prepared() -> Bench {
    let bench = Bench::with(&[
        ("changed", "old"),
        ("gone", "x"),
        ("dir/a", "x"),
        ("dir/deep/b", "x"),
        ("file", "x"),
        ("full/x", "x"),
        ("mode", "x"),
    ]);
    bench.inside("changed", "new");
    bench.deleted("gone");
    bench.deleted("dir");
    bench.inside("file/inner/most", "y");
    bench.inside("full", "a file");
    bench.inside("mode", "x");
    bench.inside("link", "-> file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(bench.upper().join("mode"), mode).unwrap();
    bench
}

/// Far more than there are places.
const MOST: u32 = 2000;

#[test]
fn killed_anywhere_it_is_undone_or_done() {
    let bench = prepared();
    let before = bench.tree();
    bench.apply(&[]).unwrap();
    let after = bench.tree();
    assert_ne!(before, after);
    let mut seen = [0, 0];
    for places in 0..MOST {
        let bench = prepared();
        if killed_after(places, || bench.apply(&[])).is_some() {
            assert!(seen[0] > 20 && seen[1] > 3, "{seen:?}");
            return;
        }
        let left = bench.diff();
        let tree = bench.tree();
        assert!(tree == before || tree == after, "killed at {places}: {tree:#?}");
        assert_eq!(left.is_empty(), tree == after, "killed at {places}");
        seen[usize::from(tree == after)] += 1;
        // And it can be done again.
        bench.apply(&[]).unwrap();
        assert_eq!(bench.tree(), after, "killed at {places}");
        assert!(bench.diff().is_empty());
    }
    panic!("it was never done");
}

#[test]
fn killed_while_it_was_undone_it_is_undone_the_next_time() {
    let before = prepared().tree();
    for places in 0..MOST {
        let bench = prepared();
        assert!(killed_after(24, || bench.apply(&[])).is_none());
        let whole = killed_after(places, || bench.diff()).is_some();
        bench.diff();
        assert_eq!(bench.tree(), before, "killed at {places}");
        if whole {
            assert!(places > 5, "{places}");
            return;
        }
    }
    panic!("it was never undone");
}

#[test]
fn what_somebody_did_meanwhile_is_theirs() {
    for places in 0..MOST {
        let bench = prepared();
        if killed_after(places, || bench.apply(&[])).is_some() {
            return;
        }
        bench.host("changed", "theirs");
        let _ = fs::write(bench.workspace.host.join("gone"), "theirs");
        bench.diff();
        let host = &bench.workspace.host;
        assert_eq!(fs::read_to_string(host.join("changed")).unwrap(), "theirs", "{places}");
        assert_eq!(fs::read_to_string(host.join("gone")).unwrap(), "theirs", "{places}");
        let ours = |name: &str| name.starts_with(".msb-apply");
        let names = fs::read_dir(host).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(!names.into_iter().any(|name| ours(&name.to_string_lossy())), "{places}");
    }
}
