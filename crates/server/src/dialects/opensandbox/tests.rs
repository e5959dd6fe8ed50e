//! Tests of the tools over a fake `Api` that records its calls.

mod properties;

use super::fake::{ENDS, FakeOpenSandbox};
use super::{OpenSandbox, OpenSandboxSettings};
use crate::dialect::{Caller, Dialect, ToolCall, ToolResult};
use crate::dialects::ServerConfig;
use crate::paths::HostPaths;
use msb_api::{Part, Status, Watch};
use msb_spec::Spec;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

struct TestClient {
    fake: Arc<FakeOpenSandbox>,
    dialect: OpenSandbox,
}

impl TestClient {
    /// Two sandboxes; `one` is connected.
    fn new() -> Self {
        Self::with(FakeOpenSandbox::default())
    }

    fn with(fake: FakeOpenSandbox) -> Self {
        let fake = Arc::new(fake);
        let paths = Arc::new(HostPaths::below([], "the test"));
        let config = ServerConfig::new(fake.api(), paths, Spec::with_defaults());
        let dialect = OpenSandbox::new(config, &OpenSandboxSettings::default());
        for (number, name) in ["one", "two"].into_iter().enumerate() {
            let name = msb_spec::Name::parse(name).unwrap();
            let mut plan =
                crate::recorder::plan_of(&Spec { name: Some(name.clone()), ..Spec::default() });
            plan.created = number as u64;
            fake.sandboxes.lock().unwrap().insert(name, (plan, Status::Running));
        }
        let client = Self { fake, dialect };
        let healthy = client.fake.ill.swap(0, Ordering::Relaxed);
        client.done("sandbox_connect", json!({"sandbox_id": "one"}));
        client.fake.ill.store(healthy, Ordering::Relaxed);
        client.fake.recorder.calls();
        client
    }

    fn call(&self, tool: &str, arguments: Value) -> ToolResult {
        let Value::Object(arguments) = arguments else { panic!("not an object") };
        self.dialect.call(&ToolCall::new(tool, arguments))
    }

    fn done(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.call(tool, arguments);
        assert!(!answer.failed, "{tool}: {}", answer.text[0]);
        answer.structured.expect("an answer has a structure")
    }

    fn failed(&self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments);
        assert!(answer.failed, "{tool}: {:?}", answer.text);
        assert_eq!(answer.structured, None);
        answer.text.concat()
    }

    fn file(&self, path: &str, content: &[u8]) {
        self.fake.files.lock().unwrap().insert(path.to_owned(), content.to_vec());
    }
}

/// A schema without descriptions, which are our own.
fn bare(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let properties = fields.get("properties").is_some();
            let kept = fields
                .iter()
                .filter(|(key, value)| *key != "description" || !value.is_string() && properties);
            Value::Object(kept.map(|(key, value)| (key.clone(), bare(value))).collect())
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}

#[test]
fn names_and_schemas_are_those_of_opensandbox() {
    let text = include_str!("../../../tests/dialects/opensandbox-mcp.json");
    let theirs: Value = serde_json::from_str(text).unwrap();
    let client = TestClient::new();
    let ours: Vec<Value> = client
        .dialect
        .tools()
        .iter()
        .map(|tool| {
            assert!(tool.description.len() > 40, "{}", tool.name);
            let (input, output) =
                (Value::Object((*tool.input).clone()), tool.output.as_ref().unwrap());
            json!({
                "name": tool.name,
                "inputSchema": bare(&input),
                "outputSchema": bare(&Value::Object((**output).clone())),
            })
        })
        .collect();
    let theirs: Vec<Value> = theirs["tools"].as_array().unwrap().iter().map(bare).collect();
    assert_eq!(ours.len(), 19);
    for (our, their) in ours.iter().zip(&theirs) {
        assert_eq!(our, their, "{}", our["name"]);
    }
}

