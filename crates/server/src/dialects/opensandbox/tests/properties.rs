//! Tests that every property of every tool has an effect on the calls of the Api or on the result.

use super::TestClient;
use crate::dialect::{Dialect, ToolCall};
use crate::recorder::RecordedCall;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Valid arguments for each tool.
pub(super) fn usual(tool: &str) -> Map<String, Value> {
    let mut arguments = match tool {
        "sandbox_create" => json!({"image": "host"}),
        "sandbox_list" => json!({}),
        "sandbox_renew" => json!({"timeout_seconds": 60}),
        "sandbox_get_endpoint" => json!({"port": 81}),
        "command_run" => json!({"command": "true"}),
        "command_interrupt" => json!({"execution_id": "7"}),
        "file_read" => json!({"path": "/w/a.py"}),
        "file_write" => json!({"path": "/w/a.py", "content": "new"}),
        "file_delete" => json!({"paths": ["/w/a.py"]}),
        "file_delete_directories" => json!({"paths": ["/w"]}),
        "file_search" => json!({"path": "/w", "pattern": "*"}),
        "file_create_directories" => json!({"entries": [{"path": "/new"}]}),
        "file_move" => json!({"entries": [{"source": "/w/a.py", "destination": "/b"}]}),
        "file_replace_contents" => {
            json!({"entries": [{"path": "/w/a.py", "old_content": "o", "new_content": "0"}]})
        }
        _ => json!({}),
    };
    let arguments = arguments.as_object_mut().unwrap();
    if !matches!(tool, "sandbox_create" | "sandbox_list") {
        arguments.insert("sandbox_id".to_owned(), json!("one"));
    }
    arguments.clone()
}

/// Another value for each property; an `_` stands for an item of a list.
fn others() -> Vec<(&'static str, &'static str, Value)> {
    let health = "health_check_polling_interval_ms";
    let mut all = vec![
        ("sandbox_create", "image", json!("alpine")),
        ("sandbox_create", "auth_username", json!("other")),
        ("sandbox_create", "auth_password", json!("other")),
        ("sandbox_create", "timeout_seconds", json!(7.5)),
        ("sandbox_create", "ready_timeout_seconds", json!(0.01)),
        ("sandbox_create", health, json!(9999)),
        ("sandbox_create", "skip_health_check", json!(true)),
        ("sandbox_create", "env", json!({"A": "1"})),
        ("sandbox_create", "metadata", json!({"a": "b"})),
        ("sandbox_create", "resource", json!({"cpu": "2"})),
        ("sandbox_create", "network_policy", json!({})),
        ("sandbox_create", "network_policy.defaultAction", json!("allow")),
        ("sandbox_create", "network_policy.egress", json!([{"action": "allow", "target": "a.b"}])),
        ("sandbox_create", "network_policy.egress._.action", json!("deny")),
        ("sandbox_create", "network_policy.egress._.target", json!("c.d")),
        ("sandbox_create", "extensions", json!({"msb.isolation": "process"})),
        ("sandbox_create", "entrypoint", json!(["sleep", "9"])),
        ("sandbox_connect", "sandbox_id", json!("two")),
        ("sandbox_connect", "connect_timeout_seconds", json!(0.01)),
        ("sandbox_connect", health, json!(9999)),
        ("sandbox_connect", "skip_health_check", json!(true)),
        ("sandbox_kill", "sandbox_id", json!("none")),
        ("sandbox_get_info", "sandbox_id", json!("two")),
        ("sandbox_list", "filter", json!({"page": 2})),
        ("sandbox_list", "filter.states", json!(["Failed"])),
        ("sandbox_list", "filter.metadata", json!({"a": "b"})),
        ("sandbox_list", "filter.page_size", json!(1)),
        ("sandbox_list", "filter.page", json!(2)),
        ("sandbox_renew", "sandbox_id", json!("none")),
        ("sandbox_renew", "timeout_seconds", json!(61)),
        ("sandbox_get_endpoint", "port", json!(82)),
        ("command_run", "command", json!("false")),
        ("command_run", "background", json!(true)),
        ("command_run", "working_directory", json!("/w")),
        ("command_interrupt", "execution_id", json!("8")),
        ("file_read", "path", json!("/w/b.py")),
        ("file_read", "encoding", json!("base64")),
        ("file_read", "range_header", json!("bytes=1-2")),
        ("file_write", "path", json!("/w/b.py")),
        ("file_write", "content", json!("other")),
        ("file_write", "encoding", json!("utf-16")),
        ("file_write", "mode", json!(600)),
        ("file_write", "owner", json!("me")),
        ("file_write", "group", json!("us")),
        ("file_delete", "paths", json!(["/w/b.py"])),
        ("file_delete_directories", "paths", json!(["/none"])),
        ("file_search", "path", json!("/w/b.py")),
        ("file_search", "pattern", json!("b*")),
        ("file_create_directories", "entries", json!([])),
        ("file_create_directories", "entries._.path", json!("/other")),
        ("file_create_directories", "entries._.mode", json!(700)),
        ("file_create_directories", "entries._.owner", json!("me")),
        ("file_create_directories", "entries._.group", json!("us")),
        ("file_move", "entries", json!([])),
        ("file_move", "entries._.source", json!("/w/b.py")),
        ("file_move", "entries._.destination", json!("/c")),
        ("file_replace_contents", "entries", json!([])),
        ("file_replace_contents", "entries._.path", json!("/w/b.py")),
        ("file_replace_contents", "entries._.old_content", json!("l")),
        ("file_replace_contents", "entries._.new_content", json!("1")),
    ];
    let connected = [
        "sandbox_get_metrics",
        "sandbox_healthcheck",
        "sandbox_get_endpoint",
        "command_run",
        "command_interrupt",
        "file_read",
        "file_write",
        "file_delete",
        "file_search",
        "file_create_directories",
        "file_delete_directories",
        "file_move",
        "file_replace_contents",
    ];
    for tool in connected {
        all.push((tool, "sandbox_id", json!("none")));
        all.push((tool, "connect_if_missing", json!(true)));
    }
    all
}

