//! Time stamps: ISO 8601 in UTC, to the millisecond.
//!
//! The only clock in this crate, and the only place where times are parsed and formatted.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_MS: i64 = 86_400_000;

/// Current time in milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Current time in whole seconds since 1970.
pub fn now_seconds() -> u64 {
    now() / 1000
}

/// Formats seconds since 1970 as `2026-01-31T12:00:00Z`, without a fraction.
pub fn written_seconds(seconds: i64) -> String {
    written(seconds.saturating_mul(1000)).replace(".000Z", "Z")
}

/// Formats milliseconds since 1970 as `2026-01-31T12:00:00.000Z`.
pub fn written(ms: impl TryInto<i64>) -> String {
    let ms = ms.try_into().unwrap_or(i64::MAX / 2);
    let (days, rest) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = civil_from_days(days);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Parses `2026-01-31` or `2026-01-31T12:00:00Z`, with fractions of a second and an offset. `None`
/// if it is no valid time.
pub fn read(text: &str) -> Option<i64> {
    let text = text.trim();
    let (day, time) = match text.split_once(['T', 't', ' ']) {
        Some((day, time)) => (day, Some(time)),
        None => (text, None),
    };
    let mut parts = day.splitn(3, '-').map(|part| digits(part, 4));
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let start = days_from_civil(year, month, day).checked_mul(DAY_MS)?;
    match time {
        Some(time) => Some(start + parse_time(time)?),
        None => Some(start),
    }
}

/// Parses `12:00:00.5+02:00` as milliseconds of the day in UTC.
fn parse_time(text: &str) -> Option<i64> {
    let at = text.find(['Z', 'z', '+', '-']).unwrap_or(text.len());
    let (clock, offset) = text.split_at(at);
    let offset = match offset {
        "" | "Z" | "z" => 0,
        _ => {
            let sign = if offset.starts_with('-') { -1 } else { 1 };
            let (hours, minutes) = match offset[1..].split_once(':') {
                Some(parts) => parts,
                None => offset[1..].split_at_checked(2)?,
            };
            sign * (digits(hours, 2)? * 60 + digits(minutes, 2)?) * 60_000
        }
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = clock.splitn(3, ':').map(|part| digits(part, 2));
    let (hour, minute) = (parts.next()??, parts.next()??);
    let second = parts.next().unwrap_or(Some(0))?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let milli = digits(&format!("{fraction:0<3}").chars().take(3).collect::<String>(), 3)?;
    Some(((hour * 60 + minute) * 60 + second) * 1000 + milli - offset)
}

fn digits(text: &str, max_length: usize) -> Option<i64> {
    let valid =
        !text.is_empty() && text.len() <= max_length && text.bytes().all(|b| b.is_ascii_digit());
    valid.then(|| text.parse().ok()).flatten()
}

/// Days since 1970 of a date; Howard Hinnant's `days_from_civil`.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Date of a day since 1970: the inverse of `days_from_civil`.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
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
    fn times_are_read_as_they_are_written() {
        for (ms, text) in [
            (0_i64, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_198_102_005, "2026-11-20T18:08:22.005Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(written(ms), text);
            assert_eq!(read(text), Some(ms), "{text}");
        }
        assert_eq!(written_seconds(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(read("2000-02-29"), Some(951_782_400_000));
        assert_eq!(read("2000-02-29T02:00:00+02:00"), Some(951_782_400_000));
        assert_eq!(read("2000-02-29 00:00"), Some(951_782_400_000));
        for bad in ["", "yesterday", "2000-13-01", "2000-01-01T25:00:00Z", "2000-01-01T", "-1-1-1"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
