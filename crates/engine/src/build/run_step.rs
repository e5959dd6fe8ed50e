//! RUN: one command in a sandbox on the layers so far; what it wrote becomes a layer.
//!
//! The sandbox is ephemeral. Its writable directory is in the build directory of the store, and is
//! removed after the step or by the next repair.

use super::{BuildEvent, Watcher};
use crate::connection::Connection;
use crate::host::random;
use crate::start::Launch;
use crate::{Engine, planning};
use msb_image::build::{RunCommand, RunJob, ScratchDir, UpperLayer};
use msb_image::{Layer, PreparedImage, RunConfig, Store};
use msb_spec::encoding::hex;
use msb_spec::{
    Error, Exit, GuestPath, Hostname, Ids, ImageRef, IsolationChoice, Kind, Lower, MachineBase,
    Name, NetworkSpec, Overlay, Patch, Plan, Reference, Result, Span, Spec, Upper, lookup,
};
use msb_wire::WorkerEvent;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The sandbox of one RUN step.
pub(crate) struct RunStep<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) store: &'a Store,
    /// The names of the image, as listings show the sandbox.
    pub(crate) names: &'a [Reference],
    /// The directories of the layers so far, topmost first.
    pub(crate) below: Vec<PathBuf>,
    /// The network of the command; `None` has no network.
    pub(crate) network: Option<NetworkSpec>,
    pub(crate) latest: Option<i64>,
    /// When the command is killed; `None` is never.
    pub(crate) until: Option<Instant>,
}

/// The result of a RUN step.
#[derive(Debug)]
pub(crate) enum RunResult {
    /// The layer that it wrote; `None` if it wrote nothing.
    Layer(Option<Layer>),
    /// The command failed with this exit.
    Failed(Exit),
}

/// The path of a script with its own interpreter. It is not part of the layer.
const SCRIPT: &str = "/.msb/build-step";
/// The hostname during a build; it is constant, so that results are reproducible.
const HOSTNAME: &str = "build";
/// The shortest timeout of a command: one that starts past the deadline is killed by it.
const LEAST: Duration = Duration::from_millis(1);
/// Directories that a sandbox creates in a root without them.
const USUAL: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(LEAST)
}

