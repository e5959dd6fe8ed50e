//! Quantities as users type them: `256M`, `0.5`, `10s`.

use crate::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::time::Duration;

/// An amount of memory or disk space, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct Bytes(pub u64);

impl Bytes {
    /// An amount of `n` mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Parses `1048576`, `512K`, `256M`, `1.5G`; the letters are powers of 1024. A plain number is
    /// bytes: the form of stored records and of the HTTP API.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(text, 1, "bytes")
    }

    /// Parses a size of memory or disk as users type it, in flags and TOML files. Like
    /// [`Bytes::parse`], but a plain number is MiB, as in the SDKs.
    pub fn parse_size(text: &str) -> Result<Self> {
        Self::parse_in(text, 1 << 20, "MiB")
    }

    fn parse_in(text: &str, plain: u64, unit: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not an amount of bytes: `{}`", text))
                .hint(format!("write it as `512M` or `1.5G`; a plain number is {unit}"))
        };
        let trimmed = text.trim();
        let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match trimmed[digits.len()..].to_ascii_lowercase().as_str() {
            "" => plain,
            "b" => 1u64,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err(wrong()),
        };
        scaled(digits, factor).filter(|n| *n > 0).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, letter) in [(1u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
            if self.0 >= unit {
                let tenths = (u128::from(self.0) * 10 + u128::from(unit / 2)) / u128::from(unit);
                return match tenths % 10 {
                    0 => write!(f, "{}{letter}", tenths / 10),
                    tenth => write!(f, "{}.{tenth}{letter}", tenths / 10),
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        bytes.0.to_string()
    }
}

/// A number of CPUs, in thousandths, so that it compares and prints exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct Cpus {
    /// Thousandths of one CPU; never zero.
    pub millis: u32,
}

impl Cpus {
    /// Parses `2` or `0.5`; from 0.01 to 4096.
    pub fn parse(text: &str) -> Result<Self> {
        scaled(text.trim(), 1000)
            .filter(|millis| (10..=4_096_000).contains(millis))
            .and_then(|millis| u32::try_from(millis).ok())
            .map(|millis| Self { millis })
            .ok_or_else(|| {
                Error::invalid(format!("not a number of cpus: `{}`", text))
                    .hint("write it as `2` or `0.5`")
            })
    }

    /// A whole number of CPUs.
    pub const fn whole(n: u32) -> Self {
        Self { millis: n * 1000 }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:03}", self.millis % 1000);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}", self.millis / 1000),
            fraction => write!(f, "{}.{fraction}", self.millis / 1000),
        }
    }
}

impl From<Cpus> for String {
    fn from(cpus: Cpus) -> Self {
        cpus.to_string()
    }
}

/// A length of time, to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct Span(pub Duration);

impl Span {
    /// Parses `500ms`, `10s`, `1.5m`, `2h`, `1d`; a plain number is seconds.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not a length of time: `{}`", text))
                .hint("write it as `500ms`, `10s`, `5m` or `2h`; a plain number is seconds")
        };
        let trimmed = text.trim();
        let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match &trimmed[digits.len()..] {
            "ms" => 1u64,
            "" | "s" | "sec" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        scaled(digits, factor).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(wrong)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        for (unit, letter) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")] {
            if ms >= unit && ms.is_multiple_of(unit) {
                return write!(f, "{}{letter}", ms / unit);
            }
        }
        write!(f, "{ms}ms")
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

/// Parses decimal digits with at most three decimals and multiplies by a factor, without floats.
fn scaled(digits: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || fraction.len() > 3 {
        return None;
    }
    let thousandths: u64 = format!("{fraction:0<3}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    let total = u128::from(whole) * u128::from(factor)
        + u128::from(thousandths) * u128::from(factor) / 1000;
    u64::try_from(total).ok()
}

/// A quantity in a configuration file: text or a plain number.
#[derive(Deserialize)]
#[serde(untagged)]
enum QuantityText {
    Text(String),
    Integer(u64),
    Fraction(f64),
}

impl fmt::Display for QuantityText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(n) => write!(f, "{n}"),
            Self::Fraction(x) => write!(f, "{x}"),
        }
    }
}

macro_rules! parsed_from_text {
    ($($quantity:ty),*) => {$(
        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                // postcard frames are not self-describing, so only files may contain a plain
                // number.
                let text = if from.is_human_readable() {
                    QuantityText::deserialize(from)?.to_string()
                } else {
                    String::deserialize(from)?
                };
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $quantity {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($quantity).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": ["string", "number"]})
            }
        }
        impl std::str::FromStr for $quantity {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self> {
                Self::parse(text)
            }
        }
    )*};
}
parsed_from_text!(Bytes, Cpus, Span);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_people_write_them() {
        for (text, bytes) in [("1", 1), ("256M", 256 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30)] {
            assert_eq!(Bytes::parse(text).unwrap(), Bytes(bytes), "{text}");
        }
        for bad in ["", "0", "M", "-1", "1.5.5", "1e9", "1X", "99999999999T", "1.2345G"] {
            assert!(Bytes::parse(bad).is_err(), "{bad}");
            assert!(Bytes::parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plain_number_is_mebibytes_where_users_type_it() {
        for (text, bytes) in [("512", 512 << 20), ("0.5", 1 << 19), ("512B", 512), ("1K", 1 << 10)]
        {
            assert_eq!(Bytes::parse_size(text).unwrap(), Bytes(bytes), "{text}");
        }
        assert_eq!(Bytes::parse("512").unwrap(), Bytes(512));
    }

    #[test]
    fn quantities_print_as_they_are_typed() {
        assert_eq!(Bytes(256 << 20).to_string(), "256M");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5G");
        assert_eq!(Cpus::parse("0.5").unwrap().to_string(), "0.5");
        assert_eq!(Cpus::parse("2").unwrap().to_string(), "2");
        assert_eq!(Span::parse("90s").unwrap().to_string(), "90s");
        assert_eq!(Span::parse("1.5s").unwrap().to_string(), "1500ms");
    }

    #[test]
    fn spans_and_cpus_refuse_nonsense() {
        for bad in ["", "s", "1w", "-1s", "1 s"] {
            assert!(Span::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "x", "-1", "0.001", "99999"] {
            assert!(Cpus::parse(bad).is_err(), "{bad}");
        }
    }
}
