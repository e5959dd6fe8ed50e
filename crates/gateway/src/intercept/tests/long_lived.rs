//! Long-lived connections: closed by the server, streaming, or opened too early.

use super::harness::{EchoServer, Harness, NAME, PLACEHOLDER, TestCa, VALUE, run, test_secret};
use crate::tls::client::HttpVersion;
use msb_spec::Decision;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

async fn raw_server<F>(
    tls: Arc<ServerConfig>,
    serve: impl Fn(TlsStream<TcpStream>) -> F + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stream = TlsAcceptor::from(Arc::clone(&tls)).accept(stream).await.unwrap();
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn read_head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn a_closed_server_connection_is_reopened() {
    run(async {
        let root = TestCa::new();
        let address = raw_server(root.server(NAME, &[b"http/1.1"]), |mut stream| async move {
            // Serves one request and closes the connection.
            read_head(&mut stream).await;
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer).await.unwrap();
            let _ = stream.shutdown().await;
        })
        .await;
        let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], None);
        let mut client = harness.client(address, HttpVersion::Http1).await;
        for _ in 0..5 {
            assert_eq!(client.get("/").await.0, 200);
        }
    });
}

#[test]
fn a_failed_connect_is_retried_by_the_next_request() {
    run(async {
        let root = TestCa::new();
        // A separate address: on 127.0.0.1 another test could take the port meanwhile.
        let listener = TcpListener::bind("127.77.1.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], None);
        let mut client = harness.client(address, HttpVersion::Http1).await;
        assert_eq!(client.get("/").await.0, 502);
        assert_eq!(client.get("/").await.0, 502);
        let tls = root.server(NAME, &[b"http/1.1"]);
        let listener = TcpListener::bind(address).await.unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = TlsAcceptor::from(tls).accept(stream).await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.unwrap();
        });
        assert_eq!(client.get("/").await.0, 204);
    });
}

#[test]
fn events_are_forwarded_as_they_are_written() {
    run(async {
        let root = TestCa::new();
        let address = raw_server(root.server(NAME, &[b"http/1.1"]), |mut stream| async move {
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nX-Value: sk-live/0123456789+abcdef\r\n\r\n")
                .await
                .unwrap();
            // Each event waits for a byte of the client, which has to have seen the one before.
            for event in ["data: s\n\n", "data: sk-live", "/0123456789+abcdef\n\n", "sk"] {
                stream.write_all(event.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                if event.ends_with("\n\n") {
                    stream.read_u8().await.unwrap();
                }
            }
            let _ = stream.shutdown().await;
        })
        .await;
        let harness = Harness::new(&["allow@any"], vec![test_secret(&[], false)], &[&root], None);
        let mut stream = harness.tls(address, &[b"http/1.1"]).await;
        // The bytes are the body of a request that never ends.
        let start = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 99\r\n\r\n");
        stream.write_all(start.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        let stars = "*".repeat(VALUE.len());
        assert!(head.contains(&format!("x-value: {stars}")), "{head}");
        let mut received = String::new();
        // The second event may arrive in two chunks.
        for wanted in ["data: s\n\n".to_owned(), format!("{stars}\n\n")] {
            received.clear();
            while !received.contains(&wanted) {
                received.push(char::from(stream.read_u8().await.unwrap()));
                assert!(!received.contains("sk-l"), "{received}");
            }
            stream.write_all(b"x").await.unwrap();
        }
        let mut rest = String::new();
        let _ = stream.read_to_string(&mut rest).await;
        assert!(rest.contains("sk"), "{rest}");
    });
}

#[test]
fn a_placeholder_after_the_response_began_is_recorded() {
    run(async {
        let root = TestCa::new();
        let address = raw_server(root.server(NAME, &[b"http/1.1"]), |mut stream| async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut body = String::new();
            let _ = stream.read_to_string(&mut body).await;
            assert!(!body.contains(PLACEHOLDER), "{body}");
        })
        .await;
        let harness = Harness::new(&["allow@any"], vec![test_secret(&[], false)], &[&root], None);
        let mut stream = harness.tls(address, &[b"http/1.1"]).await;
        let start = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 99\r\n\r\n");
        stream.write_all(start.as_bytes()).await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
        let (first, second) = PLACEHOLDER.split_at(8);
        for piece in [first, second] {
            stream.write_all(piece.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
        let decisions: Vec<_> =
            harness.verdicts(2).await.into_iter().map(|verdict| verdict.decision).collect();
        assert_eq!(decisions, [Decision::Allow, Decision::Deny]);
    });
}

#[test]
fn large_bodies_are_forwarded_unchanged() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"h2", b"http/1.1"]))).await;
        let harness = Harness::new(&["allow@any"], vec![test_secret(&[], false)], &[&root], None);
        let body: String = (0..400_000).map(|line| format!("{line} sk-live/0123\n")).collect();
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let mut client = harness.client(echo.address, protocol).await;
            let request = hyper::Request::post("/").body(body.clone()).unwrap();
            let (status, _, text) = client.request(request).await;
            assert_eq!(status, 200);
            assert!(text.ends_with(&body), "{protocol:?}");
        }
    });
}
