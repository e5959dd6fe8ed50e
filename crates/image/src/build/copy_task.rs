//! COPY, ADD and WORKDIR: copies files into a new layer, in the helper process.
//!
//! The helper has only the directories that were opened for it. It runs twice: first to hash what
//! would be copied, which is part of the cache key, and then to write the layer.

use super::add_archive::{self, AddArchive};
use super::context_dir::ContextDir;
use super::file_tree::{self, FileEntry, FileKind, FileTree, resolve_in, shown};
use super::glob::Glob;
use super::ignore::Ignore;
use super::layer_stack::LayerStack;
use super::new_layer::{NewLayer, unreadable};
use super::stage_builder::CopyArgs;
use super::step::CopySource;
use super::tar_writer::{EntryContent, TarWriter};
use crate::unpack::Bounds;
use msb_spec::{Error, Kind as ErrorKind, Result, UserRef};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What to copy, from where, and over which layers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CopyTask {
    pub(crate) args: CopyArgs,
    /// Number of directories that are lower layers; they come first, topmost first.
    pub(crate) below: usize,
    /// Type of the directories after the lower layers.
    pub(crate) from: CopyFrom,
    /// Modification time of created directories, in seconds since 1970.
    pub(crate) time: i64,
    /// Latest modification time of a file, in seconds since 1970; newer ones are set to it.
    pub(crate) latest: Option<i64>,
    pub(crate) bounds: Bounds,
}

/// Where copied files come from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyFrom {
    /// The build context, without what these rules exclude.
    Folder { ignore: String },
    /// Layers of a stage or an image, topmost first.
    Layers,
    /// No source: only the target directory is created.
    Nowhere,
}

/// Summary of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyResult {
    /// SHA-256 of the layer without modification times.
    pub contents: [u8; 32],
    /// Newest modification time, in seconds since 1970.
    pub newest: i64,
    /// Whether the layer has any entry.
    pub any: bool,
}

impl CopyTask {
    /// Runs the task on these open directories. The layer goes to `out`.
    pub(crate) fn run(&self, mut directories: Vec<OwnedFd>, out: impl Write) -> Result<CopyResult> {
        let others = directories.split_off(self.below.min(directories.len()));
        let below = LayerStack::new(directories);
        let owner = match &self.args.owner {
            Some(owner) => Some(owner_in(&below, owner)?),
            None => None,
        };
        let writer = TarWriter::new(out, self.latest);
        let layer = NewLayer::new(writer, &below, owner.unwrap_or((0, 0)), self.time);
        let mut job = Copier { task: self, layer, owner, links: BTreeMap::new(), any: false };
        match &self.from {
            CopyFrom::Nowhere => job.directory()?,
            CopyFrom::Layers => {
                let tree = LayerStack::new(others);
                job.copy(&tree, &|_| false)?;
            }
            CopyFrom::Folder { ignore } => {
                let root = others.into_iter().next();
                let root = root.ok_or_else(|| Error::invalid("nothing to copy from"))?;
                let ignore = Ignore::parse(ignore)
                    .map_err(|(line, why)| Error::invalid(format!("line {line}: {why}")))?;
                let tree = ContextDir::new(root, ignore);
                job.copy(&tree, &|path| tree.excludes(path))?;
            }
        }
        let any = job.any;
        let (contents, newest) = job.layer.finish()?;
        Ok(CopyResult { contents, newest, any })
    }
}

struct Copier<'a, W: Write> {
    task: &'a CopyTask,
    layer: NewLayer<'a, W>,
    owner: Option<(u32, u32)>,
    /// Hard links: path of the first copy, by device and inode.
    links: BTreeMap<(u64, u64), PathBuf>,
    any: bool,
}

/// A file or directory that a source pattern matches.
struct SourceMatch {
    /// Its path in the source tree.
    path: PathBuf,
    /// Its name in the target; none for the root.
    name: Option<OsString>,
}

