//! Archives with false headers.

use super::fixture::ImageFixture;
use msb_e2e::raw_image::{
    BLOCK, Blob, RawImage, RawLayer, TarHeader, base_256, gzip, kind, media, record, zstd,
};

/// Attacks 8 and 9.
#[test]
fn sizes_that_cannot_be_are_refused() {
    for fixture in ImageFixture::each() {
        let sized = |bytes: &[u8]| {
            let header = TarHeader::new(kind::FILE, "f").raw_size(bytes);
            RawLayer::new().header(&header).content("short")
        };
        let negative = |number: i128| base_256(12, number);
        for (what, layer) in [
            ("minus one", sized(&negative(-1))),
            ("minus a block", sized(&negative(-512))),
            ("a sign", sized(b"-0000000001\0")),
            (
                "minus for a name",
                RawLayer::new()
                    .header(&TarHeader::new(kind::LONG_NAME, "").raw_size(&negative(-512)))
                    .file("f", ""),
            ),
            (
                "minus for records",
                RawLayer::new()
                    .header(&TarHeader::new(kind::RECORDS, "").raw_size(&negative(-512)))
                    .file("f", ""),
            ),
            ("all bits", sized(&[0xff; 12])),
            ("almost all bits", sized(&base_256(12, i128::from(u64::MAX) - 100))),
            ("beyond 64 bits", sized(&base_256(12, 1 << 80))),
            ("beyond 64 bits and then small", sized(&base_256(12, (1 << 70) + 5))),
            ("8 EiB", sized(&base_256(12, 1 << 63))),
            ("1 EiB", sized(&base_256(12, 1 << 60))),
            ("8 GiB of octal", sized(b"77777777777\0")),
            ("not a number", sized(b"99999999999\0")),
            ("letters", sized(b"abcdefghijk\0")),
            ("zeros inside", sized(b"000\x00000\x00000\0")),
            ("more than there is", sized(b"00000100000\0")),
            ("PAX: more than there is", RawLayer::new().pax("size", "99999").file("f", "short")),
            ("PAX: 8 EiB", RawLayer::new().pax("size", "9223372036854775807").file("f", "short")),
            (
                "PAX: all bits",
                RawLayer::new().pax("size", "18446744073709551615").file("f", "short"),
            ),
            ("PAX: beyond", RawLayer::new().pax("size", "99999999999999999999").file("f", "short")),
            ("PAX: minus", RawLayer::new().pax("size", "-1").file("f", "short")),
            ("PAX: plus", RawLayer::new().pax("size", "+5").file("f", "short")),
            ("PAX: nothing", RawLayer::new().pax("size", "").file("f", "short")),
            ("PAX: letters", RawLayer::new().pax("size", "5x").file("f", "short")),
        ] {
            // Some readers take a few of these for an ordinary small number; none may harm.
            match what {
                "zeros inside" | "beyond 64 bits and then small" | "PAX: plus" => {
                    fixture.survives(what, &RawImage::of(&layer));
                }
                _ => fixture.refuses(what, &RawImage::of(&layer)),
            }
        }
    }
}

/// Attacks 8 and 9: a name or an attribute is not a way to fill the memory.
#[test]
fn names_and_records_of_gigabytes_are_refused_early() {
    for fixture in ImageFixture::each() {
        let huge = |kind: u8| TarHeader::new(kind, "huge").gnu().size(1 << 33);
        let claims = |kind: u8| RawLayer::new().header(&huge(kind)).content("short");
        for (what, kind) in [
            ("name", kind::LONG_NAME),
            ("target", kind::LONG_TARGET),
            ("records", kind::RECORDS),
            ("global records", kind::GLOBAL),
        ] {
            let layer = claims(kind);
            fixture.refuses(&format!("a claim of {what}"), &RawImage::of(&layer));
            // Really there, and small on the way.
            let begin = RawLayer::new().header(&huge(kind)).unfinished();
            let bomb = msb_e2e::raw_image::zstd_bomb(&begin, 8 << 10);
            let blob = Blob::of(media::ZSTD, b"never read to the end", bomb);
            fixture.refuses(&format!("a gigabyte of {what}"), &RawImage::new([blob]));
        }
        let many = |layer: &RawLayer, times: u64| {
            let bomb = msb_e2e::raw_image::gzip_bomb(b"", &layer.unfinished(), times);
            RawImage::new([Blob::of(media::GZIP, b"never read to the end", bomb)])
        };
        // Together they are 2 GiB, each by itself is modest.
        let big = RawLayer::new().pax("SCHILY.xattr.user.a", vec![b'x'; 16_000]);
        fixture.refuses("records without an entry", &many(&big, 130_000));
        let big = RawLayer::new().long(kind::LONG_NAME, &[b'x'; 16_000]);
        fixture.refuses("names without an entry", &many(&big, 130_000));
    }
}

