//! Files are named for what they hold. A `mod.rs` says nothing in an editor's tab, and the
//! others collect whatever has no better place.

use super::Finding;
use super::source::Source;

const REFUSED: &[&str] =
    &["mod.rs", "util.rs", "utils.rs", "helper.rs", "helpers.rs", "common.rs", "misc.rs"];

pub(super) fn rule(source: &Source) -> Vec<Finding> {
    let name = source.file_name();
    if REFUSED.contains(&name) {
        vec![source.finding(1, format!("no file is named `{name}`: name it for what it holds"))]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_named_for_what_it_holds_is_good() {
        assert_eq!(rule(&Source::new("crates/sys/src/model.rs", "")), []);
    }

    #[test]
    fn a_file_named_for_nothing_is_found() {
        for name in REFUSED {
            let findings = rule(&Source::new(&format!("crates/sys/src/{name}"), ""));
            assert_eq!(findings.len(), 1, "{name}");
        }
    }
}
