//! Children of sandboxes, with the words of the original for what is refused.

use super::Surface;
use super::base::IMAGE;
use super::ledger::now;
use super::live::{Found, name_of};
use super::words;
use crate::dialect::Call;
use msb_api::{Child, ChildSpec};
use msb_spec::{Bytes, Cpus, Error, ImageRef, Kind, Name, Result};
use serde::Deserialize;
use std::fmt::Write;

/// How often a name that somebody else just took is passed over.
const TRIES: u32 = 16;
/// The least memory of a child.
const LEAST_MB: u64 = 64;

#[derive(Debug, Deserialize)]
pub(super) struct Spawn {
    image: String,
    parent: String,
    name: String,
    cpus: i64,
    memory: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Children {
    parent: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DestroyChild {
    name: String,
}

/// What is refused, as the original calls it.
struct Refused(&'static str, String);

impl Refused {
    fn value(what: impl Into<String>) -> Self {
        Self("ValueError", what.into())
    }

    fn permission(what: impl Into<String>) -> Self {
        Self("PermissionError", what.into())
    }
}

impl Surface {
    pub(super) fn spawn(&self, call: &Call, asked: &Spawn) -> Result<String> {
        Ok(match self.spawned(call, asked) {
            Ok(child) => self.introduced(&child),
            Err(Refused(kind, what)) => format!("Error: {kind}: {what}"),
        })
    }

    fn spawned(&self, call: &Call, asked: &Spawn) -> Result<Child, Refused> {
        let shown = &asked.parent;
        let inactive = || Refused::value(format!("No active sandbox '{shown}'"));
        let parent = name_of(shown).map_err(|_| inactive())?;
        let failed = |error: Error| Refused("RuntimeError", words(&error));
        self.active(&parent).map_err(failed)?.ok_or_else(inactive)?;
        let brood = self.api().child_list(&parent).map_err(failed)?;
        if brood.max_total.is_none() {
            let what = format!("Sandbox '{parent}' is not permitted to spawn children");
            return Err(Refused::permission(what));
        }
        let mut spec = ChildSpec {
            image: self.child_image(asked)?,
            name: child_name(&asked.name)?,
            cpus: u32::try_from(asked.cpus).ok().filter(|cpus| *cpus > 0).map(whole),
            memory: memory(&asked.memory)?,
        };
        if asked.cpus < 0 {
            return Err(Refused::value("cpus must be >= 0"));
        }
        if spec.name.is_some() {
            return self.child(call, &parent, &spec, &asked.image);
        }
        for number in brood.spawned..brood.spawned + TRIES {
            spec.name = Name::parse(&format!("{parent}-child-{number:04}")).ok();
            match self.child(call, &parent, &spec, &asked.image) {
                Err(Refused("ValueError", what)) if what.contains("already exists") => {}
                made => return made,
            }
        }
        Err(Refused::value(format!("No name is free for a child of '{parent}'")))
    }

    fn child(
        &self,
        call: &Call,
        parent: &Name,
        spec: &ChildSpec,
        image: &str,
    ) -> Result<Child, Refused> {
        let about = |error: Error| {
            let what = words(&error);
            match error.kind() {
                Kind::Limit if what.contains("at once") => {
                    Refused("SpawnLimitError", "Concurrent child limit reached".to_owned())
                }
                Kind::Limit if what.contains("in its life") => {
                    Refused("SpawnLimitError", "Lifetime spawn limit reached".to_owned())
                }
                Kind::Limit if what.contains("cpus together") => {
                    Refused("SpawnLimitError", "CPU budget exceeded".to_owned())
                }
                Kind::Limit if what.contains("memory together") => {
                    Refused("SpawnLimitError", "Memory budget exceeded".to_owned())
                }
                Kind::Limit => Refused("SpawnLimitError", what),
                Kind::Denied if what.contains("image `") => {
                    let what = format!("Image '{image}' not allowed for children of '{parent}'");
                    Refused::permission(what)
                }
                Kind::Denied => Refused::permission(what),
                Kind::Exists => {
                    let name = spec.name.as_ref().map(Name::to_string).unwrap_or_default();
                    Refused::value(format!("Sandbox '{name}' already exists"))
                }
                Kind::Invalid => Refused::value(what),
                _ => Refused("RuntimeError", what),
            }
        };
        self.api().child_spawn(parent, spec, call.watch.as_ref()).map_err(about)
    }

    /// The image of a child; the default one by its name, whatever that is here.
    fn child_image(&self, asked: &Spawn) -> Result<Option<ImageRef>, Refused> {
        match asked.image.as_str() {
            "" | IMAGE => Ok(None),
            text => ImageRef::parse(text).map(Some).map_err(|_| {
                let parent = &asked.parent;
                Refused::permission(format!(
                    "Image '{text}' not allowed for children of '{parent}'"
                ))
            }),
        }
    }

    fn introduced(&self, child: &Child) -> String {
        let container = self.life(&child.name, child.created).container;
        let mut text = format!(
            "Spawned child '{}': {container}\n  Parent: {}\n  Image: {}\n  Resources: {} CPUs, {}MB",
            child.name,
            child.parent,
            shown_image(&child.image),
            child.cpus,
            child.memory.0 >> 20,
        );
        if let Some(left) = left(child) {
            let _ = write!(text, "\n  TTL: {left}s remaining");
        }
        text
    }

    pub(super) fn children(&self, asked: &Children) -> Result<String> {
        let shown = &asked.parent;
        let none = || Ok(format!("No active children for '{shown}' (no spawn policy configured)"));
        let Ok(parent) = name_of(shown) else { return none() };
        if self.find(&parent)?.is_none() {
            return none();
        }
        let brood = self.api().child_list(&parent)?;
        let Some(most) = brood.max_total else { return none() };
        let used = brood.spawned;
        if brood.children.is_empty() {
            return Ok(format!(
                "No active children for '{shown}' ({used}/{most} lifetime spawns used)"
            ));
        }
        let mut text = format!("Children of '{shown}' ({} active):", brood.children.len());
        for child in &brood.children {
            let container = self.life(&child.name, child.created).container;
            let left = left(child).map_or_else(|| "none".to_owned(), |left| format!("{left}s"));
            let idle = self.find(&child.name)?.map_or(0, |found| self.idle(&found).as_secs());
            let _ = write!(
                text,
                "\n  {}: {container} ({} CPUs, {}MB, image={}) TTL={left} idle={idle}s",
                child.name,
                child.cpus,
                child.memory.0 >> 20,
                shown_image(&child.image),
            );
        }
        let _ = write!(text, "\nLifetime spawns: {used}/{most}");
        Ok(text)
    }

    pub(super) fn destroy_child(&self, asked: &DestroyChild) -> Result<String> {
        let shown = &asked.name;
        let none = || Ok(format!("Error: no active sandbox '{shown}'"));
        let Ok(name) = name_of(shown) else { return none() };
        let Some(Found { parent, life, .. }) = self.find(&name)? else { return none() };
        let Some(parent) = parent else {
            return Ok(format!("Error: '{name}' is not a child sandbox (use destroy instead)"));
        };
        let live = self.lives.of(&name);
        live.close();
        self.api().child_remove(&parent, &name)?;
        self.ledger.set_life(&name, None);
        self.lives.forget(&name);
        Ok(format!("Destroyed sandbox '{name}' ({})", life.container))
    }
}

fn whole(cpus: u32) -> Cpus {
    Cpus { millis: cpus.saturating_mul(1000) }
}

/// The image as clients know it.
fn shown_image(image: &ImageRef) -> String {
    match image {
        ImageRef::Name(name) if name.to_string().contains(IMAGE) => IMAGE.to_owned(),
        image => image.to_string(),
    }
}

/// Seconds that a child has left.
fn left(child: &Child) -> Option<u64> {
    child.expires.map(|expires| expires.saturating_sub(now()) / 1000)
}

fn child_name(text: &str) -> Result<Option<Name>, Refused> {
    match text {
        "" => Ok(None),
        text => Name::parse(text).map(Some).map_err(|_| {
            Refused::value(format!("Invalid child name: '{text}' (must match [A-Za-z0-9._-]+)"))
        }),
    }
}

/// `512M` or `2G`, as the original reads it.
fn memory(text: &str) -> Result<Option<Bytes>, Refused> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || Refused::value(format!("Invalid memory string: '{text}'"));
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
        ..LEAST_MB => Err(Refused::value("memory must be >= 64M")),
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
