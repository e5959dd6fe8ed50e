//! Complete reviews of small trees. The upper directory is written in the format of overlayfs,
//! which needs no privilege; `e2e/cli/workspace` uses a real overlay.

mod apply;
mod compare;
mod crash;

use crate::Workspace;
use msb_api::{ApplyReport, Change, Depth, Selection};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A workspace for a test; removed when dropped.
pub(super) struct ReviewFixture {
    scratch: PathBuf,
    pub(super) workspace: Workspace,
}

impl ReviewFixture {
    /// A workspace with these files on the host, which the sandbox has seen.
    pub(super) fn with(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("msb-review-{}-{number}", std::process::id());
        let scratch = std::env::temp_dir().join(name);
        let workspace = Workspace {
            host: scratch.join("host"),
            changes: scratch.join("changes"),
            notes: scratch.join("notes"),
        };
        fs::create_dir_all(workspace.changes.join("upper")).unwrap();
        fs::create_dir(&workspace.host).unwrap();
        let fixture = Self { scratch, workspace };
        for (path, text) in files {
            fixture.host(path, text);
        }
        fixture.workspace.begin().unwrap();
        fixture
    }

    /// Writes a file on the host.
    pub(super) fn host(&self, path: &str, text: &str) {
        write(&self.workspace.host.join(path), text);
    }

    /// Writes a file in the sandbox.
    pub(super) fn inside(&self, path: &str, text: &str) {
        write(&self.upper().join(path), text);
    }

    /// Writes to a file of the host in the sandbox, as overlayfs copies it up.
    pub(super) fn copied(&self, path: &str, text: &str) {
        self.inside(path, text);
        let path = self.upper().join(path);
        rustix::fs::setxattr(&path, "user.overlay.origin", b"", XattrFlags::empty()).unwrap();
    }

    pub(super) fn upper(&self) -> PathBuf {
        self.workspace.changes.join("upper")
    }

    /// Deletes a path in the sandbox.
    pub(super) fn deleted(&self, path: &str) {
        let path = self.upper().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    /// Replaces a directory in the sandbox by an opaque one.
    pub(super) fn opaque(&self, path: &str) {
        let path = self.upper().join(path);
        fs::create_dir_all(&path).unwrap();
        rustix::fs::setxattr(&path, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    }

    pub(super) fn diff(&self) -> Vec<Change> {
        self.workspace.diff(&[], Depth::default()).unwrap()
    }

    /// Each change as kind and path, with conflict, ignored and risk.
    pub(super) fn summary(&self) -> Vec<String> {
        let tell = |change: Change| {
            let conflict = change.conflict.map_or("", |_| " conflict");
            let ignored = if change.ignored { " ignored" } else { "" };
            let risk = change.risk.map_or("", |_| " risk");
            let from = change.renamed_from.map_or(String::new(), |from| format!(" from {from}"));
            format!("{:?} {}{from}{conflict}{ignored}{risk}", change.what, change.path)
                .to_lowercase()
        };
        self.diff().into_iter().map(tell).collect()
    }

    /// The tree of the host: each path with kind, mode and content.
    pub(super) fn tree(&self) -> Vec<String> {
        list_tree(&self.workspace.host)
    }

    pub(super) fn apply(&self, include: &[&str]) -> msb_spec::Result<ApplyReport> {
        let include = include.iter().map(|text| (*text).to_owned()).collect();
        self.workspace.apply(&Selection { include, ..Selection::default() }, false)
    }
}

impl Drop for ReviewFixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match text.strip_prefix("-> ") {
        Some(target) => symlink(target, path).unwrap(),
        None => {
            fs::write(path, text).unwrap();
            let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
    }
}

pub(super) fn list_tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let mode = meta.mode() & 0o7777;
        if meta.is_symlink() {
            found.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
        } else if meta.is_dir() {
            if path != root {
                found.push(format!("{name}/ {mode:o}"));
            }
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.push(format!("{name} {mode:o} {:?}", fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}
