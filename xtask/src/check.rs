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
        let workspace = ["test", "--workspace", "--profile", "ci"];
        // Those two start sandboxes.
        let but = ["--exclude", "msb-e2e", "--exclude", "microsandbox"];
        tally::cargo_test(workspace::cargo(&workspace).args(but))
    });
}
