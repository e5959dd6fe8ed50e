//! `msb doctor`: what this host can do.

use super::bare_engine;
use crate::colour::{GREEN, OutputStream, RED, YELLOW};
use crate::listing;
use crate::output::{self, Outcome};
use crate::terminal::wrapped;
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_engine::Engine;
use msb_engine::doctor::{Finding, Grade, examine};

/// Tells what this host can do, tier by tier, and how to get what is missing.
#[derive(Debug, Parser)]
#[command(override_usage = "msb doctor [OPTIONS]")]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Put in order what killed processes have left, as every other command does, and tell what it was
    #[arg(long)]
    repair: bool,
}

impl LocalVerb for DoctorArgs {
    fn run(self) -> Outcome {
        if self.repair {
            return repair(self.json);
        }
        let findings = examine(bare_engine().ok().as_ref().map(Engine::home));
        if self.json {
            listing::json(&findings);
        } else {
            for tier in ["process", "vm"] {
                show(tier, &findings);
            }
        }
        let works =
            |finding: &Finding| finding.tier != "process" || finding.grade != Grade::Missing;
        Ok(i32::from(!findings.iter().all(works)))
    }
}

fn repair(json: bool) -> Outcome {
    let done = bare_engine()?.repair();
    match done.as_slice() {
        _ if json => listing::json(&done),
        [] => output::print("nothing had to be put in order"),
        done => done.iter().for_each(output::print),
    }
    Ok(0)
}

fn show(tier: &str, findings: &[Finding]) {
    let of_tier: Vec<&Finding> = findings.iter().filter(|finding| finding.tier == tier).collect();
    let (verdict, worst) = if of_tier.iter().any(|finding| finding.grade == Grade::Missing) {
        ("does not work here", Grade::Missing)
    } else if of_tier.iter().any(|finding| finding.grade == Grade::Weaker) {
        ("works, with less than it could", Grade::Weaker)
    } else {
        ("works", Grade::Good)
    };
    output::print(format!("{tier}: {}", paint(verdict, worst)));
    for finding in of_tier {
        let mark = match finding.grade {
            Grade::Good => "ok  ",
            Grade::Weaker => "weak",
            Grade::Missing => "no  ",
        };
        let line = wrapped(&format!("  {mark}  {:<16} ", finding.what), &finding.found);
        output::print(line.replacen(mark, &paint(mark, finding.grade), 1));
        if let Some(fix) = &finding.fix {
            output::print(wrapped("        fix: ", fix));
        }
    }
}

fn paint(text: &str, grade: Grade) -> String {
    let colour = match grade {
        Grade::Good => GREEN,
        Grade::Weaker => YELLOW,
        Grade::Missing => RED,
    };
    OutputStream::Stdout.paint(text, colour)
}
