//! Arguments of tools, from JSON to types, with errors that name the argument.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads arguments. The error says which is wrong and how.
pub(crate) fn read<T: DeserializeOwned>(arguments: &Map<String, Value>) -> Result<T, String> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match path.as_str() {
            "." => inner.to_string(),
            _ => format!("argument `{path}`: {inner}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Arguments {
        name: String,
        env: std::collections::BTreeMap<String, String>,
    }

    #[test]
    fn an_error_names_the_argument() {
        let read = |value: Value| {
            let arguments = value.as_object().expect("an object").clone();
            super::read::<Arguments>(&arguments).expect_err("it is wrong")
        };
        assert_eq!(read(json!({"env": {}})), "missing field `name`");
        let wrong = read(json!({"name": "a", "env": {"x": 3}}));
        assert_eq!(wrong, "argument `env.x`: invalid type: integer `3`, expected a string");
    }
}
