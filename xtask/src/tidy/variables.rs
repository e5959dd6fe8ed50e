//! Every environment variable is named once, in `spec::env`, where it is also documented.

use super::Finding;
use super::lexer::Kind;
use super::source::Source;

const HOME: &str = "crates/spec/src/env.rs";

pub(super) fn rule(source: &Source) -> Vec<Finding> {
    // Build scripts and tests stand outside: what they set is not read by a user's `msb`.
    let name = source.file_name();
    let outside = !source.is_in("crates")
        || source.path == HOME
        || source.is_below("tests")
        || name == "build.rs"
        || name == "tests.rs"
        || name.ends_with("_test.rs")
        || name.ends_with("_tests.rs");
    if outside {
        return Vec::new();
    }
    let names = source.code.iter().enumerate().filter(|(index, token)| {
        token.kind == Kind::Text
            && token.text.starts_with("MSB_")
            && !is_compile_time(source, *index)
            && !source.is_test(*index)
    });
    names
        .map(|(_, token)| {
            source.finding(token.line, format!("variable `{}` belongs in {HOME}", token.text))
        })
        .collect()
}

/// `env!("MSB_…")` reads what a build script set.
fn is_compile_time(source: &Source, index: usize) -> bool {
    index >= 3
        && source.code[index - 1].is_sign("(")
        && source.code[index - 2].is_sign("!")
        && source.code[index - 3].is_word_of(&["env", "option_env"])
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: &str = "fn a() {\n    var(\"MSB_HOME\");\n}\n";

    #[test]
    fn where_variables_are_named_it_is_good() {
        for path in [HOME, "crates/worker/build.rs", "crates/cli/tests/a.rs", "xtask/src/a.rs"] {
            assert_eq!(rule(&Source::new(path, READS)), [], "{path}");
        }
    }

    #[test]
    fn tests_comments_and_compile_time_are_good() {
        let text = "\
const GUEST: &[u8] = include_bytes!(env!(\"MSB_GUEST\"));
/// \"MSB_HOME\"
const OTHER: &str = \"not MSB_HOME\";
#[cfg(test)]
mod tests { fn a() { set(\"MSB_HOME\"); } }
";
        assert_eq!(rule(&Source::new("crates/worker/src/a.rs", text)), []);
    }

    #[test]
    fn elsewhere_it_is_found() {
        let findings = rule(&Source::new("crates/engine/src/store.rs", READS));
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].to_string(),
            "crates/engine/src/store.rs:2: variable `MSB_HOME` belongs in crates/spec/src/env.rs"
        );
    }
}
