//! Names of types: nouns that name the thing, each unique in its crate.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::lexer::Kind;
use super::source::Source;

/// So many of a hundred names may be used by more than one crate.
pub(super) const SHARED_PERCENT: usize = 20;

/// Participles that do not end in `-ed`.
const PARTICIPLES: &[&str] = &[
    "Asking",
    "Been",
    "Begun",
    "Bent",
    "Bound",
    "Built",
    "Caught",
    "Cut",
    "Done",
    "Drawn",
    "Found",
    "Given",
    "Gone",
    "Gotten",
    "Heard",
    "Held",
    "Hidden",
    "Kept",
    "Known",
    "Laid",
    "Left",
    "Lent",
    "Lost",
    "Made",
    "Meant",
    "Met",
    "Put",
    "Ran",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Shut",
    "Sought",
    "Spoken",
    "Spent",
    "Taken",
    "Thrown",
    "Told",
    "Torn",
    "Understood",
    "Unproven",
    "Woken",
    "Worn",
    "Written",
];

/// Words that end in `-ed` and are nouns.
const NOUNS: &[&str] = &["Embed", "Feed", "Need", "Seed", "Speed"];

/// A struct, enum, union or trait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TypeName {
    pub(super) name: String,
    pub(super) line: usize,
    /// Seen by other modules.
    pub(super) public: bool,
}

/// The types that a file declares, but for those of tests and inside macros.
pub(super) fn declared(source: &Source) -> Vec<TypeName> {
    let tests: Vec<_> = source.test_ranges().collect();
    let mut names = Vec::new();
    for (index, pair) in source.code.windows(2).enumerate() {
        let declares = pair[0].is_word_of(&["struct", "enum", "union", "trait"]);
        let name = &pair[1];
        if !declares || name.kind != Kind::Word {
            continue;
        }
        if tests.iter().any(|range| range.contains(&index)) {
            continue;
        }
        // Variables may be called `union`.
        if !name.text.starts_with(|first: char| first.is_ascii_uppercase()) {
            continue;
        }
        let public = is_public(source, index);
        names.push(TypeName { name: name.text.clone(), line: name.line, public });
    }
    names
}

/// Whether `pub`, `pub(crate)` or the like stands before the token.
fn is_public(source: &Source, index: usize) -> bool {
    let before = &source.code[index.saturating_sub(4)..index];
    match before {
        [.., last] if last.is_word("pub") => true,
        [.., first, open, _, close] => {
            first.is_word("pub") && open.is_sign("(") && close.is_sign(")")
        }
        _ => false,
    }
}

/// A single word that says what happened to the thing, and not what it is.
pub(super) fn is_bare_participle(name: &str) -> bool {
    let words = name.chars().filter(|character| character.is_ascii_uppercase()).count();
    words == 1 && (PARTICIPLES.contains(&name) || (name.ends_with("ed") && !NOUNS.contains(&name)))
}

/// All names of the repository, by crate.
#[derive(Debug, Default)]
pub(super) struct TypeTable {
    /// Name, then crate, then where it is declared.
    names: BTreeMap<String, BTreeMap<String, Vec<Declaration>>>,
}

#[derive(Debug)]
struct Declaration {
    path: String,
    line: usize,
    public: bool,
}

impl TypeTable {
    /// Adds a file of `crates/NAME`; other files declare nothing that counts.
    pub(super) fn add(&mut self, source: &Source) {
        let Some(owner) = crate_of(&source.path) else { return };
        for TypeName { name, line, public } in declared(source) {
            let declaration = Declaration { path: source.path.clone(), line, public };
            let crates = self.names.entry(name).or_default();
            crates.entry(owner.to_owned()).or_default().push(declaration);
        }
    }

