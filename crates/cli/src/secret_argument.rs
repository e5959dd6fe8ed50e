//! Secrets that a flag asks for: in a file or on stdin, never in the flag itself.
//!
//! Every user of a machine may read `/proc/PID/cmdline`, and shells write down what is typed.

use msb_spec::{Error, Result};
use std::fs::File;
use std::io::Read;

/// A key of any length that makes sense, and no endless file.
const LONGEST: u64 = 4096;

/// Reads the secret that a flag means: `@FILE`, or `-` where stdin is free for it.
pub(crate) fn read(flag: &str, text: &str, variable: &str, has_stdin: bool) -> Result<String> {
    let about = |error| Error::host(format!("cannot read the secret of `{flag}`"), error);
    match text.strip_prefix('@') {
        Some(path) if !path.is_empty() => limited(File::open(path).map_err(about)?, flag),
        None if text == "-" && has_stdin => limited(std::io::stdin().lock(), flag),
        _ => {
            let or = if has_stdin { ", `-` reads it from stdin" } else { "" };
            // The text itself is not repeated: it is what was to be kept.
            Err(Error::invalid(format!("`{flag}` takes no secret on the command line")).hint(
                format!("`{flag} @FILE` reads it from a file{or}, and {variable} may hold it"),
            ))
        }
    }
}

fn limited(from: impl Read, flag: &str) -> Result<String> {
    let mut text = String::new();
    let read = from.take(LONGEST + 1).read_to_string(&mut text);
    read.map_err(|error| Error::host(format!("cannot read the secret of `{flag}`"), error))?;
    if text.len() as u64 > LONGEST {
        return Err(Error::invalid(format!("the secret of `{flag}` is too long")));
    }
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}
