//! The proxy of the host between the gateway and the other side.

use super::super::upstream::Protocol;
use super::lab::{Client, Echo, Lab, NAME, Root, run};
use crate::Proxy;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// `me:pass` in base64.
const CREDENTIALS: &str = "Basic bWU6cGFzcw==";
/// An address that nobody in the tests can reach but through the proxy.
const FAR: &str = "192.0.2.7";

/// A proxy that joins whoever knows the password to `to`, and passes plain requests on.
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
                    None => join(stream, to, &seen).await,
                    Some(tls) => {
                        let stream = TlsAcceptor::from(tls).accept(stream).await.unwrap();
                        join(stream, to, &seen).await;
                    }
                }
            });
        }
    });
    (address, heads)
}

async fn join(
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
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &[b"h2", b"http/1.1"]))).await;
        for tls in [false, true] {
            let own = tls.then(|| root.server("127.0.0.1", &[]));
            let (address, heads) = proxy(own, echo.address).await;
            let scheme = if tls { "https" } else { "http" };
            let url = format!("{scheme}://me:pass@{address}");
            let settings = Proxy::parse(&url, "other.example").unwrap();
            let lab = Lab::new(&["allow@any"], Vec::new(), &[&root], Some(settings));
            for protocol in [Protocol::One, Protocol::Two] {
                let mut client = lab.client(far(443), protocol).await;
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
fn a_proxy_that_refuses_is_told_inside() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let (address, _) = proxy(None, echo.address).await;
        let settings = Proxy::parse(&format!("http://{address}"), "").unwrap();
        let lab = Lab::new(&["allow@any"], Vec::new(), &[&root], Some(settings));
        let mut client = lab.client(far(443), Protocol::One).await;
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
            let echo = Echo::start(None).await;
            let (address, heads) = proxy(None, echo.address).await;
            let mut settings = Proxy::parse(&format!("http://me:pass@{address}"), "").unwrap();
            settings.resolves = resolves;
            let lab = Lab::new(&["allow@any"], Vec::new(), &[], Some(settings));
            let stream = lab.flow(NAME, far(80), false);
            let mut client = Client::over(TokioIo::new(stream), Protocol::One).await;
            assert_eq!(client.get("/x?y").await.0, 200);
            let head = heads.lock().unwrap()[0].clone();
            assert!(head.starts_with(asked), "{head}");
            let seen = echo.seen().concat();
            assert!(resolves || !seen.contains("proxy-authorization"), "{seen}");
        }
    });
}

#[test]
fn whom_no_proxy_names_is_reached_directly() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let nobody = "http://127.0.0.1:9";
        let settings = Proxy::parse(nobody, "127.0.0.0/8").unwrap();
        let lab = Lab::new(&["allow@any"], Vec::new(), &[&root], Some(settings));
        let mut client = lab.client(echo.address, Protocol::One).await;
        assert_eq!(client.get("/").await.0, 200);
    });
}
