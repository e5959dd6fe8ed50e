//! Compares commands that a page shows with the verbs and flags that `msb --tree` lists.
//!
//! It is for commands that are not run: a synopsis, or what needs the internet. It reads words, no
//! shell: what stands in brackets is read as if it were given.

use std::collections::{BTreeMap, BTreeSet};

/// The flags of each verb, as `msb --tree` prints them.
#[derive(Debug)]
pub(crate) struct CommandTree {
    flags: BTreeMap<String, BTreeSet<String>>,
}

/// Flags of every command, which the tree does not repeat.
const EVERYWHERE: [&str; 3] = ["--help", "-h", "--remote"];

/// Flags of `msb` itself.
const TOP: [&str; 6] = ["--help", "-h", "--version", "-V", "--tree", "--remote"];

impl CommandTree {
    pub(crate) fn parse(tree: &str) -> Self {
        let mut flags: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut verb = String::new();
        for line in tree.lines() {
            if let Some(flag) = line.strip_prefix("    ") {
                let names = flag.split_whitespace().map(|word| word.trim_end_matches(','));
                let names = names.take_while(|word| word.starts_with('-')).map(str::to_owned);
                flags.entry(verb.clone()).or_default().extend(names);
            } else if let Some(line) = line.strip_prefix("  ") {
                // Two spaces end the verb: `  ssh serve  Serve SSH at a port`.
                verb = line.split("  ").next().unwrap_or_default().trim().to_owned();
                flags.entry(verb.clone()).or_default();
            }
        }
        Self { flags }
    }

    /// What is wrong with a command line that begins with `msb `.
    pub(crate) fn check(&self, line: &str) -> Result<(), String> {
        let line = line.split("  #").next().unwrap_or(line);
        let commands =
            [" | ", "&&", "; "].iter().fold(line.to_owned(), |line, edge| line.replace(edge, "·"));
        let mut commands =
            commands.split('·').map(str::trim).filter(|part| part.starts_with("msb "));
        commands.try_for_each(|command| self.check_command(command))
    }

    fn check_command(&self, command: &str) -> Result<(), String> {
        let is_edge = |letter: char| "[]…`'\"),.".contains(letter);
        let words: Vec<&str> =
            command.split_whitespace().map(|w| w.trim_matches(is_edge)).collect();
        let mut words = words[1..].iter().copied().peekable();
        while let Some(flag) = words.next_if(|word| word.starts_with('-')) {
            let name = flag.split('=').next().unwrap_or(flag);
            if !TOP.contains(&name) {
                return Err(format!("`{command}`: msb has no flag `{name}`"));
            }
            if flag == "--remote" {
                words.next();
            }
        }
        // Placeholders are in capitals: `msb COMMAND --help`.
        let Some(first) = words.next_if(|word| !word.starts_with(char::is_uppercase)) else {
            return Ok(());
        };
        let group = format!("{first} ");
        let mut verb = first.to_owned();
        if let Some(second) = words.peek()
            && self.flags.contains_key(&format!("{first} {second}"))
        {
            verb = format!("{group}{second}");
        } else if !self.flags.contains_key(first)
            && !self.flags.keys().any(|verb| verb.starts_with(&group))
        {
            return Err(format!("`{command}`: there is no `msb {first}`"));
        }
        let known = self.flags.get(&verb);
        // What follows `--` is another program's.
        for flag in words.take_while(|word| *word != "--").filter(|word| is_flag(word)) {
            let names =
                flag.split(&['|', '/'][..]).map(|flag| flag.split('=').next().unwrap_or(flag));
            for name in names.filter(|name| name.starts_with('-')) {
                let exists = known.is_some_and(|flags| flags.contains(name));
                if !exists && !EVERYWHERE.contains(&name) {
                    return Err(format!("`{command}`: `msb {verb}` has no flag `{name}`"));
                }
            }
        }
        Ok(())
    }
}

fn is_flag(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    word.starts_with('-') && name.starts_with(|letter: char| letter.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
msb
  run  Run a command
    IMAGE                    What it starts from
    -p, --publish HOST:GUEST Port of the host
    --rm                     Remove it when --detach is missing
  image ls  List images
    --json                   Print JSON
";

    fn check(line: &str) -> Result<(), String> {
        CommandTree::parse(TREE).check(line)
    }

    #[test]
    fn known_verbs_and_flags_pass() {
        for line in [
            "msb run -p 80:80 --rm alpine -- ls -l --all",
            "msb run [--rm] [--publish=HOST:GUEST] IMAGE  # not --here",
            "msb image ls · inspect NAME · prune",
            "msb --remote URL run --rm",
            "msb COMMAND --help",
            "msb image ls --json && msb run --rm",
        ] {
            assert_eq!(check(line), Ok(()));
        }
    }

    #[test]
    fn unknown_verbs_and_flags_are_named() {
        for (line, wrong) in [
            ("msb fly", "msb fly"),
            ("msb run --fly", "--fly"),
            ("msb run -f", "-f"),
            ("msb run --detach", "--detach"),
            ("msb --fly run", "--fly"),
            ("msb image ls [--fly|--json]", "--fly"),
            ("msb run && msb image ls --rm", "--rm"),
        ] {
            let error = check(line).expect_err(line);
            assert!(error.contains(wrong), "{error}");
        }
    }
}
