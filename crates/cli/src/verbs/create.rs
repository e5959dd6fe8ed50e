//! `msb create`: a sandbox that stays.

use super::{engine, say_isolation};
use crate::arguments::SandboxArgs;
use crate::table::Act;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_spec::Error;

/// Makes a sandbox and leaves it running.
#[derive(Debug, Parser)]
#[command(override_usage = "msb create [OPTIONS] [IMAGE]")]
pub(crate) struct Create {
    #[command(flatten)]
    sandbox: SandboxArgs,
}

impl Act for Create {
    fn act(self) -> Outcome {
        let engine = engine()?;
        let mut spec = self.sandbox.spec()?;
        spec.ephemeral = false;
        if !spec.command.is_empty() || !spec.entrypoint.is_empty() || spec.timeout.is_some() {
            return Err(Error::invalid("a sandbox that is created runs no command of its own")
                .hint("`msb run --name NAME -- COMMAND` runs one; `msb exec` runs more in it")
                .into());
        }
        let plan = self.sandbox.plan(&engine, &spec)?;
        if self.sandbox.dry_run {
            self.sandbox.show(&plan);
            return Ok(0);
        }
        say_isolation(&plan, self.sandbox.quiet);
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
}
