//! The host's files that clients may name: one list for every surface but the CLI.
//!
//! A path is followed to where it really leads before it is compared, as far as it exists; what
//! does not exist yet must lie in a directory that does. So a link in the middle leads nobody out.

use msb_spec::{Error, Kind, Result};
use std::path::{Component, Path, PathBuf};

/// Which files of the host may be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    /// None is all of them.
    roots: Option<Vec<PathBuf>>,
    /// What says so, for the hint.
    said_by: String,
}

impl HostPaths {
    /// Those below these directories. Ones that do not exist allow nothing.
    pub fn below(roots: impl IntoIterator<Item = PathBuf>, said_by: impl Into<String>) -> Self {
        let roots = roots.into_iter().filter_map(|root| root.canonicalize().ok()).collect();
        Self { roots: Some(roots), said_by: said_by.into() }
    }

    /// All.
    pub fn unrestricted() -> Self {
        Self { roots: None, said_by: String::new() }
    }

    /// The directories; none is all.
    pub fn roots(&self) -> Option<&[PathBuf]> {
        self.roots.as_deref()
    }

    /// The path with every link followed, if it may be named. A relative one is below the current
    /// directory.
    pub fn check(&self, path: &Path) -> Result<PathBuf> {
        let real = real(path)?;
        match &self.roots {
            Some(roots) if !roots.iter().any(|root| real.starts_with(root)) => {
                let shown = path.display();
                Err(Error::new(Kind::Denied, format!("host path `{shown}` is not allowed"))
                    .hint(format!("{} lists the directories that are", self.said_by)))
            }
            _ => Ok(real),
        }
    }
}

/// Where a path really leads.
fn real(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let about = |error| Error::host(format!("cannot look at `{shown}`"), error);
    let absolute = std::path::absolute(path).map_err(about)?;
    let mut exists = absolute.clone();
    let mut rest = Vec::new();
    loop {
        match exists.canonicalize() {
            Ok(real) => return Ok(rest.iter().rev().fold(real, |path, name| path.join(name))),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(about(error)),
            // A link that leads nowhere would be followed by whoever writes to it.
            Err(error) if exists.symlink_metadata().is_ok() => return Err(about(error)),
            Err(error) => match exists.components().next_back() {
                Some(Component::Normal(name)) => {
                    rest.push(name.to_owned());
                    exists.pop();
                }
                // `..` behind what does not exist could lead anywhere.
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
    fn no_link_and_no_parent_leads_out() {
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
}
