//! What the tools answer with, as their output schemas want it.

use super::names;
use msb_api::{Event, Happened, Inspection};
use msb_spec::{Ending, ImageRef};
use serde::Serialize;
use std::collections::BTreeMap;

/// A word about how it went.
#[derive(Serialize)]
pub(super) struct Status {
    pub(super) status: &'static str,
}

/// A sandbox that was made or connected.
#[derive(Serialize)]
pub(super) struct Ready {
    pub(super) sandbox_id: String,
    pub(super) info: Sandbox,
}

/// Everything about a sandbox.
#[derive(Serialize)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) status: SandboxStatus,
    pub(super) entrypoint: Vec<String>,
    pub(super) expires_at: Option<String>,
    pub(super) created_at: String,
    pub(super) image: Option<Image>,
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
pub(super) struct Image {
    pub(super) image: String,
    /// Never told, to nobody.
    auth: Option<()>,
}

impl Sandbox {
    pub(super) fn of(found: Inspection, events: &[Event]) -> Self {
        let Inspection { name, status, worker, stopped, reason, plan } = found;
        let last = events.last().map(|event| event.time);
        let expired = stopped.is_some_and(|stopped| stopped.ending == Ending::MaxDuration);
        let ended = events.iter().rev().find_map(|event| match event.happened {
            Happened::Stopped { .. } => Some(event.time),
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
                last_transition_at: last.map(moment),
            },
            entrypoint: plan.command.map(|command| command.argv).unwrap_or_default(),
            expires_at: expires.map(moment),
            created_at: moment(plan.created),
            image: plan.snapshot.is_none().then_some(Image { image, auth: None }),
            snapshot_id: plan.snapshot.map(|snapshot| snapshot.to_string()),
            platform: None,
            allocation: None,
            metadata: names::metadata(&plan.labels),
            extensions: names::extensions(&plan.labels),
        }
    }
}

/// The states that a sandbox of ours can be in.
pub(super) const STATES: [&str; 5] = ["Running", "Paused", "Stopping", "Terminated", "Failed"];

/// How OpenSandbox calls it.
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
pub(super) struct Page {
    pub(super) sandbox_infos: Vec<Sandbox>,
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
pub(super) struct Renewed {
    pub(super) expires_at: String,
}

#[derive(Serialize)]
pub(super) struct Metrics {
    pub(super) cpu_count: f64,
    pub(super) cpu_used_percentage: f64,
    pub(super) memory_total_in_mib: f64,
    pub(super) memory_used_in_mib: f64,
    pub(super) timestamp: u64,
}

#[derive(Serialize)]
pub(super) struct Health {
    pub(super) sandbox_id: String,
    pub(super) healthy: bool,
}

#[derive(Serialize)]
pub(super) struct Endpoint {
    pub(super) endpoint: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) origin: Option<String>,
}

/// A command that has run, or runs.
#[derive(Serialize)]
pub(super) struct Execution {
    pub(super) id: String,
    pub(super) execution_count: Option<u64>,
    /// Only of interpreters, which this dialect's tools do not have.
    pub(super) result: [(); 0],
    pub(super) error: Option<ExecutionError>,
    pub(super) complete: Option<Complete>,
    pub(super) exit_code: Option<i32>,
    pub(super) logs: Logs,
}

#[derive(Serialize)]
pub(super) struct ExecutionError {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) timestamp: u64,
    pub(super) traceback: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Complete {
    pub(super) timestamp: u64,
    pub(super) execution_time_in_millis: u64,
}

#[derive(Default, Serialize)]
pub(super) struct Logs {
    pub(super) stdout: Vec<Line>,
    pub(super) stderr: Vec<Line>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) timestamp: u64,
    pub(super) is_error: bool,
}

#[derive(Serialize)]
pub(super) struct Content {
    pub(super) path: String,
    pub(super) content: String,
}

/// A file that was found.
#[derive(Serialize)]
pub(super) struct Entry {
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
pub(super) struct Replaced {
    pub(super) path: String,
    pub(super) replaced_count: u64,
}

/// Milliseconds since 1970, as RFC 3339 in UTC.
pub(super) fn moment(ms: u64) -> String {
    // Beyond the year 9999 there is no such text; nobody waits for it either.
    let ms = ms.min(253_402_300_799_999);
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// The date of a day since 1970. Years begin in March here, so that a leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_clients_read_them() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(moment(ms), text);
        }
    }
}
