//! The sandbox that `diff`, `apply` and `discard` are about: by name, or by its workspace.

use crate::output;
use crate::target::Target;
use msb_api::Api;
use msb_spec::{Error, Kind, Name, Result};
use std::path::{Path, PathBuf};

/// The sandbox, and the paths that were typed. A first word that cannot be a name, such as `./src`,
/// is a path already. Without a name it is the sandbox whose workspace is the current directory or
/// above it.
pub(crate) fn find(
    target: &Target,
    api: &dyn Api,
    name: Option<&str>,
    mut paths: Vec<PathBuf>,
    quiet: bool,
) -> Result<(Name, Vec<PathBuf>)> {
    match name {
        Some(path) if is_path(path) => paths.insert(0, path.into()),
        Some(name) => return Ok((Name::parse(name)?, paths)),
        None => {}
    }
    if let Target::Remote(_) = target {
        return Err(Error::invalid("no sandbox was named")
            .hint("workspaces of a server are on its machine; `msb ls` lists the sandboxes"));
    }
    let here = std::env::current_dir().and_then(|path| path.canonicalize());
    let here = here.map_err(|error| Error::host("cannot find this directory", error))?;
    let mut found = of_directory(api, &here)?;
    match (found.pop(), found.is_empty()) {
        (Some(name), true) => {
            if !quiet {
                output::note(format!("this is the workspace of `{name}`"));
            }
            // Without a name, paths are those of this directory and not of the whole workspace.
            let typed = paths.into_iter().map(|path| std::path::absolute(here.join(path)));
            let paths = typed.collect::<std::io::Result<_>>();
            Ok((name, paths.map_err(|error| Error::host("cannot find a path", error))?))
        }
        (Some(last), false) => {
            let names: Vec<String> = found.iter().chain([&last]).map(Name::to_string).collect();
            let message =
                format!("several sandboxes have this workspace: `{}`", names.join("`, `"));
            Err(Error::invalid(message).hint(format!("name one, as in `msb diff {last}`")))
        }
        (None, _) => {
            let message = format!("no sandbox has this workspace: `{}`", here.display());
            Err(Error::new(Kind::NotFound, message)
                .hint("name a sandbox; `msb run --workspace .` makes one with changes to review"))
        }
    }
}

/// Whether a word cannot be the name of a sandbox, so that it is a path.
pub(crate) fn is_path(word: &str) -> bool {
    word.contains('/') || word.starts_with('.')
}

/// The sandboxes whose workspace contains a directory of this host.
fn of_directory(api: &dyn Api, directory: &Path) -> Result<Vec<Name>> {
    let mut found = Vec::new();
    for sandbox in api.sandbox_list()? {
        let workspace = match api.sandbox_inspect(&sandbox.name) {
            Ok(inspection) => inspection.plan.workspace,
            // It was removed meanwhile.
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        if workspace.is_some_and(|workspace| directory.starts_with(workspace.host)) {
            found.push(sandbox.name);
        }
    }
    Ok(found)
}