#[test]
fn a_new_sandbox_has_an_id_an_end_and_its_labels() {
    let client = TestClient::new();
    let made = client.done(
        "sandbox_create",
        json!({"image": "python:3.12", "metadata": {"team": "a"}, "extensions": {"x": "y"}}),
    );
    let id = made["sandbox_id"].as_str().unwrap();
    assert_eq!(id.len(), 36);
    assert_eq!(
        made["info"],
        json!({
            "id": id,
            "status": {"state": "Running", "reason": null, "message": null,
                "last_transition_at": "1970-01-01T00:00:01.000Z"},
            "entrypoint": [],
            "expires_at": "2023-11-14T22:13:20.000Z",
            "created_at": "1970-01-01T00:00:00.000Z",
            "image": {"image": "python:3.12", "auth": null},
            "snapshot_id": null, "platform": null, "allocation": null,
            "metadata": {"team": "a"}, "extensions": {"x": "y"},
        })
    );
    // Its creator can use it without connecting.
    client.done("command_run", json!({"sandbox_id": id, "command": "true"}));
}

#[test]
fn an_unhealthy_sandbox_is_removed() {
    let client = TestClient::new();
    client.fake.ill.store(u32::MAX, Ordering::Relaxed);
    let text = client.failed(
        "sandbox_create",
        json!({"image": "host", "ready_timeout_seconds": 0.01, "health_check_polling_interval_ms": 1}),
    );
    assert!(text.starts_with("Error executing tool sandbox_create: sandbox `"), "{text}");
    assert!(text.contains("\n  cause: it was polled for 0.01 s\nhint: "), "{text}");
    assert_eq!(client.fake.sandboxes.lock().unwrap().len(), 2);
}

#[test]
fn a_cancelled_call_leaves_no_sandbox() {
    let client = TestClient::new();
    let arguments = json!({"image": "host"}).as_object().unwrap().clone();
    let call = ToolCall::new("sandbox_create", arguments);
    call.cancel.cancel();
    assert!(client.dialect.call(&call).failed);
    assert_eq!(client.fake.sandboxes.lock().unwrap().len(), 2);
}

#[derive(Default)]
struct RecordedSteps(Mutex<Vec<(String, Option<u64>)>>);

impl Watch for RecordedSteps {
    fn step(&self, what: &str, done: Option<Part>) {
        self.0.lock().unwrap().push((what.to_owned(), done.map(|part| part.done)));
    }
}

#[test]
fn progress_follows_the_steps_of_the_contract() {
    let client = TestClient::new();
    let steps = |tool: &str, arguments: Value| {
        let watch = Arc::new(RecordedSteps::default());
        let arguments = arguments.as_object().unwrap().clone();
        let call = ToolCall {
            watch: Arc::clone(&watch) as Arc<dyn Watch>,
            ..ToolCall::new(tool, arguments)
        };
        assert!(!client.dialect.call(&call).failed);
        let steps = std::mem::take(&mut *watch.0.lock().unwrap());
        steps.into_iter().map(|(what, done)| format!("{what} {done:?}")).collect::<Vec<_>>()
    };
    assert_eq!(
        steps("sandbox_create", json!({"image": "host"})),
        [
            "Validating input Some(100)",
            "Creating sandbox Some(300)",
            "pulling Some(550)",
            "starting the sandbox None",
            "Fetching sandbox info Some(800)",
            "Done Some(1000)",
        ]
    );
    assert_eq!(
        steps("sandbox_list", json!({})),
        ["Listing sandboxes Some(100)", "Done Some(1000)"]
    );
}

#[test]
fn tools_need_a_connected_sandbox() {
    let client = TestClient::new();
    let run = |more: Value| {
        let mut arguments = json!({"sandbox_id": "two", "command": "true"});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.call("command_run", arguments)
    };
    let text = run(json!({})).text.concat();
    assert_eq!(
        text,
        "Error executing tool command_run: sandbox `two` is not connected here\n\
         hint: call `sandbox_connect` once, or set `connect_if_missing`"
    );
    assert!(!run(json!({"connect_if_missing": true})).failed);
    // From now on it is connected.
    assert!(!run(json!({})).failed);
    let text = client.failed("file_read", json!({"sandbox_id": "none", "path": "/x"}));
    assert!(text.contains("no sandbox `none`"), "{text}");
    // These need no connection.
    client.done("sandbox_renew", json!({"sandbox_id": "two", "timeout_seconds": 60}));
    assert_eq!(
        client.done("sandbox_kill", json!({"sandbox_id": "two"})),
        json!({"status": "killed"})
    );
    assert!(run(json!({"connect_if_missing": true})).failed);
}

