//! Sandboxes made from snapshots.

use super::create::Wanted;
use super::envelope::{Done, Failure, Outcome};
use super::mounts::MountAsked;
use super::networks::PortAsked;
use super::selector::shown;
use super::{Microsandbox, labels, read};
use crate::dialect::Call;
use msb_api::Changes;
use msb_spec::{Name, Spec, UserRef};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
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
    volumes: Vec<MountAsked>,
    #[serde(default)]
    ports: Vec<PortAsked>,
    #[serde(default)]
    vsock: Vec<Value>,
}

impl Asked {
    fn check(&self) -> Result<(), Failure> {
        if self.disk_only == Some(false) || (self.forked && self.disk_only != Some(true)) {
            let hint = "say diskOnly: true; the sandbox starts anew with the files of the snapshot";
            return Err(Failure::unsupported(
                "the memory of a sandbox cannot be restored yet",
                hint,
            ));
        }
        if !self.vsock.is_empty() {
            let hint = "publish a port instead, or mount a directory";
            return Err(Failure::unsupported("sandboxes have no vsock yet", hint));
        }
        Ok(())
    }
}

impl Microsandbox {
    pub(super) fn sandbox_restore(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        asked.check()?;
        let name = Name::parse(&asked.name)?;
        let found = self.snapshot(&asked.snapshot)?;
        if let Some(base) = &asked.snapshot_base {
            self.lies_on(&found.name, base)?;
        }
        let mut wanted = Wanted::bare(Spec::default());
        for mount in &asked.volumes {
            self.mount(&mut wanted, mount)?;
        }
        let mut noted = BTreeMap::new();
        noted.extend(asked.log_level.clone().map(|level| (labels::LOG_LEVEL.to_owned(), level)));
        let changes = Changes {
            user: asked.user.as_deref().map(UserRef::parse).transpose()?,
            mounts: wanted.spec.mounts.clone(),
            tmpfs: wanted.spec.tmpfs.clone(),
            ports: asked.ports.iter().map(PortAsked::published).collect::<Result<_, _>>()?,
            labels: noted,
            lenient: asked.external_mount_policy.as_deref() == Some("relaxed"),
        };
        self.make_volumes(&wanted)?;
        let api = &self.world.api;
        api.snapshot_restore_with(&found.name, &name, &changes)?;
        if let Err(error) = api.sandbox_start(&name) {
            // Half a sandbox is none.
            let _ = api.sandbox_remove(&name, true);
            return Err(error.into());
        }
        let status = api.sandbox_summary(&name)?.status;
        Ok(Done::new(json!({"name": name, "status": shown(status)})))
    }

    /// Whether a snapshot was taken of a sandbox that lay on another one.
    fn lies_on(&self, snapshot: &Name, base: &str) -> Result<(), Failure> {
        let below = self.snapshot(base)?;
        let wanted = self.world.api.snapshot_inspect(&below.name)?.id;
        let all = self.world.api.snapshot_list()?;
        let mut at = Some(self.world.api.snapshot_inspect(snapshot)?.id);
        // No more steps than there are snapshots, whatever their records say.
        for _ in 0..=all.len() {
            match at {
                Some(id) if id == wanted => return Ok(()),
                Some(id) => {
                    at = all.iter().find(|it| it.id == id).and_then(|it| it.parent.clone());
                }
                None => break,
            }
        }
        Err(Failure::new(format!("snapshot {snapshot} does not lie on {base}")))
    }
}
