//! Finds the inputs of a build: Containerfile, ignore file and context directory.

use super::Build;
use msb_image::build::{CONTAINERFILE_LIMIT, Ignore};
use msb_spec::{Error, Kind, Result};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where the Containerfile comes from.
#[derive(Debug, Clone)]
pub enum ContainerfileSource {
    /// A file at this path.
    File(PathBuf),
    /// A text, as read from stdin or sent by a client.
    Text(String),
}

/// The inputs of a build.
#[derive(Debug)]
pub(crate) struct BuildContext {
    /// The name of the Containerfile in messages.
    pub(crate) name: String,
    pub(crate) text: String,
    /// The context directory, a canonical path.
    pub(crate) directory: PathBuf,
    /// The content of the ignore file, which was parsed without errors.
    pub(crate) ignore: String,
}

const NAMES: [&str; 2] = ["Containerfile", "Dockerfile"];

pub(crate) fn find(build: &Build) -> Result<BuildContext> {
    let shown = build.directory.display();
    let directory = fs::canonicalize(&build.directory).map_err(|error| {
        Error::new(Kind::NotFound, format!("no directory to build from at `{shown}`")).cause(error)
    })?;
    if !directory.is_dir() {
        return Err(Error::invalid(format!("not a directory: `{shown}`"))
            .hint("`msb build -t NAME -f FILE DIR` names the Containerfile separately"));
    }
    let (name, text, beside) = match &build.recipe {
        Some(ContainerfileSource::Text(text)) => ("stdin".to_owned(), text.clone(), None),
        Some(ContainerfileSource::File(path)) => {
            let name = path.display().to_string();
            (name, text_of(path)?, Some(path.clone()))
        }
        None => {
            let there = NAMES.iter().find(|name| directory.join(name).is_file());
            let name = there.ok_or_else(|| {
                Error::new(Kind::NotFound, format!("no Containerfile or Dockerfile in `{shown}`"))
                    .hint("`-f FILE` names another, `-f -` reads it from stdin")
            })?;
            let path = directory.join(name);
            ((*name).to_owned(), text_of(&path)?, Some(path))
        }
    };
    let ignore = ignore_of(&directory, beside.as_deref())?;
    Ok(BuildContext { name, text, directory, ignore })
}

/// The ignore file of the Containerfile, else that of the directory.
fn ignore_of(directory: &Path, file: Option<&Path>) -> Result<String> {
    let mut places = Vec::new();
    if let Some(file) = file {
        for ending in [".containerignore", ".dockerignore"] {
            let mut path = file.as_os_str().to_owned();
            path.push(ending);
            places.push(PathBuf::from(path));
        }
    }
    places.extend([".containerignore", ".dockerignore"].map(|name| directory.join(name)));
    let Some(path) = places.iter().find(|path| path.is_file()) else {
        return Ok(String::new());
    };
    let text = text_of(path)?;
    Ignore::parse(&text).map_err(|(line, why)| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Error::invalid(format!("{name}:{line}: not a pattern: {why}"))
    })?;
    Ok(text)
}

fn text_of(path: &Path) -> Result<String> {
    let about = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            io::ErrorKind::InvalidData => Kind::Invalid,
            _ => Kind::Host,
        };
        Error::new(kind, format!("cannot read `{}`", path.display())).cause(error)
    };
    let mut text = String::new();
    let file = File::open(path).map_err(about)?;
    let count = file.take(CONTAINERFILE_LIMIT + 1).read_to_string(&mut text).map_err(about)?;
    if count as u64 > CONTAINERFILE_LIMIT {
        return Err(Error::invalid(format!("too large to be read: `{}`", path.display())));
    }
    Ok(text)
}
