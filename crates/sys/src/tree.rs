//! Removes untrusted directory trees of any depth, and names temporary ones.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A name for a temporary file or directory. It is unique in this process, and the pid at its end
/// tells whether its creator is alive.
pub fn temp_name(what: &str, name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{what}-{name}-{number}-{}", std::process::id())
}

/// A temporary directory that is removed on drop. Forget it once it was renamed.
#[derive(Debug)]
pub struct TempDir(pub PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = remove(&self.0);
    }
}

/// Removes a tree of any depth, including directories that its owner has no permission to enter.
/// One that does not exist is no error.
pub fn remove(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::open(path, flags, Mode::empty());
    let directory = match open() {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ACCESS) => {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
            open()?
        }
        opened => opened?,
    };
    clear(directory.as_fd())?;
    fs::remove_dir(path)
}

/// Removes everything in a directory and follows no link. A tree may be deeper than our stack or
/// our limit of descriptors allows, so directories two levels below are moved one level up before
/// they are removed.
pub fn clear(directory: BorrowedFd<'_>) -> io::Result<()> {
    let mut moved = 0;
    loop {
        let names = entries(directory)?;
        if names.is_empty() {
            return Ok(());
        }
        for (name, kind) in names {
            if kind != FileType::Directory {
                rustix::fs::unlinkat(directory, &name, AtFlags::empty())?;
                continue;
            }
            match rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR) {
                Ok(()) => continue,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            empty_subdirectory(directory, &name, &mut moved)?;
            rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR)?;
        }
    }
}

/// Removes the files of a subdirectory; its directories are renamed into `above`.
fn empty_subdirectory(above: BorrowedFd<'_>, name: &CString, moved: &mut u64) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(above, name, flags, Mode::empty());
    let directory = match open() {
        Err(Errno::ACCESS) => {
            // We own it, but its mode denies us.
            rustix::fs::chmodat(above, name, Mode::RWXU, AtFlags::empty())?;
            open()?
        }
        opened => opened?,
    };
    // Its content may need the same; if it is not ours, an error follows below.
    let _ = rustix::fs::fchmod(&directory, Mode::RWXU);
    for (name, kind) in entries(directory.as_fd())? {
        if kind != FileType::Directory {
            rustix::fs::unlinkat(&directory, &name, AtFlags::empty())?;
            continue;
        }
        let mut opened = false;
        loop {
            let temporary = format!(".removing-{moved}");
            *moved += 1;
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&directory, &name, above, &temporary, flags) {
                Ok(()) => break,
                Err(Errno::EXIST) => {}
                // Renaming a directory to another parent rewrites its `..` and needs write
                // permission.
                Err(Errno::ACCESS) if !opened => {
                    opened = true;
                    rustix::fs::chmodat(&directory, &name, Mode::RWXU, AtFlags::empty())?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<(CString, FileType)>> {
    let mut list = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            known => known,
        };
        list.push((name.to_owned(), kind));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_deeper_than_any_path_is_removed_and_links_are_not_followed() {
        let root = std::env::temp_dir().join(format!("msb-clear-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("tree")).unwrap();
        fs::write(root.join("kept"), "kept").unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let tree = rustix::fs::open(root.join("tree"), flags, Mode::empty()).unwrap();
        let mut at = tree.try_clone().unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "a-rather-long-name", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(root.join("kept"), &at, "link").unwrap();
            at = rustix::fs::openat(&at, "a-rather-long-name", flags, Mode::empty()).unwrap();
        }
        symlink(&root, root.join("tree/up")).unwrap();
        for (path, mode) in
            [("tree/shut/in/deep", 0), ("tree/shut/in", 0o100), ("tree/shut", 0o500)]
        {
            let path = root.join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("file"), "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::write(root.join("tree/.removing-0"), "in the way").unwrap();
        clear(tree.as_fd()).unwrap();
        assert_eq!(fs::read_dir(root.join("tree")).unwrap().count(), 0);
        assert_eq!(fs::read(root.join("kept")).unwrap(), b"kept");
        fs::remove_dir_all(&root).unwrap();
    }
}
