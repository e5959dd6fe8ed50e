//! Evaluates a `Selection`: which changes are applied.

use crate::risk;
use globset::{GlobBuilder, GlobMatcher};
use msb_api::{Change, LeftOut, RelPath, Risk, Selection, What};
use msb_spec::{Error, Result};

/// Why each change is left out by a selection; none if it is selected.
pub fn judge(selection: &Selection, changes: &[Change]) -> Result<Vec<Option<LeftOut>>> {
    let filter = ChangeFilter::new(selection)?;
    Ok(changes.iter().map(|change| filter.left_out(change)).collect())
}

/// A parsed selection with its patterns.
#[derive(Debug)]
pub(crate) struct ChangeFilter<'a> {
    selection: &'a Selection,
    include: Vec<(PathPattern, String)>,
    exclude: Vec<PathPattern>,
    overwrite: Vec<PathPattern>,
}

impl<'a> ChangeFilter<'a> {
    pub(crate) fn new(selection: &'a Selection) -> Result<Self> {
        let include =
            selection.include.iter().map(|text| Ok((PathPattern::parse(text)?, text.clone())));
        let parsed = |texts: &[String]| -> Result<Vec<PathPattern>> {
            texts.iter().map(|text| PathPattern::parse(text)).collect()
        };
        Ok(Self {
            selection,
            include: include.collect::<Result<_>>()?,
            exclude: parsed(&selection.exclude)?,
            overwrite: parsed(&selection.overwrite)?,
        })
    }

    /// Whether a file of the host may be overwritten although it has changed.
    pub(crate) fn overwrites(&self, path: &RelPath) -> bool {
        self.overwrite.iter().any(|pattern| pattern.matches(path))
    }

    /// Why a change is left out; none if it is selected.
    pub(crate) fn left_out(&self, change: &Change) -> Option<LeftOut> {
        let path = &change.path;
        if change.what == What::Special {
            return Some(LeftOut::Special);
        }
        if self.exclude.iter().any(|pattern| pattern.matches(path)) {
            return Some(LeftOut::NotIncluded);
        }
        if let Some(only) = &self.selection.only {
            return (!only.contains_key(path)).then_some(LeftOut::NotIncluded);
        }
        let matching: Vec<&(PathPattern, String)> =
            self.include.iter().filter(|(pattern, _)| pattern.matches(path)).collect();
        if matching.is_empty() && !self.include.is_empty() {
            return Some(LeftOut::NotIncluded);
        }
        if let Some(risk) = &change.risk
            && !matching
                .iter()
                .any(|(pattern, text)| names_risk(text, risk, pattern.is_whole(path)))
        {
            return Some(LeftOut::Risk);
        }
        let is_wanted =
            self.selection.ignored || matching.iter().any(|(_, text)| is_specific(text));
        (change.ignored && !is_wanted).then_some(LeftOut::Ignored)
    }

    /// Include patterns that match no change.
    pub(crate) fn unmatched(&self, changes: &[Change]) -> Vec<&str> {
        let unmatched = |(pattern, _): &&(PathPattern, String)| {
            !changes.iter().any(|change| pattern.matches(&change.path))
        };
        self.include.iter().filter(unmatched).map(|(_, text)| text.as_str()).collect()
    }
}

/// Whether a pattern has more than wildcards.
fn is_specific(pattern: &str) -> bool {
    pattern.chars().any(char::is_alphanumeric)
}

/// Whether a pattern names a risky path: by its last component, if it matches the `whole` path and
/// not only a parent directory, or by the directory of the rule. Neither `src` nor `src/**` names
/// the `package.json` in it.
fn names_risk(pattern: &str, risk: &Risk, whole: bool) -> bool {
    let parts: Vec<&str> = pattern.trim_end_matches('/').split('/').collect();
    let last = parts.last().copied().unwrap_or_default();
    if whole && is_specific(last) {
        return true;
    }
    let special = risk.rule.split('/').next().unwrap_or_default();
    risk.rule.contains('/')
        && parts.iter().any(|part| risk::normalized_name(part.as_bytes()) == special)
}

#[derive(Debug)]
struct PathPattern(Vec<GlobMatcher>);

impl PathPattern {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |cause: &dyn std::fmt::Display| {
            Error::invalid(format!("not a path pattern: `{text}`"))
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

    /// Whether the pattern matches the path itself, and not only a parent directory.
    fn is_whole(&self, path: &RelPath) -> bool {
        self.0.first().is_some_and(|matcher| matcher.is_match(path.as_path()))
    }

    fn matches(&self, path: &RelPath) -> bool {
        self.0.iter().any(|matcher| matcher.is_match(path.as_path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern).unwrap().matches(&RelPath::parse(path).unwrap())
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
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("src/*.rs", "src/a/b.rs"), ("/src", "x/src/a"), ("a", "b/ab")] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        assert!(PathPattern::parse("a[").is_err());
    }

    /// A wildcard alone never selects a risky file (attack 45).
    #[test]
    fn what_has_to_be_named_is_not_meant_by_everything() {
        let rule = |rule: &str| Risk { rule: rule.to_owned(), reason: String::new() };
        for pattern in ["*", "**", "src/**", "src/*", "**/*", ".*"] {
            assert!(!names_risk(pattern, &rule("package.json"), true), "{pattern}");
            assert!(!names_risk(pattern, &rule(".git/hooks/**"), true), "{pattern}");
        }
        for pattern in ["package.json", "web/package.json", "*.json"] {
            assert!(names_risk(pattern, &rule("package.json"), true), "{pattern}");
            assert!(!names_risk(pattern, &rule("package.json"), false), "{pattern}");
        }
        for pattern in [".git", ".git/**", ".git/hooks/*", ".GIT/**"] {
            assert!(names_risk(pattern, &rule(".git/hooks/**"), false), "{pattern}");
        }
    }
}
