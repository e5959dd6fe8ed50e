//! Finds here-documents and removes them from the text.
//!
//! The parser supports a here-document only as first word of a RUN. So the parser gets a text of
//! the same length, with blank bodies and plain words. Byte offsets in it are those of the file.

use super::lexer::split;
use std::ops::Range;

/// A here-document after its instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heredoc {
    /// Delimiter without quotes; also the name of a file that is copied from it.
    pub(crate) name: String,
    /// Whether variables in the body are expanded.
    pub(crate) expand: bool,
    /// The body, without leading tabs after `<<-`.
    pub(crate) body: String,
    /// The lines as in the file, with the delimiter line.
    pub(crate) raw: String,
}

/// A text without its here-documents.
#[derive(Debug)]
pub(crate) struct StrippedText {
    /// The text, as long as the original.
    pub(crate) text: String,
    /// Byte range of each instruction with here-documents.
    pub(crate) documents: Vec<(Range<usize>, Vec<Heredoc>)>,
}

/// A here-document without an end: its delimiter, and the offset of its instruction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnterminatedHeredoc {
    pub(crate) name: String,
    pub(crate) at: usize,
}

/// Removes the here-documents of a Containerfile.
pub(crate) fn strip(text: &str, escape: char) -> Result<StrippedText, UnterminatedHeredoc> {
    let mut out = text.as_bytes().to_vec();
    let mut documents = Vec::new();
    let mut lines = LineReader { text, at: 0 };
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
                .ok_or_else(|| UnterminatedHeredoc { name: word.name.clone(), at: start })?;
            found.push(Heredoc { name: word.name.clone(), expand: word.expand, body, raw });
        }
        // `<<` becomes `__`, so that offsets stay the same.
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
    Ok(StrippedText { text, documents })
}

/// A word that starts a here-document.
struct HeredocWord {
    text: String,
    name: String,
    expand: bool,
    tabs: bool,
}

/// The words that start here-documents, in RUN, COPY, ADD or ONBUILD.
fn document_words(logical: &str, escape: char) -> Vec<HeredocWord> {
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
    // The exec form is not read by a shell.
    if first.is_some_and(|word| word.starts_with('[') && !word.starts_with("[[")) {
        return Vec::new();
    }
    words.into_iter().filter_map(document_word).collect()
}

fn document_word(text: &str) -> Option<HeredocWord> {
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
    (!name.is_empty()).then(|| HeredocWord { text: format!("<<{rest}"), name, expand, tabs })
}

/// Reads a text line by line.
struct LineReader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> LineReader<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let line = rest.split_inclusive('\n').next()?;
        self.at += line.len();
        Some(line)
    }

    /// Skips empty lines and comments. Returns the offset of the next instruction.
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

    /// Reads an instruction with its continued lines, as one line.
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

    /// Reads a here-document up to its delimiter; none if the file ends first.
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

/// Whether a line is empty or a comment.
pub(crate) fn is_skipped(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// The text before the escape character of a continued line; none for other lines.
pub(crate) fn continued(line: &str, escape: char) -> Option<&str> {
    line.trim_end_matches(['\n', '\r']).trim_end_matches([' ', '\t']).strip_suffix(escape)
}

/// Joins continued lines, without the comments and empty lines between them.
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

    fn documents(text: &str) -> Vec<Heredoc> {
        let stripped = strip(text, '\\').unwrap();
        assert_eq!(stripped.text.len(), text.len());
        stripped.documents.into_iter().flat_map(|(_, documents)| documents).collect()
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
        let stripped = strip(text, '\\').unwrap().text;
        assert!(stripped.contains("RUN cat __EOF > /x"), "{stripped}");
        assert!(stripped.ends_with("\nRUN x\n") && !stripped.contains("FROM b"), "{stripped}");
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
        let error = strip("FROM a\nCOPY <<EOF /x\nhi\n", '\\').unwrap_err();
        assert_eq!(error, UnterminatedHeredoc { name: "EOF".to_owned(), at: 7 });
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
