//! A web page in the user's browser, for example one that a sandbox serves on a published port,
//! sends requests to the server without keys.

use msb_e2e::Msb;
use msb_e2e::listener::{ACCEPT, Server, begin};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Where a page may come from that is not the server's own.
const PAGES: [&str; 5] = [
    "http://127.0.0.1:8080",
    "http://localhost:3000",
    "http://[::1]:5555",
    "https://evil.example",
    "null",
];

/// Method and path of everything that the server answers, from its own document and the paths beside.
fn routes(server: &Server<'_>) -> BTreeSet<(String, String)> {
    let (status, answer) = server.request("GET", "/openapi.json", &[], "");
    assert_eq!(status, 200, "{answer}");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let document: Value = serde_json::from_str(body).expect("JSON");
    let mut routes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let path = path.replace("{name}", "box").replace("{id}", "1");
            routes.insert((method.to_uppercase(), path));
        }
    }
    let documented = routes.len();
    assert!(documented > 50, "{documented} routes");
    for path in ["/openapi.json", "/metrics", "/health", "/api/v1/health", "/none"] {
        routes.insert(("GET".to_owned(), path.to_owned()));
    }
    routes.insert(("POST".to_owned(), "/api/v1/rpc".to_owned()));
    for dialect in ["", "/core", "/microsandbox", "/server", "/opensandbox", "/sandbox-mcp"] {
        for method in ["GET", "POST", "DELETE"] {
            routes.insert((method.to_owned(), format!("/mcp{dialect}")));
        }
    }
    routes
}

/// Every route, every way that a page elsewhere has to ask.
#[test]
fn no_route_answers_a_page_of_another_origin() {
    let msb = Msb::new();
    let server = Server::start(&msb, "--dev");
    for (method, path) in routes(&server) {
        let body = if method == "GET" { "" } else { "{}" };
        for page in PAGES {
            let (status, answer) = server.request(&method, &path, &[("Origin", page)], body);
            assert_eq!(status, 403, "{method} {path} from {page}: {answer}");
        }
        for site in ["cross-site", "same-site"] {
            let headers = [("Sec-Fetch-Site", site)];
            let (status, answer) = server.request(&method, &path, &headers, body);
            assert_eq!(status, 403, "{method} {path} from {site}: {answer}");
        }
        if body.is_empty() {
            continue;
        }
        // What a form or a request without a preflight can send.
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
            let headers = [("Content-Type", kind)];
            let (status, answer) = server.request(&method, &path, &headers, body);
            assert_eq!(status, 415, "{method} {path} with `{kind}`: {answer}");
        }
    }
}

/// What the page of a sandbox did before: it ran commands with a directory of the host mounted.
#[test]
fn a_page_of_a_published_port_runs_nothing() {
    let msb = Msb::new();
    msb.file("shown/secret", "before");
    let shown = msb.scratch().join("shown");
    let server = Server::start(&msb, &format!("--dev --host-path {}", shown.display()));
    let mount = format!("{}:/m", shown.display());
    let script = "echo taken >/m/secret";
    let spec = json!({"image": "host", "mounts": [mount], "command": ["sh", "-c", script]});
    let run = json!({"spec": spec}).to_string();
    let rpc = json!({"jsonrpc": "2.0", "id": 1, "method": "sandbox.start", "params": {
        "sandbox": "page", "config": {"image": "host", "volumes": [mount], "exec": script},
    }})
    .to_string();
    let tool = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "sandbox_start", "arguments": {
            "sandbox": "page", "config": {"image": "host", "volumes": [mount]},
        },
    }})
    .to_string();
    for (path, body) in [
        ("/api/v1/run", &run),
        ("/api/v1/run/stream", &run),
        ("/api/v1/rpc", &rpc),
        ("/mcp", &tool),
    ] {
        for headers in [
            &[("Origin", "http://127.0.0.1:8080"), ("Content-Type", "text/plain")][..],
            &[("Origin", "http://127.0.0.1:8080")],
            &[("Content-Type", "text/plain")],
            &[("Sec-Fetch-Site", "same-site")],
        ] {
            let (status, answer) = server.request("POST", path, headers, body);
            assert!(matches!(status, 403 | 415), "{path} {headers:?}: {answer}");
        }
    }
    let upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("Content-Type", ""),
        ("Origin", "http://127.0.0.1:8080"),
    ];
    assert_eq!(server.request("GET", "/api/v1/run/socket", &upgrade, "").0, 403);
    assert_eq!(msb.words("ls -q").ok().stdout, "");
    let kept = std::fs::read_to_string(shown.join("secret")).expect("it is there");
    assert_eq!(kept, "before");
    // Programs that are no browser go on as before, and so does a page of the server itself.
    let own = format!("http://{}", server.address);
    let page = [ACCEPT, ("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")];
    assert_eq!(server.ask("/mcp/core", &page, &begin()).0, 200);
    assert_eq!(
        server.request("GET", "/api/v1/sandboxes", &[("Sec-Fetch-Site", "none")], "").0,
        200
    );
    assert_eq!(server.request("GET", "/api/v1/sandboxes", &[], "").0, 200);
}