#[test]
fn connections_belong_to_one_key() {
    let client = TestClient::new();
    let caller = Caller { key: Some("k1".to_owned()), ..Caller::default() };
    let arguments = json!({"sandbox_id": "one", "command": "true"}).as_object().unwrap().clone();
    let answer =
        client.dialect.call(&ToolCall { caller, ..ToolCall::new("command_run", arguments) });
    assert!(answer.text[0].contains("sandbox `one` is not connected here"), "{answer:?}");
}

#[test]
fn lists_have_pages_and_filters() {
    let client = TestClient::new();
    for number in 0..5 {
        let team = if number % 2 == 0 { "even" } else { "odd" };
        client.done("sandbox_create", json!({"image": "host", "metadata": {"team": team}}));
    }
    client.fake.set("two", Status::Stopped);
    let list = |filter: Value| client.done("sandbox_list", json!({"filter": filter}));
    let ids = |page: &Value| {
        let infos = page["sandbox_infos"].as_array().unwrap().clone();
        infos.iter().map(|info| info["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = ids(&list(json!(null)));
    assert_eq!(all.len(), 7);
    let second = list(json!({"page": 2, "page_size": 3}));
    assert_eq!(ids(&second), all[3..6]);
    assert_eq!(
        second["pagination"],
        json!({"page": 2, "page_size": 3, "total_items": 7, "total_pages": 3, "has_next_page": true})
    );
    let last = list(json!({"page": 3, "page_size": 3}));
    assert_eq!((ids(&last).len(), &last["pagination"]["has_next_page"]), (1, &json!(false)));
    assert!(ids(&list(json!({"page": 9}))).is_empty());
    assert_eq!(ids(&list(json!({"metadata": {"team": "odd"}}))).len(), 2);
    assert_eq!(ids(&list(json!({"states": ["Terminated", "Failed"]}))), ["two"]);
    let two = client.done("sandbox_get_info", json!({"sandbox_id": "two"}));
    assert_eq!(two["status"]["reason"], "expired");
    assert_eq!(two["expires_at"], "1970-01-01T00:00:02.000Z");
    for bad in [json!({"states": ["Gone"]}), json!({"page": 0}), json!({"page_size": 201})] {
        let text = client.failed("sandbox_list", json!({"filter": bad}));
        assert!(text.starts_with("Error executing tool sandbox_list: argument `filter."), "{text}");
    }
}

#[test]
fn commands_answer_as_executions() {
    let client = TestClient::new();
    let mut ran = client.done("command_run", json!({"sandbox_id": "one", "command": "exit 3"}));
    ran["error"]["timestamp"] = json!(0);
    for stream in ["stdout", "stderr"] {
        ran["logs"][stream][0]["timestamp"] = json!(0);
    }
    assert_eq!(
        ran,
        json!({
            "id": "7", "execution_count": null, "result": [],
            "error": {"name": "CommandExecError", "value": "3", "timestamp": 0,
                "traceback": ["exit status 3"]},
            "complete": null, "exit_code": 3,
            "logs": {
                "stdout": [{"text": "exit 3", "timestamp": 0, "is_error": false}],
                "stderr": [{"text": "warn", "timestamp": 0, "is_error": true}],
            },
        })
    );
    let background = json!({"sandbox_id": "one", "command": "sleep 9", "background": true});
    let begun = client.done("command_run", background);
    assert_eq!((&begun["exit_code"], &begun["error"]), (&json!(null), &json!(null)));
    assert!(begun["complete"]["timestamp"].is_u64(), "{begun}");
    let client =
        TestClient::with(FakeOpenSandbox { without_bash: true, ..FakeOpenSandbox::default() });
    client.done("command_run", json!({"sandbox_id": "one", "command": "true"}));
    let started = client.fake.recorder.changes().remove(1);
    let command = &started.arguments["command"];
    assert_eq!(
        (started.operation, &command["argv"], &command["workdir"], &command["detached"]),
        ("exec_start", &json!(["sh", "-c", "true"]), &json!(null), &json!(false))
    );
}

#[test]
fn an_interrupt_grows_harder_until_the_command_ends() {
    let client = TestClient::new();
    let interrupt = || {
        let arguments = json!({"sandbox_id": "one", "execution_id": "7"});
        client.call("command_interrupt", arguments).text.concat()
    };
    assert!(interrupt().contains("no command `7` runs"));
    *client.fake.stubborn.lock().unwrap() = Some(2);
    assert!(interrupt().contains("interrupted"));
    *client.fake.stubborn.lock().unwrap() = Some(9);
    assert!(interrupt().contains("interrupted"));
    let mut calls = client.fake.recorder.changes();
    calls.retain(|call| call.operation != "exec_wait");
    let signal = |signal: i32| ("exec_signal", json!({"name": "one", "id": 7, "signal": signal}));
    assert_eq!(calls, [2, 2, 15, 9].map(signal));
}

#[test]
fn files_are_moved_without_replacing_any() {
    let client = TestClient::new();
    client.file("/a", b"1");
    client.file("/b", b"2");
    let moved = |entries: Value| {
        client.call("file_move", json!({"sandbox_id": "one", "entries": entries})).text.concat()
    };
    let text = moved(json!([
        {"source": "/a", "destination": "/d/c"}, {"src": "/d/c", "dest": "/b"}
    ]));
    assert!(text.contains("`/b` is there already"), "{text}");
    assert!(text.contains("cause: the 1 before it were moved"), "{text}");
    let made = ("file_mkdir", json!({"sandbox": "one", "path": "/d", "parents": true}));
    assert!(client.fake.recorder.calls().iter().any(|call| *call == made));
    assert!(moved(json!([{"source": "/x", "destination": "/y"}])).contains("no `/x`"));
}

#[test]
fn files_and_directories_are_not_removed_for_each_other() {
    let client = TestClient::new();
    client.file("/d/a", b"1");
    let paths = |tool: &str, path: &str| {
        client.call(tool, json!({"sandbox_id": "one", "paths": [path]})).text.concat()
    };
    assert!(paths("file_delete", "/d").contains("hint: `file_delete_directories`"));
    assert!(paths("file_delete_directories", "/d/a").contains("hint: `file_delete` removes"));
    for gone in ["file_delete", "file_delete_directories"] {
        assert!(paths(gone, "/none").contains("deleted"));
    }
    assert!(paths("file_delete", "d").contains("argument `paths`: not an absolute path"));
    assert!(paths("file_delete_directories", "/d").contains("deleted"));
    let removed = ("file_remove", json!({"sandbox": "one", "path": "/d", "recursive": true}));
    assert_eq!(client.fake.recorder.changes(), [removed]);
}

#[test]
fn lists_of_results_have_a_text_each() {
    let client = TestClient::new();
    client.file("/etc/passwd", b"root:x:0:0::/root:/bin/sh\n");
    client.file("/etc/group", b"root:x:0:\nstaff:x:1:\n");
    client.file("/w/a.py", b"xx");
    client.file("/w/d/b.py", b"x");
    client.file("/w/c.txt", b"x");
    let found =
        client.call("file_search", json!({"sandbox_id": "one", "path": "/w", "pattern": "*.py"}));
    assert_eq!(found.text.len(), 2);
    assert_eq!(
        found.structured.unwrap()["result"][0],
        json!({"path": "/w/a.py", "type": "file", "mode": 644, "owner": "root", "group": "staff",
            "size": 2, "modified_at": "1970-01-01T00:00:02.000Z",
            "created_at": "1970-01-01T00:00:01.000Z"})
    );
    let entries = json!([
        {"path": "/w/a.py", "old_content": "x", "new_content": "y"},
        {"path": "/w/c.txt", "old_content": "z", "new_content": "y"},
    ]);
    let replaced =
        client.done("file_replace_contents", json!({"sandbox_id": "one", "entries": entries}));
    assert_eq!(
        replaced,
        json!({"result": [{"path": "/w/a.py", "replaced_count": 2}, {"path": "/w/c.txt", "replaced_count": 0}]})
    );
    assert_eq!(client.fake.files.lock().unwrap()["/w/a.py"], b"yy");
}

#[test]
fn metrics_are_shares_of_the_limits() {
    let client = TestClient::new();
    let measured = client.done("sandbox_get_metrics", json!({"sandbox_id": "one"}));
    let count = measured["cpu_count"].as_f64().unwrap();
    // The fake uses half of one processor.
    assert_eq!(measured["cpu_used_percentage"].as_f64().unwrap(), 50.0 / count);
    assert_eq!(measured["memory_total_in_mib"], 6.0);
    assert_eq!(measured["memory_used_in_mib"], 3.0);
}

#[test]
fn an_endpoint_publishes_a_port_once() {
    let client = TestClient::new();
    let endpoint =
        |port: u32| client.done("sandbox_get_endpoint", json!({"sandbox_id": "one", "port": port}));
    let empty = json!({});
    assert_eq!(
        endpoint(80),
        json!({"endpoint": "127.0.0.1:4000", "headers": empty, "origin": null})
    );
    assert_eq!(endpoint(81)["endpoint"], "127.0.0.1:5000");
}

#[test]
fn renewal_returns_the_expiry() {
    let client = TestClient::new();
    let renewed =
        client.done("sandbox_renew", json!({"sandbox_id": "one", "timeout_seconds": 1.5}));
    assert_eq!(renewed, json!({"expires_at": super::output::rfc3339(ENDS + 1500)}));
    let call = ("sandbox_renew", json!({"name": "one", "left_ms": 1500}));
    assert_eq!(client.fake.recorder.changes(), [call]);
}

#[test]
fn no_input_is_more_than_an_error() {
    let client = TestClient::new();
    assert_eq!(client.failed("no_such", json!({})), "Unknown tool: no_such");
    let argument_error =
        [json!(null), json!(-1), json!(1e300), json!([]), json!({"x": 1}), json!("\0")];
    for tool in client.dialect.tools() {
        let text = client.failed(&tool.name, json!({"sandbox_id": 3, "filter": 3, "image": 3}));
        assert!(
            text.starts_with(&format!("Error executing tool {}: argument `", tool.name)),
            "{text}"
        );
        for property in tool.input["properties"].as_object().unwrap().keys() {
            for value in &argument_error {
                let mut arguments = properties::usual(&tool.name);
                arguments.insert(property.clone(), value.clone());
                client.call(&tool.name, Value::Object(arguments));
            }
        }
    }
    // Unknown arguments are ignored, as in OpenSandbox.
    client.done("sandbox_list", json!({"unknown": 1}));
}

#[test]
fn a_call_beyond_the_time_limit_is_cancelled() {
    let fake = Arc::new(FakeOpenSandbox::default());
    fake.ill.store(u32::MAX, Ordering::Relaxed);
    let client = TestClient::new();
    let paths = Arc::new(HostPaths::unrestricted());
    let config = ServerConfig::new(fake.api(), paths, Spec::default());
    let request_timeout = Some(std::time::Duration::from_millis(20));
    let dialect = OpenSandbox::new(
        config,
        &OpenSandboxSettings { request_timeout, ..OpenSandboxSettings::default() },
    );
    let sandboxes = client.fake.sandboxes.lock().unwrap().clone();
    fake.sandboxes.lock().unwrap().extend(sandboxes);
    let arguments: Map<String, Value> = json!({"sandbox_id": "one"}).as_object().unwrap().clone();
    let call = ToolCall::new("sandbox_connect", arguments);
    let answer = dialect.call(&call);
    assert!(answer.text[0].contains("no result after 0.02 s"), "{answer:?}");
    assert!(call.cancel.is_cancelled());
}
