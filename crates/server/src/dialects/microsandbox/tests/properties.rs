//! Tests that every property of every input schema has an effect on the calls of the Api or on the
//! result. A property that is parsed and ignored fails here.

use super::Bench;
use crate::dialect::Dialect;
use serde_json::{Map, Value, json};

/// Properties without effect, because their request is always fulfilled.
const ALWAYS: [(&str, &str); 3] = [
    ("nosuid", "no setuid program of a mount is one inside"),
    ("nodev", "no device of a mount is one inside"),
    ("withParents", "an archive holds the layers of all snapshots below"),
];

/// The arguments of each tool before one property is added.
fn usual(tool: &str, bench: &Bench) -> Value {
    let file = bench.directory.path().join("file");
    match tool {
        "sandbox_run" => json!({"name": "run", "image": "host", "command": "fail"}),
        "sandbox_create" => json!({"name": "new", "image": "host"}),
        "sandbox_restore" => json!({"name": "new", "snapshot": "snap"}),
        "sandbox_exec" | "sandbox_shell" => json!({"name": "on", "command": "fail"}),
        "sandbox_exec_start" => json!({"name": "on", "command": "fail"}),
        "volume_create" => json!({"name": "fresh"}),
        "snapshot_create" => json!({"name": "made", "fromSandbox": "on"}),
        "snapshot_save" => json!({"pathOrName": "snap", "out": bench.directory.path().join("out")}),
        "snapshot_load" => json!({"archive": file}),
        "sandbox_fs_copy_from_host" | "sandbox_fs_copy_to_host" => {
            json!({"name": "on", "hostPath": file, "guestPath": "/a"})
        }
        _ if tool.starts_with("volume_fs") => required(tool, bench, "vol"),
        _ => required(tool, bench, "on"),
    }
}

/// The required arguments of a tool.
fn required(tool: &str, bench: &Bench, name: &str) -> Value {
    let schema = schema(tool, bench);
    let mut least = filled(&schema, "");
    if least.get("name").is_some() {
        least["name"] = json!(name);
    }
    least
}

fn schema(tool: &str, bench: &Bench) -> Value {
    let found = bench.dialect.tools().iter().find(|it| it.name == tool).unwrap();
    Value::Object(found.input.as_ref().clone())
}

/// A valid value for a schema, which is meaningful for a property of this name.
fn sample(schema: &Value, name: &str) -> Value {
    let meant = match name {
        "path" | "from" => json!("/dir"),
        "to" | "linkPath" => json!("/place"),
        "guestPath" => json!("/inside"),
        "workdir" | "cwd" => json!("/work"),
        "hostname" => json!("host-name"),
        "allowedHost" | "bypassDomains" => json!("a.example"),
        "nameservers" => json!(["9.9.9.9"]),
        "bindAddress" => json!("0.0.0.0"),
        "contentBase64" | "stdinBase64" | "dataBase64" => json!("/w=="),
        "since" => json!("1970-01-01T00:00:02Z"),
        "until" => json!("1970-01-01T00:00:02Z"),
        "resource" => json!("nofile"),
        "snapshotBase" => json!("other"),
        "toSandbox" => json!("off"),
        "fromCursor" => json!("1000-stdout-1-0"),
        "grep" => json!("err"),
        "sources" => json!(["stderr"]),
        "sessionIds" => json!([2]),
        "user" => json!("1000"),
        "encoding" => json!("base64"),
        "externalMountPolicy" => json!("relaxed"),
        "pullPolicy" => json!("never"),
        "type" => json!("mkdir"),
        "protocol" => json!("udp"),
        "status" => json!("stopped"),
        "kind" if schema["enum"] == json!(["auto", "file", "dir"]) => json!("file"),
        "kind" if schema["enum"] == json!(["directory", "disk"]) => json!("disk"),
        "valueEnv" => json!("PATH"),
        "replace" if schema["type"] == "boolean" => json!(false),
        "detached" => json!(false),
        "hard" => json!(9),
        "labels" => json!({"is": "off"}),
        "source" => json!("@file"),
        "hostPath" => json!("@file"),
        "pathOrName" => json!("snap"),
        _ => Value::Null,
    };
    if !meant.is_null() {
        return match schema["type"] == "array" && !meant.is_array() {
            true => json!([meant]),
            false => meant,
        };
    }
    if let Some(words) = schema["enum"].as_array() {
        return words[0].clone();
    }
    if let Some(only) = schema.get("const") {
        return only.clone();
    }
    if let Some(choices) = schema.get("oneOf").or_else(|| schema.get("anyOf")) {
        return sample(&choices[0], name);
    }
    match schema["type"].as_str() {
        Some("string") => json!("x1"),
        Some("boolean") => json!(true),
        Some("integer" | "number") => {
            json!(schema["minimum"].as_f64().unwrap_or(0.0).max(0.0) as u64 + 2)
        }
        Some("array") => json!([filled(&schema["items"], name)]),
        Some("object") if schema.get("properties").is_some() => filled(schema, name),
        _ => json!({"k1": "v1"}),
    }
}

