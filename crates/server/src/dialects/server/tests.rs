//! Tests of each argument of each tool, and of the results.

use super::*;
use crate::namespace::Namespace;
use crate::paths::HostPaths;
use crate::recorder::{FakeSandboxes, RecordedCall, name};
use msb_spec::Spec;
use serde_json::json;
use std::sync::Arc;

struct TestServer {
    fake: FakeSandboxes,
    server: Server,
    caller: Caller,
}

impl TestServer {
    fn new(fake: FakeSandboxes) -> Self {
        let paths = Arc::new(HostPaths::below(["/usr".into()], "`--host-path`"));
        let server = Server::new(ServerConfig::new(fake.api(), paths, Spec::with_defaults()));
        Self { fake, server, caller: Caller::default() }
    }

    fn call(&self, tool: &str, arguments: Value) -> ToolResult {
        let Value::Object(arguments) = arguments else { panic!("not an object") };
        self.server
            .call(&ToolCall { caller: self.caller.clone(), ..ToolCall::new(tool, arguments) })
    }

    /// The calls of the Api, and the result.
    fn recorded(&self, tool: &str, arguments: Value) -> (Vec<RecordedCall>, ToolResult) {
        self.fake.calls();
        let answer = self.call(tool, arguments);
        (self.fake.calls(), answer)
    }
}

fn text(answer: &ToolResult) -> &str {
    assert_eq!(answer.text.len(), 1);
    &answer.text[0]
}

/// A sandbox `web` in `default` and one in `team`, and commands that run on this host.
fn setup_world() -> TestServer {
    let fake = FakeSandboxes::new(&["web", "team--web"]);
    TestServer::new(fake.with_commands().with_volumes(&["data"]))
}

