//! What counts as a change.

use super::ReviewFixture;
use msb_api::{Conflict, Depth, What};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

#[test]
fn each_change_is_told_for_what_it_is() {
    let fixture = ReviewFixture::with(&[
        ("same", "x"),
        ("changed", "old"),
        ("mode", "x"),
        ("gone", "x"),
        ("dir/gone", "x"),
        ("old-name", "a long enough text"),
        ("link", "-> a"),
    ]);
    fixture.inside("same", "x");
    fixture.inside("changed", "new");
    fixture.inside("mode", "x");
    fs::set_permissions(fixture.upper().join("mode"), Permissions::from_mode(0o600)).unwrap();
    fixture.deleted("gone");
    fixture.deleted("dir");
    fixture.deleted("old-name");
    fixture.inside("new-name", "a long enough text");
    fixture.inside("link", "-> b");
    fixture.inside("new/file", "yes");
    assert_eq!(
        fixture.summary(),
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
    let fixture =
        ReviewFixture::with(&[("dir/kept", "x"), ("dir/gone", "x"), ("dir/deep/gone", "x")]);
    fixture.opaque("dir");
    fixture.inside("dir/kept", "x");
    fixture.inside("dir/new", "y");
    let summary =
        ["deleted dir/deep", "deleted dir/deep/gone", "deleted dir/gone", "added dir/new"];
    assert_eq!(fixture.summary(), summary);
}

/// overlayfs marks only the topmost directory.
#[test]
fn a_directory_in_one_that_was_made_anew_hides_what_was_in_it() {
    let fixture = ReviewFixture::with(&[("dir/sub/gone", "x"), ("dir/sub/kept", "x")]);
    fixture.opaque("dir");
    fixture.inside("dir/sub/kept", "x");
    assert_eq!(fixture.summary(), ["deleted dir/sub/gone"]);
}

#[test]
fn files_and_directories_take_each_others_places() {
    let fixture = ReviewFixture::with(&[("file", "x"), ("dir/a", "x")]);
    fixture.inside("file/inner", "y");
    fixture.inside("dir", "now a file");
    assert_eq!(
        fixture.summary(),
        ["changed dir", "deleted dir/a", "changed file", "added file/inner"]
    );
}

/// Attack 4.
#[test]
fn pipes_and_sockets_are_only_listed() {
    let fixture = ReviewFixture::with(&[("there", "x")]);
    for name in ["pipe", "there"] {
        let mode = rustix::fs::Mode::RWXU;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, fixture.upper().join(name), kind, mode, 0).unwrap();
    }
    let socket = std::os::unix::net::UnixListener::bind(fixture.upper().join("socket")).unwrap();
    assert_eq!(fixture.summary(), ["special pipe", "special socket", "special there"]);
    fixture.apply(&[]).unwrap();
    assert_eq!(fixture.tree(), ["there 644 \"x\""]);
    drop(socket);
}

#[test]
fn what_the_host_has_changed_since_is_a_conflict() {
    let fixture = ReviewFixture::with(&[("both", "old"), ("dir/gone", "x"), ("calm", "x")]);
    fixture.inside("both", "theirs");
    fixture.inside("new", "theirs");
    fixture.inside("calm", "theirs");
    fixture.deleted("dir");
    fixture.host("both", "ours");
    fixture.host("new", "ours");
    fixture.host("dir/added", "ours");
    let conflicts = |path: &str| {
        fixture.diff().into_iter().find(|change| change.path.to_string() == path).unwrap().conflict
    };
    for path in ["both", "new", "dir/added"] {
        assert_eq!(conflicts(path), Some(Conflict::ChangedOnHost), "{path}");
    }
    assert_eq!(conflicts("calm"), None);
    assert_eq!(conflicts("dir/gone"), None);
    // Equal content on both sides is no change.
    fixture.host("both", "theirs");
    assert!(!fixture.summary().iter().any(|line| line.contains("both")));
}

#[test]
fn a_directory_that_was_moved_here_since_is_a_conflict() {
    let fixture = ReviewFixture::with(&[("dir/file", "old"), ("other/file", "another")]);
    fixture.inside("dir/file", "theirs");
    let host = &fixture.workspace.host;
    fs::rename(host.join("dir"), host.join("away")).unwrap();
    fs::rename(host.join("other"), host.join("dir")).unwrap();
    assert_eq!(fixture.diff()[0].conflict, Some(Conflict::MovedOnHost));
}

