//! The flags of a sandbox that runs a service: restart policy and health checks.

use clap::Args;
use msb_spec::{Error, Health, Restart, Result, Span, Spec};

/// When the first command is begun again, and how its health is found out.
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    /// Begin the command again when it ends: no, on-failure[:N] or always[:N] [default: no]
    #[arg(long, value_name = "POLICY", help_heading = SERVICE)]
    pub(crate) restart: Option<Restart>,
    /// Command that tells by its exit code whether the sandbox is well
    #[arg(long, visible_alias = "health-cmd", value_name = "COMMAND", help_heading = SERVICE)]
    health: Option<String>,
    /// From one check to the next [default: 5s]
    #[arg(long, value_name = "TIME", help_heading = SERVICE)]
    health_interval: Option<Span>,
    /// A check that takes longer has failed [default: 30s]
    #[arg(long, value_name = "TIME", help_heading = SERVICE)]
    health_timeout: Option<Span>,
    /// This many failures in a row are unhealthy [default: 3]
    #[arg(long, value_name = "N", help_heading = SERVICE)]
    health_retries: Option<u32>,
    /// For how long after the start failures do not count [default: 0s]
    #[arg(long, visible_alias = "health-start-period", value_name = "TIME", help_heading = SERVICE)]
    health_start: Option<Span>,
}

const SERVICE: &str = "Service";

impl ServiceArgs {
    pub(crate) fn add_to(&self, spec: &mut Spec) -> Result<()> {
        spec.restart = self.restart.unwrap_or(spec.restart);
        if let Some(command) = &self.health {
            let before = spec.health.take().unwrap_or_else(|| Health::new(""));
            spec.health = Some(Health { command: command.clone(), ..before });
        }
        let spans = [self.health_interval, self.health_timeout, self.health_start];
        let Some(health) = &mut spec.health else {
            if spans.iter().any(Option::is_some) || self.health_retries.is_some() {
                return Err(Error::invalid("there is no health check to say this of")
                    .hint("`--health COMMAND` is one"));
            }
            return Ok(());
        };
        health.interval = self.health_interval.unwrap_or(health.interval);
        health.timeout = self.health_timeout.unwrap_or(health.timeout);
        health.start = self.health_start.unwrap_or(health.start);
        health.retries = self.health_retries.unwrap_or(health.retries);
        Ok(())
    }
}
