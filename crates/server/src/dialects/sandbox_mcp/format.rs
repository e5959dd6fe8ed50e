//! Text formats of this dialect: sizes, durations, truncated output and shell quoting.

use std::time::Duration;

/// Most characters of a stream in a result.
const MOST_CHARACTERS: usize = 50_000;
/// Most bytes of a stream that are kept; the rest is counted.
pub(super) const MOST_BYTES: usize = MOST_CHARACTERS * 4;

/// Formats a number of bytes.
pub(super) fn size(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    let bytes = bytes as f64;
    match bytes {
        _ if bytes < KIB => format!("{bytes}B"),
        _ if bytes < KIB * KIB => format!("{:.1}KB", bytes / KIB),
        _ if bytes < KIB * KIB * KIB => format!("{:.1}MB", bytes / KIB / KIB),
        _ => format!("{:.1}GB", bytes / KIB / KIB / KIB),
    }
}

/// Milliseconds with one decimal place, for commands.
pub(super) fn exact(taken: Duration) -> String {
    format!("({:.1}ms)", taken.as_secs_f64() * 1000.0)
}

/// Whole milliseconds, for everything else.
pub(super) fn rough(taken: Duration) -> String {
    format!("{:.0}ms", taken.as_secs_f64() * 1000.0)
}

/// Output as text, truncated if it is long. `total` is the length before truncation.
pub(super) fn cut(bytes: &[u8], total: u64) -> String {
    let text = String::from_utf8_lossy(bytes);
    let end = text.char_indices().nth(MOST_CHARACTERS).map(|(at, _)| at);
    match end {
        None if total <= bytes.len() as u64 => text.into_owned(),
        end => {
            let kept = &text[..end.unwrap_or(text.len())];
            let (all, shown) = (size(total), size(MOST_CHARACTERS as u64));
            format!("{kept}\n[truncated — {all} total, showing first {shown}]")
        }
    }
}

/// Quotes text as one word of a shell.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Removes one line feed at the end.
pub(super) fn chomped(text: &str) -> &str {
    text.strip_suffix('\n').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_original() {
        let all = [5, 5530, 10240, 108_894, 50_000, 1 << 20, 3 << 30].map(size);
        assert_eq!(all, ["5B", "5.4KB", "10.0KB", "106.3KB", "48.8KB", "1.0MB", "3.0GB"]);
    }

    #[test]
    fn long_output_is_cut_and_says_so() {
        assert_eq!(cut(b"abc", 3), "abc");
        let long = vec![b'x'; 108_894];
        let text = cut(&long, long.len() as u64);
        let (kept, rest) = text.split_once('\n').unwrap();
        assert_eq!(kept.len(), 50_000);
        assert_eq!(rest, "[truncated — 106.3KB total, showing first 48.8KB]");
        // Characters are counted, not bytes, and none is split.
        let letters = "ä".repeat(50_000);
        assert_eq!(cut(letters.as_bytes(), 100_000), letters);
        assert!(cut(&[0xff, b'a'], 2).ends_with('a'));
    }

    #[test]
    fn a_quoted_word_is_one_word() {
        assert_eq!(quoted("a'b $x"), r"'a'\''b $x'");
    }
}
