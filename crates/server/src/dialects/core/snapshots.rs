//! Tools that save the files of a sandbox and restore them.

use super::Core;
use super::sandboxes::shown;
use msb_api::Snapshot;
use msb_spec::{Name, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SaveArguments {
    sandbox: Name,
    name: Name,
    note: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreArguments {
    sandbox: Name,
    snapshot: Name,
}

impl Core {
    pub(super) fn snapshot_create(&self, arguments: SaveArguments) -> Result<Value> {
        let SaveArguments { sandbox, name, note } = arguments;
        let created = self.config.api.snapshot_create(&name, &sandbox, note.as_deref())?;
        Ok(saved(&created))
    }

    pub(super) fn snapshot_list(&self) -> Result<Value> {
        let all = self.config.api.snapshot_list()?;
        Ok(json!({"snapshots": all.iter().map(saved).collect::<Vec<_>>()}))
    }

    pub(super) fn snapshot_restore(&self, arguments: RestoreArguments) -> Result<Value> {
        let RestoreArguments { sandbox, snapshot } = arguments;
        let api = &self.config.api;
        api.snapshot_inspect(&snapshot)?;
        api.sandbox_stop(&sandbox, Duration::ZERO)?;
        api.sandbox_rollback(&sandbox, &snapshot)?;
        api.sandbox_start(&sandbox)?;
        Ok(shown(&api.sandbox_summary(&sandbox)?))
    }
}

fn saved(snapshot: &Snapshot) -> Value {
    let name = snapshot.names.first().map_or_else(|| snapshot.id.clone(), ToString::to_string);
    let mut saved = json!({
        "name": name,
        "id": snapshot.id,
        "sandbox": snapshot.sandbox,
        "created_ms": snapshot.created,
    });
    if let Some(microseconds) = snapshot.paused_us {
        #[expect(clippy::cast_precision_loss, reason = "no pause takes 2^53 microseconds")]
        let milliseconds = microseconds as f64 / 1000.0;
        saved["paused_ms"] = json!(milliseconds);
    }
    if let Some(note) = &snapshot.note {
        saved["note"] = json!(note);
    }
    saved
}
