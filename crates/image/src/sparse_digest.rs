//! Digest of a sparse file, such as a disk image, without reading its holes.

use msb_spec::Digest;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

const BLOCK: u64 = 64 << 10;

/// SHA-256 of the size, and of the offset and content of each 64 KiB block that is not all zero.
/// Does not depend on where the holes are.
pub fn digest_of_sparse(file: &File) -> io::Result<Digest> {
    let size = file.metadata()?.len();
    let mut hash = Sha256::new();
    hash.update(size.to_le_bytes());
    let mut buffer = vec![0; BLOCK as usize];
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole follows.
            Err(Errno::NXIO) => break,
            // The file system does not report holes.
            Err(_) => at,
        };
        at = data - data % BLOCK;
        let block = &mut buffer[..(size - at).min(BLOCK) as usize];
        file.read_exact_at(block, at)?;
        if block.iter().any(|byte| *byte != 0) {
            hash.update(at.to_le_bytes());
            hash.update(&*block);
        }
        at += BLOCK;
    }
    Ok(Digest::of_bytes(hash.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        File::from(rustix::fs::memfd_create("disk", flags).expect("memory"))
    }

    #[test]
    fn holes_are_zeros_and_everything_else_counts() {
        let (sparse, full) = (file(), file());
        let size = 5 * BLOCK + 17;
        sparse.set_len(size).expect("memory");
        full.write_all_at(&vec![0; size as usize], 0).expect("memory");
        let same = || {
            let digests = [&sparse, &full].map(|file| digest_of_sparse(file).expect("a digest"));
            digests[0] == digests[1]
        };
        assert!(same());
        for at in [0, BLOCK + 5, 3 * BLOCK - 1, size - 1] {
            sparse.write_all_at(b"x", at).expect("memory");
            assert!(!same(), "{at}");
            full.write_all_at(b"x", at).expect("memory");
            assert!(same(), "{at}");
        }
        sparse.set_len(size + 1).expect("memory");
        assert!(!same());
    }
}
