//! Paths in layers that lead out of the root: `..`, absolute names, links.

use super::fixture::{ImageFixture, MARK};
use msb_e2e::raw_image::{Blob, RawImage, RawLayer, TarHeader, kind};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Without this the rest would prove nothing: what is refused must be refused for its one fault.
#[test]
fn an_honest_image_is_taken_in_every_form() {
    for fixture in ImageFixture::each() {
        let layer = RawLayer::new()
            .directory("./")
            .directory("./d/")
            .file("./d/file", "content")
            .hardlink("./d/hard", "./d/file")
            .symlink("./d/absolute", "/etc/passwd")
            .symlink("./d/dots", "../../../../../../etc/passwd")
            .file("e/made/on/the/way", "content")
            .file("e/".repeat(80) + "long", "content")
            .pax("path", "d/from-pax")
            .file("unused", "content");
        for blob in [Blob::plain(&layer), Blob::gzip(&layer), Blob::zstd(&layer)] {
            let image = RawImage::new([blob.clone()]);
            fixture.takes("an honest image", &image, |_| {
                let tree = fixture.tree(&blob);
                let read = |name: &str| fs::read_to_string(tree.join(name)).ok();
                assert_eq!(read("d/file").as_deref(), Some("content"));
                assert_eq!(read("d/from-pax").as_deref(), Some("content"));
                assert_eq!(read("e/made/on/the/way").as_deref(), Some("content"));
                assert_eq!(read(&("e/".repeat(80) + "long")).as_deref(), Some("content"));
                assert_eq!(fs::metadata(tree.join("d/hard")).unwrap().nlink(), 2);
                let target = fs::read_link(tree.join("d/absolute")).unwrap();
                assert_eq!(target.to_str(), Some("/etc/passwd"));
                let target = fs::read_link(tree.join("d/dots")).unwrap();
                assert_eq!(target.to_str(), Some("../../../../../../etc/passwd"));
                assert!(!tree.join("unused").exists());
            });
        }
    }
}

/// Attack 7.
#[test]
fn names_with_dots_and_absolute_names_are_refused() {
    for fixture in ImageFixture::each_and_single() {
        let mut names: Vec<String> = (1..=9).map(|up| "../".repeat(up) + MARK).collect();
        names.extend([
            format!("a/../../{MARK}"),
            format!("a/../{MARK}"),
            format!("./../{MARK}"),
            format!("a/b/../../../{MARK}"),
            format!("a/./.././../{MARK}"),
            "..".to_owned(),
            "../".to_owned(),
            "a/..".to_owned(),
            "a/../..".to_owned(),
            format!("/etc/{MARK}"),
            format!("//etc/{MARK}"),
            format!("/../{MARK}"),
            format!("{}/canary", fixture.outside().display()),
            format!("{}/{MARK}", fixture.outside().display()),
            format!("../../../../config.toml/../{MARK}"),
        ]);
        for name in &names {
            let layer = RawLayer::new().directory("a/").file(name, "intruder");
            fixture.refuses(&format!("a file `{name}`"), &RawImage::of(&layer));
        }
    }
}