    /// Public names that their crate has twice, and those that are bare participles, of some crates.
    pub(super) fn findings(&self, held: impl Fn(&str) -> bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, crates) in &self.names {
            for (owner, declarations) in crates.iter().filter(|(owner, _)| held(owner)) {
                let twice = declarations.len() > 1;
                for declaration in declarations.iter().filter(|declaration| declaration.public) {
                    let message = match (is_bare_participle(name), twice) {
                        (true, _) => format!("`{name}` is a participle: name the thing"),
                        (_, true) => format!("`{owner}` has another type named `{name}`"),
                        _ => continue,
                    };
                    findings.push(Finding {
                        path: declaration.path.clone(),
                        line: declaration.line,
                        message,
                    });
                }
            }
        }
        findings
    }

    /// How many types there are, and how many share their name with another one.
    pub(super) fn shared(&self) -> (usize, usize) {
        let counts: Vec<usize> =
            self.names.values().map(|crates| crates.values().map(Vec::len).sum()).collect();
        (counts.iter().sum(), counts.iter().filter(|count| **count > 1).sum())
    }

    /// How many names there are, and how many of them more than one crate uses.
    pub(super) fn across_crates(&self) -> (usize, usize) {
        let shared = self.names.values().filter(|crates| crates.len() > 1).count();
        (self.names.len(), shared)
    }

    /// The names that most types share.
    pub(super) fn most_shared(&self, count: usize) -> Vec<(usize, &str)> {
        let mut names: Vec<(usize, &str)> = self
            .names
            .iter()
            .map(|(name, crates)| (crates.values().map(Vec::len).sum(), name.as_str()))
            .filter(|(count, _)| *count > 1)
            .collect();
        names.sort_by(|one, other| other.cmp(one));
        names.truncate(count);
        names
    }

    /// The crates that declare anything.
    pub(super) fn crates(&self) -> BTreeSet<&str> {
        self.names.values().flat_map(|crates| crates.keys().map(String::as_str)).collect()
    }
}

/// The crate that a path lies in, if it is code of `crates/`.
pub(super) fn crate_of(path: &str) -> Option<&str> {
    let (owner, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    rest.starts_with("src/").then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(files: &[(&str, &str)]) -> TypeTable {
        let mut table = TypeTable::default();
        for (path, text) in files {
            table.add(&Source::new(path, text));
        }
        table
    }

    #[test]
    fn types_are_found_with_their_visibility() {
        let source = Source::new(
            "a.rs",
            "pub struct A; pub(crate) enum B {} trait C {} #[cfg(test)] mod tests { struct D; }",
        );
        let found: Vec<_> = declared(&source).into_iter().map(|it| (it.name, it.public)).collect();
        let expected = [("A", true), ("B", true), ("C", false)];
        assert_eq!(found, expected.map(|(name, public)| (name.to_owned(), public)));
    }

    #[test]
    fn participles_alone_are_found() {
        for name in ["Asked", "Told", "Confined", "Woken"] {
            assert!(is_bare_participle(name), "{name}");
        }
        for name in ["ExecArgs", "AskedFor", "Seed", "Verdict", "Plan"] {
            assert!(!is_bare_participle(name), "{name}");
        }
    }

    #[test]
    fn a_public_name_that_its_crate_has_twice_is_found() {
        let table = table(&[
            ("crates/a/src/one.rs", "pub(crate) struct Line;"),
            ("crates/a/src/two.rs", "struct Line;"),
            ("crates/b/src/lib.rs", "pub struct Line;"),
        ]);
        let found = table.findings(|_| true);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/a/src/one.rs");
        assert_eq!(table.findings(|owner| owner == "b"), []);
    }

    #[test]
    fn shared_names_are_counted_by_type_and_by_crate() {
        let table = table(&[
            ("crates/a/src/lib.rs", "struct Line; struct Own;"),
            ("crates/b/src/lib.rs", "struct Line;"),
            ("e2e/src/lib.rs", "struct Line;"),
        ]);
        assert_eq!(table.shared(), (3, 2));
        assert_eq!(table.across_crates(), (2, 1));
        assert_eq!(table.most_shared(5), [(2, "Line")]);
    }
}
