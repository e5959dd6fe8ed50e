//! Images without end: bounded in bytes, inodes and time, and the error says by which limit.

use super::disk_usage::DiskWatch;
use super::fixture::{ImageFixture, Transfer, busybox};
use msb_e2e::raw_image::{
    BLOCK, Blob, CONFIG, RawImage, RawLayer, TarHeader, descriptor, gzip, gzip_bomb, kind, layout,
    media, zstd, zstd_bomb, zstd_claim, zstd_of, zstd_window,
};
use serde_json::json;

const LIMITS: &str = "[image_limits]\nbytes = \"16M\"\nentries = 500\ndepth = 32\nlayers = 8\n\
                      manifest = \"64K\"\n";
const BYTES: u64 = 16 << 20;
const ENTRIES: u64 = 500;
/// For what the state directory itself holds, and blocks that are not full.
const SLACK: u64 = 8 << 20;

/// Refused by a limit of this name, and never more on the disk than it allows.
#[track_caller]
fn exceeds(fixture: &ImageFixture, what: &str, word: &str, image: &RawImage) {
    let blobs: u64 = image.blobs.iter().map(|blob| blob.bytes.len() as u64).sum();
    for way in [Transfer::Pull, Transfer::DockerArchive] {
        let watch = DiskWatch::start(&fixture.msb.home());
        let (name, gave) = fixture.bring(image, way);
        let most = watch.end();
        let what = format!("{what} by {way:?} as {}", fixture.msb.uid());
        fixture.is_refused(&what, &name, &gave);
        let named = gave.stderr.contains(&format!("image_limits.{word}"));
        assert!(named, "{what}: {gave:#?}");
        // An archive is kept aside while it is loaded.
        assert!(most.bytes <= BYTES + 2 * blobs + SLACK, "{what}: {most:?}");
        assert!(most.inodes <= ENTRIES + 100, "{what}: {most:?}");
        assert_eq!(fixture.state(), Default::default(), "{what}");
    }
}

fn unfinished(media: &str, bytes: Vec<u8>) -> RawImage {
    RawImage::new([Blob::of(media, b"never read", bytes)])
}

/// Attack 9. What no layer exceeds alone, all of them exceed together.
#[test]
fn the_layers_of_an_image_are_bounded_together() {
    for fixture in ImageFixture::each_with(LIMITS) {
        let half = |number: u8| RawLayer::new().file("f", vec![b'a' + number; 6 << 20]);
        let large =
            RawImage::new((0..3).map(|number| Blob::gzip(&half(number))).collect::<Vec<_>>());
        let many = |number: u32| {
            (0..200)
                .fold(RawLayer::new(), |layer, file| layer.file(format!("{number}-{file}"), "x"))
        };
        let crowded =
            RawImage::new((0..3).map(|number| Blob::gzip(&many(number))).collect::<Vec<_>>());
        for (word, image) in [("bytes", large), ("entries", crowded)] {
            for way in [Transfer::Pull, Transfer::DockerArchive] {
                let (name, gave) = fixture.bring(&image, way);
                fixture.is_refused(word, &name, &gave);
                let named = gave.stderr.contains(&format!("image_limits.{word}"));
                assert!(named, "{word} by {way:?}: {gave:#?}");
            }
        }
        // Two of them are within both.
        let two = RawImage::new((0..2).map(|number| Blob::gzip(&half(number))).collect::<Vec<_>>());
        fixture.bring(&two, Transfer::Pull).1.ok();
    }
}

