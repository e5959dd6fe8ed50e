//! RFC 3339 times in image configs.

use msb_spec::clock;

/// The current time, in seconds since 1970.
pub fn now() -> i64 {
    i64::try_from(clock::now_seconds()).unwrap_or(i64::MAX)
}

/// Formats seconds since 1970 as `2026-01-02T03:04:05Z`.
pub fn written(seconds: i64) -> String {
    clock::written_seconds(seconds.max(0))
}

/// Parses such a time to seconds since 1970; none if it is malformed.
pub fn read(text: &str) -> Option<i64> {
    i64::try_from(crate::pull::milliseconds(text)? / 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_they_are_read() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(written(seconds), text);
            assert_eq!(read(text), Some(seconds));
        }
    }
}
