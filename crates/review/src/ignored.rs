//! Which paths the host's own `.gitignore` files leave out.
//!
//! The host's, as they are now: were it the sandbox's, it could hide what it made.

use crate::tree::Directory;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use msb_api::RelPath;
use msb_spec::Result;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

/// Longer than any that a person wrote.
const LONGEST: u64 = 1 << 20;

/// The rules of one workspace, read as far as they are asked for.
#[derive(Debug)]
pub(crate) struct Ignored<'a> {
    root: &'a Directory,
    rules: HashMap<Option<RelPath>, Option<Gitignore>>,
    directories: HashMap<RelPath, bool>,
}

impl<'a> Ignored<'a> {
    pub(crate) fn of(root: &'a Directory) -> Self {
        Self { root, rules: HashMap::new(), directories: HashMap::new() }
    }

    /// Whether a path is left out. What is in a directory that is left out is, too.
    pub(crate) fn has(&mut self, path: &RelPath, is_directory: bool) -> Result<bool> {
        let parent = path.parent();
        if let Some(parent) = &parent {
            let outside = match self.directories.get(parent) {
                Some(known) => *known,
                None => {
                    let outside = self.has(parent, true)?;
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
                // The rules were read as if they lay at the root of what they speak of.
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
        let Some(place) = self.root.below(directory)? else { return Ok(None) };
        let own = place.file(b".gitignore")?;
        let exclude = match directory {
            None => place.directory(b".git/info")?.map(|info| info.file(b"exclude")).transpose()?,
            Some(_) => None,
        };
        let files: Vec<File> = [exclude.flatten(), own].into_iter().flatten().collect();
        if files.is_empty() {
            return Ok(None);
        }
        let mut builder = GitignoreBuilder::new("");
        for file in files {
            let mut text = Vec::new();
            // One that cannot be read has no rules for us.
            let _ = file.take(LONGEST).read_to_end(&mut text);
            for line in String::from_utf8_lossy(&text).lines() {
                // As git does: a line that makes no sense is passed over.
                let _ = builder.add_line(None, line);
            }
        }
        Ok(builder.build().ok())
    }
}
