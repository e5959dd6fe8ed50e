//! The listener: which clients get in, and what each sees.

use msb_e2e::Msb;
use msb_e2e::listener::{ACCEPT, Server, begin};
use serde_json::{Value, json};
use std::process::Command;

#[test]
fn requests_without_a_key_are_refused() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "");
        let key = server.key("*");
        for path in [
            "/mcp",
            "/mcp/core",
            "/mcp/microsandbox",
            "/mcp/opensandbox",
            "/mcp/sandbox-mcp",
            "/mcp/server",
        ] {
            let (status, _) = server.ask(path, &[ACCEPT], &begin());
            assert_eq!(status, 401, "{path}");
            let forged = [ACCEPT, ("Authorization", "Bearer msb_e30.e30.AAAA")];
            assert_eq!(server.ask(path, &forged, &begin()).0, 401, "{path}");
            let good = [ACCEPT, ("Authorization", key.as_str())];
            assert_eq!(server.ask(path, &good, &begin()).0, 200, "{path}");
        }
        let again = msb.words("server start --detach");
        assert!(again.stderr.contains("a server runs already"), "{again:#?}");
        drop(server);
        for (line, told) in [("server status", "not running"), ("server status --json", "false")] {
            let gave = msb.words(line);
            assert!((gave.code, gave.stdout.contains(told)) == (1, true), "{line}: {gave:?}");
        }
        // A new secret, and every key of before is worth nothing.
        let server = Server::start(&msb, "--reset-key");
        assert_eq!(server.ask("/mcp/core", &[ACCEPT, ("Authorization", &key)], &begin()).0, 401);
    }
}

/// Attacks from a browser: DNS rebinding and pages of others.
#[test]
fn names_that_are_not_ours_are_refused() {
    let msb = Msb::new();
    let server = Server::start(&msb, "--dev");
    let with = |name: &'static str, value: &str| {
        server.ask("/mcp/core", &[ACCEPT, (name, value)], &begin()).0
    };
    assert_eq!(with("Host", "evil.example"), 403);
    assert_eq!(with("Host", "localhost.evil.example"), 403);
    assert_eq!(with("Origin", "https://evil.example"), 403);
    assert_eq!(with("Origin", "null"), 403);
    assert_eq!(with("Origin", "http://localhost:3000"), 403);
    assert_eq!(with("Origin", &format!("http://{}", server.address)), 200);
    assert_eq!(with("Host", "localhost"), 200);
    let open = msb.words("server start --dev --host 0.0.0.0");
    assert!(open.stderr.contains("is not loopback"), "{open:#?}");
}

#[test]
fn a_namespace_sees_nothing_of_another() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "");
        let (red, blue, all) = (server.key("red"), server.key("blue"), server.key("*"));
        let made =
            server.call(&red, "sandbox.start", &json!({"sandbox": "box", "namespace": "red"}));
        assert_eq!(made["error"], Value::Null, "{made}");
        let seen = |key: &str| {
            let metrics = server.call(key, "sandbox.metrics.get", &json!({}));
            metrics["result"]["sandboxes"].as_array().map_or(0, Vec::len)
        };
        assert_eq!((seen(&red), seen(&blue)), (1, 0));
        let metrics = server.call(&all, "sandbox.metrics.get", &json!({"namespace": "*"}));
        assert_eq!(metrics["result"]["sandboxes"][0]["name"], "box", "{metrics}");
        // The CLI sees it, too.
        assert_eq!(msb.words("ls -q").ok().stdout.lines().count(), 1);
        let headers = [ACCEPT, ("Authorization", blue.as_str())];
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "sandbox_get_metrics", "arguments": {"namespace": "red", "sandbox": "box"},
        }});
        let (_, answer) = server.ask("/mcp", &headers, &call);
        assert!(answer.contains("\"isError\":true"), "{answer}");
        let name = msb.words("ls -q").ok().line();
        msb.words(&format!("rm -f {name}")).ok();
    }
}

