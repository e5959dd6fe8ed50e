//! An example in a documentation comment is run: its crate may not have switched such tests off.

use std::fs;
use std::path::Path;

use super::Finding;
use super::lexer::Kind;
use super::source::Source;
use crate::workspace;

pub(super) fn rule(source: &Source) -> Vec<Finding> {
    let lines = examples(source);
    if lines.is_empty() || !switched_off(&source.path) {
        return Vec::new();
    }
    let message = "this example is not run: take `doctest = false` out of the crate's Cargo.toml";
    lines.into_iter().map(|line| source.finding(line, message)).collect()
}

/// Lines where an example in Rust begins.
fn examples(source: &Source) -> Vec<usize> {
    let comments = source.comments.iter().filter(|token| token.kind == Kind::Documentation);
    let mut lines = Vec::new();
    let mut inside = false;
    for token in comments {
        let Some(language) = token.text.trim().strip_prefix("```") else { continue };
        inside = !inside;
        if inside && is_rust(language) {
            lines.push(token.line);
        }
    }
    lines
}

/// Whether rustdoc takes a block with these words for Rust to run.
fn is_rust(language: &str) -> bool {
    let known = ["rust", "no_run", "compile_fail", "should_panic"];
    language.is_empty() || language.split(',').any(|word| known.contains(&word.trim()))
}

fn switched_off(path: &str) -> bool {
    let mut parts = Path::new(path).iter();
    let (Some(first), Some(name)) = (parts.next(), parts.next()) else { return false };
    let manifest = workspace::root().join(first).join(name).join("Cargo.toml");
    fs::read_to_string(manifest).is_ok_and(|text| text.contains("doctest = false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_rust_are_examples() {
        let text = "/// Adds.\n///\n/// ```\n/// f();\n/// ```\n///\n/// ```text\n/// x\n/// ```\n\
                    ///\n/// ```no_run\n/// g();\n/// ```\nfn f() {}\n";
        assert_eq!(examples(&Source::new("a.rs", text)), [3, 11]);
    }

    #[test]
    fn an_example_in_a_crate_that_runs_none_is_found() {
        let example = "/// ```\n/// f();\n/// ```\nfn f() {}\n";
        assert_eq!(rule(&Source::new("crates/wire/src/a.rs", example)).len(), 1);
        assert_eq!(rule(&Source::new("crates/microsandbox/src/a.rs", example)), []);
    }
}
