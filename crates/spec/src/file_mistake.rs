//! Mistakes in TOML files, with the nearest field as a hint.

use crate::{Error, nearest};

/// The error for a mistake in a file, at this line. For an unknown field serde lists all fields;
/// the nearest one helps more.
pub fn file_mistake(line: usize, message: &str) -> Error {
    let message = message.trim();
    let Some((field, fields)) = unknown_field(message) else {
        return Error::invalid(format!("line {line}: {message}"));
    };
    let error = Error::invalid(format!("line {line}: unknown field `{field}`"));
    match nearest(field, fields.iter().copied()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None if fields.is_empty() => error,
        None => error.hint(format!("the fields are {}", fields.join(", "))),
    }
}

/// The unknown field of serde's message, and the fields that there are.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let (field, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    Some((field, rest.split('`').skip(1).step_by(2).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_field_is_the_hint() {
        let several = "unknown field `memroy`, expected one of `name`, `memory`, `cpus`";
        let error = file_mistake(3, several);
        assert_eq!(error.message(), "line 3: unknown field `memroy`");
        assert_eq!(error.advice(), Some("did you mean `memory`?"));
        let far = file_mistake(1, "unknown field `colour`, expected `name` or `memory`");
        assert_eq!(far.advice(), Some("the fields are name, memory"));
        assert_eq!(file_mistake(1, "unknown field `a`, there are no fields").advice(), None);
        assert_eq!(file_mistake(2, "invalid type: map ").message(), "line 2: invalid type: map");
    }
}
