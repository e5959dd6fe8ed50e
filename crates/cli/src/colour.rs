//! Whether and how text is coloured: at a terminal, by the rules that other programs follow.
//!
//! `NO_COLOR` switches colours off, then `CLICOLOR_FORCE` or `FORCE_COLOR` switches them on, then
//! `CLICOLOR=0` and `TERM=dumb` switch them off. Text is understood without them.

use std::ffi::OsString;
use std::io::IsTerminal;

/// Parameters of the escape sequences.
pub(crate) const RED: &str = "31";
pub(crate) const BOLD_RED: &str = "31;1";
pub(crate) const GREEN: &str = "32";
pub(crate) const YELLOW: &str = "33";
pub(crate) const CYAN: &str = "36";
pub(crate) const BOLD: &str = "1";

/// A stream that text goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    /// Whether text on it is coloured.
    pub(crate) fn is_coloured(self) -> bool {
        let is_terminal = match self {
            Self::Stdout => std::io::stdout().is_terminal(),
            Self::Stderr => std::io::stderr().is_terminal(),
        };
        decide(is_terminal, |name| std::env::var_os(name))
    }

    /// The text in a colour, if it is to have one.
    pub(crate) fn paint(self, text: &str, colour: &str) -> String {
        match self.is_coloured() {
            true => format!("\x1b[{colour}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

fn decide(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    let is = |name: &str, value: &str| variable(name).is_some_and(|own| own == value);
    if is_set("NO_COLOR") {
        return false;
    }
    if ["CLICOLOR_FORCE", "FORCE_COLOR"].iter().any(|name| is_set(name) && !is(name, "0")) {
        return true;
    }
    is_terminal && !is("CLICOLOR", "0") && !is("TERM", "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_decide_in_the_order_that_others_have() {
        type Variables = &'static [(&'static str, &'static str)];
        let cases: [(bool, Variables, bool); 10] = [
            (true, &[], true),
            (false, &[], false),
            (true, &[("NO_COLOR", "1"), ("FORCE_COLOR", "1")], false),
            (true, &[("NO_COLOR", "")], true),
            (false, &[("FORCE_COLOR", "1")], true),
            (false, &[("CLICOLOR_FORCE", "1"), ("TERM", "dumb")], true),
            (false, &[("CLICOLOR_FORCE", "0")], false),
            (true, &[("TERM", "dumb")], false),
            (true, &[("CLICOLOR", "0")], false),
            (true, &[("CLICOLOR", "1")], true),
        ];
        for (is_terminal, set, expected) in cases {
            let variable = |name: &str| {
                set.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value))
            };
            assert_eq!(decide(is_terminal, variable), expected, "{set:?}");
        }
    }
}
