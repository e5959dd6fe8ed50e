//! Validates arguments as the original (pydantic) does: the same messages for missing and wrong
//! values, the same conversions, and unknown arguments are ignored.

use crate::dialect::Tool;
use serde_json::{Map, Value};

/// The arguments of a call with the types and defaults of its schema, or what is wrong with them.
pub(super) fn read(tool: &Tool, given: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let empty = Map::new();
    let properties = tool.input.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let (mut taken, mut wrong) = (Map::new(), Vec::new());
    for (name, schema) in properties {
        match (given.get(name), schema.get("default")) {
            (None, Some(default)) => drop(taken.insert(name.clone(), default.clone())),
            (None, None) => {
                let what = "Field required [type=missing, input_type=dict]";
                wrong.push(format!("{name}\n  {what}"));
            }
            (Some(value), _) => match convert(schema, value) {
                Ok(value) => drop(taken.insert(name.clone(), value)),
                Err(what) => wrong.push(format!("{name}\n  {what}")),
            },
        }
    }
    if wrong.is_empty() {
        return Ok(taken);
    }
    let (count, s) = (wrong.len(), if wrong.len() == 1 { "" } else { "s" });
    let (name, wrong) = (&tool.name, wrong.join("\n"));
    Err(format!(
        "Error executing tool {name}: {count} validation error{s} for {name}Arguments\n{wrong}"
    ))
}

/// Converts a value to the type of a schema, if that is possible.
fn convert(schema: &Value, value: &Value) -> Result<Value, &'static str> {
    let text = value.as_str().map(str::trim);
    match schema.get("type").and_then(Value::as_str) {
        Some("string") if value.is_string() => Ok(value.clone()),
        Some("string") => Err("Input should be a valid string [type=string_type]"),
        Some("number") => {
            let number = value.as_f64().or_else(|| text?.parse().ok());
            let number = number.filter(|number| number.is_finite());
            number.map(Value::from).ok_or("Input should be a valid number [type=float_type]")
        }
        Some("integer") => {
            let whole = |number: f64| (number.fract() == 0.0).then_some(number as i64);
            let number = value.as_i64().or_else(|| whole(value.as_f64()?));
            let number = number.or_else(|| text?.parse().ok());
            number.map(Value::from).ok_or("Input should be a valid integer [type=int_type]")
        }
        Some("boolean") => match (value, text) {
            (Value::Bool(_), _) => Ok(value.clone()),
            (_, Some("true" | "True" | "1" | "yes" | "on")) => Ok(Value::Bool(true)),
            (_, Some("false" | "False" | "0" | "no" | "off")) => Ok(Value::Bool(false)),
            _ => Err("Input should be a valid boolean [type=bool_type]"),
        },
        _ => Ok(value.clone()),
    }
}
