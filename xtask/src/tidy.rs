//! The rules of this repository that neither the compiler nor clippy holds.
//!
//! Each rule is one file under `tidy/`, and sees either one source file or the crates.

mod attributes;
mod banned_words;
mod comments;
mod doc_lines;
mod edges;
mod examples;
mod lexer;
mod names;
mod printing;
mod prose;
mod size;
mod source;
mod type_names;
mod unfinished;
mod unsafety;
mod variables;
mod vocabulary;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::workspace;
use source::Source;
use vocabulary::Vocabulary;

/// One breach of a rule, where an editor can jump to it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

type Rule = fn(&Source) -> Vec<Finding>;

const RULES: &[Rule] = &[
    names::rule,
    size::file_rule,
    size::function_rule,
    unsafety::rule,
    printing::rule,
    comments::banner_rule,
    comments::todo_rule,
    unfinished::macro_rule,
    unfinished::ignore_rule,
    attributes::rule,
    variables::rule,
    examples::rule,
];

/// `--counts` prints what the rules about language count, and judges nothing.
pub(crate) fn command(options: &[&str]) -> Result<ExitCode> {
    match options {
        [] => run()?,
        ["--counts"] => read_all()?.1.print(),
        other => bail!("unknown options: {}", other.join(" ")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints every finding; an error if there is one.
pub(crate) fn run() -> Result<()> {
    let (mut findings, vocabulary) = read_all()?;
    findings.extend(vocabulary.findings());
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("1 finding"),
        count => bail!("{count} findings"),
    }
}

/// Reads every file once: what is wrong with one alone, and what is counted over all of them.
fn read_all() -> Result<(Vec<Finding>, Vocabulary)> {
    let root = workspace::root();
    let mut findings = edges::findings(&root)?;
    let mut vocabulary = Vocabulary::default();
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    for path in &files {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let name = path.strip_prefix(&root).unwrap_or(path).to_string_lossy();
        if name.ends_with(".md") {
            vocabulary.add_markdown(&name, &text);
            continue;
        }
        let source = Source::new(&name, &text);
        findings.extend(RULES.iter().flat_map(|rule| rule(&source)));
        vocabulary.add_rust(&source);
    }
    Ok((findings, vocabulary))
}

/// All Rust files and Markdown pages of the repository, those not yet known to git too; in order, so
/// that two runs print the same.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read `{}`", dir.display()))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let built = name == "target" || name == "node_modules";
            if !built && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if kind.is_file() && (name.ends_with(".rs") || name.ends_with(".md")) {
            files.push(path);
        }
    }
    Ok(())
}
