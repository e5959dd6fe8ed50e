//! Checks blocks that are not commands: settings, JSON, YAML and Rust.

use crate::repository;
use msb_e2e::{Msb, gives};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// msb reads its settings whole before it does anything.
pub(crate) fn config(text: &str) -> Result<(), String> {
    let msb = Msb::with_own_layers();
    msb.write_config(text);
    let gave = msb.run(["image", "ls"]);
    if gave.code == 0 { Ok(()) } else { Err(gave.stderr) }
}

/// Any TOML.
pub(crate) fn toml(text: &str) -> Result<(), String> {
    python("import sys, tomllib; tomllib.loads(sys.argv[1])", text)
}

pub(crate) fn yaml(text: &str) -> Result<(), String> {
    python("import sys, yaml; assert isinstance(yaml.safe_load(sys.argv[1]), dict)", text)
}

pub(crate) fn json(text: &str) -> Result<(), String> {
    let value: Result<serde_json::Value, _> = serde_json::from_str(text);
    value.map(drop).map_err(|error| error.to_string())
}

/// The lines of the block follow each other in a file that is compiled, however they are indented.
pub(crate) fn rust(text: &str) -> Result<(), String> {
    let block = trimmed(text);
    let mut files = Vec::new();
    for directory in ["crates", "e2e"] {
        rust_files(&repository().join(directory), &mut files);
    }
    let holds_block = |file: &PathBuf| {
        fs::read_to_string(file).is_ok_and(|file| contains(&trimmed(&file), &block))
    };
    if files.iter().any(holds_block) {
        return Ok(());
    }
    Err("no file of `crates` or `e2e` has these lines; an example can hold them".to_owned())
}

fn python(program: &str, text: &str) -> Result<(), String> {
    let gave = gives(Command::new("/usr/bin/python3").args(["-c", program, text]));
    if gave.code == 0 { Ok(()) } else { Err(gave.stderr) }
}

fn trimmed(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

fn contains(file: &[&str], block: &[&str]) -> bool {
    file.windows(block.len()).any(|lines| lines == block)
}

fn rust_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_whatever_their_indent() {
        let file = trimmed("fn main() {\n    one();\n\n    two();\n}\n");
        assert!(contains(&file, &trimmed("one();\ntwo();\n")));
        assert!(!contains(&file, &trimmed("two();\none();\n")));
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        assert!(json("{").is_err());
        assert!(toml("a = ").is_err());
        assert!(yaml("a: [").is_err());
        assert!(config("[no_such_table]\n").is_err());
        assert!(rust("these words are in no file;\n").is_err());
    }
}
