//! `msb cp`: files in and out.

mod archive;

use super::bare_engine;
use crate::output::{self, Outcome};
use crate::pull_progress::style;
use crate::target::{Target, is_up};
use crate::verb_table::TargetVerb;
use archive::StreamCopy;
use clap::Parser;
use indicatif::ProgressBar;
use msb_api::{Api, CopyCount, EntryKind, Place};
use msb_engine::{Engine, RunningSandbox};
use msb_spec::{Error, Kind, Name, Result, shown};
use msb_sys::tree::{TempDir, temp_name};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Copies files and trees between the host and sandboxes; one that has stopped is started for it.
#[derive(Debug, Parser)]
#[command(
    override_usage = "msb cp [OPTIONS] SRC... NAME:PATH\n       msb cp [OPTIONS] NAME:PATH... DST"
)]
pub(crate) struct CpArgs {
    /// What to copy, then where to: paths, NAME:PATH in a sandbox, or `-` for stdin and stdout (a
    /// directory is a tar archive there)
    #[arg(value_name = "PATH", required = true, num_args = 2..)]
    paths: Vec<OsString>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CopyEnd {
    Host(PathBuf),
    Inside(Name, Vec<u8>),
    /// `-`: stdin as a source, stdout as a target.
    Stream,
}

impl TargetVerb for CpArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let mut ends = self.paths.iter().map(|path| CopyEnd::parse(path));
        let to = ends.next_back().unwrap_or(Ok(CopyEnd::Stream))?;
        let sources = ends.collect::<Result<Vec<_>>>()?;
        check_ends(&sources, &to)?;
        let copier = match target {
            Target::Local => Copier::Local(Box::new(bare_engine()?)),
            Target::Remote(server) => Copier::Remote(server.api()?),
        };
        let names: BTreeSet<&Name> =
            sources.iter().chain([&to]).filter_map(CopyEnd::sandbox).collect();
        let _awake = names.into_iter().map(|name| copier.wake(name)).collect::<Result<Vec<_>>>()?;
        if sources.len() > 1 {
            copier.check_directory(&to)?;
        }
        let bar = bar(self.quiet || to == CopyEnd::Stream);
        let mut left_out = 0;
        for from in &sources {
            let copied = copier.copy(from, &to, &mut |bytes| bar.inc(bytes));
            // The reader of a pipe may leave early, as `head` does.
            if to == CopyEnd::Stream && output::stdout_is_closed() {
                return Ok(0);
            }
            left_out += copied?.left_out;
        }
        bar.finish_and_clear();
        if left_out > 0 && !self.quiet {
            output::note(format!("left out {left_out} devices, sockets or pipes"));
        }
        Ok(0)
    }
}

/// Refuses copies that are none of `msb`, and streams that could not be told apart.
fn check_ends(sources: &[CopyEnd], to: &CopyEnd) -> Result<()> {
    let all_on_host = || sources.iter().all(|from| matches!(from, CopyEnd::Host(_)));
    let is_inside = |end: &CopyEnd| matches!(end, CopyEnd::Inside(..));
    let alone = sources.len() == 1;
    match to {
        CopyEnd::Stream if !alone || !sources.iter().all(is_inside) => {
            Err(Error::invalid("only one path of a sandbox can be written to stdout")
                .hint("`msb cp box:/dir - | tar -x`; `./-` is a file of that name"))
        }
        _ if sources.contains(&CopyEnd::Stream) && !(alone && is_inside(to)) => {
            Err(Error::invalid("stdin can only be copied into a sandbox, and alone")
                .hint("`tar -c dir | msb cp - box:/app`; `./-` is a file of that name"))
        }
        CopyEnd::Host(_) if all_on_host() => Err(Error::invalid("both paths are on the host")
            .hint("one side must be in a sandbox: `msb cp ./x box:/app`")),
        CopyEnd::Host(_) if !sources.iter().all(is_inside) => {
            Err(Error::invalid("a source and the target are on the host")
                .hint("one side must be in a sandbox: `msb cp ./x box:/app`"))
        }
        _ => Ok(()),
    }
}

