//! RUN: one command in a sandbox over the layers so far, and what it wrote as a layer.
//!
//! The sandbox is one that is gone when it ends, whoever ends it; only its writable directory is
//! elsewhere, and is removed by us or, should we be killed, by the next repair.

use super::{Told, Watcher};
use crate::host::random;
use crate::{Engine, planning};
use msb_image::build::{Job, Launch, Written};
use msb_image::{Layer, Prepared, RunConfig, Store};
use msb_spec::{
    Error, Exit, GuestPath, Hostname, Ids, ImageRef, IsolationChoice, Kind, Lower, MachineBase,
    Name, NetworkSpec, Overlay, Patch, Plan, Reference, Result, Span, Spec, Upper, lookup,
};
use msb_wire::{Decoder, FrameKind, MAX_REQUEST, Reply};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A sandbox for one step.
pub(crate) struct Sandboxed<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) store: &'a Store,
    /// What is built, as listings show it.
    pub(crate) names: &'a [Reference],
    /// The directories of the layers so far, topmost first.
    pub(crate) below: Vec<PathBuf>,
    /// Whom the command reaches; none is nobody.
    pub(crate) network: Option<NetworkSpec>,
    pub(crate) latest: Option<i64>,
    /// When the command is killed.
    pub(crate) until: Option<Instant>,
}

/// How it went.
#[derive(Debug)]
pub(crate) enum Ran {
    /// What it wrote, if anything.
    Layer(Option<Layer>),
    /// It did not end well.
    Failed(Exit),
}

/// Where a script is put that names its own interpreter. It is no part of the layer.
const SCRIPT: &str = "/.msb/build-step";
/// What programs see as the name of the machine, whatever the sandbox is called, so that what
/// they make is the same every time.
const HOSTNAME: &str = "build";
/// A command that comes too late is killed as one that takes too long.
const LEAST: Duration = Duration::from_millis(1);
/// What is made at the top of a root that lacks it.
const USUAL: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(LEAST)
}

impl Sandboxed<'_> {
    pub(crate) fn run(&self, job: &Job, watcher: &mut dyn Watcher) -> Result<Ran> {
        if self.below.is_empty() {
            return Err(Error::invalid("there is nothing to run in an image without files")
                .hint("COPY a program into it first"));
        }
        let mut plan = self.plan(job)?;
        let scratch = self.store.scratch(plan.ids.root())?;
        plan.rootfs.upper = Upper::Directory { path: scratch.path.clone() };
        let mut caller = self.engine.create(&plan, false)?;
        if !plan.patches.is_empty() {
            self.engine.begin(&plan, &mut caller)?;
        }
        let attended = attend(caller.into_stream(), watcher);
        if self.engine.forks() {
            reap();
        }
        let exit = attended?;
        if !exit.success() {
            return Ok(Ran::Failed(exit));
        }
        let shift = match plan.ids {
            Ids::Shifted { range } => range.start,
            Ids::Single { .. } | Ids::Subordinate { .. } => 0,
        };
        let written = Written {
            upper: &scratch.path.join("upper0"),
            at: String::new(),
            below: self.below.clone(),
            shift,
            missing: self.missing(),
            covered: plan.network.iter().flat_map(|_| lookup::PLACES).map(str::to_owned).collect(),
            latest: self.latest,
        };
        self.store.pack(written).map(Ran::Layer)
    }

    /// What is decided about the sandbox.
    fn plan(&self, job: &Job) -> Result<Plan> {
        let digits: String = random::<4>().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = Name::parse(&format!("build-{digits}")).expect("letters, digits and a dash");
        let (command, patches) = match &job.command {
            Launch::Words(words) => (words.clone(), Vec::new()),
            Launch::Script(text) => {
                let path = GuestPath::parse(SCRIPT)?;
                let script = Patch::Text { path, content: text.clone(), mode: Some(0o755) };
                (vec![SCRIPT.to_owned()], vec![script])
            }
        };
        let spec = Spec {
            name: Some(name),
            // What is written must be files that we can read, not a disk.
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
            let prepared = Prepared {
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
        // Making a directory that is there costs a round through the guest.
        let there = self.has_directory(&job.workdir);
        plan.patches.retain(|patch| !(there && matches!(patch, Patch::Mkdir { .. })));
        Ok(plan)
    }

    /// Whether the topmost layer that knows a directory has it. WORKDIR has just made it.
    fn has_directory(&self, path: &str) -> bool {
        let below = path.trim_start_matches('/');
        let first =
            self.below.iter().find_map(|layer| fs::symlink_metadata(layer.join(below)).ok());
        first.is_some_and(|meta| meta.is_dir())
    }

    /// The names at the top that no layer has, which the sandbox makes for itself.
    fn missing(&self) -> Vec<String> {
        let there = |name: &str| {
            let found = |layer: &PathBuf| fs::symlink_metadata(Path::new(layer).join(name)).ok();
            self.below.iter().find_map(found).is_some_and(|meta| meta.is_dir() || meta.is_symlink())
        };
        USUAL.iter().filter(|name| !there(name)).map(|name| (*name).to_owned()).collect()
    }
}

/// Lets workers go that have ended: a build has one for every step, and outlives them all.
fn reap() {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while let Ok(Some(_)) = waitid(WaitId::All, ended) {}
}

/// Hands on what the command says until it ends.
fn attend(mut stream: UnixStream, watcher: &mut dyn Watcher) -> Result<Exit> {
    let gone = |cause: &dyn std::fmt::Display| {
        Error::new(Kind::Protocol, "the sandbox of the step was killed").cause(cause)
    };
    let mut decoder = Decoder::new(MAX_REQUEST);
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        while let Some(frame) = decoder.next_frame().map_err(|error| gone(&error))? {
            match frame.kind {
                FrameKind::Stdout | FrameKind::Stderr => {
                    watcher.told(Told::Output(&frame.payload));
                }
                FrameKind::Reply => match frame.value().map_err(|error| gone(&error))? {
                    Reply::Exited(exit) => return Ok(exit),
                    Reply::Failed(error) => return Err(error),
                    _ => {}
                },
                _ => {}
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err(gone(&"its worker closed the connection")),
            Ok(n) => decoder.push(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(gone(&error)),
        }
    }
}
