use super::*;
use crate::dialects::ServerConfig;
use crate::namespace::{Namespace, Scope};
use crate::paths::HostPaths;
use crate::recorder::FakeSandboxes;
use msb_spec::Spec;

struct TestServer {
    fake: FakeSandboxes,
    server: Server,
    caller: Caller,
}

impl TestServer {
    fn new(fake: FakeSandboxes) -> Self {
        let paths = Arc::new(HostPaths::below([], "`--host-path`"));
        let server = Server::new(ServerConfig::new(fake.api(), paths, Spec::with_defaults()));
        Self { fake, server, caller: Caller::default() }
    }

    fn raw(&self, body: &[u8]) -> (u16, Value) {
        let reply = rpc(&self.server, body, &self.caller, &Cancel::default());
        (reply.status, serde_json::from_slice(&reply.body).unwrap_or_default())
    }

    fn call(&self, method: &str, params: &Value) -> (u16, Value) {
        let request = json!({"jsonrpc": "2.0", "id": "7", "method": method, "params": params});
        let (status, value) = self.raw(request.to_string().as_bytes());
        if status == 200 {
            assert_eq!((&value["jsonrpc"], &value["id"]), (&json!("2.0"), &json!("7")));
            return (status, value["result"].clone());
        }
        (status, value)
    }
}

#[test]
fn malformed_requests_get_json_rpc_errors() {
    let here = TestServer::new(FakeSandboxes::new(&[]));
    for (body, status, code) in [
        ("{", 400, -32700),
        ("", 400, -32700),
        ("[]", 400, -32600),
        ("3", 400, -32600),
        (r#"{"id":1,"method":"sandbox.start"}"#, 400, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"sandbox.start"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"sandbox.start"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"sandbox.destroy"}"#, 404, -32601),
    ] {
        let (told, value) = here.raw(body.as_bytes());
        assert_eq!((told, &value["error"]["code"]), (status, &json!(code)), "{body}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(here.raw(deep.as_bytes()).0, 400);
    assert_eq!(here.raw(&vec![b' '; LONGEST + 1]).0, 413);
}

#[test]
fn a_notification_runs_and_gets_no_response() {
    let here = TestServer::new(FakeSandboxes::new(&["web"]));
    let body = br#"{"jsonrpc":"2.0","method":"sandbox.stop","params":{"sandbox":"web"}}"#;
    let reply = rpc(&here.server, body, &here.caller, &Cancel::default());
    assert_eq!(reply, Reply { status: 202, body: Vec::new() });
    assert!(here.fake.calls().iter().any(|call| call.operation == "sandbox_stop"));
}

#[test]
fn requests_of_the_sdk_get_the_expected_responses() {
    let here = TestServer::new(FakeSandboxes::new(&[]).with_commands());
    let start = json!({
        "namespace": "default", "sandbox": "sandbox-1",
        "config": {"image": "microsandbox/python", "memory": 512, "cpus": 1},
    });
    let (status, text) = here.call("sandbox.start", &start);
    assert_eq!((status, text), (200, json!("Sandbox sandbox-1 started successfully")));
    let line = json!({
        "sandbox": "sandbox-1", "namespace": "default", "command": "sh",
        "args": ["-c", "echo a; echo b >&2; exit 3"], "timeout": 30,
    });
    let (status, ran) = here.call("sandbox.command.run", &line);
    assert_eq!(status, 200);
    assert_eq!((&ran["exit_code"], &ran["success"]), (&json!(3), &json!(false)));
    assert_eq!((&ran["command"], &ran["args"]), (&line["command"], &line["args"]));
    let output = ran["output"].as_array().unwrap();
    assert!(output.contains(&json!({"stream": "stdout", "text": "a"})), "{output:?}");
    assert!(output.contains(&json!({"stream": "stderr", "text": "b"})), "{output:?}");
    let (status, seen) = here.call("sandbox.metrics.get", &json!({"sandbox": "sandbox-1"}));
    assert_eq!(status, 200);
    let row = &seen["sandboxes"][0];
    assert_eq!((&row["name"], &row["namespace"]), (&json!("sandbox-1"), &json!("default")));
    assert_eq!((&row["running"], &row["memory_usage"]), (&json!(true), &json!(3)));
    let (status, text) =
        here.call("sandbox.stop", &json!({"namespace": "default", "sandbox": "sandbox-1"}));
    assert_eq!((status, text), (200, json!("Sandbox sandbox-1 stopped successfully")));
}

#[test]
fn failures_have_a_status_and_a_code() {
    let mut here = TestServer::new(FakeSandboxes::new(&["web"]));
    for (method, params, status, code) in [
        ("sandbox.start", json!({}), 400, 2001),
        ("sandbox.start", json!([]), 400, 2001),
        ("sandbox.start", json!({"sandbox": ""}), 400, 2001),
        ("sandbox.start", json!({"sandbox": "a/b"}), 400, 2001),
        ("sandbox.start", json!({"sandbox": "a", "config": {"memory": -1}}), 400, 2001),
        ("sandbox.start", json!({"sandbox": "a", "namespace": "a--b"}), 400, 2001),
        ("sandbox.stop", json!({"sandbox": "none"}), 404, 4001),
        ("sandbox.repl.run", json!({"sandbox": "web", "code": "", "language": "c"}), 400, 2001),
        ("sandbox.command.run", json!({"sandbox": "web", "command": "x", "timeout": 0}), 400, 2001),
        ("sandbox.command.run", json!({"sandbox": "web", "command": "x"}), 501, 5001),
        ("sandbox.metrics.get", json!({"sandbox": "none"}), 404, 4001),
    ] {
        let (told, value) = here.call(method, &params);
        assert_eq!((told, &value["code"]), (status, &json!(code)), "{method} {params} {value}");
        assert!(value["error"].is_string());
    }
    here.caller.scope = Scope::One(Namespace::parse("team").unwrap());
    for namespace in ["other", "*", "default"] {
        let (status, value) = here.call("sandbox.metrics.get", &json!({"namespace": namespace}));
        assert_eq!((status, &value["code"]), (403, &json!(3001)), "{namespace}");
    }
}

#[test]
fn refused_keys_have_the_shapes_of_that_server() {
    for (why, status, code) in [
        (KeyError::Missing, 401, 1001),
        (KeyError::FrameError, 401, 1001),
        (KeyError::Signature, 401, 1004),
        (KeyError::Expired, 401, 1004),
        (KeyError::Namespace, 403, 3001),
    ] {
        let reply = refused(why);
        let value: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!((reply.status, &value["code"]), (status, &json!(code)));
    }
    assert_eq!(health().status, 200);
}
