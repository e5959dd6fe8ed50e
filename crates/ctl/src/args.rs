//! Parses the command line into requests.

use serde_json::{Map, Value, json};

pub(crate) const USAGE: &str =
    "usage: sandbox-ctl [--json] ping|spawn|list|exec|destroy|run … (`sandbox-ctl --help`)";

pub(crate) const HELP: &str = "\
Manages child sandboxes from inside a sandbox.

Usage: sandbox-ctl [--json] COMMAND

  ping                                              Check the connection
  spawn [--image I] [--name N] [--cpus N] [--memory M]   Create a child, print its name
  list                                              List the children
  exec NAME [--timeout S] [--workdir D] [--stream] -- CMD ARGS   Run a command in a child
  destroy NAME                                      Remove a child
  run [--image I] [--timeout S] [--workdir D] [--stream] -- CMD ARGS   Run a command in a new child

The exit code of exec and run is the command's. --stream prints output as it arrives.
SANDBOX_CTL_SOCK names another socket than /run/sandbox-ctl.sock.
";

/// Parsed command line: format and command.
#[derive(Debug, PartialEq)]
pub(crate) struct CtlArgs {
    pub(crate) json: bool,
    pub(crate) verb: Verb,
}

/// Why a command line is no request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ArgsError {
    Help,
    Usage(String),
}

#[derive(Debug, PartialEq)]
pub(crate) enum Verb {
    Ping,
    Spawn { params: Map<String, Value> },
    List,
    Destroy { name: String },
    Exec { params: Map<String, Value> },
    Run { params: Map<String, Value> },
}

impl Verb {
    pub(crate) fn request(&self) -> Value {
        let (method, params) = match self {
            Self::Ping => ("ping", json!({})),
            Self::Spawn { params } => ("spawn", json!(params)),
            Self::List => ("list", json!({})),
            Self::Destroy { name } => ("destroy", json!({ "name": name })),
            Self::Exec { params } => ("exec", json!(params)),
            Self::Run { params } => ("run", json!(params)),
        };
        json!({ "id": std::process::id().to_string(), "method": method, "params": params })
    }
}

impl CtlArgs {
    pub(crate) fn parse(words: &[String]) -> Result<Self, ArgsError> {
        let mut words = words.iter().map(String::as_str).peekable();
        let json = words.next_if_eq(&"--json").is_some();
        let verb = match words.next() {
            None => return Err(ArgsError::Usage("no command".to_owned())),
            Some("-h" | "--help" | "help") => return Err(ArgsError::Help),
            Some(verb) => verb,
        };
        let rest: Vec<&str> = words.collect();
        let verb = match verb {
            "ping" => no_more_args(&rest, Verb::Ping)?,
            "list" => no_more_args(&rest, Verb::List)?,
            "spawn" => {
                let flags = [("--image", FlagKind::Text), ("--name", FlagKind::Text)];
                let more = [("--cpus", FlagKind::Number), ("--memory", FlagKind::Text)];
                let (params, names) = parse_flags(&rest, &[&flags[..], &more[..]].concat())?;
                no_more_args(&names, Verb::Spawn { params })?
            }
            "destroy" => match rest.as_slice() {
                [name] => Verb::Destroy { name: (*name).to_owned() },
                _ => return Err(ArgsError::Usage("destroy takes one name".to_owned())),
            },
            "exec" => Verb::Exec { params: parse_command(&rest, true)? },
            "run" => Verb::Run { params: parse_command(&rest, false)? },
            other => return Err(ArgsError::Usage(format!("no such command: {other}"))),
        };
        Ok(Self { json, verb })
    }
}

fn no_more_args(rest: &[&str], verb: Verb) -> Result<Verb, ArgsError> {
    match rest.first() {
        None => Ok(verb),
        Some(word) => Err(ArgsError::Usage(format!("unexpected argument: {word}"))),
    }
}

#[derive(Clone, Copy)]
enum FlagKind {
    Text,
    Number,
    Switch,
}

