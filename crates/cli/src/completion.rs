//! Completes command lines for shells: verbs, flags, their values, and names of what is here.
//!
//! The scripts of `msb completion` call `msb __complete` at each Tab. It reads the state directory
//! and starts nothing; through a server it completes no names, because a Tab must not wait for a
//! network.

use crate::output;
use crate::target::{self, Target};
use crate::verb_table;
use clap::{Arg, ArgAction, Command};
use msb_spec::{ImageRef, env};
use std::ffi::OsString;
use std::path::PathBuf;

/// The first word of an internal command line: a shell asks for candidates.
pub(crate) const ARGUMENT: &str = "__complete";

/// The script for bash.
pub(crate) const BASH: &str = include_str!("completion/msb.bash");
/// The script for zsh.
pub(crate) const ZSH: &str = include_str!("completion/msb.zsh");
/// The script for fish.
pub(crate) const FISH: &str = include_str!("completion/msb.fish");

/// A text that can stand in place of the last word, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    text: String,
    about: String,
}

impl Candidate {
    fn new(text: impl Into<String>, about: impl Into<String>) -> Self {
        Self { text: text.into(), about: about.into() }
    }
}

/// Prints candidates for `--words WORD...` (zsh, fish) or `--line LINE` (bash), a line each.
pub(crate) fn run(arguments: &[OsString]) -> i32 {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    match arguments {
        [how, line] if how == "--line" => {
            let words = split_line(&text(line));
            let words = words.get(1..).unwrap_or_default();
            let typed = words.last().map(String::as_str).unwrap_or_default();
            // To bash, a word ends at these characters; it replaces only what is behind them.
            let from = typed.rfind([':', '=']).map_or(0, |at| at + 1);
            for Candidate { text, .. } in candidates(words) {
                output::print(text.get(from..).unwrap_or_default());
            }
        }
        [how, words @ ..] if how == "--words" => {
            let words: Vec<String> = words.iter().map(text).collect();
            for Candidate { text, about } in candidates(&words) {
                output::print(format!("{text}\t{about}"));
            }
        }
        _ => return i32::from(output::OUR_FAILURE),
    }
    0
}

/// Splits a line as a shell does, without expanding anything. The last word is the one that is
/// being typed; it is empty after a space.
fn split_line(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut quote = None;
    let mut letters = line.trim_start().chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (' ' | '\t' | '\n', None) => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            ('\'' | '"', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            ('\\', None | Some('"')) => word.extend(letters.next()),
            (letter, _) => word.push(letter),
        }
    }
    words.push(word);
    words
}

/// Candidates for the last of these words, which follow `msb`.
fn candidates(words: &[String]) -> Vec<Candidate> {
    let Some((typed, before)) = words.split_last() else { return Vec::new() };
    let (before, remote) = match before {
        [flag, _, rest @ ..] if is_remote(flag) => (rest, true),
        [flag, rest @ ..] if flag.starts_with("--remote=") => (rest, true),
        before => (before, std::env::var_os(env::REMOTE).is_some_and(|url| !url.is_empty())),
    };
    let remote = remote || before.iter().any(|word| word.starts_with("--remote"));
    let mut found = match before {
        [] => verb_table::first_words()
            .into_iter()
            .map(|(word, about)| Candidate::new(word, about))
            .collect(),
        [first, rest @ ..] => {
            let second = rest.first().map(String::as_str).unwrap_or_default();
            let mut found = Vec::new();
            if rest.is_empty() {
                let members = verb_table::second_words(first);
                found.extend(members.map(|(word, about)| Candidate::new(word, about)));
            }
            if let Some((name, command)) = verb_table::command_of(first, second) {
                let words = name.split(' ').count();
                let rest = before.get(words..).unwrap_or_default();
                found.extend(of_verb(name, &command, rest, typed, !remote));
            }
            found
        }
    };
    found.retain(|candidate| candidate.text.starts_with(typed.as_str()));
    found
}

fn is_remote(flag: &str) -> bool {
    flag.strip_prefix("--") == Some(target::FLAG)
}

