//! What files hold: compared and hashed in pieces, whatever their size.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};

/// One piece of a file.
const PIECE: usize = 128 << 10;

/// Whether two files hold the same.
pub(crate) fn same(mut one: &File, mut other: &File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        let read = fill(&mut one, &mut left)?;
        if read != fill(&mut other, &mut right)? || left[..read] != right[..read] {
            return Ok(false);
        }
        if read < PIECE {
            return Ok(true);
        }
    }
}

/// The digest of what a file holds from here on, as `sha256:…` is written.
pub(crate) fn digest(mut file: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        let read = fill(&mut file, &mut piece)?;
        hash.update(&piece[..read]);
        if read < PIECE {
            return Ok(hexadecimal(&hash.finalize()));
        }
    }
}

/// Copies a file, and gives the digest and the number of the bytes that were really copied.
pub(crate) fn copy(mut from: impl Read, mut to: impl io::Write) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut count = 0;
    loop {
        let read = fill(&mut from, &mut piece)?;
        hash.update(&piece[..read]);
        to.write_all(&piece[..read])?;
        count += read as u64;
        if read < PIECE {
            return Ok((hexadecimal(&hash.finalize()), count));
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads until the piece is full or the file ends.
fn fill(file: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match file.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A text as it is compared line by line: none if it is longer than that, or holds what texts do
/// not.
pub(crate) fn text(file: &File, longest: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(longest + 1).read_to_end(&mut bytes)?;
    let is_text = bytes.len() as u64 <= longest && !bytes.contains(&0);
    Ok(is_text.then_some(bytes))
}
