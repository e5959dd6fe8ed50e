//! The log files of a sandbox: output of its Execs, their starts and ends, and its events.

use crate::event_log::EventLog;
use crate::log::BoundedLog;
use msb_spec::{Plan, state};
use msb_wire::Head;
use std::path::Path;

/// The logs that a worker writes.
#[derive(Debug)]
pub(crate) struct Logs {
    /// Output of commands and consoles.
    pub(crate) output: BoundedLog,
    /// Starts and ends of Execs.
    pub(crate) execs: BoundedLog,
    pub(crate) events: EventLog,
}

impl Logs {
    /// The logs in a sandbox's directory. Events go on behind `last_event`.
    pub(crate) fn new(plan: &Plan, directory: &Path, last_event: Head) -> Self {
        let kept = !plan.ephemeral || plan.workspace.is_some();
        Self {
            output: BoundedLog::of_output(directory),
            execs: BoundedLog::of_lines(directory, state::EXECS),
            events: EventLog::new(directory, last_event, kept),
        }
    }

    /// The first error because of which a log is incomplete.
    pub(crate) fn failure(&self) -> Option<String> {
        let failures = [self.output.failure(), self.execs.failure(), self.events.failure()];
        failures.into_iter().find_map(|failure| failure.map(ToString::to_string))
    }
}
