//! Sandboxes that end with the process that started them.

use super::{PullProgress, reach};
use crate::files::SymlinkPolicy;
use crate::images::Fetching;
use crate::sandboxes::Engine;
use crate::start::{Launch, LaunchUntil, RunningSandbox};
use msb_api::{Create, Summary, Watch};
use msb_spec::{CommandStreams, Error, Kind, Name, Result, Spec};
use msb_wire::ClientMessage;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// A connection to a sandbox that ends with it: when it is dropped, and when this process ends.
#[derive(Debug)]
pub struct SandboxTie(UnixStream);

impl SandboxTie {
    /// Releases the sandbox: it goes on without an owner.
    pub fn release(mut self) -> Result<()> {
        match self.0.write_all(&ClientMessage::Detach.encode()) {
            // It has ended: there is nothing to release.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| {
                Error::new(Kind::State, "the sandbox cannot be released").cause(error)
            }),
        }
    }
}

impl Engine {
    /// Creates a sandbox that ends with its tie. An ephemeral one is removed then.
    pub fn create_owned(
        &self,
        create: &Create,
        watch: &dyn Watch,
    ) -> Result<(Summary, SandboxTie)> {
        let running = launch(self, &create.spec, create, watch)?;
        let name = running.plan().name.clone();
        // Before the tie is handed over: a sandbox that has ended by now may be gone.
        let summary = self.summary(&name)?;
        Ok((summary, tie(&name, running)?))
    }

    /// Starts a stopped sandbox, which ends with its tie. None if it was running already.
    pub fn start_owned(&self, name: &Name) -> Result<Option<SandboxTie>> {
        self.start_stopped(name)?.map(|running| tie(name, running)).transpose()
    }

    /// Ties a running sandbox: it ends with the tie from now on.
    pub fn tie(&self, name: &Name) -> Result<SandboxTie> {
        Ok(SandboxTie(self.own(name)?.into_stream()))
    }
}

fn tie(name: &Name, running: RunningSandbox<'_>) -> Result<SandboxTie> {
    let (_, stream) = running.into_owner();
    let ended = || Error::new(Kind::State, format!("the sandbox has ended: `{name}`"));
    stream.map(SandboxTie).ok_or_else(ended)
}

/// Plans a sandbox of a client and starts it.
pub(super) fn launch<'a>(
    engine: &'a Engine,
    spec: &Spec,
    create: &Create,
    watch: &dyn Watch,
) -> Result<RunningSandbox<'a>> {
    let progress = PullProgress::new(watch);
    let fetching = Fetching { reach: reach(&create.registry), progress: &progress };
    // The caller does not wait for the command, and it outlives the call.
    let plan = engine.checked_plan(spec, &CommandStreams::in_background(), &fetching)?;
    watch.step("starting the sandbox", None);
    let launch = Launch {
        replace: create.replace,
        until: LaunchUntil::CommandStarted,
        symlinks: SymlinkPolicy::Refuse,
        while_booting: None,
    };
    engine.launch(plan, &launch)
}