/// An object with its required members, or a plain value.
fn filled(schema: &Value, name: &str) -> Value {
    if schema["type"] != "object" || schema.get("properties").is_none() {
        return sample(schema, name);
    }
    let needed = schema["required"].as_array().cloned().unwrap_or_default();
    let member = |key: &Value| {
        let key = key.as_str().unwrap();
        (key.to_owned(), sample(&schema["properties"][key], key))
    };
    let mut least: Map<String, Value> = needed.iter().map(member).collect();
    // Members that the schema does not require, but calls need.
    let more = match (schema["properties"]["kind"].get("const").and_then(Value::as_str), name) {
        (Some("bind"), _) => json!({"path": "@dir"}),
        (Some("disk"), _) => json!({"path": "@file"}),
        (None, "volumes" | "mounts") => json!({"hostPath": "@dir"}),
        (None, "patches") => json!({"path": "/place"}),
        (None, "secrets") => json!({"value": "secret-value"}),
        _ => json!({}),
    };
    least.extend(more.as_object().unwrap().clone());
    Value::Object(least)
}

/// Another value of the same type.
fn other(value: &Value) -> Value {
    match value {
        Value::String(text) if text == "on" => json!("off"),
        Value::String(text) => json!(format!("{text}2")),
        Value::Bool(it) => json!(!it),
        Value::Number(number) => json!(number.as_u64().unwrap() + 1),
        other => panic!("{other} has no other"),
    }
}

/// The calls and the result, without random values and times.
fn trace(bench: &Bench, tool: &str, arguments: &Value) -> (Vec<String>, Value) {
    std::fs::write(bench.directory.path().join("file"), "file").unwrap();
    bench.fake.calls();
    let out = bench.directory.path().join("out");
    let directory = bench.directory.path().display().to_string();
    let arguments = arguments.to_string();
    let arguments = arguments.replace("@file", &format!("{directory}/file"));
    let arguments: Value = serde_json::from_str(&arguments.replace("@dir", &directory)).unwrap();
    let given = |key: &str| arguments.get(key).is_some_and(|it| !it.is_null());
    let writes = given("stdin") || given("stdinBase64");
    let closes = arguments["closeStdin"] == true;
    let answer = bench.answer(tool, arguments);
    let plain = json!({"text": answer.text[0]});
    let mut said: Value = serde_json::from_str(&answer.text[0]).unwrap_or(plain);
    let id = said["data"]["execSessionId"].as_str().filter(|_| tool == "sandbox_exec_start");
    if let Some(id) = id.map(str::to_owned) {
        // The output of the command is part of the trace.
        loop {
            let polled = bench.call("sandbox_exec_poll", json!({"execSessionId": id}));
            if polled["data"]["done"] == true {
                said["polled"] = polled;
                break;
            }
            std::thread::yield_now();
        }
        bench.call("sandbox_exec_close", json!({"execSessionId": id}));
    }
    unchanging(&mut said);
    said["written"] = json!(std::fs::read(&out).ok());
    let mut calls = bench.fake.calls();
    if tool == "sandbox_exec_start" && said["ok"] == true {
        // Stdin is written by another thread, perhaps after the end of the command.
        let last = if closes { "input_close" } else { "input_write" };
        while (writes || closes) && !calls.iter().any(|call| call.operation == last) {
            std::thread::yield_now();
            calls.extend(bench.fake.calls());
        }
    }
    // How long it waits depends on the clock.
    calls.retain(|call| call.operation != "sandbox_wait");
    calls.sort_by_cached_key(|call| without_chance(&call.to_string()));
    // How often it reads depends on the clock, too.
    calls.dedup_by(|one, other| one.is_read && one == other);
    (calls.iter().map(|call| without_chance(&call.to_string())).collect(), said)
}

fn unchanging(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for key in ["timestamp", "observedAt", "execSessionId", "cpuPercent"] {
                members.remove(key);
            }
            members.values_mut().for_each(unchanging);
        }
        Value::Array(items) => items.iter_mut().for_each(unchanging),
        Value::String(text) => *text = without_chance(text),
        _ => {}
    }
}

/// The length of random names, which are UUIDs.
const UNGUESSABLE: usize = 36;

