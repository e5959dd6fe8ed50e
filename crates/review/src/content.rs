//! Compares, hashes and copies file content in chunks, without reading holes.

use msb_spec::encoding::hex;
use msb_sys::sparse::{Budget, OverBudget, Run, SparseWriter, run_at};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Chunk size in bytes.
const CHUNK: usize = 128 << 10;

/// Bytes of holes that one review hashes: some seconds of work. A sandbox can create holes of any
/// size at no cost.
pub(crate) const HOLE_HASH_LIMIT: u64 = 4 << 30;

/// Whether two files have the same content. Holes in both are not read.
pub(crate) fn same(one: &File, other: &File) -> io::Result<bool> {
    let size = one.metadata()?.len();
    if size != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    while at < size {
        let runs = (run_at(one, at, size)?, run_at(other, at, size)?);
        let end = runs.0.end().min(runs.1.end());
        if let (Run::Hole { .. }, Run::Hole { .. }) = runs {
            at = end;
            continue;
        }
        while at < end {
            let most = (end - at).min(CHUNK as u64) as usize;
            let read = fill(one, at, &mut left[..most])?;
            // A file that is truncated meanwhile is different.
            if read != most
                || read != fill(other, at, &mut right[..most])?
                || left[..read] != right[..read]
            {
                return Ok(false);
            }
            at += read as u64;
        }
    }
    Ok(true)
}

/// SHA-256 of a file in hexadecimal. Holes count against `holes`; none if too few are left.
pub(crate) fn digest(file: &File, holes: &mut u64) -> io::Result<Option<String>> {
    let mut hash = Sha256::new();
    let mut whole = true;
    read(file, |chunk| {
        match chunk {
            FileRun::Bytes(bytes) => hash.update(bytes),
            FileRun::Hole(length) => match holes.checked_sub(length) {
                Some(left) => {
                    *holes = left;
                    add_zeros(&mut hash, length);
                }
                None => {
                    whole = false;
                    return Ok(false);
                }
            },
        }
        Ok(true)
    })?;
    Ok(whole.then(|| hex(hash.finalize())))
}

/// Copies a file with its holes into an empty one. Returns the SHA-256, if `hashed`, and the size.
pub(crate) fn copy(
    from: &File,
    to: &File,
    budget: &mut Budget,
    hashed: bool,
) -> io::Result<(Option<String>, u64)> {
    let mut hash = hashed.then(Sha256::new);
    let mut holes = HOLE_HASH_LIMIT;
    let mut writer = SparseWriter::new(to, budget);
    let length = read(from, |chunk| {
        match chunk {
            FileRun::Bytes(bytes) => {
                writer.data(bytes)?;
                if let Some(hash) = &mut hash {
                    hash.update(bytes);
                }
            }
            FileRun::Hole(length) => {
                writer.hole(length)?;
                if let Some(hash) = &mut hash {
                    holes = holes.checked_sub(length).ok_or(OverBudget::Holes)?;
                    add_zeros(hash, length);
                }
            }
        }
        Ok(true)
    })?;
    // A file that has grown reports its new size, so that the caller sees a change.
    let count = writer.finish()?.max(length);
    Ok((hash.map(|hash| hex(hash.finalize())), count))
}

/// A run of data or a hole.
enum FileRun<'a> {
    Bytes(&'a [u8]),
    Hole(u64),
}

/// Reads a file up to its current size, until `take` returns false. Returns the size at the end. A
/// file that grows while it is read does not extend the loop.
fn read(file: &File, mut take: impl FnMut(FileRun<'_>) -> io::Result<bool>) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let size = file.metadata()?.len();
    let mut at = 0;
    while at < size {
        let run = run_at(file, at, size)?;
        match run {
            Run::Hole { end } => {
                if !take(FileRun::Hole(end - at))? {
                    break;
                }
                at = end;
            }
            Run::Data { end } => {
                let most = (end - at).min(CHUNK as u64) as usize;
                let read = fill(file, at, &mut chunk[..most])?;
                if read == 0 || !take(FileRun::Bytes(&chunk[..read]))? {
                    break;
                }
                at += read as u64;
            }
        }
    }
    Ok(file.metadata()?.len())
}

fn add_zeros(hash: &mut Sha256, length: u64) {
    let zeros = vec![0; CHUNK];
    let mut left = length;
    while left > 0 {
        let some = left.min(CHUNK as u64);
        hash.update(&zeros[..some as usize]);
        left -= some;
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, at: u64, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match file.read_at(&mut chunk[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a file for a line diff; none if it is too long or contains NUL bytes.
pub(crate) fn text(file: &File, longest: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(longest + 1).read_to_end(&mut bytes)?;
    let is_text = bytes.len() as u64 <= longest && !bytes.contains(&0);
    Ok(is_text.then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn file() -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        File::from(rustix::fs::memfd_create("content", flags).unwrap())
    }

    #[test]
    fn a_digest_is_that_of_all_bytes_with_those_of_holes() {
        let (sparse, full) = (file(), file());
        let size = 3 << 20;
        sparse.write_all_at(b"x", 1 << 20).unwrap();
        sparse.set_len(size).unwrap();
        let mut bytes = vec![0; size as usize];
        bytes[1 << 20] = b'x';
        full.write_all_at(&bytes, 0).unwrap();
        let of = |file: &File, mut holes: u64| digest(file, &mut holes).unwrap();
        let expected = hex(Sha256::digest(&bytes));
        assert_eq!(of(&full, 0).as_ref(), Some(&expected));
        assert_eq!(of(&sparse, size).as_ref(), Some(&expected));
        assert_eq!(of(&sparse, 1 << 20), None);
        assert!(same(&sparse, &full).unwrap());
        full.write_all_at(b"y", 2 << 20).unwrap();
        assert!(!same(&sparse, &full).unwrap());
        let (copied, mut budget) = (file(), Budget::default());
        let told = copy(&sparse, &copied, &mut budget, true).unwrap();
        assert_eq!(told, (Some(expected), size));
        assert!(same(&sparse, &copied).unwrap());
    }

    #[test]
    fn a_file_of_holes_costs_nothing() {
        let (one, other, copied) = (file(), file(), file());
        for file in [&one, &other] {
            file.set_len(1 << 40).unwrap();
        }
        assert!(same(&one, &other).unwrap());
        assert_eq!(digest(&one, &mut HOLE_HASH_LIMIT.clone()).unwrap(), None);
        let mut budget = Budget::default();
        assert_eq!(copy(&one, &copied, &mut budget, false).unwrap(), (None, 1 << 40));
        assert_eq!(copied.metadata().unwrap().blocks(), 0);
        let refused = copy(&one, &file(), &mut Budget::default(), true).unwrap_err();
        assert_eq!(OverBudget::of(&refused), Some(OverBudget::Holes));
    }
}
