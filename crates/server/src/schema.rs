//! Checks arguments against the input schema of a tool, so that the published schema and the
//! accepted arguments cannot differ.
//!
//! Supports the part of JSON Schema that our tools use: `type`, ranges, `enum`, `const`,
//! `required`,
//! `additionalProperties`, `items`, `oneOf` and `anyOf`.

use serde_json::{Map, Value};

/// Nesting depth up to which arguments are checked; no schema of ours is deeper.
const DEEPEST: usize = 32;

/// Checks arguments. The error names the argument and what is wrong with it.
pub(crate) fn check(schema: &Map<String, Value>, arguments: &Map<String, Value>) -> CheckResult {
    object(schema, arguments, &mut Vec::new())
}

type CheckResult = Result<(), String>;

fn mismatch(path: &[String], what: impl std::fmt::Display) -> CheckResult {
    match path {
        [] => Err(what.to_string()),
        _ => Err(format!("{what} at {}", path.join("."))),
    }
}

fn value(schema: &Value, value: &Value, path: &mut Vec<String>) -> CheckResult {
    let Some(schema) = schema.as_object().filter(|_| path.len() <= DEEPEST) else {
        return Ok(());
    };
    if let Some(choices) = schema.get("oneOf").or_else(|| schema.get("anyOf")) {
        return one_of(choices, value, path);
    }
    if let Some(only) = schema.get("const").filter(|only| *only != value) {
        return mismatch(path, format!("expected {only}"));
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array)
        && !words.contains(value)
    {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        return mismatch(path, format!("expected one of {}", words.join(", ")));
    }
    match (schema.get("type").and_then(Value::as_str), value) {
        (Some("object"), Value::Object(members)) => object(schema, members, path),
        (Some("array"), Value::Array(items)) => array(schema, items, path),
        (Some("string"), Value::String(text)) => {
            let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
            match (text.chars().count() as u64) < least {
                true => mismatch(path, format!("expected at least {least} characters")),
                false => Ok(()),
            }
        }
        (Some("integer" | "number"), Value::Number(number)) => {
            range(schema, number.as_f64().unwrap_or(f64::NAN), path)
        }
        (Some("boolean"), Value::Bool(_)) | (None, _) => Ok(()),
        (Some(expected), found) => {
            mismatch(path, format!("expected {expected}, received {}", name(found)))
        }
    }
}

fn object(
    schema: &Map<String, Value>,
    members: &Map<String, Value>,
    path: &mut Vec<String>,
) -> CheckResult {
    let none = Map::new();
    let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let mut required = required.filter_map(Value::as_str);
    if let Some(missing) = required.find(|it| !members.contains_key(*it)) {
        let kind = known.get(missing).and_then(|it| it.get("type")).and_then(Value::as_str);
        path.push(missing.to_owned());
        return mismatch(path, format!("expected {}, received nothing", kind.unwrap_or("a value")));
    }
    let more = schema.get("additionalProperties");
    for (key, member) in members {
        let schema = match (known.get(key), more) {
            (Some(schema), _) => schema,
            (None, Some(Value::Bool(false))) => {
                return mismatch(path, format!("unrecognized key `{}`", msb_spec::shown(key)));
            }
            (None, Some(schema)) => schema,
            (None, None) => continue,
        };
        path.push(key.clone());
        value(schema, member, path)?;
        path.pop();
    }
    Ok(())
}

fn array(schema: &Map<String, Value>, items: &[Value], path: &mut Vec<String>) -> CheckResult {
    let Some(of) = schema.get("items") else {
        return Ok(());
    };
    for (at, item) in items.iter().enumerate() {
        path.push(at.to_string());
        value(of, item, path)?;
        path.pop();
    }
    Ok(())
}

fn range(schema: &Map<String, Value>, number: f64, path: &[String]) -> CheckResult {
    let limit = |name: &str| schema.get(name).and_then(Value::as_f64);
    let whole = schema.get("type").and_then(Value::as_str) == Some("integer");
    if whole && number.fract() != 0.0 {
        return mismatch(path, "expected a whole number");
    }
    if let Some(least) = limit("minimum").filter(|least| number < *least) {
        return mismatch(path, format!("too small: expected >={least}"));
    }
    if let Some(below) = limit("exclusiveMinimum").filter(|below| number <= *below) {
        return mismatch(path, format!("too small: expected >{below}"));
    }
    match limit("maximum").filter(|most| number > *most) {
        Some(most) => mismatch(path, format!("too big: expected <={most}")),
        None => Ok(()),
    }
}

/// Where choices differ by a constant member, only the one with that constant is checked.
fn one_of(choices: &Value, found: &Value, path: &mut Vec<String>) -> CheckResult {
    let choices = choices.as_array().map(Vec::as_slice).unwrap_or_default();
    let meant = |choice: &&Value| {
        let properties = choice.get("properties").and_then(Value::as_object);
        properties
            .into_iter()
            .flatten()
            .any(|(key, of)| of.get("const").is_some_and(|only| found.get(key) == Some(only)))
    };
    if let Some(choice) = choices.iter().find(meant) {
        return value(choice, found, path);
    }
    let depth = path.len();
    for choice in choices {
        if value(choice, found, path).is_ok() {
            return Ok(());
        }
        path.truncate(depth);
    }
    mismatch(path, "matches none of the allowed schemas")
}

fn name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_argument() {
        let schema = json!({
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "cpus": {"type": "integer", "minimum": 1, "maximum": 16},
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "signal": {"anyOf": [{"type": "integer"}, {"type": "string", "enum": ["kill"]}]},
                "rootfs": {"oneOf": [
                    {"type": "object", "properties": {"kind": {"const": "oci"}, "x": {"type": "string"}}},
                    {"type": "object", "properties": {"kind": {"const": "bind"}}}
                ]},
            },
        });
        let found = |arguments: Value| {
            check(schema.as_object().unwrap(), arguments.as_object().unwrap()).err()
        };
        assert_eq!(found(json!({"name": "a", "more": 1, "signal": "kill"})), None);
        for (arguments, said) in [
            (json!({}), "expected string, received nothing at name"),
            (json!({"name": 3}), "expected string, received number at name"),
            (json!({"name": ""}), "expected at least 1 characters at name"),
            (json!({"name": "a", "cpus": 99}), "too big: expected <=16 at cpus"),
            (json!({"name": "a", "cpus": 1.5}), "expected a whole number at cpus"),
            (json!({"name": "a", "env": {"x": 1}}), "expected string, received number at env.x"),
            (json!({"name": "a", "signal": "x"}), "matches none of the allowed schemas at signal"),
            (
                json!({"name": "a", "rootfs": {"kind": "oci", "x": 1}}),
                "expected string, received number at rootfs.x",
            ),
        ] {
            assert_eq!(found(arguments).as_deref(), Some(said));
        }
    }
}
