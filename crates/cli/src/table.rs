//! Every verb in one table: help, completions and dispatch all come from it.

use crate::verbs;
use crate::words::{self, Failure, Outcome};
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use msb_spec::Error;
use std::ffi::OsString;

/// What a verb does with its flags.
pub(crate) trait Act: CommandFactory + FromArgMatches {
    fn act(self) -> Outcome;
}

struct Verb {
    name: &'static str,
    group: &'static str,
    about: &'static str,
    command: fn() -> Command,
    act: fn(&ArgMatches) -> Outcome,
}

const fn verb<T: Act>(group: &'static str, name: &'static str, about: &'static str) -> Verb {
    Verb { name, group, about, command: T::command, act: act::<T> }
}

fn act<T: Act>(matches: &ArgMatches) -> Outcome {
    T::from_arg_matches(matches).map_err(Failure::from)?.act()
}

const RUN: &str = "Run";
const LIFE: &str = "Keep";
const LOOK: &str = "Look";
const MORE: &str = "More";

const VERBS: [Verb; 19] = [
    verb::<verbs::run::Run>(RUN, "run", "Run a command in a new sandbox"),
    verb::<verbs::exec::Exec>(RUN, "exec", "Run a command in a running sandbox"),
    verb::<verbs::attach::Attach>(RUN, "attach", "Take part in a command that runs"),
    verb::<verbs::kill::Kill>(RUN, "kill", "Send a signal to a command"),
    verb::<verbs::cp::Cp>(RUN, "cp", "Copy files between the host and a sandbox"),
    verb::<verbs::create::Create>(LIFE, "create", "Make a sandbox and keep it running"),
    verb::<verbs::life::Start>(LIFE, "start", "Start sandboxes that have stopped"),
    verb::<verbs::life::Stop>(LIFE, "stop", "Stop sandboxes; what they wrote stays"),
    verb::<verbs::life::Restart>(LIFE, "restart", "Stop sandboxes and start them again"),
    verb::<verbs::life::Drain>(LIFE, "drain", "Take no new commands, end with the last"),
    verb::<verbs::life::Wait>(LIFE, "wait", "Wait until sandboxes have ended"),
    verb::<verbs::life::Rm>(LIFE, "rm", "Remove sandboxes with all they hold"),
    verb::<verbs::ls::Ls>(LOOK, "ls", "List sandboxes"),
    verb::<verbs::ps::Ps>(LOOK, "ps", "Show what runs"),
    verb::<verbs::inspect::Inspect>(LOOK, "inspect", "Show everything about a sandbox"),
    verb::<verbs::logs::Logs>(LOOK, "logs", "Show what commands have said"),
    verb::<verbs::metrics::Metrics>(LOOK, "metrics", "Show how much sandboxes use"),
    verb::<verbs::doctor::Doctor>(MORE, "doctor", "Tell what this host can do, and how to mend it"),
    verb::<verbs::completion::Completion>(MORE, "completion", "Print completions for a shell"),
];

/// Runs what the command line asks for.
pub(crate) fn dispatch(mut rest: Vec<OsString>) -> Outcome {
    let word = rest.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    match word.as_str() {
        "" | "-h" | "--help" | "help" if rest.len() < 2 => {
            words::stdout(help().as_bytes());
            return Ok(0);
        }
        "help" => {
            rest.remove(0);
            rest.push("--help".into());
            return dispatch(rest);
        }
        "-V" | "--version" | "version" => {
            words::say(format!("msb {}", env!("CARGO_PKG_VERSION")));
            return Ok(0);
        }
        "--tree" => {
            words::stdout(tree().as_bytes());
            return Ok(0);
        }
        _ => {}
    }
    let Some(verb) = VERBS.iter().find(|verb| verb.name == word) else {
        let error = Error::invalid(format!("no such command: `{}`", word));
        let near = msb_spec::nearest(&word, VERBS.iter().map(|verb| verb.name));
        return Err(match near {
            Some(near) => error.hint(format!("did you mean `msb {near}`?")),
            None => error.hint("`msb --help` lists the commands"),
        }
        .into());
    };
    let matches = dressed(verb).try_get_matches_from(rest)?;
    (verb.act)(&matches)
}

/// A verb's command with its name and line of help.
fn dressed(verb: &Verb) -> Command {
    (verb.command)().name(verb.name).bin_name(format!("msb {}", verb.name)).about(verb.about)
}

/// The whole command, for completions.
pub(crate) fn whole() -> Command {
    let whole =
        Command::new("msb").about("Sandboxes for AI agents").version(env!("CARGO_PKG_VERSION"));
    VERBS.iter().fold(whole, |whole, verb| whole.subcommand(dressed(verb)))
}

fn help() -> String {
    let mut text = String::from(
        "Sandboxes for AI agents: run untrusted code on your own machine.\n\n\
         Usage: msb COMMAND [OPTIONS]\n",
    );
    for group in [RUN, LIFE, LOOK, MORE] {
        text.push_str(&format!("\n{group}:\n"));
        for verb in VERBS.iter().filter(|verb| verb.group == group) {
            text.push_str(&format!("  {:<11} {}\n", verb.name, verb.about));
        }
    }
    text.push_str(
        "\nExamples:\n  \
         msb run -- python3 -c 'print(42)'       run something, keep nothing\n  \
         msb create --name box && msb exec box -- sh\n\n\
         `msb COMMAND --help` tells about one command, `msb --tree` lists every flag.\n",
    );
    text
}

/// Every command with every flag, a line each.
fn tree() -> String {
    let mut text = String::from("msb\n");
    for verb in &VERBS {
        text.push_str(&format!("  {}  {}\n", verb.name, verb.about));
        let command = dressed(verb);
        for argument in command.get_arguments() {
            let value = argument.get_value_names().map_or(String::new(), |names| {
                let takes = argument.get_action().takes_values();
                let shown: Vec<&str> = names.iter().map(clap::builder::Str::as_str).collect();
                if takes { format!(" {}", shown.join(" ")) } else { String::new() }
            });
            let name = match (argument.get_short(), argument.get_long()) {
                (Some(short), Some(long)) => format!("-{short}, --{long}"),
                (None, Some(long)) => format!("--{long}"),
                (Some(short), None) => format!("-{short}"),
                (None, None) => String::new(),
            };
            let about = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let left = format!("{name}{value}");
            text.push_str(&format!("    {:<34} {about}\n", left.trim()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_consistent() {
        whole().debug_assert();
    }
}