/// Parses flags into parameters of a request; returns the other words too.
fn parse_flags<'a>(
    words: &[&'a str],
    known: &[(&str, FlagKind)],
) -> Result<(Map<String, Value>, Vec<&'a str>), ArgsError> {
    let mut params = Map::new();
    let mut others = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(stripped) = word.strip_prefix("--") else {
            others.push(*word);
            continue;
        };
        let (flag, given) = match stripped.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (stripped, None),
        };
        let found = known.iter().find(|(name, _)| name.strip_prefix("--") == Some(flag));
        let Some((_, kind)) = found else {
            return Err(ArgsError::Usage(format!("no such flag: {word}")));
        };
        if let FlagKind::Switch = kind {
            params.insert(flag.to_owned(), Value::Bool(true));
            continue;
        }
        let value = given.or_else(|| words.next().copied());
        let value = value.ok_or_else(|| ArgsError::Usage(format!("--{flag} needs a value")))?;
        let value = match kind {
            FlagKind::Number => json!(
                value
                    .parse::<f64>()
                    .map_err(|_| ArgsError::Usage(format!("--{flag}: not a number: {value}")))?
            ),
            _ => json!(value),
        };
        params.insert(flag.to_owned(), value);
    }
    Ok((params, others))
}

/// Parses `[FLAGS] [NAME] -- COMMAND`.
fn parse_command(words: &[&str], named: bool) -> Result<Map<String, Value>, ArgsError> {
    let Some(end) = words.iter().position(|word| *word == "--") else {
        return Err(ArgsError::Usage("put the command after `--`".to_owned()));
    };
    let (ours, argv) = (&words[..end], &words[end + 1..]);
    if argv.is_empty() {
        return Err(ArgsError::Usage("no command after `--`".to_owned()));
    }
    let mut known = vec![
        ("--timeout", FlagKind::Number),
        ("--workdir", FlagKind::Text),
        ("--stream", FlagKind::Switch),
    ];
    if !named {
        known.push(("--image", FlagKind::Text));
    }
    let (mut params, names) = parse_flags(ours, &known)?;
    match (named, names.as_slice()) {
        (true, [name]) => {
            params.insert("name".to_owned(), json!(name));
        }
        (false, []) => {}
        (true, _) => return Err(ArgsError::Usage("exec takes one name before `--`".to_owned())),
        (false, [word, ..]) => {
            return Err(ArgsError::Usage(format!("unexpected argument: {word}")));
        }
    }
    let line: Vec<String> = argv.iter().map(|word| shell_quote(word)).collect();
    params.insert("command".to_owned(), json!(line.join(" ")));
    Ok(params)
}

/// Quotes one word for a POSIX shell.
fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<CtlArgs, ArgsError> {
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        CtlArgs::parse(&words)
    }

    fn params(line: &[&str]) -> Value {
        parse(line).unwrap().verb.request()["params"].clone()
    }

    #[test]
    fn arguments_become_requests() {
        assert_eq!(parse(&["--json", "ping"]), Ok(CtlArgs { json: true, verb: Verb::Ping }));
        assert_eq!(
            params(&["spawn", "--image", "a", "--cpus=2", "--memory", "64M"]),
            json!({ "image": "a", "cpus": 2.0, "memory": "64M" })
        );
        assert_eq!(
            params(&["exec", "k", "--timeout", "5", "--", "sh", "-c", "echo 'a b'"]),
            json!({ "name": "k", "timeout": 5.0, "command": r"sh -c 'echo '\''a b'\'''" })
        );
        assert_eq!(
            params(&["run", "--stream", "--", "ls", "--", ""]),
            json!({ "stream": true, "command": "ls -- ''" })
        );
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for line in [
            &["fly"][..],
            &[],
            &["ping", "x"],
            &["destroy"],
            &["exec", "--", "ls"],
            &["exec", "a", "ls"],
            &["run", "--"],
            &["spawn", "--cpus", "x"],
            &["spawn", "--name"],
            &["run", "--colour", "--", "ls"],
        ] {
            assert!(matches!(parse(line), Err(ArgsError::Usage(_))), "{line:?}");
        }
        assert_eq!(parse(&["--help"]), Err(ArgsError::Help));
    }
}