/// Attack 9.
#[test]
fn bombs_are_bounded_in_bytes() {
    for fixture in ImageFixture::each_with(LIMITS) {
        let huge = TarHeader::new(kind::FILE, "huge").size(1 << 40).block();
        let bomb = unfinished(media::ZSTD, zstd_bomb(&huge, 64 << 10));
        exceeds(&fixture, "a file of 1 TiB", "bytes", &bomb);
        let bomb = unfinished(media::GZIP, gzip_bomb(&huge, &[0], 1 << 30));
        exceeds(&fixture, "a file of 1 TiB in gzip", "bytes", &bomb);
        let headers: Vec<[u8; BLOCK]> = (0..400)
            .map(|number| TarHeader::new(kind::FILE, format!("f{number}")).size(128 << 10).block())
            .collect();
        let files = zstd_of(headers.iter().map(|header| (&header[..], 1)));
        exceeds(&fixture, "many files", "bytes", &unfinished(media::ZSTD, files));
        let one = TarHeader::new(kind::FILE, "again").size(16 << 10).block();
        let again = [&one[..], &[0; 16 << 10]].concat();
        let bomb = unfinished(media::GZIP, gzip_bomb(b"", &again, 20_000));
        // Whichever of the two comes first.
        exceeds(&fixture, "one file again and again", "", &bomb);
        let end = RawLayer::new().file("f", "content").tar();
        exceeds(
            &fixture,
            "zeros after the end",
            "bytes",
            &unfinished(media::ZSTD, zstd_bomb(&end, 8 << 10)),
        );
        exceeds(
            &fixture,
            "zeros alone",
            "bytes",
            &unfinished(media::ZSTD, zstd_bomb(b"", 8 << 10)),
        );
        let hidden = TarHeader::new(kind::FILE, ".wh.f").size(1 << 30).block();
        exceeds(
            &fixture,
            "in a whiteout",
            "bytes",
            &unfinished(media::ZSTD, zstd_bomb(&hidden, 8 << 10)),
        );
        let members = gzip(&vec![0; 1 << 20]).repeat(40);
        exceeds(&fixture, "many members", "bytes", &unfinished(media::GZIP, members));
        let large = RawImage::new([Blob::plain(&RawLayer::new().file("f", vec![b'x'; 17 << 20]))]);
        exceeds(&fixture, "plainly too large", "bytes", &large);
    }
}

/// Attack 9: what a stream says about itself is not memory that we set aside.
#[test]
fn claims_of_a_stream_are_not_believed() {
    for fixture in ImageFixture::each() {
        let tar = RawLayer::new().file("f", "content").tar();
        for exponent in [18, 20, 21, 31] {
            let blob = Blob::of(media::ZSTD, &tar, zstd_window(&tar, exponent));
            fixture.refuses(&format!("a window of 2^{}", 10 + exponent), &RawImage::new([blob]));
        }
        let blob = Blob::of(media::ZSTD, &tar, zstd_window(&tar, 13));
        fixture.takes("a window of 8 MiB", &RawImage::new([blob]), |_| {});
        // A reader of streams need not notice; it must not believe either.
        for claim in [u64::MAX, 1 << 50, 0, tar.len() as u64 - 1] {
            let blob = Blob::of(media::ZSTD, &tar, zstd_claim(&tar, claim));
            fixture.survives(&format!("a claim of {claim} bytes"), &RawImage::new([blob]));
        }
    }
}

/// Attack 9.
#[test]
fn entries_are_bounded_whatever_they_are() {
    for fixture in ImageFixture::each_with(LIMITS) {
        let many = |make: &dyn Fn(RawLayer, usize) -> RawLayer| {
            let first = RawLayer::new().file("first", "content");
            RawImage::new([Blob::gzip(&(0..=ENTRIES as usize).fold(first, make))])
        };
        exceeds(&fixture, "files", "entries", &many(&|layer, n| layer.file(format!("f{n}"), "")));
        exceeds(
            &fixture,
            "directories",
            "entries",
            &many(&|layer, n| layer.directory(format!("d{n}"))),
        );
        exceeds(
            &fixture,
            "links",
            "entries",
            &many(&|layer, n| layer.symlink(format!("l{n}"), "t")),
        );
        exceeds(
            &fixture,
            "hard links",
            "entries",
            &many(&|layer, n| layer.hardlink(format!("h{n}"), "first")),
        );
        exceeds(
            &fixture,
            "whiteouts",
            "entries",
            &many(&|layer, n| layer.file(format!(".wh.{n}"), "")),
        );
        exceeds(
            &fixture,
            "pipes",
            "entries",
            &many(&|layer, n| layer.special(kind::PIPE, format!("p{n}"), 0, 0)),
        );
        exceeds(
            &fixture,
            "devices",
            "entries",
            &many(&|layer, n| layer.special(kind::BLOCK, format!("b{n}"), 8, 0)),
        );
        exceeds(&fixture, "the same one", "entries", &many(&|layer, _| layer.file("f", "")));
        exceeds(&fixture, "the root", "entries", &many(&|layer, _| layer.directory("./")));
        // Two hundred names, each of which needs thirty directories.
        let implied = (0..200)
            .fold(RawLayer::new(), |layer, n| layer.file(format!("{n}/{}f", "d/".repeat(29)), ""));
        exceeds(&fixture, "implied directories", "entries", &RawImage::of(&implied));
    }
}

