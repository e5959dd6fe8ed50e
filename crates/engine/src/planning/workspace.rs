//! Checks the directory of a workspace.

use crate::store::Home;
use msb_spec::{Error, Name, PlannedWorkspace, Result, Spec, Stage, state};
use std::fs;
use std::path::{Path, PathBuf};

/// The planned workspace, with a canonical host path; `None` if the Spec has none.
pub(super) fn workspace(home: &Home, spec: &Spec, name: &Name) -> Result<Option<PlannedWorkspace>> {
    let Some(asked) = &spec.workspace else { return Ok(None) };
    let shown = asked.host.display();
    let about = |error| Error::host(format!("cannot use the workspace `{shown}`"), error);
    let host = fs::canonicalize(&asked.host).map_err(|error| about(error).at(Stage::Plan))?;
    if !host.is_dir() {
        return Err(Error::invalid(format!("a workspace is a directory: `{shown}`"))
            .hint("`-v ./file:/there` shows a single file")
            .at(Stage::Plan));
    }
    check(&host, home).map_err(|error| error.at(Stage::Plan))?;
    let changes = home.directory(name).join(state::WORKSPACE);
    Ok(Some(PlannedWorkspace { host, guest: asked.guest.to_string(), changes }))
}

/// Refuses `/`, the home directory and the state directory as a workspace: they would show keys and
/// logins to the sandbox, and the state directory would contain its own changes.
fn check(host: &Path, home: &Home) -> Result<()> {
    let state = fs::canonicalize(home.path()).unwrap_or_else(|_| home.path().to_owned());
    let shown = host.display();
    let refuse = |why: String| {
        Err(Error::invalid(format!("will not use `{shown}` as a workspace"))
            .cause(why)
            .hint("name the directory of one project"))
    };
    if host == Path::new("/") {
        return refuse("it is the whole host".to_owned());
    }
    if state.starts_with(host) || host.starts_with(&state) {
        return refuse(format!("the state of msb is kept in `{}`", state.display()));
    }
    let own = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    if own.and_then(|own| fs::canonicalize(own).ok()).is_some_and(|own| own.starts_with(host)) {
        return refuse("your home directory has keys and logins in it".to_owned());
    }
    Ok(())
}
