//! File types in layers: devices, pipes, sockets, set-id bits and attributes.

use super::fixture::{ImageFixture, Transfer, attributes, busybox, walk};
use msb_e2e::raw_image::{Blob, RawImage, RawLayer, TarHeader, kind};
use msb_e2e::{as_unprivileged_user, skip};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::Command;

/// Attack 10.
#[test]
fn devices_are_not_made() {
    for fixture in ImageFixture::each_and_single() {
        let device = |layer: RawLayer, kind: u8, name: &str, major, minor| {
            layer.header(&TarHeader::new(kind, name).mode(0o666).device(major, minor))
        };
        let mut layer = RawLayer::new().directory("dev/");
        for (name, major, minor) in [("null", 1, 3), ("mem", 1, 1), ("kmsg", 1, 11), ("tty", 5, 0)]
        {
            layer = device(layer, kind::CHARACTER, &format!("dev/{name}"), major, minor);
            layer = device(layer, kind::CHARACTER, name, major, minor);
        }
        for (name, major, minor) in
            [("sda", 8, 0), ("loop0", 7, 0), ("vda", 254, 0), ("big", 1 << 20, 1 << 20)]
        {
            layer = device(layer, kind::BLOCK, &format!("dev/{name}"), major, minor);
        }
        // No device of its own, but nothing of the layer's either.
        layer = device(layer, kind::CHARACTER, "zero", 0, 0).file("file", "content");
        layer = device(layer, kind::BLOCK, "file", 8, 0);
        layer = device(layer, kind::BLOCK, "hard", 8, 0).file("after", "content");
        let blob = Blob::gzip(&layer);
        let image = RawImage::new([busybox(), blob.clone()]);
        fixture.takes("devices", &image, |name| {
            let devices: Vec<_> = walk(&fixture.tree(&blob))
                .into_iter()
                .filter(|path| {
                    let kind = fs::symlink_metadata(path).unwrap().file_type();
                    kind.is_block_device() || kind.is_char_device()
                })
                .filter(|path| fs::symlink_metadata(path).unwrap().rdev() != 0)
                .collect();
            assert_eq!(devices, Vec::<std::path::PathBuf>::new());
            assert!(fixture.tree(&blob).join("after").is_file());
            let script = "for node in /null /mem /kmsg /tty /hard; do \
                          [ -c $node -o -b $node ] && echo $node; done; \
                          for node in mem kmsg sda loop0 vda big; do \
                          [ -c /dev/$node -o -b /dev/$node ] && echo $node; done; true";
            assert_eq!(fixture.msb.run(["run", name, "--", "sh", "-c", script]).line(), "");
        });
    }
}

/// Attack 10: pipes are harmless files, sockets and unknown types are refused.
#[test]
fn pipes_sockets_and_unknown_things_do_not_hang() {
    for fixture in ImageFixture::each() {
        let blob = Blob::plain(
            &RawLayer::new()
                .special(kind::PIPE, "pipe", 0, 0)
                .special(kind::PIPE, "etc/passwd", 0, 0)
                .special(kind::PIPE, "etc/group", 0, 0),
        );
        let image = RawImage::new([busybox(), blob.clone()]);
        fixture.takes("pipes", &image, |name| {
            let meta = fs::symlink_metadata(fixture.tree(&blob).join("pipe")).unwrap();
            assert!(meta.file_type().is_fifo());
            // The lookup of users in it must not wait for a writer.
            assert_eq!(fixture.msb.run(["run", name, "--", "echo", "well"]).line(), "well");
            fixture.msb.run(["run", "-u", "web", name, "--", "true"]);
            fixture.is_idle("pipes");
        });
        for unknown in [b's', b'D', b'M', b'V', b'N', b'A', b'Z', b'8', b'9', 0x80, 0xff] {
            let layer = RawLayer::new().special(unknown, "thing", 0, 0);
            fixture.survives(&format!("type {unknown}"), &RawImage::of(&layer));
        }
    }
}