/// Replaces the random names of temporary directories and snapshots.
fn without_chance(text: &str) -> String {
    let mut plain = text.to_owned();
    for start in ["msb-mcp-", "\"archive-", "\"new-"] {
        while let Some(at) = plain.find(start) {
            let end = (at + start.len() + UNGUESSABLE).min(plain.len());
            plain.replace_range(at..end, "");
        }
    }
    plain
}

/// Walks through a schema. `make` sets a value at its place in valid arguments.
fn walk(
    bench: &Bench,
    tool: &str,
    schema: &Value,
    path: &str,
    make: &dyn Fn(Value) -> Value,
    failures: &mut Vec<String>,
) {
    if let Some(choices) = schema["oneOf"].as_array() {
        choices.iter().for_each(|choice| walk(bench, tool, choice, path, make, failures));
        return;
    }
    if schema["type"] == "array" {
        let item = |value| make(json!([value]));
        return walk(bench, tool, &schema["items"], &format!("{path}[]"), &item, failures);
    }
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let name = path.trim_end_matches("[]").rsplit('.').next().unwrap_or_default();
    let least = filled(schema, name);
    for (key, of) in properties {
        let place = format!("{path}.{key}");
        let with = |value: &Value| {
            let mut object = least.clone();
            object[key] = value.clone();
            make(object)
        };
        let value = sample(of, key);
        let (without, with_it) = match least.get(key) {
            Some(needed) => (make(least.clone()), with(&other(needed))),
            None => (make(least.clone()), with(&value)),
        };
        // Objects have an effect through their members.
        let constant = of.get("const").is_some() || of.get("properties").is_some();
        if !constant && !acts(bench, tool, &place, key, &without, &with_it) {
            failures.push(format!("{tool} {place}: {with_it}"));
        }
        let nested = |value: Value| with(&value);
        walk(bench, tool, of, &place, &nested, failures);
    }
}

fn acts(bench: &Bench, tool: &str, place: &str, key: &str, without: &Value, with: &Value) -> bool {
    // An SFTP session has no terminal type.
    let of_sftp = key == "term" && tool.starts_with("sandbox_sftp_");
    if of_sftp || ALWAYS.iter().any(|(always, _)| *always == key) {
        return true;
    }
    let (without, with) = arranged(bench, tool, place, without, with);
    let before = trace(bench, tool, &without);
    assert_eq!(before, trace(bench, tool, &without), "{tool} {place} is left to chance: {without}");
    let after = trace(bench, tool, &with);
    before != after || after.1["error"]["code"] == "unsupported"
}

