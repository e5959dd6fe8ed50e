//! Detects changes that would make the host run something, or that point out of the workspace.
//!
//! Known paths are in tables. In addition unknown configuration is flagged, because a program that
//! no table lists may read it:
//!
//! - every name that begins with a dot, and everything below it, except for a few with data only;
//! - everything in `.git` except its data;
//! - a `HEAD`, which makes a directory a git repository, and configuration next to one;
//! - `*.config.*` and `*.conf.*`, and names like `Somefile`;
//! - a file that becomes executable.

use crate::risk_table::{GIT_DATA, GIT_DIRECTORY, HIDDEN_DATA, RULES, RiskRule};
use msb_api::RelPath;
use msb_api::{Item, ItemKind, Risk};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Why a change must be named to be applied; none if it need not.
pub(crate) fn of(path: &RelPath, before: Option<&Item>, after: Option<&Item>) -> Option<Risk> {
    let kind = after.or(before)?.kind;
    if kind == ItemKind::Directory {
        return None;
    }
    let names: Vec<String> = path.parts().map(normalized_name).collect();
    let is_link = kind == ItemKind::Symlink;
    if let Some(rule) = TABLE.find(&names, is_link) {
        return Some(risk(rule.pattern, &format!("{} {}", rule.program, rule.action)));
    }
    if let Some(risk) = unknown(&names).or_else(|| unknown_file(path)) {
        return Some(risk);
    }
    let is_executable = |item: Option<&Item>| {
        item.is_some_and(|item| item.kind == ItemKind::File && item.mode & 0o111 != 0)
    };
    if is_executable(after) && !is_executable(before) {
        return Some(risk("*", "a file that can be executed now"));
    }
    let target = after?.target.as_deref().filter(|target| points_out(path, target))?;
    let reason = format!("a symlink out of the workspace, to {target}");
    Some(risk(LINK, &reason))
}

fn risk(rule: &str, reason: &str) -> Risk {
    Risk { rule: rule.to_owned(), reason: reason.to_owned() }
}

/// The rules with an index by name, so that a path is not compared with all of them.
struct RuleTable {
    all: Vec<(&'static RiskRule, Vec<&'static str>)>,
    /// Rules whose last component has no `*`, by that component.
    by_name: HashMap<&'static str, Vec<usize>>,
    /// Indexes of all other rules.
    by_pattern: Vec<usize>,
}

static TABLE: LazyLock<RuleTable> = LazyLock::new(|| {
    let split = |rule: &'static RiskRule| (rule, rule.pattern.split('/').collect());
    let all: Vec<(&RiskRule, Vec<&str>)> = RULES.iter().copied().flatten().map(split).collect();
    let (mut by_name, mut by_pattern) = (HashMap::<_, Vec<usize>>::new(), Vec::new());
    for (index, (_, parts)) in all.iter().enumerate() {
        match parts.last() {
            Some(last) if !last.contains('*') => by_name.entry(*last).or_default().push(index),
            _ => by_pattern.push(index),
        }
    }
    RuleTable { all, by_name, by_pattern }
});

impl RuleTable {
    /// The first rule that matches the end of a path. A symlink also matches a prefix of a pattern,
    /// where a directory would be.
    fn find(&self, names: &[String], is_link: bool) -> Option<&'static RiskRule> {
        let matches_at = |index: &usize| {
            let pattern = &self.all[*index].1;
            let shortest = if is_link { 1 } else { pattern.len() };
            (shortest..=pattern.len()).any(|length| ends_with(&pattern[..length], names))
        };
        if is_link {
            let found = (0..self.all.len()).find(|index| matches_at(index));
            return found.map(|index| self.all[index].0);
        }
        let named = self.by_name.get(names.last()?.as_str()).map_or(&[][..], Vec::as_slice);
        let named = named.iter().find(|index| matches_at(index));
        let other = self.by_pattern.iter().find(|index| matches_at(index));
        let first = named.into_iter().chain(other).min()?;
        Some(self.all[*first].0)
    }
}

/// Detects hidden names, `.git`, and configuration by the form of the name.
fn unknown(names: &[String]) -> Option<Risk> {
    let last = names.last()?;
    if let Some(at) = names.iter().position(|name| name.starts_with('.')) {
        let tail = &names[at..];
        if tail[0] == ".git" && is_git_data(&tail[1..]) {
            return None;
        }
        if tail[0] == ".git" {
            return Some(risk(".git/**", "git may act on it: it is not part of git's data"));
        }
        if HIDDEN_DATA.iter().any(|pattern| matches_all(pattern, tail)) || is_harmless(last) {
            return None;
        }
        let rule = if tail.len() == 1 { tail[0].clone() } else { format!("{}/**", tail[0]) };
        return Some(risk(&rule, "hidden, so that some program is likely to read it"));
    }
    if last == "head" {
        return Some(risk(
            "head",
            "git treats a directory with it as a repository, and runs what its settings name",
        ));
    }
    let form =
        ["*.config.*", "*.conf.*"].iter().find(|form| matches_all(form, &names[names.len() - 1..]));
    form.map(|form| risk(form, "configuration by its name, which some tool may run"))
}

