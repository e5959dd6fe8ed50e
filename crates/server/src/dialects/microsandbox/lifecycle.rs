//! Lists, starts, stops and removes sandboxes.

use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::labels;
use super::selector::{SandboxSelector, each, named, shown};
use super::settings::milliseconds;
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use msb_api::{Status, Summary};
use msb_spec::Ending;
use msb_spec::clock;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time between SIGTERM and SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// How often a waiting call checks for cancellation.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StopParams {
    #[serde(flatten)]
    selector: SandboxSelector,
    force: bool,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
struct NameParams {
    name: String,
}

fn is_running(sandbox: &Summary) -> bool {
    matches!(sandbox.status, Status::Running | Status::Paused | Status::Draining)
}

fn name_of(sandbox: &Summary) -> String {
    sandbox.name.to_string()
}

impl Microsandbox {
    pub(super) fn sandbox_list(&self, call: &ToolCall) -> Outcome {
        self.listed(&read(call)?)
    }

    pub(super) fn sandbox_status(&self, call: &ToolCall) -> Outcome {
        let mut selector: SandboxSelector = read(call)?;
        if selector.names().next().is_none() && selector.status.is_none() {
            selector.status = Some("running".to_owned());
        }
        self.listed(&selector)
    }

    fn listed(&self, selector: &SandboxSelector) -> Outcome {
        let rows: Vec<Value> = self.selected(selector)?.iter().map(|it| self.row(it)).collect();
        Ok(ToolSuccess::new(rows.into()))
    }

    /// A sandbox as one item of a list.
    pub(super) fn row(&self, sandbox: &Summary) -> Value {
        json!({
            "name": sandbox.name,
            "status": shown(sandbox.status),
            "image": sandbox.image,
            "labels": labels::own(&sandbox.labels),
            "createdAt": clock::written(sandbox.created),
            "updatedAt": clock::written(self.updated(sandbox)),
        })
    }

    /// Time of the last event of a sandbox.
    fn updated(&self, sandbox: &Summary) -> u64 {
        let events = self.config.api.sandbox_events(&sandbox.name).and_then(|mut it| it.more());
        let last = events.ok().and_then(|events| events.last().map(|event| event.time));
        last.unwrap_or(sandbox.created)
    }

    pub(super) fn sandbox_inspect(&self, call: &ToolCall) -> Outcome {
        let NameParams { name } = read(call)?;
        let inspection = self.config.api.sandbox_inspect(&named(&name)?)?;
        let summary = self.summary(&name)?;
        Ok(ToolSuccess::new(json!({
            "name": inspection.name,
            "status": shown(inspection.status),
            "config": inspection.plan,
            "reason": inspection.reason,
            "createdAt": clock::written(inspection.plan.created),
            "updatedAt": clock::written(self.updated(&summary)),
        })))
    }

    pub(super) fn sandbox_start(&self, call: &ToolCall) -> Outcome {
        let selector: SandboxSelector = read(call)?;
        each("name", self.chosen(&selector)?, name_of, |sandbox| {
            Ok(match self.config.api.sandbox_start(&sandbox.name)? {
                true => json!({"name": sandbox.name, "started": true}),
                false => json!({"name": sandbox.name, "started": false, "alreadyRunning": true}),
            })
        })
    }

    pub(super) fn sandbox_stop(&self, call: &ToolCall) -> Outcome {
        let ended: StopParams = read(call)?;
        self.allowed(call, &ended)?;
        let grace = match (ended.force, ended.timeout_ms) {
            (true, _) => Duration::ZERO,
            (false, limit) => limit.map_or(GRACE, Duration::from_millis),
        };
        each("name", self.chosen(&ended.selector)?, name_of, |sandbox| {
            let stopped =
                is_running(sandbox) && self.config.api.sandbox_stop(&sandbox.name, grace)?;
            if stopped {
                return Ok(json!({"name": sandbox.name, "stopped": true}));
            }
            let status = self.config.api.sandbox_summary(&sandbox.name).map(|it| it.status);
            let status = shown(status.unwrap_or(Status::Stopped));
            let name = &sandbox.name;
            Ok(json!({"name": name, "stopped": false, "alreadyStopped": true, "status": status}))
        })
    }

    pub(super) fn sandbox_drain(&self, call: &ToolCall) -> Outcome {
        let selector: SandboxSelector = read(call)?;
        each("name", self.chosen(&selector)?, name_of, |sandbox| {
            Ok(match self.config.api.sandbox_drain(&sandbox.name)? {
                true => json!({"name": sandbox.name, "drainRequested": true}),
                false => {
                    let status = shown(sandbox.status);
                    json!({"name": sandbox.name, "drainRequested": false, "status": status})
                }
            })
        })
    }

    /// Waits for all of them; the time limit of the call is for all together.
    pub(super) fn sandbox_wait(&self, call: &ToolCall) -> Outcome {
        let selector: SandboxSelector = read(call)?;
        let since = Instant::now();
        let limit = self.settings.default_timeout;
        each("name", self.chosen(&selector)?, name_of, |sandbox| {
            let stopped = loop {
                let left = limit.saturating_sub(since.elapsed());
                match self.config.api.sandbox_wait(&sandbox.name, Some(left.min(LOOK)))? {
                    Some(stopped) => break stopped,
                    None if call.cancel.is_cancelled() => {
                        return Err(ToolFailure::new("the call was cancelled"));
                    }
                    None if left.is_zero() => {
                        let limit = milliseconds(limit);
                        let text = format!("sandbox {} still runs after {limit} ms", sandbox.name);
                        return Err(ToolFailure::new(text).retryable());
                    }
                    None => {}
                }
            };
            let status = match stopped.ending {
                Ending::Crashed | Ending::Panicked => "crashed",
                _ => "stopped",
            };
            Ok(json!({
                "name": sandbox.name,
                "status": status,
                "exitCode": stopped.exit.and_then(|exit| exit.code),
                "signal": stopped.exit.and_then(|exit| exit.signal),
                "observedAt": clock::written(clock::now()),
                "source": stopped.reason(),
            }))
        })
    }

    pub(super) fn sandbox_remove(&self, call: &ToolCall) -> Outcome {
        let ended: StopParams = read(call)?;
        self.allowed(call, &ended)?;
        each("name", self.chosen(&ended.selector)?, name_of, |sandbox| {
            self.config.api.sandbox_remove(&sandbox.name, ended.force)?;
            Ok(json!({"name": sandbox.name, "removed": true}))
        })
    }

    /// Whether a forced stop or removal of all sandboxes is allowed.
    fn allowed(&self, call: &ToolCall, ended: &StopParams) -> Result<(), ToolFailure> {
        let sweeping = ended.selector.is_sweeping() && ended.selector.status.is_some();
        if ended.force && sweeping && !self.settings.dangerous {
            let text = format!(
                "{} with force and neither names nor labels is disabled on this server",
                call.tool
            );
            return Err(ToolFailure::dangerous(text).detail(
                "hint",
                format!("name the sandboxes, or set {}=1", msb_spec::env::MCP_ENABLE_DANGEROUS),
            ));
        }
        Ok(())
    }
}
