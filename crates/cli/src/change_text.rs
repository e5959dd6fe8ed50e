//! Changes of a workspace as people read them. Every name and every line comes from a sandbox.

use crate::colour::{BOLD, CYAN, GREEN, OutputStream, RED, YELLOW};
use msb_engine::workspace::{Change, Item, ItemKind, RelPath, What};
use msb_spec::shown;
use std::collections::BTreeSet;

/// The changes that are worth a line: a directory is not, if something in it tells the same.
pub(crate) fn reportable(changes: &[Change]) -> Vec<&Change> {
    let above: BTreeSet<(RelPath, bool)> = changes
        .iter()
        .flat_map(|change| {
            let gone = change.what == What::Deleted;
            let parents = std::iter::successors(change.path.parent(), RelPath::parent);
            parents.map(move |path| (path, gone))
        })
        .collect();
    let is_told = |change: &&Change| {
        let item = change.after.as_ref().or(change.before.as_ref());
        let plain = item.is_some_and(|item| item.kind == ItemKind::Directory)
            && !change.is_replaced()
            && matches!(change.what, What::Added | What::Deleted);
        !(plain && above.contains(&(change.path.clone(), change.what == What::Deleted)))
    };
    let is_one_line = |change: &&Change| change.renamed_to.is_none();
    changes.iter().filter(is_told).filter(is_one_line).collect()
}

/// One line: a letter, the path, and what else there is to say.
pub(crate) fn line(change: &Change) -> String {
    let letter = letter(change);
    let colour = match letter {
        'A' => GREEN,
        'D' | '!' => RED,
        _ => YELLOW,
    };
    let letter = OutputStream::Stdout.paint(&letter.to_string(), colour);
    format!("{letter}  {}", described(change))
}

/// The line without colours.
pub(crate) fn plain_line(change: &Change) -> String {
    format!("{}  {}", letter(change), described(change))
}

fn letter(change: &Change) -> char {
    match change.what {
        _ if change.renamed_from.is_some() => 'R',
        What::Added => 'A',
        What::Changed => 'M',
        What::Deleted => 'D',
        What::Mode => 'P',
        What::Special => '!',
    }
}

/// The path of a change, and what else there is to say.
fn described(change: &Change) -> String {
    let mut remarks: Vec<String> = Vec::new();
    match (&change.before, &change.after) {
        (Some(before), Some(after)) if before.kind != after.kind => {
            remarks.push(format!("{} instead of {}", kind(after.kind), kind(before.kind)));
        }
        (Some(before), Some(after))
            if before.mode != after.mode && before.kind != ItemKind::Symlink =>
        {
            remarks.push(format!("mode {:03o} -> {:03o}", before.mode, after.mode));
        }
        _ => {}
    }
    if let Some(target) = change.after.as_ref().and_then(|item| item.target.as_ref()) {
        remarks.push(format!("-> {}", shown(target)));
    }
    if change.stripped != 0 {
        remarks.push(format!("without its bits {:04o}", change.stripped));
    }
    if change.what == What::Special {
        remarks.push("a pipe, socket or device, or too deep: stays in the sandbox".to_owned());
    }
    let name = match &change.renamed_from {
        Some(from) => format!("{} -> {}", name(from, None), name(&change.path, None)),
        None => name(&change.path, change.after.as_ref().or(change.before.as_ref())),
    };
    let remarks =
        if remarks.is_empty() { String::new() } else { format!("  ({})", remarks.join(", ")) };
    format!("{name}{remarks}")
}