/// Copies on this machine or through a server.
enum Copier {
    Local(Box<Engine>),
    Remote(Arc<dyn Api>),
}

/// Keeps a sandbox awake; one that was started for a copy stops with it.
enum AwakeSandbox<'a> {
    Local { _running: Box<Option<RunningSandbox<'a>>> },
    Remote { _running: RemoteAwake },
}

impl Copier {
    fn api(&self) -> &dyn Api {
        match self {
            Self::Local(engine) => &**engine,
            Self::Remote(api) => &**api,
        }
    }

    fn wake(&self, name: &Name) -> Result<AwakeSandbox<'_>> {
        Ok(match self {
            Self::Local(engine) => AwakeSandbox::Local { _running: Box::new(engine.wake(name)?) },
            Self::Remote(api) => {
                AwakeSandbox::Remote { _running: RemoteAwake::keep(api.clone(), name)? }
            }
        })
    }

    /// Several sources need a directory that is there.
    fn check_directory(&self, to: &CopyEnd) -> Result<()> {
        let (is_directory, path) = match to {
            CopyEnd::Host(path) => (path.is_dir(), path.display().to_string()),
            CopyEnd::Inside(name, path) => {
                let meta = self.api().file_stat(&Place::sandbox(name), path, true);
                let is_directory = match meta {
                    Ok(meta) => meta.kind == EntryKind::Directory,
                    Err(error) if error.kind() == Kind::NotFound => false,
                    Err(error) => return Err(error),
                };
                (is_directory, format!("{name}:{}", String::from_utf8_lossy(path)))
            }
            CopyEnd::Stream => (false, "-".to_owned()),
        };
        if is_directory {
            return Ok(());
        }
        Err(Error::invalid(format!("not a directory: `{}`", shown(&path)))
            .hint("several sources are copied into a directory that exists"))
    }

    fn copy(
        &self,
        from: &CopyEnd,
        to: &CopyEnd,
        progress: &mut dyn FnMut(u64),
    ) -> Result<CopyCount> {
        match (from, to) {
            (CopyEnd::Host(from), CopyEnd::Inside(name, to)) => match self {
                // As with cp: a target that is there takes it below, one with a slash must be.
                Self::Local(engine) => engine.files(name)?.push(from, to, true, progress),
                Self::Remote(api) => api.file_push(&Place::sandbox(name), from, to),
            },
            (CopyEnd::Inside(name, from), CopyEnd::Host(to)) => match self {
                Self::Local(engine) => engine.files(name)?.pull(from, to, progress),
                Self::Remote(api) => api.file_pull(&Place::sandbox(name), from, to),
            },
            (CopyEnd::Inside(one, from), CopyEnd::Inside(other, to)) if one == other => {
                self.copy_within(&Place::sandbox(one), from, to)
            }
            (CopyEnd::Inside(one, from), CopyEnd::Inside(other, to)) => match self {
                Self::Local(engine) => {
                    engine.files(one)?.relay(from, engine.files(other)?, to, progress)
                }
                Self::Remote(api) => copy_through_host(&**api, (one, from), (other, to)),
            },
            (CopyEnd::Inside(name, from), CopyEnd::Stream) => {
                let place = Place::sandbox(name);
                let mut copy =
                    StreamCopy { api: self.api(), place: &place, copied: CopyCount::default() };
                let mut out = BufWriter::with_capacity(128 << 10, std::io::stdout().lock());
                copy.write(from, &mut out)?;
                out.flush().map_err(|error| Error::host("cannot write to stdout", error))?;
                Ok(copy.copied)
            }
            (CopyEnd::Stream, CopyEnd::Inside(..)) if std::io::stdin().is_terminal() => {
                Err(Error::invalid("there is nothing on stdin to copy")
                    .hint("`tar -c dir | msb cp - box:/app`, or `msb cp - box:/file < file`"))
            }
            (CopyEnd::Stream, CopyEnd::Inside(name, to)) => {
                let place = Place::sandbox(name);
                let mut copy =
                    StreamCopy { api: self.api(), place: &place, copied: CopyCount::default() };
                copy.read(to, &mut std::io::stdin().lock())?;
                Ok(copy.copied)
            }
            (_, CopyEnd::Stream) | (CopyEnd::Stream, _) | (CopyEnd::Host(_), CopyEnd::Host(_)) => {
                Err(Error::invalid("one side must be in a sandbox"))
            }
        }
    }

    /// Copies inside one sandbox. A file is never copied onto itself, which would empty it.
    fn copy_within(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<CopyCount> {
        let api = self.api();
        let is_directory = match api.file_stat(at, to, true) {
            Ok(meta) => meta.kind == EntryKind::Directory,
            Err(error) if error.kind() == Kind::NotFound => false,
            Err(error) => return Err(error),
        };
        let name = Path::new(OsStr::from_bytes(from)).file_name();
        let to = match name.filter(|_| is_directory && !from.ends_with(b"/.")) {
            Some(name) => [to, b"/", name.as_bytes()].concat(),
            None => to.to_vec(),
        };
        if api.file_real(at, from)? == api.file_real(at, &to)? {
            let shown = shown(&String::from_utf8_lossy(from));
            return Err(Error::invalid(format!("the source is the target: `{shown}`")));
        }
        api.file_copy(at, from, &to)?;
        Ok(CopyCount::default())
    }
}

