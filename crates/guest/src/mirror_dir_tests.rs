use super::*;
use msb_wire::{encode, header};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-mirror-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn entry(path: &str, kind: EntryKind, mode: u32) -> Entry {
    Entry { path: path.into(), kind, mode, size: 0, modified: 1_000 }
}

fn file(path: &str, content: &str) -> Vec<u8> {
    let mut frames = encode(FrameKind::Change, &Change::Put(entry(path, EntryKind::File, 0o640)));
    for part in [content.as_bytes(), b""] {
        frames.extend_from_slice(&header(FrameKind::Bytes, part.len()));
        frames.extend_from_slice(part);
        if part.is_empty() {
            break;
        }
    }
    frames
}

fn change(change: &Change) -> Vec<u8> {
    encode(FrameKind::Change, change)
}

fn remove_of(path: &str, directory: bool) -> Vec<u8> {
    change(&Change::Remove { path: path.into(), directory })
}

/// Applies the changes. Returns the numbers of those that failed.
fn mirrored(root: &Path, changes: &[Vec<u8>]) -> Vec<u32> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut frames = changes.concat();
    frames.extend(change(&Change::End));
    let sending = std::thread::spawn(move || ours.write_all(&frames).map(|()| ours));
    let mut stream = FrameStream::new(theirs.into(), usize::MAX);
    let Ok(failed) = apply_changes(&mut stream, root) else { panic!("the connection failed") };
    drop(sending.join().unwrap().unwrap());
    failed.iter().map(|failed| failed.number).collect()
}

#[test]
fn one_change_that_fails_does_not_hold_up_the_rest() {
    let scratch = Scratch::new("fails");
    let root = scratch.0.join("made/for/it");
    let changes = [
        change(&Change::Put(entry("", EntryKind::Directory, 0o750))),
        file("a", "one"),
        file("a/below-a-file", "lost"),
        change(&Change::Put(entry("d", EntryKind::Directory, 0o700))),
        file("d/b", "two"),
        change(&Change::Rename { from: "none".into(), to: "c".into() }),
        change(&Change::Touch(entry("d/b", EntryKind::Directory, 0o700))),
        change(&Change::Put(entry("link", EntryKind::Symlink(b"d/b".to_vec()), 0o777))),
    ];
    assert_eq!(mirrored(&root, &changes), [2, 5, 6]);
    assert_eq!(fs::read_to_string(root.join("link")).unwrap(), "two");
    let meta = fs::metadata(root.join("a")).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.mtime()), (0o640, 1));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 3, "no draft is left");
}

#[test]
fn replaced_symlinks_are_not_followed() {
    let scratch = Scratch::new("links");
    let root = scratch.0.join("root");
    fs::create_dir(&root).unwrap();
    fs::write(scratch.0.join("other"), "untouched").unwrap();
    symlink("../other", root.join("a")).unwrap();
    symlink("..", root.join("d")).unwrap();
    let directory = change(&Change::Put(entry("d", EntryKind::Directory, 0o700)));
    let touch = change(&Change::Touch(entry("l", EntryKind::File, 0o600)));
    symlink("../other", root.join("l")).unwrap();
    let before = fs::metadata(scratch.0.join("other")).unwrap().permissions();
    assert_eq!(mirrored(&root, &[file("a", "new"), directory, file("d/x", "in"), touch]), [3]);
    assert_eq!(fs::read_to_string(scratch.0.join("other")).unwrap(), "untouched");
    assert_eq!(fs::metadata(scratch.0.join("other")).unwrap().permissions(), before);
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "new");
    assert!(root.join("d/x").exists() && !scratch.0.join("x").exists());
}

#[test]
fn only_what_is_named_is_removed() {
    let scratch = Scratch::new("removes");
    let root = &scratch.0;
    fs::create_dir_all(root.join("d/own")).unwrap();
    fs::write(root.join("d/sent"), "").unwrap();
    fs::create_dir(root.join("became-a-directory")).unwrap();
    fs::write(root.join("became-a-file"), "").unwrap();
    let changes = [
        remove_of("d/sent", false),
        remove_of("d", true),
        remove_of("became-a-directory", false),
        remove_of("became-a-file", true),
        remove_of("never/was", false),
        remove_of("became-a-file/below", false),
        // A directory with other files is not replaced, an empty one is.
        file("d", ""),
        file("became-a-directory", "file"),
    ];
    assert_eq!(mirrored(root, &changes), [6]);
    assert!(root.join("d/own").is_dir() && !root.join("d/sent").exists());
    assert!(root.join("became-a-directory").is_file() && root.join("became-a-file").is_file());
}

#[test]
fn a_connection_that_breaks_off_leaves_what_was_there() {
    let scratch = Scratch::new("breaks");
    fs::write(scratch.0.join("a"), "old").unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let half = file("a", "half of it");
    ours.write_all(&half[..half.len() - 5]).unwrap();
    drop(ours);
    assert!(apply_changes(&mut FrameStream::new(theirs.into(), usize::MAX), &scratch.0).is_err());
    assert_eq!(fs::read_to_string(scratch.0.join("a")).unwrap(), "old");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}