/// Attack 7: whatever sort of entry, and by whatever field the name comes.
#[test]
fn a_name_that_leads_out_is_refused_in_every_field() {
    for fixture in ImageFixture::each() {
        let name = format!("../{MARK}");
        let long = format!("{}../{MARK}", "a/../".repeat(30));
        let global = kind::GLOBAL;
        let outside = fixture.outside();
        let outside = outside.as_os_str().as_bytes();
        let file = TarHeader::new(kind::FILE, MARK);
        for (what, layer) in [
            ("directory", RawLayer::new().directory(&name)),
            ("directory with a slash", RawLayer::new().directory(format!("{name}/"))),
            ("symbolic link", RawLayer::new().symlink(&name, "/etc")),
            ("hard link", RawLayer::new().file("f", "").hardlink(&name, "f")),
            ("pipe", RawLayer::new().special(kind::PIPE, &name, 0, 0)),
            ("character device", RawLayer::new().special(kind::CHARACTER, &name, 1, 3)),
            ("block device", RawLayer::new().special(kind::BLOCK, &name, 8, 0)),
            ("contiguous file", RawLayer::new().special(b'7', &name, 0, 0)),
            ("old file", RawLayer::new().special(0, &name, 0, 0)),
            ("prefix with dots", RawLayer::new().header(&file.clone().prefix(".."))),
            ("absolute prefix", RawLayer::new().header(&file.clone().prefix("/etc"))),
            ("prefix of outside", RawLayer::new().header(&file.clone().prefix(outside))),
            ("long name", RawLayer::new().file(&long, "intruder")),
            ("long name of a link", RawLayer::new().symlink(&long, "/etc")),
            ("PAX path", RawLayer::new().pax("path", &name).file("f", "intruder")),
            ("absolute PAX path", RawLayer::new().pax("path", b"/etc/by-image").file("f", "")),
            (
                "PAX path after a good one",
                RawLayer::new()
                    .records(kind::RECORDS, &[("path", b"good"), ("path", name.as_bytes())])
                    .file("f", "intruder"),
            ),
            (
                "PAX path over a long name",
                RawLayer::new()
                    .long(kind::LONG_NAME, b"good")
                    .pax("path", &name)
                    .file("f", "intruder"),
            ),
            (
                "name of a sparse file",
                RawLayer::new()
                    .records(
                        kind::RECORDS,
                        &[
                            ("GNU.sparse.major", b"1"),
                            ("GNU.sparse.minor", b"0"),
                            ("GNU.sparse.name", name.as_bytes()),
                            ("GNU.sparse.realsize", b"1"),
                        ],
                    )
                    .file("f", [&b"1\n0\n1\n"[..], &[0; 506], b"x"].concat()),
            ),
        ] {
            fixture.refuses(what, &RawImage::of(&layer));
        }
        // A reader of global records must refuse them; one that ignores them makes a file `f`.
        for path in [name.as_bytes(), b"/etc/by-image"] {
            let layer = RawLayer::new().records(global, &[("path", path)]).file("f", "intruder");
            fixture.survives("a global PAX path", &RawImage::of(&layer));
        }
    }
}

/// Attack 7.
#[test]
fn hard_links_out_of_the_tree_are_refused() {
    for fixture in ImageFixture::each() {
        let canary = fixture.outside().join("canary").display().to_string();
        let up = |count: usize| format!("{}canary", "../".repeat(count));
        let mut targets: Vec<String> = (1..=9).map(up).collect();
        targets.extend([
            canary.clone(),
            canary[1..].to_owned(),
            "/etc/passwd".to_owned(),
            "/".to_owned(),
            "..".to_owned(),
            "a/../../../../../canary".to_owned(),
            "./../canary".to_owned(),
            "/proc/self/exe".to_owned(),
            "/proc/self/fd/3".to_owned(),
            "".to_owned(),
        ]);
        for target in &targets {
            let what = format!("a hard link to `{target}`");
            let layer = RawLayer::new().directory("a/").hardlink("h", target).file("h", "intruder");
            fixture.refuses(&what, &RawImage::of(&layer));
            let layer = RawLayer::new()
                .directory("a/")
                .pax("linkpath", target)
                .hardlink("h", "a")
                .file("h", "intruder");
            fixture.refuses(&format!("{what} by PAX"), &RawImage::of(&layer));
        }
        let long = format!("{}{canary}", "/./".repeat(60));
        let layer = RawLayer::new().hardlink("h", long).file("h", "intruder");
        fixture.refuses("a hard link with a long target", &RawImage::of(&layer));
    }
}

