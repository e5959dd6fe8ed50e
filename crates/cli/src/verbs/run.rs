//! `msb run`: a new sandbox for one command.

mod remote;

use super::diff::counted;
use super::{bare_engine, finished, say_detached, say_isolation, tidy_up};
use crate::arguments::{SandboxArgs, StreamArgs};
use crate::local_attach::{AttachOptions, AttachResult, ClosedOutput, attach};
use crate::output::{self, Outcome};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use crate::{change_text, host_programs, net_text};
use clap::Parser;
use msb_api::{Api, Depth};
use msb_engine::Launch;
use msb_spec::{Error, Kind, Plan, Result, Span, Stage};

/// Runs one command in a sandbox made for it.
#[derive(Debug, Parser)]
#[command(override_usage = "msb run [OPTIONS] [IMAGE] [[--] COMMAND...]")]
pub(crate) struct RunArgs {
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
    /// Command and arguments; a shell if there is none. `--` may be left out behind an image
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A restarted command has no one end, so the foreground has no exit code to return.
fn attended_service() -> Error {
    Error::invalid("`--restart` cannot be used in the foreground")
        .hint("`msb run -d --restart …` leaves it running, and `msb logs -f NAME` follows it")
}

/// Says what is to be looked target, and removes a sandbox that was only kept for that and has nothing.
fn tell_changes(api: &dyn Api, plan: &Plan, quiet: bool) {
    let name = &plan.name;
    if api.sandbox_summary(name).is_err_and(|error| error.kind() == Kind::NotFound) {
        return;
    }
    let changes = match api.workspace_diff(name, &[], Depth::default()) {
        Ok(changes) => changes,
        Err(error) => return output::print_error(&error),
    };
    if changes.is_empty() {
        if plan.ephemeral
            && let Err(error) = api.sandbox_remove(name, false)
        {
            output::print_error(&error);
        }
        return;
    }
    if !quiet {
        let count = counted(change_text::reportable(&changes).len(), "change", "changes");
        output::note(format!("{count} in the workspace; the host's files are as they were"));
        output::note(format!(
            "`msb diff {name}` shows them, `msb apply {name}` brings them here, \
             `msb discard {name}` forgets them"
        ));
    }
}

impl TargetVerb for RunArgs {
    fn run_on(self, target: &Target) -> Outcome {
        match target {
            Target::Local => self.here(),
            Target::Remote(server) => self.run_remote(target, server),
        }
    }
}

impl RunArgs {
    /// Refuses flags that contradict each other.
    fn check(&self) -> Result<()> {
        let hint = "`msb create -n NAME` keeps a sandbox running, and `msb exec NAME` opens a \
                    shell in it";
        self.streams.check_background(self.detach, hint)
    }

    fn here(self) -> Outcome {
        self.check()?;
        let engine = bare_engine()?;
        let mut spec = self.sandbox.spec(&Target::Local)?;
        spec.ephemeral = self.rm || (spec.name.is_none() && !self.detach);
        spec.timeout = self.timeout.or(spec.timeout);
        if !self.command.is_empty() {
            spec.command = self.command;
        }
        spec.default_command = true;
        if spec.restart.is_some() && !self.detach {
            return Err(attended_service().into());
        }
        let streams = self.streams.of_first_command(self.detach);
        let plan = self
            .sandbox
            .plan(&engine, &spec, &streams)
            .map_err(|error| host_programs::explain_image(error, self.sandbox.image()))?;
        if self.sandbox.dry_run {
            self.sandbox.show(&plan);
            return Ok(0);
        }
        say_isolation(plan.isolation, plan.isolation_reason.as_deref(), self.sandbox.quiet);
        let launch = Launch {
            replace: self.sandbox.replace,
            // While the sandbox comes up there is time to tidy up behind others.
            while_booting: Some(&|| tidy_up(&engine)),
            ..Launch::default()
        };
        let mut running = engine.launch(plan, &launch)?;
        let net_log = running.take_net_log().filter(|_| !self.sandbox.quiet && !self.detach);
        let (plan, stream) = running.into_stream();
        let part = AttachOptions {
            stdin: streams.stdin,
            tty: streams.tty.is_some(),
            leave_at_once: self.detach,
            closed_output: ClosedOutput::ClosePipe,
        };
        let program = plan.command.as_ref().and_then(|command| command.argv.first());
        let attended = attach(stream, part).map_err(|error| match error.stage() {
            Some(Stage::Exec) | None => {
                host_programs::explain_missing(error, program.map(String::as_str), &plan.image)
            }
            Some(_) => error.under(format!("cannot start sandbox `{}`", plan.name)),
        });
        match attended? {
            AttachResult::Exited(exit) => {
                let code = finished(&exit);
                let refused = net_log.and_then(|mut log| net_text::refusals(&log.more().ok()?));
                refused.into_iter().for_each(output::note);
                if plan.workspace.is_some() {
                    tell_changes(&engine, &plan, self.sandbox.quiet);
                }
                Ok(code)
            }
            AttachResult::Detached { exec } => {
                match self.detach {
                    true => output::result("name", &plan.name),
                    false => say_detached(&plan.name, exec),
                }
                Ok(0)
            }
        }
    }
}