/// Attacks 5 and 10: only the owner of the state directory can run a setuid file of a layer.
#[test]
fn setuid_files_of_a_layer_are_out_of_reach() {
    for fixture in ImageFixture::each() {
        let program = fs::read("/bin/busybox").unwrap();
        let header = |mode| TarHeader::new(kind::FILE, "bin/become").mode(mode).owner(0, 0);
        let blob = Blob::plain(&RawLayer::new().file_as(header(0o6755), "bin/become", &program));
        let image = RawImage::new([blob.clone()]);
        fixture.takes("a setuid program", &image, |_| {
            let path = fixture.tree(&blob).join("bin/become");
            let owner = fs::symlink_metadata(&path).unwrap().uid();
            let Some(mut stranger) = as_unprivileged_user(&path) else {
                return skip("without root no other user can be tried");
            };
            let ran = stranger.args(["id", "-u"]).output().unwrap();
            assert!(!ran.status.success(), "a stranger has run it as {owner}: {ran:?}");
        });
        // Bits that are none of the twelve are no bits at all.
        let blob = Blob::plain(&RawLayer::new().file_as(header(0o177_777), "bin/become", "x"));
        fixture.survives("too many bits", &RawImage::new([blob]));
    }
}

/// Attack 10.
#[test]
fn attributes_that_mean_something_to_the_kernel_are_not_set() {
    for fixture in ImageFixture::each_and_single() {
        // All capabilities, effective and permitted, in the form of version 2.
        let capability = [&[1, 0, 0, 2][..], &[0xff; 4], &[0; 4], &[0xff; 4], &[0; 4]].concat();
        let acl = [&[2, 0, 0, 0][..], &[1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff]].concat();
        let names: [(&str, &[u8]); 20] = [
            ("security.capability", &capability),
            ("security.selinux", b"unconfined_u"),
            ("security.ima", b"x"),
            ("security.evm", b"x"),
            ("security.SMACK64EXEC", b"x"),
            ("security.apparmor", b"x"),
            ("trusted.overlay.opaque", b"y"),
            ("trusted.overlay.redirect", b"/etc"),
            ("trusted.overlay.metacopy", b""),
            ("trusted.overlay.origin", b"x"),
            ("trusted.overlay.whiteout", b"y"),
            ("trusted.other", b"x"),
            ("user.overlay.opaque", b"y"),
            ("user.overlay.redirect", b"/etc"),
            ("user.overlay.metacopy", b""),
            ("user.overlay.whiteout", b"y"),
            ("user.overlay.overlay.opaque", b"y"),
            ("system.posix_acl_access", &acl),
            ("system.posix_acl_default", &acl),
            ("btrfs.compression", b"zstd"),
        ];
        let mut layer = RawLayer::new().directory("plain/").file("plain/lower", "content");
        for (number, (name, value)) in names.iter().enumerate() {
            let attribute = |layer: RawLayer| {
                let base64 = "AQAAAv////8AAAAA/////wAAAAA=";
                layer.records(
                    kind::RECORDS,
                    &[
                        (&format!("SCHILY.xattr.{name}"), value),
                        (&format!("LIBARCHIVE.xattr.{name}"), base64.as_bytes()),
                        (&format!("RHT.{name}"), value),
                        ("SCHILY.acl.access", b"user::rwx,group::rwx,other::rwx"),
                    ],
                )
            };
            layer = attribute(layer).file(format!("f{number}"), "content");
            layer = attribute(layer).directory(format!("d{number}/"));
            layer = attribute(layer).symlink(format!("l{number}"), "plain");
            layer = attribute(layer).special(kind::PIPE, format!("p{number}"), 0, 0);
        }
        layer = layer.pax("SCHILY.xattr.user.mime_type", "text/plain").file("kept", "content");
        let blob = Blob::gzip(&layer);
        let image = RawImage::new([busybox(), blob.clone()]);
        fixture.takes("attributes", &image, |name| {
            for path in walk(&fixture.tree(&blob)) {
                let expected: &[&str] = match path.file_name().unwrap().to_str() {
                    Some("kept") => &["user.mime_type"],
                    _ => &[],
                };
                let found = attributes(&path);
                let found: Vec<&String> =
                    found.iter().filter(|name| *name != "security.selinux").collect();
                assert_eq!(found, expected, "{}", path.display());
            }
            let tree = fixture.tree(&blob);
            if let Ok(listed) = Command::new("getcap").arg("-r").arg(&tree).output() {
                assert_eq!(String::from_utf8_lossy(&listed.stdout), "");
            }
            let script = "ls /d12 /d6; cat /plain/lower; ls /f15";
            assert_eq!(
                fixture.msb.run(["run", name, "--", "sh", "-c", script]).line(),
                "/d12:\n\n/d6:\ncontent/f15"
            );
        });
        // And on the way by which the root itself is described.
        let root = RawLayer::new()
            .pax("SCHILY.xattr.trusted.overlay.opaque", "y")
            .directory("./")
            .pax("SCHILY.xattr.user.overlay.opaque", "y")
            .directory("./");
        fixture.takes("attributes of the root", &RawImage::of(&root), |_| {});
    }
}

