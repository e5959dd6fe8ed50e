//! Files of sandboxes and of volumes, with the same tools for both.

use super::copy::between;
use super::envelope::{Outcome, ToolFailure, ToolSuccess, Truncation};
use super::exec::{decoded, encoded};
use super::selector::named;
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use msb_api::{EntryKind, Meta, Place};
use msb_spec::clock;
use msb_spec::{Error, Kind, VolumeName};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Permissions of a new file.
const MODE: u32 = 0o644;
/// Most directory entries in one result; a model could not use more.
const ENTRIES: usize = 20_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileParams {
    pub(super) name: String,
    user: Option<String>,
    #[serde(default)]
    pub(super) path: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    encoding: ContentEncoding,
    max_bytes: Option<u64>,
    #[serde(default)]
    pub(super) kind: RemoveKind,
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
enum ContentEncoding {
    #[default]
    Utf8,
    Base64,
}

impl ContentEncoding {
    fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf8",
            Self::Base64 => "base64",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RemoveKind {
    #[default]
    Auto,
    File,
    Dir,
}

/// The sandbox or volume of a file call.
pub(super) struct FileRoot {
    pub(super) place: Place,
    /// The directory that relative paths start at, with a trailing slash.
    start: Vec<u8>,
    /// The name of the volume, which every result contains.
    volume: Option<String>,
}

impl FileRoot {
    /// An absolute path. A relative one starts at the root, or at the user's home for SFTP.
    pub(super) fn path(&self, text: &str) -> Result<Vec<u8>, ToolFailure> {
        if text.contains('\0') {
            return Err(ToolFailure::new("a path must not contain a zero byte"));
        }
        let mut depth = 0_i32;
        for part in text.split('/') {
            depth += match part {
                "" | "." => 0,
                ".." => -1,
                _ => 1,
            };
            if depth < 0 && self.volume.is_some() {
                return Err(ToolFailure::new(
                    "sandbox fs error: path traversal outside volume root",
                ));
            }
        }
        let start: &[u8] = if text.starts_with('/') { b"" } else { &self.start };
        Ok([start, text.as_bytes()].concat())
    }

    pub(super) fn done(&self, answer: Value) -> ToolSuccess {
        let mut all = Map::new();
        all.extend(self.volume.iter().map(|name| ("name".to_owned(), json!(name))));
        if let Value::Object(members) = answer {
            all.extend(members);
        }
        ToolSuccess::new(Value::Object(all))
    }
}

/// Parses the name of a volume. An invalid name is a volume that does not exist.
pub(super) fn volume(name: &str) -> Result<VolumeName, ToolFailure> {
    VolumeName::parse(name).map_err(|error| {
        let shown = msb_spec::shown(&name.chars().take(60).collect::<String>()).to_string();
        ToolFailure::new(format!("volume not found: {shown}"))
            .detail("hint", error.advice().unwrap_or("it is not a name"))
    })
}

/// The message that clients expect for a missing file; our own error is in the details.
pub(super) fn about(path: &str) -> impl Fn(Error) -> ToolFailure {
    let path = path.to_owned();
    move |error| match error.kind() {
        // A missing sandbox or volume has its own message.
        Kind::NotFound if !error.message().starts_with("no ") => {
            let text = "io error: No such file or directory (os error 2)";
            ToolFailure::new(text).detail("path", path.as_str()).detail("cause", error.to_string())
        }
        _ => ToolFailure::from(error),
    }
}

impl Microsandbox {
    /// The sandbox or volume of a call. Over SFTP, files are accessed with the rights of its user.
    pub(super) fn at(&self, call: &ToolCall, params: &FileParams) -> Result<FileRoot, ToolFailure> {
        let start = b"/".to_vec();
        let name = params.name.as_str();
        if call.tool.starts_with("volume_") {
            let place = Place::Volume(volume(name)?);
            return Ok(FileRoot { place, start, volume: Some(name.to_owned()) });
        }
        let name = named(name)?;
        if !is_sftp(call) {
            return Ok(FileRoot { place: Place::sandbox(&name), start, volume: None });
        }
        let user = self.login(&name, params.user.as_deref())?;
        let place = Place::Sandbox { name, user };
        let paths = [&params.path, &params.from, &params.to, &params.link_path];
        let start = match paths.iter().any(|path| !path.is_empty() && !path.starts_with('/')) {
            true => [self.config.api.file_real(&place, b"")?, start].concat(),
            false => start,
        };
        Ok(FileRoot { place, start, volume: None })
    }

    pub(super) fn fs_read(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let limit = self.settings.limit(params.max_bytes);
        let total =
            self.config.api.file_stat(&at.place, &path, true).map_err(about(&params.path))?;
        let mut bytes = Vec::new();
        let mut take = |piece: &[u8]| {
            let room = limit.saturating_sub(bytes.len()).min(piece.len());
            bytes.extend_from_slice(&piece[..room]);
            Ok(())
        };
        self.config
            .api
            .file_read(&at.place, &path, 0, Some(limit as u64), &mut take)
            .map_err(about(&params.path))?;
        // Files of /proc report size 0.
        let total = if total.size == 0 { bytes.len() as u64 } else { total.size };
        let truncation = Truncation::of("content", bytes.len(), total);
        let content = match params.encoding {
            ContentEncoding::Utf8 => String::from_utf8_lossy(&bytes).into_owned(),
            ContentEncoding::Base64 => encoded(&bytes),
        };
        let encoding = params.encoding.name();
        let answer = json!({"path": params.path, "encoding": encoding, "content": content});
        Ok(at.done(answer).truncated(truncation))
    }

    pub(super) fn fs_write(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let bytes = match params.encoding {
            ContentEncoding::Utf8 => params.content.into_bytes(),
            ContentEncoding::Base64 => decoded("content", &params.content)?,
        };
        let api = &self.config.api;
        match above(&path) {
            // SFTP creates no parent directories.
            Some(above) if is_sftp(call) => {
                api.file_stat(&at.place, above, true).map_err(about(&params.path))?;
            }
            Some(above) => api.file_mkdir(&at.place, above, true).map_err(about(&params.path))?,
            None => {}
        }
        // An existing file keeps its permissions.
        let mode = api.file_stat(&at.place, &path, true).map_or(MODE, |meta| meta.mode & 0o7777);
        let written = api
            .file_write(&at.place, &path, mode, false, &mut bytes.as_slice())
            .map_err(about(&params.path))?;
        let encoding = params.encoding.name();
        Ok(at.done(json!({"path": params.path, "encoding": encoding, "written": written})))
    }

    pub(super) fn fs_list(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let entries = self.config.api.file_list(&at.place, &path).map_err(about(&params.path))?;
        let warning = (entries.len() > ENTRIES)
            .then(|| format!("only the first {ENTRIES} of {} entries are shown", entries.len()));
        let shown = entries.iter().take(ENTRIES).map(|meta| {
            let name = String::from_utf8_lossy(&meta.name);
            json!({
                "path": format!("{}/{name}", params.path.trim_end_matches('/')),
                "kind": kind(meta),
                "size": meta.size,
                "mode": mode(meta),
                "modified": clock::written(meta.modified),
            })
        });
        Ok(ToolSuccess::new(shown.collect()).warning(warning))
    }

    pub(super) fn fs_mkdir(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        self.config.api.file_mkdir(&at.place, &path, true).map_err(about(&params.path))?;
        Ok(at.done(json!({"path": params.path, "created": true})))
    }

    pub(super) fn fs_remove(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let api = &self.config.api;
        let meta = api.file_stat(&at.place, &path, false).map_err(about(&params.path))?;
        match (params.kind, &meta.kind) {
            (RemoveKind::File, EntryKind::Directory) => {
                return Err(ToolFailure::new(format!("{} is a directory", params.path)));
            }
            (RemoveKind::Dir, kind) if *kind != EntryKind::Directory => {
                return Err(ToolFailure::new(format!("{} is not a directory", params.path)));
            }
            _ => {}
        }
        let whole = meta.kind == EntryKind::Directory;
        api.file_remove(&at.place, &path, whole).map_err(about(&params.path))?;
        Ok(at.done(json!({"path": params.path, "removed": true})))
    }

    pub(super) fn fs_copy(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let (from, to) = (at.path(&params.from)?, at.path(&params.to)?);
        let other = params.to_sandbox.as_deref().filter(|other| *other != params.name);
        if at.volume.is_some() {
            self.config.api.file_copy(&at.place, &from, &to).map_err(about(&params.from))?;
            return Ok(at.done(json!({"from": params.from, "to": params.to, "copied": true})));
        }
        let target = other.unwrap_or(&params.name);
        let mut answer = json!({
            "from": {"sandbox": params.name, "path": params.from},
            "to": {"sandbox": target, "path": params.to},
            "copied": true,
        });
        match other {
            None => {
                self.config.api.file_copy(&at.place, &from, &to).map_err(about(&params.from))?
            }
            Some(other) => {
                let there = Place::sandbox(&named(other)?);
                let copied = between(self.config.api.as_ref(), (&at.place, &from), (&there, &to));
                answer["bytes"] = json!(copied.map_err(about(&params.from))?);
            }
        }
        Ok(at.done(answer))
    }

    pub(super) fn fs_rename(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let (from, to) = (at.path(&params.from)?, at.path(&params.to)?);
        self.config.api.file_rename(&at.place, &from, &to).map_err(about(&params.from))?;
        Ok(at.done(json!({"from": params.from, "to": params.to, "renamed": true})))
    }

    pub(super) fn fs_stat(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let meta =
            self.config.api.file_stat(&at.place, &path, false).map_err(about(&params.path))?;
        Ok(ToolSuccess::new(json!({
            "kind": kind(&meta),
            "size": meta.size,
            "mode": mode(&meta),
            "readonly": meta.mode & 0o222 == 0,
            "modified": clock::written(meta.modified),
            "created": meta.created.map(clock::written),
        })))
    }

    pub(super) fn fs_exists(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let exists = match self.config.api.file_stat(&at.place, &path, true) {
            Ok(_) => true,
            Err(error) if error.kind() == Kind::NotFound && !error.message().starts_with("no ") => {
                false
            }
            Err(error) => return Err(error.into()),
        };
        Ok(at.done(json!({"path": params.path, "exists": exists})))
    }

    pub(super) fn fs_copy_from_host(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let guest = at.path(&params.guest_path)?;
        let host = self.host_path(&params.host_path)?;
        self.config.api.file_push(&at.place, &host, &guest)?;
        Ok(ToolSuccess::new(
            json!({"hostPath": host, "guestPath": params.guest_path, "copied": true}),
        ))
    }

    pub(super) fn fs_copy_to_host(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let guest = at.path(&params.guest_path)?;
        let host = self.host_path(&params.host_path)?;
        self.config.api.file_pull(&at.place, &guest, &host).map_err(about(&params.guest_path))?;
        Ok(ToolSuccess::new(
            json!({"guestPath": params.guest_path, "hostPath": host, "copied": true}),
        ))
    }

    /// The resolved path of an allowed host path.
    pub(super) fn host_path(&self, path: &str) -> Result<std::path::PathBuf, ToolFailure> {
        let shown = std::path::absolute(path).unwrap_or_else(|_| path.into());
        self.config.paths.check(Path::new(path)).map_err(|error| match error.kind() {
            Kind::Denied => {
                let text = "host path is outside MICROSANDBOX_MCP_HOST_PATHS";
                let denied = ToolFailure::of("host_path_denied", text);
                let hint = error.advice().unwrap_or_default().to_owned();
                denied.detail("path", shown.display().to_string()).detail("hint", hint)
            }
            _ => error.into(),
        })
    }
}

/// Whether the tool is one for SFTP.
fn is_sftp(call: &ToolCall) -> bool {
    call.tool.starts_with("sandbox_sftp_")
}

/// The parent directory of a path, unless that is the root.
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

/// Permission bits with the file type, as in `st_mode` of stat(2).
fn mode(meta: &Meta) -> u32 {
    let kind = match meta.kind {
        EntryKind::File => 0o100_000,
        EntryKind::Directory => 0o040_000,
        EntryKind::Symlink(_) => 0o120_000,
        EntryKind::Other | EntryKind::End => 0,
    };
    kind | meta.mode & 0o7777
}
