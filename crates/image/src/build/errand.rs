//! COPY, ADD and WORKDIR: from a tree to a layer, done apart.
//!
//! The process that does it sees directories that were opened for it and nothing else. It is
//! asked twice: first for what would be copied, which tells whether it was copied before, and
//! then for the layer.

use super::archive::{self, Packed};
use super::assembly::Copying;
use super::folder::Folder;
use super::glob::Glob;
use super::ignore::Ignore;
use super::layer::{NewLayer, unreadable};
use super::stack::Stack;
use super::step::Source;
use super::tape::{Data, Tape};
use super::tree::{self, Entry, Kind, Tree, resolve_in, shown};
use crate::unpack::Bounds;
use msb_spec::{Error, Kind as ErrorKind, Result, UserRef};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What is to be copied, from where and over what.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Errand {
    pub(crate) copying: Copying,
    /// How many of the directories, the topmost first, are the layers below.
    pub(crate) below: usize,
    /// What the other directories are.
    pub(crate) from: From,
    /// The time of directories that are made on the way.
    pub(crate) time: i64,
    /// No file is newer than this.
    pub(crate) latest: Option<i64>,
    pub(crate) bounds: Bounds,
}

/// Where files come from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum From {
    /// One directory of the host, without what these rules leave out.
    Folder { ignore: String },
    /// Layers, the topmost first.
    Layers,
    /// Nowhere: only a directory has to be there.
    Nowhere,
}

/// What was copied, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// What the layer holds, times apart.
    pub contents: [u8; 32],
    /// How new its newest file is.
    pub newest: i64,
    /// Whether it holds anything at all.
    pub any: bool,
}

impl Errand {
    /// Does it, with these directories open; the layer goes to `out`.
    pub(crate) fn run(&self, mut directories: Vec<OwnedFd>, out: impl Write) -> Result<Copied> {
        let others = directories.split_off(self.below.min(directories.len()));
        let below = Stack::new(directories);
        let owner = match &self.copying.owner {
            Some(owner) => Some(owner_in(&below, owner)?),
            None => None,
        };
        let tape = Tape::new(out, self.latest);
        let layer = NewLayer::new(tape, &below, owner.unwrap_or((0, 0)), self.time);
        let mut job = Copier { errand: self, layer, owner, links: BTreeMap::new(), any: false };
        match &self.from {
            From::Nowhere => job.directory()?,
            From::Layers => {
                let tree = Stack::new(others);
                job.copy(&tree, &|_| false)?;
            }
            From::Folder { ignore } => {
                let root = others.into_iter().next();
                let root = root.ok_or_else(|| Error::invalid("nothing to copy from"))?;
                let ignore = Ignore::parse(ignore)
                    .map_err(|(line, why)| Error::invalid(format!("line {line}: {why}")))?;
                let tree = Folder::new(root, ignore);
                job.copy(&tree, &|path| tree.hides(path))?;
            }
        }
        let any = job.any;
        let (contents, newest) = job.layer.finish()?;
        Ok(Copied { contents, newest, any })
    }
}

struct Copier<'a, W: Write> {
    errand: &'a Errand,
    layer: NewLayer<'a, W>,
    owner: Option<(u32, u32)>,
    /// Files with several names, and where the first was put.
    links: BTreeMap<(u64, u64), PathBuf>,
    any: bool,
}

/// Something that a source stands for.
struct Match {
    /// Where it is.
    path: PathBuf,
    /// What it is called; the root is called nothing.
    name: Option<OsString>,
}

