//! The dialect of bird's sandbox-mcp on real sandboxes: its tools, its texts, its one shell.
//!
//! Texts are compared whole with what the original was seen to say; times and ids are masked.

mod children;
mod contract;
mod files;
mod git;
mod host_paths;
mod network;
mod packages;
mod persistence;
mod profiles;
mod shell;
mod survival;
mod timeouts;
mod transcript;

use msb_e2e::mcp::{Client, WITHOUT_ALPINE};
use msb_e2e::{Msb, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;

const DIALECT: [&str; 2] = ["--dialect", "sandbox-mcp"];

/// Writes the user's settings, and that there is nothing but `host`.
fn write_config(msb: &Msb, settings: &str) {
    msb.write_config(&format!("{WITHOUT_ALPINE}{settings}"));
}

/// A client that checks that each result has its text twice: as content and as structure.
struct SandboxMcpClient {
    client: Client,
    called: BTreeSet<String>,
}

impl SandboxMcpClient {
    #[track_caller]
    fn open(msb: &Msb) -> Self {
        Self::over(msb, msb.command(["mcp"].iter().chain(&DIALECT)))
    }

    /// A client with sandboxes that have the default network.
    #[track_caller]
    fn networked(msb: &Msb) -> Self {
        let mut command = msb.command(["mcp"].iter().chain(&DIALECT));
        command.env_remove("MSB_NET");
        Self::over(msb, command)
    }

    #[track_caller]
    fn over(msb: &Msb, mut command: Command) -> Self {
        // The test's own directory is its home, which is not offered by itself.
        command.arg("--host-path").arg(msb.scratch());
        if !msb.home().join("config.toml").exists() {
            write_config(msb, "");
        }
        Self { client: Client::over(command), called: BTreeSet::new() }
    }

    /// What a tool says: in a block of text, and as a structure.
    #[track_caller]
    fn says(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.client.call(tool, arguments);
        self.called.insert(tool.to_owned());
        text_of(&result)
    }

    /// What a tool says, with times and ids masked.
    #[track_caller]
    fn masked(&mut self, tool: &str, arguments: Value) -> String {
        mask(&self.says(tool, arguments))
    }

    /// What a command in the sandbox `default` says, without how long it took.
    #[track_caller]
    fn run(&mut self, command: &str) -> String {
        self.run_in("default", command)
    }

    /// What a command in any sandbox says, without how long it took.
    #[track_caller]
    fn run_in(&mut self, sandbox: &str, command: &str) -> String {
        let said = self.says("exec", json!({"command": command, "sandbox": sandbox}));
        untimed(&said).to_owned()
    }

    /// Begins to run a command; [`Client::end`] gives its result.
    fn begin(&mut self, command: &str) -> u64 {
        let params = json!({"name": "exec", "arguments": {"command": command}});
        self.client.begin("tools/call", params)
    }
}

/// What a result says, if it has the form that every result has.
#[track_caller]
fn text_of(result: &Value) -> String {
    assert_ne!(result["isError"], true, "{result}");
    let text = result["content"][0]["text"].as_str().expect("text").to_owned();
    assert_eq!(result["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(result["structuredContent"], json!({"result": text}));
    text
}

/// What a command said, without the line that tells how long it took.
#[track_caller]
fn untimed(said: &str) -> &str {
    let timed = said.rsplit_once('(').filter(|(_, time)| mask(time) == "Nms)");
    let (before, _) = timed.unwrap_or_else(|| panic!("no time at its end: {said:?}"));
    before.strip_suffix('\n').unwrap_or(before)
}

/// A text with `N` for numbers of seconds, milliseconds and processes, and `ID` for ids.
fn mask(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let known = ["mcp-sb-", "sync-", "bg-"].into_iter().find(|it| rest.starts_with(it));
        if let Some((prefix, tail)) = known.and_then(|it| Some((it, id(&rest[it.len()..])?))) {
            masked.push_str(&format!("{prefix}ID"));
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix("PID ") {
            masked.push_str("PID N");
            rest = tail.trim_start_matches(|digit: char| digit.is_ascii_digit());
        } else if next.is_ascii_digit() {
            let end = rest.find(|it: char| !it.is_ascii_digit() && it != '.');
            let (number, tail) = rest.split_at(end.unwrap_or(rest.len()));
            masked.push_str(if is_unit(tail) { "N" } else { number });
            rest = tail;
        } else {
            masked.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    masked
}

/// What follows six hexadecimal digits.
fn id(text: &str) -> Option<&str> {
    let (id, tail) = text.split_at_checked(6)?;
    id.chars().all(|digit| digit.is_ascii_hexdigit()).then_some(tail)
}

/// Whether it begins with `s` or `ms`, alone.
fn is_unit(text: &str) -> bool {
    let word = text.split(|it: char| !it.is_alphanumeric()).next();
    matches!(word, Some("s" | "ms"))
}

/// The names of all processes of a sandbox, sorted.
fn process_names(msb: &Msb, sandbox: &str) -> Vec<String> {
    let mut names: Vec<String> = msb.processes(sandbox).into_iter().map(|it| it.name).collect();
    names.sort();
    names
}

/// Waits until the sandbox `default` has exactly these processes.
#[track_caller]
fn comes_back_to(msb: &Msb, names: &[String], after: &str) {
    let mut now = Vec::new();
    let begun = std::time::Instant::now();
    eventually("nothing of it is left", || {
        now = process_names(msb, "default");
        // Said before the limit of the wait, which tells no names.
        assert!(begun.elapsed().as_secs() < 20, "after {after}: {now:?} are not {names:?}");
        now == names
    });
}
