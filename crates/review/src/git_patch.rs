//! Writes changes as sections of a git patch, in the form of `git diff --binary`.
//!
//! A section is exact and safe on a terminal at once: names are quoted as git quotes them, and
//! content with control characters is written as a binary patch, which is ASCII.

use crate::dir_fd::DirFd;
use crate::patch;
use crate::workspace::TreePair;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use msb_api::{Change, GitGap, GitPatch, Item, ItemKind, RelPath, What, unescape_bytes};
use msb_spec::encoding::hex;
use msb_spec::{Error, Result};
use sha1::{Digest, Sha1};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

/// Longest file that a section is written for, in bytes: git keeps whole files in memory, too.
const FILE_LIMIT: u64 = 64 << 20;
/// Most bytes of all files together that are read for the sections of one patch.
const TOTAL_LIMIT: u64 = 256 << 20;
/// Longest text that gets a line diff, in bytes. Longer files are written as binary patches.
const TEXT_LIMIT: usize = 4 << 20;

/// One side of a section: what git stores for a path.
#[derive(Debug, PartialEq, Eq)]
struct GitBlob {
    mode: GitMode,
    content: Vec<u8>,
}

/// The file modes that git knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitMode {
    Regular,
    Executable,
    Symlink,
}

impl GitMode {
    /// The mode of a file; git looks at the owner's execute bit alone.
    fn of_file(mode: u32) -> Self {
        if mode & 0o100 == 0 { Self::Regular } else { Self::Executable }
    }

    fn digits(self) -> &'static str {
        match self {
            Self::Regular => "100644",
            Self::Executable => "100755",
            Self::Symlink => "120000",
        }
    }
}

impl TreePair<'_> {
    /// Sets the git patch of each change.
    pub(crate) fn add_git_patches(&self, changes: &mut [Change]) -> Result<()> {
        let renamed = changes.iter().filter(|change| change.renamed_to.is_some());
        let old_modes: HashMap<RelPath, u32> = renamed
            .filter_map(|change| Some((change.path.clone(), change.before.as_ref()?.mode)))
            .collect();
        let mut left = TOTAL_LIMIT;
        for change in changes {
            change.git = Some(match rename_section(change, &old_modes) {
                Some(section) => GitPatch::Sections(section),
                None => match self.sections(change, &mut left)? {
                    Ok(text) => GitPatch::Sections(text),
                    Err(gap) => GitPatch::Missing(gap),
                },
            });
        }
        Ok(())
    }

    /// The sections of a change that is not a rename: two if a link replaces a file.
    fn sections(
        &self,
        change: &Change,
        left: &mut u64,
    ) -> Result<std::result::Result<String, GitGap>> {
        let items = [&change.before, &change.after];
        let is_link =
            |item: &&Option<Item>| item.as_ref().is_some_and(|item| item.kind == ItemKind::Symlink);
        if is_refused(&change.path, items.iter().any(is_link)) {
            return Ok(Err(GitGap::Refused));
        }
        if change.what == What::Special {
            return Ok(Err(GitGap::Special));
        }
        let before = match self.blob(self.host, &change.path, change.before.as_ref(), left)? {
            Ok(blob) => blob,
            Err(gap) => return Ok(Err(gap)),
        };
        let after = match self.blob(self.upper, &change.path, change.after.as_ref(), left)? {
            Ok(blob) => blob,
            Err(gap) => return Ok(Err(gap)),
        };
        let is_link = |blob: &GitBlob| blob.mode == GitMode::Symlink;
        Ok(match (&before, &after) {
            (None, None) => Err(GitGap::Directory),
            (Some(one), Some(other)) if one == other => Err(GitGap::Mode),
            (Some(one), Some(other)) if is_link(one) != is_link(other) => {
                let deleted = section(&change.path, before.as_ref(), None);
                Ok(deleted + &section(&change.path, None, after.as_ref()))
            }
            _ => Ok(section(&change.path, before.as_ref(), after.as_ref())),
        })
    }

    /// What git would store for one side of a change; none for a directory or for nothing.
    fn blob(
        &self,
        root: &DirFd,
        path: &RelPath,
        item: Option<&Item>,
        left: &mut u64,
    ) -> Result<std::result::Result<Option<GitBlob>, GitGap>> {
        let Some(item) = item else { return Ok(Ok(None)) };
        match item.kind {
            ItemKind::Directory => Ok(Ok(None)),
            ItemKind::Special => Ok(Err(GitGap::Special)),
            ItemKind::Symlink => {
                let content = item.target.as_deref().and_then(unescape_bytes).unwrap_or_default();
                Ok(Ok(Some(GitBlob { mode: GitMode::Symlink, content })))
            }
            ItemKind::File => {
                // Removed meanwhile.
                let Some(file) = Self::file(root, path)? else { return Ok(Ok(None)) };
                let about = |error| Error::host(format!("cannot read `{path}`"), error);
                let limit = FILE_LIMIT.min(*left);
                if file.metadata().map_err(about)?.len() > limit {
                    return Ok(Err(GitGap::TooLarge));
                }
                let mut content = Vec::new();
                file.take(limit + 1).read_to_end(&mut content).map_err(about)?;
                let Some(rest) = left.checked_sub(content.len() as u64) else {
                    return Ok(Err(GitGap::TooLarge));
                };
                *left = rest;
                Ok(Ok(Some(GitBlob { mode: GitMode::of_file(item.mode), content })))
            }
        }
    }
}

