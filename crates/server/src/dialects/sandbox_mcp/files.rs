//! Files: written, read, and copied between the host and sandboxes.

use super::Surface;
use super::commands::Ask;
use super::live::hex;
use super::shell::WORKSPACE;
use super::text::{MOST_BYTES, cut, quoted, rough, size};
use crate::dialect::Call;
use msb_api::{Copied, EntryKind, Place};
use msb_spec::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::time::Instant;

/// Copying within a sandbox takes as long as there is much of it.
const COPY_LIMIT: f64 = 300.0;

#[derive(Debug, Deserialize)]
pub(super) struct WriteFile {
    path: String,
    content: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReadFile {
    path: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct BatchWrite {
    files: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Upload {
    local_path: String,
    sandbox_path: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Download {
    sandbox_path: String,
    local_path: String,
    sandbox: String,
}

impl Surface {
    pub(super) fn write_file(&self, call: &Call, asked: &WriteFile) -> Result<String> {
        let at = Place::sandbox(&self.used(call, &asked.sandbox)?.name);
        self.put(&at, &asked.path, &asked.content)?;
        Ok(format!("Wrote {} bytes to {}", asked.content.len(), asked.path))
    }

    /// Writes a file; parents are made.
    fn put(&self, at: &Place, path: &str, content: &str) -> Result<()> {
        let path = inside(path);
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            self.api().file_mkdir(at, parent.as_bytes(), true)?;
        }
        let mut content = content.as_bytes();
        self.api().file_write(at, path.as_bytes(), 0o644, false, &mut content).map(drop)
    }

    pub(super) fn read_file(&self, call: &Call, asked: &ReadFile) -> Result<String> {
        let at = Place::sandbox(&self.used(call, &asked.sandbox)?.name);
        let path = inside(&asked.path);
        let size = self.api().file_stat(&at, path.as_bytes(), true).map_or(0, |meta| meta.size);
        let (mut kept, mut total) = (Vec::new(), 0);
        // Not to its end: a sparse file has one that is hours away.
        let most = Some(MOST_BYTES as u64 + 1);
        let read = self.api().file_read(&at, path.as_bytes(), 0, most, &mut |bytes| {
            total += bytes.len() as u64;
            let room = MOST_BYTES.saturating_sub(kept.len()).min(bytes.len());
            kept.extend_from_slice(&bytes[..room]);
            Ok(())
        });
        match read {
            Err(error) if error.kind() == Kind::NotFound => {
                Ok(format!("Error: cat: can't open '{}': No such file or directory", asked.path))
            }
            read => read.map(|()| cut(&kept, total.max(size))),
        }
    }

    pub(super) fn batch_write(&self, call: &Call, asked: &BatchWrite) -> Result<String> {
        let files: Value = match serde_json::from_str(&asked.files) {
            Ok(files) => files,
            Err(error) => return Ok(format!("Error: invalid JSON: {error}")),
        };
        let wrong = || "Error: files must be a JSON object mapping paths to contents".to_owned();
        let Some(files) = files.as_object() else { return Ok(wrong()) };
        // All of them are looked at before the first is written.
        let files: Option<Vec<(&String, &str)>> =
            files.iter().map(|(path, content)| Some((path, content.as_str()?))).collect();
        let Some(files) = files else { return Ok(wrong()) };
        let begun = Instant::now();
        let at = Place::sandbox(&self.used(call, &asked.sandbox)?.name);
        for (path, content) in &files {
            self.put(&at, path, content)?;
        }
        let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
        let (count, taken) = (files.len(), rough(begun.elapsed()));
        Ok(format!("Wrote {count} files ({taken}): {}", paths.join(", ")))
    }

    pub(super) fn upload(&self, call: &Call, asked: &Upload) -> Result<String> {
        let local = &asked.local_path;
        let from = self.world.paths.check(Path::new(local))?;
        let Ok(meta) = from.metadata() else {
            return Ok(format!("Error: {local} does not exist on host"));
        };
        let live = self.used(call, &asked.sandbox)?;
        let at = Place::sandbox(&live.name);
        let begun = Instant::now();
        let target = inside(&asked.sandbox_path);
        if !meta.is_dir() {
            let target = self.file_target(&at, &target, &from)?;
            let copied = self.api().file_push(&at, &from, target.as_bytes())?;
            let taken = rough(begun.elapsed());
            return Ok(format!("Uploaded {local} -> {target} ({}, {taken})", size(copied.bytes)));
        }
        let target = target.trim_end_matches('/');
        let copied = self.push_into(call, &live, &from, target)?;
        let (files, taken) = (files_of(&from), rough(begun.elapsed()));
        let local = local.trim_end_matches('/');
        Ok(format!(
            "Uploaded {local}/ -> {target} ({files} files, {} tar, {taken})",
            size(copied.bytes)
        ))
    }

    /// Where a file goes: below what is a directory, or looks like one.
    fn file_target(&self, at: &Place, target: &str, from: &Path) -> Result<String> {
        let is_directory = target.ends_with('/')
            || self
                .api()
                .file_stat(at, target.as_bytes(), true)
                .is_ok_and(|meta| matches!(meta.kind, EntryKind::Directory));
        let path = match (is_directory, from.file_name()) {
            (true, Some(name)) => {
                format!("{}/{}", target.trim_end_matches('/'), name.to_string_lossy())
            }
            _ => target.to_owned(),
        };
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            self.api().file_mkdir(at, parent.as_bytes(), true)?;
        }
        Ok(path)
    }

    /// Copies what a directory of the host holds into a directory of a sandbox, whether that is there or
    /// not.
    fn push_into(
        &self,
        call: &Call,
        live: &super::live::Live,
        from: &Path,
        target: &str,
    ) -> Result<Copied> {
        let at = Place::sandbox(&live.name);
        if self.api().file_stat(&at, target.as_bytes(), true).is_err() {
            if let Some((parent, _)) = target.rsplit_once('/').filter(|(it, _)| !it.is_empty()) {
                self.api().file_mkdir(&at, parent.as_bytes(), true)?;
            }
            return self.api().file_push(&at, from, target.as_bytes());
        }
        // Beside it first: a directory that is there gets the copy by its name, not what it holds.
        let beside = format!("/tmp/.mcp-upload-{}", hex());
        let copied = self.api().file_push(&at, from, beside.as_bytes());
        let merged = copied.and_then(|copied| {
            let command = format!("cp -a {beside}/. {}/", quoted(target));
            let output = self.run_quietly(call, live, &Ask::new(&command, COPY_LIMIT))?;
            match output.status {
                0 => Ok(copied),
                _ => Err(Error::new(Kind::Host, "what was copied cannot be put in its place")
                    .cause(output.stderr.trim())),
            }
        });
        let _ = self.api().file_remove(&at, beside.as_bytes(), true);
        merged
    }

    pub(super) fn download(&self, call: &Call, asked: &Download) -> Result<String> {
        let local = &asked.local_path;
        let to = self.world.paths.check(Path::new(local))?;
        let at = Place::sandbox(&self.used(call, &asked.sandbox)?.name);
        let begun = Instant::now();
        let from = inside(&asked.sandbox_path);
        let Ok(meta) = self.api().file_stat(&at, from.as_bytes(), true) else {
            return Ok(format!("Error: {} does not exist in sandbox", asked.sandbox_path));
        };
        make_parents(&to)?;
        if !matches!(meta.kind, EntryKind::Directory) {
            let copied = self.api().file_pull(&at, from.as_bytes(), &to)?;
            let taken = rough(begun.elapsed());
            let (path, size) = (&asked.sandbox_path, size(copied.bytes));
            return Ok(format!("Downloaded {path} -> {local} ({size}, {taken})"));
        }
        let mut bytes = 0;
        if to.is_dir() {
            for entry in self.api().file_list(&at, from.as_bytes())? {
                let path = [from.trim_end_matches('/').as_bytes(), b"/", &entry.name].concat();
                bytes += self.api().file_pull(&at, &path, &to)?.bytes;
            }
        } else {
            bytes = self.api().file_pull(&at, from.as_bytes(), &to)?.bytes;
        }
        let path = asked.sandbox_path.trim_end_matches('/');
        let (size, taken) = (size(bytes), rough(begun.elapsed()));
        Ok(format!("Downloaded {path}/ -> {local} ({size} tar, {taken})"))
    }
}

/// A path inside; a relative one is below the workspace.
pub(super) fn inside(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{WORKSPACE}/{path}"),
    }
}

/// Makes the directories that a path of the host lies in, through no link: whatever was judged is
/// what was there then.
fn make_parents(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let about = |error: Errno| Error::host(format!("cannot make `{}`", parent.display()), error);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = rustix::fs::open("/", flags, Mode::empty()).map_err(about)?;
    for part in parent.components().filter(|part| matches!(part, Component::Normal(_))) {
        let name = part.as_os_str();
        let open = |at: &OwnedFd| rustix::fs::openat(at, name, flags, Mode::empty());
        at = match open(&at) {
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)).map_err(about)?;
                open(&at)
            }
            opened => opened,
        }
        .map_err(about)?;
    }
    Ok(())
}

/// How many files a directory of the host holds; links are not followed.
fn files_of(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let count = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files_of(&entry.path()),
        _ => 1,
    };
    entries.flatten().map(count).sum()
}