impl<W: Write> Copier<'_, W> {
    /// Only makes the target.
    fn directory(&mut self) -> Result<()> {
        let target = Path::new(&self.errand.copying.target);
        let there = self.layer.resolve(target)?;
        if self.layer.kind(&there)? != Some(Kind::Directory) {
            self.layer.enter(target)?;
            self.any = true;
        }
        Ok(())
    }

    fn copy(&mut self, tree: &dyn Tree, hides: &dyn Fn(&Path) -> bool) -> Result<()> {
        let copying = &self.errand.copying;
        let mut matches = Vec::new();
        for source in &copying.sources {
            match source {
                Source::Path(path) => matches.push(find(tree, path, hides)?),
                Source::Document { .. } => matches.push(Vec::new()),
            }
        }
        let documents =
            copying.sources.iter().filter(|s| matches!(s, Source::Document { .. })).count();
        let count = documents + matches.iter().map(Vec::len).sum::<usize>();
        let target = self.layer.resolve(Path::new(&copying.target))?;
        let is_directory = self.layer.kind(&target)? == Some(Kind::Directory);
        if count > 1 && !copying.into && !is_directory {
            return Err(Error::invalid(format!(
                "several files need a directory to go to: `{}`",
                copying.target
            ))
            .hint("write it with a `/` at its end"));
        }
        let into = copying.into || is_directory;
        for (source, matches) in copying.sources.iter().zip(matches) {
            if let Source::Document { name, body, .. } = source {
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
        let entry = Entry {
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: self.errand.time,
            size: body.len() as u64,
            shared: None,
            passage: false,
        };
        let entry = self.dressed(entry, true);
        self.layer.put(&path, &entry, &Vec::new(), Data::Bytes(&mut body.as_bytes()))?;
        self.any = true;
        Ok(())
    }

    /// Where a file goes: into the target, or to its place.
    fn place(&mut self, target: &Path, into: bool, name: &OsStr) -> Result<PathBuf> {
        let (directory, name) = match (into, target.parent(), target.file_name()) {
            (false, Some(parent), Some(own)) => (parent, own),
            _ => (target, name),
        };
        Ok(self.layer.enter(directory)?.join(name))
    }

    fn one(&mut self, tree: &dyn Tree, one: &Match, target: &Path, into: bool) -> Result<()> {
        let about = |error| unreadable(&one.path, error);
        let entry = tree.entry(&one.path).map_err(about)?;
        let entry = entry.ok_or_else(|| about(std::io::ErrorKind::NotFound.into()))?;
        if entry.kind == Kind::Directory {
            let target = self.layer.enter(target)?;
            self.any = true;
            return self.inside(tree, &one.path, &target, 0);
        }
        if self.errand.copying.add && entry.kind == Kind::File {
            let file = tree.open(&one.path).map_err(about)?;
            if let Some(packed) = archive::recognise(file, &one.path)? {
                let target = self.layer.enter(target)?;
                return self.unpack(packed, &target);
            }
        }
        let name = one.name.clone().unwrap_or_default();
        let path = self.place(target, into, &name)?;
        self.file(tree, &one.path, entry, &path)
    }

    /// Copies what a directory holds.
    fn inside(&mut self, tree: &dyn Tree, path: &Path, target: &Path, depth: u64) -> Result<()> {
        if depth > self.errand.bounds.depth {
            return Err(crate::unpack::exceeded("depth", self.errand.bounds.depth));
        }
        for name in tree.names(path).map_err(|error| unreadable(path, error))? {
            let (from, to) = (path.join(&name), target.join(&name));
            let entry = tree.entry(&from).map_err(|error| unreadable(&from, error))?;
            match entry {
                // Ignored, or gone meanwhile.
                None => {}
                Some(entry) if entry.kind == Kind::Directory => {
                    if entry.passage && !holds_any(tree, &from)? {
                        continue;
                    }
                    let attributes =
                        tree.attributes(&from).map_err(|error| unreadable(&from, error))?;
                    let entry = self.dressed(entry, self.is_from_host());
                    let to = self.layer.put(&to, &entry, &attributes, Data::None)?;
                    self.any = true;
                    self.inside(tree, &from, &to, depth + 1)?;
                }
                Some(entry) => self.file(tree, &from, entry, &to)?,
            }
        }
        Ok(())
    }

    /// Copies anything but a directory.
    fn file(&mut self, tree: &dyn Tree, path: &Path, entry: Entry, target: &Path) -> Result<()> {
        match entry.kind {
            Kind::File | Kind::Link(_) | Kind::Fifo if !entry.passage => {}
            // Somebody listens there now, which no copy can.
            Kind::Socket => return Ok(()),
            Kind::Device => {
                return Err(Error::unsupported(format!("a device: `{}`", shown(path)))
                    .cause("images hold none"));
            }
            _ => return Ok(()),
        }
        self.any = true;
        let shared = entry.shared;
        let entry = self.dressed(entry, self.is_from_host());
        if let Some(first) = shared.and_then(|shared| self.links.get(&shared).cloned()) {
            self.layer.put(target, &entry, &Vec::new(), Data::Same(&first))?;
            return Ok(());
        }
        let about = |error| unreadable(path, error);
        if entry.kind != Kind::File {
            self.layer.put(target, &entry, &Vec::new(), Data::None)?;
            return Ok(());
        }
        let attributes = tree.attributes(path).map_err(about)?;
        let mut file = tree.open(path).map_err(about)?;
        let put = self.layer.put(target, &entry, &attributes, Data::Bytes(&mut file))?;
        if let Some(shared) = shared {
            self.links.insert(shared, put);
        }
        Ok(())
    }

    fn unpack(&mut self, packed: Packed, target: &Path) -> Result<()> {
        let (owner, mode) = (self.owner, self.errand.copying.mode);
        self.any = true;
        archive::unpack(packed, &self.errand.bounds, &mut self.layer, target, |entry| {
            if let Some((uid, gid)) = owner {
                (entry.uid, entry.gid) = (uid, gid);
            }
            if let Some(mode) = mode.filter(|_| !matches!(entry.kind, Kind::Link(_))) {
                entry.mode = mode;
            }
        })
    }

    fn is_from_host(&self) -> bool {
        matches!(self.errand.from, From::Folder { .. })
    }

    /// An entry with the owner and permissions that were asked for. Files of the host belong to
    /// root: who they are outside means nothing inside.
    fn dressed(&self, mut entry: Entry, from_host: bool) -> Entry {
        if from_host {
            (entry.uid, entry.gid) = (0, 0);
        }
        if let Some((uid, gid)) = self.owner {
            (entry.uid, entry.gid) = (uid, gid);
        }
        match (&entry.kind, self.errand.copying.mode) {
            (Kind::Link(_), _) => entry.mode = 0o777,
            (_, Some(mode)) => entry.mode = mode,
            _ => {}
        }
        entry
    }
}

/// Whether anything below a directory that is ignored was brought back.
fn holds_any(tree: &dyn Tree, path: &Path) -> Result<bool> {
    let about = |error| unreadable(path, error);
    for name in tree.names(path).map_err(about)? {
        let path = path.join(name);
        match tree.entry(&path).map_err(about)? {
            None => {}
            Some(entry) if !entry.passage => return Ok(true),
            Some(entry) if entry.kind == Kind::Directory && holds_any(tree, &path)? => {
                return Ok(true);
            }
            Some(_) => {}
        }
    }
    Ok(false)
}

/// What a source stands for: one thing, or all that its wildcards match.
fn find(tree: &dyn Tree, source: &str, hides: &dyn Fn(&Path) -> bool) -> Result<Vec<Match>> {
    let about = |error| unreadable(Path::new(source.trim_start_matches('/')), error);
    let mut found = vec![Match { path: PathBuf::new(), name: None }];
    for part in source.split('/') {
        match part {
            "" | "." => continue,
            ".." => {
                for one in &mut found {
                    one.path.pop();
                    one.name = tree::name(&one.path).map(OsStr::to_owned);
                }
                continue;
            }
            _ => {}
        }
        let mut next = Vec::new();
        for one in found {
            if !Glob::is_pattern(part) {
                let path = resolve_in(tree, &one.path.join(part)).map_err(about)?;
                next.push(Match { path, name: Some(part.into()) });
                continue;
            }
            let glob = Glob::component(part)
                .map_err(|why| Error::invalid(format!("not a pattern: {why}: `{source}`")))?;
            let directory = tree.entry(&one.path).map_err(about)?.map(|entry| entry.kind);
            if directory != Some(Kind::Directory) {
                continue;
            }
            for name in tree.names(&one.path).map_err(about)? {
                let there = tree.entry(&one.path.join(&name)).map_err(about)?;
                if there.is_some() && glob.matches(&name.to_string_lossy()) {
                    let path = resolve_in(tree, &one.path.join(&name)).map_err(about)?;
                    next.push(Match { path, name: Some(name) });
                }
            }
        }
        found = next;
    }
    let mut there = Vec::new();
    let mut hidden = false;
    for one in found {
        match tree.entry(&one.path).map_err(about)? {
            Some(entry) if !entry.passage || holds_any(tree, &one.path)? => there.push(one),
            _ => hidden |= hides(&one.path),
        }
    }
    if there.is_empty() {
        let error = Error::new(ErrorKind::NotFound, format!("nothing to copy at `{source}`"));
        return Err(match hidden {
            true => error.hint("it is there, but `.dockerignore` leaves it out"),
            false => error,
        });
    }
    Ok(there)
}

/// Files larger than this are not lists of users.
const USERS_LIMIT: u64 = 1 << 20;

/// Who an owner is in an image.
fn owner_in(image: &dyn Tree, owner: &UserRef) -> Result<(u32, u32)> {
    let file = |path: &str| {
        let text = tree::text(image, Path::new(path), USERS_LIMIT);
        text.map(Option::unwrap_or_default).map_err(|error| unreadable(Path::new(path), error))
    };
    let unknown = |name: &str, file: &str| {
        Error::new(ErrorKind::NotFound, format!("nobody in the image is called `{name}`"))
            .cause(format!("/{file} does not tell"))
            .hint("numbers need no names: `--chown=1000:1000`")
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
