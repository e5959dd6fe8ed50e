//! Looks at sandboxes, and changes nothing.

use crate::repair;
use crate::sandboxes::Engine;
use msb_api::{Inspection, Metrics, Status, Summary};
use msb_spec::{Ending, Error, ImageRef, Kind, Name, Result};
use msb_wire::record::Happened;
use msb_wire::{Reply, Request, Sample, Stopped, WorkerStatus};
use std::path::Path;
use std::time::Duration;

/// A worker that does not answer any more has gone by then, or is stuck.
const LEAVING: Duration = Duration::from_millis(500);

impl Engine {
    /// Every sandbox, sorted by name.
    pub fn list(&self) -> Vec<Summary> {
        self.home().names().iter().filter_map(|name| self.summary(name).ok()).collect()
    }

    /// One line about a sandbox.
    pub fn summary(&self, name: &Name) -> Result<Summary> {
        let plan = self.existing(name)?;
        // Only its worker knows how a service is doing.
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

    /// Everything about a sandbox.
    pub fn inspect(&self, name: &Name) -> Result<Inspection> {
        let plan = self.existing(name)?;
        let worker = match self.home().is_running(name) {
            true => self.worker_status(name)?,
            false => None,
        };
        let stopped = stopped(&self.home().directory(name)).filter(|_| worker.is_none());
        let reason = stopped.and_then(|stopped| stopped.reason()).map(str::to_owned);
        let status = self.status(name, worker.as_ref());
        Ok(Inspection { name: plan.name.clone(), status, worker, stopped, reason, plan })
    }

    fn worker_status(&self, name: &Name) -> Result<Option<WorkerStatus>> {
        let asked = self.connect(name, &Request::Status).and_then(|mut asked| asked.reply());
        match asked {
            Ok(Reply::Status(status)) => Ok(Some(status)),
            Ok(_) => Ok(None),
            // It may have been on its way out.
            Err(error) => self.await_end(name, LEAVING).map(|()| None).map_err(|_| error),
        }
    }

    fn status(&self, name: &Name, worker: Option<&WorkerStatus>) -> Status {
        if self.home().is_running(name) {
            let last = || repair::last_turn(&self.home().directory(name));
            return match worker {
                Some(worker) if worker.paused => Status::Paused,
                Some(worker) if worker.draining => Status::Draining,
                Some(_) => Status::Running,
                None => match last() {
                    Some(Happened::Draining) => Status::Draining,
                    Some(Happened::Paused { .. }) => Status::Paused,
                    _ => Status::Running,
                },
            };
        }
        match stopped(&self.home().directory(name)).map(|stopped| stopped.ending) {
            Some(Ending::Crashed) | None => Status::Crashed,
            Some(_) => Status::Stopped,
        }
    }

    /// How much a running sandbox uses.
    pub fn metrics(&self, name: &Name) -> Result<Metrics> {
        let plan = self.existing(name)?;
        match self.connect(name, &Request::Usage)?.reply()? {
            Reply::Usage(usage) => Ok(crate::metrics::of(&plan, usage)),
            _ => Err(Error::new(Kind::Protocol, "the worker answered something else")),
        }
    }

    /// How much a running sandbox has used in the last hour.
    pub fn history(&self, name: &Name) -> Result<Vec<Sample>> {
        self.existing(name)?;
        match self.connect(name, &Request::History)?.reply()? {
            Reply::History(samples) => Ok(samples),
            _ => Err(Error::new(Kind::Protocol, "the worker answered something else")),
        }
    }
}

/// How a sandbox last ended.
pub(crate) fn stopped(directory: &Path) -> Option<Stopped> {
    match repair::last_turn(directory)? {
        Happened::Stopped { ending, exit } => Some(Stopped { ending, exit }),
        _ => None,
    }
}
