//! File operations, served by the guest inside the sandbox.
//!
//! Paths are bytes: a file name need not be UTF-8. A receiver checks the path of each [`Entry`]
//! from a guest before it touches a file; see [`Entry::is_safe`].

use msb_spec::UserRef;
use serde::{Deserialize, Serialize};

/// Request for one file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// Reads a file; answered with `Bytes` frames, the last one empty.
    Read {
        /// Path of the file inside.
        path: Vec<u8>,
        /// First byte to read, counted from 0.
        offset: u64,
        /// Most bytes to read; `None` reads to the end.
        length: Option<u64>,
    },
    /// Creates or replaces a file from the `Bytes` frames that follow, the last one empty.
    Write {
        /// Path of the file inside.
        path: Vec<u8>,
        /// Permission bits of a new file.
        mode: u32,
        /// Appends to an existing file.
        append: bool,
    },
    /// Lists the entries of a directory.
    List {
        /// Path of the directory inside.
        path: Vec<u8>,
    },
    /// Reads the metadata of a path.
    Stat {
        /// Path of the file or directory inside.
        path: Vec<u8>,
        /// Whether a symbolic link is followed.
        follow: bool,
    },
    /// Creates a directory. Fails if it exists, unless `parents`.
    Mkdir {
        /// Path of the new directory inside.
        path: Vec<u8>,
        /// Creates missing parents too, and accepts an existing directory.
        parents: bool,
    },
    /// Removes a file or an empty directory.
    Remove {
        /// Path of the file or directory inside.
        path: Vec<u8>,
        /// Removes a directory with its content, and accepts a missing path.
        recursive: bool,
    },
    /// Renames a file or directory, replacing an existing target.
    Rename {
        /// Current path of the file inside.
        from: Vec<u8>,
        /// New path of the file inside.
        to: Vec<u8>,
    },
    /// Copies a file or tree inside the sandbox.
    Copy {
        /// Path of the source inside.
        from: Vec<u8>,
        /// Path of the copy inside.
        to: Vec<u8>,
    },
    /// Creates a symbolic link, replacing an existing link or file.
    Symlink {
        /// Path of the link inside.
        path: Vec<u8>,
        /// Text of the link, which need not exist.
        target: Vec<u8>,
    },
    /// Changes owner, group or mode of a file or directory; a symbolic link is followed.
    Set {
        /// Path of the file or directory inside.
        path: Vec<u8>,
        /// New permission bits; `None` keeps them.
        mode: Option<u32>,
        /// New owner; `None` keeps it.
        owner: Option<UserRef>,
        /// New group, as the first part of the reference; `None` keeps it.
        group: Option<UserRef>,
    },
    /// Writes a file or tree: `Entry` and `Bytes` frames follow, an `Entry` of kind `End` last.
    Push {
        /// Path of the root of the tree. If it is a directory and `into` is given, the root goes
        /// below it by that name.
        path: Vec<u8>,
        /// Name of the root in case `path` is a directory.
        into: Option<Vec<u8>>,
    },
    /// Reads a file or tree as `Entry` and `Bytes` frames, an `Entry` of kind `End` last.
    Pull {
        /// Path inside; a symbolic link as the last component is followed.
        path: Vec<u8>,
    },
    /// Applies changes to a directory: `Change` frames follow, one of kind `End` last. A change
    /// that fails does not stop the others.
    Mirror {
        /// Path of the directory inside; a symbolic link to one is followed.
        path: Vec<u8>,
    },
    /// Resolves a path: absolute and without links. Missing components are kept as written, and a
    /// relative path starts at the user's home.
    Real {
        /// Path to resolve, which need not exist.
        path: Vec<u8>,
    },
}

/// One change to a mirrored directory. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Creates or replaces an entry. The `Bytes` of a file follow whatever its size says, the last
    /// frame empty.
    Put(Entry),
    /// Sets permission bits and modification time of an existing entry.
    Touch(Entry),
    /// Removes a file, a link or an empty directory. A missing path is no error.
    Remove {
        /// Path of the entry. Never the directory itself.
        path: Vec<u8>,
        /// Whether it is expected to be a directory; an entry of another kind stays.
        directory: bool,
    },
    /// Renames an entry, replacing an existing file.
    Rename {
        /// Current path of the entry.
        from: Vec<u8>,
        /// New path of the entry.
        to: Vec<u8>,
    },
    /// End of the changes; the answer follows.
    End,
}

impl Change {
    /// Whether each path stays below the directory that it is joined to: no `..`, no absolute path.
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
    /// Position of the change in the request, from 0.
    pub number: u32,
    /// Step and error number of the failure.
    pub failure: FileFailure,
}

/// Metadata of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// File name without directories.
    pub name: Vec<u8>,
    /// File, directory, link or other.
    pub kind: EntryKind,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    /// Size of the file in bytes.
    pub size: u64,
    /// Modification time in milliseconds since 1970.
    pub modified: i64,
    /// Creation time in milliseconds since 1970, if the file system stores it.
    pub created: Option<i64>,
    /// Owner, as a user id inside.
    pub uid: u32,
    /// Group, as a group id inside.
    pub gid: u32,
}

/// Kind of a file or directory entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file; in a copied tree its bytes follow.
    File,
    /// A directory; in a copied tree its entries follow.
    Directory,
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
    /// A device, socket or pipe: listed so that it can be reported, never copied.
    Other,
    /// Marks the end of a copied tree.
    End,
}

/// One entry of a copied tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path below the root of the copy; empty for the root itself.
    pub path: Vec<u8>,
    /// File, directory, link, other or end.
    pub kind: EntryKind,
    /// Permission bits of the entry.
    pub mode: u32,
    /// Bytes of a file that follow.
    pub size: u64,
    /// Modification time in milliseconds since 1970.
    pub modified: i64,
}

impl Entry {
    /// Whether the path stays below the root of the copy: no `..`, no absolute path.
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
    /// What the guest was doing, such as `open /etc/passwd`.
    pub doing: String,
    /// Error number of the kernel; 0 if the guest itself refused.
    pub errno: i32,
}

/// The guest's answer to a file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileReply {
    /// The file operation has succeeded.
    Done {
        /// Entries that were copied; 0 for other operations.
        entries: u64,
        /// Bytes that were copied; 0 for other operations.
        bytes: u64,
    },
    /// Metadata of the requested path.
    Meta(Meta),
    /// Some entries of a directory; `Done` follows the last.
    Entries(Vec<Meta>),
    /// The file operation has failed.
    Failed(FileFailure),
    /// All changes were tried.
    Mirrored {
        /// Changes that failed, in the order of the request.
        failed: Vec<FailedChange>,
    },
    /// The path of `Real`, resolved.
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
        // The directory itself can be created, but neither removed nor renamed.
        assert!(Change::Put(entry(b"")).is_safe());
        assert!(!Change::Remove { path: Vec::new(), directory: true }.is_safe());
    }
}
