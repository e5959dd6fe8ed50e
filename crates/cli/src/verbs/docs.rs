//! `msb docs`: the documentation in the terminal, and the manual pages.

use crate::output::{self, Outcome};
use crate::verb_table::{LocalVerb, whole};
use clap::Parser;
use msb_spec::{Error, Kind, Result};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

macro_rules! pages {
    ($($topic:literal)*) => {
        &[$(($topic, include_str!(concat!("../../../../docs/", $topic, ".md")))),*]
    };
}

/// The pages for users, in the order of the book.
const PAGES: &[(&str, &str)] = pages![
    "quickstart" "host-setup" "microvms" "images" "build" "network" "storage" "life" "init" "ssh"
    "children" "mcp" "http" "remote" "sdk-rust" "metrics" "troubleshooting" "audit" "threat-model"
];

/// Shows a page of the documentation; without a topic, lists them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb docs [OPTIONS] [TOPIC]")]
pub(crate) struct DocsArgs {
    /// Which page
    #[arg(value_name = "TOPIC", conflicts_with = "man")]
    topic: Option<String>,
    /// Write the manual pages to a directory instead
    #[arg(long, value_name = "DIR")]
    man: Option<PathBuf>,
}

impl LocalVerb for DocsArgs {
    fn run(self) -> Outcome {
        match (self.man, self.topic) {
            (Some(directory), _) => write_manual(&directory)?,
            (None, Some(topic)) => show(&page(&topic)?),
            (None, None) => {
                for (topic, text) in PAGES {
                    output::print(format!("{topic:<16} {}", title(text)));
                }
            }
        }
        Ok(0)
    }
}

/// The topics, each with its title.
pub(crate) fn topics() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.iter().map(|(topic, text)| (*topic, title(text)))
}

fn title(text: &'static str) -> &'static str {
    let head = text.lines().find_map(|line| line.strip_prefix("# "));
    head.unwrap_or_default()
}

/// A page without the comments that are for its tests.
fn page(topic: &str) -> Result<String> {
    let found = PAGES.iter().find(|(name, _)| *name == topic);
    let (_, text) = found.ok_or_else(|| {
        let error = Error::new(Kind::NotFound, format!("no such page: `{topic}`"));
        match msb_spec::nearest(topic, PAGES.iter().map(|(name, _)| *name)) {
            Some(near) => error.hint(format!("did you mean `msb docs {near}`?")),
            None => error.hint("`msb docs` lists the pages"),
        }
    })?;
    Ok(without_comments(text))
}

fn without_comments(text: &str) -> String {
    let mut in_comment = false;
    let mut shown = String::with_capacity(text.len());
    for line in text.lines() {
        in_comment |= line.starts_with("<!--");
        if !in_comment {
            shown.push_str(line);
            shown.push('\n');
        }
        in_comment &= !line.ends_with("-->");
    }
    shown
}

/// Shows a text by the pager of the user, if stdout is a terminal.
fn show(text: &str) {
    if !std::io::stdout().is_terminal() || paged(text).is_err() {
        output::write_stdout(text.as_bytes());
    }
}

fn paged(text: &str) -> std::io::Result<()> {
    let pager = std::env::var("PAGER").ok().filter(|pager| !pager.is_empty());
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &pager.unwrap_or_else(|| "less".to_owned())]).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // A page that fits on the screen is only printed.
        command.env("LESS", "FRX");
    }
    let mut pager = command.spawn()?;
    if let Some(mut stdin) = pager.stdin.take() {
        // A pager that was left early has closed it.
        let _ = stdin.write_all(text.as_bytes());
    }
    // A shell exits with 127 for a program that does not exist.
    match pager.wait()?.code() {
        Some(127) => Err(std::io::ErrorKind::NotFound.into()),
        _ => Ok(()),
    }
}

/// Writes a manual page for each command.
fn write_manual(directory: &Path) -> Result<()> {
    let about = |error: std::io::Error| {
        Error::host(format!("cannot write manual pages to `{}`", directory.display()), error)
    };
    std::fs::create_dir_all(directory).map_err(about)?;
    clap_mangen::generate_to(whole(), directory).map_err(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_a_title_and_no_comment() {
        for (topic, text) in PAGES {
            assert!(!title(text).is_empty(), "{topic}");
            assert!(!page(topic).unwrap().contains("<!-- setup"), "{topic}");
        }
        assert_eq!(without_comments("a\n<!-- x -->\nb\n<!-- y\nz\n-->\nc\n"), "a\nb\nc\n");
    }
}
