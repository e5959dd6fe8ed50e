//! Trees, entry by entry: what a sandbox sees of an image is what umoci unpacks of it.

use crate::users::pulled_users;
use msb_e2e::debian;
use msb_e2e::images::{Image, Layer, Layout, Packing, lister};
use msb_e2e::registry::Registry;
use msb_e2e::tar::{Entry, Tar};
use msb_e2e::{Msb, gives, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The lines of `list` for a directory of a tree on this machine.
fn listed(tree: &Path) -> String {
    gives(Command::new(lister()).arg(tree)).line()
}

/// The lines of `list` for a directory that a sandbox of an image sees.
fn seen(msb: &Msb, name: &str, directory: &str) -> String {
    msb.run(["run", "--user", "0:0", name, "--", "list", directory]).line()
}

/// Compares line by line, so that a failure shows the entries that differ and not thousands.
#[track_caller]
fn same(ours: &str, reference: &str) {
    let differs = |one: &str, other: &str| -> Vec<String> {
        let other: std::collections::HashSet<&str> = other.lines().collect();
        one.lines().filter(|line| !other.contains(line)).take(20).map(str::to_owned).collect()
    };
    let (more, less) = (differs(ours, reference), differs(reference, ours));
    assert!(more.is_empty() && less.is_empty(), "msb has {more:#?}\numoci has {less:#?}");
    assert_eq!(ours.lines().count(), reference.lines().count());
}

fn without(text: &str, key: &str) -> String {
    let keep = |line: &str| -> String {
        line.split(' ').filter(|word| !word.starts_with(key)).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(keep).collect::<Vec<_>>().join("\n")
}

/// Everything that a layer can say of a file.
fn lowest() -> Vec<Entry> {
    let file = |path: &str, content: &str| Entry::file(path, content);
    let long = format!("t/{}", ["component"; 30].join("/"));
    let wide = format!("t/{}", "w".repeat(250));
    let mut entries = vec![Entry::directory("t")];
    for mode in [0o000, 0o400, 0o600, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o6711, 0o1644] {
        entries.push(file(&format!("t/mode-{mode:o}"), "x").mode(mode));
        entries.push(Entry::directory(&format!("t/directory-{mode:o}")).mode(mode | 0o700));
    }
    for id in [0, 1, 33, 1000, 65533] {
        entries.push(file(&format!("t/owner-{id}"), "x").owner(id, 0));
        entries.push(file(&format!("t/group-{id}"), "x").owner(0, id));
        entries.push(Entry::symlink(&format!("t/link-of-{id}"), "x").owner(id, id));
        entries.push(Entry::directory(&format!("t/directory-of-{id}")).owner(id, id));
        entries.push(file(&format!("t/setuid-{id}"), "x").owner(id, id).mode(0o6755));
    }
    for (at, seconds) in [0, 1, 1_234_567_890, 4_000_000_000].into_iter().enumerate() {
        entries.push(file(&format!("t/time-{at}"), "").modified(seconds));
    }
    entries.extend([
        file("t/time-exact", "").record("mtime", "1234567890.123456789"),
        file("t/empty", ""),
        file("t/one", "1"),
        file("t/block", &"b".repeat(512)),
        file("t/block-and-one", &"b".repeat(513)),
        file("t/large", &"l".repeat(3 << 20)),
        Entry::sparse("t/sparse", 8 << 20, 4 << 20, b"in the middle"),
        Entry::fifo("t/fifo").mode(0o640).owner(1, 2),
        file("t/hard", "hard"),
        Entry::directory("t/sub"),
        Entry::hard_link("t/sub/hard", "t/hard"),
        Entry::hard_link("t/zz-hard", "./t/hard"),
        Entry::symlink("t/link", "one"),
        Entry::symlink("t/absolute", "/etc/passwd"),
        Entry::symlink("t/dangling", "../../../../no/such"),
        Entry::symlink("t/to-directory", "sub"),
        Entry::symlink("t/long-target", &"x/".repeat(150)),
        Entry::hard_link("t/hard-of-link", "t/link"),
        file("./t/dotted", "x"),
        file("t/two words", "x"),
        file("t/ümläut-\u{1F980}", "x"),
        file("t/back\\slash", "x"),
        file("t/quote\"'", "x"),
        file("t/-dash", "x"),
        file(&wide, "wide"),
        file(&format!("{wide}-gnu"), "wide").gnu(),
        file("t/noted", "x").xattr("user.note", "a note").xattr("user.bytes", [0, 1, 255]),
        Entry::directory("t/noted-directory").xattr("user.note", "another"),
        file("t/twice", "first"),
        file("t/twice", "second and longer").mode(0o600),
        file("t/was-file", "x"),
        Entry::symlink("t/was-file", "one"),
    ]);
    // A directory for each component, so that none has the time of unpacking.
    for (at, _) in long.match_indices('/').skip(1) {
        entries.push(Entry::directory(&long[..at]));
    }
    entries.extend([file(&long, "deep"), Entry::directory("t/late").mode(0o700)]);
    entries.push(file("t/late/child", "x"));
    // Said again after its children, as some tools do.
    entries.push(Entry::directory("t/late").mode(0o711).owner(5, 6));
    for name in ["gone", "gone-directory/a/b", "opaque/old", "opaque/deep/old", "again", "swap/x"] {
        let path = format!("t/{name}");
        for (at, _) in path.match_indices('/').skip(1) {
            entries.push(Entry::directory(&path[..at]));
        }
        entries.push(file(&path, "lower"));
    }
    entries.push(file("t/swapped", "a file"));
    entries.push(Entry::symlink("t/link-then-directory", "sub"));
    entries.push(Entry::directory("t/kept").mode(0o700));
    entries.push(file("t/kept/file", "lower"));
    entries
}

/// What a layer can do to the one below.
fn middle() -> Vec<Entry> {
    let file = Entry::file;
    vec![
        Entry::directory("t"),
        Entry::whiteout("t/gone"),
        Entry::whiteout("t/gone-directory"),
        Entry::whiteout("t/again"),
        Entry::whiteout("t/never-was"),
        Entry::directory("t/opaque").mode(0o750),
        Entry::opaque("t/opaque"),
        file("t/opaque/new", "upper"),
        Entry::directory("t/opaque/deep"),
        file("t/opaque/deep/new", "upper"),
        // A directory becomes a file, a file and a link become directories.
        file("t/swap", "now a file"),
        Entry::directory("t/swapped").mode(0o701),
        file("t/swapped/inside", "x"),
        Entry::directory("t/link-then-directory"),
        file("t/link-then-directory/inside", "x"),
        // Only its mode and owner change.
        Entry::directory("t/kept").mode(0o755).owner(7, 8),
        file("t/one", "replaced").mode(0o600),
    ]
}

fn highest() -> Vec<Entry> {
    let file = Entry::file;
    vec![
        Entry::directory("t"),
        file("t/again", "back"),
        Entry::directory("t/gone-directory"),
        file("t/gone-directory/c", "anew"),
        Entry::whiteout("t/swap"),
        Entry::directory("t/kept"),
        Entry::whiteout("t/kept/file"),
    ]
}

fn everything() -> Layout {
    Image::busybox().entries(lowest()).entries(middle()).entries(highest()).layout()
}

#[test]
fn an_image_of_all_kinds_is_what_umoci_makes_of_it() {
    if !Msb::new().is_root() {
        return skip("umoci gives files away only as root");
    }
    let layout = everything();
    let name = Registry::shared().push(&layout, "trees/everything:1");
    let reference = listed(&layout.unpacked().join("t"));
    assert!(reference.lines().count() > 100, "{reference}");
    for msb in Msb::each_with_own_layers() {
        same(&seen(&msb, &name, "/t"), &reference);
    }
}

/// All belongs to the one id that there is; the rest is as it should be.
#[test]
fn with_one_id_all_but_the_owner_is_right() {
    let Some(msb) = Msb::with_one_id() else {
        return skip("only root can become a user without ids");
    };
    let layout = everything();
    let name = Registry::shared().push(&layout, "trees/one-id:1");
    let reference = without(&listed(&layout.unpacked().join("t")), "owner=");
    let seen = seen(&msb, &name, "/t");
    assert!(seen.lines().all(|line| line.contains(" owner=0:0 ")), "{seen}");
    same(&without(&seen, "owner="), &reference);
}

#[test]
fn debian_with_python_is_what_umoci_makes_of_it() {
    if !Msb::new().is_root() {
        return skip("umoci gives files away only as root");
    }
    let layout = debian::python();
    let name = Registry::shared().push(layout, "languages/python:1");
    let root = layout.unpacked();
    for msb in pulled_users().iter().filter(|msb| !msb.has_one_id()) {
        let list = msb.file("list", fs::read(lister()).unwrap());
        fs::set_permissions(&list, Permissions::from_mode(0o755)).unwrap();
        for directory in ["usr", "var"] {
            let path = format!("/{directory}");
            let args = ["run", "--copy", "list:/list", &name, "--", "/list", &path];
            same(&msb.run(args).line(), &listed(&root.join(directory)));
        }
    }
    fs::remove_dir_all(root.parent().unwrap()).unwrap();
}

#[test]
fn directories_that_no_entry_names_are_made() {
    for msb in Msb::each_with_own_layers() {
        let layout = Image::busybox().entries([Entry::file("t/a/b/c", "x")]).layout();
        let name = Registry::shared().push(&layout, "trees/implicit:1");
        let lines = without(&seen(&msb, &name, "/t"), "modified=");
        let expected = "\
. mode=040755 owner=0:0
./a mode=040755 owner=0:0
./a/b mode=040755 owner=0:0
./a/b/c mode=100644 owner=0:0 size=1 content=af63f54c86021707";
        assert_eq!(lines, expected);
    }
}

#[test]
fn a_directory_said_twice_is_as_it_was_said_last() {
    let entries = [
        Entry::directory("t"),
        Entry::file("t/file", "x"),
        Entry::directory("t").mode(0o711).owner(5, 6).modified(77),
    ];
    let layout = Image::busybox().entries(entries).layout();
    let name = Registry::shared().push(&layout, "trees/twice:1");
    for msb in Msb::each_with_own_layers() {
        let seen = seen(&msb, &name, "/t");
        assert_eq!(seen.lines().next(), Some(". mode=040711 owner=5:6 modified=77.000000000"));
    }
}

#[test]
fn a_directory_that_a_layer_only_implies_is_as_the_layers_below_have_it() {
    let layout = Image::busybox()
        .entries([
            Entry::directory("t").mode(0o1777).owner(5, 6).xattr("user.note", "x"),
            Entry::directory("t/sub").mode(0o700).owner(7, 8),
            Entry::file("t/sub/old", "x"),
        ])
        .entries([Entry::file("t/sub/new", "x")])
        .entries([Entry::whiteout("t/sub/old")])
        .layout();
    let name = Registry::shared().push(&layout, "trees/implied:1");
    for msb in Msb::each_with_own_layers() {
        let expected = "\
. mode=041777 owner=5:6 modified=1600000000.000000000 user.note=78
./sub mode=040700 owner=7:8 modified=1600000000.000000000
./sub/new mode=100644 owner=0:0 modified=1600000000.000000000 size=1 content=af63f54c86021707";
        assert_eq!(seen(&msb, &name, "/t"), expected);
    }
}

/// Some tools end an archive with the last byte of its last file.
#[test]
fn an_archive_without_an_end_is_whole_if_its_files_are() {
    for (at, cut) in [1024, 1024 + 511].into_iter().enumerate() {
        let whole = Tar::default().with([Entry::file("last", "x")]).bytes();
        let layer = Layer::of_bytes(&whole[..whole.len() - cut], Packing::Gzip);
        let layout = Image::busybox().layer(&layer).layout();
        let name = Registry::shared().push(&layout, &format!("trees/endless:{at}"));
        for msb in Msb::each_with_own_layers() {
            assert_eq!(msb.run(["run", &name, "--", "cat", "/last"]).line(), "x");
        }
    }
}

/// A hard link is one file also after a write through one of its names.
#[test]
fn writing_to_one_name_of_a_hard_link_does_not_break_the_image() {
    let entries = [Entry::file("a", "old\n"), Entry::hard_link("b", "a")];
    let layout = Image::busybox().entries(entries).layout();
    let name = Registry::shared().push(&layout, "trees/hard:1");
    for msb in Msb::each_with_own_layers() {
        let script = "echo new > /a; cat /a";
        assert_eq!(msb.run(["run", &name, "--", "sh", "-c", script]).line(), "new");
        assert_eq!(msb.run(["run", &name, "--", "cat", "/a", "/b"]).line(), "old\nold");
    }
}

/// Attack 10: these would act on the host, so they are not made.
#[test]
fn devices_and_privileged_attributes_are_left_out() {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let layout = Image::busybox()
        .entries([
            Entry::directory("t"),
            Entry::device("t/null", 1, 3),
            Entry::block_device("t/disk", 8, 0),
            Entry::file("t/capable", "x").xattr("security.capability", capability),
            Entry::file("t/trusted", "x").xattr("trusted.overlay.opaque", "y"),
            Entry::directory("t/marked").xattr("user.overlay.opaque", "y"),
            Entry::file("t/plain", "x"),
        ])
        .layout();
    let name = Registry::shared().push(&layout, "trees/devices:1");
    for msb in Msb::each_with_own_layers() {
        let seen = seen(&msb, &name, "/t");
        assert!(seen.contains("./plain "), "{seen}");
        for word in ["device=", "security.", "trusted.", "overlay"] {
            assert!(!seen.contains(word), "{word}: {seen}");
        }
        let script = ["-xdev", "-type", "b", "-o", "-type", "c"];
        assert_eq!(gives(Command::new("find").arg(msb.home()).args(script)).line(), "");
    }
}
