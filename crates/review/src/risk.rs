//! Whether a change would make the host run something, or leads out of the workspace.

use crate::risk_table::{RULES, Rule, When};
use msb_api::RelPath;
use msb_api::{Item, ItemKind, Risk};

/// Why a change has to be named to be brought to the host, if it has.
pub(crate) fn of(path: &RelPath, before: Option<&Item>, after: Option<&Item>) -> Option<Risk> {
    let kind = after.or(before)?.kind;
    if kind == ItemKind::Directory {
        return None;
    }
    let names: Vec<String> = path.parts().map(folded).collect();
    let is_executable = |item: Option<&Item>| {
        item.is_some_and(|item| item.kind == ItemKind::File && item.mode & 0o111 != 0)
    };
    let counts = |rule: &&Rule| match rule.when {
        When::Always => true,
        When::MadeExecutable => is_executable(after) && !is_executable(before),
    };
    let is_link = kind == ItemKind::Symlink;
    let found = RULES.iter().filter(counts).find(|rule| matches(rule.pattern, &names, is_link));
    if let Some(rule) = found {
        return Some(Risk { rule: rule.pattern.to_owned(), reason: rule.reason.to_owned() });
    }
    let target = after?.target.as_deref().filter(|target| leads_out(path, target))?;
    let reason = format!("a link that leads out of the workspace, to {target}");
    Some(Risk { rule: LINK.to_owned(), reason })
}

/// The rule for links that lead out.
pub(crate) const LINK: &str = "symlink";

/// A bare repository may lie anywhere, and git obeys its settings.
pub(crate) fn bare_repository() -> Risk {
    Risk {
        rule: "config".to_owned(),
        reason: "git runs programs that its settings name".to_owned(),
    }
}

/// A name as the file systems and programs that are least particular read it: without regard to
/// case, invisible letters, dots and spaces at the end, or the short form that Windows gives it.
pub(crate) fn folded(name: &[u8]) -> String {
    let visible = |letter: &char| !msb_spec::disturbs(*letter);
    let text: String = String::from_utf8_lossy(name).chars().filter(visible).collect();
    let text = text.to_lowercase();
    let text = text.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    match text.strip_prefix("git~") {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => ".git".to_owned(),
        _ => text.to_owned(),
    }
}

/// Whether the end of a path is what a pattern says. A link may stand where the pattern has only
/// come to a directory.
fn matches(pattern: &str, names: &[String], is_link: bool) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let shortest = if is_link { 1 } else { pattern.len() };
    (shortest..=pattern.len())
        .any(|length| (0..names.len()).any(|start| fits(&pattern[..length], &names[start..])))
}

fn fits(pattern: &[&str], names: &[String]) -> bool {
    match (pattern, names) {
        ([], []) => true,
        (["**"], names) => !names.is_empty(),
        (["**", rest @ ..], names) => (0..names.len()).any(|skip| fits(rest, &names[skip..])),
        ([first, rest @ ..], [name, names @ ..]) => {
            fits_name(first.as_bytes(), name.as_bytes()) && fits(rest, names)
        }
        _ => false,
    }
}

/// One name against one part of a pattern, where a star stands for anything.
fn fits_name(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skip| fits_name(rest, &name[skip..])),
        ([first, pattern @ ..], [letter, name @ ..]) if first == letter => fits_name(pattern, name),
        _ => false,
    }
}

/// Whether a link leads out of the workspace, or may: steps up are only counted where they come
/// first, since any name before them can be a link itself.
fn leads_out(path: &RelPath, target: &str) -> bool {
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

    /// Attack 45.
    #[test]
    fn what_the_host_would_run_has_to_be_named() {
        let file = item(ItemKind::File, 0o644, None);
        for path in [
            ".git/config",
            "sub/.git/config",
            ".GIT/Config",
            ".git./config",
            ".g\u{200c}it/config",
            "git~1/hooks/pre-commit",
            ".git::$INDEX_ALLOCATION/config",
            ".git/hooks/deep/er",
            ".git/modules/a/b/config",
            ".git",
            ".envrc",
            ".vscode/tasks.json",
            ".claude/settings.json",
            "CLAUDE.md",
            ".mcp.json",
            "web/package.json",
            "Makefile",
            ".venv/bin/python3",
            "any/bin/activate.fish",
            "docker-compose.prod.yml",
            ".github/workflows/ci.yml",
            "tests/conftest.py",
        ] {
            assert!(rule_of(path, &file).is_some(), "{path}");
        }
        for path in [
            ".git/HEAD",
            ".git/objects/ab/cdef",
            ".git/refs/heads/main",
            "src/main.rs",
            "README.md",
            "run.sh",
            "vscode/tasks.json",
            "makefile.d/x",
            "config",
            "hooks/x",
        ] {
            assert_eq!(rule_of(path, &file), None, "{path}");
        }
        assert!(rule_of("run.sh", &item(ItemKind::File, 0o755, None)).is_some());
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
