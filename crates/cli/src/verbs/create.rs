//! `msb create`: a sandbox that stays.

use super::{engine, say_isolation};
use crate::arguments::SandboxArgs;
use crate::at::{At, Server};
use crate::elsewhere;
use crate::fetching::Steps;
use crate::table::ActAt;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_spec::{Error, Result, Spec};

/// Makes a sandbox and leaves it running.
#[derive(Debug, Parser)]
#[command(override_usage = "msb create [OPTIONS] [IMAGE] [-- COMMAND...]")]
pub(crate) struct Create {
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// With --restart: the command that is begun again; the image's own if there is none
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ActAt for Create {
    fn act_at(self, at: &At) -> Outcome {
        match at {
            At::Here => self.here(),
            At::There(server) => self.elsewhere(at, server),
        }
    }
}

impl Create {
    fn spec(&self, at: &At) -> Result<Spec> {
        let mut spec = self.sandbox.spec(at)?;
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

    fn here(self) -> Outcome {
        let engine = engine()?;
        let spec = self.spec(&At::Here)?;
        let mut plan = self.sandbox.plan(&engine, &spec)?;
        if let Some(command) = &mut plan.command {
            command.detached = true;
        }
        if self.sandbox.dry_run {
            self.sandbox.show(&plan);
            return Ok(0);
        }
        say_isolation(plan.isolation, plan.isolation_reason.as_deref(), self.sandbox.quiet);
        let mut caller = engine.create(&plan, self.sandbox.replace)?;
        let mut begun = engine.begin(&plan, &mut caller);
        if plan.command.is_some() {
            begun = begun.and_then(|()| caller.started());
        }
        if let Err(error) = begun {
            // Half a sandbox is none.
            drop(caller);
            let _ = engine.remove(&plan.name, true);
            return Err(error.into());
        }
        let left = caller.detach();
        // A service may have failed often enough by now to have ended with its sandbox.
        if plan.command.is_none() {
            left?;
        }
        words::say(&plan.name);
        Ok(0)
    }

    fn elsewhere(self, at: &At, server: &Server) -> Outcome {
        let spec = self.spec(at)?;
        let registry = self.sandbox.fetch.registry()?;
        let (api, mut spec) = elsewhere::asked(server.api()?, spec)?;
        let steps = Steps::new(self.sandbox.quiet);
        if self.sandbox.dry_run {
            elsewhere::fetch(&*api, &mut spec, &registry, &steps)?;
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
        words::say(&made.name);
        Ok(0)
    }
}
