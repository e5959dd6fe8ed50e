//! `msb cp`: files in and out.

use super::bare_engine;
use crate::output::{self, Outcome};
use crate::pull_progress::style;
use crate::target::{Target, is_up};
use crate::verb_table::TargetVerb;
use clap::Parser;
use indicatif::ProgressBar;
use msb_api::{Api, Place};
use msb_spec::{Error, Name, Result};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Copies a file or tree between the host and a sandbox; one that has stopped is started for it.
#[derive(Debug, Parser)]
#[command(override_usage = "msb cp SRC NAME:PATH\n       msb cp NAME:PATH DST")]
pub(crate) struct CpArgs {
    /// What to copy: a path, or NAME:PATH in a sandbox
    #[arg(value_name = "SRC")]
    from: OsString,
    /// Where to: a path, or NAME:PATH in a sandbox
    #[arg(value_name = "DST")]
    to: OsString,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CopyEnd {
    Host(PathBuf),
    Inside(Name, Vec<u8>),
}

impl TargetVerb for CpArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let bar = bar(self.quiet);
        let mut progress = |bytes| bar.inc(bytes);
        let copied = match (CopyEnd::parse(&self.from)?, CopyEnd::parse(&self.to)?) {
            (CopyEnd::Host(from), CopyEnd::Inside(name, to)) => {
                // As with cp: a target that is there takes it below, one with a slash must be.
                match target {
                    Target::Local => {
                        let engine = bare_engine()?;
                        let _awake = engine.wake(&name)?;
                        engine.files(&name)?.push(&from, &to, true, &mut progress)?
                    }
                    Target::Remote(server) => {
                        let awake = Awake::keep(server.api()?, &name)?;
                        awake.api.file_push(&Place::sandbox(&name), &from, &to)?
                    }
                }
            }
            (CopyEnd::Inside(name, from), CopyEnd::Host(to)) => match target {
                Target::Local => {
                    let engine = bare_engine()?;
                    let _awake = engine.wake(&name)?;
                    engine.files(&name)?.pull(&from, &to, &mut progress)?
                }
                Target::Remote(server) => {
                    let awake = Awake::keep(server.api()?, &name)?;
                    awake.api.file_pull(&Place::sandbox(&name), &from, &to)?
                }
            },
            (CopyEnd::Inside(..), CopyEnd::Inside(..)) => {
                return Err(Error::unsupported("cannot copy from one sandbox to another")
                    .hint("copy to the host first, then into the other")
                    .into());
            }
            (CopyEnd::Host(_), CopyEnd::Host(_)) => {
                let hint = "one side must be in a sandbox: `msb cp ./x box:/app`";
                return Err(Error::invalid("both paths are on the host").hint(hint).into());
            }
        };
        bar.finish_and_clear();
        if copied.left_out > 0 && !self.quiet {
            output::note(format!("left out {} devices, sockets or pipes", copied.left_out));
        }
        Ok(0)
    }
}

/// A sandbox behind a server that runs as long as this is kept, and stops with it if it was
/// started for it.
struct Awake {
    api: Arc<dyn Api>,
    woken: Option<Name>,
}

impl Awake {
    fn keep(api: Arc<dyn Api>, name: &Name) -> Result<Self> {
        let woken = !is_up(api.sandbox_summary(name)?.status) && api.sandbox_start(name)?;
        Ok(Self { api, woken: woken.then(|| name.clone()) })
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        if let Some(name) = &self.woken {
            let _ = self.api.sandbox_stop(name, Duration::ZERO);
        }
    }
}

impl CopyEnd {
    /// `box:/path` is inside; whatever looks like a path is on the host. A path need not be UTF-8.
    pub(super) fn parse(text: &OsStr) -> Result<Self> {
        match named(text) {
            None => Ok(Self::Host(PathBuf::from(text))),
            Some((name, path)) => Ok(Self::Inside(Name::parse(&name)?, path)),
        }
    }
}

/// The name and the absolute path of `name:/path`; none if it looks like a path of the host.
pub(super) fn named(text: &OsStr) -> Option<(String, Vec<u8>)> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':').unwrap_or(0);
    let name = String::from_utf8_lossy(&bytes[..colon]);
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return None;
    }
    let path = &bytes[colon + 1..];
    let path = if path.starts_with(b"/") { path.to_vec() } else { [b"/", path].concat() };
    Some((name.into_owned(), path))
}

/// Progress for people at a terminal, silence in a pipe.
pub(super) fn bar(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    ProgressBar::new_spinner().with_style(style("{spinner} {size} copied, {speed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_before_a_colon_is_a_sandbox() {
        let inside =
            |name: &str, path: &str| CopyEnd::Inside(Name::parse(name).unwrap(), path.into());
        assert_eq!(CopyEnd::parse("box:/app".as_ref()).unwrap(), inside("box", "/app"));
        assert_eq!(CopyEnd::parse("box:app/x".as_ref()).unwrap(), inside("box", "/app/x"));
        assert_eq!(CopyEnd::parse("./a:b".as_ref()).unwrap(), CopyEnd::Host("./a:b".into()));
        assert_eq!(CopyEnd::parse("a.txt".as_ref()).unwrap(), CopyEnd::Host("a.txt".into()));
        assert!(CopyEnd::parse("a b:/x".as_ref()).is_err());
    }
}
