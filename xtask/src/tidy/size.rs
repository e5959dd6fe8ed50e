//! Files and functions stay small enough to be read in one go, those of tests too.

use super::Finding;
use super::lexer::Kind;
use super::source::Source;

const FILE_LINES: usize = 800;

/// The limit of `too_many_lines` in `clippy.toml`, but of lines as an editor counts them.
const FUNCTION_LINES: usize = 120;

pub(super) fn file_rule(source: &Source) -> Vec<Finding> {
    if source.lines > FILE_LINES {
        let message = format!("{} lines, the limit is {FILE_LINES}", source.lines);
        vec![source.finding(FILE_LINES + 1, message)]
    } else {
        Vec::new()
    }
}

pub(super) fn function_rule(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, pair) in source.code.windows(2).enumerate() {
        // A pointer to a function has no name.
        if !pair[0].is_word("fn") || pair[1].kind != Kind::Word {
            continue;
        }
        let Some(last) = source.code[source.item(index)].last() else {
            continue;
        };
        let lines = last.line - pair[0].line + 1;
        if lines > FUNCTION_LINES {
            let message =
                format!("`{}` has {lines} lines, the limit is {FUNCTION_LINES}", pair[1].text);
            findings.push(source.finding(pair[0].line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long(a: fn(u8)) {{\n{}}}\nfn short() {{}}\n", "    a(1);\n".repeat(lines - 2))
    }

    #[test]
    fn a_file_at_the_limit_is_good() {
        assert_eq!(file_rule(&Source::new("a.rs", &"a;\n".repeat(800))), []);
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        let findings = file_rule(&Source::new("a.rs", &"a;\n".repeat(801)));
        assert_eq!(findings[0].to_string(), "a.rs:801: 801 lines, the limit is 800");
    }

    #[test]
    fn a_function_at_the_limit_is_good() {
        assert_eq!(function_rule(&Source::new("a.rs", &function(120))), []);
    }

    #[test]
    fn a_function_over_the_limit_is_found() {
        let findings = function_rule(&Source::new("a.rs", &format!("\n{}", function(121))));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].to_string(), "a.rs:2: `long` has 121 lines, the limit is 120");
    }
}
