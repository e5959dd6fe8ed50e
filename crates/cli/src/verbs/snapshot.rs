//! Snapshots of sandboxes, and the ways back to them.

use super::diff::counted;
use super::engine;
use crate::clock;
use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::pull_progress::Bars;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::{Args, Parser};
use msb_api::{Api, Snapshot, VerifyReport};
use msb_spec::{Bytes, Error, Kind, Name, Result, Span};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::PathBuf;

/// Saves the files of a sandbox. Any number of sandboxes can start from them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot create [OPTIONS] NAME --from SANDBOX")]
pub(crate) struct SnapshotCreateArgs {
    /// Name of the snapshot
    #[arg(value_name = "NAME")]
    name: String,
    /// Sandbox to save the files of
    #[arg(long, value_name = "SANDBOX")]
    from: String,
    /// Something to remember about it
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for SnapshotCreateArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let (name, from) = (Name::parse(&self.name)?, Name::parse(&self.from)?);
        let snapshot = api.snapshot_create(&name, &from, self.note.as_deref())?;
        if let Some(paused) = snapshot.paused_us {
            let shown = clock::duration(paused.div_ceil(1000));
            output::note(format!("sandbox `{from}` was paused for {shown}"));
        }
        match self.json {
            true => listing::json(&snapshot),
            false => output::print(name),
        }
        Ok(0)
    }
}

/// Lists snapshots, the oldest first.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot ls [OPTIONS]")]
pub(crate) struct SnapshotLsArgs {
    /// Print only names
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for SnapshotLsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let snapshots = api.snapshot_list()?;
        if self.json {
            listing::json(&snapshots);
            return Ok(0);
        }
        if self.quiet {
            snapshots.iter().flat_map(|snapshot| &snapshot.names).for_each(output::print);
            return Ok(0);
        }
        let mut listing = Listing::new(&[
            "NAME",
            "ID",
            "SANDBOX",
            "IMAGE",
            "ISOLATION",
            "PARENT",
            "SIZE",
            "AGE",
            "NOTE",
        ]);
        for snapshot in &snapshots {
            let parent = snapshots.iter().find(|other| Some(&other.id) == snapshot.parent.as_ref());
            for name in &snapshot.names {
                listing.row(&[
                    name.to_string(),
                    snapshot.id.clone(),
                    snapshot.sandbox.to_string(),
                    snapshot.image.to_string(),
                    snapshot.isolation.to_string(),
                    parent.map(shown).unwrap_or_default(),
                    snapshot.bytes.map_or_else(|| "-".to_owned(), |n| Bytes(n).to_string()),
                    clock::ago(snapshot.created),
                    snapshot.note.clone().unwrap_or_default(),
                ]);
            }
        }
        listing.print();
        Ok(0)
    }
}

fn shown(snapshot: &Snapshot) -> String {
    snapshot.names.first().map_or_else(|| snapshot.id.clone(), ToString::to_string)
}

/// Prints everything about snapshots as JSON.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot inspect NAME...")]
pub(crate) struct SnapshotInspectArgs {
    /// Names or ids of snapshots
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

impl TargetVerb for SnapshotInspectArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let find = |name: &String| api.snapshot_inspect(&Name::parse(name)?);
        let snapshots: Vec<Snapshot> = self.names.iter().map(find).collect::<Result<_>>()?;
        match snapshots.as_slice() {
            [one] => listing::json(one),
            several => listing::json(&several),
        }
        Ok(0)
    }
}

/// Compares everything in snapshots with what was written down when they were taken.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot verify [OPTIONS] NAME...")]
pub(crate) struct SnapshotVerifyArgs {
    /// Names or ids of snapshots
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for SnapshotVerifyArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let verify = |name: &String| api.snapshot_verify(&Name::parse(name)?);
        let verified: Vec<VerifyReport> = self.names.iter().map(verify).collect::<Result<_>>()?;
        if self.json {
            listing::json(&verified);
        } else {
            for (name, verified) in self.names.iter().zip(&verified) {
                show(name, verified);
            }
        }
        Ok(i32::from(!verified.iter().all(|verified| verified.intact)))
    }
}

