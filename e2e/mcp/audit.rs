//! The caller of each command in the event log, which a client cannot forge; and the metrics that a
//! key sees.

use msb_e2e::listener::Server;
use msb_e2e::schema_client::SchemaClient;
use msb_e2e::{Msb, eventually};
use serde_json::{Value, json};

/// The callers of the commands of a sandbox, oldest first.
fn askers(msb: &Msb, name: &str) -> Vec<Value> {
    let text = msb.run(["events", name, "--execs", "--json"]).ok().stdout;
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.filter(|event| event["event"] == "exec_started").map(|it| it["by"].clone()).collect()
}

fn post(server: &Server<'_>, key: &str, path: &str, body: &Value) -> Value {
    let headers = [("Authorization", key)];
    let (status, answer) = server.ask(&format!("/api/v1{path}"), &headers, body);
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).expect("JSON")
}

#[test]
fn a_client_of_the_server_cannot_forge_its_origin() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "");
        let (all, team) = (server.key("*"), server.key("team"));
        let pretended = json!({"surface": "cli"});
        post(&server, &team, "/sandboxes", &json!({"spec": {"name": "box", "image": "host"}}));
        let command = json!({"command": {"argv": ["true"], "asker": pretended}});
        post(&server, &team, "/sandboxes/box/execs", &command);
        post(&server, &all, "/sandboxes/team--box/execs", &command);
        let by = askers(&msb, "team--box");
        assert_eq!((&by[0]["surface"], &by[0]["namespace"]), (&json!("rest"), &json!("team")));
        assert_eq!(by[1]["surface"], "rest");
        assert!(by[1].get("namespace").is_none(), "{by:?}");
        let keys: Vec<&str> = by.iter().map(|by| by["key"].as_str().unwrap()).collect();
        assert!(keys.iter().all(|key| key.len() == 32) && keys[0] != keys[1], "{keys:?}");
        // As the first command as well.
        let spec = json!({"spec": {"name": "main", "image": "host", "command": ["sleep", "1000"]}});
        post(&server, &all, "/sandboxes", &spec);
        assert_eq!(askers(&msb, "main")[0]["surface"], "rest");
        let params = json!({"sandbox": "main", "command": "true"});
        server.call(&all, "sandbox.command.run", &params);
        assert_eq!(askers(&msb, "main")[1]["surface"], "rpc");
        // The caller of a service is the client that starts it, not the one that made it.
        let service = ["create", "-n", "svc", "--restart", "always", "host", "--", "sleep", "1000"];
        msb.run(service).ok();
        msb.words("stop svc").ok();
        post(&server, &all, "/sandboxes/svc/start", &json!({}));
        eventually("its start is written", || askers(&msb, "svc").len() == 2);
        let by = askers(&msb, "svc");
        assert_eq!([&by[0]["surface"], &by[1]["surface"]], ["cli", "rest"], "{by:?}");
        msb.words("rm -f svc").ok();
        // Nor can `msb --remote`.
        let headers = [("Authorization", team.as_str())];
        let (status, answer) = server.request("GET", "/api/v1/sandboxes/box/audit", &headers, "");
        assert!(status == 200 && answer.contains("\"damage\":[]"), "{answer}");
        msb.words("rm -f team--box").ok();
        msb.words("rm -f main").ok();
    }
}

/// One interpreter for both, and yet each key has run its own code.
#[test]
fn code_for_an_interpreter_is_listed_with_the_key_that_had_it_run() {
    let msb = Msb::new();
    let server = Server::start(&msb, "");
    let keys = [server.key("team"), server.key("team")];
    post(&server, &keys[0], "/sandboxes", &json!({"spec": {"name": "box", "image": "host"}}));
    for (key, code) in keys.iter().zip(["print(1)", "1/0"]) {
        let params =
            json!({"sandbox": "box", "namespace": "team", "language": "python", "code": code});
        server.call(key, "sandbox.repl.run", &params);
    }
    let listed = || -> Vec<Value> {
        let text = msb.words("events team--box --execs --json").ok().stdout;
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let of = |what: &str| -> Vec<Value> {
        listed().into_iter().filter(|event| event["event"] == what).collect()
    };
    let begun = of("code_started");
    let code: Vec<&Value> = begun.iter().map(|event| &event["argv"][0]).collect();
    assert_eq!(code, ["print(1)", "1/0"]);
    assert_ne!(begun[0]["by"]["key"], begun[1]["by"]["key"], "{begun:?}");
    eventually("both ends are noted", || of("code_ended").len() == 2);
    let ended: Vec<Value> = of("code_ended").iter().map(|event| event["status"].clone()).collect();
    assert_eq!(ended, [0, 1]);
    msb.words("rm -f team--box").ok();
}

#[test]
fn each_dialect_says_that_it_is_asked() {
    let msb = Msb::new();
    msb.words("create -n box").ok();
    let mut mcp = SchemaClient::open(&msb, "microsandbox");
    mcp.done("sandbox_exec", json!({"name": "box", "command": "true"}));
    drop(mcp);
    assert_eq!(askers(&msb, "box"), [json!({"surface": "mcp", "dialect": "microsandbox"})]);
}

#[test]
fn a_key_sees_the_metrics_of_its_own_sandboxes() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "");
        let (all, team) = (server.key("*"), server.key("team"));
        post(&server, &team, "/sandboxes", &json!({"spec": {"name": "box", "image": "host"}}));
        msb.words("create -n other").ok();
        let metrics = |key: &str| server.request("GET", "/metrics", &[("Authorization", key)], "");
        assert_eq!(server.request("GET", "/metrics", &[], "").0, 401);
        let (status, text) = metrics(&team);
        assert_eq!(status, 200);
        assert!(text.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{text}");
        assert!(text.contains("{name=\"box\"") && !text.contains("other"), "{text}");
        let (_, text) = metrics(&all);
        assert!(text.contains("{name=\"team--box\"") && text.contains("{name=\"other\""), "{text}");
        msb.words("rm -f team--box").ok();
    }
}
