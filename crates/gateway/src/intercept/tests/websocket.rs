//! WebSocket: the request is decided like any other, then bytes go both ways.

use super::harness::{Harness, NAME, PLACEHOLDER, TestCa, VALUE, run, test_secret};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// A server that answers each request with `answer`, then sends its head and echoes all bytes.
async fn repeater(tls: Arc<ServerConfig>, answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = Arc::clone(&tls);
            tokio::spawn(async move {
                let mut stream = TlsAcceptor::from(tls).accept(stream).await.unwrap();
                let head = read_head(&mut stream).await;
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.write_all(head.as_bytes()).await.unwrap();
                let mut piece = [0; 1000];
                while let Ok(length @ 1..) = stream.read(&mut piece).await {
                    stream.write_all(&piece[..length]).await.unwrap();
                    stream.flush().await.unwrap();
                }
                let _ = stream.shutdown().await;
            });
        }
    });
    address
}

async fn read_head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

const GRANTED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

fn request(path: &str, header: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n{header}\r\n"
    )
}

#[test]
fn bytes_go_both_ways_and_values_are_mrequest() {
    run(async {
        let root = TestCa::new();
        let address = repeater(root.server(NAME, &[b"http/1.1"]), GRANTED).await;
        let harness = Harness::new(&["allow@any"], vec![test_secret(&[], false)], &[&root], None);
        let mut stream = harness.tls(address, &[b"http/1.1"]).await;
        let header = format!("Authorization: Bearer {PLACEHOLDER}\r\n");
        // The first frame may arrive before the response.
        let early = [request("/", &header).as_bytes(), b"\x81\x85early"].concat();
        stream.write_all(&early).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let echoed_head = read_head(&mut stream).await;
        let stars = "*".repeat(VALUE.len());
        assert!(
            echoed_head.contains(&format!("authorization: Bearer {stars}\r\n")),
            "{echoed_head}"
        );
        let mut frame = [0; 7];
        stream.read_exact(&mut frame).await.unwrap();
        assert_eq!(&frame, b"\x81\x85early");
        for text in ["GET / HTTP/1.1\r\n\r\n", "\0\u{1}\n", "sk", "sk-live", VALUE] {
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut received = vec![0; text.len()];
            stream.read_exact(&mut received).await.unwrap();
            let wanted = if text == VALUE { &stars } else { text };
            assert_eq!(String::from_utf8(received).unwrap(), *wanted);
        }
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0; 10]).await.unwrap_or(0), 0);
        assert_eq!(harness.verdicts(1).await.remove(0).secrets, ["KEY"]);
    });
}

#[test]
fn the_head_is_decided_like_any_other() {
    run(async {
        let root = TestCa::new();
        let address = repeater(root.server(NAME, &[b"http/1.1"]), GRANTED).await;
        let harness =
            Harness::new(&["allow@api.example:http:GET:/open"], Vec::new(), &[&root], None);
        let mut stream = harness.tls(address, &[b"http/1.1"]).await;
        // After a refused request HTTP continues.
        let both = [request("/closed", ""), request("/open", "")].concat();
        stream.write_all(both.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
        let mut rest = String::new();
        while !rest.contains("HTTP/1.1 101 ") {
            rest.push(char::from(stream.read_u8().await.unwrap()));
        }
    });
}

#[test]
fn an_unrequested_protocol_switch_is_refused() {
    run(async {
        let root = TestCa::new();
        let h2c = "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
        for (answer, request) in
            [(h2c, request("/", "")), (GRANTED, format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n"))]
        {
            let address = repeater(root.server(NAME, &[b"http/1.1"]), answer).await;
            let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], None);
            let mut stream = harness.tls(address, &[b"http/1.1"]).await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let head = read_head(&mut stream).await;
            assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        }
    });
}
