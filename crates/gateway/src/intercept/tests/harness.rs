//! Test servers, clients and an Interceptor between them, all in this process.

use super::super::{CaCertificate, FlowHandoff, InterceptSettings, Interceptor};
use crate::budget::MemoryBudget;
use crate::tls::client::HttpVersion;
use crate::{HttpProxy, SecretValue};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use msb_spec::{Decision, DomainName, PlannedSecret, Policy, Rule, Secret, SecretPlace};
use msb_wire::{NetEvent, Verdict};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as Socket;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, UnixStream};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The server name of the tests.
pub(super) const NAME: &str = "api.example";
/// The placeholder that the client sends.
pub(super) const PLACEHOLDER: &str = "msb-placeholder-4f1d2c";
/// The value that the client must never see.
pub(super) const VALUE: &str = "sk-live/0123456789+abcdef";

const MAX_SNIFF_BYTES: std::time::Duration = std::time::Duration::from_secs(120);

pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A test that hangs fails after this limit.
    let limited = async { tokio::time::timeout(MAX_SNIFF_BYTES, test).await };
    runtime.block_on(limited).unwrap();
}

/// A CA that servers of the tests use.
pub(super) struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    pub(super) der: Vec<u8>,
}

impl TestCa {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        Self { issuer: Issuer::new(params, key), der }
    }

    /// A TLS client that trusts this CA.
    pub(super) fn client(&self, protocol: HttpVersion) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.der.clone())).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let mut config = config
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        Arc::new(config)
    }

    pub(super) fn server(&self, name: &str, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], der)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
        Arc::new(config)
    }
}

/// A server that echoes each request as text.
pub(super) struct EchoServer {
    pub(super) address: SocketAddr,
    /// Heads and bodies of requests, as received.
    pub(super) seen: Arc<Mutex<Vec<String>>>,
    pub(super) connections: Arc<AtomicUsize>,
}

impl EchoServer {
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub(super) async fn start(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let echo = Self { address, seen: Arc::clone(&seen), connections: connections.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                connections.fetch_add(1, Ordering::Relaxed);
                let (tls, seen) = (tls.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let service =
                        service_fn(move |request| echo_request(request, Arc::clone(&seen)));
                    let Some(tls) = tls else {
                        let builder = hyper::server::conn::http1::Builder::new();
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                        return;
                    };
                    let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
                    let two = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let io = TokioIo::new(stream);
                    if two {
                        let builder =
                            hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = builder.serve_connection(io, service).await;
                    } else {
                        let builder = hyper::server::conn::http1::Builder::new();
                        let _ = builder.serve_connection(io, service).await;
                    }
                });
            }
        });
        echo
    }
}

/// Echoes the request as text, in the body and in a header.
async fn echo_request(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<String>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let mut text = format!("{} {} {:?}\n", head.method, head.uri, head.version);
    for (name, value) in &head.headers {
        text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    let index = seen.lock().unwrap().len();
    seen.lock().unwrap().push(text.clone());
    let body = match body.collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(_) => "BROKEN".to_owned(),
    };
    text += &format!("\n{body}");
    seen.lock().unwrap()[index] = text.clone();
    let mut response = Response::new(Full::new(Bytes::from(text)));
    response.headers_mut().insert("alt-svc", "h3=\":443\"".parse().unwrap());
    if let Some(value) = head.headers.get("authorization") {
        response.headers_mut().insert("x-echo", value.clone());
    }
    if head.uri.path().starts_with("/gzip") {
        response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    }
    Ok(response)
}

/// A Secret for [`NAME`], substituted in `places`.
pub(super) fn test_secret(places: &[SecretPlace], require: bool) -> (PlannedSecret, SecretValue) {
    let mut secret = Secret::parse(&format!("KEY@{NAME}")).unwrap();
    secret.places = places.iter().copied().collect();
    secret.require = require;
    let planned = PlannedSecret { secret, placeholder: PLACEHOLDER.to_owned() };
    (planned, SecretValue::new(VALUE.as_bytes().to_vec()))
}

pub(super) fn policy(rules: &[&str], default: Decision) -> Policy {
    Policy { rules: rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect(), default }
}

/// An Interceptor, and a client store that trusts its CA.
pub(super) struct Harness {
    pub(super) interceptor: Interceptor,
    roots: RootCertStore,
    pub(super) budget: MemoryBudget,
    next: AtomicU64,
}

