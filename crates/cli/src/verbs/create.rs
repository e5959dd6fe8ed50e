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
#[command(override_usage = "msb create [OPTIONS] [IMAGE]")]
pub(crate) struct Create {
    #[command(flatten)]
    sandbox: SandboxArgs,
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
        if !spec.command.is_empty() || !spec.entrypoint.is_empty() || spec.timeout.is_some() {
            return Err(Error::invalid("a sandbox that is created runs no command of its own")
                .hint("`msb run --name NAME -- COMMAND` runs one; `msb exec` runs more in it"));
        }
        Ok(spec)
    }

    fn here(self) -> Outcome {
        let engine = engine()?;
        let spec = self.spec(&At::Here)?;
        let plan = self.sandbox.plan(&engine, &spec)?;
        if self.sandbox.dry_run {
            self.sandbox.show(&plan);
            return Ok(0);
        }
        say_isolation(plan.isolation, plan.isolation_reason.as_deref(), self.sandbox.quiet);
        let mut caller = engine.create(&plan, self.sandbox.replace)?;
        if let Err(error) = engine.begin(&plan, &mut caller) {
            // Half a sandbox is none.
            drop(caller);
            let _ = engine.remove(&plan.name, true);
            return Err(error.into());
        }
        caller.detach()?;
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
