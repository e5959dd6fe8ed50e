//! Only the command line prints: a library that does spoils the caller's pipe.

use super::Finding;
use super::source::Source;

const MACROS: &[&str] = &["println", "eprintln", "print", "eprint"];

pub(super) fn rule(source: &Source) -> Vec<Finding> {
    // A build script talks to cargo on its standard output; tests say what they skip.
    let may_print = ["crates/cli", "xtask", "e2e"].iter().any(|dir| source.is_in(dir))
        || source.is_below("examples")
        || ["build.rs", "tests.rs"].contains(&source.file_name());
    if may_print {
        return Vec::new();
    }
    source
        .macros(MACROS)
        .map(|name| {
            source.finding(name.line, format!("`{}!` only in crates/cli and tools", name.text))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTS: &str = "fn a() {\n    println!(\"a\");\n    eprint!(\"b\");\n}\n";

    #[test]
    fn where_printing_is_the_job_it_is_good() {
        for path in [
            "crates/cli/src/a.rs",
            "xtask/src/a.rs",
            "e2e/cli/a.rs",
            "crates/wire/build.rs",
            "crates/erofs/src/tests.rs",
        ] {
            assert_eq!(rule(&Source::new(path, PRINTS)), [], "{path}");
        }
        assert_eq!(rule(&Source::new("crates/microsandbox/examples/a.rs", PRINTS)), []);
    }

    #[test]
    fn other_uses_of_the_word_are_good() {
        let text = "/// println!(\"a\");\nfn print() { self.print(); writeln!(a, \"print!\"); }";
        assert_eq!(rule(&Source::new("crates/engine/src/a.rs", text)), []);
    }

    #[test]
    fn elsewhere_it_is_found() {
        let findings = rule(&Source::new("crates/engine/src/a.rs", PRINTS));
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
    }
}
