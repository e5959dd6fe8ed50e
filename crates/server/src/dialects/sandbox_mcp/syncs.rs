//! Syncs of host directories into sandboxes.

use super::SandboxMcpState;
use super::files::inside;
use crate::dialect::ToolCall;
use msb_api::{SyncSpec, SyncState, SyncSummary};
use msb_spec::Result;
use serde::Deserialize;
use std::path::Path;

/// Names that are not synced, as in the original.
const LEFT_OUT: [&str; 6] = [".DS_Store", ".git", ".venv", "__pycache__", "node_modules", "venv"];

#[derive(Debug, Deserialize)]
pub(super) struct SyncStartArgs {
    local_dir: String,
    sandbox_dir: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct SyncStopArgs {
    job_id: String,
}

impl SandboxMcpState {
    pub(super) fn sync_start(&self, call: &ToolCall, args: &SyncStartArgs) -> Result<String> {
        let local = &args.local_dir;
        let source = self.config.paths.check(Path::new(local))?;
        if !source.is_dir() {
            return Ok(format!("Error: {local} is not a directory"));
        }
        let handle = self.ensure_active(call, &args.sandbox)?;
        let target = inside(&args.sandbox_dir);
        let spec = SyncSpec {
            source,
            sandbox: handle.name.clone(),
            target: target.clone().into_bytes(),
            excludes: LEFT_OUT.map(str::to_owned).to_vec(),
            default_excludes: false,
        };
        let job = self.api().sync_start(&spec, call.watch.as_ref())?;
        let (id, files, sandbox) = (shown(&job), job.status.files, &args.sandbox);
        Ok(format!(
            "Sync started [{id}]: {local} -> {sandbox}:{target}\nInitial sync: {files} files\n\
             Polling every 1.0s (ignoring {})",
            LEFT_OUT.join(", ")
        ))
    }

    pub(super) fn sync_stop(&self, args: &SyncStopArgs) -> Result<String> {
        let jobs = self.jobs()?;
        let Some(job) = jobs.iter().find(|job| shown(job) == args.job_id) else {
            let ids: Vec<String> = jobs.iter().map(shown).collect();
            let ids = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
            return Ok(format!("Error: no sync job '{}'. Active: {ids}", args.job_id));
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

    /// The active syncs of this dialect's sandboxes.
    pub(super) fn jobs(&self) -> Result<Vec<SyncSummary>> {
        let all = self.api().sync_list()?;
        let goes_on = all.into_iter().filter(|job| job.status.state != SyncState::Ended);
        Ok(goes_on.filter(|job| self.find(&job.sandbox).is_ok_and(|it| it.is_some())).collect())
    }
}

/// The id of a sync in results.
pub(super) fn shown(job: &SyncSummary) -> String {
    format!("sync-{}", job.id)
}
