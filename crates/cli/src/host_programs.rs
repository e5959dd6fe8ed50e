//! Programs of this host that a sandbox does not see.

use msb_spec::{Error, ImageRef, Kind, env};
use std::path::PathBuf;

/// Adds to an error about a missing command that it is in the user's home directory, which the
/// `host` image does not contain.
pub(crate) fn explain_missing(error: Error, program: Option<&str>, image: &ImageRef) -> Error {
    if error.kind() != Kind::CommandNotFound || *image != ImageRef::Host {
        return error;
    }
    let home = std::env::var_os(env::USER_HOME).map(PathBuf::from);
    let found = program.filter(|program| !program.contains('/')).and_then(on_path);
    match (found, home) {
        (Some(path), Some(home)) if home.is_absolute() && path.starts_with(&home) => {
            let path = path.display();
            error.hint(format!(
                "it is in your home on this host, which sandboxes do not see: `{path}`; \
                 `-v DIR:DIR:ro` shows a directory, or use an image that has it"
            ))
        }
        _ => error,
    }
}

/// Adds to an error about an image that a program of this host has its name.
pub(crate) fn explain_image(error: Error, image: Option<&str>) -> Error {
    let Some(program) = image.filter(|image| !image.contains(['/', ':', '@'])) else {
        return error;
    };
    if error.kind() == Kind::Invalid || on_path(program).is_none() {
        return error;
    }
    let ours = format!("`msb run -- {program} …` runs the program of this host");
    let hint = error.advice().map_or_else(|| ours.clone(), |hint| format!("{hint}; {ours}"));
    error.hint(hint)
}

/// Where a program is on this host.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|directory| directory.join(program));
    found.into_iter().find(|path| path.is_absolute() && path.is_file())
}