/// Rules of the host count, so that the sandbox cannot hide a file by ignoring it.
#[test]
fn only_the_host_decides_what_is_ignored() {
    let fixture = ReviewFixture::with(&[
        (".gitignore", "*.log\n/build/\n!keep.log\n"),
        ("sub/.gitignore", "local\n"),
        ("sub/x", "x"),
    ]);
    fixture.inside("a.log", "x");
    fixture.inside("keep.log", "x");
    fixture.inside("build/deep/out", "x");
    fixture.inside("sub/local", "x");
    fixture.inside("local", "x");
    fixture.inside("hidden", "x");
    fixture.inside(".gitignore", "hidden\n");
    assert_eq!(
        fixture.summary(),
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
    let fixture = ReviewFixture::with(&[("a/HEAD", "x"), ("b/config", "x")]);
    fixture.inside("a/config", "core.fsmonitor");
    fixture.inside("b/config", "harmless");
    assert_eq!(fixture.summary(), ["added a/config risk", "changed b/config"]);
}

/// Attack 45: parts of a repository that are applied one after the other are evaluated together.
#[test]
fn a_repository_is_not_built_over_several_applies() {
    let parts = ["config", "HEAD", "hooks/post-checkout", "objects/info/alternates", "refs/x"];
    // Whatever is applied first: without the HEAD there is no repository.
    for first in parts {
        let fixture = ReviewFixture::with(&[("a", "x")]);
        fixture.inside(&format!("bare/{first}"), "evil");
        fixture.apply(&[]).unwrap();
        for next in parts.into_iter().filter(|part| *part != first) {
            fixture.inside(&format!("bare/{next}"), "evil");
            fixture.apply(&[]).unwrap();
        }
        assert!(!fixture.workspace.host.join("bare/HEAD").exists(), "{first}");
    }
    // Next to an existing HEAD, on the host or applied by name, no git configuration is applied.
    let fixture = ReviewFixture::with(&[("bare/HEAD", "ref: refs/heads/main"), ("HEAD", "x")]);
    for part in parts.into_iter().filter(|part| *part != "HEAD") {
        fixture.inside(&format!("bare/{part}"), "evil");
        fixture.inside(part, "evil");
    }
    fixture.apply(&[]).unwrap();
    for root in ["", "bare/"] {
        for part in ["config", "hooks/post-checkout", "objects/info/alternates"] {
            assert!(!fixture.workspace.host.join(format!("{root}{part}")).exists(), "{root}{part}");
        }
        assert!(fixture.workspace.host.join(format!("{root}refs/x")).exists(), "{root}");
    }
}

#[test]
fn differences_and_digests_are_found_where_they_are_asked_for() {
    let fixture = ReviewFixture::with(&[("text", "a\nb\n"), ("bytes", "\0one")]);
    fixture.inside("text", "a\nc\n");
    fixture.inside("bytes", "\0other");
    let depth = Depth { digests: false, patches: true, git: false };
    let changes = fixture.workspace.diff(&[], depth).unwrap();
    assert_eq!(changes[0].patch, None);
    assert!(changes[0].after.as_ref().unwrap().sha256.is_some());
    let patch = changes[1].patch.as_ref().unwrap();
    assert_eq!((patch.added, patch.removed), (1, 1));
}

/// Attack 6.
#[test]
fn every_name_is_taken_as_it_is() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = ReviewFixture::with(&[]);
    let names: [&[u8]; 5] =
        [b"line\nbreak", b"\xff\xfe", "\u{202e}rtl".as_bytes(), b"-rf", b"sp ace"];
    for name in names {
        fs::write(fixture.upper().join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
    }
    let long = "n".repeat(255);
    fixture.inside(&long, "x");
    fixture.apply(&[]).unwrap();
    for name in names {
        let path = fixture.workspace.host.join(std::ffi::OsStr::from_bytes(name));
        assert_eq!(fs::read_to_string(path).unwrap(), "x");
    }
    assert!(fixture.workspace.host.join(long).exists());
    assert!(fixture.diff().is_empty());
}

#[test]
fn a_tree_that_is_too_deep_does_not_hide_the_rest() {
    let fixture = ReviewFixture::with(&[]);
    fixture.inside("normal", "x");
    // Longer than any path that the kernel accepts.
    let mut place = rustix::fs::open(fixture.upper(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..50 {
        let name = "d".repeat(200);
        rustix::fs::mkdirat(&place, &name, Mode::RWXU).unwrap();
        place = rustix::fs::openat(&place, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let changes = fixture.diff();
    assert!(changes.iter().any(|change| change.path.to_string() == "normal"));
    assert_eq!(changes.iter().filter(|change| change.what == What::Special).count(), 1);
    fixture.apply(&["normal"]).unwrap();
    assert!(fixture.workspace.discard(&[]).unwrap() > 10);
    assert_eq!(fs::read_dir(&fixture.workspace.changes).unwrap().count(), 0);
}

#[test]
fn what_the_host_has_removed_since_is_a_conflict() {
    let fixture =
        ReviewFixture::with(&[("dir/a", "a"), ("dir/b", "bb"), ("top", "x"), ("calm/c", "c")]);
    fixture.copied("dir/a", "theirs");
    fixture.copied("top", "theirs");
    fixture.inside("dir/new", "theirs");
    // Renamed and changed.
    fixture.deleted("calm/c");
    fixture.copied("calm/d", "changed");
    assert_eq!(fixture.summary().iter().filter(|line| line.contains("conflict")).count(), 0);
    fs::remove_file(fixture.workspace.host.join("dir/a")).unwrap();
    fs::remove_file(fixture.workspace.host.join("top")).unwrap();
    // Renamed, next to what the host has removed.
    fixture.deleted("dir/b");
    fixture.copied("dir/e", "bb");
    let summary = [
        "deleted calm/c",
        "added calm/d",
        "added dir/a conflict",
        "deleted dir/b",
        "added dir/e from dir/b",
        "added dir/new",
        "added top conflict",
    ];
    assert_eq!(fixture.summary(), summary);
    assert!(fixture.apply(&["dir/a"]).is_err());
    fixture.apply(&["dir/new", "dir/b", "dir/e", "calm"]).unwrap();
    // Applied, and removed on the host again.
    fs::remove_file(fixture.workspace.host.join("dir/new")).unwrap();
    fixture.inside("dir/new", "theirs again");
    let summary = ["added dir/a conflict", "added dir/new conflict", "added top"];
    assert_eq!(fixture.summary(), summary);
}
