//! Invented words, each with the one that engineers of the field search for.

use super::Finding;
use super::lexer::Kind;
use super::source::Source;

/// Refused as parts of names (`TwinCopy`) and in comments, messages and pages, with what to write
/// instead.
const BANNED: &[(&str, &str)] = &[
    ("blotted", "masked or replaced"),
    ("brood", "children"),
    ("culprit", "the member or field that failed"),
    ("doze", "pause or sleep"),
    ("errand", "task or request"),
    ("hush", "close output"),
    ("knock", "wake-up request"),
    ("lobby", "connection limiter"),
    ("powerless", "without capabilities"),
    ("sleepy", "idle"),
    ("stir", "touch or wake"),
    ("twin", "copy"),
    ("unproven", "unauthenticated"),
    ("unspelled", "unescaped"),
    ("vouch", "certificate, CA or sign"),
    ("vouches", "certificate, CA or sign"),
];

/// Ordinary words that say nothing as parts of names.
const BANNED_IN_NAMES: &[(&str, &str)] = &[
    ("apart", "helper process"),
    ("asker", "caller, client or origin"),
    ("elsewhere", "remote, or name the host"),
    ("furnish", "mount, write or set up"),
    ("greeted", "hello received"),
    ("heed", "handle or reset"),
    ("kin", "children or related sandboxes"),
    ("obey", "apply"),
    ("outward", "gateway link or uplink"),
    ("sealing", "digest or verify"),
    ("spelled", "escaped"),
    ("surroundings", "host configuration"),
    ("tape", "tar stream or writer"),
    ("telling", "export or report"),
    ("vanish", "unlink or remove"),
];

/// Names and texts of a Rust file.
pub(super) fn findings(source: &Source) -> Vec<Finding> {
    let names = source.code.iter().filter(|token| token.kind == Kind::Word);
    let names = names.flat_map(|token| parts(&token.text).map(|part| (token.line, part)));
    let named = names.filter_map(|(line, word)| {
        let tables = [BANNED, BANNED_IN_NAMES];
        tables.iter().find_map(|table| finding(table, &source.path, line, &word))
    });
    let prose = super::prose::lines_of_rust(source).into_iter();
    let prose = prose.flat_map(|line| {
        let words: Vec<String> = super::prose::words(&line.text).flat_map(parts).collect();
        words.into_iter().map(move |word| (line.line, word))
    });
    let said = prose.filter_map(|(line, word)| finding(BANNED, &source.path, line, &word));
    named.chain(said).collect()
}

/// Texts of a Markdown page.
pub(super) fn findings_of_markdown(path: &str, text: &str) -> Vec<Finding> {
    let lines = super::prose::lines_of_markdown(text).into_iter();
    let words = lines.flat_map(|line| {
        let words: Vec<String> = super::prose::words(&line.text).flat_map(parts).collect();
        words.into_iter().map(move |word| (line.line, word))
    });
    words.filter_map(|(line, word)| finding(BANNED, path, line, &word)).collect()
}

fn finding(table: &[(&str, &str)], path: &str, line: usize, word: &str) -> Option<Finding> {
    let (_, plain) = table.iter().find(|(banned, _)| *banned == word)?;
    let message = format!("`{word}` is no word of the field: {plain}");
    Some(Finding { path: path.to_owned(), line, message })
}

/// The words that a name is made of, in lower case: `TwinCopy` and `twin_copy` are the same two.
fn parts(name: &str) -> impl Iterator<Item = String> {
    let mut parts: Vec<String> = vec![String::new()];
    let mut lower = false;
    for character in name.chars() {
        if character == '_' || (character.is_uppercase() && lower) {
            parts.push(String::new());
        }
        if character != '_' {
            parts.last_mut().expect("it has one").extend(character.to_lowercase());
        }
        lower = character.is_lowercase();
    }
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_into_their_words() {
        let of = |name| parts(name).collect::<Vec<_>>();
        assert_eq!(of("TwinCopy"), ["twin", "copy"]);
        assert_eq!(of("told_layer"), ["told", "layer"]);
        assert_eq!(of("OCI"), ["oci"]);
    }

    #[test]
    fn a_banned_word_is_found_in_names_comments_and_messages() {
        let text = "// A twin of it.\nfn make_twin() { fail(\"the twin is gone\"); }\n";
        let lines: Vec<usize> =
            findings(&Source::new("a.rs", text)).iter().map(|it| it.line).collect();
        assert_eq!(lines, [2, 1, 2]);
    }

    #[test]
    fn a_longer_word_is_another_one() {
        assert_eq!(findings(&Source::new("a.rs", "// Taking the tapestry apartment.\n")), []);
    }

    #[test]
    fn an_ordinary_word_is_refused_in_names_alone() {
        let text = "// Kept apart.\nmod apart;\n";
        let lines: Vec<usize> =
            findings(&Source::new("a.rs", text)).iter().map(|it| it.line).collect();
        assert_eq!(lines, [2]);
    }

    #[test]
    fn pages_are_read_without_their_code() {
        let found = findings_of_markdown("a.md", "a knock\n```sh\nknock\n```\n");
        assert_eq!(found.len(), 1);
    }
}
