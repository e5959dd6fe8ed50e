//! Times as people say them: how long ago.

use msb_spec::clock::{now, read};
pub(crate) use msb_spec::clock::{now as now_ms, written};
use msb_spec::{Error, Result, Span};

/// `3m`, `2h`, `5d`: how long ago, roughly.
pub(crate) fn ago(ms: u64) -> String {
    let seconds = now().saturating_sub(ms) / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
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
    fn nonsense_is_no_time() {
        for bad in ["", "yesterday", "2026-13-01", "2026-01-01T25:00:00Z", "1x"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}
