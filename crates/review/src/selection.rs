//! Which of the changes are meant.

use crate::risk;
use globset::{GlobBuilder, GlobMatcher};
use msb_api::{Change, LeftOut, RelPath, Risk, Selection, What};
use msb_spec::{Error, Result};

/// Why each of the changes is left out by a Selection; none if it is meant.
pub fn judge(selection: &Selection, changes: &[Change]) -> Result<Vec<Option<LeftOut>>> {
    let chooser = Chooser::new(selection)?;
    Ok(changes.iter().map(|change| chooser.left_out(change)).collect())
}

/// A Selection, understood.
#[derive(Debug)]
pub(crate) struct Chooser<'a> {
    selection: &'a Selection,
    include: Vec<(Pattern, String)>,
    exclude: Vec<Pattern>,
    overwrite: Vec<Pattern>,
}

impl<'a> Chooser<'a> {
    pub(crate) fn new(selection: &'a Selection) -> Result<Self> {
        let include =
            selection.include.iter().map(|text| Ok((Pattern::parse(text)?, text.clone())));
        let parsed = |texts: &[String]| -> Result<Vec<Pattern>> {
            texts.iter().map(|text| Pattern::parse(text)).collect()
        };
        Ok(Self {
            selection,
            include: include.collect::<Result<_>>()?,
            exclude: parsed(&selection.exclude)?,
            overwrite: parsed(&selection.overwrite)?,
        })
    }

    /// Whether what the host has there may be lost, though it is not what was seen.
    pub(crate) fn overwrites(&self, path: &RelPath) -> bool {
        self.overwrite.iter().any(|pattern| pattern.fits(path))
    }

    /// Why a change is left out; none if it is meant.
    pub(crate) fn left_out(&self, change: &Change) -> Option<LeftOut> {
        let path = &change.path;
        if change.what == What::Special {
            return Some(LeftOut::Special);
        }
        if self.exclude.iter().any(|pattern| pattern.fits(path)) {
            return Some(LeftOut::NotIncluded);
        }
        if let Some(only) = &self.selection.only {
            return (!only.contains_key(path)).then_some(LeftOut::NotIncluded);
        }
        let fitting: Vec<&(Pattern, String)> =
            self.include.iter().filter(|(pattern, _)| pattern.fits(path)).collect();
        if fitting.is_empty() && !self.include.is_empty() {
            return Some(LeftOut::NotIncluded);
        }
        if let Some(risk) = &change.risk
            && !fitting.iter().any(|(pattern, text)| names(text, risk, pattern.is_whole(path)))
        {
            return Some(LeftOut::Risk);
        }
        let is_wanted = self.selection.ignored || fitting.iter().any(|(_, text)| is_specific(text));
        (change.ignored && !is_wanted).then_some(LeftOut::Ignored)
    }

    /// The patterns that fit none of the changes.
    pub(crate) fn idle(&self, changes: &[Change]) -> Vec<&str> {
        let idle = |(pattern, _): &&(Pattern, String)| {
            !changes.iter().any(|change| pattern.fits(&change.path))
        };
        self.include.iter().filter(idle).map(|(_, text)| text.as_str()).collect()
    }
}

/// Whether a pattern says more than "everything".
fn is_specific(pattern: &str) -> bool {
    pattern.chars().any(char::is_alphanumeric)
}

/// Whether a pattern names what has to be named: by its last name, if it fits the `whole` path and not
/// only a directory of it, or by the directory that makes it so. Neither `src` nor `src/**` means the
/// `package.json` in it.
fn names(pattern: &str, risk: &Risk, whole: bool) -> bool {
    let parts: Vec<&str> = pattern.trim_end_matches('/').split('/').collect();
    let last = parts.last().copied().unwrap_or_default();
    if whole && is_specific(last) {
        return true;
    }
    let special = risk.rule.split('/').next().unwrap_or_default();
    risk.rule.contains('/') && parts.iter().any(|part| risk::folded(part.as_bytes()) == special)
}

#[derive(Debug)]
struct Pattern(Vec<GlobMatcher>);

impl Pattern {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |cause: &dyn std::fmt::Display| {
            Error::invalid(format!("not a pattern of paths: `{text}`"))
                .cause(cause)
                .hint("as in `src/**`, `*.rs` or `docs`")
        };
        let trimmed = text.trim_start_matches("./").trim_end_matches('/');
        if trimmed.is_empty() {
            return Err(wrong(&"it is empty"));
        }
        let anchored = trimmed.contains('/');
        let trimmed = trimmed.trim_start_matches('/');
        let start = if anchored { "" } else { "**/" };
        let forms = [format!("{start}{trimmed}"), format!("{start}{trimmed}/**")];
        let build = |form: &String| {
            let mut builder = GlobBuilder::new(form);
            builder.literal_separator(true).backslash_escape(true);
            builder.build().map(|glob| glob.compile_matcher()).map_err(|error| wrong(&error.kind()))
        };
        Ok(Self(forms.iter().map(build).collect::<Result<_>>()?))
    }

    /// Whether it is the path itself that fits, and not a directory that it is in.
    fn is_whole(&self, path: &RelPath) -> bool {
        self.0.first().is_some_and(|matcher| matcher.is_match(path.as_path()))
    }

    fn fits(&self, path: &RelPath) -> bool {
        self.0.iter().any(|matcher| matcher.is_match(path.as_path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().fits(&RelPath::parse(path).unwrap())
    }

    #[test]
    fn patterns_mean_what_they_mean_to_git() {
        for (pattern, path) in [
            ("*.rs", "a/b.rs"),
            ("src", "src/a/b"),
            ("src/", "x/src/a"),
            ("src/*.rs", "src/a.rs"),
            ("/src", "src/a"),
            ("**", "a/b/c"),
            ("*", "a/b"),
            ("./a/b", "a/b"),
        ] {
            assert!(fits(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("src/*.rs", "src/a/b.rs"), ("/src", "x/src/a"), ("a", "b/ab")] {
            assert!(!fits(pattern, path), "{pattern} {path}");
        }
        assert!(Pattern::parse("a[").is_err());
    }

    /// Attack 45.
    #[test]
    fn what_has_to_be_named_is_not_meant_by_everything() {
        let rule = |rule: &str| Risk { rule: rule.to_owned(), reason: String::new() };
        for pattern in ["*", "**", "src/**", "src/*", "**/*", ".*"] {
            assert!(!names(pattern, &rule("package.json"), true), "{pattern}");
            assert!(!names(pattern, &rule(".git/hooks/**"), true), "{pattern}");
        }
        for pattern in ["package.json", "web/package.json", "*.json"] {
            assert!(names(pattern, &rule("package.json"), true), "{pattern}");
            assert!(!names(pattern, &rule("package.json"), false), "{pattern}");
        }
        for pattern in [".git", ".git/**", ".git/hooks/*", ".GIT/**"] {
            assert!(names(pattern, &rule(".git/hooks/**"), false), "{pattern}");
        }
    }
}
