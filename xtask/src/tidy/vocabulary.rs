//! The language of the repository: `docs/style.md` has the rules, this holds them.
//!
//! Crates in [`UNFINISHED`] are still to be rewritten; every other one is checked.

use std::collections::BTreeMap;
use std::path::Path;

use super::prose::{self, TextLine, WordCount};
use super::source::Source;
use super::type_names::{SHARED_PERCENT, TypeTable};
use super::{Finding, banned_words, doc_lines};

/// Directories and pages that are still to be rewritten.
const UNFINISHED: &[&str] = &[];

/// Pages about people, which need these words.
const ABOUT_PEOPLE: &[&str] = &["CODE_OF_CONDUCT.md"];

/// What is counted over the whole repository.
#[derive(Default)]
pub(super) struct Vocabulary {
    words: BTreeMap<String, WordCount>,
    people: Vec<(String, Vec<TextLine>)>,
    types: TypeTable,
    short_docs: BTreeMap<String, usize>,
    banned: BTreeMap<String, usize>,
    findings: Vec<Finding>,
}

impl Vocabulary {
    pub(super) fn add_rust(&mut self, source: &Source) {
        let area = area(&source.path);
        // Tests of the rules quote what they refuse.
        let own = source.is_in("xtask/src/tidy");
        let lines = prose::lines_of_rust(source);
        self.add_lines(&source.path, lines);
        self.types.add(source);
        let docs =
            if is_test_file(&source.path) { Vec::new() } else { doc_lines::findings(source) };
        let banned = if own { Vec::new() } else { banned_words::findings(source) };
        *self.short_docs.entry(area.clone()).or_default() += docs.len();
        *self.banned.entry(area).or_default() += banned.len();
        self.findings.extend(docs.into_iter().chain(banned));
    }

    pub(super) fn add_markdown(&mut self, path: &str, text: &str) {
        self.add_lines(path, prose::lines_of_markdown(text));
        let banned = banned_words::findings_of_markdown(path, text);
        *self.banned.entry(area(path)).or_default() += banned.len();
        self.findings.extend(banned);
    }

    fn add_lines(&mut self, path: &str, lines: Vec<TextLine>) {
        if ABOUT_PEOPLE.contains(&path) {
            return;
        }
        self.words.entry(area(path)).or_default().add(prose::count(&lines));
        self.people.push((path.to_owned(), lines));
    }

    /// What is wrong where the rules hold.
    pub(super) fn findings(self) -> Vec<Finding> {
        self.findings_outside(UNFINISHED)
    }

    /// Findings outside of the `unfinished` directories and pages.
    fn findings_outside(self, unfinished: &[&str]) -> Vec<Finding> {
        let is_held = |path: &str| !unfinished.iter().any(|part| Path::new(path).starts_with(part));
        let held_crate = |owner: &str| is_held(&format!("crates/{owner}"));
        let mut findings = self.types.findings(held_crate);
        findings.extend(self.findings.into_iter().filter(|finding| is_held(&finding.path)));
        for (path, lines) in self.people.iter().filter(|(path, _)| is_held(path)) {
            let area = area(path);
            if self.words.get(&area).is_some_and(|count| count.is_too_much()) {
                findings.extend(prose::findings(path, lines));
            }
        }
        let (names, shared) = self.types.across_crates();
        if unfinished.is_empty() && shared * 100 > names * SHARED_PERCENT {
            let message = format!("{shared} of {names} type names are used by several crates");
            findings.push(Finding { path: "crates".to_owned(), line: 1, message });
        }
        findings
    }

    /// The counts, one line for each area.
    pub(super) fn print(&self) {
        println!("{:<22} {:>8} {:>8} {:>6} {:>7}", "", "who/1000", "words", "docs<4", "banned");
        let mut all = WordCount::default();
        for (area, count) in &self.words {
            all.add(*count);
            let of = |table: &BTreeMap<String, usize>| table.get(area).copied().unwrap_or(0);
            let (docs, banned) = (of(&self.short_docs), of(&self.banned));
            let share = count.per_thousand();
            println!("{area:<22} {share:>8.2} {:>8} {docs:>6} {banned:>7}", count.words);
        }
        let sum = |table: &BTreeMap<String, usize>| table.values().sum::<usize>();
        let (docs, banned) = (sum(&self.short_docs), sum(&self.banned));
        println!(
            "{:<22} {:>8.2} {:>8} {docs:>6} {banned:>7}",
            "all",
            all.per_thousand(),
            all.words
        );
        let (types, shared) = self.types.shared();
        println!("types that share their name: {shared} of {types}, {} %", percent(shared, types));
        let (names, across) = self.types.across_crates();
        println!("names in several crates: {across} of {names}, {} %", percent(across, names));
        let twice = self.types.findings(|_| true).len();
        println!("public types named twice in a crate, or by a participle: {twice}");
        for (count, name) in self.types.most_shared(MOST_SHARED) {
            println!("{count:>4} {name}");
        }
        println!("{} crates declare types", self.types.crates().len());
    }
}

/// Names that are listed.
const MOST_SHARED: usize = 20;

fn percent(part: usize, whole: usize) -> usize {
    part * 100 / whole.max(1)
}

/// What is counted together: a crate, `docs`, or a page of the root.
fn area(path: &str) -> String {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(depth).collect::<Vec<_>>().join("/")
}

/// Tests say in their names what they show; their items need no documentation.
fn is_test_file(path: &str) -> bool {
    path.starts_with("e2e/") || path.contains("/tests/") || path.ends_with("_tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_crates_directories_and_pages() {
        assert_eq!(area("crates/sys/src/lib.rs"), "crates/sys");
        assert_eq!(area("docs/ssh.md"), "docs");
        assert_eq!(area("README.md"), "README.md");
    }

    #[test]
    fn held_pages_are_judged_and_unfinished_ones_are_not() {
        let mut vocabulary = Vocabulary::default();
        vocabulary.add_markdown("README.md", "somebody knocks with a knock\n");
        vocabulary.add_markdown("docs/ssh.md", "somebody knocks with a knock\n");
        let found = vocabulary.findings_outside(&["docs"]);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|finding| finding.path == "README.md"));
    }
}
