//! Files inside, and copies in and out.

use crate::scratch::{Scratch, eventually};
use microsandbox::{FileKind, Kind};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_file_is_written_read_added_to_and_removed() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let fs = sandbox.fs();
    fs.write("/work/a/b.txt", "hello\n").await.unwrap();
    fs.append("/work/a/b.txt", "there\n").await.unwrap();
    assert_eq!(fs.read_to_string("/work/a/b.txt").await.unwrap(), "hello\nthere\n");
    assert_eq!(
        sandbox.exec("wc", ["-l", "/work/a/b.txt"]).await.unwrap().stdout().unwrap(),
        "2 /work/a/b.txt\n"
    );
    fs.write("/work/a/b.txt", b"\xff\0").await.unwrap();
    assert_eq!(fs.read("/work/a/b.txt").await.unwrap(), b"\xff\0");
    assert_eq!(fs.read_to_string("/work/a/b.txt").await.unwrap_err().kind(), Kind::Invalid);
    fs.write("/work/empty", "").await.unwrap();
    assert_eq!(fs.read("/work/empty").await.unwrap(), b"");
    fs.remove("/work/a/b.txt").await.unwrap();
    assert!(!fs.exists("/work/a/b.txt").await.unwrap());
}

#[tokio::test]
async fn directories_are_made_listed_copied_renamed_and_removed() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let fs = sandbox.fs();
    fs.mkdir("/d/e/f").await.unwrap();
    fs.mkdir("/d/e/f").await.unwrap();
    fs.write("/d/e/one", "1").await.unwrap();
    fs.symlink("one", "/d/e/link").await.unwrap();
    fs.copy("/d/e", "/copy").await.unwrap();
    fs.rename("/copy/one", "/copy/two").await.unwrap();
    let listed: Vec<(String, FileKind)> = fs
        .list("/copy")
        .await
        .unwrap()
        .into_iter()
        .map(|meta| (meta.name.into_string().unwrap(), meta.kind))
        .collect();
    let expected = [
        ("f".to_owned(), FileKind::Directory),
        ("link".to_owned(), FileKind::Symlink(PathBuf::from("one"))),
        ("two".to_owned(), FileKind::File),
    ];
    assert_eq!(listed, expected);
    assert!(fs.exists("/d/e/link").await.unwrap());
    assert!(!fs.exists("/copy/link").await.unwrap());
    assert!(fs.remove("/d").await.is_err());
    fs.remove_all("/d").await.unwrap();
    fs.remove_all("/d").await.unwrap();
    assert!(!fs.exists("/d").await.unwrap());
}

#[tokio::test]
async fn a_path_tells_what_it_is() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let fs = sandbox.fs();
    fs.write("/a", "12345").await.unwrap();
    fs.symlink("/a", "/l").await.unwrap();
    let meta = fs.stat("/l").await.unwrap();
    assert!(meta.is_file() && !meta.is_dir());
    assert_eq!((meta.size, meta.mode, meta.uid, meta.gid), (5, 0o644, 0, 0));
    let age = SystemTime::now().duration_since(meta.modified).unwrap_or_default();
    assert!(age < Duration::from_secs(60), "{age:?}");
    assert_eq!(fs.stat_link("/l").await.unwrap().kind, FileKind::Symlink(PathBuf::from("/a")));
    assert!(fs.stat("/").await.unwrap().is_dir());
    assert_eq!(fs.stat("/dev/null").await.unwrap().kind, FileKind::Other);
}

#[tokio::test]
async fn names_need_not_be_text() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let name = OsStr::from_bytes(b"\xff\xfe\n");
    let path = Path::new("/n").join(name);
    sandbox.fs().write(&path, "x").await.unwrap();
    assert_eq!(sandbox.fs().list("/n").await.unwrap()[0].name, name);
    assert_eq!(sandbox.fs().read(&path).await.unwrap(), b"x");
}

#[tokio::test]
async fn failures_have_kinds() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let fs = sandbox.fs();
    assert_eq!(fs.read("/nothing").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(fs.reader("/nothing").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(fs.list("/nothing").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(fs.stat("/nothing").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(fs.read("relative").await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(fs.read("/etc").await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(fs.write("/etc", "x").await.unwrap_err().kind(), Kind::Invalid);
    // Large enough that the guest has refused before all of it was sent.
    let large = vec![0; 8 << 20];
    let error = fs.write("/proc/version", &large).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Host, "{error}");
    let missing = fs.copy_from_host(scratch.path().join("nothing"), "/x").await;
    assert!(missing.is_err());
}

#[tokio::test]
async fn a_large_file_goes_through_in_pieces() {
    const SIZE: usize = 64 << 20;
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let piece: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 253) as u8).collect();
    let mut writer = sandbox.fs().writer("/large").await.unwrap();
    for _ in 0..SIZE / piece.len() {
        writer.write_all(&piece).await.unwrap();
    }
    assert_eq!(writer.finish().await.unwrap(), SIZE as u64);
    let inside = sandbox.exec("sha256sum", ["/large"]).await.unwrap();

    let mut reader = sandbox.fs().reader("/large").await.unwrap();
    let (mut total, mut largest) = (0, 0);
    while let Some(read) = reader.next().await.unwrap() {
        assert!(read.iter().zip(total..).all(|(byte, at)| *byte == piece[at % piece.len()]));
        total += read.len();
        largest = largest.max(read.len());
    }
    assert_eq!(total, SIZE);
    assert!(largest <= 1 << 20, "a piece of {largest} bytes");

    let out = scratch.path().join("large");
    let copied = sandbox.fs().copy_to_host("/large", &out).await.unwrap();
    assert_eq!((copied.entries, copied.bytes), (1, SIZE as u64));
    sandbox.fs().copy_from_host(&out, "/back").await.unwrap();
    let back = sandbox.exec("sha256sum", ["/back"]).await.unwrap();
    assert_eq!(inside.stdout().unwrap()[..64], back.stdout().unwrap()[..64]);
}

#[tokio::test]
async fn streams_are_those_of_tokio() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut writer = sandbox.fs().writer("/s").await.unwrap();
    writer.write_all(b"0123").await.unwrap();
    writer.flush().await.unwrap();
    eventually("it is written", async || {
        sandbox.fs().read("/s").await.is_ok_and(|bytes| bytes == b"0123")
    })
    .await;
    writer.write_all(b"456789").await.unwrap();
    writer.shutdown().await.unwrap();
    assert!(writer.write_all(b"x").await.is_err());
    assert_eq!(writer.finish().await.unwrap(), 10);

    let mut text = String::new();
    let mut reader = sandbox.fs().reader_at("/s", 2, Some(5)).await.unwrap();
    reader.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "23456");
}

#[tokio::test]
async fn trees_are_copied_in_and_out() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(tree.join("sub/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("sub/run.sh", tree.join("link")).unwrap();

    let copied = sandbox.fs().copy_from_host(&tree, "/app").await.unwrap();
    assert_eq!(copied.entries, 4);
    assert_eq!(sandbox.exec("/app/link", [""; 0]).await.unwrap().stdout().unwrap(), "ran\n");

    let out = scratch.path().join("out");
    sandbox.fs().copy_to_host("/app", &out).await.unwrap();
    assert_eq!(fs::read(out.join("sub/run.sh")).unwrap(), b"#!/bin/sh\necho ran\n");
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("sub/run.sh"));
}