fn show(name: &str, verified: &VerifyReport) {
    let VerifyReport { files, bytes, recorded, .. } = verified;
    let files = counted(usize::try_from(*files).unwrap_or(usize::MAX), "file", "files");
    let what = format!("{files}, {}", Bytes(*bytes));
    match (verified.intact, recorded) {
        (true, 0) => output::print(format!("{name}  intact ({what})")),
        (true, _) => output::print(format!("{name}  digest recorded ({what})")),
        (false, _) => output::print(format!("{name}  damaged ({what})")),
    }
    for difference in &verified.differences {
        output::print(format!("  {}", msb_spec::shown(difference)));
    }
}

/// Writes a snapshot to a file: an OCI archive that other tools can read.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot save [OPTIONS] NAME")]
pub(crate) struct SnapshotSaveArgs {
    /// Name or id of the snapshot
    #[arg(value_name = "NAME")]
    name: String,
    /// File to write; stdout without it
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take the layers of its image along
    #[arg(long)]
    with_image: bool,
}

impl TargetVerb for SnapshotSaveArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        let Some(path) = &self.output else {
            if std::io::stdout().is_terminal() {
                return Err(Error::invalid("an archive would not look good on a terminal")
                    .hint("`-o FILE` names a file, or send it through a pipe")
                    .into());
            }
            let mut out = BufWriter::new(std::io::stdout().lock());
            api.snapshot_save(&name, self.with_image, &mut out)?;
            out.flush().map_err(|error| Error::host("cannot write the snapshot", error))?;
            return Ok(0);
        };
        let about = |error| Error::host(format!("cannot write `{}`", path.display()), error);
        // Renamed when it is complete: a reader sees the old file or the new one.
        let mut aside = path.clone().into_os_string();
        aside.push(format!(".{}", std::process::id()));
        let mut out = BufWriter::new(File::create_new(&aside).map_err(about)?);
        let saved = api.snapshot_save(&name, self.with_image, &mut out);
        let saved = saved.and_then(|()| out.flush().map_err(about));
        let saved = saved.and_then(|()| std::fs::rename(&aside, path).map_err(about));
        if saved.is_err() {
            let _ = std::fs::remove_file(&aside);
        }
        saved?;
        Ok(0)
    }
}

/// Reads a snapshot that `msb snapshot save` has written.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot load [OPTIONS] [FILE]")]
pub(crate) struct SnapshotLoadArgs {
    /// File to read; stdin without it
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Name that it gets, whatever it says itself
    #[arg(long, short, value_name = "NAME")]
    name: Option<String>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for SnapshotLoadArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let name = self.name.as_deref().map(Name::parse).transpose()?;
        let load = |archive: &mut dyn Read| match target {
            Target::Local => {
                engine()?.snapshots().load(name.as_ref(), archive, &Bars::new(self.quiet))
            }
            Target::Remote(server) => {
                let snapshot = server.api()?.snapshot_load(name.as_ref(), archive)?;
                let first = snapshot.names.into_iter().next();
                let unnamed = || Error::new(Kind::Protocol, "the snapshot has no name there");
                name.clone().or(first).ok_or_else(unnamed)
            }
        };
        let loaded = match &self.file {
            None if std::io::stdin().is_terminal() => {
                return Err(Error::invalid("there is nothing on stdin to load").into());
            }
            None => load(&mut std::io::stdin().lock()),
            Some(path) => File::open(path)
                .map_err(|error| Error::host("cannot read it", error))
                .and_then(|mut file| load(&mut file))
                .map_err(|error| error.under(format!("cannot load `{}`", path.display()))),
        };
        output::result("name", loaded?);
        Ok(0)
    }
}

/// Gives a snapshot one more name.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot tag NAME NEW")]
pub(crate) struct SnapshotTagArgs {
    /// Name or id of the snapshot
    #[arg(value_name = "NAME")]
    name: String,
    /// Its further name
    #[arg(value_name = "NEW")]
    new: String,
}

impl TargetVerb for SnapshotTagArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let new = Name::parse(&self.new)?;
        api.snapshot_tag(&Name::parse(&self.name)?, &new)?;
        output::result("name", new);
        Ok(0)
    }
}

/// Removes names of snapshots; a snapshot is removed with its last name. Sandboxes that were made
/// from it keep what they need.
#[derive(Debug, Parser)]
#[command(override_usage = "msb snapshot rm [OPTIONS] NAME...")]
pub(crate) struct SnapshotRmArgs {
    /// Names of snapshots; an id removes all its names
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Also those that other snapshots lie on
    #[arg(long, short)]
    force: bool,
}