impl RunStep<'_> {
    pub(crate) fn run(&self, job: &RunJob, watcher: &mut dyn Watcher) -> Result<RunResult> {
        if self.below.is_empty() {
            return Err(Error::invalid("there is nothing to run in an image without files")
                .hint("COPY a program into it first"));
        }
        let (plan, scratch) = self.plan(job)?;
        let mut step = self.engine.launch(plan, &Launch::default())?;
        let attended = stream_output(step.connection(), watcher);
        let plan = step.plan().clone();
        // The directory that it writes to is read, or removed, when it has ended.
        drop(step);
        if self.engine.forks() {
            reap();
        }
        let exit = attended?;
        if !exit.success() {
            return Ok(RunResult::Failed(exit));
        }
        let shift = match plan.ids {
            Ids::Shifted { range } => range.start,
            Ids::Single { .. } | Ids::Subordinate { .. } => 0,
        };
        let written = UpperLayer {
            upper: &scratch.path.join("upper0"),
            at: String::new(),
            below: self.below.clone(),
            shift,
            missing: self.missing(),
            covered: plan.network.iter().flat_map(|_| lookup::PLACES).map(str::to_owned).collect(),
            latest: self.latest,
        };
        self.store.pack(written).map(RunResult::Layer)
    }

    /// Plans the sandbox of the step, and makes the directory that it writes to.
    fn plan(&self, job: &RunJob) -> Result<(Plan, ScratchDir)> {
        let digits = hex(random::<4>());
        let name = Name::parse(&format!("build-{digits}")).expect("letters, digits and a dash");
        let (command, patches) = match &job.command {
            RunCommand::Words(words) => (words.clone(), Vec::new()),
            RunCommand::Script(text) => {
                let path = GuestPath::parse(SCRIPT)?;
                let script = Patch::Text { path, content: text.clone(), mode: Some(0o755) };
                (vec![SCRIPT.to_owned()], vec![script])
            }
        };
        let spec = Spec {
            name: Some(name),
            // The written layer must be a directory that the host can read, not a disk.
            isolation: IsolationChoice::Process,
            command,
            patches,
            workdir: Some(job.workdir.clone()),
            user: job.user.clone(),
            network: self.network.clone(),
            timeout: self.until.map(|until| Span(left(until))),
            ..Spec::with_defaults()
        };
        let prepared = |_| {
            let lower = |path: &PathBuf| Lower::of_image(path.clone());
            let lowers = self.below.iter().map(lower).collect();
            let image =
                self.names.first().map_or(ImageRef::Host, |name| ImageRef::Name(name.clone()));
            let prepared = PreparedImage {
                overlays: vec![Overlay { at: "/".to_owned(), lowers }],
                image,
                digest: None,
                config: RunConfig::default(),
                owners: true,
                path: Vec::new(),
                layers: Vec::new(),
            };
            Ok((prepared, MachineBase::Shares))
        };
        let spec = self.engine.authority.spec(&spec)?;
        let mut plan = planning::plan(self.engine.home(), &spec, prepared)?;
        plan.ephemeral = true;
        plan.hostname = Hostname::parse(HOSTNAME).expect("a constant of ours");
        let path = plan.env.remove("PATH").unwrap_or_default();
        plan.env = BTreeMap::from([("PATH".to_owned(), path)]);
        plan.env.extend(job.unnoticed.iter().chain(&job.env).cloned());
        plan.env.extend(plan.network.iter().flat_map(planning::network::environment));
        // Skips the patch for an existing directory, which costs a round trip to the guest.
        let there = self.has_directory(&job.workdir);
        plan.patches.retain(|patch| !(there && matches!(patch, Patch::Mkdir { .. })));
        let scratch = self.store.scratch(plan.ids.root())?;
        plan.rootfs.upper = Upper::Directory { path: scratch.path.clone() };
        Ok((plan, scratch))
    }

    /// Whether the topmost layer with this path has a directory there.
    fn has_directory(&self, path: &str) -> bool {
        let below = path.trim_start_matches('/');
        let first =
            self.below.iter().find_map(|layer| fs::symlink_metadata(layer.join(below)).ok());
        first.is_some_and(|meta| meta.is_dir())
    }

    /// The directories of `USUAL` that no layer has, which the sandbox creates.
    fn missing(&self) -> Vec<String> {
        let there = |name: &str| {
            let found = |layer: &PathBuf| fs::symlink_metadata(Path::new(layer).join(name)).ok();
            self.below.iter().find_map(found).is_some_and(|meta| meta.is_dir() || meta.is_symlink())
        };
        USUAL.iter().filter(|name| !there(name)).map(|name| (*name).to_owned()).collect()
    }
}

/// Reaps ended workers: a build forks one for every step.
fn reap() {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(Some(_)) = waitid(WaitId::All, ended) {}
}

/// Passes output on until the command ends.
fn stream_output(connection: &mut Connection, watcher: &mut dyn Watcher) -> Result<Exit> {
    let gone = |cause: &dyn std::fmt::Display| {
        Error::new(Kind::Protocol, "the sandbox of the step was killed").cause(cause)
    };
    loop {
        match connection.next_event().map_err(|error| error.into_error(gone))? {
            Some(WorkerEvent::Stdout(bytes) | WorkerEvent::Stderr(bytes)) => {
                watcher.told(BuildEvent::Output(&bytes));
            }
            Some(WorkerEvent::Exited(exit)) => return Ok(exit),
            Some(_) => {}
            None => return Err(gone(&"its worker closed the connection")),
        }
    }
}
