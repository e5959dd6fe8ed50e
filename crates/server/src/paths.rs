//! The host paths that clients may name: one allowlist for every interface but the CLI.
//!
//! A path is resolved (`realpath`) before it is compared, as far as it exists. A path that does not
//! exist yet must be in a directory that does. So a symbolic link in the middle cannot lead out of
//! an allowed directory. Users of the resolved path follow no further symbolic links: one that
//! appears later was created after the check.
//!
//! The state directory is always excluded: see `state_dir`.
//!
//! A key of one namespace may use, below each allowed directory, only the subdirectory with the
//! name of its namespace. Two namespaces never share a host file, and a namespace has no host files
//! until the operator creates its subdirectory.

use crate::namespace::Namespace;
use crate::state_dir::StateDir;
use msb_spec::{Error, Kind, Result};
use std::path::{Component, Path, PathBuf};

/// The allowlist of host paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    /// The allowed directories; none means all.
    roots: Option<Vec<PathBuf>>,
    /// Restricts each root to the subdirectory of this namespace.
    namespace: Option<Namespace>,
    /// The flag or setting that lists the roots, for hints.
    said_by: String,
    /// The state directory, which is always excluded.
    state: Option<StateDir>,
}

impl HostPaths {
    /// Allows what is below these directories. Those that do not exist are ignored.
    pub fn below(roots: impl IntoIterator<Item = PathBuf>, said_by: impl Into<String>) -> Self {
        let roots = roots.into_iter().filter_map(|root| root.canonicalize().ok()).collect();
        Self { roots: Some(roots), namespace: None, said_by: said_by.into(), state: None }
    }

    /// Allows every path of the host.
    pub fn unrestricted() -> Self {
        Self { roots: None, namespace: None, said_by: String::new(), state: None }
    }

    /// Excludes the state directory: the directory, its contents and its parents.
    pub fn without_state(mut self, state: &Path) -> Result<Self> {
        self.state = Some(StateDir::open(state)?);
        Ok(self)
    }

    /// Restricts the list to a namespace. An unrestricted list becomes an empty one.
    #[must_use]
    pub fn of_namespace(&self, namespace: &Namespace) -> Self {
        let said_by = match self.roots {
            Some(_) => self.said_by.clone(),
            None => "`--host-path`".to_owned(),
        };
        let roots = Some(self.roots.clone().unwrap_or_default());
        let state = self.state.clone();
        Self { roots, namespace: Some(namespace.clone()), said_by, state }
    }

    /// The allowed directories; none means all.
    pub fn roots(&self) -> Option<&[PathBuf]> {
        self.roots.as_deref()
    }

    /// Resolves all symbolic links, and returns the path if it is allowed. A relative path starts
    /// at the current directory.
    pub fn check(&self, path: &Path) -> Result<PathBuf> {
        let real = real(path)?;
        // If the directory of the namespace is a symbolic link, no resolved path starts with it.
        let below = |root: &PathBuf| match &self.namespace {
            Some(namespace) => real.starts_with(root.join(namespace.as_str())),
            None => real.starts_with(root),
        };
        if self.roots.as_ref().is_none_or(|roots| roots.iter().any(below)) {
            let state = self.state.as_ref();
            if !state.map_or(Ok(false), |state| state.is_shown_by(&real))? {
                return Ok(real);
            }
            let text =
                format!("host path `{}` overlaps the state directory of msb", path.display());
            return Err(Error::new(Kind::Denied, text)
                .hint("use another directory, or move MSB_HOME out of the allowed ones"));
        }
        let (shown, said_by) = (path.display(), &self.said_by);
        let hint = match &self.namespace {
            Some(own) => {
                format!("{said_by} lists directories; their subdirectories `{own}` are allowed")
            }
            None => format!("{said_by} lists the allowed directories"),
        };
        Err(Error::new(Kind::Denied, format!("host path `{shown}` is not allowed")).hint(hint))
    }
}