/// A session belongs to the key that began it.
#[test]
fn a_session_id_of_another_key_is_unknown() {
    let msb = Msb::new();
    let server = Server::start(&msb, "");
    let (mine, yours) = (server.key("a"), server.key("b"));
    let (_, answer) = server.ask("/mcp/core", &[ACCEPT, ("Authorization", &mine)], &begin());
    let session = answer
        .lines()
        .find_map(|line| line.strip_prefix("mcp-session-id: "))
        .expect("a session")
        .to_owned();
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let ask = |key: &str| {
        let headers = [ACCEPT, ("Authorization", key), ("Mcp-Session-Id", session.as_str())];
        server.ask("/mcp/core", &headers, &list).0
    };
    assert_eq!(ask(&yours), 404);
    assert_eq!(ask(&mine), 200);
}

/// A key of `default` and one of `*` reach the same sandbox by the same name, and share no interpreter.
#[test]
fn what_an_interpreter_knows_stays_with_its_key() {
    let msb = Msb::new();
    let server = Server::start(&msb, "");
    let keys = [server.key("*"), server.key("default")];
    let made = server.call(&keys[0], "sandbox.start", &json!({"sandbox": "py"}));
    assert_eq!(made["error"], Value::Null, "{made}");
    let run = |key: &str, code: &str, more: &Value| {
        let mut params = json!({"sandbox": "py", "language": "python", "code": code});
        if !more.is_null() {
            params["namespace"] = more.clone();
        }
        server.call(key, "sandbox.repl.run", &params)["result"]["output"].to_string()
    };
    let show = "print(globals().get('known', 'nothing'))";
    run(&keys[0], "known = 'of all'", &Value::Null);
    assert!(run(&keys[1], show, &Value::Null).contains("nothing"));
    run(&keys[1], "known = 'of default'", &Value::Null);
    // Both keep what is theirs; the namespace may be named or not.
    assert!(run(&keys[0], show, &Value::Null).contains("of all"));
    assert!(run(&keys[0], show, &json!("default")).contains("of all"));
    assert!(run(&keys[1], show, &json!("default")).contains("of default"));
    msb.words("rm -f py").ok();
}

/// Clients of the microsandbox server say nothing about what they take.
#[test]
fn clients_of_the_old_server_get_plain_json() {
    let msb = Msb::new();
    let server = Server::start(&msb, "--dev");
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let (status, answer) = server.ask("/mcp", &[], &list);
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    assert!(answer.to_lowercase().contains("content-type: application/json"), "{answer}");
    assert!(body.contains("sandbox_run_code"), "{answer}");
}

/// A server with a secret of its own has keys of its own. The secret is in no command line.
#[test]
fn keys_are_made_for_a_secret_of_its_own() {
    let msb = Msb::new();
    let secret = "0123456789abcdef0123456789abcdef";
    let file = msb.file("secret", format!("{secret}\n")).display().to_string();
    let makes = |command: &mut Command| {
        let own = msb_e2e::gives(command).line();
        let server = Server::start(&msb, &format!("-k @{file}"));
        let ask =
            |key: &str| server.ask("/mcp/core", &[ACCEPT, ("Authorization", key)], &begin()).0;
        assert_eq!(ask(&format!("Bearer {own}")), 200);
        assert_eq!(ask(&server.key("*")), 401, "that of the state directory is another");
    };
    let keygen = ["server", "keygen", "--expire", "1h"];
    makes(msb.command(keygen).args(["-k", &format!("@{file}")]));
    makes(msb.command(keygen).env("MSB_SERVER_SECRET", secret));
    makes(msb.command(keygen).args(["-k", "-"]).stdin(std::fs::File::open(&file).expect("a file")));
    // In the background it is handed on.
    let mut start = msb.command(["server", "start", "-dp", "0", "-k", "-"]);
    start.stdin(std::fs::File::open(&file).expect("a file"));
    let address = msb_e2e::gives(&mut start).ok().stdout;
    let own = msb_e2e::gives(msb.command(keygen).args(["-k", &format!("@{file}")])).line();
    let mut ls = msb.command(["--remote", address.trim(), "ls", "-q"]);
    assert_eq!(msb_e2e::gives(ls.env("MSB_API_KEY", &own)).ok().stdout, "");
    for entry in std::fs::read_dir("/proc").expect("it is there").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(secret), "{:?}", entry.path());
    }
    msb.words("server stop").ok();
    // On the command line every user of the machine could read it.
    for words in ["server keygen -k", "server start -dp 0 -k", "server start -p 0 --key"] {
        let gave = msb.words(&format!("{words} {secret}"));
        assert_eq!(gave.code, 125, "{gave:#?}");
        assert!(gave.stderr.contains("takes no secret on the command line"), "{gave:#?}");
        assert!(!gave.stderr.contains(secret), "{gave:#?}");
    }
    assert_eq!(msb.words("server status").stdout, "not running\n");
}

