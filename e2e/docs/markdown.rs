//! Reads the code blocks of a Markdown page, and the set-up that its comments hold.
//!
//! It knows fences and comments that begin with `<!-- setup:`; everything else of Markdown is text.

/// What a page tells its runner, in the order of the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Shell lines of a comment, which readers of the page do not see.
    Setup(Code),
    /// A code block and what its info string says.
    Block(Kind, Code),
}

/// Text of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Code {
    /// The line of the page on which it begins, counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// What the info string of a fence says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `sh`: run, and must succeed.
    Run,
    /// `sh follow`: each command goes on until it is stopped, and must not fail before.
    Follow,
    /// `sh terminal`: run at a terminal; the question of a command is answered with `y`.
    Terminal,
    /// `sh internet` and the like: not run.
    Skipped(Reason),
    /// `text`: output, or a synopsis. Its flags must exist.
    Text,
    /// `toml`: a config.toml of msb.
    Config,
    /// `toml cargo`: part of a Cargo.toml.
    Manifest,
    /// `json`.
    Json,
    /// `yaml`.
    Yaml,
    /// `rust`: lines of a file that is compiled.
    Rust,
}

/// Why a block is not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It reaches hosts of the internet.
    Internet,
    /// It needs hardware virtualisation and a guest kernel.
    Kvm,
    /// It builds or tests this repository, as the other stages of CI do.
    Build,
}

impl Kind {
    fn parse(info: &str) -> Option<Self> {
        Some(match info {
            "sh" => Self::Run,
            "sh follow" => Self::Follow,
            "sh terminal" => Self::Terminal,
            "sh internet" => Self::Skipped(Reason::Internet),
            "sh kvm" => Self::Skipped(Reason::Kvm),
            "sh build" => Self::Skipped(Reason::Build),
            "text" => Self::Text,
            "toml" => Self::Config,
            "toml cargo" => Self::Manifest,
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            "rust" => Self::Rust,
            _ => return None,
        })
    }
}

const SETUP: &str = "<!-- setup:";

/// The parts of a page; an error names the line that is wrong.
pub(crate) fn parts(page: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if let Some(first) = line.strip_prefix(SETUP) {
            let mut text = String::new();
            let mut rest = first;
            while !rest.trim_end().ends_with("-->") {
                text.push_str(rest);
                text.push('\n');
                let Some((line, _)) = lines.next() else {
                    return Err(format!("line {number}: a comment without an end"));
                };
                rest = line;
            }
            text.push_str(rest.trim_end().trim_end_matches("-->").trim_end());
            // The shell lines of a long comment begin below its first line.
            let line = if first.trim().is_empty() { number + 1 } else { number };
            parts.push(Part::Setup(Code { line, text: text.trim().to_owned() }));
        } else if let Some(info) = line.trim_start().strip_prefix("```") {
            let Some(kind) = Kind::parse(info.trim()) else {
                return Err(format!("line {number}: a code block cannot be `{info}`"));
            };
            // A block in a list is indented as a whole.
            let indent = line.len() - line.trim_start().len();
            let mut text = String::new();
            loop {
                let Some((line, _)) = lines.next() else {
                    return Err(format!("line {number}: a code block without an end"));
                };
                if line.trim() == "```" {
                    break;
                }
                text.push_str(line.get(indent..).unwrap_or_default());
                text.push('\n');
            }
            parts.push(Part::Block(kind, Code { line: number + 1, text }));
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(line: usize, text: &str) -> Code {
        Code { line, text: text.to_owned() }
    }

    #[test]
    fn blocks_and_set_up_come_in_the_order_of_the_page() {
        let page = "\
# Title
<!-- setup: touch a -->
```sh
msb ls   # all

msb df
```
text `code`
<!-- setup:
touch b
touch c
-->
- item

  ```sh follow
  msb events -f
  ```
";

        assert_eq!(
            parts(page),
            Ok(vec![
                Part::Setup(code(2, "touch a")),
                Part::Block(Kind::Run, code(4, "msb ls   # all\n\nmsb df\n")),
                Part::Setup(code(10, "touch b\ntouch c")),
                Part::Block(Kind::Follow, code(16, "msb events -f\n")),
            ])
        );
    }

    #[test]
    fn a_fence_without_a_known_info_string_is_an_error_with_its_line() {
        for info in ["", "bash", "sh sometimes"] {
            let error = parts(&format!("one\n```{info}\nmsb ls\n```\n")).expect_err("no kind");
            assert!(error.starts_with("line 2: "), "{error}");
        }
    }

    #[test]
    fn an_open_block_or_comment_is_an_error() {
        assert!(parts("```sh\nmsb ls\n").is_err());
        assert!(parts("<!-- setup: touch a\n").is_err());
    }

    #[test]
    fn other_comments_are_text() {
        assert_eq!(parts("<!-- note -->\n"), Ok(vec![]));
    }
}