/// Whether a file only excludes others, in any directory.
fn is_harmless(last: &str) -> bool {
    matches!(last, ".gitignore" | ".gitkeep" | ".keep" | ".dockerignore" | ".npmignore")
}

/// Whether git stores it without acting on it: in the repository, a submodule or a work tree.
fn is_git_data(tail: &[String]) -> bool {
    let within = |start: usize| GIT_DATA.iter().any(|pattern| matches_all(pattern, &tail[start..]));
    match tail.first().map(String::as_str) {
        Some("worktrees") => tail.len() > 2 && within(2),
        // Names of submodules are paths.
        Some("modules") => (2..tail.len()).any(within),
        _ => within(0),
    }
}

/// Names in the style of build tools, such as `Brewfile`, but not `profile`.
fn unknown_file(path: &RelPath) -> Option<Risk> {
    let name = path.parts().last()?;
    let is_one = name.len() > 4
        && name.first().is_some_and(u8::is_ascii_uppercase)
        && name.ends_with(b"file")
        && name.iter().all(u8::is_ascii_alphanumeric);
    is_one.then(|| risk("*file", "named like a file of a build tool"))
}

/// Directories in which git would act on this path if they were repositories.
pub(crate) fn repositories(path: &RelPath) -> Vec<Option<RelPath>> {
    let names: Vec<String> = path.parts().map(normalized_name).collect();
    let is_part =
        |at: usize| GIT_DIRECTORY.iter().any(|pattern| matches_all(pattern, &names[at..]));
    let above = |at: usize| {
        let names = path.as_path().components().take(at);
        RelPath::from_path(&names.collect::<PathBuf>())
    };
    (0..names.len()).filter(|at| is_part(*at)).map(above).collect()
}

/// Name of the rule for symlinks out of the workspace.
pub(crate) const LINK: &str = "symlink";

/// The risk of configuration in a bare repository, which can be in any directory.
pub(crate) fn bare_repository(path: &RelPath) -> Risk {
    let name = path.parts().last().map(normalized_name).unwrap_or_default();
    risk(&name, "git acts on it, because a HEAD makes its directory a repository")
}

/// Normalizes a name as lenient file systems and programs do: lower case, without invisible
/// characters, without trailing dots and spaces, and without the short form of Windows.
pub(crate) fn normalized_name(name: &[u8]) -> String {
    let visible = |letter: &char| !msb_spec::disturbs(*letter);
    let text: String = String::from_utf8_lossy(name).chars().filter(visible).collect();
    let text = text.to_lowercase();
    let text = text.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    match text.strip_prefix("git~") {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => ".git".to_owned(),
        _ => text.to_owned(),
    }
}

/// Whether a pattern matches the end of a path.
fn ends_with(pattern: &[&str], names: &[String]) -> bool {
    match pattern.contains(&"**") {
        true => (0..names.len()).any(|start| matches(pattern, &names[start..])),
        false => {
            names.len() >= pattern.len() && matches(pattern, &names[names.len() - pattern.len()..])
        }
    }
}

/// Whether a pattern matches all components.
fn matches_all(pattern: &str, names: &[String]) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    matches(&pattern, names)
}

fn matches(pattern: &[&str], names: &[String]) -> bool {
    match (pattern, names) {
        ([], []) => true,
        (["**"], names) => !names.is_empty(),
        (["**", rest @ ..], names) => (0..names.len()).any(|skip| matches(rest, &names[skip..])),
        ([first, rest @ ..], [name, names @ ..]) => {
            matches_component(first.as_bytes(), name.as_bytes()) && matches(rest, names)
        }
        _ => false,
    }
}

/// Matches one component; `*` matches any characters.
fn matches_component(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            (0..=name.len()).any(|skip| matches_component(rest, &name[skip..]))
        }
        ([first, pattern @ ..], [letter, name @ ..]) if first == letter => {
            matches_component(pattern, name)
        }
        _ => false,
    }
}