/// The section of a rename, at its new path; empty at the old one. None if it is no rename, or git
/// takes only one of the two paths.
fn rename_section(change: &Change, old_modes: &HashMap<RelPath, u32>) -> Option<String> {
    let other = change.renamed_from.as_ref().or(change.renamed_to.as_ref())?;
    if is_refused(&change.path, false) || is_refused(other, false) {
        return None;
    }
    let Some(from) = &change.renamed_from else { return Some(String::new()) };
    let (before, after) = (*old_modes.get(from)?, change.after.as_ref()?.mode);
    let (before, after) = (GitMode::of_file(before), GitMode::of_file(after));
    let to = &change.path;
    let mut text = format!("diff --git {} {}\n", quoted("a/", from), quoted("b/", to));
    if before != after {
        text += &format!("old mode {}\nnew mode {}\n", before.digits(), after.digits());
    }
    text += "similarity index 100%\n";
    text += &format!("rename from {}\nrename to {}\n", quoted("", from), quoted("", to));
    Some(text)
}

/// Everything that git prints for one path; one side may be missing.
fn section(path: &RelPath, before: Option<&GitBlob>, after: Option<&GitBlob>) -> String {
    let (old_name, new_name) = (quoted("a/", path), quoted("b/", path));
    let mut text = format!("diff --git {old_name} {new_name}\n");
    let mut same_mode = String::new();
    match (before.map(|blob| blob.mode), after.map(|blob| blob.mode)) {
        (None, Some(mode)) => text += &format!("new file mode {}\n", mode.digits()),
        (Some(mode), None) => text += &format!("deleted file mode {}\n", mode.digits()),
        (Some(old), Some(new)) if old != new => {
            text += &format!("old mode {}\nnew mode {}\n", old.digits(), new.digits());
        }
        (Some(mode), Some(_)) => same_mode = format!(" {}", mode.digits()),
        (None, None) => {}
    }
    let content = |blob: Option<&GitBlob>| blob.map_or(Vec::new(), |blob| blob.content.clone());
    let (old, new) = (content(before), content(after));
    if before.is_some() && after.is_some() && old == new {
        return text;
    }
    text += &format!("index {}..{}{same_mode}\n", object_name(before), object_name(after));
    if old == new {
        return text;
    }
    match exact_lines(&old, &new) {
        Some(lines) => {
            let side = |blob: Option<&GitBlob>, name: &str| match blob {
                // As git does it: a tab ends a name with spaces.
                Some(_) if name.contains(' ') => format!("{name}\t"),
                Some(_) => name.to_owned(),
                None => "/dev/null".to_owned(),
            };
            text += &format!("--- {}\n+++ {}\n", side(before, &old_name), side(after, &new_name));
            text += &lines;
        }
        None => {
            text += "GIT binary patch\n";
            literal(&mut text, &new);
            literal(&mut text, &old);
        }
    }
    text
}

/// The line diff, if it is exactly what differs and safe on a terminal.
fn exact_lines(before: &[u8], after: &[u8]) -> Option<String> {
    let is_text = |content: &[u8]| content.len() <= TEXT_LIMIT && !content.contains(&0);
    if !is_text(before) || !is_text(after) {
        return None;
    }
    let (patch, is_exact) = patch::unified(before, after);
    is_exact.then_some(patch.text)
}

/// The name that git gives a blob; zeros for no blob.
fn object_name(blob: Option<&GitBlob>) -> String {
    let Some(blob) = blob else { return "0".repeat(40) };
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", blob.content.len()));
    hash.update(&blob.content);
    hex(hash.finalize())
}

/// Writes content as one hunk of a binary patch: deflated, in lines of base 85.
fn literal(text: &mut String, content: &[u8]) {
    /// Bytes in a line, whose first letter is their number.
    const LINE: usize = 52;
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let written = encoder.write_all(content).and_then(|()| encoder.finish());
    let deflated = written.unwrap_or_default();
    *text += &format!("literal {}\n", content.len());
    for line in deflated.chunks(LINE) {
        let length = line.len() as u8;
        let letter = if length <= 26 { b'A' + length - 1 } else { b'a' + length - 27 };
        text.push(char::from(letter));
        for word in line.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            base85(text, u32::from_be_bytes(bytes));
        }
        text.push('\n');
    }
    text.push('\n');
}

/// Writes four bytes as five letters of git's base 85.
fn base85(text: &mut String, mut word: u32) {
    const LETTERS: &[u8; 85] =
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
    let mut five = [0; 5];
    for letter in five.iter_mut().rev() {
        *letter = LETTERS[(word % 85) as usize];
        word /= 85;
    }
    text.extend(five.map(char::from));
}

