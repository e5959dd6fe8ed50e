//! Saved file systems, copies of sandboxes, and images.

use super::Surface;
use super::begin::Made;
use super::live::{hex, name_of};
use super::text::{rough, size};
use super::words;
use crate::dialect::Call;
use msb_api::{ImageSummary, Snapshot};
use msb_spec::{Error, Kind, Name, Reference, Result};
use serde::Deserialize;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// What stands before the names of snapshots that are of this dialect.
const PREFIX: &str = "mcp-snap-";
/// How long commands have to end before a sandbox is put back.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug, Deserialize)]
pub(super) struct Take {
    snapshot_name: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Delete {
    snapshot_name: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Copy {
    source: String,
    target: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Build {
    name: String,
    containerfile: String,
}

impl Surface {
    pub(super) fn snapshot(&self, call: &Call, asked: &Take) -> Result<String> {
        let begun = Instant::now();
        let live = self.used(call, &asked.sandbox)?;
        let found = self.of(&live)?;
        if found.parent.is_some() {
            return Ok("Error: snapshots not permitted on child sandboxes".to_owned());
        }
        let name = snapshot_name(&asked.snapshot_name)?;
        // As the original does, the name means the new one from now on.
        if self.api().snapshot_inspect(&name).is_ok() {
            self.api().snapshot_remove(&name, true)?;
        }
        let snapshot = self.api().snapshot_create(&name, &live.name, None)?;
        let kind = if snapshot.parent.is_some() { "incremental" } else { "full" };
        let (shown, taken) = (&asked.snapshot_name, rough(begun.elapsed()));
        let size = self.size_of(&live.name, &snapshot);
        let container = &found.life.container;
        Ok(format!("Snapshot '{shown}' saved from {container} ({kind}, {size}, {taken})"))
    }

    /// How much a snapshot holds; until that is written down, what the sandbox has written.
    fn size_of(&self, sandbox: &Name, snapshot: &Snapshot) -> String {
        let written = || self.api().sandbox_metrics(sandbox).ok()?.disk;
        size(snapshot.bytes.or_else(written).unwrap_or(0))
    }

    pub(super) fn restore(&self, call: &Call, asked: &Take) -> Result<String> {
        let shown = &asked.snapshot_name;
        let missing = || Ok(format!("Error: snapshot '{shown}' not found. Use list_snapshots()."));
        let Ok(snapshot) = snapshot_name(shown) else { return missing() };
        match self.api().snapshot_inspect(&snapshot) {
            Err(error) if error.kind() == Kind::NotFound => return missing(),
            inspected => inspected?,
        };
        let name = name_of(&asked.sandbox)?;
        let live = self.lives.of(&name);
        let _making = live.making();
        live.touch();
        let found = self.find(&name)?;
        if found.as_ref().is_some_and(|found| found.parent.is_some()) {
            return Ok("Error: restore not permitted on child sandboxes".to_owned());
        }
        live.close();
        let container = match found {
            // In place: what it may have in children over its life is not begun anew.
            Some(found) => {
                self.api().sandbox_stop(&name, GRACE)?;
                match self.api().sandbox_rollback(&name, &snapshot) {
                    Ok(()) => {
                        self.api().sandbox_start(&name)?;
                        self.new_life(&name, found.summary.created)
                    }
                    // Of another tier, or on another image: it is made of that.
                    Err(_) => self.make(call, &name, Made::From(snapshot))?,
                }
            }
            None => self.make(call, &name, Made::From(snapshot))?,
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

    pub(super) fn delete_snapshot(&self, asked: &Delete) -> Result<String> {
        let shown = &asked.snapshot_name;
        let names = self.snapshot_names()?;
        if !names.contains(shown) {
            let all = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Ok(format!("Error: snapshot '{shown}' not found. Available: {all}"));
        }
        self.api().snapshot_remove(&snapshot_name(shown)?, false)?;
        Ok(format!("Deleted snapshot '{shown}'"))
    }

    /// Those of this dialect, sorted, without what stands before all of them.
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

    pub(super) fn clone_sandbox(&self, call: &Call, asked: &Copy) -> Result<String> {
        let begun = Instant::now();
        let missing = || Ok(format!("Error: no active sandbox '{}' to clone", asked.source));
        let Ok(source) = name_of(&asked.source) else { return missing() };
        let Some(found) = self.active(&source)? else { return missing() };
        if found.parent.is_some() {
            return Ok("Error: cloning from a child sandbox is not permitted".to_owned());
        }
        let target = name_of(&asked.target)?;
        if self.find(&target)?.is_some() {
            return Ok(format!("Error: sandbox '{target}' already exists"));
        }
        let live = self.lives.of(&target);
        let _making = live.making();
        let between = Name::parse(&format!("mcp-clone-{}", hex()))?;
        let snapshot = self.api().snapshot_create(&between, &source, None)?;
        let made = self.make(call, &target, Made::From(between.clone()));
        let size = self.size_of(&source, &snapshot);
        // The copy lies on its layers, not on its name.
        let _ = self.api().snapshot_remove(&between, true);
        let (container, taken) = (made?, rough(begun.elapsed()));
        Ok(format!("Cloned '{source}' -> '{target}': {container} ({size}, {taken})"))
    }

    pub(super) fn build_image(&self, call: &Call, asked: &Build) -> Result<String> {
        let begun = Instant::now();
        let name = Reference::parse(&asked.name);
        let built = name.and_then(|name| {
            self.api().image_build(&name, &asked.containerfile, call.watch.as_ref())
        });
        Ok(match built {
            Ok(_) => format!("Built image '{}' ({})", asked.name, rough(begun.elapsed())),
            Err(error) => format!("Error building image: {}", words(&error)),
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
    name.ok_or_else(|| Error::invalid(format!("not a name for a snapshot: `{text}`")))
}
