//! Removing what others have made, however deep it is.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Removes everything in a directory and follows nothing. A tree may be deeper than our stack and
/// our descriptors would last for, so what lies two steps below is moved one step up first.
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
            empty(directory, &name, &mut moved)?;
            rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR)?;
        }
    }
}

/// Removes what a directory below holds; its own directories move up.
fn empty(above: BorrowedFd<'_>, name: &CString, moved: &mut u64) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(above, name, flags, Mode::empty());
    let directory = match open() {
        Err(Errno::ACCESS) => {
            // Its owner, who we are, may not enter it.
            rustix::fs::chmodat(above, name, Mode::RWXU, AtFlags::empty())?;
            open()?
        }
        opened => opened?,
    };
    // So may it be with what it holds, and an error below tells if that is not ours.
    let _ = rustix::fs::fchmod(&directory, Mode::RWXU);
    for (name, kind) in entries(directory.as_fd())? {
        if kind != FileType::Directory {
            rustix::fs::unlinkat(&directory, &name, AtFlags::empty())?;
            continue;
        }
        let mut opened = false;
        loop {
            let place = format!(".removing-{moved}");
            *moved += 1;
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&directory, &name, above, &place, flags) {
                Ok(()) => break,
                Err(Errno::EXIST) => {}
                // What moves has a new parent written into it.
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
    let mut found = Vec::new();
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
        found.push((name.to_owned(), kind));
    }
    Ok(found)
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
