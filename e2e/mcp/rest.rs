//! Every Operation over HTTP.

use msb_e2e::listener::Server;
use msb_e2e::{Msb, eventually};
use serde_json::{Value, json};

/// A client with a key.
struct Client<'a> {
    server: &'a Server<'a>,
    key: String,
}

impl Client<'_> {
    /// Asks; the status and what is in the body.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("Authorization", self.key.as_str())];
        let (status, answer) =
            self.server.request(method, &format!("/api/v1{path}"), &headers, &body);
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        (status, serde_json::from_str(body).unwrap_or_else(|_| body.into()))
    }

    #[track_caller]
    fn does(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask(method, path, body);
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    fn events(&self, path: &str, body: &Value) -> String {
        let headers = [("Authorization", self.key.as_str()), ("Accept", "text/event-stream")];
        self.server.request("POST", &format!("/api/v1{path}"), &headers, &body.to_string()).1
    }
}

#[test]
fn a_sandbox_lives_over_http() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "");
        let client = Client { server: &server, key: server.key("*") };
        let asked = json!({"spec": {"name": "box", "image": "host"}});
        let events = client.events("/sandboxes", &asked);
        assert!(events.contains("event: progress") && events.contains("event: answer"), "{events}");
        assert_eq!(client.ask("POST", "/sandboxes", &asked).0, 409);
        assert_eq!(client.does("GET", "/sandboxes", &Value::Null)[0]["name"], "box");
        // The CLI sees the same.
        assert_eq!(msb.words("ls -q").line(), "box");
        let command =
            json!({"command": {"argv": ["sh", "-c", "cat; echo bad >&2; exit 3"]}, "stdin": "in"});
        let ran = client.does("POST", "/sandboxes/box/execs", &command);
        assert_eq!(ran["stdout"]["text"], "in");
        assert_eq!(ran["stderr"]["text"], "bad\n");
        assert_eq!(ran["exit"]["code"], 3);
        let events = client.events("/sandboxes/box/execs/stream", &command);
        for part in ["event: started", "event: stdout\ndata: {\"text\":\"in\"}", "event: exited"] {
            assert!(events.contains(part), "{events}");
        }
        let file = "/files/content?sandbox=box&path=/root/x";
        assert_eq!(client.does("PUT", file, &json!("text"))["count"], 6);
        // It comes in pieces.
        let content = client.does("GET", file, &Value::Null);
        assert_eq!(content, "6\r\n\"text\"\r\n0\r\n\r\n");
        assert_eq!(client.ask("GET", "/files/content?sandbox=box&path=/none", &Value::Null).0, 404);
        let made = client.does("POST", "/snapshots", &json!({"name": "s", "of": "box"}));
        assert_eq!(made["names"], json!(["s"]));
        client.does("POST", "/sandboxes/box/stop", &json!({}));
        client.does("DELETE", "/sandboxes/box?force=true", &Value::Null);
        client.does("DELETE", "/snapshots/s", &Value::Null);
        let ran = client.does(
            "POST",
            "/run",
            &json!({"spec": {"image": "host", "command": ["id", "-u"]}}),
        );
        assert_eq!(ran["stdout"]["text"], "0\n");
    }
}

/// A command ends with the connection of its client; a detached one goes on.
#[test]
fn a_client_that_disconnects_ends_its_command() {
    let msb = Msb::new();
    let server = Server::start(&msb, "");
    let client = Client { server: &server, key: server.key("*") };
    client.does("POST", "/sandboxes", &json!({"spec": {"name": "box", "image": "host"}}));
    let headers = [("Authorization", client.key.as_str())];
    let events = [headers[0], ("Accept", "text/event-stream")];
    let runs =
        |script: &str| msb.run(["ps", "--execs", "--json", "box"]).ok().stdout.contains(script);
    for (headers, detached, script) in [
        (&headers[..], false, "sleep 1001"),
        (&events[..], false, "sleep 1002"),
        (&headers[..], true, "sleep 1003"),
    ] {
        let asked = json!({"command": {"argv": ["sh", "-c", script], "detached": detached}});
        let path = "/api/v1/sandboxes/box/execs";
        let call = server.begin("POST", path, headers, &asked.to_string());
        eventually("it runs", || runs(script));
        drop(call);
        if !detached {
            eventually("it has ended", || !runs(script));
        }
    }
    assert!(runs("sleep 1003"));
    let spec = json!({"name": "once", "image": "host", "command": ["sleep", "1004"]});
    let call = server.begin("POST", "/api/v1/run", &headers, &json!({"spec": spec}).to_string());
    eventually("it is there", || msb.words("ls -q").stdout.contains("once"));
    drop(call);
    eventually("it is gone", || !msb.words("ls -q").stdout.contains("once"));
}

