//! Measures contenders in turns, so that a slow minute of the machine falls on all of them.

use std::time::Duration;

use anyhow::{Context, Result};

use super::runner::Runner;
use super::stopwatch::Argv;

/// One thing measured, again and again.
pub(super) struct Entrant<'a> {
    pub(super) name: &'a str,
    /// Ours: its failure ends the benchmark. Another's becomes a row with its error.
    pub(super) ours: bool,
    pub(super) measure: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Entrant<'a> {
    /// Measures how many milliseconds a command takes.
    pub(super) fn timed(name: &'a str, runner: &'a Runner, argv: Argv) -> Self {
        let measure = Box::new(move || Ok(milliseconds(runner.run(&argv)?)));
        Entrant { name, ours: false, measure }
    }

    pub(super) fn ours(self) -> Self {
        Entrant { ours: true, ..self }
    }
}

/// What all rounds gave of one entrant.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) ours: bool,
    pub(super) samples: Result<Vec<f64>, String>,
}

/// One round more than asked for: the first fills caches and is not counted.
pub(super) fn play(rounds: usize, entrants: Vec<Entrant<'_>>) -> Result<Vec<Series>> {
    play_after(1, rounds, entrants)
}

/// For what begins with nothing each time and takes so long that a cold cache does not show.
pub(super) fn play_cold(rounds: usize, entrants: Vec<Entrant<'_>>) -> Result<Vec<Series>> {
    play_after(0, rounds, entrants)
}

fn play_after(
    warming: usize,
    rounds: usize,
    mut entrants: Vec<Entrant<'_>>,
) -> Result<Vec<Series>> {
    let mut samples: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); entrants.len()];
    for round in 0..warming + rounds {
        for turn in order(round, entrants.len()) {
            let entrant = &mut entrants[turn];
            let Ok(series) = &mut samples[turn] else {
                continue;
            };
            match (entrant.measure)() {
                Ok(_) if round < warming => {}
                Ok(sample) => series.push(sample),
                Err(error) if entrant.ours => {
                    return Err(error).with_context(|| format!("{} failed", entrant.name));
                }
                Err(error) => samples[turn] = Err(format!("{error:#}")),
            }
        }
    }
    let series = entrants.into_iter().zip(samples).map(|(entrant, samples)| Series {
        name: entrant.name.to_owned(),
        ours: entrant.ours,
        samples,
    });
    Ok(series.collect())
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(super) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        Some(sorted[middle])
    } else {
        Some(f64::midpoint(*sorted.get(middle.checked_sub(1)?)?, sorted[middle]))
    }
}

/// Each round starts with another one and every second goes backwards: the kernel takes a
/// namespace apart after its owner has gone, and the next in turn pays for that.
fn order(round: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|turn| (turn + round / 2) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn everyone_has_one_turn_a_round_and_the_first_round_does_not_count() {
        let turns = RefCell::new(Vec::new());
        let turns = &turns;
        let entrant = |name: &'static str| Entrant {
            name,
            ours: false,
            measure: Box::new(move || {
                turns.borrow_mut().push(name);
                Ok(1.0)
            }),
        };

        let series = play(2, vec![entrant("a"), entrant("b")]).unwrap();

        assert!(series.iter().all(|series| series.samples == Ok(vec![1.0, 1.0])));
        assert_eq!(*turns.borrow(), ["a", "b", "b", "a", "b", "a"]);
    }

    #[test]
    fn cold_rounds_all_count() {
        let mut next = 0.0;
        let measure = Box::new(|| {
            next += 1.0;
            Ok(next)
        });

        let series = play_cold(2, vec![Entrant { name: "a", ours: false, measure }]).unwrap();

        assert_eq!(series[0].samples, Ok(vec![1.0, 2.0]));
    }

    #[test]
    fn a_failing_contender_is_noted_and_left_out_afterwards() {
        let mut calls = 0;
        let failing = Entrant {
            name: "other",
            ours: false,
            measure: Box::new(|| {
                calls += 1;
                bail!("not supported")
            }),
        };

        let series = play(5, vec![failing]).unwrap();

        assert_eq!(series[0].samples, Err("not supported".to_owned()));
        assert_eq!(calls, 1);
    }

    #[test]
    fn our_failure_ends_the_benchmark() {
        let ours = Entrant { name: "msb", ours: true, measure: Box::new(|| bail!("no")) };
        let error = play(5, vec![ours]).err().unwrap();
        assert_eq!(format!("{error:#}"), "msb failed: no");
    }
}
