//! What counts as a change.

use super::Bench;
use msb_api::{Conflict, Depth, What};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

#[test]
fn each_change_is_told_for_what_it_is() {
    let bench = Bench::with(&[
        ("same", "x"),
        ("changed", "old"),
        ("mode", "x"),
        ("gone", "x"),
        ("dir/gone", "x"),
        ("old-name", "a long enough text"),
        ("link", "-> a"),
    ]);
    bench.inside("same", "x");
    bench.inside("changed", "new");
    bench.inside("mode", "x");
    fs::set_permissions(bench.upper().join("mode"), Permissions::from_mode(0o600)).unwrap();
    bench.deleted("gone");
    bench.deleted("dir");
    bench.deleted("old-name");
    bench.inside("new-name", "a long enough text");
    bench.inside("link", "-> b");
    bench.inside("new/file", "yes");
    assert_eq!(
        bench.told(),
        [
            "changed changed",
            "deleted dir",
            "deleted dir/gone",
            "deleted gone",
            "changed link",
            "mode mode",
            "added new",
            "added new-name from old-name",
            "added new/file",
            "deleted old-name",
        ]
    );
}

#[test]
fn a_directory_that_was_made_anew_hides_what_was_in_it() {
    let bench = Bench::with(&[("dir/kept", "x"), ("dir/gone", "x"), ("dir/deep/gone", "x")]);
    bench.made_anew("dir");
    bench.inside("dir/kept", "x");
    bench.inside("dir/new", "y");
    let told = ["deleted dir/deep", "deleted dir/deep/gone", "deleted dir/gone", "added dir/new"];
    assert_eq!(bench.told(), told);
}

/// Only the topmost is marked by overlayfs.
#[test]
fn a_directory_in_one_that_was_made_anew_hides_what_was_in_it() {
    let bench = Bench::with(&[("dir/sub/gone", "x"), ("dir/sub/kept", "x")]);
    bench.made_anew("dir");
    bench.inside("dir/sub/kept", "x");
    assert_eq!(bench.told(), ["deleted dir/sub/gone"]);
}

#[test]
fn files_and_directories_take_each_others_places() {
    let bench = Bench::with(&[("file", "x"), ("dir/a", "x")]);
    bench.inside("file/inner", "y");
    bench.inside("dir", "now a file");
    assert_eq!(bench.told(), ["changed dir", "deleted dir/a", "changed file", "added file/inner"]);
}

/// Attack 4.
#[test]
fn pipes_and_sockets_are_only_listed() {
    let bench = Bench::with(&[("there", "x")]);
    for name in ["pipe", "there"] {
        let mode = rustix::fs::Mode::RWXU;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, bench.upper().join(name), kind, mode, 0).unwrap();
    }
    let socket = std::os::unix::net::UnixListener::bind(bench.upper().join("socket")).unwrap();
    assert_eq!(bench.told(), ["special pipe", "special socket", "special there"]);
    bench.apply(&[]).unwrap();
    assert_eq!(bench.tree(), ["there 644 \"x\""]);
    drop(socket);
}

#[test]
fn what_the_host_has_changed_since_is_a_conflict() {
    let bench = Bench::with(&[("both", "old"), ("dir/gone", "x"), ("calm", "x")]);
    bench.inside("both", "theirs");
    bench.inside("new", "theirs");
    bench.inside("calm", "theirs");
    bench.deleted("dir");
    bench.host("both", "ours");
    bench.host("new", "ours");
    bench.host("dir/added", "ours");
    let conflicts = |path: &str| {
        bench.diff().into_iter().find(|change| change.path.to_string() == path).unwrap().conflict
    };
    for path in ["both", "new", "dir/added"] {
        assert_eq!(conflicts(path), Some(Conflict::ChangedOnHost), "{path}");
    }
    assert_eq!(conflicts("calm"), None);
    assert_eq!(conflicts("dir/gone"), None);
    // The same on both sides is no change at all.
    bench.host("both", "theirs");
    assert!(!bench.told().iter().any(|line| line.contains("both")));
}

#[test]
fn a_directory_that_was_moved_here_since_is_a_conflict() {
    let bench = Bench::with(&[("dir/file", "old"), ("other/file", "another")]);
    bench.inside("dir/file", "theirs");
    let host = &bench.workspace.host;
    fs::rename(host.join("dir"), host.join("away")).unwrap();
    fs::rename(host.join("other"), host.join("dir")).unwrap();
    assert_eq!(bench.diff()[0].conflict, Some(Conflict::MovedOnHost));
}

/// The host's rules count, so that nobody hides a file by ignoring it.
#[test]
fn only_the_host_decides_what_is_ignored() {
    let bench = Bench::with(&[
        (".gitignore", "*.log\n/build/\n!keep.log\n"),
        ("sub/.gitignore", "local\n"),
        ("sub/x", "x"),
    ]);
    bench.inside("a.log", "x");
    bench.inside("keep.log", "x");
    bench.inside("build/deep/out", "x");
    bench.inside("sub/local", "x");
    bench.inside("local", "x");
    bench.inside("hidden", "x");
    bench.inside(".gitignore", "hidden\n");
    assert_eq!(
        bench.told(),
        [
            "changed .gitignore",
            "added a.log ignored",
            "added build ignored",
            "added build/deep ignored",
            "added build/deep/out ignored",
            "added hidden",
            "added keep.log",
            "added local",
            "added sub/local ignored",
        ]
    );
}