/// In every dialect a key of one namespace has the directory of its name, and nothing else of the host.
#[test]
fn namespaces_share_no_files_of_the_host() {
    let msb = Msb::new();
    msb.file("shown/red/own", "red's");
    msb.file("shown/blue/own", "blue's");
    let shown = msb.scratch().join("shown");
    let server = Server::start(&msb, &format!("--host-path {}", shown.display()));
    let red = server.key("red");
    for (dialect, tool, mount) in [
        ("server", "sandbox_start", "volumes"),
        ("core", "sandbox_create", "mounts"),
        ("microsandbox", "sandbox_create", "mounts"),
    ] {
        let path = format!("/mcp/{dialect}");
        let headers = [ACCEPT, ("Authorization", red.as_str())];
        let (_, hello) = server.ask(&path, &headers, &begin());
        let session = hello.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = session.expect("a session");
        let make = |name: &str, directory: &str| {
            let from = shown.join(directory);
            let text = format!("{}:/m", from.display());
            let arguments = match dialect {
                "server" => json!({
                    "sandbox": name, "config": {"image": "host", (mount): [text]}
                }),
                "core" => json!({"name": name, (mount): [text]}),
                _ => json!({"name": name, (mount): [
                    {"kind": "bind", "hostPath": from, "guestPath": "/m"}
                ]}),
            };
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
                "name": tool, "arguments": arguments,
            }});
            let headers = [ACCEPT, ("Authorization", red.as_str()), ("Mcp-Session-Id", session)];
            server.ask(&path, &headers, &call).1
        };
        for other in ["blue", ".", "red/../blue"] {
            let said = make("other", other);
            assert!(said.contains("\"isError\":true"), "{dialect} {other}: {said}");
        }
        let said = make(&format!("own-{dialect}"), "red");
        assert!(!said.contains("\"isError\":true"), "{dialect}: {said}");
    }
    let made = msb.words("ls -q").ok().stdout;
    assert_eq!(made.lines().count(), 3, "{made}");
    for name in made.lines() {
        msb.words(&format!("rm -f {name}")).ok();
    }
}

#[test]
fn requests_are_logged_without_values() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "--log json");
        let key = server.key("*");
        let path = "/api/v1/sandboxes";
        let query = format!("{path}?unknown=value-of-a-client");
        let good = [("Authorization", key.as_str())];
        assert_eq!(server.request("GET", path, &good, "").0, 200);
        assert_eq!(server.request("GET", &query, &[], "").0, 401);
        let log = std::fs::read_to_string(msb.home().join("server.log")).expect("a log");
        let lines: Vec<Value> =
            log.lines().filter_map(|it| serde_json::from_str(it).ok()).collect();
        let parts =
            |line: &Value| (line["method"].clone(), line["path"].clone(), line["status"].clone());
        let expected = [200, 401].map(|status| (json!("GET"), json!(path), json!(status)));
        assert_eq!(lines.iter().map(parts).collect::<Vec<_>>(), expected, "{log}");
        let id = lines[0]["key"].as_str().expect("the id of a key");
        assert_eq!(id.len(), 32, "{log}");
        assert!(lines[1]["key"].is_null() && lines[0]["ms"].is_u64(), "{log}");
        let token = key.trim_start_matches("Bearer ");
        assert!(!log.contains(token) && !log.contains("value-of-a-client"), "{log}");
        drop(server);
        // Without the flag a server in the background logs nothing.
        let server = Server::start(&msb, "");
        assert_eq!(server.request("GET", "/health", &[], "").0, 200);
        assert_eq!(std::fs::read_to_string(msb.home().join("server.log")).expect("a log"), "");
    }
}
