//! What was used in the last hour, as lines of small pictures.

use crate::output::{self, Outcome};
use crate::{clock, listing, sparkline};
use msb_api::{Api, Sample};
use msb_spec::{Bytes, Name};
use serde::Serialize;

/// Letters of a picture: an hour has 360 samples, a terminal 80 letters.
const ROOM: usize = 48;

#[derive(Serialize)]
struct History {
    name: Name,
    samples: Vec<Sample>,
}

pub(super) fn show(api: &dyn Api, names: Vec<Name>, json: bool) -> Outcome {
    let of = |name: Name| Ok(History { samples: api.sandbox_history(&name)?, name });
    let all = names.into_iter().map(of).collect::<msb_spec::Result<Vec<History>>>()?;
    match json {
        true => listing::json(&all),
        false => all.iter().flat_map(|one| lines(&one.name, &one.samples)).for_each(output::print),
    }
    Ok(0)
}

/// How much of something was used, or how fast, at each moment.
pub(super) struct HistoryRow {
    name: &'static str,
    values: Vec<f64>,
    written: fn(f64) -> String,
}

/// Share of one processor between samples, in percent.
pub(super) fn cpu(samples: &[Sample]) -> Vec<f64> {
    rates(samples, |sample| Some(sample.cpu_us)).into_iter().map(|rate| rate / 1e4).collect()
}

/// How much more there was each second.
fn rates(samples: &[Sample], count: impl Fn(&Sample) -> Option<u64>) -> Vec<f64> {
    let rate = |pair: &[Sample]| {
        let (before, after) = (count(&pair[0])?, count(&pair[1])?);
        let passed = pair[1].time.saturating_sub(pair[0].time).max(1) as f64 / 1e3;
        Some(after.saturating_sub(before) as f64 / passed)
    };
    samples.windows(2).filter_map(rate).collect()
}

fn rows(samples: &[Sample]) -> Vec<HistoryRow> {
    let percent = |value: f64| format!("{value:.0}%");
    let number = |value: f64| format!("{value:.0}");
    let every = |value: fn(&Sample) -> Option<u64>| -> Vec<f64> {
        samples.iter().filter_map(value).map(|value| value as f64).collect()
    };
    let row = |name, values, written| HistoryRow { name, values, written };
    let all = vec![
        row("CPU", cpu(samples), percent as fn(f64) -> String),
        row("MEMORY", every(|it| Some(it.memory)), bytes),
        row("INSIDE", every(|it| it.guest_memory), bytes),
        row("PIDS", every(|it| Some(u64::from(it.pids))), number),
        row("NET IN", rates(samples, |it| Some(it.net?.received)), speed),
        row("NET OUT", rates(samples, |it| Some(it.net?.sent)), speed),
        row("READ", rates(samples, |it| Some(it.disk?.read)), speed),
        row("WRITTEN", rates(samples, |it| Some(it.disk?.written)), speed),
    ];
    // A sandbox without a network has no counters of it.
    all.into_iter().filter(|row| !row.values.is_empty()).collect()
}

#[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "counts of bytes")]
pub(super) fn bytes(value: f64) -> String {
    Bytes(value.max(0.0) as u64).to_string()
}

pub(super) fn speed(value: f64) -> String {
    format!("{}/s", bytes(value))
}

fn lines(name: &Name, samples: &[Sample]) -> Vec<String> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return vec![format!("{name}  nothing yet: it is looked at every 10 seconds")];
    };
    let (from, to) = (clock::written(first.time), clock::written(last.time));
    let mut lines = vec![format!("{name}  {from} to {to}")];
    for HistoryRow { name, values, written } in rows(samples) {
        let picture = sparkline::line(&sparkline::squeezed(&values, ROOM), 0.0);
        let most = values.iter().copied().fold(0.0, f64::max);
        let last = values.last().copied().unwrap_or(0.0);
        let (last, most) = (written(last), written(most));
        lines.push(format!("  {name:<8} {picture:<ROOM$}  last {last}, most {most}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_api::NetUsage;

    #[test]
    fn an_hour_is_told_in_lines_of_what_is_counted() {
        let sample = |at: u64| Sample {
            time: at * 10_000,
            cpu_us: at * 5_000_000,
            memory: 1 << 20,
            guest_memory: None,
            pids: 3,
            disk: None,
            net: Some(NetUsage { received: at * 10_240, sent: 0, flows: 0 }),
        };
        let samples: Vec<Sample> = (0..3).map(sample).collect();
        let lines = lines(&Name::parse("box").unwrap(), &samples);
        assert_eq!(lines[0], "box  1970-01-01T00:00:00.000Z to 1970-01-01T00:00:20.000Z");
        assert_eq!(lines.len(), 6, "{lines:#?}");
        assert!(lines[1].starts_with("  CPU      ██") && lines[1].ends_with("last 50%, most 50%"));
        assert!(lines[4].ends_with("last 1K/s, most 1K/s"), "{}", lines[4]);
    }
}
