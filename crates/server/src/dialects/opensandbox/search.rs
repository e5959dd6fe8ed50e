//! Searches files by name.

use super::arguments::SearchArgs;
use super::connections::SandboxConnection;
use super::files::absolute;
use super::output::{FileEntry, rfc3339};
use super::{OpenSandboxState, ToolOutput, argument_error, labels};
use crate::dialect::ToolCall;
use globset::{GlobBuilder, GlobMatcher};
use msb_api::{EntryKind, Meta};
use msb_spec::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most results; more would not fit into a model's context.
const FOUND_LIMIT: usize = 5000;
/// Most directories that are visited; a command inside can search larger trees.
const DIRECTORY_LIMIT: usize = 20_000;

impl OpenSandboxState {
    pub(super) fn search(&self, call: &ToolCall, arguments: &SearchArgs) -> Result<ToolOutput> {
        let path = absolute("path", &arguments.path)?;
        let pattern = pattern(&arguments.pattern)?;
        let connection = self.connected(call, arguments)?;
        let mut found = Vec::new();
        let root = self.api().file_stat(&connection.files(), path, true)?;
        if root.kind == EntryKind::Directory {
            self.walk(call, &connection, path, &pattern, &mut found)?;
        } else if fits(&pattern, &root) {
            found.push((path.to_vec(), root));
        }
        let owners = self.owners(&connection);
        let entries: Vec<FileEntry> =
            found.into_iter().map(|(path, meta)| owners.entry(&path, &meta)).collect();
        ToolOutput::many(&entries)
    }

    /// Collects the files below a directory. Symbolic links are not followed, so it terminates.
    fn walk(
        &self,
        call: &ToolCall,
        connection: &SandboxConnection,
        root: &[u8],
        pattern: &GlobMatcher,
        found: &mut Vec<(Vec<u8>, Meta)>,
    ) -> Result<()> {
        let mut left = vec![root.to_vec()];
        let mut seen = 0;
        while let Some(directory) = left.pop() {
            if call.cancel.is_cancelled() {
                return Err(Error::new(Kind::Timeout, "the call was cancelled"));
            }
            seen += 1;
            if seen > DIRECTORY_LIMIT {
                let many = format!("the tree has more than {DIRECTORY_LIMIT} directories");
                return Err(Error::new(Kind::Limit, many).hint("search below a deeper `path`"));
            }
            let entries = match self.api().file_list(&connection.files(), &directory) {
                // It was removed since its parent was listed.
                Err(error) if labels::is_gone(&error) && directory != root => continue,
                entries => entries?,
            };
            let mut below = Vec::new();
            for meta in entries {
                let path = joined(&directory, &meta.name);
                if meta.kind == EntryKind::Directory {
                    below.push(path);
                } else if fits(pattern, &meta) {
                    found.push((path, meta));
                }
            }
            if found.len() > FOUND_LIMIT {
                let many = format!("more than {FOUND_LIMIT} files match");
                return Err(Error::new(Kind::Limit, many)
                    .hint("search below a deeper `path`, or for a narrower `pattern`"));
            }
            // The list is a stack: the last one is visited next, so names stay in order.
            left.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// User and group names of the image; numbers are used if they cannot be read.
    fn owners(&self, connection: &SandboxConnection) -> OwnerNames {
        let names = |path: &[u8]| {
            let bytes = self.bytes(&connection.files(), path, 0, 0).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let name = |line: &str| {
                let mut fields = line.split(':');
                let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
                Some((fields.nth(1)?.parse().ok()?, name))
            };
            // Of two names with the same number the first is used.
            text.lines().rev().filter_map(name).collect()
        };
        OwnerNames { users: names(b"/etc/passwd"), groups: names(b"/etc/group") }
    }
}

/// Names of users and groups by number.
struct OwnerNames {
    users: BTreeMap<u32, String>,
    groups: BTreeMap<u32, String>,
}

impl OwnerNames {
    fn entry(&self, path: &[u8], meta: &Meta) -> FileEntry {
        let name = |names: &BTreeMap<u32, String>, id: u32| {
            names.get(&id).cloned().unwrap_or_else(|| id.to_string())
        };
        let at = |ms: i64| rfc3339(u64::try_from(ms).unwrap_or(0));
        FileEntry {
            path: String::from_utf8_lossy(path).into_owned(),
            kind: match meta.kind {
                EntryKind::File => "file",
                EntryKind::Directory => "directory",
                EntryKind::Symlink(_) => "symlink",
                EntryKind::Other | EntryKind::End => "other",
            },
            mode: format!("{:o}", meta.mode & 0o7777).parse().unwrap_or(0),
            owner: name(&self.users, meta.uid),
            group: name(&self.groups, meta.gid),
            size: meta.size,
            modified_at: at(meta.modified),
            // Without a creation time: it is not younger than its last change.
            created_at: at(meta.created.unwrap_or(meta.modified)),
        }
    }
}

fn pattern(text: &str) -> Result<GlobMatcher> {
    let text = if text.is_empty() { "**" } else { text };
    let glob = GlobBuilder::new(text).build().map_err(|error| {
        argument_error("pattern", format!("not a pattern: `{}`", msb_spec::shown(text)))
            .cause(error.kind())
            .hint("write it as `*.py`, `test_?.txt` or `{a,b}*`")
    })?;
    Ok(glob.compile_matcher())
}

fn fits(pattern: &GlobMatcher, meta: &Meta) -> bool {
    pattern.is_match(Path::new(OsStr::from_bytes(&meta.name)))
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    [directory, b"/", name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_about_names() {
        for (text, name, well) in [
            ("*.py", "a.py", true),
            ("*.py", "a.pyc", false),
            ("", "anything", true),
            ("**", "anything", true),
            ("{a,b}?", "b1", true),
            ("[!a]*", "abc", false),
        ] {
            assert_eq!(pattern(text).unwrap().is_match(name), well, "{text} {name}");
        }
        let error = pattern("[").err().unwrap();
        assert!(error.message().contains("`pattern`"), "{error}");
    }
}
