//! Results of the tools, as their output schemas define them.

use super::labels;
use msb_api::{Event, EventKind, Inspection};
use msb_spec::{Ending, ImageRef};
use serde::Serialize;
use std::collections::BTreeMap;

/// A result with only a status word.
#[derive(Serialize)]
pub(super) struct StatusOutput {
    pub(super) status: &'static str,
}

/// A sandbox that was created or connected.
#[derive(Serialize)]
pub(super) struct ReadyOutput {
    pub(super) sandbox_id: String,
    pub(super) info: SandboxInfo,
}

/// All details of a sandbox.
#[derive(Serialize)]
pub(super) struct SandboxInfo {
    pub(super) id: String,
    pub(super) status: SandboxStatus,
    pub(super) entrypoint: Vec<String>,
    pub(super) expires_at: Option<String>,
    pub(super) created_at: String,
    pub(super) image: Option<ImageInfo>,
    pub(super) snapshot_id: Option<String>,
    platform: Option<()>,
    allocation: Option<()>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) extensions: Option<BTreeMap<String, String>>,
}

#[derive(Serialize)]
pub(super) struct SandboxStatus {
    pub(super) state: &'static str,
    pub(super) reason: Option<&'static str>,
    pub(super) message: Option<String>,
    pub(super) last_transition_at: Option<String>,
}

#[derive(Serialize)]
pub(super) struct ImageInfo {
    pub(super) image: String,
    /// Always null: credentials are never returned.
    auth: Option<()>,
}

impl SandboxInfo {
    pub(super) fn from_inspection(found: Inspection, events: &[Event]) -> Self {
        let Inspection { name, status, worker, stopped, reason, plan } = found;
        let last = events.last().map(|event| event.time);
        let expired = stopped.is_some_and(|stopped| stopped.ending == Ending::MaxDuration);
        let ended = events.iter().rev().find_map(|event| match event.happened {
            EventKind::Stopped { .. } => Some(event.time),
            _ => None,
        });
        let expires = match worker {
            Some(worker) => worker.ends,
            None => ended.filter(|_| expired),
        };
        let image = match &plan.image {
            ImageRef::Name(reference) => reference.short(),
            other => other.to_string(),
        };
        Self {
            id: name.to_string(),
            status: SandboxStatus {
                state: state(status),
                reason: expired.then_some("expired"),
                message: reason,
                last_transition_at: last.map(rfc3339),
            },
            entrypoint: plan.command.map(|command| command.argv).unwrap_or_default(),
            expires_at: expires.map(rfc3339),
            created_at: rfc3339(plan.created),
            image: plan.snapshot.is_none().then_some(ImageInfo { image, auth: None }),
            snapshot_id: plan.snapshot.map(|snapshot| snapshot.to_string()),
            platform: None,
            allocation: None,
            metadata: labels::metadata(&plan.labels),
            extensions: labels::extensions(&plan.labels),
        }
    }
}

/// The states that a sandbox can be in.
pub(super) const STATES: [&str; 5] = ["Running", "Paused", "Stopping", "Terminated", "Failed"];

/// The state, as OpenSandbox names it.
pub(super) fn state(status: msb_api::Status) -> &'static str {
    match status {
        msb_api::Status::Running => "Running",
        msb_api::Status::Paused => "Paused",
        msb_api::Status::Draining => "Stopping",
        msb_api::Status::Stopped => "Terminated",
        msb_api::Status::Crashed => "Failed",
    }
}

#[derive(Serialize)]
pub(super) struct SandboxPage {
    pub(super) sandbox_infos: Vec<SandboxInfo>,
    pub(super) pagination: Pagination,
}

#[derive(Serialize)]
pub(super) struct Pagination {
    pub(super) page: u64,
    pub(super) page_size: u64,
    pub(super) total_items: u64,
    pub(super) total_pages: u64,
    pub(super) has_next_page: bool,
}

#[derive(Serialize)]
pub(super) struct RenewOutput {
    pub(super) expires_at: String,
}

#[derive(Serialize)]
pub(super) struct MetricsOutput {
    pub(super) cpu_count: f64,
    pub(super) cpu_used_percentage: f64,
    pub(super) memory_total_in_mib: f64,
    pub(super) memory_used_in_mib: f64,
    pub(super) timestamp: u64,
}

#[derive(Serialize)]
pub(super) struct HealthOutput {
    pub(super) sandbox_id: String,
    pub(super) healthy: bool,
}

#[derive(Serialize)]
pub(super) struct EndpointOutput {
    pub(super) endpoint: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) origin: Option<String>,
}

/// A command that has ended, or runs in the background.
#[derive(Serialize)]
pub(super) struct Execution {
    pub(super) id: String,
    pub(super) execution_count: Option<u64>,
    /// Always empty: only interpreters have results, and this dialect has none.
    pub(super) result: [(); 0],
    pub(super) error: Option<ExecutionError>,
    pub(super) complete: Option<ExecutionComplete>,
    pub(super) exit_code: Option<i32>,
    pub(super) logs: ExecutionLogs,
}

#[derive(Serialize)]
pub(super) struct ExecutionError {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) timestamp: u64,
    pub(super) traceback: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct ExecutionComplete {
    pub(super) timestamp: u64,
    pub(super) execution_time_in_millis: u64,
}

#[derive(Default, Serialize)]
pub(super) struct ExecutionLogs {
    pub(super) stdout: Vec<ExecutionLine>,
    pub(super) stderr: Vec<ExecutionLine>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ExecutionLine {
    pub(super) text: String,
    pub(super) timestamp: u64,
    pub(super) is_error: bool,
}

#[derive(Serialize)]
pub(super) struct FileContent {
    pub(super) path: String,
    pub(super) content: String,
}

/// A file that a search has found.
#[derive(Serialize)]
pub(super) struct FileEntry {
    pub(super) path: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) mode: u32,
    pub(super) owner: String,
    pub(super) group: String,
    pub(super) size: u64,
    pub(super) modified_at: String,
    pub(super) created_at: String,
}

#[derive(Serialize)]
pub(super) struct ReplaceOutput {
    pub(super) path: String,
    pub(super) replaced_count: u64,
}

/// Formats milliseconds since 1970 as RFC 3339 in UTC.
pub(super) fn rfc3339(ms: u64) -> String {
    // RFC 3339 ends with the year 9999.
    let ms = ms.min(253_402_300_799_999);
    msb_spec::clock::written(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc3339() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(rfc3339(ms), text);
        }
    }
}