/// Candidates for a word behind a verb. `before` are the words between them.
fn of_verb(
    verb: &str,
    command: &Command,
    before: &[String],
    typed: &str,
    is_local: bool,
) -> Vec<Candidate> {
    let by_long = |name: &str| command.get_arguments().find(|arg| arg.get_long() == Some(name));
    let by_short = |name: char| command.get_arguments().find(|arg| arg.get_short() == Some(name));
    let takes_value = |arg: &&Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let (mut position, mut waiting) = (0, None);
    for word in before {
        if waiting.take().is_some() {
            continue;
        }
        match (word.strip_prefix("--"), word.strip_prefix('-')) {
            // What follows is the command inside.
            (Some(""), _) => return Vec::new(),
            (Some(name), _) => waiting = by_long(name).filter(takes_value),
            (None, Some(cluster)) => {
                waiting = cluster.chars().last().and_then(by_short).filter(takes_value);
            }
            _ => position += 1,
        }
    }
    if let Some(arg) = waiting {
        return values(verb, arg, is_local);
    }
    if let Some((flag, _)) = typed.split_once('=').filter(|_| typed.starts_with("--")) {
        let with_flag =
            |value: Candidate| Candidate { text: format!("{flag}={}", value.text), ..value };
        let arg = flag.strip_prefix("--").and_then(by_long).filter(takes_value);
        let values = arg.map(|arg| values(verb, arg, is_local)).unwrap_or_default();
        return values.into_iter().map(with_flag).collect();
    }
    if typed.starts_with('-') {
        return flags(command);
    }
    let all: Vec<&Arg> = command.get_positionals().filter(|arg| !arg.is_last_set()).collect();
    let repeated = |arg: &&&Arg| matches!(arg.get_action(), ArgAction::Append);
    let positional = all.get(position).or_else(|| all.last().filter(repeated));
    positional.map(|arg| values(verb, arg, is_local)).unwrap_or_default()
}

fn flags(command: &Command) -> Vec<Candidate> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let flag = |arg: &Arg| {
        let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
        Some(Candidate::new(format!("--{}", arg.get_long()?), about.replace('\n', " ")))
    };
    let help = Candidate::new("--help", "Print help");
    shown.filter_map(flag).chain([help]).collect()
}

/// Values that a flag of this name has, where clap does not know them.
const VALUES: &[(&str, &[&str])] = &[
    ("isolation", &["auto", "process", "vm"]),
    ("net", &["public", "private", "host", "all", "none"]),
    ("net-default", &["allow", "deny"]),
    ("platform", &["linux/amd64", "linux/arm64"]),
    ("pull", &["always", "if-missing", "never"]),
    ("restart", &["no", "on-failure", "always"]),
    ("secret-in", &["cookie", "query", "body"]),
    ("security", &["default", "restricted"]),
    ("signal", &["TERM", "KILL", "INT", "HUP", "QUIT", "STOP", "CONT", "USR1", "USR2"]),
    ("source", &["stdout", "stderr", "system", "all"]),
];

/// The values of a flag or positional argument.
fn values(verb: &str, arg: &Arg, is_local: bool) -> Vec<Candidate> {
    let known = arg.get_possible_values();
    if !known.is_empty() {
        let about = |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string);
        let value = |it: &clap::builder::PossibleValue| {
            Candidate::new(it.get_name(), about(it.get_help()).unwrap_or_default())
        };
        return known.iter().filter(|it| !it.is_hide_set()).map(value).collect();
    }
    if verb == "docs" && arg.get_long().is_none() {
        let topics = crate::verbs::docs::topics();
        return topics.map(|(topic, title)| Candidate::new(topic, title)).collect();
    }
    let listed = VALUES.iter().find(|(flag, _)| arg.get_long() == Some(*flag));
    if let Some((_, values)) = listed {
        return values.iter().map(|value| Candidate::new(*value, "")).collect();
    }
    let name = arg.get_value_names().and_then(|names| names.first());
    let name = name.map(clap::builder::Str::as_str).unwrap_or_default();
    match noun(verb, name, arg.get_long()).filter(|_| is_local) {
        Some(noun) => noun.names().unwrap_or_default(),
        None => Vec::new(),
    }
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noun {
    Sandbox,
    /// A sandbox before a colon and a path.
    SandboxPath,
    Image,
    /// Also `host` and snapshots, to start from.
    RootImage,
    Snapshot,
    Volume,
    VolumePath,
}

