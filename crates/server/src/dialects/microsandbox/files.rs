//! Files of sandboxes and of volumes: the same tools, at two places.

use super::between::between;
use super::envelope::{Done, Failure, Outcome, Truncation};
use super::exec::{decoded, encoded};
use super::selector::named;
use super::{Microsandbox, read};
use crate::dialect::Call;
use msb_api::{EntryKind, Meta, Place};
use msb_spec::clock;
use msb_spec::{Error, Kind, VolumeName};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Permissions of a file that is made: everybody may read it.
const MODE: u32 = 0o644;
/// Entries of a directory in one answer. More is nothing that a model could read.
const ENTRIES: usize = 20_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asked {
    pub(super) name: String,
    user: Option<String>,
    #[serde(default)]
    pub(super) path: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    encoding: Encoding,
    max_bytes: Option<u64>,
    #[serde(default)]
    pub(super) kind: Removed,
    #[serde(default)]
    pub(super) from: String,
    #[serde(default)]
    pub(super) to: String,
    #[serde(default)]
    pub(super) target: String,
    #[serde(default)]
    pub(super) link_path: String,
    to_sandbox: Option<String>,
    #[serde(default)]
    host_path: String,
    #[serde(default)]
    guest_path: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Utf8,
    Base64,
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf8",
            Self::Base64 => "base64",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Removed {
    #[default]
    Auto,
    File,
    Dir,
}

/// Where the files of a call are.
pub(super) struct At {
    pub(super) place: Place,
    /// What relative paths are below, with a slash at its end.
    start: Vec<u8>,
    /// Put into every answer: the volume, if it is one.
    volume: Option<String>,
}

impl At {
    /// A path at that place. A relative one begins at its root, or at the user's home for SFTP.
    pub(super) fn path(&self, text: &str) -> Result<Vec<u8>, Failure> {
        if text.contains('\0') {
            return Err(Failure::new("a path cannot hold a zero byte"));
        }
        let mut depth = 0_i32;
        for part in text.split('/') {
            depth += match part {
                "" | "." => 0,
                ".." => -1,
                _ => 1,
            };
            if depth < 0 && self.volume.is_some() {
                return Err(Failure::new("sandbox fs error: path traversal outside volume root"));
            }
        }
        let start: &[u8] = if text.starts_with('/') { b"" } else { &self.start };
        Ok([start, text.as_bytes()].concat())
    }

    pub(super) fn done(&self, answer: Value) -> Done {
        let mut all = Map::new();
        all.extend(self.volume.iter().map(|name| ("name".to_owned(), json!(name))));
        if let Value::Object(members) = answer {
            all.extend(members);
        }
        Done::new(Value::Object(all))
    }
}

/// The name of a volume. What cannot be one names none that exists.
pub(super) fn volume(name: &str) -> Result<VolumeName, Failure> {
    VolumeName::parse(name).map_err(|error| {
        let shown = msb_spec::shown(&name.chars().take(60).collect::<String>()).to_string();
        Failure::new(format!("volume not found: {shown}"))
            .detail("hint", error.advice().unwrap_or("it is not a name"))
    })
}

/// What clients of this dialect know a missing file by; what we know is in the details.
pub(super) fn about(path: &str) -> impl Fn(Error) -> Failure {
    let path = path.to_owned();
    move |error| match error.kind() {
        // A sandbox or volume that is missing says so itself.
        Kind::NotFound if !error.message().starts_with("no ") => {
            let text = "io error: No such file or directory (os error 2)";
            Failure::new(text).detail("path", path.as_str()).detail("cause", error.to_string())
        }
        _ => Failure::from(error),
    }
}

impl Microsandbox {
    /// Where the files of a call are. Over SFTP they are seen by its user, and by nobody more powerful.
    pub(super) fn at(&self, call: &Call, asked: &Asked) -> Result<At, Failure> {
        let start = b"/".to_vec();
        let name = asked.name.as_str();
        if call.tool.starts_with("volume_") {
            let place = Place::Volume(volume(name)?);
            return Ok(At { place, start, volume: Some(name.to_owned()) });
        }
        let name = named(name)?;
        if !is_sftp(call) {
            return Ok(At { place: Place::sandbox(&name), start, volume: None });
        }
        let user = self.login(&name, asked.user.as_deref())?;
        let place = Place::Sandbox { name, user };
        let paths = [&asked.path, &asked.from, &asked.to, &asked.link_path];
        let start = match paths.iter().any(|path| !path.is_empty() && !path.starts_with('/')) {
            true => [self.world.api.file_real(&place, b"")?, start].concat(),
            false => start,
        };
        Ok(At { place, start, volume: None })
    }

    pub(super) fn fs_read(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let limit = self.settings.limit(asked.max_bytes);
        let total = self.world.api.file_stat(&at.place, &path, true).map_err(about(&asked.path))?;
        let mut bytes = Vec::new();
        let mut take = |piece: &[u8]| {
            let room = limit.saturating_sub(bytes.len()).min(piece.len());
            bytes.extend_from_slice(&piece[..room]);
            Ok(())
        };
        self.world
            .api
            .file_read(&at.place, &path, 0, Some(limit as u64), &mut take)
            .map_err(about(&asked.path))?;
        // Files of /proc say that they hold nothing.
        let total = if total.size == 0 { bytes.len() as u64 } else { total.size };
        let truncation = Truncation::of("content", bytes.len(), total);
        let content = match asked.encoding {
            Encoding::Utf8 => String::from_utf8_lossy(&bytes).into_owned(),
            Encoding::Base64 => encoded(&bytes),
        };
        let encoding = asked.encoding.name();
        let answer = json!({"path": asked.path, "encoding": encoding, "content": content});
        Ok(at.done(answer).truncated(truncation))
    }

    pub(super) fn fs_write(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let bytes = match asked.encoding {
            Encoding::Utf8 => asked.content.into_bytes(),
            Encoding::Base64 => decoded("content", &asked.content)?,
        };
        let api = &self.world.api;
        match above(&path) {
            // SFTP makes a file, and no directories for it.
            Some(above) if is_sftp(call) => {
                api.file_stat(&at.place, above, true).map_err(about(&asked.path))?;
            }
            Some(above) => api.file_mkdir(&at.place, above, true).map_err(about(&asked.path))?,
            None => {}
        }
        // What is there keeps its permissions.
        let mode = api.file_stat(&at.place, &path, true).map_or(MODE, |meta| meta.mode & 0o7777);
        let written = api
            .file_write(&at.place, &path, mode, false, &mut bytes.as_slice())
            .map_err(about(&asked.path))?;
        let encoding = asked.encoding.name();
        Ok(at.done(json!({"path": asked.path, "encoding": encoding, "written": written})))
    }

    pub(super) fn fs_list(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let entries = self.world.api.file_list(&at.place, &path).map_err(about(&asked.path))?;
        let warning = (entries.len() > ENTRIES)
            .then(|| format!("only the first {ENTRIES} of {} entries are shown", entries.len()));
        let shown = entries.iter().take(ENTRIES).map(|meta| {
            let name = String::from_utf8_lossy(&meta.name);
            json!({
                "path": format!("{}/{name}", asked.path.trim_end_matches('/')),
                "kind": kind(meta),
                "size": meta.size,
                "mode": mode(meta),
                "modified": clock::written(meta.modified),
            })
        });
        Ok(Done::new(shown.collect()).warning(warning))
    }

    pub(super) fn fs_mkdir(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        self.world.api.file_mkdir(&at.place, &path, true).map_err(about(&asked.path))?;
        Ok(at.done(json!({"path": asked.path, "created": true})))
    }

    pub(super) fn fs_remove(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let api = &self.world.api;
        let meta = api.file_stat(&at.place, &path, false).map_err(about(&asked.path))?;
        match (asked.kind, &meta.kind) {
            (Removed::File, EntryKind::Directory) => {
                return Err(Failure::new(format!("{} is a directory", asked.path)));
            }
            (Removed::Dir, kind) if *kind != EntryKind::Directory => {
                return Err(Failure::new(format!("{} is not a directory", asked.path)));
            }
            _ => {}
        }
        let whole = meta.kind == EntryKind::Directory;
        api.file_remove(&at.place, &path, whole).map_err(about(&asked.path))?;
        Ok(at.done(json!({"path": asked.path, "removed": true})))
    }

    pub(super) fn fs_copy(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let (from, to) = (at.path(&asked.from)?, at.path(&asked.to)?);
        let other = asked.to_sandbox.as_deref().filter(|other| *other != asked.name);
        if at.volume.is_some() {
            self.world.api.file_copy(&at.place, &from, &to).map_err(about(&asked.from))?;
            return Ok(at.done(json!({"from": asked.from, "to": asked.to, "copied": true})));
        }
        let target = other.unwrap_or(&asked.name);
        let mut answer = json!({
            "from": {"sandbox": asked.name, "path": asked.from},
            "to": {"sandbox": target, "path": asked.to},
            "copied": true,
        });
        match other {
            None => self.world.api.file_copy(&at.place, &from, &to).map_err(about(&asked.from))?,
            Some(other) => {
                let there = Place::sandbox(&named(other)?);
                let copied = between(self.world.api.as_ref(), (&at.place, &from), (&there, &to));
                answer["bytes"] = json!(copied.map_err(about(&asked.from))?);
            }
        }
        Ok(at.done(answer))
    }

    pub(super) fn fs_rename(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let (from, to) = (at.path(&asked.from)?, at.path(&asked.to)?);
        self.world.api.file_rename(&at.place, &from, &to).map_err(about(&asked.from))?;
        Ok(at.done(json!({"from": asked.from, "to": asked.to, "renamed": true})))
    }

    pub(super) fn fs_stat(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let meta = self.world.api.file_stat(&at.place, &path, false).map_err(about(&asked.path))?;
        Ok(Done::new(json!({
            "kind": kind(&meta),
            "size": meta.size,
            "mode": mode(&meta),
            "readonly": meta.mode & 0o222 == 0,
            "modified": clock::written(meta.modified),
            "created": meta.created.map(clock::written),
        })))
    }

    pub(super) fn fs_exists(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let exists = match self.world.api.file_stat(&at.place, &path, true) {
            Ok(_) => true,
            Err(error) if error.kind() == Kind::NotFound && !error.message().starts_with("no ") => {
                false
            }
            Err(error) => return Err(error.into()),
        };
        Ok(at.done(json!({"path": asked.path, "exists": exists})))
    }

    pub(super) fn fs_copy_from_host(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let guest = at.path(&asked.guest_path)?;
        let host = self.host_path(&asked.host_path)?;
        self.world.api.file_push(&at.place, &host, &guest)?;
        Ok(Done::new(json!({"hostPath": host, "guestPath": asked.guest_path, "copied": true})))
    }

    pub(super) fn fs_copy_to_host(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let guest = at.path(&asked.guest_path)?;
        let host = self.host_path(&asked.host_path)?;
        self.world.api.file_pull(&at.place, &guest, &host).map_err(about(&asked.guest_path))?;
        Ok(Done::new(json!({"guestPath": asked.guest_path, "hostPath": host, "copied": true})))
    }

    /// A path of the host that clients may name, with every link followed.
    pub(super) fn host_path(&self, path: &str) -> Result<std::path::PathBuf, Failure> {
        let shown = std::path::absolute(path).unwrap_or_else(|_| path.into());
        self.world.paths.check(Path::new(path)).map_err(|error| match error.kind() {
            Kind::Denied => {
                let text = "host path is outside MICROSANDBOX_MCP_HOST_PATHS";
                let denied = Failure::of("host_path_denied", text);
                let hint = error.advice().unwrap_or_default().to_owned();
                denied.detail("path", shown.display().to_string()).detail("hint", hint)
            }
            _ => error.into(),
        })
    }
}

/// Whether a call is one over SFTP.
fn is_sftp(call: &Call) -> bool {
    call.tool.starts_with("sandbox_sftp_")
}

/// The directory above a path, if that is not the root.
fn above(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte == b'/')?;
    Some(&path[..end]).filter(|above| !above.is_empty())
}

fn kind(meta: &Meta) -> &'static str {
    match meta.kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink(_) => "symlink",
        EntryKind::Other | EntryKind::End => "other",
    }
}

/// Permissions with the kind before them, as stat(2) has it.
fn mode(meta: &Meta) -> u32 {
    let kind = match meta.kind {
        EntryKind::File => 0o100_000,
        EntryKind::Directory => 0o040_000,
        EntryKind::Symlink(_) => 0o120_000,
        EntryKind::Other | EntryKind::End => 0,
    };
    kind | meta.mode & 0o7777
}
