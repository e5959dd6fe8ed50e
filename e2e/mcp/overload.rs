//! Clients that want to keep the server from others: without a key, or with one of another tenant.

use msb_e2e::listener::{ACCEPT, Server, begin};
use msb_e2e::{HANG, Msb};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Open files that the server may have in these tests; it has room for half as many connections.
const FILES: u32 = 256;

/// An answer within the time that everything here takes; none if there is none.
fn answered(
    server: &Server<'_>,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Option<u16> {
    let mut stream = server.begin("POST", path, headers, &body.to_string());
    stream.set_read_timeout(Some(HANG)).expect("a socket");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// Connections that say nothing, and some that never end what they began to say.
#[test]
fn silent_connections_keep_no_client_out() {
    let msb = Msb::new();
    let server = Server::start_limited(&msb, FILES, "");
    let key = server.key("*");
    let mut silent = Vec::new();
    for number in 0..400 {
        let mut stream = TcpStream::connect(server.address).expect("it listens");
        if number % 2 == 0 {
            let _ = stream.write_all(b"POST /mcp/core HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
        }
        silent.push(stream);
    }
    let headers = [ACCEPT, ("Authorization", key.as_str())];
    assert_eq!(answered(&server, "/mcp/core", &headers, &begin()), Some(200));
    drop(silent);
}

/// One key holds as many connections as it can; another has its own.
#[test]
fn connections_of_one_key_keep_no_other_key_out() {
    let msb = Msb::new();
    let server = Server::start_limited(&msb, FILES, "");
    let (greedy, other) = (server.key("greedy"), server.key("other"));
    let mut held = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(server.address).expect("it listens");
        let head = format!(
            "GET /api/v1/sandboxes HTTP/1.1\r\nHost: {}\r\nAuthorization: {greedy}\r\n\r\n",
            server.address
        );
        let _ = stream.write_all(head.as_bytes());
        stream.set_read_timeout(Some(HANG)).expect("a socket");
        // Until it has been let in, or has not: the first bytes say so.
        let _ = stream.read(&mut [0; 16]);
        held.push(stream);
    }
    let headers = [ACCEPT, ("Authorization", other.as_str())];
    assert_eq!(answered(&server, "/mcp/core", &headers, &begin()), Some(200));
    drop(held);
}

/// The most that the server may take in memory for bodies that are in flight, in KiB.
const MOST_MEMORY: u64 = 448 << 10;

/// Four bodies of 31 MB at once, of many small values and of one large.
#[test]
fn large_bodies_do_not_fill_the_memory() {
    let msb = Msb::new();
    let server = Server::start(&msb, "--dev");
    let pid = msb.json(["server", "status", "--json"])["server"]["pid"].clone();
    let many = format!("[{}0]", "0,".repeat(31 << 19));
    let large = format!("\"{}\"", "x".repeat(31 << 20));
    for value in [&many, &large] {
        let call = |name: &str| {
            format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{name}\",\"params\":{{\"a\":{value}}}}}"
            )
        };
        for (path, body) in [
            ("/api/v1/run", format!("{{\"spec\":{{\"env\":{value}}}}}")),
            ("/api/v1/rpc", call("sandbox.start")),
            ("/mcp", call("tools/call")),
        ] {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let mut stream = TcpStream::connect(server.address).expect("it listens");
                        let head = format!(
                            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
                             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                            server.address,
                            body.len()
                        );
                        // It may have been refused before all of it was sent.
                        let _ = stream.write_all(head.as_bytes());
                        let _ = stream.write_all(body.as_bytes());
                        let _ = stream.read_to_end(&mut Vec::new());
                    });
                }
            });
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a size");
        let most: u64 = most.trim().trim_end_matches(" kB").parse().expect("a number");
        assert!(most < MOST_MEMORY, "{most} KiB");
    }
    assert_eq!(server.ask("/mcp/core", &[ACCEPT], &begin()).0, 200);
    let started = json!({"spec": {"image": "host", "command": ["true"]}});
    assert_eq!(server.ask("/api/v1/run", &[], &started).0, 200);
}