/// Attack 10: attributes that no file system takes are refused or left out.
#[test]
fn attributes_that_cannot_be_break_nothing() {
    for fixture in ImageFixture::each() {
        let long = format!("SCHILY.xattr.user.{}", "n".repeat(300));
        let mut cases: Vec<(&str, RawLayer)> = vec![
            ("64 KiB", RawLayer::new().pax("SCHILY.xattr.user.a", vec![b'x'; 65536]).file("f", "")),
            (
                "more than 64 KiB",
                RawLayer::new().pax("SCHILY.xattr.user.a", vec![b'x'; 65537]).file("f", ""),
            ),
            (
                "half a megabyte",
                RawLayer::new().pax("SCHILY.xattr.user.a", vec![b'x'; 1 << 19]).file("f", ""),
            ),
            ("no name", RawLayer::new().pax("SCHILY.xattr.", "x").file("f", "")),
            ("no class", RawLayer::new().pax("SCHILY.xattr.user", "x").file("f", "")),
            ("no name in its class", RawLayer::new().pax("SCHILY.xattr.user.", "x").file("f", "")),
            ("an unknown class", RawLayer::new().pax("SCHILY.xattr.x.y", "x").file("f", "")),
            ("a long name", RawLayer::new().pax(&long, "x").file("f", "")),
            (
                "a name with a zero",
                RawLayer::new().pax("SCHILY.xattr.user.a\0b", "x").file("f", ""),
            ),
            (
                "capitals",
                RawLayer::new().pax("SCHILY.xattr.SECURITY.capability", "x").file("f", ""),
            ),
            (
                "a blank",
                RawLayer::new().pax("SCHILY.xattr. security.capability", "x").file("f", ""),
            ),
        ];
        let many: Vec<(String, Vec<u8>)> = (0..2000)
            .map(|number| (format!("SCHILY.xattr.user.a{number}"), vec![b'x'; 200]))
            .collect();
        let many: Vec<(&str, &[u8])> = many.iter().map(|(key, value)| (&**key, &**value)).collect();
        cases.push(("many", RawLayer::new().records(kind::RECORDS, &many).file("f", "")));
        for (what, layer) in cases {
            fixture.survives(what, &RawImage::of(&layer));
        }
    }
}

/// Owners of a layer are ids of the image, and as a user never more than were granted.
#[test]
fn unmapped_owners_are_refused_or_mapped() {
    for fixture in ImageFixture::each_and_single() {
        for id in [1, 65_534, 65_535, 65_536, 99_999, 2_000_000_000, u64::from(u32::MAX) - 1] {
            let header = TarHeader::new(kind::FILE, "f").owner(id, id);
            let image = RawImage::of(&RawLayer::new().file_as(header, "f", "content"));
            fixture.survives(&format!("owner {id}"), &image);
        }
        for id in [u64::from(u32::MAX), 1 << 32, 1 << 40, u64::MAX >> 1] {
            let header = TarHeader::new(kind::FILE, "f").owner(id, 0);
            let image = RawImage::of(&RawLayer::new().file_as(header, "f", "content"));
            fixture.refuses(&format!("owner {id}"), &image);
        }
        // Nothing of another user's files is ever made.
        let header = TarHeader::new(kind::FILE, "f").owner(33, 33);
        let blob = Blob::plain(&RawLayer::new().file_as(header, "f", "content"));
        let image = RawImage::new([blob.clone()]);
        let (name, gave) = fixture.bring(&image, Transfer::Pull);
        gave.ok();
        let owner = fs::symlink_metadata(fixture.tree(&blob).join("f")).unwrap().uid();
        match fixture.msb.is_root() {
            true => assert_eq!(owner, 33),
            false => assert!(owner == fixture.msb.uid() || owner >= 100_000, "{owner}"),
        }
        fixture.forget("owners", &name);
    }
}
