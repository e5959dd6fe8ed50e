//! Names in layers that lead out.

use super::scene::{MARK, Scene};
use msb_e2e::forge::{Blob, Header, Image, Layer, kind};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Without this the rest would prove nothing: what is refused must be refused for its one fault.
#[test]
fn an_honest_image_is_taken_in_every_form() {
    for scene in Scene::each() {
        let layer = Layer::new()
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
            let image = Image::new([blob.clone()]);
            scene.takes("an honest image", &image, |_| {
                let tree = scene.tree(&blob);
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
    for scene in Scene::each_and_single() {
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
            format!("{}/canary", scene.outside().display()),
            format!("{}/{MARK}", scene.outside().display()),
            format!("../../../../config.toml/../{MARK}"),
        ]);
        for name in &names {
            let layer = Layer::new().directory("a/").file(name, "intruder");
            scene.refuses(&format!("a file `{name}`"), &Image::of(&layer));
        }
    }
}

/// Attack 7: whatever sort of entry, and by whatever field the name comes.
#[test]
fn a_name_that_leads_out_is_refused_in_every_field() {
    for scene in Scene::each() {
        let name = format!("../{MARK}");
        let long = format!("{}../{MARK}", "a/../".repeat(30));
        let global = kind::GLOBAL;
        let outside = scene.outside();
        let outside = outside.as_os_str().as_bytes();
        let file = Header::new(kind::FILE, MARK);
        for (what, layer) in [
            ("directory", Layer::new().directory(&name)),
            ("directory with a slash", Layer::new().directory(format!("{name}/"))),
            ("symbolic link", Layer::new().symlink(&name, "/etc")),
            ("hard link", Layer::new().file("f", "").hardlink(&name, "f")),
            ("pipe", Layer::new().special(kind::PIPE, &name, 0, 0)),
            ("character device", Layer::new().special(kind::CHARACTER, &name, 1, 3)),
            ("block device", Layer::new().special(kind::BLOCK, &name, 8, 0)),
            ("contiguous file", Layer::new().special(b'7', &name, 0, 0)),
            ("old file", Layer::new().special(0, &name, 0, 0)),
            ("prefix with dots", Layer::new().header(&file.clone().prefix(".."))),
            ("absolute prefix", Layer::new().header(&file.clone().prefix("/etc"))),
            ("prefix of outside", Layer::new().header(&file.clone().prefix(outside))),
            ("long name", Layer::new().file(&long, "intruder")),
            ("long name of a link", Layer::new().symlink(&long, "/etc")),
            ("PAX path", Layer::new().pax("path", &name).file("f", "intruder")),
            ("absolute PAX path", Layer::new().pax("path", b"/etc/by-image").file("f", "")),
            (
                "PAX path after a good one",
                Layer::new()
                    .records(kind::RECORDS, &[("path", b"good"), ("path", name.as_bytes())])
                    .file("f", "intruder"),
            ),
            (
                "PAX path over a long name",
                Layer::new()
                    .long(kind::LONG_NAME, b"good")
                    .pax("path", &name)
                    .file("f", "intruder"),
            ),
            (
                "name of a sparse file",
                Layer::new()
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
            scene.refuses(what, &Image::of(&layer));
        }
        // Who reads global records must refuse them; who does not makes a file `f`.
        for path in [name.as_bytes(), b"/etc/by-image"] {
            let layer = Layer::new().records(global, &[("path", path)]).file("f", "intruder");
            scene.survives("a global PAX path", &Image::of(&layer));
        }
    }
}

/// Attack 7.
#[test]
fn hard_links_out_of_the_tree_are_refused() {
    for scene in Scene::each() {
        let canary = scene.outside().join("canary").display().to_string();
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
            let layer = Layer::new().directory("a/").hardlink("h", target).file("h", "intruder");
            scene.refuses(&what, &Image::of(&layer));
            let layer = Layer::new()
                .directory("a/")
                .pax("linkpath", target)
                .hardlink("h", "a")
                .file("h", "intruder");
            scene.refuses(&format!("{what} by PAX"), &Image::of(&layer));
        }
        let long = format!("{}{canary}", "/./".repeat(60));
        let layer = Layer::new().hardlink("h", long).file("h", "intruder");
        scene.refuses("a hard link with a long target", &Image::of(&layer));
    }
}

/// Attack 7: a link of the layer itself is not a way out for what comes after it.
#[test]
fn nothing_is_written_through_a_link_of_the_same_layer() {
    for scene in Scene::each_and_single() {
        let outside = scene.outside().display().to_string();
        let to_canary = format!("{outside}/canary");
        let up = format!("{}{outside}", "../".repeat(20));
        let file = |layer: Layer| layer.file(format!("l/{MARK}"), "intruder");
        let begin = || Layer::new().symlink("l", &outside);
        for (what, layer) in [
            ("a file through a link", file(begin())),
            ("a file through a link with dots", file(Layer::new().symlink("l", &up))),
            (
                "a file through a link to /",
                Layer::new().symlink("l", "/").file("l/etc/by-image", ""),
            ),
            ("over what is there", begin().file("l/canary", "intruder")),
            ("over the link itself", Layer::new().symlink("l", &to_canary).file("l", "intruder")),
            ("a directory through a link", begin().directory(format!("l/{MARK}/"))),
            ("a deep directory", begin().file(format!("l/{MARK}/a/b/c"), "intruder")),
            ("the link as a directory", file(begin().directory("l/"))),
            (
                "a mode for where the link leads",
                begin()
                    .header(&Header::new(kind::DIRECTORY, "l/directory/").mode(0o777).owner(1, 1)),
            ),
            (
                "a mode through the link",
                begin().header(&Header::new(kind::DIRECTORY, "l/").mode(0o777).owner(1, 1)),
            ),
            ("a link through a link", begin().symlink(format!("l/{MARK}"), "/etc")),
            (
                "a hard link through a link",
                begin().file("f", "").hardlink(format!("l/{MARK}"), "f"),
            ),
            ("a pipe through a link", begin().special(kind::PIPE, format!("l/{MARK}"), 0, 0)),
            ("two links", file(Layer::new().symlink("m", &outside).symlink("l", "m"))),
            (
                "a link below a link",
                Layer::new()
                    .symlink("l", ".")
                    .symlink("l/m", &outside)
                    .file(format!("m/{MARK}"), ""),
            ),
            (
                "a hard link to a link",
                Layer::new()
                    .symlink("m", &outside)
                    .hardlink("l", "m")
                    .file(format!("l/{MARK}"), ""),
            ),
            (
                "a hard link to a file link",
                Layer::new().symlink("m", &to_canary).hardlink("l", "m").file("l", "intruder"),
            ),
            (
                "a hard link by way of a link",
                begin().hardlink("h", "l/canary").file("h", "intruder"),
            ),
            (
                "a directory swapped for a link",
                file(Layer::new().directory("l/").symlink("l", &outside)),
            ),
            (
                "a full directory swapped for a link",
                file(Layer::new().file("l/a/b", "").symlink("l", &outside)),
            ),
            ("a file swapped for a link", file(Layer::new().file("l", "").symlink("l", &outside))),
            (
                "a link swapped for a directory and back",
                file(begin().directory("l/").file("l/a", "").symlink("l", &outside)),
            ),
            ("a link to proc", file(Layer::new().symlink("l", "/proc/self/cwd"))),
            ("a link to a descriptor", file(Layer::new().symlink("l", "/proc/self/fd/3"))),
            ("a link to itself", file(Layer::new().symlink("l", "l"))),
            ("the root as a link", Layer::new().symlink("./", &outside).file(MARK, "intruder")),
            (
                "the root as a link by another name",
                Layer::new().symlink(".", &outside).file(MARK, "intruder"),
            ),
            ("the root as a file", Layer::new().file("./", "intruder").file(MARK, "intruder")),
            (
                "the root as a hard link",
                Layer::new().file("f", "").hardlink("./", "f").file(MARK, ""),
            ),
            ("the root as a whiteout", Layer::new().file("f", "").file(".wh..", "").file(MARK, "")),
        ] {
            scene.survives(what, &Image::of(&layer));
        }
    }
}

/// Attack 7: neither is a link of a layer below.
#[test]
fn nothing_is_written_through_a_link_of_a_lower_layer() {
    for scene in Scene::each() {
        let outside = scene.outside().display().to_string();
        let lower = Layer::new()
            .symlink("l", &outside)
            .symlink("c", format!("{outside}/canary"))
            .symlink("r", "/")
            .directory("d/")
            .file("d/file", "lower")
            .file("f", "lower");
        for (what, upper) in [
            ("a file through it", Layer::new().file(format!("l/{MARK}"), "intruder")),
            ("a file over the canary", Layer::new().file("l/canary", "intruder")),
            ("a file through /", Layer::new().file("r/etc/by-image", "intruder")),
            ("a file over it", Layer::new().file("c", "intruder")),
            ("a directory through it", Layer::new().directory(format!("l/{MARK}/"))),
            ("a mode for it", Layer::new().header(&Header::new(kind::DIRECTORY, "l/").mode(0o777))),
            ("a whiteout through it", Layer::new().file("l/.wh.canary", "")),
            ("an opaque mark through it", Layer::new().file("l/.wh..wh..opq", "")),
            ("a hard link to it", Layer::new().hardlink("h", "l").file(format!("h/{MARK}"), "")),
            ("a hard link through it", Layer::new().hardlink("h", "l/canary").file("h", "no")),
            ("a hard link to a file below", Layer::new().hardlink("h", "f").file("h", "no")),
            ("a hard link to a deep file", Layer::new().hardlink("h", "d/file").file("h", "no")),
        ] {
            let image = Image::new([Blob::gzip(&lower), Blob::gzip(&upper)]);
            scene.survives(what, &image);
        }
    }
}

/// Attack 7: what a path was before does not matter to what it becomes.
#[test]
fn entries_that_change_their_type_stay_inside() {
    for scene in Scene::each() {
        let outside = scene.outside().display().to_string();
        type Step<'a> = (&'a str, Box<dyn Fn(Layer) -> Layer + 'a>);
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
                let layer = replace(make(Layer::new().file("other", "content")));
                let layer = layer.file(format!("x/{MARK}"), "intruder");
                scene.survives(&format!("{first}, then {second}, then below"), &Image::of(&layer));
            }
        }
    }
}

/// Attacks 6 and 7: names that are bytes and not text.
#[test]
fn strange_names_are_kept_or_refused_cleanly() {
    for scene in Scene::each() {
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
            let layer = Layer::new()
                .file(below(b"file"), "content")
                .pax("path", below(b"pax"))
                .file("f", "content")
                .directory(below(b"directory"))
                .symlink(below(b"link"), "target")
                .symlink("target", name);
            scene.survives(what, &Image::of(&layer));
            scene.survives(what, &Image::of(&Layer::new().file(name, "content")));
        }
        let layer = Layer::new().pax("path", b"good\0/../by-image").file("f", "content");
        scene.refuses("a name with a NUL", &Image::of(&layer));
        let layer = Layer::new().pax("linkpath", b"good\0/../x").symlink("f", "t");
        scene.refuses("a target with a NUL", &Image::of(&layer));
    }
}
