//! How a client is told to start this program.

use super::clients::{Client, Scope};
use msb_spec::{Error, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where programs lie that everything on a machine finds.
const EVERYWHERE: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// `msb` where the client finds this very program by that name, and otherwise its path. A desktop
/// starts programs without what a shell adds to PATH; a project is shared with users that have
/// theirs elsewhere.
pub(super) fn of(client: Client, scope: Scope) -> Result<String> {
    let own = std::env::current_exe()
        .map_err(|error| Error::host("cannot find this program's own file", error))?;
    let anywhere = scope == Scope::Project || !client.is_of_desktop();
    let first = first_on_path(std::env::var_os("PATH").unwrap_or_default().as_ref());
    let known = |directory: &Path| anywhere || EVERYWHERE.iter().any(|d| directory == Path::new(d));
    if let Some(found) = first
        && is_same(&found, &own)
        && found.parent().is_some_and(known)
    {
        return Ok("msb".to_owned());
    }
    own.into_os_string().into_string().map_err(|path| {
        let path = path.to_string_lossy().into_owned();
        Error::unsupported(format!("this program's path is not text: `{}`", msb_spec::shown(&path)))
            .hint("settings are JSON, which cannot hold it; move the program")
    })
}

/// What a shell would run for `msb`.
fn first_on_path(path: &std::ffi::OsStr) -> Option<PathBuf> {
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    let mut files = directories.map(|directory| directory.join("msb"));
    files.find(|file| file.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0))
}

fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    id(one).is_some_and(|one| Some(one) == id(other))
}
