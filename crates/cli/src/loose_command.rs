//! Commands without `--`: `msb run alpine ls -la`, `msb exec box ls`.
//!
//! The command starts at the first word that is neither a flag of msb, nor its value, nor the image
//! or sandbox. All words from there on are the command's. A word that could as well be meant for
//! msb is refused: `--no-net` behind the command must not be lost on a server inside.

use clap::{Arg, Command};
use msb_spec::{Error, Result, shown};
use std::ffi::OsString;

/// Inserts the `--` that was left out before a command. `words` starts with the verb.
pub(crate) fn separate(
    verb: &Command,
    name: &str,
    mut words: Vec<OsString>,
) -> Result<Vec<OsString>> {
    let positionals: Vec<&Arg> = verb.get_positionals().collect();
    if !positionals.iter().any(|argument| argument.is_last_set()) {
        return Ok(words);
    }
    let Some(places) = positional_words(verb, &words, positionals.len()) else { return Ok(words) };
    let Some((start, before)) = places.split_last() else { return Ok(words) };
    let text = |index: &usize| words[*index].to_string_lossy().into_owned();
    let either = words[start + 1..].iter().filter_map(|word| word.to_str());
    if let Some(flag) = either.map(flag_name).find(|word| is_ours(verb, word)) {
        let (before, program) = (before.iter().map(text).collect::<Vec<_>>(), text(start));
        return Err(misreadable(name, &before.join(" "), &program, flag));
    }
    let start = *start;
    words.insert(start, "--".into());
    Ok(words)
}

/// Where the positional words are, up to the start of the command. `None` if there is no command,
/// or if clap has to report a mistake.
fn positional_words(verb: &Command, words: &[OsString], count: usize) -> Option<Vec<usize>> {
    let mut places = Vec::new();
    let mut index = 1;
    while places.len() < count {
        let word = words.get(index)?.to_str()?;
        let has_next = if word == "--" {
            return None;
        } else if let Some(long) = word.strip_prefix("--") {
            let (long, value) = long.split_once('=').map_or((long, None), |(l, v)| (l, Some(v)));
            takes_next(long_flag(verb, long)?) && value.is_none()
        } else if word.len() > 1 && word.starts_with('-') {
            last_short_takes_next(verb, &word[1..])?
        } else {
            places.push(index);
            false
        };
        index += if has_next { 2 } else { 1 };
    }
    Some(places)
}

fn long_flag<'a>(verb: &'a Command, long: &str) -> Option<&'a Arg> {
    verb.get_arguments().find(|argument| {
        argument.get_long() == Some(long)
            || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
    })
}

/// Whether the value of a flag is the next word.
fn takes_next(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// Whether short flags such as `-it` or `-em` end with one whose value is the next word.
fn last_short_takes_next(verb: &Command, letters: &str) -> Option<bool> {
    for (index, letter) in letters.char_indices() {
        let flag = verb.get_arguments().find(|argument| argument.get_short() == Some(letter))?;
        if flag.get_action().takes_values() {
            return Some(index + letter.len_utf8() == letters.len());
        }
    }
    Some(false)
}

/// A flag without its value.
fn flag_name(word: &str) -> &str {
    if word.starts_with("--") { word.split('=').next().unwrap_or(word) } else { word }
}

/// Whether a word behind the command could be meant for msb: `--`, or one of its long flags. Short
/// ones are not, since every program has them: `ls -l`, `python -m`.
fn is_ours(verb: &Command, word: &str) -> bool {
    let long = word.strip_prefix("--").filter(|long| !long.is_empty());
    word == "--" || long.and_then(|long| long_flag(verb, long)).is_some_and(|it| !it.is_hide_set())
}

/// The error for a word that could be meant for either. It repeats no value: that may be a secret.
fn misreadable(name: &str, before: &str, program: &str, flag: &str) -> Error {
    let (before, program) = (shown(before), shown(program));
    if flag == "--" {
        return Error::invalid(format!("the command could start at `{program}` or behind `--`"))
            .hint(format!("write `msb {name} {before} -- {program} …`"));
    }
    Error::invalid(format!("this could be meant for msb or for the command: `{flag}`")).hint(
        format!(
            "for the command: `msb {name} {before} -- {program} … {flag}`; for msb: \
             `msb {name} {flag} … {before} -- {program} …`"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::exec::ExecArgs;
    use crate::verbs::run::RunArgs;
    use clap::CommandFactory;

    fn separated(verb: &Command, line: &str) -> Result<String, String> {
        let words = line.split(' ').map(OsString::from).collect();
        let words = separate(verb, "run", words).map_err(|error| error.to_string())?;
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_command_starts_at_the_first_word_that_is_not_ours() {
        for (verb, line, expected) in [
            (RunArgs::command(), "run alpine ls -la", "run alpine -- ls -la"),
            (RunArgs::command(), "run -it alpine sh", "run -it alpine -- sh"),
            (RunArgs::command(), "run -m 1G alpine -n x ls", "run -m 1G alpine -n x -- ls"),
            (RunArgs::command(), "run -m1G --name=x alpine ls", "run -m1G --name=x alpine -- ls"),
            (RunArgs::command(), "run alpine python -m x -d", "run alpine -- python -m x -d"),
            (RunArgs::command(), "run alpine ls --help", "run alpine -- ls --help"),
            (
                RunArgs::command(),
                "run --trust-host-cas alpine ls",
                "run --trust-host-cas alpine -- ls",
            ),
            (ExecArgs::command(), "exec box ls", "exec box -- ls"),
            (ExecArgs::command(), "exec -w /x box cat -", "exec -w /x box -- cat -"),
        ] {
            assert_eq!(separated(&verb, line).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn a_line_without_a_command_or_with_a_mistake_is_left_to_clap() {
        for line in
            ["run", "run alpine", "run -- ls -la", "run alpine -- ls --name x", "run -X a b"]
        {
            assert_eq!(separated(&RunArgs::command(), line).as_deref(), Ok(line));
        }
    }

    #[test]
    fn what_could_be_meant_for_msb_is_refused() {
        for line in
            ["run alpine serve --no-net", "run alpine a --env=K=hunter2", "run alpine a -- b"]
        {
            let error = separated(&RunArgs::command(), line).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
