//! The part of the benchmark that runs inside the lab: starts microVMs of both, in turns.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::MARK;
use super::peer;
use super::timeline::{self, Step};
use crate::bench::processes;
use crate::bench::rounds::{Series, milliseconds};
use crate::bench::table::{Goal, Table, Unit};

/// The row that ratios are made with.
const PEER: &str = "microsandbox";

/// What was needed only to start has been given back by then.
const SETTLE: Duration = Duration::from_secs(3);

/// One of the two, and how it is asked for the same things.
struct Contender {
    name: &'static str,
    program: &'static str,
    run: &'static [&'static str],
    create: &'static [&'static str],
    exec: &'static [&'static str],
    remove: &'static [&'static str],
}

/// Both get one processor, 512 MB, no network, and the same directory as their root.
const CONTENDERS: [Contender; 2] = [
    Contender {
        name: "msb",
        program: "/usr/bin/msb",
        run: &["run", "--isolation", "vm", "--no-net", "--no-tty", "--no-stdin", "-q"],
        create: &["create", "--isolation", "vm", "--no-net", "-q"],
        exec: &["exec", "--no-tty", "--no-stdin"],
        remove: &["rm", "-f"],
    },
    Contender {
        name: PEER,
        program: peer::PROGRAM,
        run: &["run", "--no-net", "--no-tty", "--no-stdin", "-q"],
        create: &["create", "--no-net", "-q"],
        exec: &["exec", "--no-tty", "--no-stdin", "-q"],
        remove: &["rm", "-f"],
    },
];

const SIZES: &[&str] = &["--cpus", "1", "--memory", "512M"];
const ROOTFS: &str = "/lab/rootfs";
const BOX: &str = "box";
const SAID: &str = "/tmp/said";

