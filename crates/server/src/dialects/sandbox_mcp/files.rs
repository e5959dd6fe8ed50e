//! Reads and writes files, and copies them between the host and sandboxes.

use super::SandboxMcpState;
use super::active::hex;
use super::commands::ShellCommand;
use super::format::{MOST_BYTES, cut, quoted, rough, size};
use super::shell::WORKSPACE;
use crate::dialect::ToolCall;
use msb_api::{CopyCount, EntryKind, Place};
use msb_spec::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::time::Instant;

/// Timeout in seconds for copying within a sandbox.
const COPY_LIMIT: f64 = 300.0;

#[derive(Debug, Deserialize)]
pub(super) struct WriteFileArgs {
    path: String,
    content: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReadFileArgs {
    path: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct BatchWriteArgs {
    files: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct UploadArgs {
    local_path: String,
    sandbox_path: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DownloadArgs {
    sandbox_path: String,
    local_path: String,
    sandbox: String,
}

impl SandboxMcpState {
    pub(super) fn write_file(&self, call: &ToolCall, args: &WriteFileArgs) -> Result<String> {
        let at = Place::sandbox(&self.ensure_active(call, &args.sandbox)?.name);
        self.write_with_parents(&at, &args.path, &args.content)?;
        Ok(format!("Wrote {} bytes to {}", args.content.len(), args.path))
    }

    /// Writes a file and creates missing parent directories.
    fn write_with_parents(&self, at: &Place, path: &str, content: &str) -> Result<()> {
        let path = inside(path);
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            self.api().file_mkdir(at, parent.as_bytes(), true)?;
        }
        let mut content = content.as_bytes();
        self.api().file_write(at, path.as_bytes(), 0o644, false, &mut content).map(drop)
    }

    pub(super) fn read_file(&self, call: &ToolCall, args: &ReadFileArgs) -> Result<String> {
        let at = Place::sandbox(&self.ensure_active(call, &args.sandbox)?.name);
        let path = inside(&args.path);
        let size = self.api().file_stat(&at, path.as_bytes(), true).map_or(0, |meta| meta.size);
        let (mut kept, mut total) = (Vec::new(), 0);
        // Limited: reading a sparse file to its end could take hours.
        let most = Some(MOST_BYTES as u64 + 1);
        let read = self.api().file_read(&at, path.as_bytes(), 0, most, &mut |bytes| {
            total += bytes.len() as u64;
            let room = MOST_BYTES.saturating_sub(kept.len()).min(bytes.len());
            kept.extend_from_slice(&bytes[..room]);
            Ok(())
        });
        match read {
            Err(error) if error.kind() == Kind::NotFound => {
                Ok(format!("Error: cat: can't open '{}': No such file or directory", args.path))
            }
            read => read.map(|()| cut(&kept, total.max(size))),
        }
    }

    pub(super) fn batch_write(&self, call: &ToolCall, args: &BatchWriteArgs) -> Result<String> {
        let files: Value = match serde_json::from_str(&args.files) {
            Ok(files) => files,
            Err(error) => return Ok(format!("Error: invalid JSON: {error}")),
        };
        let wrong = || "Error: files must be a JSON object mapping paths to contents".to_owned();
        let Some(files) = files.as_object() else { return Ok(wrong()) };
        // All entries are validated before the first one is written.
        let files: Option<Vec<(&String, &str)>> =
            files.iter().map(|(path, content)| Some((path, content.as_str()?))).collect();
        let Some(files) = files else { return Ok(wrong()) };
        let started = Instant::now();
        let at = Place::sandbox(&self.ensure_active(call, &args.sandbox)?.name);
        for (path, content) in &files {
            self.write_with_parents(&at, path, content)?;
        }
        let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
        let (count, taken) = (files.len(), rough(started.elapsed()));
        Ok(format!("Wrote {count} files ({taken}): {}", paths.join(", ")))
    }

    pub(super) fn upload(&self, call: &ToolCall, args: &UploadArgs) -> Result<String> {
        let local = &args.local_path;
        let from = self.config.paths.check(Path::new(local))?;
        let Ok(meta) = from.metadata() else {
            return Ok(format!("Error: {local} does not exist on host"));
        };
        let handle = self.ensure_active(call, &args.sandbox)?;
        let at = Place::sandbox(&handle.name);
        let started = Instant::now();
        let target = inside(&args.sandbox_path);
        if !meta.is_dir() {
            let target = self.file_target(&at, &target, &from)?;
            let copied = self.api().file_push(&at, &from, target.as_bytes())?;
            let taken = rough(started.elapsed());
            return Ok(format!("Uploaded {local} -> {target} ({}, {taken})", size(copied.bytes)));
        }
        let target = target.trim_end_matches('/');
        let copied = self.push_into(call, &handle, &from, target)?;
        let (files, taken) = (files_of(&from), rough(started.elapsed()));
        let local = local.trim_end_matches('/');
        Ok(format!(
            "Uploaded {local}/ -> {target} ({files} files, {} tar, {taken})",
            size(copied.bytes)
        ))
    }

    /// The destination of a file: inside a directory, or at a path that is not one.
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

    /// Copies the contents of a host directory into a directory of a sandbox, which may exist.
    fn push_into(
        &self,
        call: &ToolCall,
        handle: &super::active::ActiveSandbox,
        from: &Path,
        target: &str,
    ) -> Result<CopyCount> {
        let at = Place::sandbox(&handle.name);
        if self.api().file_stat(&at, target.as_bytes(), true).is_err() {
            if let Some((parent, _)) = target.rsplit_once('/').filter(|(it, _)| !it.is_empty()) {
                self.api().file_mkdir(&at, parent.as_bytes(), true)?;
            }
            return self.api().file_push(&at, from, target.as_bytes());
        }
        // First to a temporary directory: an existing target would get the directory itself, not
        // its
        // contents.
        let beside = format!("/tmp/.mcp-upload-{}", hex());
        let copied = self.api().file_push(&at, from, beside.as_bytes());
        let merged = copied.and_then(|copied| {
            let command = format!("cp -a {beside}/. {}/", quoted(target));
            let output =
                self.run_quietly(call, handle, &ShellCommand::new(&command, COPY_LIMIT))?;
            match output.status {
                0 => Ok(copied),
                _ => Err(Error::new(
                    Kind::Host,
                    "cannot move the uploaded files to their destination",
                )
                .cause(output.stderr.trim())),
            }
        });
        let _ = self.api().file_remove(&at, beside.as_bytes(), true);
        merged
    }

    pub(super) fn download(&self, call: &ToolCall, args: &DownloadArgs) -> Result<String> {
        let local = &args.local_path;
        let to = self.config.paths.check(Path::new(local))?;
        let at = Place::sandbox(&self.ensure_active(call, &args.sandbox)?.name);
        let started = Instant::now();
        let from = inside(&args.sandbox_path);
        let Ok(meta) = self.api().file_stat(&at, from.as_bytes(), true) else {
            return Ok(format!("Error: {} does not exist in sandbox", args.sandbox_path));
        };
        make_parents(&to)?;
        if !matches!(meta.kind, EntryKind::Directory) {
            let copied = self.api().file_pull(&at, from.as_bytes(), &to)?;
            let taken = rough(started.elapsed());
            let (path, size) = (&args.sandbox_path, size(copied.bytes));
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
        let path = args.sandbox_path.trim_end_matches('/');
        let (size, taken) = (size(bytes), rough(started.elapsed()));
        Ok(format!("Downloaded {path}/ -> {local} ({size} tar, {taken})"))
    }
}

/// An absolute path inside the sandbox; a relative path starts at the workspace.
pub(super) fn inside(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{WORKSPACE}/{path}"),
    }
}

/// Creates the parent directories of a host path without following symbolic links: the path was
/// checked before, and a link that appears later must not redirect it.
fn make_parents(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let about = |error: Errno| Error::host(format!("cannot create `{}`", parent.display()), error);
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

/// Counts the files below a host directory, without following symbolic links.
fn files_of(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let count = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files_of(&entry.path()),
        _ => 1,
    };
    entries.flatten().map(count).sum()
}
