//! Hand-written requests that two parsers could read differently.

use super::harness::{EchoServer, Harness, NAME, TestCa, run};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Sends bytes on one connection and reads until it is closed.
async fn exchange_raw(harness: &Harness, echo: &EchoServer, bytes: &str) -> String {
    let mut stream = harness.tls(echo.address, &[b"http/1.1"]).await;
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    // A server that closes without a TLS alert has still answered.
    let _ = timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn ambiguous_requests_are_refused() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let harness = Harness::new(&["allow@api.example:http:*:/open"], Vec::new(), &[&root], None);
        let start = "POST /open HTTP/1.1\r\nHost: api.example\r\n";
        let hidden = "GET /closed HTTP/1.1\r\nHost: api.example\r\n\r\n";
        for (rest, status) in [
            (
                format!("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
                400,
            ),
            (
                format!("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n{hidden}"),
                400,
            ),
            (format!("Content-Length: 0\r\nContent-Length: 44\r\n\r\n{hidden}"), 400),
            (format!("Transfer-Encoding: xchunked\r\n\r\n{hidden}"), 400),
            (format!("X: y\r\n Content-Length: 44\r\n\r\n{hidden}"), 400),
            (format!("X: y\nContent-Length: 44\r\n\r\n{hidden}"), 400),
            (format!("X : y\r\n\r\n{hidden}"), 400),
            (format!("X: {}\r\n\r\n", "y".repeat(70_000)), 431),
        ] {
            let answer = exchange_raw(&harness, &echo, &format!("{start}{rest}")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{rest}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        }
        assert!(echo.seen().is_empty());
        assert_eq!(harness.verdicts(8).await.len(), 8);
    });
}

#[test]
fn each_pipelined_request_is_decided() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let harness = Harness::new(&["allow@api.example:http:*:/open"], Vec::new(), &[&root], None);
        let request =
            |path: &str, more: &str| format!("POST {path} HTTP/1.1\r\nHost: api.example\r\n{more}");
        let bytes = [
            request("/open/1", "Content-Length: 5\r\n\r\nhello"),
            request("/closed", "Content-Length: 5\r\n\r\nhello"),
            request("/open/2", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            request("/open/3", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            request("/open/4", "\r\n"),
        ]
        .concat();
        let answer = exchange_raw(&harness, &echo, &bytes).await;
        let statuses: Vec<&str> = answer
            .split("HTTP/1.1 ")
            .skip(1)
            .map(|part| &part[..3])
            .filter(|s| s.parse::<u16>().is_ok())
            .collect();
        assert_eq!(statuses, ["200", "403", "200", "400"], "{answer}");
        let paths: Vec<String> =
            echo.seen().iter().map(|seen| seen.split(' ').nth(1).unwrap().to_owned()).collect();
        assert_eq!(paths, ["/open/1", "/open/2"]);
    });
}

#[test]
fn requests_for_another_host_are_refused() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], None);
        for (bytes, status) in [
            ("GET https://other.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n", 421),
            ("GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n", 421),
            ("GET https://api.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n", 421),
            ("GET / HTTP/1.1\r\nHost: api.example\r\nHost: other.example\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.0\r\n\r\n", 400),
            ("CONNECT other.example:25 HTTP/1.1\r\nHost: other.example:25\r\n\r\n", 403),
            ("CONNECT api.example:443 HTTP/1.1\r\nHost: api.example\r\n\r\nEHLO", 403),
            ("MSB-FAULTY / HTTP/1.1\r\nHost: other.example\r\n\r\n", 421),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        ] {
            let answer = exchange_raw(&harness, &echo, bytes).await;
            assert!(answer[8..].starts_with(&format!(" {status} ")), "{bytes}: {answer}");
        }
        assert!(echo.seen().is_empty());
        // The absolute form for this host is sent in origin form.
        let long = "GET https://api.example/x?y HTTP/1.1\r\nHost: api.example\r\n\r\n";
        assert!(exchange_raw(&harness, &echo, long).await.starts_with("HTTP/1.1 200 "));
        assert!(echo.seen()[0].starts_with("GET /x?y "), "{:?}", echo.seen());
    });
}

#[test]
fn only_websocket_upgrades_are_forwarded() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], None);
        let start = "GET / HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade, X-Hidden\r\n";
        let rest = "X-Hidden: y\r\nProxy-Authorization: z\r\nHTTP2-Settings: x\r\nTE: gzip\r\n";
        for upgrade in ["h2c", "TLS/1.0", "websocket, h2c"] {
            let bytes = format!("{start}Upgrade: {upgrade}\r\n{rest}\r\n");
            let answer = exchange_raw(&harness, &echo, &bytes).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            let seen = echo.seen().pop().unwrap();
            for name in ["upgrade", "connection", "x-hidden", "proxy-auth", "http2-", "te: "] {
                assert!(!seen.contains(&format!("\n{name}")), "{seen}");
            }
        }
    });
}
