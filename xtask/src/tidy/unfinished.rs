//! Nothing half-done is merged: no holes in the code, no tests that are put to sleep.

use super::Finding;
use super::lexer::Token;
use super::source::Source;

pub(super) fn macro_rule(source: &Source) -> Vec<Finding> {
    source
        .macros(&["todo", "unimplemented"])
        .map(|name| source.finding(name.line, format!("`{}!` panics on a user", name.text)))
        .collect()
}

pub(super) fn ignore_rule(source: &Source) -> Vec<Finding> {
    source
        .attributes()
        .filter_map(|attribute| ignored(attribute))
        .map(|word| {
            source.finding(word.line, "ignored test: print `SKIP: reason` where it cannot run")
        })
        .collect()
}

fn ignored(attribute: &[Token]) -> Option<&Token> {
    let first = attribute.first()?;
    if first.is_word("cfg_attr") {
        attribute.iter().find(|token| token.is_word("ignore"))
    } else {
        first.is_word("ignore").then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_uses_of_the_words_are_good() {
        let text = "// todo!()\nfn todo() { todo(); }\n#[serde(ignore)]\nstruct A;\n";
        let source = Source::new("a.rs", text);
        assert_eq!(macro_rule(&source), []);
        assert_eq!(ignore_rule(&source), []);
    }

    #[test]
    fn holes_are_found() {
        let source = Source::new("a.rs", "fn a() { todo!() }\nfn b() { unimplemented!(\"b\") }\n");
        let lines: Vec<usize> = macro_rule(&source).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2]);
    }

    #[test]
    fn ignored_tests_are_found() {
        for attribute in ["#[ignore]", "#[ignore = \"slow\"]", "#[cfg_attr(unix, ignore)]"] {
            let source = Source::new("a.rs", &format!("#[test]\n{attribute}\nfn a() {{}}\n"));
            let findings = ignore_rule(&source);
            assert_eq!(findings.len(), 1, "{attribute}");
            assert_eq!(findings[0].line, 2);
        }
    }
}