/// Attack 8.
#[test]
fn records_that_cannot_be_read_are_refused() {
    for fixture in ImageFixture::each() {
        let raw = |body: &[u8]| RawLayer::new().raw_records(kind::RECORDS, body).file("f", "");
        let claim = |length: &str| raw(format!("{length} path=f\n").as_bytes());
        for (what, layer) in [
            ("no length", raw(b" path=f\n")),
            ("no number", raw(b"x path=f\n")),
            ("a sign", claim("-9")),
            ("nothing", claim("0")),
            ("less than itself", claim("1")),
            ("less than the key", claim("5")),
            ("more than there is", claim("99")),
            ("much more", claim("18446744073709551615")),
            ("more than a number holds", claim("99999999999999999999999999")),
            ("no equals sign", raw(b"8 pathf\n")),
            ("no line end", raw(b"9 path=fx")),
            ("no blank", raw(b"99999999")),
            ("a good one first", raw(&[&record("path", b"f")[..], b"7 path"].concat())),
            ("zeros", raw(&[0; 64])),
            ("a time that is none", RawLayer::new().pax("mtime", "later").file("f", "")),
            ("an owner that is none", RawLayer::new().pax("uid", "root").file("f", "")),
            ("an owner below zero", RawLayer::new().pax("uid", "-1").file("f", "")),
            ("an owner beyond", RawLayer::new().pax("uid", "4294967296").file("f", "")),
            ("the owner that means none", RawLayer::new().pax("gid", "4294967295").file("f", "")),
        ] {
            fixture.refuses(what, &RawImage::of(&layer));
        }
        for (what, layer) in [
            ("an empty key", RawLayer::new().pax("", "x").file("f", "")),
            ("an unknown key", RawLayer::new().pax("VENDOR.x", "x").file("f", "")),
            ("an empty path", RawLayer::new().pax("path", "").file("f", "")),
            ("an old time", RawLayer::new().pax("mtime", "-99999999999.5").file("f", "")),
            ("the oldest time", RawLayer::new().pax("mtime", "-9223372036854775808").file("f", "")),
            ("the latest time", RawLayer::new().pax("mtime", "9223372036854775807").file("f", "")),
            (
                "many digits",
                RawLayer::new().pax("mtime", "1.".to_owned() + &"1".repeat(1000)).file("f", ""),
            ),
            ("records at the end", RawLayer::new().pax("path", "x")),
            ("a name at the end", RawLayer::new().long(kind::LONG_NAME, b"x")),
        ] {
            fixture.survives(what, &RawImage::of(&layer));
        }
    }
}

