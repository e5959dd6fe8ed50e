//! Converts tool arguments from JSON to types, with errors that name the argument.

mod deserializer;

use deserializer::{FailedPath, InputNode, InputValue, LeafEncoding, ValuePath};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads arguments. The error names the wrong one and the reason.
pub(crate) fn read<T: DeserializeOwned>(arguments: &Map<String, Value>) -> Result<T, String> {
    object(arguments).map_err(|ArgumentError { path, reason }| match path {
        None => reason,
        Some(path) => format!("argument `{path}`: {reason}"),
    })
}

/// Why a value does not have the expected type.
pub(crate) struct ArgumentError {
    /// The path of the wrong member, such as `env.x`; none for the whole value.
    pub(crate) path: Option<String>,
    pub(crate) reason: String,
}

/// Reads the members of a JSON object.
pub(crate) fn object<T: DeserializeOwned>(
    members: &Map<String, Value>,
) -> Result<T, ArgumentError> {
    parse(members, LeafEncoding::Typed)
}

/// Reads members that are all text: those of a URL path or query.
pub(crate) fn form<T: DeserializeOwned>(pairs: Vec<(String, String)>) -> Result<T, ArgumentError> {
    let mut members = Map::new();
    for (name, text) in pairs {
        if members.contains_key(&name) {
            return Err(ArgumentError { path: None, reason: format!("duplicate field `{name}`") });
        }
        members.insert(name, Value::from(text));
    }
    parse(&members, LeafEncoding::Text)
}

fn parse<T: DeserializeOwned>(
    members: &Map<String, Value>,
    leaves: LeafEncoding,
) -> Result<T, ArgumentError> {
    let failed_path = FailedPath::new();
    let node = InputNode {
        value: InputValue::Object(members),
        leaves,
        path: ValuePath::Root,
        failed_path: &failed_path,
    };
    T::deserialize(node).map_err(|error| ArgumentError {
        path: failed_path.into_inner(),
        reason: error.to_string(),
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
