//! What `cargo xtask dist` makes, as users get it: installed by `install.sh`, from the Debian package,
//! and its lists of crates.
//!
//! `MSB_DIST` names the directory; `cargo xtask test dist` makes it from the executable under test.

mod install;
mod lists;
mod package;

use std::path::PathBuf;

/// The directory with the files of the release.
fn release() -> PathBuf {
    let directory = std::env::var_os("MSB_DIST").expect("MSB_DIST names a directory");
    PathBuf::from(directory)
}

/// The one file with this suffix.
#[track_caller]
fn file(end: &str) -> PathBuf {
    let entries = std::fs::read_dir(release()).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let found: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{end}: {found:?}");
    found.into_iter().next().expect("one")
}

/// What `msb --version` says.
fn version() -> String {
    format!("msb {}", env!("CARGO_PKG_VERSION"))
}