/// Some builders describe no directory at all; to note them all must not be too much for us.
#[test]
fn directories_that_are_only_implied_are_no_burden() {
    for fixture in ImageFixture::each() {
        let long = "n".repeat(200);
        let lower = RawLayer::new().header(&TarHeader::new(kind::DIRECTORY, "d0/").mode(0o1777));
        let implied = (0..3_000).fold(RawLayer::new(), |layer, number| {
            layer.file(format!("d{}/{number}-{long}/f", number % 10), "")
        });
        let image = RawImage::new([Blob::plain(&lower), Blob::plain(&implied)]);
        let (name, gave) = fixture.bring(&image, Transfer::DockerArchive);
        gave.ok();
        fixture.forget("implied directories", &name);
    }
}

/// Attack 9, with the default limit.
#[test]
fn a_million_entries_are_refused() {
    for fixture in ImageFixture::each() {
        let header = TarHeader::new(kind::DIRECTORY, "d/").block();
        let image = unfinished(media::GZIP, gzip_bomb(b"", &header, 1_100_000));
        let way = if fixture.msb.is_root() { Transfer::Pull } else { Transfer::OciArchive };
        let (name, gave) = fixture.bring(&image, way);
        fixture.is_refused("a million entries", &name, &gave);
        assert!(gave.stderr.contains("image_limits.entries"), "{gave:#?}");
        assert_eq!(fixture.state(), Default::default());
    }
}

/// Attack 9.
#[test]
fn paths_are_bounded_in_depth() {
    for fixture in ImageFixture::each_with(LIMITS) {
        let deep = |count: usize| "d/".repeat(count) + "f";
        fixture.takes(
            "as deep as allowed",
            &RawImage::of(&RawLayer::new().file(deep(31), "")),
            |_| {},
        );
        exceeds(
            &fixture,
            "one deeper",
            "depth",
            &RawImage::of(&RawLayer::new().file(deep(32), "")),
        );
        exceeds(
            &fixture,
            "a directory",
            "depth",
            &RawImage::of(&RawLayer::new().directory(deep(32))),
        );
        let target = RawLayer::new().file(deep(31), "").hardlink("h", deep(32));
        exceeds(&fixture, "the target of a hard link", "depth", &RawImage::of(&target));
        for count in [2_000, 10_000, 100_000] {
            fixture.refuses("10,000 deep", &RawImage::of(&RawLayer::new().file(deep(count), "")));
            fixture.refuses(
                "10,000 deep by PAX",
                &RawImage::of(&RawLayer::new().pax("path", deep(count)).file("f", "")),
            );
        }
        // Each link leads thirty deeper than the one before.
        let mut layer = RawLayer::new().directory("d/".repeat(30)).symlink("l0", "d/".repeat(30));
        for number in 0..38 {
            let below = format!("l{number}/{}", "d/".repeat(30));
            layer = layer.directory(&below).symlink(format!("l{}", number + 1), &below);
        }
        exceeds(&fixture, "through a chain of links", "depth", &RawImage::of(&layer));
    }
}

/// Attack 9: with the usual limits too, what was unpacked can be removed again.
#[test]
fn a_chain_of_links_does_not_lead_deeper_than_can_be_removed() {
    for fixture in ImageFixture::each() {
        let deep = "d/".repeat(250);
        let mut layer = RawLayer::new().directory(&deep).symlink("l0", &deep);
        for number in 0..38 {
            let below = format!("l{number}/{deep}");
            layer = layer.directory(&below).symlink(format!("l{}", number + 1), &below);
        }
        fixture.refuses("a chain of links", &RawImage::of(&layer));
        let deepest = RawLayer::new().file("d/".repeat(255) + "f", "");
        fixture.takes("as deep as allowed", &RawImage::of(&deepest), |_| {});
    }
}

