//! What a developer runs before pushing: nothing to install, no root, no sandbox started.

use std::process::ExitCode;

use crate::report::Report;
use crate::suite::{FEATURES, Suite};
use crate::tally::Tally;
use crate::workspace::Cargo;
use crate::{areas, tidy, workspace};

pub(crate) fn command() -> ExitCode {
    let mut report = Report::default();
    lints(&mut report, workspace::cargo);
    report.stage("unit tests", || {
        let suite = Suite::build(&["--lib", "--bins", "--tests"])?;
        areas::unit(&suite, None)
    });
    report.finish()
}

/// What needs no test program.
pub(crate) fn lints(report: &mut Report, cargo: Cargo) {
    report.stage("format", || {
        workspace::run(&mut workspace::cargo(&["fmt", "--all", "--check"]))?;
        Ok(Tally::default())
    });
    report.stage("tidy", || {
        tidy::run()?;
        Ok(Tally::default())
    });
    report.stage("clippy", || {
        workspace::run(
            cargo(&["clippy", "--workspace", "--all-targets", "--profile", "ci"])
                .args(FEATURES)
                .args(["--", "-D", "warnings"]),
        )?;
        Ok(Tally::default())
    });
}
