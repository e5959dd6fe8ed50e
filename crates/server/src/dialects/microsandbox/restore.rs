//! Creates sandboxes from snapshots.

use super::create::SandboxRequest;
use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::mounts::MountParams;
use super::networks::PortParams;
use super::selector::shown;
use super::{Microsandbox, labels, read};
use crate::dialect::ToolCall;
use msb_api::Changes;
use msb_spec::{Name, Spec, UserRef};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestoreParams {
    name: String,
    snapshot: String,
    snapshot_base: Option<String>,
    #[serde(default)]
    forked: bool,
    disk_only: Option<bool>,
    user: Option<String>,
    log_level: Option<String>,
    external_mount_policy: Option<String>,
    #[serde(default)]
    volumes: Vec<MountParams>,
    #[serde(default)]
    ports: Vec<PortParams>,
    #[serde(default)]
    vsock: Vec<Value>,
}

impl RestoreParams {
    fn check(&self) -> Result<(), ToolFailure> {
        if self.disk_only == Some(false) || (self.forked && self.disk_only != Some(true)) {
            let hint = "set diskOnly: true; the sandbox then boots with the files of the snapshot";
            return Err(ToolFailure::unsupported(
                "the memory of a sandbox cannot be restored yet",
                hint,
            ));
        }
        if !self.vsock.is_empty() {
            let hint = "publish a port instead, or mount a directory";
            return Err(ToolFailure::unsupported("sandboxes have no vsock yet", hint));
        }
        Ok(())
    }
}

impl Microsandbox {
    pub(super) fn sandbox_restore(&self, call: &ToolCall) -> Outcome {
        let params: RestoreParams = read(call)?;
        params.check()?;
        let name = Name::parse(&params.name)?;
        let found = self.snapshot(&params.snapshot)?;
        if let Some(base) = &params.snapshot_base {
            self.lies_on(&found.name, base)?;
        }
        let mut request = SandboxRequest::bare(Spec::default());
        for mount in &params.volumes {
            self.mount(&mut request, mount)?;
        }
        let mut noted = BTreeMap::new();
        noted.extend(params.log_level.clone().map(|level| (labels::LOG_LEVEL.to_owned(), level)));
        let changes = Changes {
            user: params.user.as_deref().map(UserRef::parse).transpose()?,
            mounts: request.spec.mounts.clone(),
            tmpfs: request.spec.tmpfs.clone(),
            ports: params.ports.iter().map(PortParams::published).collect::<Result<_, _>>()?,
            labels: noted,
            lenient: params.external_mount_policy.as_deref() == Some("relaxed"),
        };
        self.make_volumes(&request)?;
        let api = &self.config.api;
        api.snapshot_restore(&found.name, &name, Some(&changes))?;
        if let Err(error) = api.sandbox_start(&name) {
            // A partially restored sandbox is removed.
            let _ = api.sandbox_remove(&name, true);
            return Err(error.into());
        }
        let status = api.sandbox_summary(&name)?.status;
        Ok(ToolSuccess::new(json!({"name": name, "status": shown(status)})))
    }

    /// Whether a snapshot has another one among its ancestors.
    fn lies_on(&self, snapshot: &Name, base: &str) -> Result<(), ToolFailure> {
        let below = self.snapshot(base)?;
        let base_id = self.config.api.snapshot_inspect(&below.name)?.id;
        let all = self.config.api.snapshot_list()?;
        let mut at = Some(self.config.api.snapshot_inspect(snapshot)?.id);
        // Bounded by the number of snapshots, in case their records form a cycle.
        for _ in 0..=all.len() {
            match at {
                Some(id) if id == base_id => return Ok(()),
                Some(id) => {
                    at = all.iter().find(|it| it.id == id).and_then(|it| it.parent.clone());
                }
                None => break,
            }
        }
        Err(ToolFailure::new(format!("snapshot {snapshot} is not based on {base}")))
    }
}