/// Attack 9.
#[test]
fn layers_and_manifests_are_bounded() {
    for fixture in ImageFixture::each_with(LIMITS) {
        let layers = |count: usize| -> Vec<Blob> {
            (0..count).map(|n| Blob::gzip(&RawLayer::new().file(format!("f{n}"), ""))).collect()
        };
        fixture.takes("as many layers as allowed", &RawImage::new(layers(8)), |_| {});
        exceeds(&fixture, "one layer more", "layers", &RawImage::new(layers(9)));
        let same = vec![Blob::gzip(&RawLayer::new().file("f", "")); 100];
        exceeds(&fixture, "one layer a hundred times", "layers", &RawImage::new(same));
        let large = RawImage::with(layers(1), &json!({ "Labels": { "l": "x".repeat(70_000) } }));
        exceeds(&fixture, "a large config", "manifest", &large);
        let many = RawImage::with(layers(1), &json!({ "Env": vec!["A=1"; 20_000] }));
        exceeds(&fixture, "a config of many words", "manifest", &many);
    }
    for fixture in ImageFixture::each() {
        let same = vec![Blob::gzip(&RawLayer::new().file("f", "")); 5_000];
        fixture.refuses("thousands of layers", &RawImage::new(same));
        let image = RawImage::with([Blob::gzip(&RawLayer::new())], &json!({}));
        let padded = [&image.manifest[..], &vec![b' '; 100 << 20]].concat();
        let image = RawImage { manifest: padded, ..image };
        let (name, gave) = fixture.pull_from_stub(&image);
        fixture.is_refused("a manifest of 100 MB", &name, &gave);
        assert!(gave.stderr.contains("image_limits.manifest"), "{gave:#?}");
        let gave = fixture.load(&image.oci_archive("docker.io/hostile/load:1"));
        fixture.is_refused("a manifest of 100 MB in an archive", "", &gave);
        assert!(gave.stderr.contains("image_limits.manifest"), "{gave:#?}");
    }
}

/// What the limit of layers allows must also start.
#[test]
fn as_many_layers_as_allowed_can_be_mounted() {
    for fixture in ImageFixture::each() {
        let mut layers = vec![busybox()];
        let one = |n: usize| Blob::plain(&RawLayer::new().file(format!("f{n}"), "content"));
        layers.extend((1..256).map(one));
        let (name, gave) = fixture.bring(&RawImage::new(layers), Transfer::DockerArchive);
        gave.ok();
        let gave = fixture.msb.run(["run", &name, "--", "cat", "/f1", "/f255"]);
        assert_eq!(gave.line(), "contentcontent");
    }
}

/// Attack 9: the archive around an image is bounded as well.
#[test]
fn archives_of_images_are_bounded() {
    for fixture in ImageFixture::each_with(LIMITS) {
        let image = RawImage::of(&RawLayer::new().file("f", "content"));
        let good = image.oci_archive("docker.io/hostile/load:1");
        let inside = &good[..good.len() - 2 * BLOCK];
        let huge = [inside, &TarHeader::new(kind::FILE, "huge").size(1 << 40).block()].concat();
        let index = TarHeader::new(kind::FILE, "index.json").size(1 << 30).block();
        let directory = TarHeader::new(kind::DIRECTORY, "d/").block();
        let link = TarHeader::new(kind::SYMBOLIC, "l").target("t").block();
        let config = vec![b' '; 100 << 10];
        let parts: [&[u8]; 1] = [&config];
        let manifest = json!({ "schemaVersion": 2, "manifests": [descriptor(CONFIG, &config)] });
        for (what, archive) in [
            ("a file of 1 TiB", huge.clone()),
            ("a file of 1 TiB that is there", zstd_bomb(&huge, 64 << 10)),
            ("one in gzip", gzip_bomb(&huge, &[0], 1 << 30)),
            ("an index of 1 GiB", zstd_bomb(&index, 8 << 10)),
            ("a million directories", gzip_bomb(inside, &directory, 1_000_000)),
            ("a million links", gzip_bomb(inside, &link, 1_000_000)),
            ("a giant window", zstd_window(&good, 31)),
            ("gzip in gzip", gzip(&gzip(&good))),
            ("zstd in gzip", gzip(&zstd(&good))),
            ("something that is no manifest", layout(&parts, &manifest).tar()),
            ("nothing", Vec::new()),
            ("zeros", vec![0; 1 << 20]),
            ("noise", vec![0xa5; 1 << 20]),
            ("half", good[..good.len() / 2].to_vec()),
        ] {
            let watch = DiskWatch::start(&fixture.msb.home());
            let gave = fixture.load(&archive);
            let most = watch.end();
            fixture.is_refused(&format!("{what} as {}", fixture.msb.uid()), "", &gave);
            assert!(most.bytes <= BYTES + SLACK, "{what}: {most:?}");
            assert_eq!(fixture.state(), Default::default(), "{what}");
        }
        let gave = fixture.load(&good);
        assert_eq!(gave.code, 0, "{gave:#?}");
    }
}
