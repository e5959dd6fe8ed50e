//! Reads the state of sandboxes: list, inspect, metrics. Changes nothing.

use crate::repair;
use crate::sandboxes::Engine;
use msb_api::{Inspection, Metrics, Status, Summary};
use msb_spec::{Ending, Error, ImageRef, Kind, Name, Result};
use msb_wire::record::EventKind;
use msb_wire::{Reply, Request, Sample, StopResult, WorkerStatus};
use std::path::Path;
use std::time::Duration;

/// How long to wait for the end of a worker that does not reply.
const EXIT_LIMIT: Duration = Duration::from_millis(500);

impl Engine {
    /// All sandboxes, sorted by name.
    pub fn list(&self) -> Vec<Summary> {
        self.home().names().iter().filter_map(|name| self.summary(name).ok()).collect()
    }

    /// The summary of a sandbox, as `msb ls` shows it.
    pub fn summary(&self, name: &Name) -> Result<Summary> {
        let plan = self.existing(name)?;
        // Only the worker knows the restarts and health of a service.
        let tells = plan.restart.is_some() || plan.health.is_some();
        let worker = match tells && self.home().is_running(name) {
            true => self.worker_status(name).ok().flatten(),
            false => None,
        };
        Ok(Summary {
            status: self.status(name, worker.as_ref()),
            restarts: worker.as_ref().map(|worker| worker.restarts),
            health: worker.as_ref().and_then(|worker| worker.health),
            name: plan.name,
            isolation: plan.isolation.to_string(),
            isolation_reason: plan.isolation_reason,
            image: match plan.snapshot {
                Some(snapshot) => ImageRef::Snapshot(snapshot).to_string(),
                None => plan.image.to_string(),
            },
            created: plan.created,
            labels: plan.labels,
            ephemeral: plan.ephemeral,
        })
    }

    /// Plan, status and worker of a sandbox.
    pub fn inspect(&self, name: &Name) -> Result<Inspection> {
        let plan = self.existing(name)?;
        let worker = match self.home().is_running(name) {
            true => self.worker_status(name)?,
            false => None,
        };
        let stopped = last_stop(&self.home().directory(name)).filter(|_| worker.is_none());
        let reason = stopped.and_then(|stopped| stopped.reason()).map(str::to_owned);
        let status = self.status(name, worker.as_ref());
        Ok(Inspection { name: plan.name.clone(), status, worker, stopped, reason, plan })
    }

    fn worker_status(&self, name: &Name) -> Result<Option<WorkerStatus>> {
        let asked = self.connect(name, &Request::Status).and_then(|mut asked| asked.reply());
        match asked {
            Ok(Reply::Status(status)) => Ok(Some(status)),
            Ok(_) => Ok(None),
            // The worker may be ending.
            Err(error) => self.await_end(name, EXIT_LIMIT).map(|()| None).map_err(|_| error),
        }
    }

    fn status(&self, name: &Name, worker: Option<&WorkerStatus>) -> Status {
        if self.home().is_running(name) {
            let last = || repair::last_state_change(&self.home().directory(name));
            return match worker {
                Some(worker) if worker.paused => Status::Paused,
                Some(worker) if worker.draining => Status::Draining,
                Some(_) => Status::Running,
                None => match last() {
                    Some(EventKind::Draining) => Status::Draining,
                    Some(EventKind::Paused { .. }) => Status::Paused,
                    _ => Status::Running,
                },
            };
        }
        match last_stop(&self.home().directory(name)).map(|stopped| stopped.ending) {
            Some(Ending::Crashed) | None => Status::Crashed,
            Some(_) => Status::Stopped,
        }
    }

    /// The resource usage of a running sandbox.
    pub fn metrics(&self, name: &Name) -> Result<Metrics> {
        let plan = self.existing(name)?;
        match self.connect(name, &Request::Usage)?.reply()? {
            Reply::Usage(usage) => Ok(crate::metrics::of(&plan, usage)),
            _ => Err(Error::new(Kind::Protocol, "the worker sent an unexpected reply")),
        }
    }

    /// The resource usage of a running sandbox in the last hour, as samples.
    pub fn history(&self, name: &Name) -> Result<Vec<Sample>> {
        self.existing(name)?;
        match self.connect(name, &Request::History)?.reply()? {
            Reply::History(samples) => Ok(samples),
            _ => Err(Error::new(Kind::Protocol, "the worker sent an unexpected reply")),
        }
    }
}

/// How a sandbox last ended; `None` if it runs or never ended.
pub(crate) fn last_stop(directory: &Path) -> Option<StopResult> {
    match repair::last_state_change(directory)? {
        EventKind::Stopped { ending, exit } => Some(StopResult { ending, exit }),
        _ => None,
    }
}