/// Attacks 7 and 9: files with holes.
#[test]
fn sparse_maps_that_cannot_be_are_refused() {
    for fixture in ImageFixture::each() {
        const EXA: u64 = 1 << 60;
        // The old form: four pieces in the header, then its real size.
        let old = |pieces: &[(u64, u64)], real: u64, data: usize| {
            let mut header = TarHeader::new(kind::SPARSE, "f").gnu().size(data as u64);
            for (at, (offset, length)) in pieces.iter().enumerate() {
                let number = |number: u64| base_256(12, i128::from(number));
                header = header.raw(386 + at * 24, &number(*offset));
                header = header.raw(398 + at * 24, &number(*length));
            }
            let header = header.raw(483, &base_256(12, i128::from(real)));
            RawLayer::new().header(&header).content(vec![b'x'; data])
        };
        let map = |pieces: &[(u64, u64)]| {
            let pieces: Vec<String> =
                pieces.iter().map(|(at, len)| format!("{at},{len}")).collect();
            pieces.join(",")
        };
        // PAX 0.1: the map stands in a record.
        let pax = |pieces: &[(u64, u64)], real: u64, data: usize| {
            let (map, real) = (map(pieces), real.to_string());
            let records: [(&str, &[u8]); 2] =
                [("GNU.sparse.map", map.as_bytes()), ("GNU.sparse.size", real.as_bytes())];
            RawLayer::new().records(kind::RECORDS, &records).file("f", vec![b'x'; data])
        };
        // PAX 1.0: the map stands before the data.
        let newest = |pieces: &[(u64, u64)], real: u64, data: usize| {
            let lines: String = pieces.iter().map(|(at, len)| format!("{at}\n{len}\n")).collect();
            let mut content = format!("{}\n{lines}", pieces.len()).into_bytes();
            content.resize(content.len().next_multiple_of(BLOCK), 0);
            content.extend(vec![b'x'; data]);
            let real = real.to_string();
            RawLayer::new()
                .records(
                    kind::RECORDS,
                    &[
                        ("GNU.sparse.major", b"1"),
                        ("GNU.sparse.minor", b"0"),
                        ("GNU.sparse.name", b"f"),
                        ("GNU.sparse.realsize", real.as_bytes()),
                    ],
                )
                .file("f", content)
        };
        type Case<'a> = (&'a str, &'a [(u64, u64)], u64, usize);
        let cases: [Case<'_>; 10] = [
            ("overlap", &[(0, 512), (100, 512)], 2048, 1024),
            ("go backwards", &[(1024, 512), (0, 512)], 2048, 1024),
            ("are the same", &[(0, 512), (0, 512)], 2048, 1024),
            ("end beyond the file", &[(2048, 512)], 1024, 512),
            ("promise more data than there is", &[(0, 4096)], 4096, 512),
            ("leave data over", &[(0, 512)], 4096, 1024),
            ("overflow", &[(u64::MAX - 10, 512)], u64::MAX, 512),
            ("overflow together", &[(0, 1 << 63), (1 << 63, 1 << 63)], u64::MAX, 512),
            ("promise an exabyte", &[(EXA - 512, 512)], EXA, 512),
            ("hold an exabyte of nothing", &[], EXA, 0),
        ];
        for (what, pieces, real, data) in cases {
            fixture.refuses(
                &format!("GNU pieces that {what}"),
                &RawImage::of(&old(pieces, real, data)),
            );
            fixture.refuses(
                &format!("1.0 pieces that {what}"),
                &RawImage::of(&newest(pieces, real, data)),
            );
            if !pieces.is_empty() {
                fixture.refuses(
                    &format!("0.1 pieces that {what}"),
                    &RawImage::of(&pax(pieces, real, data)),
                );
            }
        }
        let honest: &[(u64, u64)] = &[(512, 512), (4096, 512)];
        for layer in [old(honest, 8192, 1024), pax(honest, 8192, 1024), newest(honest, 8192, 1024)]
        {
            fixture.takes("an honest map", &RawImage::of(&layer), |_| {});
        }
        // A map that goes on for ever, with no piece in it.
        let header = TarHeader::new(kind::SPARSE, "f").gnu().raw(482, &[1]);
        let endless = [&[0; 504][..], &[1; 1], &[0; 7]].concat();
        let bomb = msb_e2e::raw_image::gzip_bomb(&header.block(), &endless, 100_000);
        let blob = Blob::of(media::GZIP, b"never read to the end", bomb);
        fixture.refuses("a map without end", &RawImage::new([blob]));
        let header = TarHeader::new(kind::RECORDS, "x").size(1_000_000);
        let numbers = "0,1,".repeat(250_000);
        let begin = format!("1000000 GNU.sparse.map={}", &numbers[..1_000_000 - 24]);
        let layer = RawLayer::new().header(&header).content(begin + "\n").file("f", "");
        fixture.refuses("a map of half a million pieces", &RawImage::of(&layer));
    }
}