/// Copies between two sandboxes of a server through a private directory of this host.
fn copy_through_host(
    api: &dyn Api,
    (one, from): (&Name, &[u8]),
    (other, to): (&Name, &[u8]),
) -> Result<CopyCount> {
    let about = |error| Error::host("cannot make a temporary directory", error);
    let staging = TempDir(std::env::temp_dir().join(temp_name("msb", "cp")));
    fs::DirBuilder::new().mode(0o700).create(&staging.0).map_err(about)?;
    api.file_pull(&Place::sandbox(one), from, &staging.0)?;
    let mut pulled = fs::read_dir(&staging.0).map_err(about)?;
    match pulled.next() {
        Some(entry) => {
            let path = entry.map_err(about)?.path();
            let path = if from.ends_with(b"/.") { path.join(".") } else { path };
            api.file_push(&Place::sandbox(other), &path, to)
        }
        None => Ok(CopyCount { left_out: 1, ..CopyCount::default() }),
    }
}

/// A sandbox behind a server that runs as long as this is kept, and stops with it if it was
/// started for it.
struct RemoteAwake {
    api: Arc<dyn Api>,
    woken: Option<Name>,
}

impl RemoteAwake {
    fn keep(api: Arc<dyn Api>, name: &Name) -> Result<Self> {
        let woken = !is_up(api.sandbox_summary(name)?.status) && api.sandbox_start(name)?;
        Ok(Self { api, woken: woken.then(|| name.clone()) })
    }
}

impl Drop for RemoteAwake {
    fn drop(&mut self) {
        if let Some(name) = &self.woken {
            let _ = self.api.sandbox_stop(name, Duration::ZERO);
        }
    }
}

impl CopyEnd {
    /// `box:/path` is inside, `-` a stream; whatever looks like a path is on the host. A path need
    /// not be UTF-8.
    pub(super) fn parse(text: &OsStr) -> Result<Self> {
        match named(text) {
            _ if text == "-" => Ok(Self::Stream),
            None => Ok(Self::Host(PathBuf::from(text))),
            Some((name, path)) => Ok(Self::Inside(Name::parse(&name)?, path)),
        }
    }

    fn sandbox(&self) -> Option<&Name> {
        match self {
            Self::Inside(name, _) => Some(name),
            Self::Host(_) | Self::Stream => None,
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
