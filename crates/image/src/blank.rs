//! An empty disk, for what a sandbox in a microVM writes.

use msb_ext4::{Identity, LARGEST, SMALLEST};
use msb_spec::{Bytes, Error, Result, Stage};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Makes an empty ext4 disk with a journal, a sparse file that must not be there yet. Nothing is
/// synced: after another boot a disk that nobody has written may be made again.
pub fn blank_disk(path: &Path, size: u64) -> Result<()> {
    make(path, size).map_err(|error| error.at(Stage::Image))
}

fn make(path: &Path, size: u64) -> Result<()> {
    if !(SMALLEST..=LARGEST).contains(&size) {
        return Err(Error::invalid(format!("not a size of a disk: `{}`", Bytes(size)))
            .hint("a disk has at least 8M and at most 15T"));
    }
    let failed = |error| Error::host(format!("cannot make the disk `{}`", path.display()), error);
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(failed)?;
    let mut uuid = [0; 16];
    let random = rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty());
    let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // What says that a UUID is a random one.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let identity = Identity { uuid, made: u32::try_from(made).unwrap_or(u32::MAX) };
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