/// Prints each table for people and for the part outside.
pub(crate) fn command(rounds: &str) -> Result<ExitCode> {
    let rounds: usize = rounds.parse().with_context(|| format!("not a number: `{rounds}`"))?;
    for contender in &CONTENDERS {
        println!("{}", contender.version());
    }
    let mut failed = false;
    let mut show = |table: &Table| -> Result<()> {
        println!("{table}");
        println!("{MARK}{}", serde_json::to_string(table)?);
        failed |= table.lacks_ours();
        Ok(())
    };
    for table in runs(rounds) {
        show(&table)?;
    }
    for table in boxes(rounds) {
        show(&table)?;
    }
    match timeline() {
        Ok(steps) => println!("{MARK}{}", json!({"work": TIMELINE, "steps": steps})),
        Err(error) => println!("no timeline of a start: {error:#}"),
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

const TIMELINE: &str = "where the time of one run goes";

/// Of one run of ours, beside the rounds: a trace has its price.
fn timeline() -> Result<Vec<Step>> {
    let [ours, _] = &CONTENDERS;
    let steps = timeline::watch(|has_output| {
        let words = [ours.run, SIZES, &[ROOTFS, "--", "echo", "out"]].concat();
        ours.timed_until_output(&words, "out\n", has_output).map(drop)
    })?;
    println!("{TIMELINE} ({}, traced)", ours.name);
    for step in &steps {
        println!("  {step}");
    }
    println!();
    Ok(steps)
}

/// What a command gave: until its first byte, and until its end.
struct Times {
    first: f64,
    whole: f64,
}

fn runs(rounds: usize) -> [Table; 2] {
    let samples = in_turns(rounds, |contender| {
        contender.timed(&[contender.run, SIZES, &[ROOTFS, "--", "echo", "out"]].concat(), "out\n")
    });
    let first = series(&samples, |times| times.first);
    let whole = series(&samples, |times| times.whole);
    let goal = Some(Goal::Ratio(0.5));
    [
        Table::new("run until the first output", Unit::Milliseconds, PEER, goal, &first),
        Table::new("run, the whole of it", Unit::Milliseconds, PEER, goal, &whole),
    ]
}

/// Exec into a running microVM, then what it takes when nothing runs in it.
fn boxes(rounds: usize) -> Vec<Table> {
    let created = CONTENDERS.each_ref().map(|contender| {
        let known = pids();
        let create = [contender.create, SIZES, &["--name", BOX, ROOTFS]].concat();
        contender.does(&create)?;
        thread::sleep(SETTLE);
        // Between the two creations nothing else starts: what is new is the contender's.
        memory(&known)
    });
    let samples = in_turns(rounds, |contender| {
        contender.timed(&[contender.exec, &[BOX, "--", "echo", "out"]].concat(), "out\n")
    });
    let exec = series(&samples, |times| times.whole);
    for contender in &CONTENDERS {
        if let Err(error) = contender.does(&[contender.remove, &[BOX]].concat()) {
            println!("cannot remove the box of {}: {error:#}", contender.name);
        }
    }
    let sizes = |of: fn(&Memory) -> f64| {
        let mut sizes = Vec::new();
        for (contender, memory) in CONTENDERS.iter().zip(&created) {
            let samples = memory.as_ref().map(|memory| vec![of(memory)]);
            let samples = samples.map_err(|error| format!("{error:#}"));
            let ours = contender.name != PEER;
            sizes.push(Series { name: contender.name.to_owned(), ours, samples });
        }
        sizes
    };
    let mut pss = Table::new(
        "idle PSS of everything that stays",
        Unit::Kibibytes,
        PEER,
        Some(Goal::Ratio(0.3)),
        &sizes(|memory| memory.proportional),
    );
    for (contender, memory) in CONTENDERS.iter().zip(&created) {
        if let Ok(memory) = memory {
            pss.note(contender.name, memory.processes.clone());
        }
    }
    vec![
        Table::new("exec", Unit::Milliseconds, PEER, Some(Goal::Ratio(0.5)), &exec),
        pss,
        Table::new(
            "idle RSS of everything that stays",
            Unit::Kibibytes,
            PEER,
            None,
            &sizes(|memory| memory.resident),
        ),
    ]
}

type Samples = [Result<Vec<Times>, String>; CONTENDERS.len()];

/// Every second round goes backwards; the first, which fills caches, does not count.
fn in_turns(rounds: usize, measure: impl Fn(&Contender) -> Result<Times>) -> Samples {
    let mut samples: Samples = [Ok(Vec::new()), Ok(Vec::new())];
    for round in 0..=rounds {
        let mut turns: Vec<usize> = (0..CONTENDERS.len()).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for turn in turns {
            let Ok(series) = &mut samples[turn] else {
                continue;
            };
            match measure(&CONTENDERS[turn]) {
                Ok(_) if round == 0 => {}
                Ok(times) => series.push(times),
                Err(error) => samples[turn] = Err(format!("{error:#}")),
            }
        }
    }
    samples
}

fn series(samples: &Samples, of: fn(&Times) -> f64) -> Vec<Series> {
    let each = CONTENDERS.iter().zip(samples).map(|(contender, samples)| Series {
        name: contender.name.to_owned(),
        ours: contender.name != PEER,
        samples: samples.as_ref().map(|all| all.iter().map(of).collect()).map_err(Clone::clone),
    });
    each.collect()
}

impl Contender {
    fn version(&self) -> String {
        let output = Command::new(self.program).arg("--version").output();
        let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        format!("{}: {}", self.name, said.unwrap_or_default().trim())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(words).stdin(Stdio::null());
        command
    }

    fn does(&self, words: &[&str]) -> Result<()> {
        // A file and not a pipe: what stays running would hold a pipe open.
        let said = File::create(SAID)?;
        let status = self.command(words).stdout(said.try_clone()?).stderr(said).status()?;
        let said = fs::read_to_string(SAID)?;
        ensure!(status.success(), "{} {}: {said}", self.name, words.join(" "));
        Ok(())
    }

    /// Runs it to its end; it must have said just this.
    fn timed(&self, words: &[&str], wanted: &str) -> Result<Times> {
        self.timed_until_output(words, wanted, &|| ())
    }

    /// Runs it to its end, and calls `has_output` at the first output.
    fn timed_until_output(
        &self,
        words: &[&str],
        wanted: &str,
        has_output: &dyn Fn(),
    ) -> Result<Times> {
        let mut command = self.command(words);
        let start = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut stdout = child.stdout.take().context("a pipe")?;
        let mut said = vec![0; 1];
        let got = stdout.read(&mut said)?;
        let first = milliseconds(start.elapsed());
        has_output();
        said.truncate(got);
        stdout.read_to_end(&mut said)?;
        let output = child.wait_with_output()?;
        let whole = milliseconds(start.elapsed());
        ensure!(
            output.status.success() && said == wanted.as_bytes(),
            "{} ended with {} and said `{}`: {}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&said),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Times { first, whole })
    }
}

struct Memory {
    proportional: f64,
    resident: f64,
    /// Name and size of each, for people.
    processes: String,
}

fn memory(before: &BTreeSet<u32>) -> Result<Memory> {
    let mut sum = Memory { proportional: 0.0, resident: 0.0, processes: String::new() };
    for pid in pids().difference(before).copied() {
        // A thread of the kernel has none of its own.
        let Ok(sizes) = processes::sizes(pid) else {
            continue;
        };
        sum.proportional += f64::from(u32::try_from(sizes.proportional)?);
        sum.resident += f64::from(u32::try_from(sizes.resident)?);
        sum.processes += &format!(" {} {}", processes::name(pid), sizes.proportional);
    }
    ensure!(sum.proportional > 0.0, "nothing stays");
    Ok(sum)
}

fn pids() -> BTreeSet<u32> {
    processes::all().into_iter().collect()
}