impl<W: Write> Copier<'_, W> {
    /// Creates the target directory only.
    fn directory(&mut self) -> Result<()> {
        let target = Path::new(&self.task.args.target);
        let there = self.layer.resolve(target)?;
        if self.layer.kind(&there)? != Some(FileKind::Directory) {
            self.layer.enter(target)?;
            self.any = true;
        }
        Ok(())
    }

    fn copy(&mut self, tree: &dyn FileTree, excludes: &dyn Fn(&Path) -> bool) -> Result<()> {
        let args = &self.task.args;
        let mut matches = Vec::new();
        for source in &args.sources {
            match source {
                CopySource::Path(path) => matches.push(find(tree, path, excludes)?),
                CopySource::Document { .. } => matches.push(Vec::new()),
            }
        }
        let documents =
            args.sources.iter().filter(|s| matches!(s, CopySource::Document { .. })).count();
        let count = documents + matches.iter().map(Vec::len).sum::<usize>();
        let target = self.layer.resolve(Path::new(&args.target))?;
        let is_directory = self.layer.kind(&target)? == Some(FileKind::Directory);
        if count > 1 && !args.into && !is_directory {
            return Err(Error::invalid(format!(
                "several sources need a directory as target: `{}`",
                args.target
            ))
            .hint("write the target with a trailing `/`"));
        }
        let into = args.into || is_directory;
        for (source, matches) in args.sources.iter().zip(matches) {
            if let CopySource::Document { name, body, .. } = source {
                self.document(&target, into, name, body)?;
            }
            for one in matches {
                self.one(tree, &one, &target, into)?;
            }
        }
        Ok(())
    }

    fn document(&mut self, target: &Path, into: bool, name: &str, body: &str) -> Result<()> {
        let name = name.rsplit('/').next().unwrap_or_default();
        let path = self.place(target, into, OsStr::new(name))?;
        let entry = FileEntry {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: self.task.time,
            size: body.len() as u64,
            hard_link_id: None,
            parent_only: false,
        };
        let entry = self.with_overrides(entry, true);
        self.layer.put(&path, &entry, &Vec::new(), EntryContent::Bytes(&mut body.as_bytes()))?;
        self.any = true;
        Ok(())
    }

    /// The path of a file in the layer: below the target, or the target itself.
    fn place(&mut self, target: &Path, into: bool, name: &OsStr) -> Result<PathBuf> {
        let (directory, name) = match (into, target.parent(), target.file_name()) {
            (false, Some(parent), Some(own)) => (parent, own),
            _ => (target, name),
        };
        Ok(self.layer.enter(directory)?.join(name))
    }

    fn one(
        &mut self,
        tree: &dyn FileTree,
        one: &SourceMatch,
        target: &Path,
        into: bool,
    ) -> Result<()> {
        let about = |error| unreadable(&one.path, error);
        let entry = tree.entry(&one.path).map_err(about)?;
        let entry = entry.ok_or_else(|| about(std::io::ErrorKind::NotFound.into()))?;
        if entry.kind == FileKind::Directory {
            let target = self.layer.enter(target)?;
            self.any = true;
            return self.inside(tree, &one.path, &target, 0);
        }
        if self.task.args.add && entry.kind == FileKind::File {
            let file = tree.open(&one.path).map_err(about)?;
            if let Some(packed) = add_archive::detect(file, &one.path)? {
                let target = self.layer.enter(target)?;
                return self.unpack(packed, &target);
            }
        }
        let name = one.name.clone().unwrap_or_default();
        let path = self.place(target, into, &name)?;
        self.file(tree, &one.path, entry, &path)
    }

    /// Copies the entries of a directory.
    fn inside(
        &mut self,
        tree: &dyn FileTree,
        path: &Path,
        target: &Path,
        depth: u64,
    ) -> Result<()> {
        if depth > self.task.bounds.depth {
            return Err(crate::unpack::exceeded("depth", self.task.bounds.depth));
        }
        for name in tree.names(path).map_err(|error| unreadable(path, error))? {
            let (from, to) = (path.join(&name), target.join(&name));
            let entry = tree.entry(&from).map_err(|error| unreadable(&from, error))?;
            match entry {
                // Ignored, or removed meanwhile.
                None => {}
                Some(entry) if entry.kind == FileKind::Directory => {
                    if entry.parent_only && !holds_any(tree, &from)? {
                        continue;
                    }
                    let attributes =
                        tree.attributes(&from).map_err(|error| unreadable(&from, error))?;
                    let entry = self.with_overrides(entry, self.is_from_host());
                    let to = self.layer.put(&to, &entry, &attributes, EntryContent::None)?;
                    self.any = true;
                    self.inside(tree, &from, &to, depth + 1)?;
                }
                Some(entry) => self.file(tree, &from, entry, &to)?,
            }
        }
        Ok(())
    }

    /// Copies anything but a directory.
    fn file(
        &mut self,
        tree: &dyn FileTree,
        path: &Path,
        entry: FileEntry,
        target: &Path,
    ) -> Result<()> {
        match entry.kind {
            FileKind::File | FileKind::Link(_) | FileKind::Fifo if !entry.parent_only => {}
            // A socket has no content to copy.
            FileKind::Socket => return Ok(()),
            FileKind::Device => {
                return Err(Error::unsupported(format!("a device node: `{}`", shown(path)))
                    .cause("images cannot contain device nodes"));
            }
            _ => return Ok(()),
        }
        self.any = true;
        let hard_link_id = entry.hard_link_id;
        let entry = self.with_overrides(entry, self.is_from_host());
        if let Some(first) =
            hard_link_id.and_then(|hard_link_id| self.links.get(&hard_link_id).cloned())
        {
            self.layer.put(target, &entry, &Vec::new(), EntryContent::HardLink(&first))?;
            return Ok(());
        }
        let about = |error| unreadable(path, error);
        if entry.kind != FileKind::File {
            self.layer.put(target, &entry, &Vec::new(), EntryContent::None)?;
            return Ok(());
        }
        let attributes = tree.attributes(path).map_err(about)?;
        let mut file = tree.open(path).map_err(about)?;
        let put = self.layer.put(target, &entry, &attributes, EntryContent::Bytes(&mut file))?;
        if let Some(hard_link_id) = hard_link_id {
            self.links.insert(hard_link_id, put);
        }
        Ok(())
    }

    fn unpack(&mut self, packed: AddArchive, target: &Path) -> Result<()> {
        let (owner, mode) = (self.owner, self.task.args.mode);
        self.any = true;
        add_archive::unpack(packed, &self.task.bounds, &mut self.layer, target, |entry| {
            if let Some((uid, gid)) = owner {
                (entry.uid, entry.gid) = (uid, gid);
            }
            if let Some(mode) = mode.filter(|_| !matches!(entry.kind, FileKind::Link(_))) {
                entry.mode = mode;
            }
        })
    }

    fn is_from_host(&self) -> bool {
        matches!(self.task.from, CopyFrom::Folder { .. })
    }

    /// Applies the requested owner and mode. Files of the host belong to root: ids of the host have
    /// no meaning in the image.
    fn with_overrides(&self, mut entry: FileEntry, from_host: bool) -> FileEntry {
        if from_host {
            (entry.uid, entry.gid) = (0, 0);
        }
        if let Some((uid, gid)) = self.owner {
            (entry.uid, entry.gid) = (uid, gid);
        }
        match (&entry.kind, self.task.args.mode) {
            (FileKind::Link(_), _) => entry.mode = 0o777,
            (_, Some(mode)) => entry.mode = mode,
            _ => {}
        }
        entry
    }
}

