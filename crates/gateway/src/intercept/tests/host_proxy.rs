//! The HTTP proxy of the host between gateway and server.

use super::harness::{Client, EchoServer, Harness, NAME, TestCa, run};
use crate::HttpProxy;
use crate::tls::client::HttpVersion;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// The credentials `me:pass` in base64.
const CREDENTIALS: &str = "Basic bWU6cGFzcw==";
/// An address that the tests can reach only through the proxy.
const FAR: &str = "192.0.2.7";

/// A proxy that connects clients with the password to `to`, and forwards plain requests.
async fn proxy(
    tls: Option<Arc<ServerConfig>>,
    to: SocketAddr,
) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, seen) = (tls.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                match tls {
                    None => serve_client(stream, to, &seen).await,
                    Some(tls) => {
                        let stream = TlsAcceptor::from(tls).accept(stream).await.unwrap();
                        serve_client(stream, to, &seen).await;
                    }
                }
            });
        }
    });
    (address, heads)
}

async fn serve_client(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    to: SocketAddr,
    seen: &Mutex<Vec<String>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    seen.lock().unwrap().push(head.clone());
    if !head
        .to_ascii_lowercase()
        .contains(&format!("proxy-authorization: {CREDENTIALS}").to_ascii_lowercase())
    {
        client.write_all(b"HTTP/1.1 407 x\r\n\r\n").await.unwrap();
        let _ = client.shutdown().await;
        return;
    }
    let mut server = TcpStream::connect(to).await.unwrap();
    if head.starts_with("CONNECT ") {
        client.write_all(b"HTTP/1.1 200 Connection established\r\nx: y\r\n\r\n").await.unwrap();
    } else {
        server.write_all(head.as_bytes()).await.unwrap();
    }
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

fn far(port: u16) -> SocketAddr {
    format!("{FAR}:{port}").parse().unwrap()
}

#[test]
fn streams_go_through_the_proxy_with_its_password() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"h2", b"http/1.1"]))).await;
        for tls in [false, true] {
            let own = tls.then(|| root.server("127.0.0.1", &[]));
            let (address, heads) = proxy(own, echo.address).await;
            let scheme = if tls { "https" } else { "http" };
            let url = format!("{scheme}://me:pass@{address}");
            let settings = HttpProxy::parse(&url, "other.example").unwrap();
            let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], Some(settings));
            for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
                let mut client = harness.client(far(443), protocol).await;
                let (status, _, text) = client.get("/").await;
                assert_eq!(status, 200, "{text}");
            }
            for head in heads.lock().unwrap().iter() {
                assert!(head.starts_with("CONNECT 192.0.2.7:443 HTTP/1.1\r\n"), "{head}");
            }
            for seen in echo.seen() {
                assert!(!seen.contains("proxy-authorization"), "{seen}");
            }
        }
    });
}

#[test]
fn a_refusal_of_the_proxy_is_reported_to_the_client() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let (address, _) = proxy(None, echo.address).await;
        let settings = HttpProxy::parse(&format!("http://{address}"), "").unwrap();
        let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], Some(settings));
        let mut client = harness.client(far(443), HttpVersion::Http1).await;
        let (status, _, text) = client.get("/").await;
        assert_eq!(status, 502);
        assert!(text.contains("refused it with status 407"), "{text}");
    });
}

#[test]
fn plain_requests_are_handed_whole_to_a_proxy_that_resolves() {
    run(async {
        for (resolves, asked) in [
            (false, "CONNECT 192.0.2.7:80 HTTP/1.1\r\n"),
            (true, "GET http://api.example/x?y HTTP/1.1\r\n"),
        ] {
            let echo = EchoServer::start(None).await;
            let (address, heads) = proxy(None, echo.address).await;
            let mut settings = HttpProxy::parse(&format!("http://me:pass@{address}"), "").unwrap();
            settings.resolves = resolves;
            let harness = Harness::new(&["allow@any"], Vec::new(), &[], Some(settings));
            let stream = harness.flow(NAME, far(80), false);
            let mut client = Client::over(TokioIo::new(stream), HttpVersion::Http1).await;
            assert_eq!(client.get("/x?y").await.0, 200);
            let head = heads.lock().unwrap()[0].clone();
            assert!(head.starts_with(asked), "{head}");
            let seen = echo.seen().concat();
            assert!(resolves || !seen.contains("proxy-authorization"), "{seen}");
        }
    });
}

#[test]
fn no_proxy_entries_are_reached_directly() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let unused = "http://127.0.0.1:9";
        let settings = HttpProxy::parse(unused, "127.0.0.0/8").unwrap();
        let harness = Harness::new(&["allow@any"], Vec::new(), &[&root], Some(settings));
        let mut client = harness.client(echo.address, HttpVersion::Http1).await;
        assert_eq!(client.get("/").await.0, 200);
    });
}