impl Harness {
    pub(super) fn new(
        rules: &[&str],
        secrets: Vec<(PlannedSecret, SecretValue)>,
        roots: &[&TestCa],
        proxy: Option<HttpProxy>,
    ) -> Self {
        let budget = MemoryBudget::new(msb_spec::GATEWAY_MEMORY.0);
        let (interceptor, authority) = Interceptor::start(InterceptSettings {
            policy: policy(rules, Decision::Deny),
            secrets,
            proxy: proxy.map(Arc::new),
            roots: roots.iter().map(|root| root.der.clone()).collect(),
            budget: budget.clone(),
        })
        .unwrap();
        let CaCertificate { pem } = authority;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        Self { interceptor, roots, budget, next: AtomicU64::new(1) }
    }

    /// Hands a flow over; returns the client's end.
    pub(super) fn flow(&self, name: &str, address: SocketAddr, tls: bool) -> UnixStream {
        let (own, other) = Socket::pair().unwrap();
        self.interceptor.take(FlowHandoff {
            flow: self.next.fetch_add(1, Ordering::Relaxed),
            socket: other.into(),
            name: DomainName::parse(name).unwrap(),
            is_host: address.ip().is_loopback(),
            address,
            tls,
            memory: self.budget.connection().unwrap(),
        });
        own.set_nonblocking(true).unwrap();
        UnixStream::from_std(own).unwrap()
    }

    /// A TLS connection to [`NAME`] through the Interceptor.
    pub(super) async fn tls(
        &self,
        address: SocketAddr,
        protocols: &[&[u8]],
    ) -> tokio_rustls::client::TlsStream<UnixStream> {
        self.tls_to(NAME, NAME, address, protocols).await.unwrap()
    }

    pub(super) async fn tls_to(
        &self,
        name: &str,
        shown: &str,
        address: SocketAddr,
        protocols: &[&[u8]],
    ) -> std::io::Result<tokio_rustls::client::TlsStream<UnixStream>> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let mut config = config
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
        let stream = self.flow(name, address, true);
        let shown = ServerName::try_from(shown.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config)).connect(shown, stream).await
    }

    /// An HTTP client that is connected through the Interceptor.
    pub(super) async fn client(&self, address: SocketAddr, protocol: HttpVersion) -> Client {
        let stream = self.tls(address, &[protocol.alpn()]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.alpn()));
        Client::over(TokioIo::new(stream), protocol).await
    }

    /// All Verdicts so far, after at least `count` have arrived.
    pub(super) async fn verdicts(&self, count: usize) -> Vec<Verdict> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.interceptor.next() {
                Some(NetEvent::Decided(verdict)) => all.push(verdict),
                Some(other) => panic!("{other:?}"),
                None => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
        assert_eq!(self.interceptor.next(), None);
        all
    }
}

/// An HTTP client in the sandbox.
pub(super) enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(super) async fn over(
        io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
        protocol: HttpVersion,
    ) -> Self {
        match protocol {
            HttpVersion::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                tokio::spawn(connection.with_upgrades());
                Self::Http1(sender)
            }
            HttpVersion::Http2 => {
                let executor = TokioExecutor::new();
                let (sender, connection) = http2::handshake(executor, io).await.unwrap();
                tokio::spawn(connection);
                Self::Http2(sender)
            }
        }
    }

    /// Sends a request; returns the status, headers and body of the response.
    pub(super) async fn request(&mut self, request: Request<String>) -> (u16, String, String) {
        let (mut head, body) = request.into_parts();
        let body = Full::new(Bytes::from(body));
        let response = match self {
            Self::Http1(sender) => {
                if !head.headers.contains_key("host") {
                    head.headers.insert("host", NAME.parse().unwrap());
                }
                sender.ready().await.unwrap();
                sender.send_request(Request::from_parts(head, body)).await.unwrap()
            }
            Self::Http2(sender) => {
                let path = head.uri.path_and_query().unwrap().to_string();
                if head.uri.authority().is_none() {
                    head.uri = format!("https://{NAME}{path}").parse().unwrap();
                }
                sender.ready().await.unwrap();
                sender.send_request(Request::from_parts(head, body)).await.unwrap()
            }
        };
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let headers: String = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        (head.status.as_u16(), headers, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(super) async fn get(&mut self, path: &str) -> (u16, String, String) {
        self.request(Request::get(path).body(String::new()).unwrap()).await
    }
}
