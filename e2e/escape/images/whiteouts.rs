//! Whiteouts: they remove only files of lower layers.

use super::fixture::{ImageFixture, MARK, attributes};
use msb_e2e::raw_image::{Blob, RawImage, RawLayer, TarHeader, kind};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Attack 7.
#[test]
fn a_whiteout_removes_nothing_outside() {
    for fixture in ImageFixture::each_and_single() {
        let outside = fixture.outside().display().to_string();
        let lower = RawLayer::new()
            .directory("d/")
            .file("d/file", "lower")
            .symlink("l", &outside)
            .symlink("up", "..");
        let begin = || RawLayer::new().symlink("l", &outside).symlink("up", "../../../..");
        for (what, upper) in [
            ("of what is above", RawLayer::new().file(".wh...", "")),
            ("of what is above a directory", RawLayer::new().file("d/.wh...", "")),
            ("of the directory itself", RawLayer::new().file(".wh..", "")),
            ("of a directory's own", RawLayer::new().file("d/.wh..", "")),
            ("of nothing", RawLayer::new().file(".wh.", "")),
            ("of nothing in a directory", RawLayer::new().file("d/.wh.", "")),
            ("in a directory that is called one", RawLayer::new().file(".wh./x", "")),
            ("below one", RawLayer::new().file(".wh.d/canary", "")),
            ("as a directory", RawLayer::new().directory(".wh.canary/").file(".wh.canary/x", "")),
            ("as a link", RawLayer::new().symlink(".wh.canary", &outside)),
            (
                "as a link to go through",
                RawLayer::new().symlink(".wh.x", &outside).file("x/canary", ""),
            ),
            ("as a hard link", RawLayer::new().file("f", "").hardlink(".wh.f", "f")),
            ("as a pipe", RawLayer::new().special(kind::PIPE, ".wh.f", 0, 0)),
            ("as a device", RawLayer::new().special(kind::CHARACTER, ".wh.f", 1, 3)),
            ("with content", RawLayer::new().file(".wh.f", vec![b'x'; 70_000])),
            ("through a link", begin().file("l/.wh.canary", "")),
            ("of a directory through a link", begin().file("l/.wh.directory", "")),
            ("through dots", begin().file("up/.wh.canary", "")),
            ("opaque through a link", begin().file("l/.wh..wh..opq", "")),
            ("opaque through dots", begin().file("up/.wh..wh..opq", "")),
            ("opaque as a directory", RawLayer::new().directory(".wh..wh..opq/")),
            ("opaque as a link", RawLayer::new().symlink(".wh..wh..opq", &outside)),
            ("opaque at the root", RawLayer::new().file(".wh..wh..opq", "").file("f", "")),
            ("opaque below a file", RawLayer::new().file("f", "").file("f/.wh..wh..opq", "")),
            ("with dots", RawLayer::new().file(format!("d/../../.wh.{MARK}"), "")),
            ("absolute", RawLayer::new().file(format!("{outside}/.wh.canary"), "")),
            ("of a whiteout", RawLayer::new().file(".wh..wh.x", "")),
            ("of its own maker", RawLayer::new().file("f", "").file(".wh.f", "").file("f", "")),
            ("of the longest name", RawLayer::new().file(format!(".wh.{}", "n".repeat(251)), "")),
            ("of a longer name", RawLayer::new().file(format!(".wh.{}", "n".repeat(255)), "")),
            ("with a line end", RawLayer::new().file(".wh.a\nb", "")),
            (
                "and a directory again",
                RawLayer::new().file(".wh.l", "").file("l/canary", "intruder"),
            ),
            (
                "and a link again",
                RawLayer::new().file(".wh.d", "").symlink("d", &outside).file("d/canary", ""),
            ),
            (
                "that is a device of its own",
                RawLayer::new().special(kind::CHARACTER, "canary", 0, 0),
            ),
        ] {
            let image = RawImage::new([Blob::plain(&lower), Blob::plain(&upper)]);
            fixture.survives(&format!("a whiteout {what}"), &image);
        }
    }
}

/// Attack 7: what names `.` or `..` after the mark is not a name.
#[test]
fn a_whiteout_of_dots_is_refused() {
    for fixture in ImageFixture::each() {
        for name in [".wh...", ".wh..", "d/.wh...", ".wh.", "../.wh.canary", "d/../.wh.canary"] {
            fixture.refuses(name, &RawImage::of(&RawLayer::new().directory("d/").file(name, "")));
        }
    }
}

/// The marks themselves: the only devices and attributes that a layer may cause.
#[test]
fn marks_become_what_overlayfs_knows_and_nothing_else() {
    for fixture in ImageFixture::each_and_single() {
        let blob = Blob::gzip(
            &RawLayer::new()
                .directory("d/")
                .file("d/.wh..wh..opq", "")
                .file("d/kept", "upper")
                .file(".wh.gone", "")
                .header(&TarHeader::new(kind::FILE, ".wh.bits").mode(0o6777).owner(7, 7)),
        );
        fixture.takes("marks", &RawImage::new([blob.clone()]), |_| {
            let tree = fixture.tree(&blob);
            for gone in ["gone", "bits"] {
                let meta = fs::symlink_metadata(tree.join(gone)).unwrap();
                assert!(meta.file_type().is_char_device() && meta.rdev() == 0, "{gone}");
            }
            assert_eq!(attributes(&tree.join("d")), ["user.overlay.opaque"]);
            assert_eq!(fs::read_to_string(tree.join("d/kept")).unwrap(), "upper");
        });
    }
}