/// Attack 8.
#[test]
fn damaged_archives_are_refused() {
    for fixture in ImageFixture::each() {
        let good = RawLayer::new().file("f", vec![b'x'; 2000]).file("g", "content");
        let tar = good.tar();
        let plain = |bytes: &[u8]| RawImage::new([Blob::of(media::TAR, bytes, bytes)]);
        let bad = TarHeader::new(kind::FILE, "f").miscounted();
        let cut_gzip = gzip(&tar)[..300].to_vec();
        let cut_zstd = zstd(&tar)[..300].to_vec();
        let mut wrong_sum = gzip(&tar);
        let at = wrong_sum.len() - 6;
        wrong_sum[at] ^= 1;
        for (what, image) in [
            ("a wrong checksum", plain(&RawLayer::new().bytes(bad).tar())),
            ("a wrong checksum later", plain(&good.clone().bytes(bad).tar())),
            ("half a header", plain(&tar[..100])),
            ("half a file", plain(&tar[..1024])),
            ("half a second header", plain(&tar[..512 + 2048 + 99])),
            ("noise", plain(&[0xa5; 4096])),
            ("text", plain(b"this is no archive")),
            ("gzip cut short", RawImage::new([Blob::of(media::GZIP, &tar, cut_gzip)])),
            ("zstd cut short", RawImage::new([Blob::of(media::ZSTD, &tar, cut_zstd)])),
            ("a wrong sum of gzip", RawImage::new([Blob::of(media::GZIP, &tar, wrong_sum)])),
            ("gzip and nothing", RawImage::new([Blob::of(media::GZIP, &tar, [0x1f, 0x8b])])),
            (
                "zstd and nothing",
                RawImage::new([Blob::of(media::ZSTD, &tar, [0x28, 0xb5, 0x2f, 0xfd])]),
            ),
            (
                "gzip with noise after it",
                RawImage::new([Blob::of(media::GZIP, &tar, [gzip(&tar), vec![0xa5; 64]].concat())]),
            ),
            (
                "zstd with noise after it",
                RawImage::new([Blob::of(media::ZSTD, &tar, [zstd(&tar), vec![0xa5; 64]].concat())]),
            ),
            (
                "gzip in gzip",
                RawImage::new([Blob::of(media::GZIP, &gzip(&tar), gzip(&gzip(&tar)))]),
            ),
        ] {
            fixture.refuses(what, &image);
        }
        for (what, image) in [
            ("nothing at all", plain(b"")),
            ("one empty block", plain(&[0; BLOCK])),
            ("no end", plain(&good.unfinished())),
            ("half an end", plain(&[&good.unfinished()[..], &[0; BLOCK]].concat())),
            ("noise after the end", plain(&[&tar[..], &[0xa5; 999]].concat())),
            (
                "another archive after the end",
                plain(&[&tar[..], &RawLayer::new().file("../by-image", "").tar()].concat()),
            ),
            (
                "a hole between entries",
                plain(&[&good.unfinished()[..], &[0; BLOCK], &tar].concat()),
            ),
            (
                "gzip of two members",
                RawImage::new([Blob::of(
                    media::GZIP,
                    &tar,
                    [gzip(&tar[..700]), gzip(&tar[700..])].concat(),
                )]),
            ),
            (
                "zstd of two frames",
                RawImage::new([Blob::of(
                    media::ZSTD,
                    &tar,
                    [zstd(&tar[..700]), zstd(&tar[700..])].concat(),
                )]),
            ),
            (
                "zstd with a skipped frame",
                RawImage::new([Blob::of(
                    media::ZSTD,
                    &tar,
                    [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &zstd(&tar)].concat(),
                )]),
            ),
            (
                "empty members",
                RawImage::new([Blob::of(
                    media::GZIP,
                    &tar,
                    [gzip(b""), gzip(&tar), gzip(b"")].concat(),
                )]),
            ),
        ] {
            fixture.survives(what, &image);
        }
    }
}

/// Attack 8: the bytes say what they are; a name that says otherwise changes nothing.
#[test]
fn a_wrong_media_type_is_refused_or_harmless() {
    for fixture in ImageFixture::each() {
        let tar = RawLayer::new().file("f", "content").tar();
        for (what, media, bytes) in [
            ("gzip as zstd", media::ZSTD, gzip(&tar)),
            ("zstd as gzip", media::GZIP, zstd(&tar)),
            ("gzip as tar", media::TAR, gzip(&tar)),
            ("tar as gzip", media::GZIP, tar.clone()),
            ("zstd as Docker's gzip", media::DOCKER_GZIP, zstd(&tar)),
        ] {
            let blob = Blob::of(media, &tar, bytes);
            fixture.survives(what, &RawImage::new([blob]));
        }
    }
}
