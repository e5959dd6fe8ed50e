//! Connections to servers: directly or through the host's proxy, and over TLS only with a verified
//! certificate.

use super::request::OriginServer;
use crate::budget::MAX_WINDOW;
use crate::host_socket;
use crate::proxy::{self, ConnectReply, HttpProxy};
use crate::tls::client::{AlpnOffer, ClientTls, HttpVersion, tls_handshake};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The limit of a TCP connect: the system's own is minutes, and clients give up before.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The limit of a CONNECT or TLS handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Why there is no connection to a server, or no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UpstreamError {
    /// The server cannot be reached.
    Connect(String),
    /// The proxy refused the tunnel, with its status code if there was one.
    Proxy(Option<u16>),
    /// The certificate of the server is not trusted.
    Certificate(String),
    /// The TLS handshake failed in another way.
    Tls(String),
    /// The server took too long.
    Slow,
    /// The response is not HTTP, or incomplete.
    Broken(String),
}

/// A stream that can be read and written.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// An open connection to a server, with its HTTP version.
pub(crate) struct UpstreamStream {
    pub(crate) stream: Box<dyn ByteStream>,
    pub(crate) protocol: HttpVersion,
}

/// Opens connections to servers.
pub(crate) struct Upstream {
    /// Created when it is first needed: a host trusts more than a hundred CAs, and parsing them
    /// takes longer than all else before the first flow.
    tls: LazyLock<ClientTls, Box<dyn FnOnce() -> ClientTls + Send>>,
    proxy: Option<Arc<HttpProxy>>,
}

impl Upstream {
    /// Trusts the CA certificates in `roots` (DER) and no others.
    pub(crate) fn new(roots: Vec<Vec<u8>>, proxy: Option<Arc<HttpProxy>>) -> Self {
        Self { tls: LazyLock::new(Box::new(|| ClientTls::new(roots))), proxy }
    }

    /// Parses the CA certificates before the first connection waits for it.
    pub(crate) fn warm_up(&self) {
        LazyLock::force(&self.tls);
    }

    /// The proxy on the way to `origin`, if any.
    pub(crate) fn proxy_for(&self, origin: &OriginServer) -> Option<&HttpProxy> {
        let proxy = self.proxy.as_deref()?;
        proxy.applies_to(Some(&origin.name), origin.address).then_some(proxy)
    }

    /// Connects to `origin`, over TLS if its client uses TLS. `window` is the receive window in
    /// bytes.
    pub(crate) async fn connect(
        &self,
        origin: &OriginServer,
        offer: AlpnOffer,
        window: u32,
    ) -> Result<UpstreamStream, UpstreamError> {
        let proxy = self.proxy_for(origin);
        let stream = match proxy {
            None => Box::new(connect_tcp(&[origin.address], Some(window)).await?),
            Some(_) => self.connect_proxy().await?,
        };
        let stream = match proxy.filter(|proxy| origin.tls || !proxy.takes_requests()) {
            None => stream,
            Some(proxy) => connect_through(proxy, origin, stream).await?,
        };
        if !origin.tls {
            return Ok(UpstreamStream { stream, protocol: HttpVersion::Http1 });
        }
        let config = match offer {
            AlpnOffer::Both => &self.tls.both,
            AlpnOffer::Only(HttpVersion::Http1) => &self.tls.http1,
            AlpnOffer::Only(HttpVersion::Http2) => &self.tls.http2,
        };
        tls_handshake(config, origin.name.as_str(), offer, stream).await
    }

    /// Connects to the proxy, over TLS if the proxy uses it.
    pub(crate) async fn connect_proxy(&self) -> Result<Box<dyn ByteStream>, UpstreamError> {
        let proxy = self.proxy.as_deref().ok_or(UpstreamError::Proxy(None))?;
        let stream: Box<dyn ByteStream> = Box::new(connect_tcp(&proxy.addresses, None).await?);
        if !proxy.tls {
            return Ok(stream);
        }
        let only = AlpnOffer::Only(HttpVersion::Http1);
        Ok(tls_handshake(&self.tls.http1, &proxy.host, only, stream).await?.stream)
    }
}

async fn connect_tcp(
    addresses: &[SocketAddr],
    window: Option<u32>,
) -> Result<TcpStream, UpstreamError> {
    let mut last = UpstreamError::Connect("no address".to_owned());
    for address in addresses {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are short, and clients wait for the responses.
                let _ = stream.set_nodelay(true);
                let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
                // With the largest window the kernel may buffer as much as a long round trip needs.
                if let Some(window) = window.filter(|window| *window < MAX_WINDOW) {
                    host_socket::limit_receive_buffer(&stream, window as usize);
                }
                return Ok(stream);
            }
            Ok(Err(error)) => last = UpstreamError::Connect(error.to_string()),
            Err(_) => last = UpstreamError::Slow,
        }
    }
    Err(last)
}

/// Opens a CONNECT tunnel through the proxy to a server.
async fn connect_through(
    proxy: &HttpProxy,
    origin: &OriginServer,
    mut stream: Box<dyn ByteStream>,
) -> Result<Box<dyn ByteStream>, UpstreamError> {
    let broken = |error: std::io::Error| UpstreamError::Connect(error.to_string());
    let exchange = async {
        let request = proxy.connect_request(Some(&origin.name), origin.address);
        stream.write_all(&request).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let mut answer = Vec::new();
        loop {
            match proxy::parse_connect_reply(&answer) {
                ConnectReply::Incomplete => {}
                // A server sends nothing before the ClientHello or request, so no bytes may follow
                // the head.
                ConnectReply::Established(end) if end == answer.len() => return Ok(()),
                ConnectReply::Established(_) => return Err(UpstreamError::Proxy(None)),
                ConnectReply::Refused(status) => return Err(UpstreamError::Proxy(status)),
            }
            let mut piece = [0; 1024];
            match stream.read(&mut piece).await.map_err(broken)? {
                0 => return Err(UpstreamError::Proxy(None)),
                length => answer.extend_from_slice(&piece[..length]),
            }
        }
    };
    timeout(HANDSHAKE_TIMEOUT, exchange).await.unwrap_or(Err(UpstreamError::Slow))?;
    Ok(stream)
}

impl UpstreamError {
    /// The message for the client in the sandbox.
    pub(crate) fn why(&self) -> String {
        match self {
            Self::Connect(why) => format!("cannot connect to the server: {why}"),
            Self::Proxy(None) => "the HTTP proxy of the host sent an invalid reply".to_owned(),
            Self::Proxy(Some(status)) => {
                format!("the HTTP proxy of the host refused it with status {status}")
            }
            Self::Certificate(why) => format!("its certificate is not trusted: {why}"),
            Self::Tls(why) => format!("the TLS handshake failed: {why}"),
            Self::Slow => "the server took too long to answer".to_owned(),
            Self::Broken(why) => format!("its response is invalid: {why}"),
        }
    }
}