#[test]
fn errors_have_the_usual_form() {
    let msb = Msb::new();
    let server = Server::start(&msb, "");
    let client = Client { server: &server, key: server.key("*") };
    for (method, path, body, status, kind) in [
        ("GET", "/sandboxes/none", Value::Null, 404, "not_found"),
        ("GET", "/sandboxes/a%2Fb", Value::Null, 400, "invalid"),
        ("GET", "/sandboxes/a?x=1", Value::Null, 400, "invalid"),
        ("POST", "/sandboxes/a/stop", json!({"grace_ms": "soon"}), 400, "invalid"),
        ("POST", "/sandboxes/a/stop", json!([]), 400, "invalid"),
        ("GET", "/nowhere", Value::Null, 404, "not_found"),
        ("PUT", "/sandboxes", Value::Null, 405, "invalid"),
        ("GET", "/run/socket", Value::Null, 400, "invalid"),
    ] {
        let (found, answer) = client.ask(method, path, &body);
        assert_eq!((found, &answer["error"]["kind"]), (status, &json!(kind)), "{path}: {answer}");
    }
    let unauthorized = Client { server: &server, key: "Bearer none".to_owned() };
    let (status, answer) = unauthorized.ask("GET", "/sandboxes", &Value::Null);
    assert_eq!((status, &answer["error"]["kind"]), (401, &json!("denied")), "{answer}");
}

/// Clients reach only allowed paths of the host, and no other namespace.
#[test]
fn a_client_reaches_what_it_may_and_nothing_else() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "");
        let client = Client { server: &server, key: server.key("*") };
        let (red, blue) = (
            Client { server: &server, key: server.key("red") },
            Client { server: &server, key: server.key("blue") },
        );
        let host = json!({"spec": {"name": "box", "image": "host", "mounts": ["/etc:/x"]}});
        let secret = json!({"spec": {"name": "box", "image": "host", "network": {
            "secrets": [{"name": "KEY", "hosts": ["example.com"], "source": {"file": "/etc/shadow"}}]}}});
        let sync = json!({"spec": {"source": "/etc", "sandbox": "box", "target": "/x"}});
        for caller in [&client, &red] {
            assert_eq!(caller.ask("POST", "/sandboxes", &host).0, 403);
            assert_ne!(caller.ask("POST", "/sandboxes", &secret).0, 200);
            assert_eq!(caller.ask("POST", "/syncs", &sync).0, 403);
        }
        red.does("POST", "/sandboxes", &json!({"spec": {"name": "box", "image": "host"}}));
        assert_eq!(blue.does("GET", "/sandboxes", &Value::Null), json!([]));
        assert_eq!(blue.ask("GET", "/sandboxes/box", &Value::Null).0, 404);
        assert_eq!(blue.ask("GET", "/sandboxes/red--box", &Value::Null).0, 404);
        assert_eq!(red.does("GET", "/sandboxes", &Value::Null)[0]["name"], "box");
        assert_eq!(client.does("GET", "/sandboxes", &Value::Null)[0]["name"], "red--box");
        let push = json!({"sandbox": "box", "from": "/etc/hostname", "to": "/root/x"});
        assert_eq!(red.ask("POST", "/files/push", &push).0, 403);
        red.does("DELETE", "/sandboxes/box?force=true", &Value::Null);
    }
}