/// For every property of every schema: arguments without it, and a value that must change the calls
/// of the Api or the result.
const PROPERTIES: &[(&str, &str, &str, &str)] = &[
    ("sandbox_start", "sandbox", r#"{"sandbox":"web"}"#, r#""new""#),
    ("sandbox_start", "config.image", r#"{"sandbox":"new","config":{}}"#, r#""microsandbox/node""#),
    ("sandbox_start", "config.memory", r#"{"sandbox":"new","config":{}}"#, "300"),
    ("sandbox_start", "config.cpus", r#"{"sandbox":"new","config":{}}"#, "2"),
    ("sandbox_start", "config.volumes", r#"{"sandbox":"new","config":{}}"#, r#"["data:/data"]"#),
    ("sandbox_start", "config.ports", r#"{"sandbox":"new","config":{}}"#, r#"["8080:80"]"#),
    ("sandbox_start", "config.envs", r#"{"sandbox":"new","config":{}}"#, r#"["A=b"]"#),
    ("sandbox_start", "config", r#"{"sandbox":"new"}"#, r#"{"memory":300}"#),
    ("sandbox_start", "namespace", r#"{"sandbox":"new"}"#, r#""team""#),
    ("sandbox_stop", "sandbox", r#"{"sandbox":"web"}"#, r#""new""#),
    ("sandbox_stop", "namespace", r#"{"sandbox":"web"}"#, r#""team""#),
    (
        "sandbox_run_code",
        "sandbox",
        r#"{"sandbox":"web","code":"1","language":"python"}"#,
        r#""new""#,
    ),
    ("sandbox_run_code", "code", r#"{"sandbox":"web","code":"1","language":"python"}"#, r#""2""#),
    (
        "sandbox_run_code",
        "language",
        r#"{"sandbox":"web","code":"1","language":"python"}"#,
        r#""nodejs""#,
    ),
    (
        "sandbox_run_code",
        "namespace",
        r#"{"sandbox":"web","code":"1","language":"python"}"#,
        r#""team""#,
    ),
    ("sandbox_run_command", "sandbox", r#"{"sandbox":"web","command":"echo"}"#, r#""new""#),
    ("sandbox_run_command", "command", r#"{"sandbox":"web","command":"echo"}"#, r#""true""#),
    ("sandbox_run_command", "args", r#"{"sandbox":"web","command":"echo"}"#, r#"["a"]"#),
    ("sandbox_run_command", "namespace", r#"{"sandbox":"web","command":"echo"}"#, r#""team""#),
    ("sandbox_get_metrics", "sandbox", "{}", r#""web""#),
    ("sandbox_get_metrics", "namespace", "{}", r#""team""#),
];

#[test]
fn every_property_of_every_schema_acts() {
    for (tool, property, without, value) in PROPERTIES {
        let without: Value = serde_json::from_str(without).unwrap();
        let value: Value = serde_json::from_str(value).unwrap();
        let mut with = without.clone();
        match property.split_once('.') {
            Some((outer, nested)) => with[outer][nested] = value,
            None => with[*property] = value,
        }
        assert_ne!(without, with, "{tool} {property}");
        let answers = [without, with].map(|arguments| setup_world().recorded(tool, arguments));
        assert_ne!(answers[0], answers[1], "{tool} does not look at `{property}`");
        // An error would be different, too, but the property has to work.
        assert!(!text(&answers[1].1).contains("arguments"), "{tool} {property}: {answers:?}");
    }
}

#[test]
fn the_table_has_every_property() {
    let server = setup_world().server;
    let properties = |schema: &Value| -> Vec<String> {
        schema["properties"].as_object().into_iter().flat_map(|it| it.keys().cloned()).collect()
    };
    for tool in server.tools() {
        let schema = Value::Object((*tool.input).clone());
        for property in properties(&schema) {
            let nested = properties(&schema["properties"][&property]);
            let nested = nested.iter().map(|nested| format!("{property}.{nested}"));
            for path in std::iter::once(property.clone()).chain(nested) {
                let there = PROPERTIES.iter().any(|(of, it, ..)| *of == tool.name && *it == path);
                assert!(there, "{} {path}", tool.name);
            }
        }
    }
}

#[test]
fn answers_are_the_texts_that_clients_read() {
    let here = setup_world();
    let started = here.call("sandbox_start", json!({"sandbox": "new"}));
    let said = "\"Sandbox new started successfully. No image was given; `host` is used\"";
    assert_eq!(text(&started), said);
    let ran = here
        .call("sandbox_run_command", json!({"sandbox": "new", "command": "echo", "args": ["a"]}));
    let expected = json!({
        "command": "echo", "args": ["a"], "exit_code": 0, "success": true,
        "output": [{"stream": "stdout", "text": "a"}],
    });
    assert_eq!(text(&ran), serde_json::to_string_pretty(&expected).unwrap());
    let code = json!({"sandbox": "new", "code": "x = 3\nprint('a')\nx", "language": "python"});
    let expected = json!({"status": "success", "language": "python", "output": [
        {"stream": "stdout", "text": "a"}, {"stream": "stdout", "text": "3"},
    ]});
    assert_eq!(
        text(&here.call("sandbox_run_code", code)),
        serde_json::to_string_pretty(&expected).unwrap()
    );
    let code = json!({"sandbox": "new", "code": "x + 1", "language": "python"});
    assert!(text(&here.call("sandbox_run_code", code)).contains("\"4\""));
    let stopped = here.call("sandbox_stop", json!({"sandbox": "new"}));
    assert_eq!(text(&stopped), "\"Sandbox new stopped successfully\"");
}

#[test]
fn failures_are_marked_as_errors() {
    let here = setup_world();
    for (tool, arguments, part) in [
        ("sandbox_start", json!({}), "missing field `sandbox`"),
        ("sandbox_start", json!({"sandbox": 3}), "argument `sandbox`"),
        ("sandbox_start", json!({"sandbox": "a", "config": {"cpus": "two"}}), "config.cpus"),
        ("sandbox_start", json!({"sandbox": "-a"}), "must start with an alphanumeric"),
        ("sandbox_start", json!({"sandbox": "a", "config": {"cpus": 0}}), "config.cpus"),
        ("sandbox_start", json!({"sandbox": "a", "config": {"memory": u64::MAX}}), "config.memory"),
        ("sandbox_start", json!({"sandbox": "a", "config": {"ports": ["x"]}}), "config.ports"),
        ("sandbox_start", json!({"sandbox": "a", "config": {"envs": ["x"]}}), "config.envs"),
        (
            "sandbox_start",
            json!({"sandbox": "a", "config": {"volumes": ["/etc:/x"]}}),
            "not allowed",
        ),
        ("sandbox_start", json!({"sandbox": "a", "config": {"image": "/etc"}}), "not allowed"),
        (
            "sandbox_start",
            json!({"sandbox": "web", "config": {"memory": 300}}),
            "another configuration",
        ),
        ("sandbox_stop", json!({"sandbox": "none"}), "Error: Sandbox stop failed: no sandbox"),
        (
            "sandbox_get_metrics",
            json!({"sandbox": "none"}),
            "Error: Get metrics failed: no sandbox",
        ),
        ("sandbox_run_code", json!({"sandbox": "web", "code": "", "language": "c"}), "`language`"),
        ("sandbox_run_command", json!({"sandbox": "web", "command": ""}), "`command`"),
        ("sandbox_fly", json!({}), "Tool 'sandbox_fly' not found"),
    ] {
        let answer = here.call(tool, arguments.clone());
        assert!(answer.failed, "{tool} {arguments}");
        assert!(text(&answer).contains(part), "{tool} {arguments}: {}", text(&answer));
    }
}

#[test]
fn a_sandbox_that_exists_is_started_again() {
    let here = setup_world();
    let config = json!({"memory": 300});
    let start = json!({"sandbox": "new", "config": config});
    assert!(!here.call("sandbox_start", start.clone()).failed);
    // It is already running with the requested settings.
    let (calls, answer) = here.recorded("sandbox_start", start.clone());
    assert!(!answer.failed && calls.iter().all(|call| call.operation != "sandbox_create"));
    here.call("sandbox_stop", json!({"sandbox": "new"}));
    for again in [start, json!({"sandbox": "new"})] {
        let (calls, answer) = here.recorded("sandbox_start", again);
        assert!(!answer.failed, "{answer:?}");
        assert!(calls.iter().all(|call| call.operation != "sandbox_create"), "{calls:?}");
    }
    let other = here.call("sandbox_start", json!({"sandbox": "new", "config": {"memory": 301}}));
    assert!(other.failed);
}

#[test]
fn without_its_registry_a_sandbox_has_the_programs_of_the_host() {
    let here = TestServer::new(FakeSandboxes::new(&[]).without_registry());
    let start = json!({"sandbox": "new", "config": {"image": "microsandbox/python"}});
    let answer = here.call("sandbox_start", start);
    let said: String = serde_json::from_str(text(&answer)).unwrap();
    assert!(said.starts_with("Sandbox new started successfully. Its image `microsandbox/python`"));
    assert!(said.contains("cannot reach registry-1.docker.io"), "{said}");
    assert_eq!(here.fake.state.sandboxes.lock().unwrap()[&name("new")].image, "host");
    // An explicitly named image is not replaced.
    let start = json!({"sandbox": "other", "config": {"image": "alpine"}});
    assert!(here.call("sandbox_start", start).failed);
}

#[test]
fn a_key_of_one_namespace_sees_only_that() {
    let mut here = setup_world();
    here.caller.scope = Scope::One(Namespace::parse("team").unwrap());
    let (calls, answer) = here.recorded("sandbox_get_metrics", json!({}));
    let seen: Value = serde_json::from_str(text(&answer)).unwrap();
    assert_eq!(seen["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(seen["sandboxes"][0]["namespace"], "team");
    assert!(calls.iter().all(|call| !call.to_string().contains("\"web\"")), "{calls:?}");
    for namespace in ["default", "other", "*"] {
        for tool in ["sandbox_start", "sandbox_stop", "sandbox_get_metrics"] {
            let answer = here.call(tool, json!({"sandbox": "web", "namespace": namespace}));
            assert!(answer.failed && text(&answer).contains("another namespace"), "{answer:?}");
        }
    }
    let host = json!({"sandbox": "new", "config": {"volumes": ["/usr:/x"]}});
    assert!(text(&here.call("sandbox_start", host)).contains("is not allowed"));
}

#[test]
fn a_star_means_all_namespaces() {
    let here = setup_world();
    for (arguments, names) in [
        (json!({"namespace": "*"}), vec![("team", "web"), ("default", "web")]),
        (json!({}), vec![("team", "web"), ("default", "web")]),
        (json!({"namespace": "default"}), vec![("default", "web")]),
        (json!({"namespace": "team"}), vec![("team", "web")]),
        (json!({"namespace": "team", "sandbox": "web"}), vec![("team", "web")]),
        (json!({"namespace": "empty"}), vec![]),
    ] {
        let answer = here.call("sandbox_get_metrics", arguments.clone());
        let seen: Value = serde_json::from_str(text(&answer)).unwrap();
        let rows = seen["sandboxes"].as_array().unwrap();
        let told: Vec<(&str, &str)> = rows
            .iter()
            .map(|row| (row["namespace"].as_str().unwrap(), row["name"].as_str().unwrap()))
            .collect();
        assert_eq!(told, names, "{arguments}");
    }
}

#[test]
fn prompts_name_the_sandbox_and_image() {
    let server = setup_world().server;
    let arguments = |value: Value| value.as_object().unwrap().clone();
    for (prompt, image) in [
        ("create_python_sandbox", "microsandbox/python"),
        ("create_node_sandbox", "microsandbox/node"),
    ] {
        let text = server.prompt(prompt, &arguments(json!({"sandbox_name": "box"})));
        let ContentPart::Text(text) = &text.unwrap().unwrap()[0] else { panic!("no text") };
        for part in ["`box`", image, "512 MiB", "1 CPU", "/workspace"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let with = arguments(json!({"sandbox_name": "box", "namespace": "team"}));
        let said = server.prompt(prompt, &with).unwrap().unwrap();
        assert!(format!("{said:?}").contains("`team`"));
        for wrong in [json!({}), json!({"sandbox_name": 3}), json!({"sandbox_name": "a b"})] {
            assert!(server.prompt(prompt, &arguments(wrong)).unwrap().is_err());
        }
    }
    assert!(server.prompt("other", &Map::new()).is_none());
}

#[test]
fn a_namespace_completes_to_those_that_the_caller_reaches() {
    let fake = FakeSandboxes::new(&["red--a", "red--b", "rose--a", "web", "a---b"]);
    let paths = Arc::new(HostPaths::below([], "nothing"));
    let server = Server::new(ServerConfig::new(fake.api(), paths, Spec::with_defaults()));
    let complete = |argument: &str, typed: &str, caller: &Caller| {
        server.complete("create_python_sandbox", argument, typed, caller)
    };
    let all = Caller { scope: Scope::All, ..Caller::default() };
    assert_eq!(complete("namespace", "", &all), ["default", "red", "rose"]);
    assert_eq!(complete("namespace", "re", &all), ["red"]);
    assert_eq!(complete("sandbox_name", "", &all), [""; 0]);
    let scope = Scope::One(Namespace::parse("blue").unwrap());
    let blue = Caller { scope, ..Caller::default() };
    assert_eq!(complete("namespace", "", &blue), ["blue"]);
    assert_eq!(complete("namespace", "r", &blue), [""; 0]);
}

#[test]
fn names_and_schemas_are_those_of_that_server() {
    let golden: Value =
        serde_json::from_str(include_str!("../../../tests/dialects/microsandbox-server.json"))
            .unwrap();
    let server = setup_world().server;
    let names: Vec<&str> = server.tools().iter().map(|tool| tool.name.as_str()).collect();
    let golden_tools = golden["tools"].as_array().unwrap();
    let golden_names: Vec<&str> =
        golden_tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, golden_names);
    for (tool, golden) in server.tools().iter().zip(golden_tools) {
        let field = |start: &str| {
            let golden = golden.as_object().unwrap();
            golden.iter().find(|(key, _)| key.starts_with(start)).unwrap().1.clone()
        };
        // Namespaces as they were; required is only what was required at last.
        let mut wanted = field("inputSchema_namespaced");
        wanted["required"] = field("inputSchema_head")["required"].clone();
        let ours = without_descriptions(Value::Object((*tool.input).clone()));
        assert_eq!(ours, wanted, "{}", tool.name);
        assert!(tool.title.is_none() && tool.hints == crate::dialect::ToolHints::default());
    }
    let prompts: Vec<&str> = server.prompts().iter().map(|prompt| prompt.name).collect();
    let golden_prompts: Vec<&str> = golden["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|prompt| prompt["name"].as_str().unwrap())
        .collect();
    assert_eq!(prompts, golden_prompts);
    assert_eq!(server.about().name, golden["initialize_result"]["serverInfo"]["name"]);
}

fn without_descriptions(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept =
                object.into_iter().filter(|(key, value)| key != "description" || value.is_object());
            Value::Object(kept.map(|(key, value)| (key, without_descriptions(value))).collect())
        }
        other => other,
    }
}
