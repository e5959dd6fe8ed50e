//! `msb metrics`: how much sandboxes use.

use crate::at::{At, is_up};
use crate::listing::{self, Listing};
use crate::selection::Selection;
use crate::table::ActAt;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_api::{Api, Metrics as Measured};
use msb_spec::{Bytes, Result, Span};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shows how much running sandboxes use.
#[derive(Debug, Parser)]
#[command(override_usage = "msb metrics [OPTIONS] [NAME...]")]
pub(crate) struct Metrics {
    #[command(flatten)]
    which: Selection,
    /// Show it again every second
    #[arg(long, short)]
    watch: bool,
    /// How often with --watch
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Span,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ActAt for Metrics {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
        let mut before = BTreeMap::new();
        loop {
            let measured = self.measure(&*api)?;
            if self.json {
                listing::json(&measured);
            } else {
                if self.watch && std::io::stdout().is_terminal() {
                    words::stdout(b"\x1b[H\x1b[2J");
                }
                table(&measured, &before).print();
            }
            if !self.watch {
                return Ok(0);
            }
            let now = Instant::now();
            before =
                measured.into_iter().map(|one| (one.name.clone(), (now, one.cpu_us))).collect();
            std::thread::sleep(self.interval.0.max(Duration::from_millis(100)));
        }
    }
}

impl Metrics {
    fn measure(&self, api: &dyn Api) -> Result<Vec<Measured>> {
        if self.which.is_given() {
            let names = self.which.optional(api)?;
            return names.iter().map(|name| api.sandbox_metrics(name)).collect();
        }
        // One may end while we look.
        let sandboxes = api.sandbox_list()?.into_iter();
        let running = sandboxes.filter(|sandbox| is_up(sandbox.status));
        Ok(running.filter_map(|sandbox| api.sandbox_metrics(&sandbox.name).ok()).collect())
    }
}

fn table(measured: &[Measured], before: &BTreeMap<String, (Instant, u64)>) -> Listing {
    let mut table = Listing::new(&[
        "NAME", "CPU", "CPU TIME", "MEMORY", "INSIDE", "LIMIT", "PIDS", "DISK", "UP",
    ]);
    for one in measured {
        let share = before.get(&one.name).map(|(at, cpu_us)| {
            let used = one.cpu_us.saturating_sub(*cpu_us) as f64;
            format!("{:.0}%", used * 100.0 / at.elapsed().as_micros().max(1) as f64)
        });
        let dash = || "-".to_owned();
        table.row(&[
            one.name.clone(),
            share.unwrap_or_else(dash),
            format!("{:.2}s", one.cpu_us as f64 / 1e6),
            Bytes(one.memory).to_string(),
            one.guest.map_or_else(dash, |guest| Bytes(guest.memory).to_string()),
            one.memory_limit.map_or_else(dash, |limit| Bytes(limit).to_string()),
            one.guest.map_or(one.pids, |guest| guest.pids).to_string(),
            one.disk.map_or_else(dash, |disk| Bytes(disk).to_string()),
            format!("{}s", one.uptime_ms / 1000),
        ]);
    }
    table
}