/// Some properties have an effect only with others.
fn arranged(
    bench: &Bench,
    tool: &str,
    place: &str,
    without: &Value,
    with: &Value,
) -> (Value, Value) {
    let directory = bench.directory.path().display().to_string();
    // Of two alternatives, one is tried without the other, which would take precedence.
    for (one, winner) in [("source", "hostPath"), ("guestPath", "path"), ("valueEnv", "value")] {
        if let Some(list) = place.strip_suffix(&format!("[].{one}")) {
            let mut with = with.clone();
            let item = &mut with[list.trim_start_matches('.')][0];
            if item.as_object_mut().is_some_and(|item| item.remove(winner).is_some()) {
                return (without.clone(), with);
            }
        }
    }
    let both = |change: &dyn Fn(&mut Value)| {
        let (mut without, mut with) = (without.clone(), with.clone());
        change(&mut without);
        change(&mut with);
        (without, with)
    };
    match (tool, place) {
        // No existing file may be replaced.
        ("sandbox_sftp_rename", ".from") => both(&|it| it["to"] = json!("/none")),
        ("sandbox_sftp_symlink", ".target") => both(&|it| it["linkPath"] = json!("/none")),
        (_, ".keepRunning") => both(&|it| {
            it["name"] = json!("off");
            it["startIfStopped"] = json!(true);
        }),
        (_, ".startIfStopped") => both(&|it| it["name"] = json!("off")),
        (_, ".timeout" | ".timeoutMs") if tool == "sandbox_exec_start" => both(&|_| {}),
        ("sandbox_exec_start", ".maxBytes") => {
            both(&|it| it["command"] = json!("fail")).with_value("maxBytes", &json!(6))
        }
        ("sandbox_exec_start", ".closeStdin") => both(&|it| it["stdin"] = json!("x")),
        ("sandbox_exec_start", ".shell") => both(&|_| {}),
        ("sandbox_exec_poll", ".cursor" | ".limit" | ".maxBytes")
        | ("sandbox_exec_write_stdin" | "sandbox_exec_signal", _) => {
            let begun = bench.data("sandbox_exec_start", json!({"name": "on", "command": "wait"}));
            let id = begun["execSessionId"].clone();
            // Until all output has arrived, two polls may differ.
            let poll = || bench.data("sandbox_exec_poll", json!({"execSessionId": id.clone()}));
            while poll()["nextCursor"].as_u64() < Some(3) {
                std::thread::yield_now();
            }
            let (without, mut with) = both(&|it| it["execSessionId"] = id.clone());
            if place == ".execSessionId" {
                with["execSessionId"] = json!("another");
            }
            (without, with)
        }
        (
            "sandbox_stop" | "sandbox_remove" | "sandbox_start" | "sandbox_drain" | "sandbox_wait",
            _,
        ) if place != ".name" => both(&|it| it["name"] = json!("on")),
        ("sandbox_logs_stream", ".followTimeoutMs") => both(&|it| {
            it["follow"] = json!(true);
            it["grep"] = json!("never");
        }),
        ("sandbox_logs_stream", ".follow") => both(&|it| {
            it["followTimeoutMs"] = json!(2);
            it["grep"] = json!("never");
        }),
        ("sandbox_run", ".lifecycle.detached") => {
            both(&|_| {}).with_value("lifecycle", &json!({"detached": true}))
        }
        (_, ".lifecycle.replace") => {
            both(&|_| {}).with_value("lifecycle", &json!({"replace": true}))
        }
        ("image_remove" | "snapshot_remove" | "snapshot_create", ".confirm" | ".force") => {
            both(&|it| {
                it["reference"] = json!("a");
                it["pathOrName"] = json!("snap");
                if place == ".confirm" {
                    it["force"] = json!(true);
                }
            })
        }
        ("volume_create", ".quotaMib" | ".sizeMib") => both(&|_| {}),
        ("snapshot_create", ".destDir") => both(&|_| {}).with_value("destDir", &json!(directory)),
        ("snapshot_load", ".dest") => {
            let below = format!("{directory}/below");
            std::fs::create_dir_all(&below).unwrap();
            both(&|_| {}).with_value("dest", &json!(below))
        }
        ("snapshot_reindex", ".dir") => both(&|_| {}).with_value("dir", &json!(directory)),
        ("sandbox_create" | "sandbox_run", _) if place.ends_with(".replaceTimeoutMs") => {
            both(&|it| it["lifecycle"]["replace"] = json!(true))
        }
        ("sandbox_restore", ".diskOnly") => both(&|it| it["forked"] = json!(true)),
        _ => both(&|_| {}),
    }
}

/// Changes a value in the second of two objects.
trait WithValue {
    fn with_value(self, key: &str, value: &Value) -> Self;
}

impl WithValue for (Value, Value) {
    fn with_value(mut self, key: &str, value: &Value) -> Self {
        self.1[key] = value.clone();
        self
    }
}

