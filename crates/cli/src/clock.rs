//! Times and durations as people read them. Every duration that is printed comes from here.

use msb_spec::clock::{now, read};
pub(crate) use msb_spec::clock::{now as now_ms, written};
use msb_spec::{Error, Result, Span};

/// How long ago a time in milliseconds since 1970 was, as [`whole_seconds`].
pub(crate) fn ago(ms: u64) -> String {
    whole_seconds(now().saturating_sub(ms))
}

/// A duration in milliseconds without fractions of a second: `0s`, `12s`, `3m20s`.
pub(crate) fn whole_seconds(ms: u64) -> String {
    match ms / 1000 {
        0 => "0s".to_owned(),
        seconds => duration(seconds * 1000),
    }
}

/// A duration in milliseconds in its two largest units: `250ms`, `1.2s`, `12s`, `3m20s`, `5h7m`,
/// `3d4h`. The second unit is left out if it is zero.
pub(crate) fn duration(ms: u64) -> String {
    let two = |unit: u64, letter: char, part: u64, small: char| match ms % unit / part {
        0 => format!("{}{letter}", ms / unit),
        rest => format!("{}{letter}{rest}{small}", ms / unit),
    };
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..10_000 => match ms % 1000 / 100 {
            0 => format!("{}s", ms / 1000),
            tenths => format!("{}.{tenths}s", ms / 1000),
        },
        10_000..60_000 => format!("{}s", ms / 1000),
        60_000..3_600_000 => two(60_000, 'm', 1000, 's'),
        3_600_000..86_400_000 => two(3_600_000, 'h', 60_000, 'm'),
        _ => two(86_400_000, 'd', 3_600_000, 'h'),
    }
}

/// Parses a length of time before now (`10m`), or a time (`2026-01-02T03:04:05Z`).
pub(crate) fn moment(text: &str) -> Result<u64> {
    if let Ok(span) = Span::parse(text) {
        return Ok(now().saturating_sub(u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX)));
    }
    read(text).and_then(|ms| u64::try_from(ms).ok()).ok_or_else(|| {
        Error::invalid(format!("not a time: `{}`", text))
            .hint("write it as `10m` (ago) or `2026-01-02T03:04:05Z`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_moment() {
        assert_eq!(moment("2000-02-29T12:34:56.789Z").unwrap(), 951_827_696_789);
        assert_eq!(moment("2000-02-29").unwrap(), 951_782_400_000);
        assert!(moment("1969-01-01").is_err());
    }

    #[test]
    fn a_duration_has_its_two_largest_units() {
        for (ms, text) in [
            (0, "0ms"),
            (250, "250ms"),
            (1234, "1.2s"),
            (2000, "2s"),
            (12_900, "12s"),
            (60_000, "1m"),
            (200_000, "3m20s"),
            (18_420_000, "5h7m"),
            (273_600_000, "3d4h"),
        ] {
            assert_eq!(duration(ms), text);
        }
        assert_eq!([whole_seconds(999), whole_seconds(1999)], ["0s", "1s"]);
    }

    #[test]
    fn nonsense_is_no_time() {
        for bad in ["", "yesterday", "2026-13-01", "2026-01-01T25:00:00Z", "1x"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}