/// Whether an ignored directory contains something that `!` includes again.
fn holds_any(tree: &dyn FileTree, path: &Path) -> Result<bool> {
    let about = |error| unreadable(path, error);
    for name in tree.names(path).map_err(about)? {
        let path = path.join(name);
        match tree.entry(&path).map_err(about)? {
            None => {}
            Some(entry) if !entry.parent_only => return Ok(true),
            Some(entry) if entry.kind == FileKind::Directory && holds_any(tree, &path)? => {
                return Ok(true);
            }
            Some(_) => {}
        }
    }
    Ok(false)
}

/// Resolves a source: one path, or all matches of its wildcards.
fn find(
    tree: &dyn FileTree,
    source: &str,
    excludes: &dyn Fn(&Path) -> bool,
) -> Result<Vec<SourceMatch>> {
    let about = |error| unreadable(Path::new(source.trim_start_matches('/')), error);
    let mut found = vec![SourceMatch { path: PathBuf::new(), name: None }];
    for part in source.split('/') {
        match part {
            "" | "." => continue,
            ".." => {
                for one in &mut found {
                    one.path.pop();
                    one.name = file_tree::name(&one.path).map(OsStr::to_owned);
                }
                continue;
            }
            _ => {}
        }
        let mut next = Vec::new();
        for one in found {
            if !Glob::is_pattern(part) {
                let path = resolve_in(tree, &one.path.join(part)).map_err(about)?;
                next.push(SourceMatch { path, name: Some(part.into()) });
                continue;
            }
            let glob = Glob::component(part)
                .map_err(|why| Error::invalid(format!("not a pattern: {why}: `{source}`")))?;
            let directory = tree.entry(&one.path).map_err(about)?.map(|entry| entry.kind);
            if directory != Some(FileKind::Directory) {
                continue;
            }
            for name in tree.names(&one.path).map_err(about)? {
                let there = tree.entry(&one.path.join(&name)).map_err(about)?;
                if there.is_some() && glob.matches(&name.to_string_lossy()) {
                    let path = resolve_in(tree, &one.path.join(&name)).map_err(about)?;
                    next.push(SourceMatch { path, name: Some(name) });
                }
            }
        }
        found = next;
    }
    let mut there = Vec::new();
    let mut hidden = false;
    for one in found {
        match tree.entry(&one.path).map_err(about)? {
            Some(entry) if !entry.parent_only || holds_any(tree, &one.path)? => there.push(one),
            _ => hidden |= excludes(&one.path),
        }
    }
    if there.is_empty() {
        let error = Error::new(ErrorKind::NotFound, format!("nothing to copy at `{source}`"));
        return Err(match hidden {
            true => error.hint("the file exists, but `.dockerignore` excludes it"),
            false => error,
        });
    }
    Ok(there)
}