/// What the value of an argument names, by the verb and the name of the value.
fn noun(verb: &str, value: &str, flag: Option<&str>) -> Option<Noun> {
    let family = verb.split(' ').next().unwrap_or(verb);
    match (family, value, flag) {
        // A name that is made up now.
        ("uninstall", ..) => None,
        (_, "NAME", None) if matches!(verb, "volume create" | "snapshot create") => None,
        ("volume", "NAME", None) => Some(Noun::Volume),
        ("volume", "NAME:PATH" | "SRC" | "DST", None) => Some(Noun::VolumePath),
        ("snapshot", "NAME", None) => Some(Noun::Snapshot),
        (_, "SNAPSHOT", None) => Some(Noun::Snapshot),
        (_, "NAME" | "PARENT", None) => Some(Noun::Sandbox),
        (_, "SANDBOX", Some("from")) | (_, "NAME", Some("for")) => Some(Noun::Sandbox),
        ("cp", "PATH", None) | ("sync", "NAME:PATH", None) => Some(Noun::SandboxPath),
        ("run" | "create" | "install", "IMAGE", None) => Some(Noun::RootImage),
        (_, "IMAGE", _) => Some(Noun::Image),
        (_, _, Some("volume")) => Some(Noun::VolumePath),
        _ => None,
    }
}

impl Noun {
    /// The names that exist on this machine; none without a state directory, which a Tab must not
    /// make.
    fn names(self) -> msb_spec::Result<Vec<Candidate>> {
        if !state_directory().is_some_and(|path| path.is_dir()) {
            return Ok(Vec::new());
        }
        let api = Target::Local.bare_api()?;
        let suffix = match self {
            Self::SandboxPath | Self::VolumePath => ":",
            _ => "",
        };
        let candidate = |name: &dyn std::fmt::Display, about: &str| {
            Candidate::new(format!("{name}{suffix}"), about)
        };
        Ok(match self {
            Self::Sandbox | Self::SandboxPath => {
                let all = api.sandbox_list()?;
                all.iter().map(|it| candidate(&it.name, &it.image)).collect()
            }
            Self::Volume | Self::VolumePath => {
                let all = api.volume_list()?;
                all.iter().map(|it| candidate(&it.name, "volume")).collect()
            }
            Self::Snapshot => {
                let all = api.snapshot_list()?;
                let names = all.iter().flat_map(|it| &it.names);
                names.map(|name| candidate(name, "snapshot")).collect()
            }
            Self::Image => {
                let all = api.image_list()?;
                all.iter().map(|it| candidate(&it.reference, &it.platform)).collect()
            }
            Self::RootImage => {
                let mut all = vec![candidate(&ImageRef::Host, "the programs of this host")];
                all.extend(Self::Image.names()?);
                for snapshot in Self::Snapshot.names()? {
                    let text = format!("snapshot:{}", snapshot.text);
                    all.push(Candidate { text, ..snapshot });
                }
                all
            }
        })
    }
}

/// The state directory, whether or not it exists.
fn state_directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = variable(env::HOME).map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".msb")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        let words = split_line(line);
        candidates(&words[1..]).into_iter().map(|candidate| candidate.text).collect()
    }

    #[test]
    fn lines_are_split_as_shells_do() {
        assert_eq!(split_line("msb run "), ["msb", "run", ""]);
        assert_eq!(split_line("  msb  exec 'a b' c\\ d\"e f"), ["msb", "exec", "a b", "c de f"]);
    }

    #[test]
    fn verbs_flags_and_values_are_found() {
        assert_eq!(texts("msb insp"), ["inspect"]);
        assert_eq!(texts("msb volume in"), ["inspect"]);
        assert_eq!(texts("msb run --dry"), ["--dry-run"]);
        assert_eq!(texts("msb run --isolation p"), ["process"]);
        assert_eq!(texts("msb run --isolation=p"), ["--isolation=process"]);
        assert_eq!(texts("msb run -q --net pr"), ["private"]);
        assert_eq!(texts("msb completion z"), ["zsh"]);
        assert_eq!(texts("msb mcp --transport s"), ["stdio", "streamable-http"]);
        assert!(texts("msb run -- --dry").is_empty());
        assert!(texts("msb nonsense ").is_empty());
    }

    /// A list of values that a flag does not take would mislead.
    #[test]
    fn each_listed_value_is_accepted() {
        for (flag, values) in VALUES {
            let commands = verb_table::commands();
            let has = |command: &&Command| {
                command.get_arguments().any(|arg| arg.get_long() == Some(*flag))
            };
            let command = commands.iter().find(has).unwrap_or_else(|| panic!("no --{flag}"));
            for value in *values {
                let arguments = ["msb", &format!("--{flag}={value}")];
                let parsed = command.clone().ignore_errors(false).try_get_matches_from(arguments);
                let wrong = parsed.err().map(|error| error.kind());
                let is_value = wrong
                    .is_none_or(|kind| kind == clap::error::ErrorKind::MissingRequiredArgument);
                assert!(is_value, "--{flag}={value}: {wrong:?}");
            }
        }
    }
}
