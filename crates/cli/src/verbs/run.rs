//! `msb run`: a new sandbox for one command.

mod elsewhere;

use super::diff::counted;
use super::{bare_engine, finished, say_isolation, tidy_up};
use crate::arguments::{self, SandboxArgs, StreamArgs};
use crate::at::At;
use crate::session::{Attended, Part, attend};
use crate::table::ActAt;
use crate::words::{self, Outcome};
use crate::{change_text, terminal};
use clap::Parser;
use msb_api::{Api, Depth};
use msb_spec::{Error, Kind, Plan, Span, Stage};

/// Runs one command in a sandbox made for it.
#[derive(Debug, Parser)]
#[command(override_usage = "msb run [OPTIONS] [IMAGE] [-- COMMAND...]")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    /// Print the name and leave it running
    #[arg(long, short)]
    detach: bool,
    /// Remove it when its command ends (the default without --name and --detach)
    #[arg(long)]
    rm: bool,
    /// Kill the command after this long (exit code 124)
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    #[command(flatten)]
    streams: StreamArgs,
    /// Command and arguments; a shell if there is none
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Somebody who waits for a command wants to know when it ends.
fn attended_service() -> Error {
    Error::invalid("what is begun again runs without somebody who waits for it")
        .hint("`msb run -d --restart …` leaves it running, and `msb logs -f NAME` follows it")
}

/// Says what is to be looked at, and removes a sandbox that was only kept for that and has nothing.
fn tell_changes(api: &dyn Api, plan: &Plan, quiet: bool) {
    let name = &plan.name;
    if api.sandbox_summary(name).is_err_and(|error| error.kind() == Kind::NotFound) {
        return;
    }
    let changes = match api.workspace_diff(name, &[], Depth::default()) {
        Ok(changes) => changes,
        Err(error) => return words::tell(&error),
    };
    if changes.is_empty() {
        if plan.ephemeral
            && let Err(error) = api.sandbox_remove(name, false)
        {
            words::tell(&error);
        }
        return;
    }
    if !quiet {
        let count = counted(change_text::telling(&changes).len(), "change", "changes");
        words::note(format!("{count} in the workspace; the host's files are as they were"));
        words::note(format!(
            "`msb diff {name}` shows them, `msb apply {name}` brings them here, \
             `msb rm {name}` forgets them"
        ));
    }
}

impl ActAt for Run {
    fn act_at(self, at: &At) -> Outcome {
        match at {
            At::Here => self.here(),
            At::There(server) => self.elsewhere(at, server),
        }
    }
}

impl Run {
    fn here(self) -> Outcome {
        let engine = bare_engine()?;
        let mut spec = self.sandbox.spec(&At::Here)?;
        spec.ephemeral = self.rm || (spec.name.is_none() && !self.detach);
        spec.timeout = self.timeout.or(spec.timeout);
        if !self.command.is_empty() {
            spec.command = self.command;
        }
        spec.default_command = true;
        if spec.restart.is_some() && !self.detach {
            return Err(attended_service().into());
        }
        let mut plan = self.sandbox.plan(&engine, &spec)?;
        let (tty, stdin) = self.streams.choose(self.detach);
        if let Some(command) = &mut plan.command {
            command.tty = tty.then(terminal::size);
            command.stdin = stdin;
            command.detached = self.detach;
            arguments::pass_term(tty, &mut command.env);
        }
        if self.sandbox.dry_run {
            self.sandbox.show(&plan);
            return Ok(0);
        }
        say_isolation(plan.isolation, plan.isolation_reason.as_deref(), self.sandbox.quiet);
        let mut caller = engine.create(&plan, self.sandbox.replace)?;
        // While the sandbox comes up there is time to tidy up behind others.
        tidy_up(&engine);
        // With nothing to change before it, the command is on its way already.
        if !plan.patches.is_empty()
            && let Err(error) = engine.begin(&plan, &mut caller)
        {
            // Half a sandbox is none.
            drop(caller);
            let _ = engine.remove(&plan.name, true);
            return Err(error.into());
        }
        let part = Part { stdin, tty, leave_at_once: self.detach };
        let attended = attend(caller.into_stream(), part).map_err(|error| match error.stage() {
            Some(Stage::Exec) | None => error,
            Some(_) => error.under(format!("cannot start sandbox `{}`", plan.name)),
        });
        match attended? {
            Attended::Exited(exit) => {
                let code = finished(&exit);
                if plan.workspace.is_some() {
                    tell_changes(&engine, &plan, self.sandbox.quiet);
                }
                Ok(code)
            }
            Attended::Left { .. } => {
                words::say(&plan.name);
                Ok(0)
            }
        }
    }
}