/// Resolves all symbolic links of a path, as far as it exists.
fn real(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let about = |error| Error::host(format!("cannot resolve `{shown}`"), error);
    if path.as_os_str().is_empty() {
        return Err(Error::invalid("a host path is empty"));
    }
    let absolute = std::path::absolute(path).map_err(about)?;
    let mut exists = absolute.clone();
    let mut rest = Vec::new();
    loop {
        match exists.canonicalize() {
            Ok(real) => return Ok(rest.iter().rev().fold(real, |path, name| path.join(name))),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(about(error)),
            // A dangling symbolic link: a writer would follow it.
            Err(error) if exists.symlink_metadata().is_ok() => return Err(about(error)),
            Err(error) => match exists.components().next_back() {
                Some(Component::Normal(name)) => {
                    rest.push(name.to_owned());
                    exists.pop();
                }
                // `..` after a component that does not exist could lead anywhere.
                _ => return Err(about(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_and_parents_do_not_leave_the_roots() {
        let place = std::env::temp_dir().join(format!("msb-paths-{}", std::process::id()));
        let (inside, outside) = (place.join("in"), place.join("out"));
        for directory in [&inside, &outside] {
            fs::create_dir_all(directory).unwrap();
        }
        symlink(&outside, inside.join("link")).unwrap();
        symlink(outside.join("new"), inside.join("nowhere")).unwrap();
        let paths = HostPaths::below([inside.clone()], "--host-paths");
        for allowed in ["", "new", "new/deep/file"] {
            assert!(paths.check(&inside.join(allowed)).is_ok(), "{allowed}");
        }
        let denied =
            ["link", "link/a", "link/a/b", "nowhere", "../out", "new/../../out", "x/../link/a"];
        for denied in denied {
            assert!(paths.check(&inside.join(denied)).is_err(), "{denied}");
        }
        assert!(HostPaths::below([place.join("none")], "x").check(&place).is_err());
        assert!(HostPaths::unrestricted().check(&outside).is_ok());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn the_state_directory_is_never_among_them() {
        let place = std::env::temp_dir().join(format!("msb-paths-state-{}", std::process::id()));
        let home = place.join("a/home");
        fs::create_dir_all(home.join("sandboxes")).unwrap();
        fs::create_dir_all(place.join("a/work")).unwrap();
        fs::create_dir_all(place.join("red")).unwrap();
        symlink(&home, place.join("link")).unwrap();
        symlink(home.join("server.key"), place.join("a/work/key")).unwrap();
        fs::write(home.join("server.key"), "secret").unwrap();
        let below = HostPaths::below([place.clone()], "x");
        for paths in [below.clone(), HostPaths::unrestricted()] {
            let paths = paths.without_state(&home).unwrap();
            for denied in [
                "",
                "a",
                "a/home",
                "a/home/new",
                "a/home/server.key",
                "a/home/sandboxes",
                "link",
                "link/server.key",
                "a/work/key",
                "a/work/../home",
            ] {
                let error = paths.check(&place.join(denied)).unwrap_err();
                assert_eq!(error.kind(), Kind::Denied, "{denied}");
            }
            for allowed in ["a/work", "a/work/new", "a/homely"] {
                assert!(paths.check(&place.join(allowed)).is_ok(), "{allowed}");
            }
        }
        let red = Namespace::parse("red").unwrap();
        let own = below.without_state(&place.join("red")).unwrap().of_namespace(&red);
        assert_eq!(own.check(&place.join("red")).unwrap_err().kind(), Kind::Denied);
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_namespace_has_the_directory_of_its_name() {
        let place = std::env::temp_dir().join(format!("msb-paths-own-{}", std::process::id()));
        let (red, blue) = (place.join("red"), place.join("blue"));
        fs::create_dir_all(&red).unwrap();
        symlink(&red, &blue).unwrap();
        let paths = HostPaths::below([place.clone()], "--host-paths");
        let of = |name: &str| paths.of_namespace(&Namespace::parse(name).unwrap());
        for allowed in [red.clone(), red.join("new"), blue.join("new")] {
            assert!(of("red").check(&allowed).is_ok(), "{allowed:?}");
        }
        assert!(of("red").check(&place).is_err());
        assert!(of("red").check(&place.join("redder")).is_err());
        // A symbolic link in place of its directory grants no files of another.
        assert!(of("blue").check(&red).is_err());
        assert!(of("blue").check(&blue).is_err());
        let all = HostPaths::unrestricted().of_namespace(&Namespace::parse("red").unwrap());
        assert!(all.check(&red).is_err());
        fs::remove_dir_all(place).unwrap();
    }
}
