//! Decompresses a layer and discards it, for `cargo xtask bench`: a lower bound for the time of a
//! pull.

use flate2::bufread::MultiGzDecoder;
use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Read};

/// Same chunk size as in unpacking.
const CHUNK: usize = 256 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("no file given")?;
    let mut stream = MultiGzDecoder::new(BufReader::with_capacity(CHUNK, File::open(path)?));
    let mut chunk = vec![0; CHUNK];
    while stream.read(&mut chunk)? > 0 {}
    Ok(())
}
