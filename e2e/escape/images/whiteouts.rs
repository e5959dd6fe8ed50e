//! Marks that remove: they must not remove anything but what a lower layer brought.

use super::scene::{MARK, Scene, attributes};
use msb_e2e::forge::{Blob, Header, Image, Layer, kind};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Attack 7.
#[test]
fn a_whiteout_removes_nothing_outside() {
    for scene in Scene::each_and_single() {
        let outside = scene.outside().display().to_string();
        let lower = Layer::new()
            .directory("d/")
            .file("d/file", "lower")
            .symlink("l", &outside)
            .symlink("up", "..");
        let begin = || Layer::new().symlink("l", &outside).symlink("up", "../../../..");
        for (what, upper) in [
            ("of what is above", Layer::new().file(".wh...", "")),
            ("of what is above a directory", Layer::new().file("d/.wh...", "")),
            ("of the directory itself", Layer::new().file(".wh..", "")),
            ("of a directory's own", Layer::new().file("d/.wh..", "")),
            ("of nothing", Layer::new().file(".wh.", "")),
            ("of nothing in a directory", Layer::new().file("d/.wh.", "")),
            ("in a directory that is called one", Layer::new().file(".wh./x", "")),
            ("below one", Layer::new().file(".wh.d/canary", "")),
            ("as a directory", Layer::new().directory(".wh.canary/").file(".wh.canary/x", "")),
            ("as a link", Layer::new().symlink(".wh.canary", &outside)),
            (
                "as a link to go through",
                Layer::new().symlink(".wh.x", &outside).file("x/canary", ""),
            ),
            ("as a hard link", Layer::new().file("f", "").hardlink(".wh.f", "f")),
            ("as a pipe", Layer::new().special(kind::PIPE, ".wh.f", 0, 0)),
            ("as a device", Layer::new().special(kind::CHARACTER, ".wh.f", 1, 3)),
            ("with content", Layer::new().file(".wh.f", vec![b'x'; 70_000])),
            ("through a link", begin().file("l/.wh.canary", "")),
            ("of a directory through a link", begin().file("l/.wh.directory", "")),
            ("through dots", begin().file("up/.wh.canary", "")),
            ("opaque through a link", begin().file("l/.wh..wh..opq", "")),
            ("opaque through dots", begin().file("up/.wh..wh..opq", "")),
            ("opaque as a directory", Layer::new().directory(".wh..wh..opq/")),
            ("opaque as a link", Layer::new().symlink(".wh..wh..opq", &outside)),
            ("opaque at the root", Layer::new().file(".wh..wh..opq", "").file("f", "")),
            ("opaque below a file", Layer::new().file("f", "").file("f/.wh..wh..opq", "")),
            ("with dots", Layer::new().file(format!("d/../../.wh.{MARK}"), "")),
            ("absolute", Layer::new().file(format!("{outside}/.wh.canary"), "")),
            ("of a whiteout", Layer::new().file(".wh..wh.x", "")),
            ("of its own maker", Layer::new().file("f", "").file(".wh.f", "").file("f", "")),
            ("of the longest name", Layer::new().file(format!(".wh.{}", "n".repeat(251)), "")),
            ("of a longer name", Layer::new().file(format!(".wh.{}", "n".repeat(255)), "")),
            ("with a line end", Layer::new().file(".wh.a\nb", "")),
            ("and a directory again", Layer::new().file(".wh.l", "").file("l/canary", "intruder")),
            (
                "and a link again",
                Layer::new().file(".wh.d", "").symlink("d", &outside).file("d/canary", ""),
            ),
            ("that is a device of its own", Layer::new().special(kind::CHARACTER, "canary", 0, 0)),
        ] {
            let image = Image::new([Blob::plain(&lower), Blob::plain(&upper)]);
            scene.survives(&format!("a whiteout {what}"), &image);
        }
    }
}

/// Attack 7: what names `.` or `..` after the mark is not a name.
#[test]
fn a_whiteout_of_dots_is_refused() {
    for scene in Scene::each() {
        for name in [".wh...", ".wh..", "d/.wh...", ".wh.", "../.wh.canary", "d/../.wh.canary"] {
            scene.refuses(name, &Image::of(&Layer::new().directory("d/").file(name, "")));
        }
    }
}

/// The marks themselves: the only devices and attributes that a layer may cause.
#[test]
fn marks_become_what_overlayfs_knows_and_nothing_else() {
    for scene in Scene::each_and_single() {
        let blob = Blob::gzip(
            &Layer::new()
                .directory("d/")
                .file("d/.wh..wh..opq", "")
                .file("d/kept", "upper")
                .file(".wh.gone", "")
                .header(&Header::new(kind::FILE, ".wh.bits").mode(0o6777).owner(7, 7)),
        );
        scene.takes("marks", &Image::new([blob.clone()]), |_| {
            let tree = scene.tree(&blob);
            for gone in ["gone", "bits"] {
                let meta = fs::symlink_metadata(tree.join(gone)).unwrap();
                assert!(meta.file_type().is_char_device() && meta.rdev() == 0, "{gone}");
            }
            assert_eq!(attributes(&tree.join("d")), ["user.overlay.opaque"]);
            assert_eq!(fs::read_to_string(tree.join("d/kept")).unwrap(), "upper");
        });
    }
}
