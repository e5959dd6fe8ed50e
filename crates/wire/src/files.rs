//! File operations, served by the guest inside the sandbox.
//!
//! Paths are bytes: a file name need not be UTF-8. Whoever receives an [`Entry`] from a guest
//! checks its path before touching anything; see [`Entry::is_safe`].

use msb_spec::UserRef;
use serde::{Deserialize, Serialize};

/// One file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// Bytes of a file, answered with `Bytes` frames, an empty one last.
    Read {
        /// Which.
        path: Vec<u8>,
        /// From where.
        offset: u64,
        /// At most this many.
        length: Option<u64>,
    },
    /// Makes or replaces a file from `Bytes` frames that follow, an empty one last.
    Write {
        /// Which.
        path: Vec<u8>,
        /// Permissions of a new file.
        mode: u32,
        /// At the end of what is there.
        append: bool,
    },
    /// The entries of a directory.
    List {
        /// Which.
        path: Vec<u8>,
    },
    /// What a path is.
    Stat {
        /// Which.
        path: Vec<u8>,
        /// Whether a symbolic link is followed.
        follow: bool,
    },
    /// Makes a directory.
    Mkdir {
        /// Which.
        path: Vec<u8>,
        /// With its parents, and no complaint if it is there.
        parents: bool,
    },
    /// Removes a file or directory.
    Remove {
        /// Which.
        path: Vec<u8>,
        /// With all it holds, and no complaint if it is not there.
        recursive: bool,
    },
    /// Renames, replacing what is there.
    Rename {
        /// Which.
        from: Vec<u8>,
        /// To what.
        to: Vec<u8>,
    },
    /// Copies a file or tree inside the sandbox.
    Copy {
        /// Which.
        from: Vec<u8>,
        /// To where.
        to: Vec<u8>,
    },
    /// Makes a symbolic link, replacing a link or file that is there.
    Symlink {
        /// Where.
        path: Vec<u8>,
        /// What it says.
        target: Vec<u8>,
    },
    /// Changes whose a file or directory is and what its permissions are; a link is followed.
    Set {
        /// Which.
        path: Vec<u8>,
        /// Its permissions from now on.
        mode: Option<u32>,
        /// Its owner from now on.
        owner: Option<UserRef>,
        /// Its group from now on, in the place of a user.
        group: Option<UserRef>,
    },
    /// Takes a file or tree in: `Entry` and `Bytes` frames follow, an `Entry` of kind `End` last.
    Push {
        /// Where its root goes. If it is a directory and `into` is given, below it by that name.
        path: Vec<u8>,
        /// Name of the root for the case that `path` is a directory.
        into: Option<Vec<u8>>,
    },
    /// Gives a file or tree out as `Entry` and `Bytes` frames, an `Entry` of kind `End` last.
    Pull {
        /// Which; a symbolic link at its end is followed.
        path: Vec<u8>,
    },
    /// Makes a directory more like another: `Change` frames follow, one of kind `End` last. What
    /// fails does not keep the rest from being done.
    Mirror {
        /// Which; a symbolic link to one is followed.
        path: Vec<u8>,
    },
    /// Tell where a path leads: absolute and without links. What is not there is taken as it is
    /// written, and a relative path begins at the user's home.
    Real {
        /// Which.
        path: Vec<u8>,
    },
}

/// One change of a directory that mirrors another. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Makes or replaces an entry. Of a file the `Bytes` follow whatever its size says, an empty
    /// frame last.
    Put(Entry),
    /// Gives what is there other permissions and another time.
    Touch(Entry),
    /// Removes a file or link, or a directory if nothing is left in it. Gone already is fine.
    Remove {
        /// Which.
        path: Vec<u8>,
        /// Whether it is a directory; what has become something else stays.
        directory: bool,
    },
    /// Renames, replacing a file that is there.
    Rename {
        /// Which.
        from: Vec<u8>,
        /// To what.
        to: Vec<u8>,
    },
    /// There are no more; the answer follows.
    End,
}

impl Change {
    /// Whether every path stays below the directory, whatever it is joined to.
    pub fn is_safe(&self) -> bool {
        match self {
            Self::Put(entry) | Self::Touch(entry) => entry.is_safe(),
            Self::Remove { path, .. } => !path.is_empty() && is_safe(path),
            Self::Rename { from, to } => {
                [from, to].iter().all(|path| !path.is_empty() && is_safe(path))
            }
            Self::End => true,
        }
    }
}

/// A change that could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedChange {
    /// Its number, counted from 0 since the request.
    pub number: u32,
    /// Why.
    pub failure: FileFailure,
}

/// What a path is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Its name without directories.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Permissions.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// When it was changed, in milliseconds since 1970.
    pub modified: i64,
    /// When it was made, where its file system knows.
    pub created: Option<i64>,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What sort of thing an entry is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A file; in a copied tree its bytes follow.
    File,
    /// A directory; what it holds follows.
    Directory,
    /// A symbolic link, with what it says.
    Symlink(Vec<u8>),
    /// A device, socket or pipe; named so that it can be reported, never copied.
    Other,
    /// The end of a tree.
    End,
}

/// One entry of a tree that is copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path below the root of the copy; empty is the root itself.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Permissions.
    pub mode: u32,
    /// Bytes of a file that follow.
    pub size: u64,
    /// When it was changed, in milliseconds since 1970.
    pub modified: i64,
}

impl Entry {
    /// Whether the path stays below the root of the copy, whatever it is joined to.
    pub fn is_safe(&self) -> bool {
        self.path.is_empty() || is_safe(&self.path)
    }
}

fn is_safe(path: &[u8]) -> bool {
    !path.contains(&0)
        && path.len() <= 4095
        && path.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// Why a file operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFailure {
    /// What was being done.
    pub doing: String,
    /// What the kernel said; 0 if it was not the kernel.
    pub errno: i32,
}

/// The guest's answer to a file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileReply {
    /// It is done; how many entries and bytes a copy had.
    Done {
        /// Entries.
        entries: u64,
        /// Bytes.
        bytes: u64,
    },
    /// What a path is.
    Meta(Meta),
    /// Some entries of a directory; `Done` follows the last.
    Entries(Vec<Meta>),
    /// It failed.
    Failed(FileFailure),
    /// The changes are made, but for some.
    Mirrored {
        /// Those that failed, in order.
        failed: Vec<FailedChange>,
    },
    /// Where a path leads.
    Path(Vec<u8>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_tree_are_not_safe() {
        let entry = |path: &[u8]| Entry {
            path: path.to_vec(),
            kind: EntryKind::File,
            mode: 0,
            size: 0,
            modified: 0,
        };
        for good in [&b""[..], b"a", b"a/b", b"...", b"a..b/\xff"] {
            assert!(entry(good).is_safe(), "{good:?}");
        }
        for bad in [&b"/a"[..], b"..", b"a/../b", b"a//b", b"./a", b"a/", b"a\0b"] {
            assert!(!entry(bad).is_safe(), "{bad:?}");
            assert!(!Change::Touch(entry(bad)).is_safe(), "{bad:?}");
            assert!(!Change::Remove { path: bad.to_vec(), directory: true }.is_safe(), "{bad:?}");
            assert!(!Change::Rename { from: b"a".to_vec(), to: bad.to_vec() }.is_safe());
            assert!(!Change::Rename { from: bad.to_vec(), to: b"a".to_vec() }.is_safe());
        }
        // The directory itself can be made, but neither removed nor renamed.
        assert!(Change::Put(entry(b"")).is_safe());
        assert!(!Change::Remove { path: Vec::new(), directory: true }.is_safe());
    }
}