/// The whole difference of one change, as patches are written.
pub(crate) fn patch(change: &Change) -> String {
    let path = name(&change.path, None);
    let from = change.renamed_from.as_ref().map_or_else(|| path.clone(), |from| name(from, None));
    let mut text = OutputStream::Stdout.paint(&format!("diff --git a/{from} b/{path}"), BOLD);
    text.push('\n');
    let mut say = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if let Some(from) = &change.renamed_from {
        say(format!("rename from {}", name(from, None)));
        say(format!("rename to {path}"));
    }
    match (&change.before, &change.after) {
        (None, Some(after)) => say(format!("new {} mode {}", kind(after.kind), mode(after))),
        (Some(before), None) => {
            say(format!("deleted {} mode {}", kind(before.kind), mode(before)));
        }
        (Some(before), Some(after)) if before.kind != after.kind => {
            say(format!("{} instead of {}", kind(after.kind), kind(before.kind)));
        }
        (Some(before), Some(after)) if before.mode != after.mode => {
            say(format!("old mode {}", mode(before)));
            say(format!("new mode {}", mode(after)));
        }
        _ => {}
    }
    if let Some(conflict) = change.conflict {
        say(format!("conflict: {}", conflict.reason()));
    }
    if let Some(risk) = &change.risk {
        say(format!("needs --include: {}", shown(&risk.reason)));
    }
    for (sign, item) in [('-', &change.before), ('+', &change.after)] {
        if let Some(target) = item.as_ref().and_then(|item| item.target.as_ref()) {
            say(format!("{sign}link to {}", shown(target)));
        }
    }
    match &change.patch {
        Some(patch) if patch.text.is_empty() => {}
        Some(patch) => {
            let side = |item: &Option<Item>, side: &str, path: &str| match item {
                Some(_) => format!("{side}/{path}"),
                None => "/dev/null".to_owned(),
            };
            say(format!("--- {}", side(&change.before, "a", &from)));
            say(format!("+++ {}", side(&change.after, "b", &path)));
            coloured(&patch.text, &mut text);
        }
        None => {
            for (sign, item) in [('-', &change.before), ('+', &change.after)] {
                let digest = item.as_ref().and_then(|item| item.sha256.as_ref().map(|d| (item, d)));
                if let Some((item, digest)) = digest.filter(|_| change.renamed_from.is_none()) {
                    say(format!("{sign}{} bytes, sha256 {digest}", item.size));
                }
            }
        }
    }
    text
}

/// The mode as git writes it, so that `git apply` takes what was printed.
fn mode(item: &Item) -> String {
    let kind = match item.kind {
        ItemKind::File => 0o100_000,
        ItemKind::Directory => 0o040_000,
        ItemKind::Symlink => return "120000".to_owned(),
        _ => 0,
    };
    format!("{:06o}", kind | item.mode)
}

/// How many lines came and went.
pub(crate) fn counts(change: &Change) -> (String, u32, u32) {
    match &change.patch {
        Some(patch) => {
            let text = format!("+{} -{}", patch.added, patch.removed);
            (text, patch.added, patch.removed)
        }
        None => match (&change.before, &change.after) {
            (Some(before), Some(after)) if before.kind == ItemKind::File => {
                (format!("{} -> {} bytes", before.size, after.size), 0, 0)
            }
            (None, Some(after)) if after.kind == ItemKind::File => {
                (format!("{} bytes", after.size), 0, 0)
            }
            _ => (String::new(), 0, 0),
        },
    }
}

/// A path, with a slash behind a directory.
pub(crate) fn name(path: &RelPath, item: Option<&Item>) -> String {
    let slash = item.is_some_and(|item| item.kind == ItemKind::Directory);
    format!("{}{}", shown(&path.to_string()), if slash { "/" } else { "" })
}

fn kind(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::File => "file",
        ItemKind::Directory => "directory",
        ItemKind::Symlink => "link",
        ItemKind::Special => "special file",
    }
}

/// The lines of a difference, each in the colour of its sign.
fn coloured(patch: &str, text: &mut String) {
    // A carriage return at the end of a line would not be seen.
    let patch = patch.replace("\r\n", "\\r\n");
    if !OutputStream::Stdout.is_coloured() {
        return text.push_str(&patch);
    }
    for line in patch.lines() {
        let colour = match line.as_bytes().first() {
            Some(b'+') => GREEN,
            Some(b'-') => RED,
            Some(b'@') => CYAN,
            _ => {
                text.push_str(line);
                text.push('\n');
                continue;
            }
        };
        text.push_str(&format!("\x1b[{colour}m{line}\x1b[0m\n"));
    }
}
