//! `msb create`: a sandbox that stays.

use super::{engine, say_isolation};
use crate::arguments::SandboxArgs;
use crate::output::{self, Outcome};
use crate::pull_progress::Steps;
use crate::remote;
use crate::target::{RemoteServer, Target};
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_engine::{Launch, LaunchUntil};
use msb_spec::{CommandStreams, Error, Name, Result, Spec};

/// Makes a sandbox and leaves it running.
#[derive(Debug, Parser)]
#[command(override_usage = "msb create [OPTIONS] [IMAGE] [[--] COMMAND...]")]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// Taken for the habit: `msb exec` connects stdin
    #[arg(long, short)]
    interactive: bool,
    /// Taken for the habit: at a terminal `msb exec` has one
    #[arg(long, short)]
    tty: bool,
    /// With --restart: the command that is begun again; the image's own if there is none
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl TargetVerb for CreateArgs {
    fn run_on(self, target: &Target) -> Outcome {
        match target {
            Target::Local => self.here(),
            Target::Remote(server) => self.create_remote(target, server),
        }
    }
}

impl CreateArgs {
    fn spec(&self, target: &Target) -> Result<Spec> {
        let mut spec = self.sandbox.spec(target)?;
        spec.ephemeral = false;
        if !self.command.is_empty() {
            spec.command.clone_from(&self.command);
        }
        if spec.restart.is_some() {
            spec.default_command = true;
            return Ok(spec);
        }
        if !spec.command.is_empty() || !spec.entrypoint.is_empty() || spec.timeout.is_some() {
            return Err(Error::invalid("a sandbox that is created runs no command of its own")
                .hint(
                    "`msb run -d --name NAME -- COMMAND` runs one, and `--restart always` begins \
                     it again; `msb exec` runs more in it",
                ));
        }
        Ok(spec)
    }

    /// Prints the name of the sandbox, and how to get what `-i` and `-t` asked for.
    fn tell(&self, name: &Name) {
        if (self.interactive || self.tty) && !self.sandbox.quiet {
            output::note(format!("`msb exec {name}` opens a shell, with stdin and a terminal"));
        }
        output::result("name", name);
    }

    fn here(self) -> Outcome {
        let engine = engine()?;
        let spec = self.spec(&Target::Local)?;
        let plan = self.sandbox.plan(&engine, &spec, &CommandStreams::in_background())?;
        if self.sandbox.dry_run {
            self.sandbox.show(&plan);
            return Ok(0);
        }
        say_isolation(plan.isolation, plan.isolation_reason.as_deref(), self.sandbox.quiet);
        let launch = Launch {
            replace: self.sandbox.replace,
            until: LaunchUntil::CommandStarted,
            ..Launch::default()
        };
        self.tell(&engine.launch(plan, &launch)?.detach()?.name);
        Ok(0)
    }

    fn create_remote(self, target: &Target, server: &RemoteServer) -> Outcome {
        let spec = self.spec(target)?;
        let registry = self.sandbox.fetch.registry()?;
        let (api, mut spec) = remote::spec_for_server(server.api()?, spec)?;
        let steps = Steps::new(self.sandbox.quiet);
        if self.sandbox.dry_run {
            remote::fetch(&*api, &mut spec, &registry, &steps)?;
            let plan = api.sandbox_plan(&spec, &steps)?;
            drop(steps);
            self.sandbox.show(&plan);
            return Ok(0);
        }
        let asked = msb_api::Create { spec, replace: self.sandbox.replace, registry };
        let made = api.sandbox_create(&asked, &steps)?;
        drop(steps);
        let reason = made.isolation_reason.as_deref();
        say_isolation(&made.isolation, reason, self.sandbox.quiet);
        self.tell(&made.name);
        Ok(0)
    }
}