#[test]
fn a_bare_repository_is_known_by_its_files() {
    let bench = Bench::with(&[("a/HEAD", "x"), ("b/config", "x")]);
    bench.inside("a/config", "core.fsmonitor");
    bench.inside("b/config", "harmless");
    assert_eq!(bench.told(), ["added a/config risk", "changed b/config"]);
}

/// Attack 45: the parts of a repository that come one after the other are judged together.
#[test]
fn a_repository_is_not_built_over_several_applies() {
    let parts = ["config", "HEAD", "hooks/post-checkout", "objects/info/alternates", "refs/x"];
    // Whatever comes first: with the HEAD left out there is none.
    for first in parts {
        let bench = Bench::with(&[("a", "x")]);
        bench.inside(&format!("bare/{first}"), "evil");
        bench.apply(&[]).unwrap();
        for next in parts.into_iter().filter(|part| *part != first) {
            bench.inside(&format!("bare/{next}"), "evil");
            bench.apply(&[]).unwrap();
        }
        assert!(!bench.workspace.host.join("bare/HEAD").exists(), "{first}");
    }
    // Where one is already, on the host or brought by name, nothing that git obeys comes.
    let bench = Bench::with(&[("bare/HEAD", "ref: refs/heads/main"), ("HEAD", "x")]);
    for part in parts.into_iter().filter(|part| *part != "HEAD") {
        bench.inside(&format!("bare/{part}"), "evil");
        bench.inside(part, "evil");
    }
    bench.apply(&[]).unwrap();
    for root in ["", "bare/"] {
        for part in ["config", "hooks/post-checkout", "objects/info/alternates"] {
            assert!(!bench.workspace.host.join(format!("{root}{part}")).exists(), "{root}{part}");
        }
        assert!(bench.workspace.host.join(format!("{root}refs/x")).exists(), "{root}");
    }
}

#[test]
fn differences_and_digests_are_found_where_they_are_asked_for() {
    let bench = Bench::with(&[("text", "a\nb\n"), ("bytes", "\0one")]);
    bench.inside("text", "a\nc\n");
    bench.inside("bytes", "\0other");
    let depth = Depth { digests: false, patches: true };
    let changes = bench.workspace.diff(&[], depth).unwrap();
    assert_eq!(changes[0].patch, None);
    assert!(changes[0].after.as_ref().unwrap().sha256.is_some());
    let patch = changes[1].patch.as_ref().unwrap();
    assert_eq!((patch.added, patch.removed), (1, 1));
}

/// Attack 6.
#[test]
fn every_name_is_taken_as_it_is() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::with(&[]);
    let names: [&[u8]; 5] =
        [b"line\nbreak", b"\xff\xfe", "\u{202e}rtl".as_bytes(), b"-rf", b"sp ace"];
    for name in names {
        fs::write(bench.upper().join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
    }
    let long = "n".repeat(255);
    bench.inside(&long, "x");
    bench.apply(&[]).unwrap();
    for name in names {
        let path = bench.workspace.host.join(std::ffi::OsStr::from_bytes(name));
        assert_eq!(fs::read_to_string(path).unwrap(), "x");
    }
    assert!(bench.workspace.host.join(long).exists());
    assert!(bench.diff().is_empty());
}

#[test]
fn a_tree_that_is_too_deep_does_not_hide_the_rest() {
    let bench = Bench::with(&[]);
    bench.inside("normal", "x");
    // Longer than any path that the kernel takes.
    let mut place = rustix::fs::open(bench.upper(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..50 {
        let name = "d".repeat(200);
        rustix::fs::mkdirat(&place, &name, Mode::RWXU).unwrap();
        place = rustix::fs::openat(&place, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let changes = bench.diff();
    assert!(changes.iter().any(|change| change.path.to_string() == "normal"));
    assert_eq!(changes.iter().filter(|change| change.what == What::Special).count(), 1);
    bench.apply(&["normal"]).unwrap();
    assert!(bench.workspace.discard(&[]).unwrap() > 10);
    assert_eq!(fs::read_dir(&bench.workspace.changes).unwrap().count(), 0);
}

#[test]
fn what_the_host_has_removed_since_is_a_conflict() {
    let bench = Bench::with(&[("dir/a", "a"), ("dir/b", "bb"), ("top", "x"), ("calm/c", "c")]);
    bench.copied("dir/a", "theirs");
    bench.copied("top", "theirs");
    bench.inside("dir/new", "theirs");
    // Given another name, and changed there.
    bench.deleted("calm/c");
    bench.copied("calm/d", "changed");
    assert_eq!(bench.told().iter().filter(|line| line.contains("conflict")).count(), 0);
    fs::remove_file(bench.workspace.host.join("dir/a")).unwrap();
    fs::remove_file(bench.workspace.host.join("top")).unwrap();
    // Given another name, beside what the host has removed.
    bench.deleted("dir/b");
    bench.copied("dir/e", "bb");
    let told = [
        "deleted calm/c",
        "added calm/d",
        "added dir/a conflict",
        "deleted dir/b",
        "added dir/e from dir/b",
        "added dir/new",
        "added top conflict",
    ];
    assert_eq!(bench.told(), told);
    assert!(bench.apply(&["dir/a"]).is_err());
    bench.apply(&["dir/new", "dir/b", "dir/e", "calm"]).unwrap();
    // What we brought there, and the host has removed again.
    fs::remove_file(bench.workspace.host.join("dir/new")).unwrap();
    bench.inside("dir/new", "theirs again");
    let told = ["added dir/a conflict", "added dir/new conflict", "added top"];
    assert_eq!(bench.told(), told);
}
