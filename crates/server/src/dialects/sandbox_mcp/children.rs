//! Children of sandboxes, with the error texts of the original.

use super::SandboxMcpState;
use super::active::{ListedSandbox, name_of};
use super::base_image::IMAGE;
use super::full_text;
use super::records::now;
use crate::dialect::ToolCall;
use msb_api::{Child, ChildSpec};
use msb_spec::{Bytes, Cpus, Error, ImageRef, Kind, Name, Result};
use serde::Deserialize;
use std::fmt::Write;

/// Attempts to find a free name for a child.
const TRIES: u32 = 16;
/// Least memory of a child in MiB.
const LEAST_MB: u64 = 64;

#[derive(Debug, Deserialize)]
pub(super) struct SpawnArgs {
    image: String,
    parent: String,
    name: String,
    cpus: i64,
    memory: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChildrenArgs {
    parent: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DestroyChildArgs {
    name: String,
}

/// A refusal: exception name of the original, and message.
struct SpawnRefusal(&'static str, String);

impl SpawnRefusal {
    fn value(what: impl Into<String>) -> Self {
        Self("ValueError", what.into())
    }

    fn permission(what: impl Into<String>) -> Self {
        Self("PermissionError", what.into())
    }
}

impl SandboxMcpState {
    pub(super) fn spawn(&self, call: &ToolCall, args: &SpawnArgs) -> Result<String> {
        Ok(match self.try_spawn(call, args) {
            Ok(child) => self.describe(&child),
            Err(SpawnRefusal(kind, what)) => format!("Error: {kind}: {what}"),
        })
    }

    fn try_spawn(&self, call: &ToolCall, args: &SpawnArgs) -> Result<Child, SpawnRefusal> {
        let shown = &args.parent;
        let inactive = || SpawnRefusal::value(format!("No active sandbox '{shown}'"));
        let parent = name_of(shown).map_err(|_| inactive())?;
        let failed = |error: Error| SpawnRefusal("RuntimeError", full_text(&error));
        self.active(&parent).map_err(failed)?.ok_or_else(inactive)?;
        let listing = self.api().child_list(&parent).map_err(failed)?;
        if listing.max_total.is_none() {
            let what = format!("Sandbox '{parent}' is not permitted to spawn children");
            return Err(SpawnRefusal::permission(what));
        }
        let mut spec = ChildSpec {
            image: self.child_image(args)?,
            name: child_name(&args.name)?,
            cpus: u32::try_from(args.cpus).ok().filter(|cpus| *cpus > 0).map(to_cpus),
            memory: memory(&args.memory)?,
        };
        if args.cpus < 0 {
            return Err(SpawnRefusal::value("cpus must be >= 0"));
        }
        if spec.name.is_some() {
            return self.child(call, &parent, &spec, &args.image);
        }
        for number in listing.spawned..listing.spawned + TRIES {
            spec.name = Name::parse(&format!("{parent}-child-{number:04}")).ok();
            match self.child(call, &parent, &spec, &args.image) {
                Err(SpawnRefusal("ValueError", what)) if what.contains("already exists") => {}
                created => return created,
            }
        }
        Err(SpawnRefusal::value(format!("No name is free for a child of '{parent}'")))
    }

    fn child(
        &self,
        call: &ToolCall,
        parent: &Name,
        spec: &ChildSpec,
        image: &str,
    ) -> Result<Child, SpawnRefusal> {
        let about = |error: Error| {
            let what = full_text(&error);
            match error.kind() {
                Kind::Limit if what.contains("at once") => {
                    SpawnRefusal("SpawnLimitError", "Concurrent child limit reached".to_owned())
                }
                Kind::Limit if what.contains("in its life") => {
                    SpawnRefusal("SpawnLimitError", "Lifetime spawn limit reached".to_owned())
                }
                Kind::Limit if what.contains("cpus together") => {
                    SpawnRefusal("SpawnLimitError", "CPU budget exceeded".to_owned())
                }
                Kind::Limit if what.contains("memory together") => {
                    SpawnRefusal("SpawnLimitError", "Memory budget exceeded".to_owned())
                }
                Kind::Limit => SpawnRefusal("SpawnLimitError", what),
                Kind::Denied if what.contains("image `") => {
                    let what = format!("Image '{image}' not allowed for children of '{parent}'");
                    SpawnRefusal::permission(what)
                }
                Kind::Denied => SpawnRefusal::permission(what),
                Kind::Exists => {
                    let name = spec.name.as_ref().map(Name::to_string).unwrap_or_default();
                    SpawnRefusal::value(format!("Sandbox '{name}' already exists"))
                }
                Kind::Invalid => SpawnRefusal::value(what),
                _ => SpawnRefusal("RuntimeError", what),
            }
        };
        self.api().child_spawn(parent, spec, call.watch.as_ref()).map_err(about)
    }

    /// The image of a child; the name of the default image stands for the chosen one.
    fn child_image(&self, args: &SpawnArgs) -> Result<Option<ImageRef>, SpawnRefusal> {
        match args.image.as_str() {
            "" | IMAGE => Ok(None),
            text => ImageRef::parse(text).map(Some).map_err(|_| {
                let parent = &args.parent;
                SpawnRefusal::permission(format!(
                    "Image '{text}' not allowed for children of '{parent}'"
                ))
            }),
        }
    }

    fn describe(&self, child: &Child) -> String {
        let container = self.incarnation(&child.name, child.created).container;
        let mut text = format!(
            "Spawned child '{}': {container}\n  Parent: {}\n  Image: {}\n  Resources: {} CPUs, {}MB",
            child.name,
            child.parent,
            shown_image(&child.image),
            child.cpus,
            child.memory.0 >> 20,
        );
        if let Some(seconds_left) = seconds_left(child) {
            let _ = write!(text, "\n  TTL: {seconds_left}s remaining");
        }
        text
    }

    pub(super) fn children(&self, args: &ChildrenArgs) -> Result<String> {
        let shown = &args.parent;
        let none = || Ok(format!("No active children for '{shown}' (no spawn policy configured)"));
        let Ok(parent) = name_of(shown) else { return none() };
        if self.find(&parent)?.is_none() {
            return none();
        }
        let listing = self.api().child_list(&parent)?;
        let Some(most) = listing.max_total else { return none() };
        let used = listing.spawned;
        if listing.children.is_empty() {
            return Ok(format!(
                "No active children for '{shown}' ({used}/{most} lifetime spawns used)"
            ));
        }
        let mut text = format!("Children of '{shown}' ({} active):", listing.children.len());
        for child in &listing.children {
            let container = self.incarnation(&child.name, child.created).container;
            let seconds_left = seconds_left(child)
                .map_or_else(|| "none".to_owned(), |seconds_left| format!("{seconds_left}s"));
            let idle = self.find(&child.name)?.map_or(0, |found| self.idle(&found).as_secs());
            let _ = write!(
                text,
                "\n  {}: {container} ({} CPUs, {}MB, image={}) TTL={seconds_left} idle={idle}s",
                child.name,
                child.cpus,
                child.memory.0 >> 20,
                shown_image(&child.image),
            );
        }
        let _ = write!(text, "\nLifetime spawns: {used}/{most}");
        Ok(text)
    }

    pub(super) fn destroy_child(&self, args: &DestroyChildArgs) -> Result<String> {
        let shown = &args.name;
        let none = || Ok(format!("Error: no active sandbox '{shown}'"));
        let Ok(name) = name_of(shown) else { return none() };
        let Some(ListedSandbox { parent, incarnation, .. }) = self.find(&name)? else {
            return none();
        };
        let Some(parent) = parent else {
            return Ok(format!("Error: '{name}' is not a child sandbox (use destroy instead)"));
        };
        let handle = self.active.of(&name);
        handle.close();
        self.api().child_remove(&parent, &name)?;
        self.records.set_incarnation(&name, None);
        self.active.forget(&name);
        Ok(format!("Destroyed sandbox '{name}' ({})", incarnation.container))
    }
}

fn to_cpus(cpus: u32) -> Cpus {
    Cpus { millis: cpus.saturating_mul(1000) }
}

/// The image name in results.
fn shown_image(image: &ImageRef) -> String {
    match image {
        ImageRef::Name(name) if name.to_string().contains(IMAGE) => IMAGE.to_owned(),
        image => image.to_string(),
    }
}

/// Seconds until the child expires.
fn seconds_left(child: &Child) -> Option<u64> {
    child.expires.map(|expires| expires.saturating_sub(now()) / 1000)
}

fn child_name(text: &str) -> Result<Option<Name>, SpawnRefusal> {
    match text {
        "" => Ok(None),
        text => Name::parse(text).map(Some).map_err(|_| {
            SpawnRefusal::value(format!(
                "Invalid child name: '{text}' (must match [A-Za-z0-9._-]+)"
            ))
        }),
    }
}

/// Parses `512M` or `2G` as the original does.
fn memory(text: &str) -> Result<Option<Bytes>, SpawnRefusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || SpawnRefusal::value(format!("Invalid memory string: '{text}'"));
    let word = text.to_ascii_uppercase();
    let word = word.strip_suffix('B').unwrap_or(&word);
    let (digits, scale) = match (word.strip_suffix('M'), word.strip_suffix('G')) {
        (Some(digits), _) => (digits, 1),
        (_, Some(digits)) => (digits, 1024),
        _ => return Err(wrong()),
    };
    let digits = digits.trim_end();
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
    let number: u64 = number.flatten().ok_or_else(wrong)?;
    let mb = number.checked_mul(scale).filter(|mb| *mb < 1 << 40).ok_or_else(wrong)?;
    match mb {
        ..LEAST_MB => Err(SpawnRefusal::value("memory must be >= 64M")),
        mb => Ok(Some(Bytes(mb << 20))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_original_does() {
        for (text, mb) in [("512M", 512), ("1g", 1024), ("64 MB", 64), ("2GB", 2048)] {
            assert_eq!(memory(text).ok().flatten(), Some(Bytes(mb << 20)), "{text}");
        }
        for (text, what) in [
            ("zz", "Invalid memory string: 'zz'"),
            ("512", "Invalid memory string: '512'"),
            ("-1M", "Invalid memory string: '-1M'"),
            ("32M", "memory must be >= 64M"),
        ] {
            assert_eq!(memory(text).err().map(|refused| refused.1).as_deref(), Some(what));
        }
        assert!(memory("").is_ok_and(|memory| memory.is_none()));
    }
}
