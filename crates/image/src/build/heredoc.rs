//! Here-documents: finds them and takes them out of the text.
//!
//! The parser knows a here-document only where it is the first word of a RUN. So they are taken
//! out before: the parser gets a text of the same length in which their bodies are blank and
//! their words are plain, so that every place in it is the same place in the file.

use super::words::split;
use std::ops::Range;

/// A document that stands after its instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    /// What ends it, without quotes; a file made of it is called so.
    pub(crate) name: String,
    /// Whether variables in it are replaced.
    pub(crate) expand: bool,
    /// The lines between, without leading tabs if `<<-` asked so.
    pub(crate) body: String,
    /// The same as they are in the file, with the line that ends them.
    pub(crate) raw: String,
}

/// A text without its here-documents.
#[derive(Debug)]
pub(crate) struct Taken {
    /// As long as the text was.
    pub(crate) text: String,
    /// For every instruction that has any, where it lies in the text.
    pub(crate) documents: Vec<(Range<usize>, Vec<Document>)>,
}

/// A document that has no end: its name and the place of its instruction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Endless {
    pub(crate) name: String,
    pub(crate) at: usize,
}

/// Takes the here-documents out of a Containerfile.
pub(crate) fn take(text: &str, escape: char) -> Result<Taken, Endless> {
    let mut out = text.as_bytes().to_vec();
    let mut documents = Vec::new();
    let mut lines = Lines { text, at: 0 };
    while let Some(start) = lines.skip_to_instruction() {
        let logical = lines.instruction(escape);
        let end = lines.at;
        let words = document_words(&logical, escape);
        if words.is_empty() {
            continue;
        }
        let mut found = Vec::new();
        for word in &words {
            let (body, raw) = lines
                .document(&word.name, word.tabs)
                .ok_or_else(|| Endless { name: word.name.clone(), at: start })?;
            found.push(Document { name: word.name.clone(), expand: word.expand, body, raw });
        }
        // `<<` is two bytes, so that nothing moves.
        let mut from = start;
        for word in words {
            if let Some(at) = text[from..end].find(&word.text) {
                out[from + at..from + at + 2].copy_from_slice(b"__");
                from += at + word.text.len();
            }
        }
        let blank = |byte: &mut u8| {
            if !matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        };
        out[end..lines.at].iter_mut().for_each(blank);
        documents.push((start..end, found));
    }
    let text = String::from_utf8(out).expect("whole lines were blanked and ascii replaced ascii");
    Ok(Taken { text, documents })
}

/// A word that begins a here-document.
struct Word {
    text: String,
    name: String,
    expand: bool,
    tabs: bool,
}

/// The words of an instruction that begin here-documents, if it is one that may have them.
fn document_words(logical: &str, escape: char) -> Vec<Word> {
    let mut arguments = logical.trim_start();
    loop {
        let (keyword, rest) = arguments.split_once(char::is_whitespace).unwrap_or((arguments, ""));
        arguments = rest.trim_start();
        match keyword.to_ascii_uppercase().as_str() {
            "ONBUILD" => {}
            "RUN" | "COPY" | "ADD" => break,
            _ => return Vec::new(),
        }
    }
    if !arguments.contains("<<") {
        return Vec::new();
    }
    let words = split(arguments, escape);
    let first = words.iter().find(|word| !word.starts_with("--"));
    // The exec form is not for a shell to read.
    if first.is_some_and(|word| word.starts_with('[') && !word.starts_with("[[")) {
        return Vec::new();
    }
    words.into_iter().filter_map(document_word).collect()
}

fn document_word(text: &str) -> Option<Word> {
    let rest =
        text.trim_start_matches(|letter: char| letter.is_ascii_digit()).strip_prefix("<<")?;
    let (tabs, quoted) = match rest.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    if quoted.is_empty() || quoted.contains('<') {
        return None;
    }
    let mut name = String::new();
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' | '\'' => {}
            '\\' => name.extend(letters.next()),
            other => name.push(other),
        }
    }
    let expand = name == quoted;
    (!name.is_empty()).then(|| Word { text: format!("<<{rest}"), name, expand, tabs })
}

