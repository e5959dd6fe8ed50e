//! Creates the empty ext4 disk that a microVM writes to.

use msb_ext4::{DiskIdentity, MAX_SIZE, MIN_SIZE};
use msb_spec::{Bytes, Error, Result, Stage};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Creates a sparse file with an empty ext4 and a journal. Fails if the file exists. Nothing is
/// synced: a disk that was never written can be created again after a power loss.
pub fn blank_disk(path: &Path, size: u64) -> Result<()> {
    make(path, size).map_err(|error| error.at(Stage::Image))
}

fn make(path: &Path, size: u64) -> Result<()> {
    if !(MIN_SIZE..=MAX_SIZE).contains(&size) {
        return Err(Error::invalid(format!("not a valid disk size: `{}`", Bytes(size)))
            .hint("a disk has at least 8M and at most 15T"));
    }
    let failed = |error| Error::host(format!("cannot create the disk `{}`", path.display()), error);
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(failed)?;
    let mut uuid = [0; 16];
    let random = rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty());
    let created = msb_spec::clock::now_seconds();
    // Version 4 (random) and variant bits of a UUID.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let identity = DiskIdentity { uuid, created: u32::try_from(created).unwrap_or(u32::MAX) };
    let formatted =
        random.map_err(std::io::Error::from).and_then(|_| msb_ext4::format(&file, size, identity));
    formatted.map_err(|error| {
        let _ = fs::remove_file(path);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Kind;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_disk_is_private_sparse_and_never_overwritten() {
        let path = std::env::temp_dir().join(format!("msb-blank-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        blank_disk(&path, 10 << 30).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.permissions().mode() & 0o777), (10 << 30, 0o600));
        assert!(found.blocks() * 512 < 1 << 20);
        assert_eq!(blank_disk(&path, 1 << 30).unwrap_err().kind(), Kind::Host);
        assert_eq!(fs::metadata(&path).unwrap().len(), 10 << 30);
        fs::remove_file(&path).unwrap();
        assert_eq!(blank_disk(&path, 4096).unwrap_err().kind(), Kind::Invalid);
        assert!(!path.exists());
    }
}
