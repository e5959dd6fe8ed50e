//! Directories of the host that sandboxes have in step.

use super::Surface;
use super::files::inside;
use crate::dialect::Call;
use msb_api::{SyncSpec, SyncState, SyncSummary};
use msb_spec::Result;
use serde::Deserialize;
use std::path::Path;

/// What is left out, as the original does.
const LEFT_OUT: [&str; 6] = [".DS_Store", ".git", ".venv", "__pycache__", "node_modules", "venv"];

#[derive(Debug, Deserialize)]
pub(super) struct Start {
    local_dir: String,
    sandbox_dir: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Stop {
    job_id: String,
}

impl Surface {
    pub(super) fn sync_start(&self, call: &Call, asked: &Start) -> Result<String> {
        let local = &asked.local_dir;
        let source = self.world.paths.check(Path::new(local))?;
        if !source.is_dir() {
            return Ok(format!("Error: {local} is not a directory"));
        }
        let live = self.used(call, &asked.sandbox)?;
        let target = inside(&asked.sandbox_dir);
        let spec = SyncSpec {
            source,
            sandbox: live.name.clone(),
            target: target.clone().into_bytes(),
            excludes: LEFT_OUT.map(str::to_owned).to_vec(),
            default_excludes: false,
        };
        let job = self.api().sync_start(&spec, call.watch.as_ref())?;
        let (id, files, sandbox) = (shown(&job), job.status.files, &asked.sandbox);
        Ok(format!(
            "Sync started [{id}]: {local} -> {sandbox}:{target}\nInitial sync: {files} files\n\
             Polling every 1.0s (ignoring {})",
            LEFT_OUT.join(", ")
        ))
    }

    pub(super) fn sync_stop(&self, asked: &Stop) -> Result<String> {
        let jobs = self.jobs()?;
        let Some(job) = jobs.iter().find(|job| shown(job) == asked.job_id) else {
            let ids: Vec<String> = jobs.iter().map(shown).collect();
            let ids = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
            return Ok(format!("Error: no sync job '{}'. Active: {ids}", asked.job_id));
        };
        let job = self.api().sync_inspect(&job.id)?;
        self.api().sync_stop(&job.id)?;
        let id = shown(&job);
        let SyncSummary { source, sandbox, target, status, .. } = job;
        let files = status.sent;
        Ok(format!(
            "Stopped sync [{id}]: {source} -> {sandbox}:{target} ({files} files synced total)"
        ))
    }

    /// Those of sandboxes of ours that go on.
    pub(super) fn jobs(&self) -> Result<Vec<SyncSummary>> {
        let all = self.api().sync_list()?;
        let goes_on = all.into_iter().filter(|job| job.status.state != SyncState::Ended);
        Ok(goes_on.filter(|job| self.find(&job.sandbox).is_ok_and(|it| it.is_some())).collect())
    }
}

/// How a job is called here.
pub(super) fn shown(job: &SyncSummary) -> String {
    format!("sync-{}", job.id)
}
