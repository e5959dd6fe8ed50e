//! Verbs as other tools call them, and what is suggested for a typing mistake.

use msb_spec::Error;
use std::ffi::OsString;

/// Words of other tools that mean exactly one of our lines.
const ALIASES: [(&str, &[&str]); 12] = [
    ("copy", &["cp"]),
    ("images", &["image", "ls"]),
    ("list", &["ls"]),
    ("remove", &["rm"]),
    ("rmi", &["image", "rm"]),
    ("shell", &["exec"]),
    ("snapshots", &["snapshot", "ls"]),
    ("stats", &["metrics", "--watch"]),
    ("top", &["metrics", "--watch"]),
    ("unpause", &["resume"]),
    ("update", &["modify"]),
    ("volumes", &["volume", "ls"]),
];

/// Words of other tools that mean several of our lines, or almost one of them.
const HINTS: [(&str, &str); 9] = [
    ("commit", "`msb snapshot create NAME --from SANDBOX` saves the files of a sandbox"),
    ("delete", "`msb rm NAME` removes a sandbox with all it holds"),
    ("down", "`msb stop NAME` stops a sandbox; what it wrote stays"),
    ("enter", "`msb exec NAME` opens a shell in a sandbox"),
    ("fork", "`msb clone NAME NEW` makes a second sandbox with the files of one"),
    ("info", "`msb doctor` tells what this host can do, `msb inspect NAME` all about a sandbox"),
    ("network", "`msb net NAME` shows and changes what a sandbox may connect to"),
    (
        "status",
        "`msb ls` lists sandboxes with their status, `msb ps` shows what runs; \
         `msb server status` is about the server",
    ),
    (
        "up",
        "`msb create --name NAME` makes a sandbox and keeps it running, `msb start NAME` starts \
         one that has stopped",
    ),
];

/// Verbs that end or remove something. A typing mistake never leads to one.
const DESTRUCTIVE: [&str; 12] = [
    "discard",
    "drain",
    "kill",
    "logout",
    "prune",
    "reset",
    "restart",
    "revoke",
    "rm",
    "rollback",
    "stop",
    "uninstall",
];

/// Replaces the first word by ours if it is one of another tool.
pub(crate) fn translate(words: &mut Vec<OsString>) {
    let alias = ALIASES.iter().find(|(alias, _)| words.first().is_some_and(|word| word == alias));
    if let Some((_, ours)) = alias {
        drop(words.splice(..1, ours.iter().map(OsString::from)));
    }
}

/// The error for a word that is no verb: with the lines of msb for a word of another tool, else
/// with the nearest verb.
pub(crate) fn unknown(typed: &str, near: Option<String>, list: &str) -> Error {
    let error = Error::invalid(format!("no such command: `{typed}`"));
    if let Some((_, hint)) = HINTS.iter().find(|(word, _)| *word == typed) {
        return error.hint(*hint);
    }
    match near {
        Some(near) => error.hint(format!("did you mean `msb {near}`?")),
        None => error.hint(format!("`{list}` lists the commands")),
    }
}

/// The nearest of these words that ends and removes nothing.
pub(crate) fn nearest(
    typed: &str,
    words: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    msb_spec::nearest(typed, words.filter(|word| !DESTRUCTIVE.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_another_tool_becomes_ours() {
        let translated = |line: &str| {
            let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            translate(&mut words);
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(translated("rmi -f alpine"), "image rm -f alpine");
        assert_eq!(translated("top box"), "metrics --watch box");
        assert_eq!(translated("run list"), "run list");
    }

    #[test]
    fn a_typing_mistake_leads_to_nothing_destructive() {
        let verbs = ["run", "rm", "cp", "stop", "ls", "prune"];
        assert_eq!(nearest("rum", verbs.into_iter()), Some("run"));
        for typed in ["rmm", "stp", "prunee"] {
            assert_eq!(nearest(typed, verbs.into_iter()), None, "{typed}");
        }
    }
}
