//! Evaluates the `.gitignore` files of the host directory.
//!
//! The sandbox's own `.gitignore` files do not count, or it could hide its changes.

use crate::dir_fd::DirFd;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use msb_api::RelPath;
use msb_spec::Result;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

/// Largest `.gitignore` that is read, in bytes.
const SIZE_LIMIT: u64 = 1 << 20;

/// Rules of one workspace, parsed when first needed.
#[derive(Debug)]
pub(crate) struct GitignoreRules<'a> {
    root: &'a DirFd,
    rules: HashMap<Option<RelPath>, Option<Gitignore>>,
    directories: HashMap<RelPath, bool>,
}

impl<'a> GitignoreRules<'a> {
    pub(crate) fn of(root: &'a DirFd) -> Self {
        Self { root, rules: HashMap::new(), directories: HashMap::new() }
    }

    /// Whether a path is ignored, or one of its parents.
    pub(crate) fn ignores(&mut self, path: &RelPath, is_directory: bool) -> Result<bool> {
        let parent = path.parent();
        if let Some(parent) = &parent {
            let outside = match self.directories.get(parent) {
                Some(entry) => *entry,
                None => {
                    let outside = self.ignores(parent, true)?;
                    self.directories.insert(parent.clone(), outside);
                    outside
                }
            };
            if outside {
                return Ok(true);
            }
        }
        let mut directory = parent;
        loop {
            if let Some(rules) = self.rules_in(directory.as_ref())? {
                // Rules were parsed relative to their own directory.
                let below = match &directory {
                    Some(directory) => path.as_path().strip_prefix(directory.as_path()),
                    None => Ok(path.as_path()),
                };
                match below.map(|below| rules.matched(below, is_directory)) {
                    Ok(Match::Ignore(_)) => return Ok(true),
                    Ok(Match::Whitelist(_)) => return Ok(false),
                    _ => {}
                }
            }
            match directory {
                Some(inner) => directory = inner.parent(),
                None => return Ok(false),
            }
        }
    }

    fn rules_in(&mut self, directory: Option<&RelPath>) -> Result<Option<&Gitignore>> {
        let key = directory.cloned();
        if !self.rules.contains_key(&key) {
            let rules = self.read(directory)?;
            self.rules.insert(key.clone(), rules);
        }
        Ok(self.rules.get(&key).and_then(Option::as_ref))
    }

    fn read(&self, directory: Option<&RelPath>) -> Result<Option<Gitignore>> {
        let Some(parent_dir) = self.root.below(directory)? else { return Ok(None) };
        let own = parent_dir.file(b".gitignore")?;
        let exclude = match directory {
            None => {
                parent_dir.directory(b".git/info")?.map(|info| info.file(b"exclude")).transpose()?
            }
            Some(_) => None,
        };
        let files: Vec<File> = [exclude.flatten(), own].into_iter().flatten().collect();
        if files.is_empty() {
            return Ok(None);
        }
        let mut builder = GitignoreBuilder::new("");
        for file in files {
            let mut text = Vec::new();
            // An unreadable file has no rules.
            let _ = file.take(SIZE_LIMIT).read_to_end(&mut text);
            for line in String::from_utf8_lossy(&text).lines() {
                // Invalid lines are skipped, as in git.
                let _ = builder.add_line(None, line);
            }
        }
        Ok(builder.build().ok())
    }
}
