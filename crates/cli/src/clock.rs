//! Times as people write and read them, in UTC.

use msb_spec::{Error, Result, Span};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, now.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `2026-01-02T03:04:05.678Z`.
pub(crate) fn written(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    let (year, month, day) = date(i64::try_from(days).unwrap_or(0));
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// `3m`, `2h`, `5d`: how long ago, roughly.
pub(crate) fn ago(ms: u64) -> String {
    let seconds = now_ms().saturating_sub(ms) / 1000;
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
        return Ok(now_ms().saturating_sub(u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX)));
    }
    parse(text).ok_or_else(|| {
        Error::invalid(format!("not a time: `{}`", text))
            .hint("write it as `10m` (ago) or `2026-01-02T03:04:05Z`")
    })
}

fn parse(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let numbers = |text: &str, between: char| -> Option<Vec<i64>> {
        text.split(between).map(|part| part.parse().ok()).collect()
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let ([year, month, day], [hour, minute, second]) =
        (numbers(date, '-')?.try_into().ok()?, numbers(time, ':')?.try_into().ok()?);
    let sane =
        (1..=12).contains(&month) && (1..=31).contains(&day) && (1970..10_000).contains(&year);
    if !sane || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    u64::try_from(seconds * 1000 + millis).ok()
}

/// Days since 1970 of a date; years begin in March so that leap days come last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip() {
        for (text, ms) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T12:34:56.789Z", 951_827_696_789),
            ("2026-11-15T00:00:00.000Z", 1_794_700_800_000),
        ] {
            assert_eq!(parse(text), Some(ms));
            assert_eq!(written(ms), text);
        }
    }

    #[test]
    fn nonsense_is_no_time() {
        for bad in ["", "yesterday", "2026-13-01", "2026-01-01T25:00:00Z", "1x"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}
