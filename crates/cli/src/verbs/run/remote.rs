//! `msb run` behind a server.

use super::super::{finished, say_detached, say_isolation};
use super::{RunArgs, attended_service, tell_changes};
use crate::local_attach::{AttachOptions, AttachResult, ClosedOutput};
use crate::output::{self, Outcome};
use crate::remote_attach::{SignalForwarder, attach};
use crate::target::{RemoteServer, Target};
use crate::{pull_progress::Steps, remote};
use msb_api::{Api, Create, Exec, Registry};
use msb_spec::{Error, Kind, Name, Plan, Result, Span, Spec, Stage, Stdin};
use std::sync::Arc;
use std::time::Duration;

/// How long a sandbox goes on without a client, if it was made for a command at a
/// terminal and the connection to it was lost.
const ORPHAN_LIFETIME: Span = Span(Duration::from_secs(60));

impl RunArgs {
    pub(super) fn run_remote(self, target: &Target, server: &RemoteServer) -> Outcome {
        self.check()?;
        if self.detach && self.rm {
            // A server keeps what it was asked to make.
            return Err(server.refuse("`msb run --detach --rm`").into());
        }
        let quiet = self.sandbox.quiet;
        let mut spec = self.sandbox.spec(target)?;
        spec.ephemeral = self.rm || (spec.name.is_none() && !self.detach);
        spec.timeout = self.timeout.or(spec.timeout);
        if !self.command.is_empty() {
            spec.command.clone_from(&self.command);
        }
        spec.default_command = true;
        if spec.restart.is_some() && !self.detach {
            return Err(attended_service().into());
        }
        let registry = self.sandbox.fetch.registry()?;
        let calls = SignalForwarder::collect()?;
        let (api, mut spec) = remote::spec_for_server(server.api()?, spec)?;
        let streams = self.streams.of_first_command(self.detach);
        let steps = Steps::new(quiet);
        remote::fetch(&*api, &mut spec, &registry, &steps)?;
        let mut plan = api.sandbox_plan(&spec, &steps)?;
        if let Some(command) = &mut plan.command {
            // The server plans for a caller without a terminal.
            streams.connect(command);
        }
        if self.sandbox.dry_run {
            drop(steps);
            self.sandbox.show(&plan);
            return Ok(0);
        }
        say_isolation(plan.isolation, plan.isolation_reason.as_deref(), quiet);
        spec.name = Some(plan.name.clone());
        let replace = self.sandbox.replace;
        if self.detach {
            let made = api.sandbox_create(&Create { spec, replace, registry }, &steps)?;
            drop(steps);
            output::result("name", made.name);
            return Ok(0);
        }
        let begun = Begun::begin(&api, &plan, spec, replace, &steps);
        drop(steps);
        let begun = begun?;
        let name = begun.name.clone();
        if streams.stdin == Stdin::Closed {
            begun.exec.input().close()?;
        }
        let part = AttachOptions {
            stdin: streams.stdin,
            tty: streams.tty.is_some(),
            leave_at_once: false,
            closed_output: ClosedOutput::ClosePipe,
        };
        let attended = attach((&api, &name), begun.exec, part, &calls);
        let attended = attended.map_err(|error| under(&name, error));
        match attended {
            Ok(AttachResult::Detached { exec }) => {
                say_detached(&name, exec);
                Ok(0)
            }
            Ok(AttachResult::Exited(exit)) => {
                let code = finished(&exit);
                begun.end.after(&*api, &name)?;
                if plan.workspace.is_some() {
                    tell_changes(&*api, &plan, quiet);
                }
                Ok(code)
            }
            Err(error) => {
                let _ = begun.end.after(&*api, &name);
                Err(error.into())
            }
        }
    }
}

/// A command that runs in a sandbox made for it.
struct Begun {
    name: Name,
    exec: Box<dyn Exec>,
    end: End,
}

/// What becomes of the sandbox after its command.
enum End {
    /// It has ended with it.
    Already,
    /// It is stopped, and stays.
    Stop,
    /// The sandbox was removed.
    Remove,
}

impl Begun {
    fn begin(
        api: &Arc<dyn Api>,
        plan: &Plan,
        mut spec: Spec,
        replace: bool,
        steps: &Steps,
    ) -> Result<Self> {
        let command = plan.command.as_ref();
        let command = command.ok_or_else(|| Error::invalid("there is no command to run"))?;
        if spec.ephemeral && command.tty.is_none() {
            if replace {
                match api.sandbox_remove(&plan.name, true) {
                    Err(error) if error.kind() == Kind::NotFound => {}
                    removed => removed?,
                }
            }
            let (name, exec) =
                api.exec_run(&spec, steps).map_err(|error| under(&plan.name, error))?;
            return Ok(Self { name, exec, end: End::Already });
        }
        // A Spec says nothing about terminals and keeps no stdin open beyond its maker, so the
        // sandbox is made first and the command started in it.
        let end = if spec.ephemeral { End::Remove } else { End::Stop };
        if spec.ephemeral {
            spec.idle_timeout = spec.idle_timeout.or(Some(ORPHAN_LIFETIME));
        }
        (spec.command, spec.entrypoint) = (Vec::new(), Vec::new());
        (spec.default_command, spec.timeout) = (false, None);
        let registry = Registry::default();
        let name = api.sandbox_create(&Create { spec, replace, registry }, steps)?.name;
        match api.exec_start(&name, command) {
            Ok(exec) => Ok(Self { name, exec, end }),
            Err(error) => {
                let _ = end.after(&**api, &name);
                Err(error)
            }
        }
    }
}

impl End {
    fn after(&self, api: &dyn Api, name: &Name) -> Result<()> {
        match self {
            Self::Already => Ok(()),
            Self::Stop => api.sandbox_stop(name, Duration::ZERO).map(drop),
            Self::Remove => api.sandbox_remove(name, true),
        }
    }
}

fn under(name: &Name, error: Error) -> Error {
    match error.stage() {
        Some(Stage::Exec) | None => error,
        Some(_) => error.under(format!("cannot start sandbox `{name}`")),
    }
}