/// Attack 7: a link of the layer itself is not a way out for what comes after it.
#[test]
fn nothing_is_written_through_a_link_of_the_same_layer() {
    for fixture in ImageFixture::each_and_single() {
        let outside = fixture.outside().display().to_string();
        let to_canary = format!("{outside}/canary");
        let up = format!("{}{outside}", "../".repeat(20));
        let file = |layer: RawLayer| layer.file(format!("l/{MARK}"), "intruder");
        let begin = || RawLayer::new().symlink("l", &outside);
        for (what, layer) in [
            ("a file through a link", file(begin())),
            ("a file through a link with dots", file(RawLayer::new().symlink("l", &up))),
            (
                "a file through a link to /",
                RawLayer::new().symlink("l", "/").file("l/etc/by-image", ""),
            ),
            ("over what is there", begin().file("l/canary", "intruder")),
            (
                "over the link itself",
                RawLayer::new().symlink("l", &to_canary).file("l", "intruder"),
            ),
            ("a directory through a link", begin().directory(format!("l/{MARK}/"))),
            ("a deep directory", begin().file(format!("l/{MARK}/a/b/c"), "intruder")),
            ("the link as a directory", file(begin().directory("l/"))),
            (
                "a mode for where the link leads",
                begin().header(
                    &TarHeader::new(kind::DIRECTORY, "l/directory/").mode(0o777).owner(1, 1),
                ),
            ),
            (
                "a mode through the link",
                begin().header(&TarHeader::new(kind::DIRECTORY, "l/").mode(0o777).owner(1, 1)),
            ),
            ("a link through a link", begin().symlink(format!("l/{MARK}"), "/etc")),
            (
                "a hard link through a link",
                begin().file("f", "").hardlink(format!("l/{MARK}"), "f"),
            ),
            ("a pipe through a link", begin().special(kind::PIPE, format!("l/{MARK}"), 0, 0)),
            ("two links", file(RawLayer::new().symlink("m", &outside).symlink("l", "m"))),
            (
                "a link below a link",
                RawLayer::new()
                    .symlink("l", ".")
                    .symlink("l/m", &outside)
                    .file(format!("m/{MARK}"), ""),
            ),
            (
                "a hard link to a link",
                RawLayer::new()
                    .symlink("m", &outside)
                    .hardlink("l", "m")
                    .file(format!("l/{MARK}"), ""),
            ),
            (
                "a hard link to a file link",
                RawLayer::new().symlink("m", &to_canary).hardlink("l", "m").file("l", "intruder"),
            ),
            (
                "a hard link by way of a link",
                begin().hardlink("h", "l/canary").file("h", "intruder"),
            ),
            (
                "a directory swapped for a link",
                file(RawLayer::new().directory("l/").symlink("l", &outside)),
            ),
            (
                "a full directory swapped for a link",
                file(RawLayer::new().file("l/a/b", "").symlink("l", &outside)),
            ),
            (
                "a file swapped for a link",
                file(RawLayer::new().file("l", "").symlink("l", &outside)),
            ),
            (
                "a link swapped for a directory and back",
                file(begin().directory("l/").file("l/a", "").symlink("l", &outside)),
            ),
            ("a link to proc", file(RawLayer::new().symlink("l", "/proc/self/cwd"))),
            ("a link to a descriptor", file(RawLayer::new().symlink("l", "/proc/self/fd/3"))),
            ("a link to itself", file(RawLayer::new().symlink("l", "l"))),
            ("the root as a link", RawLayer::new().symlink("./", &outside).file(MARK, "intruder")),
            (
                "the root as a link by another name",
                RawLayer::new().symlink(".", &outside).file(MARK, "intruder"),
            ),
            ("the root as a file", RawLayer::new().file("./", "intruder").file(MARK, "intruder")),
            (
                "the root as a hard link",
                RawLayer::new().file("f", "").hardlink("./", "f").file(MARK, ""),
            ),
            (
                "the root as a whiteout",
                RawLayer::new().file("f", "").file(".wh..", "").file(MARK, ""),
            ),
        ] {
            fixture.survives(what, &RawImage::of(&layer));
        }
    }
}