/// Reads a text line by line.
struct Lines<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let line = rest.split_inclusive('\n').next()?;
        self.at += line.len();
        Some(line)
    }

    /// Skips empty lines and comments; tells where the next instruction begins.
    fn skip_to_instruction(&mut self) -> Option<usize> {
        loop {
            let start = self.at;
            let line = self.next()?;
            if !is_skipped(line) {
                self.at = start;
                return Some(start);
            }
        }
    }

    /// One instruction with its continued lines, as one line.
    fn instruction(&mut self, escape: char) -> String {
        let mut logical = String::new();
        while let Some(line) = self.next() {
            if !logical.is_empty() && is_skipped(line) {
                continue;
            }
            match continued(line, escape) {
                Some(part) => logical.push_str(part),
                None => {
                    logical.push_str(line.trim_end_matches(['\n', '\r']));
                    break;
                }
            }
        }
        logical
    }

    /// The lines up to the one that ends a document; none if the file ends first.
    fn document(&mut self, name: &str, tabs: bool) -> Option<(String, String)> {
        let (mut body, mut raw) = (String::new(), String::new());
        loop {
            let line = self.next()?;
            raw.push_str(line);
            let text = if tabs { line.trim_start_matches('\t') } else { line };
            if text.trim_end_matches(['\n', '\r']) == name {
                return Some((body, raw));
            }
            body.push_str(text);
        }
    }
}

/// A comment, or nothing at all.
pub(crate) fn is_skipped(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// What stands before the escape at the end of a line that goes on in the next.
pub(crate) fn continued(line: &str, escape: char) -> Option<&str> {
    line.trim_end_matches(['\n', '\r']).trim_end_matches([' ', '\t']).strip_suffix(escape)
}

/// Joins continued lines; comments and empty lines among them are dropped.
pub(crate) fn joined(raw: &str, escape: char) -> String {
    let mut out = String::new();
    for (number, line) in raw.split_inclusive('\n').enumerate() {
        if number > 0 && is_skipped(line) {
            continue;
        }
        out.push_str(continued(line, escape).unwrap_or(line.trim_end_matches(['\n', '\r'])));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(text: &str) -> Vec<Document> {
        let taken = take(text, '\\').unwrap();
        assert_eq!(taken.text.len(), text.len());
        taken.documents.into_iter().flat_map(|(_, documents)| documents).collect()
    }

    #[test]
    fn documents_are_taken_wherever_they_stand() {
        let text = "FROM a\nRUN cat <<EOF > /x && \\\n  cat <<-'B C' \nFROM b\nEOF\n\
        \tindented\n\tB C\nRUN x\n";
        let found = documents(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), found[0].body.as_str()), ("EOF", "FROM b\n"));
        assert!(found[0].expand);
        assert_eq!((found[1].name.as_str(), found[1].body.as_str()), ("B C", "indented\n"));
        assert_eq!(found[1].raw, "\tindented\n\tB C\n");
        assert!(!found[1].expand);
        let taken = take(text, '\\').unwrap().text;
        assert!(taken.contains("RUN cat __EOF > /x"), "{taken}");
        assert!(taken.ends_with("\nRUN x\n") && !taken.contains("FROM b"), "{taken}");
    }

    #[test]
    fn what_only_looks_like_a_document_is_none() {
        for text in [
            "RUN echo $((1<<2))\n",
            "RUN cat <<< word\n",
            "RUN echo \"<<EOF\"\n",
            "RUN [\"sh\", \"-c\", \"cat <<EOF\"]\n",
            "ENV a=<<EOF\n",
            "# RUN cat <<EOF\n",
            "RUN echo 1 << 2\n",
        ] {
            assert_eq!(documents(text), [], "{text}");
        }
    }

    #[test]
    fn a_document_without_an_end_is_named() {
        let error = take("FROM a\nCOPY <<EOF /x\nhi\n", '\\').unwrap_err();
        assert_eq!(error, Endless { name: "EOF".to_owned(), at: 7 });
    }

    #[test]
    fn an_instruction_in_a_body_is_text() {
        let found = documents("COPY <<a <<b /d/\nRUN cat <<c\na\nx\nb\nRUN y\n");
        assert_eq!(found[0].body, "RUN cat <<c\n");
        assert_eq!(found[1].body, "x\n");
    }

    #[test]
    fn lines_are_joined_without_the_comments_between() {
        assert_eq!(joined("a && \\\n# no\n\n  b \\\n c", '\\'), "a &&   b  c");
        assert_eq!(joined("a", '\\'), "a");
    }
}
