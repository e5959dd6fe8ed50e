//! Times in JSON output: RFC 3339 in UTC, where the API has milliseconds since 1970.
//!
//! A member is a time by its name. Members that users name (labels, variables) hold text and never
//! a number, so they stay as they are.

use msb_spec::clock;
use serde_json::ser::Formatter;
use std::io::{self, Write};

/// The members of our types that are milliseconds since 1970.
const TIMES: [&str; 8] =
    ["created", "ends", "expires", "modified", "pulled", "since", "started", "time"];

/// Writes as another formatter does, and numbers of such members as text.
pub(super) struct WithTimes<F> {
    inner: F,
    further: &'static [&'static str],
    /// The name of the member that is written, while `in_key`; then of its value.
    key: String,
    in_key: bool,
}

impl<F> WithTimes<F> {
    pub(super) fn new(inner: F, further: &'static [&'static str]) -> Self {
        Self { inner, further, key: String::new(), in_key: false }
    }

    fn time<W: ?Sized + Write>(&self, to: &mut W, ms: i64) -> Option<io::Result<()>> {
        let key = self.key.as_str();
        let is_time = TIMES.contains(&key) || self.further.contains(&key);
        is_time.then(|| write!(to, "\"{}\"", clock::written(ms)))
    }
}

/// Calls of the other formatter that change nothing here.
macro_rules! pass_on {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        fn $name<W: ?Sized + Write>(&mut self, to: &mut W $(, $argument: $type)*) -> io::Result<()> {
            self.inner.$name(to $(, $argument)*)
        }
    )*};
}

impl<F: Formatter> Formatter for WithTimes<F> {
    pass_on! {
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        end_object();
        begin_object_value();
        end_object_value();
    }

    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.key.clear();
        self.inner.begin_array(to)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.key.clear();
        self.inner.begin_object(to)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.key.clear();
        self.in_key = true;
        self.inner.begin_object_key(to, first)
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.in_key = false;
        self.inner.end_object_key(to)
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        text: &str,
    ) -> io::Result<()> {
        if self.in_key {
            self.key.push_str(text);
        }
        self.inner.write_string_fragment(to, text)
    }

    fn write_u64<W: ?Sized + Write>(&mut self, to: &mut W, value: u64) -> io::Result<()> {
        match i64::try_from(value).ok().and_then(|ms| self.time(to, ms)) {
            Some(written) => written,
            None => self.inner.write_u64(to, value),
        }
    }

    fn write_i64<W: ?Sized + Write>(&mut self, to: &mut W, value: i64) -> io::Result<()> {
        match self.time(to, value) {
            Some(written) => written,
            None => self.inner.write_i64(to, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{json_line, text};
    use super::WithTimes;
    use serde_json::json;
    use serde_json::ser::PrettyFormatter;

    #[test]
    fn times_are_text_and_other_numbers_are_not() {
        let value = json!({
            "created": 951_782_400_000_u64,
            "labels": {"created": "951782400000"},
            "modified": -1,
            "expires": null,
            "used": 5,
            "time": [1, 2],
            "time_ms": 7,
        });
        let line = json_line(&value);
        assert_eq!(
            line,
            "{\"created\":\"2000-02-29T00:00:00.000Z\",\"expires\":null,\
             \"labels\":{\"created\":\"951782400000\"},\
             \"modified\":\"1969-12-31T23:59:59.999Z\",\"time\":[1,2],\"time_ms\":7,\"used\":5}"
        );
        let pretty = text(&json!({"used": 0}), WithTimes::new(PrettyFormatter::new(), &["used"]));
        assert_eq!(pretty, "{\n  \"used\": \"1970-01-01T00:00:00.000Z\"\n}");
    }
}