impl TargetVerb for SnapshotRmArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        for name in &self.names {
            let name = Name::parse(name)?;
            api.snapshot_remove(&name, self.force)?;
            output::result("name", name);
        }
        Ok(0)
    }
}

/// Makes a sandbox from a snapshot and starts it, with the settings of the one that it was taken
/// of. Ports and secrets are not among them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb restore [OPTIONS] SNAPSHOT --name NAME")]
pub(crate) struct RestoreArgs {
    /// Name or id of the snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// Name of the new sandbox
    #[arg(long, short, value_name = "NAME")]
    name: String,
    #[command(flatten)]
    start: StartChoice,
}

impl TargetVerb for RestoreArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        api.snapshot_restore(&Name::parse(&self.snapshot)?, &name, None)?;
        self.start.finish(&*api, &name)
    }
}

/// Makes a second sandbox of one and starts it: the same files and settings, but for its ports.
/// Neither notices what the other does from then on.
#[derive(Debug, Parser)]
#[command(override_usage = "msb clone [OPTIONS] NAME NEW")]
pub(crate) struct CloneArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Name of the new one
    #[arg(value_name = "NEW")]
    new: String,
    #[command(flatten)]
    start: StartChoice,
}

impl TargetVerb for CloneArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let new = Name::parse(&self.new)?;
        api.sandbox_clone(&Name::parse(&self.name)?, &new)?;
        self.start.finish(&*api, &new)
    }
}

/// Whether a sandbox that was just made is started.
#[derive(Debug, Args)]
struct StartChoice {
    /// Do not start it
    #[arg(long)]
    stopped: bool,
    /// Start it (the default)
    #[arg(long, conflicts_with = "stopped", hide = true)]
    start: bool,
}

impl StartChoice {
    fn finish(&self, api: &dyn Api, name: &Name) -> Outcome {
        if self.start || !self.stopped {
            api.sandbox_start(name).map_err(|error| {
                error.under(format!("sandbox `{name}` was made, but cannot be started"))
            })?;
        }
        output::result("name", name);
        Ok(0)
    }
}

/// How the files of a sandbox are changed that may run.
#[derive(Debug, Args)]
struct WhileRunning {
    /// Stop it first if it runs, and start it again
    #[arg(long, short)]
    force: bool,
    /// How long to wait before killing, with --force
    #[arg(long, short, value_name = "TIME", default_value = "10s", requires = "force")]
    timeout: Span,
}

impl WhileRunning {
    /// Changes a sandbox. One that ran runs again afterwards, also if the change failed.
    fn change(&self, api: &dyn Api, name: &Name, change: impl FnOnce() -> Result<()>) -> Outcome {
        let ran = self.force && api.sandbox_stop(name, self.timeout.0)?;
        let changed = change();
        let started = match ran {
            true => api.sandbox_start(name).map(drop),
            false => Ok(()),
        };
        changed?;
        started?;
        output::result("name", name);
        Ok(0)
    }
}

/// Puts the files of a sandbox back to what a snapshot holds. What it wrote since is lost; its
/// settings stay.
#[derive(Debug, Parser)]
#[command(override_usage = "msb rollback [OPTIONS] NAME SNAPSHOT")]
pub(crate) struct RollbackArgs {
    /// Name of the sandbox; one that runs needs --force
    #[arg(value_name = "NAME")]
    name: String,
    /// Name or id of the snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    #[command(flatten)]
    running: WhileRunning,
}

impl TargetVerb for RollbackArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let (name, snapshot) = (Name::parse(&self.name)?, Name::parse(&self.snapshot)?);
        self.running.change(&*api, &name, || api.sandbox_rollback(&name, &snapshot))
    }
}

/// Puts the files of a sandbox back to what its image holds. What it wrote is lost, also what it
/// changed in its workspace; its settings stay.
#[derive(Debug, Parser)]
#[command(override_usage = "msb reset [OPTIONS] NAME")]
pub(crate) struct ResetArgs {
    /// Name of the sandbox; one that runs needs --force
    #[arg(value_name = "NAME")]
    name: String,
    /// Keep what it changed in its workspace
    #[arg(long)]
    keep_workspace: bool,
    #[command(flatten)]
    running: WhileRunning,
}

impl TargetVerb for ResetArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        self.running.change(&*api, &name, || api.sandbox_reset(&name, self.keep_workspace))
    }
}