/// Largest passwd or group file that is read, in bytes.
const USERS_LIMIT: u64 = 1 << 20;

/// Resolves an owner to ids, with passwd and group of the image.
fn owner_in(image: &dyn FileTree, owner: &UserRef) -> Result<(u32, u32)> {
    let file = |path: &str| {
        let text = file_tree::text(image, Path::new(path), USERS_LIMIT);
        text.map(Option::unwrap_or_default).map_err(|error| unreadable(Path::new(path), error))
    };
    let unknown = |name: &str, file: &str| {
        Error::new(ErrorKind::NotFound, format!("the image has no user or group `{name}`"))
            .cause(format!("/{file} has no such entry"))
            .hint("numeric ids need no entry: `--chown=1000:1000`")
    };
    let field = |text: &str, name: &str, at: usize| {
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then(|| fields.nth(at - 1)?.parse::<u32>().ok())?
        })
    };
    let (user, own_group) = match owner.user().parse::<u32>() {
        Ok(uid) => (uid, uid),
        Err(_) => {
            let passwd = file("etc/passwd")?;
            let uid = field(&passwd, owner.user(), 2);
            let uid = uid.ok_or_else(|| unknown(owner.user(), "etc/passwd"))?;
            (uid, field(&passwd, owner.user(), 3).unwrap_or(uid))
        }
    };
    let group = match owner.group() {
        None => own_group,
        Some(name) => match name.parse::<u32>() {
            Ok(gid) => gid,
            Err(_) => {
                field(&file("etc/group")?, name, 2).ok_or_else(|| unknown(name, "etc/group"))?
            }
        },
    };
    Ok((user, group))
}

#[cfg(test)]
mod tests;