/// A path as git writes it: in quotes, with octal escapes, if it has anything but plain letters.
fn quoted(side: &str, path: &RelPath) -> String {
    let bytes = path.as_path().as_os_str().as_bytes();
    let is_plain = |text: &str| {
        let disturbs = |c: char| msb_spec::disturbs(c) || matches!(c, '"' | '\\');
        // Git ends an unquoted name at some of the spaces.
        !text.contains(disturbs) && text.trim() == text && !text.contains(" b/")
    };
    match std::str::from_utf8(bytes) {
        Ok(text) if is_plain(text) => format!("{side}{text}"),
        _ => {
            let mut name = format!("\"{side}");
            for byte in bytes {
                match byte {
                    b'"' | b'\\' => name.extend(['\\', char::from(*byte)]),
                    b' '..=b'~' => name.push(char::from(*byte)),
                    _ => name += &format!("\\{byte:03o}"),
                }
            }
            name.push('"');
            name
        }
    }
}

/// Whether `git apply` takes no patch with this path: it leads into a repository's own directory,
/// by a name that some file system takes for `.git`, or makes a link of `.gitmodules`.
fn is_refused(path: &RelPath, is_link: bool) -> bool {
    let bytes = path.as_path().as_os_str().as_bytes();
    bytes.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| {
        let part = part.split(|byte| *byte == b':').next().unwrap_or_default();
        let end = part.iter().rposition(|byte| !matches!(byte, b'.' | b' '));
        let name = part[..end.map_or(0, |end| end + 1)].to_ascii_lowercase();
        let is_settings = name == b".gitmodules" || name.starts_with(b"gitmod~");
        matches!(&*name, b".git" | b"git~1") || is_link && is_settings
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(bytes: &[u8]) -> RelPath {
        RelPath::below(None, bytes)
    }

    fn blob(content: &[u8]) -> GitBlob {
        GitBlob { mode: GitMode::Regular, content: content.to_vec() }
    }

    #[test]
    fn a_text_is_written_as_git_writes_it() {
        let made = section(&path(b"a b"), Some(&blob(b"hello\n")), Some(&blob(b"hello\r\nx")));
        let expected = "diff --git a/a b b/a b\n\
            index ce013625030ba8dba906f756967f9e9ca394464a..\
            d38ed6cd8c00ba15d9ac38ab0ae10b4bb20d64e3 100644\n\
            --- a/a b\t\n+++ b/a b\t\n@@ -1,1 +1,2 @@\n-hello\n+hello\r\n+x\n\
            \\ No newline at end of file\n";
        let is_name = |letter: char| letter.is_ascii_hexdigit();
        let names = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("index ")).unwrap().to_owned();
            let (old, new) = line[6..].split_once("..").unwrap();
            (old.to_owned(), new.chars().take_while(|c| is_name(*c)).count())
        };
        assert_eq!(names(&made), ("ce013625030ba8dba906f756967f9e9ca394464a".to_owned(), 40));
        let without_index = |text: &str| {
            let kept = text.split_inclusive('\n').filter(|line| !line.starts_with("index "));
            kept.collect::<String>()
        };
        assert_eq!(without_index(&made), without_index(expected));
    }

    #[test]
    fn what_is_no_plain_text_is_written_in_base_85() {
        let made = section(&path(b"x"), None, Some(&blob(b"\x1b[2J\n")));
        assert!(made.contains("GIT binary patch\nliteral 5\n"), "{made}");
        assert!(made.contains("\n\nliteral 0\nH") && made.ends_with("\n\n"), "{made}");
        assert!(made.chars().all(|c| c == '\n' || !msb_spec::disturbs(c)), "{made:?}");
    }

    #[test]
    fn names_are_quoted_as_git_quotes_them() {
        let cases: [(&[u8], &str); 7] = [
            (b"a b", "a/a b"),
            ("ä".as_bytes(), "a/ä"),
            (b"a\nb", "\"a/a\\012b\""),
            (b"q\"\\", "\"a/q\\\"\\\\\""),
            (b"\xff", "\"a/\\377\""),
            (b"x b/x", "\"a/x b/x\""),
            (b"end ", "\"a/end \""),
        ];
        for (name, expected) in cases {
            assert_eq!(quoted("a/", &path(name)), expected);
        }
    }

    #[test]
    fn paths_that_git_refuses_are_known() {
        for name in [&b".git/config"[..], b"a/.GIT", b"git~1/x", b"x/.git. /y", b".git::$INDEX"] {
            assert!(is_refused(&path(name), false), "{}", path(name));
        }
        assert!(is_refused(&path(b".gitmodules"), true));
        for name in [&b".gitignore"[..], b"a.git", b"git", b".gitmodules", b".github/x"] {
            assert!(!is_refused(&path(name), false), "{}", path(name));
        }
    }
}
