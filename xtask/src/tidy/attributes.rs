//! A lint is silenced with `expect` and a reason: it complains when no longer needed, `allow`
//! never does.

use super::Finding;
use super::lexer::Token;
use super::source::Source;

pub(super) fn rule(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for attribute in source.attributes() {
        for word in levels(attribute, "allow") {
            findings.push(source.finding(word.line, "`allow`: use `expect` with a reason"));
        }
        for word in levels(attribute, "expect") {
            if !attribute.iter().any(|token| token.is_word("reason")) {
                findings.push(source.finding(word.line, "`expect` without a reason"));
            }
        }
    }
    findings
}

/// `allow(` and the like where they set a lint: alone or inside `cfg_attr`.
fn levels<'a>(attribute: &'a [Token], level: &'a str) -> impl Iterator<Item = &'a Token> {
    let conditional = attribute.first().is_some_and(|first| first.is_word("cfg_attr"));
    let reach = if conditional { attribute.len() } else { attribute.len().min(2) };
    attribute[..reach]
        .windows(2)
        .filter(move |pair| pair[0].is_word(level) && pair[1].is_sign("("))
        .map(|pair| &pair[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expect_with_a_reason_is_good() {
        let text = "\
#![expect(dead_code, reason = \"a\")]
// #[allow(a)]
#[deny(b)]
#[c(allow(d))]
fn e() {}
";
        assert_eq!(rule(&Source::new("a.rs", text)), []);
    }

    #[test]
    fn an_allow_is_found() {
        for attribute in
            ["#[allow(a)]", "#![allow(a, reason = \"b\")]", "#[cfg_attr(test, allow(a))]"]
        {
            let findings = rule(&Source::new("a.rs", &format!("\n{attribute}\nfn c() {{}}\n")));
            assert_eq!(findings.len(), 1, "{attribute}");
            assert_eq!(findings[0].line, 2);
        }
    }

    #[test]
    fn an_expect_without_a_reason_is_found() {
        let findings = rule(&Source::new("a.rs", "#[expect(dead_code)]\nfn a() {}\n"));
        assert_eq!(findings.len(), 1);
    }
}
