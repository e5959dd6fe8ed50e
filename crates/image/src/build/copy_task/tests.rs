use super::super::upper_packer::UpperPacker;
use super::*;
use crate::unpack::tar_reader::TarReader;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

/// Directories that are removed when the test ends.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("msb-errand-{number}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Creates files (`a/b=text`), directories (`a/`), symlinks (`a->b`) and whiteouts (`!a`).
    fn tree(&self, name: &str, entries: &[&str]) -> PathBuf {
        let root = self.0.join(name);
        fs::create_dir_all(&root).unwrap();
        for entry in entries {
            let (path, _) = entry.split_once(['=', '>', '!']).unwrap_or((entry, ""));
            let path = root.join(path.trim_end_matches('-'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if let Some((_, target)) = entry.split_once("->") {
                symlink(target, path).unwrap();
            } else if let Some(hidden) = entry.strip_prefix('!') {
                let (device, mode) = (FileType::CharacterDevice, Mode::empty());
                rustix::fs::mknodat(CWD, root.join(hidden), device, mode, 0).unwrap();
            } else if let Some((_, text)) = entry.split_once('=') {
                fs::write(path, text).unwrap();
            } else {
                fs::create_dir_all(path).unwrap();
            }
        }
        root
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn opened(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn task(sources: &[&str], target: &str) -> CopyTask {
    let source = |path: &&str| CopySource::Path((*path).to_owned());
    let args = CopyArgs {
        add: false,
        sources: sources.iter().map(source).collect(),
        target: target.trim_end_matches('/').to_owned(),
        into: target.ends_with('/'),
        from: None,
        owner: None,
        mode: None,
    };
    let bounds = Bounds { bytes: 1 << 20, entries: 1000, depth: 64 };
    let from = CopyFrom::Folder { ignore: String::new() };
    CopyTask { args, below: 0, from, time: 7, latest: None, bounds }
}

/// Every entry of the resulting layer: `path mode uid:gid content`.
fn layer(task: &mut CopyTask, below: &[&Path], from: &[&Path]) -> Result<Vec<String>> {
    task.below = below.len();
    let directories = below.iter().chain(from).map(|path| opened(path)).collect();
    let mut bytes = Vec::new();
    let copied = task.run(directories, &mut bytes)?;
    let directories = below.iter().chain(from).map(|path| opened(path)).collect();
    let again = task.run(directories, std::io::sink()).unwrap();
    assert_eq!(copied, again, "asking first tells the same");
    Ok(listed(&bytes))
}

fn listed(bytes: &[u8]) -> Vec<String> {
    let mut archive = TarReader::new(bytes);
    let mut lines = Vec::new();
    while let Some(entry) = archive.next().unwrap() {
        let mut data = Vec::new();
        archive
            .data(|bytes| {
                data.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let link = String::from_utf8_lossy(&entry.link).into_owned();
        let what = match entry.kind {
            crate::unpack::tar_reader::TarKind::File => {
                format!("={}", String::from_utf8_lossy(&data))
            }
            crate::unpack::tar_reader::TarKind::Symlink => format!("->{link}"),
            crate::unpack::tar_reader::TarKind::HardLink => format!("=={link}"),
            _ => String::new(),
        };
        lines.push(format!("{path} {:o} {}:{}{what}", entry.mode, entry.uid, entry.gid));
    }
    // A layer with any entry has the root as first entry.
    assert!(lines.is_empty() || lines[0].starts_with("./ "), "{lines:?}");
    lines.into_iter().skip(1).collect()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_and_directories_go_where_docker_puts_them() {
    let place = Place::new();
    let from = place.tree("from", &["a=1", "d/x=2", "d/e/y=3", "d/l->x"]);
    mode(&from.join("a"), 0o640);
    let below = place.tree("below", &["etc/"]);
    let copy = |sources: &[&str], target: &str| {
        layer(&mut task(sources, target), &[&below], &[&from]).unwrap()
    };
    assert_eq!(copy(&["a"], "/b"), ["b 640 0:0=1"]);
    assert_eq!(copy(&["a"], "/new/"), ["new/ 755 0:0", "new/a 640 0:0=1"]);
    assert_eq!(copy(&["a"], "/etc")[1..], ["etc/a 640 0:0=1"]);
    let whole =
        ["t/ 755 0:0", "t/e/ 755 0:0", "t/e/y 644 0:0=3", "t/l 777 0:0->x", "t/x 644 0:0=2"];
    assert_eq!(copy(&["d"], "/t"), whole);
    assert_eq!(copy(&["/d/"], "/t/"), whole);
    assert_eq!(copy(&["./d/../d"], "/t/"), whole);
    assert_eq!(copy(&["d/l"], "/b"), ["b 644 0:0=2"], "a link that is named is followed");
    let two = ["t/ 755 0:0", "t/a 640 0:0=1", "t/x 644 0:0=2"];
    assert_eq!(copy(&["a", "d/x"], "/t/"), two);
    let several = layer(&mut task(&["a", "d/x"], "/t"), &[&below], &[&from]).unwrap_err();
    assert!(several.message().contains("several"), "{several}");
}

#[test]
fn owners_and_permissions_are_those_asked_for() {
    let place = Place::new();
    let from = place.tree("from", &["d/x=2", "d/l->x"]);
    let users = "etc/passwd=root:x:0:0::/:\nann:x:7:8::/:\n";
    let below = place.tree("below", &[users, "etc/group=staff:x:50:\n"]);
    for (owner, ids) in [("3", "3:3"), ("3:4", "3:4"), ("ann", "7:8"), ("ann:staff", "7:50")] {
        let mut task = task(&["d"], "/t");
        task.args.owner = Some(UserRef::parse(owner).unwrap());
        task.args.mode = Some(0o700);
        let found = layer(&mut task, &[&below], &[&from]).unwrap();
        let line = |path: &str, mode: &str, what: &str| format!("{path} {mode} {ids}{what}");
        let expected = [line("t/", "755", ""), line("t/l", "777", "->x"), line("t/x", "700", "=2")];
        assert_eq!(found, expected, "{owner}");
    }
    let mut unknown = task(&["d"], "/t");
    unknown.args.owner = Some(UserRef::parse("bob").unwrap());
    assert!(layer(&mut unknown, &[&below], &[&from]).is_err());
}

#[test]
fn links_of_the_image_are_followed_within_it() {
    let place = Place::new();
    let from = place.tree("from", &["sh=1", "root/bin/x=2"]);
    let entries = ["usr/bin/", "bin->usr/bin", "out->/../../../tmp", "file=f", "loop->loop"];
    let below = place.tree("below", &entries);
    mode(&below.join("usr"), 0o711);
    let copy =
        |sources: &[&str], target: &str| layer(&mut task(sources, target), &[&below], &[&from]);
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let usr = [format!("usr/ 711 {uid}:{gid}"), format!("usr/bin/ 755 {uid}:{gid}")];
    let found = copy(&["sh"], "/bin/").unwrap();
    assert_eq!(found[..2], usr, "directories on the way are as they are below");
    assert_eq!(found[2..], ["usr/bin/sh 644 0:0=1"]);
    assert_eq!(copy(&["root"], "/").unwrap()[2..], ["usr/bin/x 644 0:0=2"]);
    assert_eq!(copy(&["sh"], "/out/x").unwrap(), ["tmp/ 755 0:0", "tmp/x 644 0:0=1"]);
    assert!(!Path::new("/tmp/x").exists());
    assert!(copy(&["sh"], "/file/x").is_err());
    assert!(copy(&["sh"], "/loop/x").is_err());
}

#[test]
fn links_of_the_directory_never_lead_to_the_host() {
    let place = Place::new();
    let from = place.tree("from", &["l->/etc/passwd", "d->../..", "etc/passwd=mine"]);
    let copy = |source: &str| layer(&mut task(&[source], "/t"), &[], &[&from]);
    assert_eq!(copy("l").unwrap(), ["t 644 0:0=mine"]);
    assert_eq!(copy("d/etc/passwd").unwrap(), ["t 644 0:0=mine"]);
    assert_eq!(copy("../../etc/passwd").unwrap(), ["t 644 0:0=mine"]);
    let missing = copy("etc/shadow").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn wildcards_and_rules_choose() {
    let place = Place::new();
    let from =
        place.tree("from", &["a.txt=1", "b.txt=2", "c.md=3", "s/x.txt=4", "s/k/y=5", ".h=6"]);
    let names = |sources: &[&str], ignore: &str| -> Vec<String> {
        let mut task = task(sources, "/t/");
        task.from = CopyFrom::Folder { ignore: ignore.to_owned() };
        let lines = layer(&mut task, &[], &[&from]).unwrap();
        lines.iter().skip(1).filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
    };
    assert_eq!(names(&["*.txt"], ""), ["t/a.txt", "t/b.txt"]);
    assert_eq!(names(&["*/x.txt"], ""), ["t/x.txt"]);
    assert_eq!(names(&["[ac]*"], ""), ["t/a.txt", "t/c.md"]);
    assert_eq!(names(&["."], "*.txt\ns"), ["t/.h", "t/c.md"]);
    assert_eq!(names(&["."], "*\n!s/k"), ["t/s/", "t/s/k/", "t/s/k/y"]);
    assert_eq!(names(&["*.txt"], "b.*"), ["t/a.txt"]);
    let mut ignored = task(&["a.txt"], "/t");
    ignored.from = CopyFrom::Folder { ignore: "*.txt".to_owned() };
    let error = layer(&mut ignored, &[], &[&from]).unwrap_err();
    assert!(error.advice().unwrap().contains(".dockerignore"), "{error}");
}

#[test]
fn layers_are_seen_as_an_overlay_shows_them() {
    let place = Place::new();
    let low = place.tree("low", &["a=1", "gone=2", "d/old=3", "d/kept=4", "o/x=5", "f/x=6"]);
    let high = place.tree("high", &["!gone", "d/new=7", "o/y=8", "f=9"]);
    rustix::fs::mknodat(CWD, high.join("d/old"), FileType::CharacterDevice, Mode::empty(), 0)
        .unwrap();
    let (name, create) = ("user.overlay.opaque", XattrFlags::empty());
    if rustix::fs::setxattr(high.join("o"), name, b"y", create).is_err() {
        // tmpfs before Linux 6.6 has no `user.` attributes; then `e2e` covers this.
        return;
    }
    fs::hard_link(low.join("a"), low.join("b")).unwrap();
    let mut task = task(&["/"], "/t");
    task.from = CopyFrom::Layers;
    task.args.owner = Some(UserRef::parse("0:0").unwrap());
    let found = layer(&mut task, &[], &[&high, &low]).unwrap();
    assert_eq!(
        found,
        [
            "t/ 755 0:0",
            "t/a 644 0:0=1",
            "t/b 644 0:0==t/a",
            "t/d/ 755 0:0",
            "t/d/kept 644 0:0=4",
            "t/d/new 644 0:0=7",
            "t/f 644 0:0=9",
            "t/o/ 755 0:0",
            "t/o/y 644 0:0=8",
        ]
    );
}

#[test]
fn the_root_is_as_it_is_below() {
    let place = Place::new();
    let from = place.tree("from", &["a=1"]);
    let below = place.tree("below", &["x=1"]);
    mode(&below, 0o711);
    let mut task = task(&["a"], "/b");
    task.below = 1;
    let mut bytes = Vec::new();
    task.run(vec![opened(&below), opened(&from)], &mut bytes).unwrap();
    assert_eq!(TarReader::new(&bytes[..]).next().unwrap().unwrap().mode, 0o711);
}

#[test]
fn what_a_name_would_mean_to_a_layer_is_refused() {
    let place = Place::new();
    let from = place.tree("from", &[".wh.x=1"]);
    let error = layer(&mut task(&["."], "/t"), &[], &[&from]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

fn tar_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (path, what) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(5);
        header.set_gid(6);
        header.set_mtime(1);
        header.set_size(0);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let (sort, target, data) = match what.split_at_checked(2) {
            Some(("->", target)) => (tar::EntryType::Symlink, target, ""),
            Some(("==", target)) => (tar::EntryType::Link, target, ""),
            _ if path.ends_with('/') => (tar::EntryType::Directory, "", ""),
            _ => (tar::EntryType::Regular, "", *what),
        };
        header.set_entry_type(sort);
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_size(data.len() as u64);
        header.set_cksum();
        out.append(&header, data.as_bytes()).unwrap();
    }
    out.into_inner().unwrap()
}

fn add(from: &Path, below: &[&Path], source: &str) -> Result<Vec<String>> {
    let mut task = task(&[source], "/t/");
    task.args.add = true;
    layer(&mut task, below, &[from])
}

#[test]
fn archives_are_unpacked_by_add_alone() {
    use std::io::Write;
    let place = Place::new();
    let from = place.tree("from", &["plain=text"]);
    let tar = tar_of(&[("d/", ""), ("d/f", "hi"), ("h", "==d/f"), ("l", "->d")]);
    fs::write(from.join("a.tar"), &tar).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(
        File::create(from.join("a.tgz")).unwrap(),
        Default::default(),
    );
    gzip.write_all(&tar).unwrap();
    gzip.finish().unwrap();
    fs::write(from.join("a.zst"), zstd::encode_all(&tar[..], 0).unwrap()).unwrap();
    let mut words = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    words.write_all(b"only text").unwrap();
    fs::write(from.join("text.gz"), words.finish().unwrap()).unwrap();
    let unpacked =
        ["t/ 755 0:0", "t/d/ 644 5:6", "t/d/f 644 5:6=hi", "t/h 644 5:6==t/d/f", "t/l 644 5:6->d"];
    for name in ["a.tar", "a.tgz", "a.zst"] {
        assert_eq!(add(&from, &[], name).unwrap(), unpacked, "{name}");
    }
    assert_eq!(add(&from, &[], "plain").unwrap()[1..], ["t/plain 644 0:0=text"]);
    assert!(add(&from, &[], "text.gz").unwrap()[1].starts_with("t/text.gz "));
    assert!(layer(&mut task(&["a.tar"], "/t/"), &[], &[&from]).unwrap()[1].starts_with("t/a.tar "));
    for (name, magic) in [("a.xz", &b"\xfd7zXZ\0rest"[..]), ("a.bz2", b"BZh9rest")] {
        fs::write(from.join(name), magic).unwrap();
        assert_eq!(add(&from, &[], name).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn a_hostile_archive_stays_within_the_image() {
    let place = Place::new();
    let from = place.tree("from", &[]);
    let below = place.tree("below", &["t/out->../../../../etc"]);
    let tries = |entries: &[(&str, &str)]| {
        fs::write(from.join("a.tar"), tar_of(entries)).unwrap();
        add(&from, &[&below], "a.tar")
    };
    assert!(tries(&[("../x", "1")]).is_err());
    assert!(tries(&[("/x", "1")]).is_err());
    assert!(tries(&[("h", "==../../etc/passwd")]).is_err());
    assert!(tries(&[("h", "==nothing")]).is_err());
    assert!(tries(&[(".wh.x", "")]).is_err());
    let found = tries(&[("out/x", "1")]).unwrap();
    assert!(found.contains(&"etc/x 644 5:6=1".to_owned()), "{found:?}");
    let found = tries(&[("l", "->/../../tmp"), ("l/msb-x", "1")]).unwrap();
    assert!(found.contains(&"tmp/msb-x 644 5:6=1".to_owned()), "{found:?}");
    assert!(!Path::new("/tmp/msb-x").exists());
}

#[test]
fn a_directory_that_has_to_be_there_is_made_once() {
    let place = Place::new();
    let below = place.tree("below", &["w/", "l->w"]);
    let made = |target: &str| {
        let mut task = task(&[], target);
        task.from = CopyFrom::Nowhere;
        layer(&mut task, &[&below], &[]).unwrap()
    };
    assert_eq!(made("/w"), [""; 0]);
    assert_eq!(made("/l"), [""; 0]);
    assert_eq!(made("/a/b"), ["a/ 755 0:0", "a/b/ 755 0:0"]);
}

#[test]
fn what_a_sandbox_wrote_becomes_a_layer() {
    let place = Place::new();
    let upper =
        place.tree("upper", &["d/f=1", "!gone", "o/x=2", "proc/", "tmp/", "run/y=3", ".msb/s=4"]);
    fs::hard_link(upper.join("d/f"), upper.join("d/g")).unwrap();
    let (name, create) = ("user.overlay.opaque", XattrFlags::empty());
    if rustix::fs::setxattr(upper.join("o"), name, b"y", create).is_err() {
        // tmpfs before Linux 6.6 has no `user.` attributes; then `e2e` covers this.
        return;
    }
    rustix::fs::setxattr(upper.join("d/f"), "user.note", b"n", create).unwrap();
    let pack = |missing: &[&str]| {
        let root = opened(&upper);
        let missing: Vec<String> = missing.iter().map(|name| (*name).to_owned()).collect();
        let mut bytes = Vec::new();
        let shift = rustix::process::geteuid().as_raw().min(rustix::process::getegid().as_raw());
        let packer = UpperPacker::new(root.as_fd(), Vec::new(), shift, &mut bytes, None);
        packer.pack(&missing, &[]).unwrap();
        let lines = listed(&bytes);
        let short =
            |line: &String| line.replace(" 0:0", "").replace(" 755", "").replace(" 644", "");
        lines.iter().map(short).collect::<Vec<_>>()
    };
    let all = pack(&["proc", "tmp", "run"]);
    let expected = [
        "d/",
        "d/f=1",
        "d/g==d/f",
        ".wh.gone=",
        "o/",
        "o/.wh..wh..opq=",
        "o/x=2",
        "run/",
        "run/y=3",
    ];
    assert_eq!(all, expected);
    assert!(pack(&[]).contains(&"tmp/".to_owned()), "a directory of the image was changed");
}

#[test]
fn places_that_the_sandbox_made_for_itself_are_no_part_of_a_layer() {
    let place = Place::new();
    let mut number = 0;
    let mut pack = |below: &[&str], upper: &[&str], change: &dyn Fn(&Path)| {
        number += 1;
        let below = place.tree(&format!("below{number}"), below);
        let upper = place.tree(&format!("upper{number}"), upper);
        change(&upper);
        let (root, mut bytes) = (opened(&upper), Vec::new());
        let packer = UpperPacker::new(root.as_fd(), vec![opened(&below)], 0, &mut bytes, None);
        let any = packer.pack(&[], &["/etc/hosts".to_owned(), "/etc/resolv.conf".to_owned()]);
        let lines = listed(&bytes);
        assert_eq!(any.unwrap(), !lines.is_empty());
        let path = |line: &String| line.split(' ').next().unwrap().to_owned();
        lines.iter().map(path).collect::<Vec<_>>()
    };
    let as_made = |_: &Path| {};
    let made = ["etc/hosts=", "etc/resolv.conf="];
    let none: [&str; 0] = [];
    assert_eq!(pack(&["bin/x=1"], &made, &as_made), none);
    assert_eq!(pack(&["etc/passwd=1"], &made, &as_made), none);
    assert_eq!(pack(&["etc->usr/etc", "usr/etc/"], &["usr/etc/hosts="], &as_made), none);
    // Only changes of the command are kept.
    let changed = ["etc/hosts=", "etc/resolv.conf=", "etc/motd="];
    assert_eq!(pack(&["etc/passwd=1"], &changed, &as_made), ["etc/", "etc/motd"]);
    assert_eq!(pack(&["bin/x=1"], &changed, &as_made), ["etc/", "etc/motd"]);
    let closed = |upper: &Path| mode(&upper.join("etc"), 0o700);
    assert_eq!(pack(&["etc/passwd=1"], &made, &closed), ["etc/"]);
    assert_eq!(pack(&["etc/hosts=1"], &["etc/hosts="], &as_made), ["etc/", "etc/hosts"]);
    assert_eq!(pack(&["bin/x=1"], &["etc/hosts=1"], &as_made), ["etc/", "etc/hosts"]);
    assert_eq!(pack(&["bin/x=1"], &["srv/hosts="], &as_made), ["srv/", "srv/hosts"]);
}
