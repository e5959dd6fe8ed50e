//! Snapshots, copies of sandboxes, and images.

use super::SandboxMcpState;
use super::active::{hex, name_of};
use super::format::{rough, size};
use super::full_text;
use super::lifecycle::SandboxSource;
use crate::dialect::ToolCall;
use msb_api::{ImageSummary, Snapshot};
use msb_spec::{Error, Kind, Name, Reference, Result};
use serde::Deserialize;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Prefix of the names of this dialect's snapshots.
const PREFIX: &str = "mcp-snap-";
/// Time between SIGTERM and SIGKILL before a rollback.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug, Deserialize)]
pub(super) struct SnapshotArgs {
    snapshot_name: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DeleteSnapshotArgs {
    snapshot_name: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct CloneSandboxArgs {
    source: String,
    target: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct BuildImageArgs {
    name: String,
    containerfile: String,
}

impl SandboxMcpState {
    pub(super) fn snapshot(&self, call: &ToolCall, args: &SnapshotArgs) -> Result<String> {
        let started = Instant::now();
        let handle = self.ensure_active(call, &args.sandbox)?;
        let found = self.listed(&handle)?;
        if found.parent.is_some() {
            return Ok("Error: snapshots not permitted on child sandboxes".to_owned());
        }
        let name = snapshot_name(&args.snapshot_name)?;
        // As in the original, an existing name moves to the new snapshot.
        if self.api().snapshot_inspect(&name).is_ok() {
            self.api().snapshot_remove(&name, true)?;
        }
        let snapshot = self.api().snapshot_create(&name, &handle.name, None)?;
        let kind = if snapshot.parent.is_some() { "incremental" } else { "full" };
        let (shown, taken) = (&args.snapshot_name, rough(started.elapsed()));
        let size = self.size_of(&handle.name, &snapshot);
        let container = &found.incarnation.container;
        Ok(format!("Snapshot '{shown}' saved from {container} ({kind}, {size}, {taken})"))
    }

    /// The size of a snapshot; until that is recorded, what the sandbox has written.
    fn size_of(&self, sandbox: &Name, snapshot: &Snapshot) -> String {
        let written = || self.api().sandbox_metrics(sandbox).ok()?.disk;
        size(snapshot.bytes.or_else(written).unwrap_or(0))
    }

    pub(super) fn restore(&self, call: &ToolCall, args: &SnapshotArgs) -> Result<String> {
        let shown = &args.snapshot_name;
        let missing = || Ok(format!("Error: snapshot '{shown}' not found. Use list_snapshots()."));
        let Ok(snapshot) = snapshot_name(shown) else { return missing() };
        match self.api().snapshot_inspect(&snapshot) {
            Err(error) if error.kind() == Kind::NotFound => return missing(),
            inspected => inspected?,
        };
        let name = name_of(&args.sandbox)?;
        let handle = self.active.of(&name);
        let _making = handle.lifecycle_lock();
        handle.touch();
        let found = self.find(&name)?;
        if found.as_ref().is_some_and(|found| found.parent.is_some()) {
            return Ok("Error: restore not permitted on child sandboxes".to_owned());
        }
        handle.close();
        let container = match found {
            // In place, so that the lifetime spawn count of the sandbox is kept.
            Some(found) => {
                self.api().sandbox_stop(&name, GRACE)?;
                match self.api().sandbox_rollback(&name, &snapshot) {
                    Ok(()) => {
                        self.api().sandbox_start(&name)?;
                        self.new_incarnation(&name, found.summary.created)
                    }
                    // A snapshot of another tier or image: the sandbox is created from it.
                    Err(_) => self.create(call, &name, SandboxSource::From(snapshot))?,
                }
            }
            None => self.create(call, &name, SandboxSource::From(snapshot))?,
        };
        Ok(format!("Restored '{shown}' as '{name}': {container}"))
    }

    pub(super) fn list_snapshots(&self) -> Result<String> {
        let names = self.snapshot_names()?;
        if names.is_empty() {
            return Ok("No snapshots saved. Use snapshot('name') to create one.".to_owned());
        }
        Ok(format!("Available snapshots:\n  - {}", names.join("\n  - ")))
    }

    pub(super) fn delete_snapshot(&self, args: &DeleteSnapshotArgs) -> Result<String> {
        let shown = &args.snapshot_name;
        let names = self.snapshot_names()?;
        if !names.contains(shown) {
            let all = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Ok(format!("Error: snapshot '{shown}' not found. Available: {all}"));
        }
        self.api().snapshot_remove(&snapshot_name(shown)?, false)?;
        Ok(format!("Deleted snapshot '{shown}'"))
    }

    /// Names of this dialect's snapshots, sorted, without the prefix.
    fn snapshot_names(&self) -> Result<Vec<String>> {
        let all = self.api().snapshot_list()?;
        let names = all.iter().flat_map(|snapshot| &snapshot.names);
        let mut names: Vec<String> = names
            .filter_map(|name| name.as_str().strip_prefix(PREFIX))
            .map(str::to_owned)
            .collect();
        names.sort();
        Ok(names)
    }

    pub(super) fn clone_sandbox(&self, call: &ToolCall, args: &CloneSandboxArgs) -> Result<String> {
        let started = Instant::now();
        let missing = || Ok(format!("Error: no active sandbox '{}' to clone", args.source));
        let Ok(source) = name_of(&args.source) else { return missing() };
        let Some(found) = self.active(&source)? else { return missing() };
        if found.parent.is_some() {
            return Ok("Error: cloning from a child sandbox is not permitted".to_owned());
        }
        let target = name_of(&args.target)?;
        if self.find(&target)?.is_some() {
            return Ok(format!("Error: sandbox '{target}' already exists"));
        }
        let handle = self.active.of(&target);
        let _making = handle.lifecycle_lock();
        let between = Name::parse(&format!("mcp-clone-{}", hex()))?;
        let snapshot = self.api().snapshot_create(&between, &source, None)?;
        let created = self.create(call, &target, SandboxSource::From(between.clone()));
        let size = self.size_of(&source, &snapshot);
        // The copy depends on the layers of the snapshot, not on its name.
        let _ = self.api().snapshot_remove(&between, true);
        let (container, taken) = (created?, rough(started.elapsed()));
        Ok(format!("Cloned '{source}' -> '{target}': {container} ({size}, {taken})"))
    }

    pub(super) fn build_image(&self, call: &ToolCall, args: &BuildImageArgs) -> Result<String> {
        let started = Instant::now();
        let name = Reference::parse(&args.name);
        let built = name.and_then(|name| {
            self.api().image_build(&name, &args.containerfile, call.watch.as_ref())
        });
        Ok(match built {
            Ok(_) => format!("Built image '{}' ({})", args.name, rough(started.elapsed())),
            Err(error) => format!("Error building image: {}", full_text(&error)),
        })
    }

    pub(super) fn images(&self) -> Result<String> {
        let images = self.api().image_list()?;
        if images.is_empty() {
            return Ok("No images found".to_owned());
        }
        let mut text = format!("{:<20} {:<7} DIGEST", "NAME", "TAG");
        for ImageSummary { reference, digest, .. } in images {
            let (shown, digest) = (reference.to_string(), digest.to_string());
            let (name, tag) = shown.rsplit_once(':').unwrap_or((&shown, "latest"));
            let digest = digest.split_once(':').map_or(digest.as_str(), |(_, digits)| digits);
            let short: String = digest.chars().take(12).collect();
            let _ = write!(text, "\n{name:<20} {tag:<7} {short}");
        }
        Ok(text)
    }
}

fn snapshot_name(text: &str) -> Result<Name> {
    let name = Name::parse(&format!("{PREFIX}{text}")).ok().filter(|_| !text.is_empty());
    name.ok_or_else(|| Error::invalid(format!("not a snapshot name: `{text}`")))
}
