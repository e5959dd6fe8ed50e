//! What a developer runs before pushing: nothing to install, no root, no sandbox started.

use std::process::ExitCode;

use crate::report::Report;
use crate::tally::{self, Tally};
use crate::{tidy, workspace};

pub(crate) fn command() -> ExitCode {
    let mut report = Report::default();
    stages(&mut report);
    report.finish()
}

pub(crate) fn stages(report: &mut Report) {
    report.stage("format", || {
        workspace::run(&mut workspace::cargo(&["fmt", "--all", "--check"]))?;
        Ok(Tally::default())
    });
    report.stage("clippy", || {
        workspace::run(
            workspace::cargo(&["clippy", "--workspace", "--all-targets", "--profile", "ci"])
                .args(["--", "-D", "warnings"]),
        )?;
        Ok(Tally::default())
    });
    report.stage("tidy", || {
        tidy::run()?;
        Ok(Tally::default())
    });
    report.stage("unit tests", || {
        tally::cargo_test(&mut workspace::cargo(&[
            "test",
            "--workspace",
            "--exclude",
            "msb-e2e",
            "--profile",
            "ci",
        ]))
    });
}
