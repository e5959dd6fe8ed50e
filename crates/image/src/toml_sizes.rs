//! Sizes without a unit in TOML files: they are MiB, as on the command line.
//!
//! The same types are read from JSON, where a plain number is bytes. So the table is changed before
//! it is read as a type.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Reads a type from TOML after `add_units` has changed the table. An error has its place in the
/// text.
pub fn parse_toml<T: DeserializeOwned>(
    text: &str,
    add_units: impl FnOnce(&mut Table),
) -> Result<T, toml::de::Error> {
    let mut table: Table = toml::from_str(text)?;
    add_units(&mut table);
    // Only the text has line numbers, and it fails for the same reason.
    table.try_into().map_err(|error| toml::from_str::<T>(text).err().unwrap_or(error))
}

/// Adds the unit `M` to the values of these keys that have none.
pub fn plain_sizes_are_mib(table: &mut Table, keys: &[&str]) {
    for key in keys {
        if let Some(value) = table.get_mut(*key)
            && let Some(size) = without_unit(value)
        {
            *value = Value::String(format!("{size}M"));
        }
    }
}

/// A number, or text that is one.
fn without_unit(value: &Value) -> Option<String> {
    match value {
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::String(text) if text.trim().ends_with(|c: char| c.is_ascii_digit()) => {
            Some(text.trim().to_owned())
        }
        _ => None,
    }
}
