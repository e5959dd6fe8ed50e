//! The words of the command line, and the requests that they mean.

use serde_json::{Map, Value, json};

pub(crate) const USAGE: &str =
    "usage: sandbox-ctl [--json] ping|spawn|list|exec|destroy|run … (`sandbox-ctl --help`)";

pub(crate) const HELP: &str = "\
Child sandboxes, from inside of one.

Usage: sandbox-ctl [--json] COMMAND

  ping                                              Is somebody there?
  spawn [--image I] [--name N] [--cpus N] [--memory M]   Make a child, print its name
  list                                              The children there are
  exec NAME [--timeout S] [--workdir D] [--stream] -- CMD ARGS   Run a command in a child
  destroy NAME                                      End a child
  run [--image I] [--timeout S] [--workdir D] [--stream] -- CMD ARGS   The same in a child of its own

The exit code of exec and run is the command's. --stream shows output as it comes.
SANDBOX_CTL_SOCK names another socket than /run/sandbox-ctl.sock.
";

/// What was asked for.
#[derive(Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) json: bool,
    pub(crate) verb: Verb,
}

/// Why nothing is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Help,
    Words(String),
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

impl Asked {
    pub(crate) fn parse(words: &[String]) -> Result<Self, Wrong> {
        let mut words = words.iter().map(String::as_str).peekable();
        let json = words.next_if_eq(&"--json").is_some();
        let verb = match words.next() {
            None => return Err(Wrong::Words("no command".to_owned())),
            Some("-h" | "--help" | "help") => return Err(Wrong::Help),
            Some(verb) => verb,
        };
        let rest: Vec<&str> = words.collect();
        let verb = match verb {
            "ping" => nothing(&rest, Verb::Ping)?,
            "list" => nothing(&rest, Verb::List)?,
            "spawn" => {
                let flags = [("--image", Kind::Text), ("--name", Kind::Text)];
                let more = [("--cpus", Kind::Number), ("--memory", Kind::Text)];
                let (params, names) = flags_of(&rest, &[&flags[..], &more[..]].concat())?;
                nothing(&names, Verb::Spawn { params })?
            }
            "destroy" => match rest.as_slice() {
                [name] => Verb::Destroy { name: (*name).to_owned() },
                _ => return Err(Wrong::Words("destroy takes one name".to_owned())),
            },
            "exec" => Verb::Exec { params: command(&rest, true)? },
            "run" => Verb::Run { params: command(&rest, false)? },
            other => return Err(Wrong::Words(format!("no such command: {other}"))),
        };
        Ok(Self { json, verb })
    }
}

fn nothing(rest: &[&str], verb: Verb) -> Result<Verb, Wrong> {
    match rest.first() {
        None => Ok(verb),
        Some(word) => Err(Wrong::Words(format!("too much: {word}"))),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Switch,
}

/// The flags, as parameters of a request, and what is none.
fn flags_of<'a>(
    words: &[&'a str],
    known: &[(&str, Kind)],
) -> Result<(Map<String, Value>, Vec<&'a str>), Wrong> {
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
            return Err(Wrong::Words(format!("no such flag: {word}")));
        };
        if let Kind::Switch = kind {
            params.insert(flag.to_owned(), Value::Bool(true));
            continue;
        }
        let value = given.or_else(|| words.next().copied());
        let value = value.ok_or_else(|| Wrong::Words(format!("--{flag} needs a value")))?;
        let value = match kind {
            Kind::Number => json!(
                value
                    .parse::<f64>()
                    .map_err(|_| Wrong::Words(format!("--{flag}: not a number: {value}")))?
            ),
            _ => json!(value),
        };
        params.insert(flag.to_owned(), value);
    }
    Ok((params, others))
}

/// What stands before `--` is for us, what follows is the command.
fn command(words: &[&str], named: bool) -> Result<Map<String, Value>, Wrong> {
    let Some(end) = words.iter().position(|word| *word == "--") else {
        return Err(Wrong::Words("the command stands behind --".to_owned()));
    };
    let (ours, argv) = (&words[..end], &words[end + 1..]);
    if argv.is_empty() {
        return Err(Wrong::Words("no command behind --".to_owned()));
    }
    let mut known =
        vec![("--timeout", Kind::Number), ("--workdir", Kind::Text), ("--stream", Kind::Switch)];
    if !named {
        known.push(("--image", Kind::Text));
    }
    let (mut params, names) = flags_of(ours, &known)?;
    match (named, names.as_slice()) {
        (true, [name]) => {
            params.insert("name".to_owned(), json!(name));
        }
        (false, []) => {}
        (true, _) => return Err(Wrong::Words("exec takes one name before --".to_owned())),
        (false, [word, ..]) => return Err(Wrong::Words(format!("too much: {word}"))),
    }
    let line: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
    params.insert("command".to_owned(), json!(line.join(" ")));
    Ok(params)
}

/// One word for a shell, whatever is in it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Asked, Wrong> {
        let words: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
        Asked::parse(&words)
    }

    fn params(line: &[&str]) -> Value {
        parse(line).unwrap().verb.request()["params"].clone()
    }

    #[test]
    fn words_become_requests() {
        assert_eq!(parse(&["--json", "ping"]), Ok(Asked { json: true, verb: Verb::Ping }));
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
    fn words_that_mean_nothing_are_refused() {
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
            assert!(matches!(parse(line), Err(Wrong::Words(_))), "{line:?}");
        }
        assert_eq!(parse(&["--help"]), Err(Wrong::Help));
    }
}
