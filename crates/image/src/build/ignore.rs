//! `.dockerignore`: excludes files from the build context.
//!
//! The last line that matches a path or one of its parents decides; `!` includes again. Unlike in
//! git, a pattern without a slash matches at the root only.

use super::glob::Glob;
use std::path::Path;

/// The rules of one file; without rules nothing is excluded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    rules: Vec<IgnoreRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct IgnoreRule {
    glob: Glob,
    brings_back: bool,
}

impl Ignore {
    /// Parses the rules. An error has the line number.
    pub fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.starts_with('#') {
                continue;
            }
            let line = line.trim();
            let (brings_back, pattern) = match line.strip_prefix('!') {
                Some(pattern) => (true, pattern.trim()),
                None => (false, line),
            };
            if brings_back && pattern.is_empty() {
                return Err((number + 1, "`!` without a pattern"));
            }
            let pattern = clean(pattern);
            if pattern.is_empty() {
                continue;
            }
            let glob = Glob::path(&pattern).map_err(|why| (number + 1, why))?;
            rules.push(IgnoreRule { glob, brings_back });
        }
        Ok(Self { rules })
    }

    /// Whether a path, relative to the context, is excluded.
    pub fn ignores(&self, path: &Path) -> bool {
        let text = path.to_string_lossy();
        let ends = text.match_indices('/').map(|(at, _)| at).chain([text.len()]);
        let paths: Vec<&str> = ends.map(|end| &text[..end]).collect();
        let mut ignored = false;
        for rule in &self.rules {
            if rule.brings_back == ignored && paths.iter().any(|path| rule.glob.matches(path)) {
                ignored = !rule.brings_back;
            }
        }
        ignored
    }

    /// Whether a `!` rule may include something below an excluded directory.
    pub fn brings_back(&self) -> bool {
        self.rules.iter().any(|rule| rule.brings_back)
    }
}

/// Removes `.`, `..`, repeated slashes and those at both ends.
fn clean(pattern: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in pattern.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignored<'a>(rules: &str, paths: &[&'a str]) -> Vec<&'a str> {
        let ignore = Ignore::parse(rules).unwrap();
        paths.iter().copied().filter(|path| ignore.ignores(Path::new(path))).collect()
    }

    #[test]
    fn the_examples_of_the_reference_hold() {
        assert_eq!(ignored("*/temp*", &["a/temp.txt", "temp", "a/b/temp"]), ["a/temp.txt"]);
        assert_eq!(ignored("*/*/temp*", &["a/temp", "a/b/temp1"]), ["a/b/temp1"]);
        assert_eq!(ignored("temp?", &["tempa", "temp", "temporary"]), ["tempa"]);
        assert_eq!(ignored("**/*.go", &["a.go", "x/y/b.go", "b.gox"]), ["a.go", "x/y/b.go"]);
        let paths = ["README.md", "README-secret.md", "a.md", "b.txt"];
        assert_eq!(
            ignored("*.md\n!README*.md\nREADME-secret.md", &paths),
            ["README-secret.md", "a.md"]
        );
        assert_eq!(ignored("*.md\nREADME-secret.md\n!README*.md", &paths), ["a.md"]);
    }

    #[test]
    fn a_directory_takes_what_is_below_it_along() {
        let paths = ["node_modules", "node_modules/a/b", "x/node_modules", "node_modules2"];
        assert_eq!(ignored("node_modules", &paths), ["node_modules", "node_modules/a/b"]);
        assert_eq!(ignored("/node_modules/", &paths), ["node_modules", "node_modules/a/b"]);
        assert_eq!(ignored("a/\n!a/b", &["a", "a/b", "a/c", "a/b/d"]), ["a", "a/c"]);
        assert_eq!(ignored("*\n!src", &["src/x", "other"]), ["other"]);
    }

    #[test]
    fn comments_and_the_directory_itself_are_no_rules() {
        assert_eq!(ignored("# a\n.\n\n  b  \n", &["a", "b", "# a"]), ["b"]);
        assert_eq!(Ignore::parse("a\n[b").unwrap_err().0, 2);
        assert_eq!(Ignore::parse("!").unwrap_err().0, 1);
    }
}