/// Whether a symlink points out of the workspace, or may: `..` after other components counts as
/// out, because these may be symlinks themselves.
fn points_out(path: &RelPath, target: &str) -> bool {
    if target.is_empty() || target.starts_with('/') {
        return true;
    }
    let mut depth = path.parts().count() - 1;
    let mut names = target.split('/').filter(|part| !part.is_empty() && *part != ".");
    let is_up = |part: &&str| *part == "..";
    for part in names.by_ref() {
        if !is_up(&part) {
            break;
        }
        if depth == 0 {
            return true;
        }
        depth -= 1;
    }
    names.any(|part| is_up(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: ItemKind, mode: u32, target: Option<&str>) -> Item {
        Item { kind, mode, size: 1, sha256: None, target: target.map(str::to_owned) }
    }

    fn rule_of(path: &str, after: &Item) -> Option<String> {
        of(&RelPath::parse(path).unwrap(), None, Some(after)).map(|risk| risk.rule)
    }

    /// Attack 45: a survey, each path with the program that would run it.
    #[test]
    fn what_the_host_would_run_has_to_be_named() {
        let file = item(ItemKind::File, 0o644, None);
        for line in include_str!("risk_survey.txt").lines() {
            let Some((program, path)) = line.split_once(": ") else { continue };
            let path = RelPath::parse(path).unwrap();
            let risk = of(&path, None, Some(&file)).unwrap_or_else(|| panic!("{path}"));
            assert!(risk.reason.contains(program), "{path}: {}", risk.reason);
            // It cannot be deleted or changed either without being named.
            assert!(of(&path, Some(&file), None).is_some(), "{path}");
        }
    }

    /// Other spellings of the same names.
    #[test]
    fn no_spelling_hides_what_has_to_be_named() {
        let file = item(ItemKind::File, 0o644, None);
        for path in [
            ".GIT/Config",
            ".git./config",
            ".g\u{200c}it/config",
            "git~1/hooks/pre-commit",
            ".git::$INDEX_ALLOCATION/config",
            "cargo.TOML",
            "Eslint.Config.JS ",
            ".\u{200b}clangd",
            "module.bazel.",
        ] {
            assert!(rule_of(path, &file).is_some(), "{path}");
        }
    }

    #[test]
    fn unknown_configuration_has_to_be_named() {
        let file = item(ItemKind::File, 0o644, None);
        for (path, rule) in [
            (".newtool", ".newtool"),
            ("a/.newtool.toml", ".newtool.toml"),
            (".newtool/settings/x.json", ".newtool/**"),
            (".newtool/.well-known/x", ".newtool/**"),
            ("newtool.config.ts", "*.config.*"),
            ("newtool.conf.json", "*.conf.*"),
            ("Newfile", "*file"),
            (".git/newly-obeyed", ".git/**"),
            (".git/modules/a/b/newly-obeyed", ".git/**"),
            (".git/worktrees/a/newly-obeyed", ".git/**"),
            ("any/HEAD", "head"),
        ] {
            assert_eq!(rule_of(path, &file).as_deref(), Some(rule), "{path}");
        }
        let executable = item(ItemKind::File, 0o755, None);
        for path in ["run.sh", "tool", "src/main.py"] {
            assert_eq!(rule_of(path, &executable).as_deref(), Some("*"), "{path}");
            let path = RelPath::parse(path).unwrap();
            assert!(of(&path, Some(&file), Some(&executable)).is_some());
            assert_eq!(of(&path, Some(&executable), Some(&executable)), None);
        }
    }

    /// A list that flags everything would be ignored by users.
    #[test]
    fn ordinary_files_need_not_be_named() {
        let file = item(ItemKind::File, 0o644, None);
        for path in include_str!("risk_ordinary.txt").lines().filter(|line| !line.is_empty()) {
            assert_eq!(rule_of(path, &file), None, "{path}");
        }
    }

    /// Every rule of the tables matches: no earlier rule and no step of the search hides it.
    #[test]
    fn every_rule_is_in_force() {
        let file = item(ItemKind::File, 0o644, None);
        for rule in RULES.iter().copied().flatten() {
            assert_eq!(rule.pattern, rule.pattern.to_lowercase());
            assert!(!rule.program.is_empty() && !rule.action.is_empty());
            let path = rule.pattern.replace("**", "q/q").replace('*', "q");
            assert!(rule_of(&path, &file).is_some(), "{path}");
            let deep = format!("a/b/{path}");
            assert!(rule_of(&deep, &file).is_some(), "{deep}");
        }
        let mut patterns: Vec<&str> =
            RULES.iter().copied().flatten().map(|rule| rule.pattern).collect();
        patterns.sort_unstable();
        let doubled = patterns.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(doubled, None);
    }

    #[test]
    fn a_link_in_the_place_of_such_a_directory_has_to_be_named() {
        for path in [".vscode", ".git/hooks", "a/.claude", ".git"] {
            assert!(
                rule_of(path, &item(ItemKind::Symlink, 0o777, Some("src"))).is_some(),
                "{path}"
            );
            assert_eq!(rule_of(path, &item(ItemKind::Directory, 0o755, None)), None, "{path}");
        }
    }

    #[test]
    fn links_that_may_lead_out_have_to_be_named() {
        let rule =
            |path: &str, target: &str| rule_of(path, &item(ItemKind::Symlink, 0o777, Some(target)));
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", ".."),
            ("a/b", "../.."),
            ("a", "b/../.."),
            ("a/b", "c/../x"),
            ("a", ""),
        ] {
            assert_eq!(rule(path, target).as_deref(), Some(LINK), "{path} -> {target}");
        }
        for (path, target) in [("a", "b"), ("a/b", "../c"), ("a", "./b/c"), ("a/b/c", "../../d")] {
            assert_eq!(rule(path, target), None, "{path} -> {target}");
        }
    }
}