/// Attack 7: neither is a link of a layer below.
#[test]
fn nothing_is_written_through_a_link_of_a_lower_layer() {
    for fixture in ImageFixture::each() {
        let outside = fixture.outside().display().to_string();
        let lower = RawLayer::new()
            .symlink("l", &outside)
            .symlink("c", format!("{outside}/canary"))
            .symlink("r", "/")
            .directory("d/")
            .file("d/file", "lower")
            .file("f", "lower");
        for (what, upper) in [
            ("a file through it", RawLayer::new().file(format!("l/{MARK}"), "intruder")),
            ("a file over the canary", RawLayer::new().file("l/canary", "intruder")),
            ("a file through /", RawLayer::new().file("r/etc/by-image", "intruder")),
            ("a file over it", RawLayer::new().file("c", "intruder")),
            ("a directory through it", RawLayer::new().directory(format!("l/{MARK}/"))),
            (
                "a mode for it",
                RawLayer::new().header(&TarHeader::new(kind::DIRECTORY, "l/").mode(0o777)),
            ),
            ("a whiteout through it", RawLayer::new().file("l/.wh.canary", "")),
            ("an opaque mark through it", RawLayer::new().file("l/.wh..wh..opq", "")),
            ("a hard link to it", RawLayer::new().hardlink("h", "l").file(format!("h/{MARK}"), "")),
            ("a hard link through it", RawLayer::new().hardlink("h", "l/canary").file("h", "no")),
            ("a hard link to a file below", RawLayer::new().hardlink("h", "f").file("h", "no")),
            ("a hard link to a deep file", RawLayer::new().hardlink("h", "d/file").file("h", "no")),
        ] {
            let image = RawImage::new([Blob::gzip(&lower), Blob::gzip(&upper)]);
            fixture.survives(what, &image);
        }
    }
}

/// Attack 7: what a path was before does not matter to what it becomes.
#[test]
fn entries_that_change_their_type_stay_inside() {
    for fixture in ImageFixture::each() {
        let outside = fixture.outside().display().to_string();
        type Step<'a> = (&'a str, Box<dyn Fn(RawLayer) -> RawLayer + 'a>);
        let steps: [Step<'_>; 6] = [
            ("file", Box::new(|layer| layer.file("x", "content"))),
            ("directory", Box::new(|layer| layer.directory("x/").file("x/below", "content"))),
            ("link", Box::new(|layer| layer.symlink("x", &outside))),
            ("hard link", Box::new(|layer| layer.hardlink("x", "other"))),
            ("pipe", Box::new(|layer| layer.special(kind::PIPE, "x", 0, 0))),
            ("whiteout", Box::new(|layer| layer.file(".wh.x", ""))),
        ];
        for (first, make) in &steps {
            for (second, replace) in &steps {
                let layer = replace(make(RawLayer::new().file("other", "content")));
                let layer = layer.file(format!("x/{MARK}"), "intruder");
                fixture.survives(
                    &format!("{first}, then {second}, then below"),
                    &RawImage::of(&layer),
                );
            }
        }
    }
}

/// Attacks 6 and 7: names that are bytes and not text.
#[test]
fn strange_names_are_kept_or_refused_cleanly() {
    for fixture in ImageFixture::each() {
        for (what, name) in [
            ("line end", &b"a\nb"[..]),
            ("escape", b"\x1b[2J\x1b]0;by\x07"),
            ("invalid UTF-8", b"a\xff\xfeb"),
            ("right to left", "a\u{202e}b".as_bytes()),
            ("255 bytes", &[b'n'; 255]),
            ("256 bytes", &[b'n'; 256]),
            ("4096 bytes", &[b'n'; 4096]),
            ("backslashes", b"..\\..\\x"),
            ("nothing", b""),
            ("a dot", b"."),
            ("slashes inside", b"a//b///c"),
            ("dots inside", b"a/./b/././c"),
            ("three dots", b".../x"),
            ("two dots and more", b"..a/..b"),
            ("a space", b" "),
            ("a hidden one", b".by"),
            ("encoded", b"%2e%2e/x"),
        ] {
            let below = |directory: &[u8]| [directory, b"/", name].concat();
            let layer = RawLayer::new()
                .file(below(b"file"), "content")
                .pax("path", below(b"pax"))
                .file("f", "content")
                .directory(below(b"directory"))
                .symlink(below(b"link"), "target")
                .symlink("target", name);
            fixture.survives(what, &RawImage::of(&layer));
            fixture.survives(what, &RawImage::of(&RawLayer::new().file(name, "content")));
        }
        let layer = RawLayer::new().pax("path", b"good\0/../by-image").file("f", "content");
        fixture.refuses("a name with a NUL", &RawImage::of(&layer));
        let layer = RawLayer::new().pax("linkpath", b"good\0/../x").symlink("f", "t");
        fixture.refuses("a target with a NUL", &RawImage::of(&layer));
    }
}