/// Sets the other arguments that a property needs to have an effect.
fn beside(tool: &str, property: &str, arguments: &mut Map<String, Value>) {
    let mut set = |name: &str, value: Value| drop(arguments.insert(name.to_owned(), value));
    match property {
        "connect_if_missing" => set("sandbox_id", json!("two")),
        "auth_username" | "auth_password" => {
            set("auth_username", json!("me"));
            set("auth_password", json!("secret"));
        }
        "network_policy.defaultAction" | "network_policy.egress" => {
            set("network_policy", json!({}))
        }
        "network_policy.egress._.action" | "network_policy.egress._.target" => {
            let rule = json!({"action": "allow", "target": "a.b"});
            set("network_policy", json!({"egress": [rule]}));
        }
        "health_check_polling_interval_ms" => {
            let limit = match tool {
                "sandbox_create" => "ready_timeout_seconds",
                _ => "connect_timeout_seconds",
            };
            set(limit, json!(0.3));
            set(property, json!(1));
        }
        "ready_timeout_seconds" | "connect_timeout_seconds" => {
            set("health_check_polling_interval_ms", json!(5));
        }
        _ if property.starts_with("filter.") => set("filter", json!({})),
        _ => {}
    }
}

/// Sets a value at a path; `_` is the first item of a list.
fn put(arguments: &mut Value, path: &str, value: Value) {
    let mut place = arguments;
    for part in path.split('.') {
        place = match part {
            "_" => &mut place[0],
            name => &mut place[name],
        };
    }
    *place = value;
}

/// The calls and the result, without values that differ every time.
fn effect(tool: &str, property: &str, arguments: Map<String, Value>) -> String {
    let client = TestClient::new();
    for (path, content) in [
        ("/w/a.py", "old"),
        ("/w/b.py", "older"),
        ("/etc/passwd", "root:x:0:0"),
        ("/etc/group", ""),
    ] {
        client.file(path, content.as_bytes());
    }
    let ill = match property {
        "health_check_polling_interval_ms" => u32::MAX,
        "ready_timeout_seconds" | "connect_timeout_seconds" => 20,
        _ => 0,
    };
    client.fake.ill.store(ill, Ordering::Relaxed);
    if tool == "command_interrupt" {
        *client.fake.stubborn.lock().unwrap() = Some(2);
    }
    let answer = client.dialect.call(&ToolCall::new(tool, arguments));
    let said = match answer.structured {
        Some(mut value) => {
            plain(&mut value);
            value.to_string()
        }
        // The random name of a created sandbox differs every time.
        None => answer.text.concat().chars().take(60).collect(),
    };
    let mut calls = client.fake.recorder.calls();
    let is_look =
        |call: &RecordedCall| call.operation == "file_stat" && call.arguments["path"] == "/";
    let looks = calls.iter().filter(|call| is_look(call)).count();
    // How often it waits and reads the rest depends on the clock.
    calls.retain(|call| match call.operation {
        "sandbox_metrics" | "file_read" | "file_list" => true,
        other => !call.is_read && other != "exec_wait",
    });
    calls.iter_mut().for_each(|call| plain(&mut call.arguments));
    let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
    format!("{said} {} {calls:?}", if ill == 0 || looks < 3 { looks } else { 3 })
}

fn plain(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let changes = matches!(key.as_str(), "timestamp" | "execution_time_in_millis");
                let made = value.as_str().is_some_and(|text| text.len() == 36);
                if changes || made { *value = Value::Null } else { plain(value) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

/// All properties of a schema, at any depth.
fn declared(schema: &Value, root: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        return declared(root.pointer(&reference[1..]).unwrap(), root, path, found);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        declared(property, root, &path, found);
        found.insert(path);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        declared(choice, root, path, found);
    }
    if schema["items"].is_object() {
        declared(&schema["items"], root, &format!("{path}._"), found);
    }
}

#[test]
fn every_property_acts() {
    let others = others();
    for tool in TestClient::new().dialect.tools() {
        let schema = Value::Object((*tool.input).clone());
        let mut properties = BTreeSet::new();
        declared(&schema, &schema, "", &mut properties);
        let listed = others.iter().filter(|(of, _, _)| *of == tool.name);
        let listed: BTreeSet<String> = listed.map(|(_, path, _)| (*path).to_owned()).collect();
        assert_eq!(properties, listed, "{}", tool.name);
    }
    for (tool, property, value) in others {
        let mut without = usual(tool);
        beside(tool, property, &mut without);
        let mut with = Value::Object(without.clone());
        put(&mut with, property, value);
        let (before, after) = (
            effect(tool, property, without),
            effect(tool, property, with.as_object().unwrap().clone()),
        );
        assert_ne!(before, after, "{tool} ignores {property}");
    }
}
