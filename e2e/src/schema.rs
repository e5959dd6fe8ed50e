//! Whether a value is as a JSON Schema wants it, as far as our tools' schemas go.

use serde_json::Value;

/// What is wrong with a value, by its place in it; none if nothing is.
pub fn complaint(value: &Value, schema: &Value) -> Option<String> {
    check(value, schema, schema, "$").err()
}

fn check(value: &Value, schema: &Value, root: &Value, at: &str) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let meant = root.pointer(&reference[1..]).ok_or(format!("{at}: no {reference}"))?;
        return check(value, meant, root, at);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = choices.iter().any(|choice| check(value, choice, root, at).is_ok());
        return if fits { Ok(()) } else { Err(format!("{at}: {value} fits no choice")) };
    }
    if schema.get("const").is_some_and(|meant| meant != value) {
        return Err(format!("{at}: {value} is another constant"));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return Err(format!("{at}: {value} is none of those"));
    }
    let well = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some(other) => return Err(format!("{at}: a type that is not checked: {other}")),
        None => true,
    };
    if !well {
        return Err(format!("{at}: {value} is no {}", schema["type"]));
    }
    if schema["format"] == "date-time" && !value.as_str().is_some_and(is_moment) {
        return Err(format!("{at}: {value} is no moment"));
    }
    for needed in schema["required"].as_array().into_iter().flatten() {
        let name = needed.as_str().unwrap_or_default();
        value.get(name).ok_or(format!("{at}: no `{name}`"))?;
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let own = schema["properties"].get(name);
        match own.or(schema.get("additionalProperties").filter(|more| more.is_object())) {
            Some(schema) => check(inner, schema, root, &format!("{at}.{name}"))?,
            None => return Err(format!("{at}: `{name}` is not in the schema")),
        }
    }
    for (number, inner) in value.as_array().into_iter().flatten().enumerate() {
        if schema["items"].is_object() {
            check(inner, &schema["items"], root, &format!("{at}[{number}]"))?;
        }
    }
    Ok(())
}

/// `2026-11-16T13:37:27.123Z`.
fn is_moment(text: &str) -> bool {
    let like = "0000-00-00T00:00:00";
    let fits = |(ours, like): (u8, u8)| match like {
        b'0' => ours.is_ascii_digit(),
        other => ours == other,
    };
    text.len() > like.len() && text.ends_with('Z') && text.bytes().zip(like.bytes()).all(fits)
}
