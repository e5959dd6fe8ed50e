//! `msb metrics`: how much sandboxes use.

mod history;
mod order;
mod watch;

use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::selection::Selection;
use crate::target::{Target, is_up};
use crate::verb_table::TargetVerb;
use crate::{clock, terminal};
use clap::Parser;
use msb_api::{Api, Metrics as SandboxMetrics, prometheus};
use msb_spec::{Bytes, Error, Result, Span};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// More often would only measure how much it costs to measure.
const SHORTEST: Duration = Duration::from_millis(100);

/// Shows how much running sandboxes use.
#[derive(Debug, Parser)]
#[command(override_usage = "msb metrics [OPTIONS] [NAME...]")]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    which: Selection,
    /// Show it again every second; in a terminal keys sort it, and `q` ends it
    #[arg(long, short, conflicts_with_all = ["history", "prometheus"])]
    watch: bool,
    /// How often with --watch, at least 100ms [default: 1s]
    #[arg(long, value_name = "TIME", requires = "watch")]
    interval: Option<Span>,
    /// What was used in the last hour
    #[arg(long, conflicts_with = "prometheus")]
    history: bool,
    /// Print it as Prometheus reads it, also of sandboxes that do not run
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for MetricsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        if self.interval.is_some_and(|span| span.0 < SHORTEST) {
            return Err(Error::invalid("--interval is at least 100ms").into());
        }
        let api = target.api()?;
        if self.prometheus {
            let names = self.names(&*api)?;
            let gathered = prometheus::gather(&*api, |name| {
                names.as_ref().is_none_or(|names| names.contains(name))
            })?;
            output::write_stdout(prometheus::exposition(&gathered).as_bytes());
            return Ok(0);
        }
        if self.history {
            return history::show(&*api, self.running(&*api)?, self.json);
        }
        if self.watch && !self.json && terminal::is_there() {
            return watch::show(&self, &*api);
        }
        let mut before = BTreeMap::new();
        loop {
            let measured = self.measure(&*api)?;
            match self.json {
                true => listing::json(&measured),
                false => table(&measured, &before).print(),
            }
            if !self.watch {
                return Ok(0);
            }
            let now = Instant::now();
            before =
                measured.into_iter().map(|one| (one.name.clone(), (now, one.cpu_us))).collect();
            std::thread::sleep(self.pause());
        }
    }
}

impl MetricsArgs {
    fn pause(&self) -> Duration {
        self.interval.map_or(Duration::from_secs(1), |span| span.0)
    }

    /// Those that were named; none is all.
    fn names(&self, api: &dyn Api) -> Result<Option<Vec<msb_spec::Name>>> {
        self.which.is_given().then(|| self.which.optional(api)).transpose()
    }

    /// Those that were named, or all that run.
    fn running(&self, api: &dyn Api) -> Result<Vec<msb_spec::Name>> {
        if let Some(names) = self.names(api)? {
            return Ok(names);
        }
        let running = api.sandbox_list()?.into_iter().filter(|sandbox| is_up(sandbox.status));
        Ok(running.map(|sandbox| sandbox.name).collect())
    }

    fn measure(&self, api: &dyn Api) -> Result<Vec<SandboxMetrics>> {
        if self.which.is_given() {
            let names = self.which.optional(api)?;
            return names.iter().map(|name| api.sandbox_metrics(name)).collect();
        }
        // One may end while we look.
        let running = self.running(api)?.into_iter();
        Ok(running.filter_map(|name| api.sandbox_metrics(&name).ok()).collect())
    }
}

fn table(measured: &[SandboxMetrics], before: &BTreeMap<String, (Instant, u64)>) -> Listing {
    let mut table = Listing::new(&[
        "NAME", "CPU", "CPU TIME", "MEMORY", "INSIDE", "LIMIT", "PIDS", "DISK", "NET IN",
        "NET OUT", "UP",
    ]);
    for one in measured {
        let share = before.get(&one.name).map(|(since, cpu_us)| {
            let used = one.cpu_us.saturating_sub(*cpu_us) as f64;
            format!("{:.0}%", used * 100.0 / since.elapsed().as_micros().max(1) as f64)
        });
        let dash = || "-".to_owned();
        let bytes = |bytes: Option<u64>| bytes.map_or_else(dash, |bytes| Bytes(bytes).to_string());
        table.row(&[
            one.name.clone(),
            share.unwrap_or_else(dash),
            clock::duration(one.cpu_us / 1000),
            Bytes(one.memory).to_string(),
            bytes(one.guest.map(|guest| guest.memory)),
            bytes(one.memory_limit),
            one.guest.map_or(one.pids, |guest| guest.pids).to_string(),
            bytes(one.disk),
            bytes(one.net.map(|net| net.received)),
            bytes(one.net.map(|net| net.sent)),
            clock::whole_seconds(one.uptime_ms),
        ]);
    }
    table
}