#[test]
fn every_property_acts() {
    let bench = Bench::new();
    let mut failures = Vec::new();
    let tools: Vec<String> = bench.dialect.tools().iter().map(|tool| tool.name.clone()).collect();
    for tool in tools {
        let base = usual(&tool, &bench);
        let make = |value: Value| {
            let mut arguments = base.clone();
            for (key, value) in value.as_object().unwrap() {
                // Arguments that the tool needs stay, unless they are the tested ones.
                let schema = schema(&tool, &bench);
                let needed = schema["required"].as_array().into_iter().flatten();
                let least = { needed }.any(|it| it == key)
                    && base.get(key).is_some()
                    && *value == sample(&schema["properties"][key], key);
                if !least {
                    arguments[key] = value.clone();
                }
            }
            arguments
        };
        walk(&bench, &tool, &schema(&tool, &bench), "", &make, &mut failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Properties with an effect that depends on others.
#[test]
fn nested_properties_are_applied() {
    let bench = Bench::new();
    let directory = bench.directory.path();
    std::fs::write(directory.join("file"), "file").unwrap();
    let spec = |more: Value| {
        let mut ask = json!({"name": "new", "image": "host"});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        bench.fake.calls();
        let envelope = bench.call("sandbox_create", ask);
        assert_eq!(envelope["ok"], true, "{envelope}");
        let calls = bench.fake.calls();
        let texts: Vec<String> =
            calls.iter().map(|it| format!("{} {}", it.operation, it.text)).collect();
        without_chance(&texts.join("\n"))
    };
    let patch = |patch: Value| spec(json!({"patches": [patch]}));
    for (params, request) in [
        (
            json!({"kind": "text", "path": "/a", "content": "x", "mode": 384}),
            "Mode { path: GuestPath(\"/a\"), mode: 384 }",
        ),
        (
            json!({"kind": "file", "guestPath": "/a", "contentBase64": "/w==", "mode": 384}),
            "Bytes { path: GuestPath(\"/a\"), content: [255] }, Mode { path: GuestPath(\"/a\"), mode: 384 }",
        ),
        (
            json!({"kind": "text", "path": "/a", "replace": false}),
            "Absent { path: GuestPath(\"/a\") }, Text",
        ),
        (
            json!({"kind": "copyFile", "hostPath": directory.join("file"), "guestPath": "/a"}),
            "Copy { from",
        ),
        (
            json!({"kind": "copyFile", "hostPath": directory.join("file"), "path": "/a", "mode": 256}),
            "Mode { path: GuestPath(\"/a\"), mode: 256 }",
        ),
        (json!({"kind": "copyDir", "hostPath": directory, "path": "/a"}), "Copy { from"),
        (
            json!({"kind": "mkdir", "path": "/a", "mode": 448}),
            "Mkdir { path: GuestPath(\"/a\") }, Mode { path: GuestPath(\"/a\"), mode: 448 }",
        ),
        (
            json!({"kind": "append", "path": "/a", "content": "x"}),
            "Append { path: GuestPath(\"/a\")",
        ),
        (json!({"kind": "remove", "path": "/a"}), "Remove { path: GuestPath(\"/a\") }"),
        (
            json!({"kind": "symlink", "target": "/t", "linkPath": "/a"}),
            "Symlink { path: GuestPath(\"/a\"), target: \"/t\" }",
        ),
    ] {
        let found = patch(params.clone());
        assert!(found.contains(request), "{params}: {found}");
    }
    let mount = |mount: Value| spec(json!({"volumes": [mount]}));
    for (params, request) in [
        (
            json!({"kind": "bind", "guestPath": "/m", "source": directory, "readonly": true}),
            "read_only: true",
        ),
        (
            json!({"kind": "named", "guestPath": "/m", "name": "data"}),
            "Volume(VolumeName(\"data\"))",
        ),
        (
            json!({"kind": "named", "guestPath": "/m", "source": "data", "sizeMib": 32}),
            "size: Some(Bytes(33554432))",
        ),
        (
            json!({"kind": "tmpfs", "guestPath": "/m", "sizeMib": 32}),
            "Tmpfs { guest: GuestPath(\"/m\"), size: Bytes(33554432), read_only: false, no_exec: false }",
        ),
        (
            json!({"kind": "tmpfs", "guestPath": "/m", "readonly": true, "noexec": true}),
            "read_only: true, no_exec: true",
        ),
        (
            json!({"kind": "bind", "guestPath": "/m", "source": directory, "noexec": true}),
            "no_exec: true",
        ),
    ] {
        let found = mount(params.clone());
        assert!(found.contains(request), "{params}: {found}");
    }
    let secrets = json!([{"envVar": "K", "value": "secret-value", "allowedHost": "a.example"}]);
    let found = spec(json!({"secrets": secrets, "network": {"trustHostCas": true}}));
    assert!(found.contains("with_secrets [(\"K\","), "{found}");
    assert!(found.contains("source: Given"), "{found}");
    let found = spec(json!({"network": {"tls": {"blockQuic": true}, "disabled": false}}));
    assert!(found.contains("Udp"), "{found}");
    let found = spec(json!({"network": {"dns": {"allowRebind": true, "queryTimeoutMs": 7}}}));
    assert!(found.contains("dns_timeout: Some(Span(7ms)), dns_private: true"), "{found}");
    let found = spec(json!({"rootfs": {"kind": "oci", "reference": "host"}}));
    assert!(found.contains("image: Host"), "{found}");
    let init = json!({"path": "/sbin/init", "args": ["-x"], "env": {"E": "1"}});
    let found = spec(json!({"process": {"init": init}}));
    for request in ["Path(\"/sbin/init\")", "args: [\"-x\"]", "env: {\"E\": \"1\"}"] {
        assert!(found.contains(request), "{request}: {found}");
    }
    let nested = json!({
        "cpus": 1, "resources": {"cpus": 3},
        "env": {"A": "flat", "B": "flat"}, "process": {"env": {"A": "nested"}},
        "maxDuration": 5, "lifecycle": {"maxDurationSecs": 7},
    });
    let found = spec(nested);
    for request in
        ["millis: 3000", "\"A\": \"nested\"", "\"B\": \"flat\"", "max_duration: Some(Span(7s))"]
    {
        assert!(found.contains(request), "{request}: {found}");
    }
}
