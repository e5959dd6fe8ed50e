//! `unsafe` stays behind the fence, where every block has been read with that in mind.

use super::Finding;
use super::source::Source;

pub(super) fn rule(source: &Source) -> Vec<Finding> {
    let fenced = source.is_in("crates/sys")
        || source.is_in("fuzz")
        || source.file_name().ends_with("_unsafe.rs");
    if fenced {
        return Vec::new();
    }
    let blocks = source.code.iter().filter(|token| token.is_word("unsafe"));
    blocks
        .map(|token| source.finding(token.line, "`unsafe` only in crates/sys and `*_unsafe.rs`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "fn a() {\n    unsafe { b() }\n}\n";

    #[test]
    fn behind_the_fence_it_is_good() {
        for path in ["crates/sys/src/a.rs", "crates/vm/src/map_unsafe.rs", "fuzz/a.rs"] {
            assert_eq!(rule(&Source::new(path, BLOCK)), [], "{path}");
        }
    }

    #[test]
    fn as_a_word_in_comments_and_strings_it_is_good() {
        let text = "// unsafe\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe\";\n";
        assert_eq!(rule(&Source::new("crates/jail/src/a.rs", text)), []);
    }

    #[test]
    fn as_code_elsewhere_it_is_found() {
        let findings = rule(&Source::new("crates/system/src/a.rs", BLOCK));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 2);
    }
}
