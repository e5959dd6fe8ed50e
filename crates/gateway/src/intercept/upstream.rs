//! Connections to the other side: directly or through the host's proxy, and in TLS only with a
//! certificate that was verified.

use super::request::Peer;
use crate::budget::LARGEST_WINDOW;
use crate::outside;
use crate::proxy::{self, Answer, Proxy};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Some minutes would be the system's own; a client inside has given up long before.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// From the proxy's first byte, or the TLS hello, to the end of either.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
}

impl Protocol {
    /// As TLS names it.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => b"http/1.1",
            Self::Two => b"h2",
        }
    }
}

/// Which of them a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    Only(Protocol),
    Both,
}

/// Why there is no connection, or no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It cannot be reached.
    Connect(String),
    /// The proxy did not join us, and the status it gave.
    Proxy(Option<u16>),
    /// Its certificate is not to be trusted.
    Certificate(String),
    /// TLS failed in another way.
    Tls(String),
    /// It took too long.
    Slow,
    /// It answered with something else than HTTP, or not to the end.
    Broken(String),
}

/// A stream of bytes either way.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection and what is spoken on it.
pub(crate) struct Connected {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) protocol: Protocol,
}

/// Makes connections.
pub(crate) struct Upstream {
    /// Made when it is needed first: a host trusts more than a hundred authorities, and to read
    /// them takes longer than all else that is done before the first flow.
    tls: LazyLock<Tls, Box<dyn FnOnce() -> Tls + Send>>,
    proxy: Option<Arc<Proxy>>,
}

/// TLS towards the other side, by what it may offer.
struct Tls {
    both: Arc<ClientConfig>,
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
}

impl Tls {
    fn new(roots: Vec<Vec<u8>>) -> Self {
        let mut store = RootCertStore::empty();
        // Stores of hosts hold oddities; one of them must not take the others with it.
        store.add_parsable_certificates(roots.into_iter().map(CertificateDer::from));
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for the versions that are usual")
            .with_root_certificates(store)
            .with_no_client_auth();
        // Clones share the sessions that can be resumed.
        let with = |protocols: &[Protocol]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|one| one.alpn().to_vec()).collect();
            Arc::new(config)
        };
        Self {
            both: with(&[Protocol::Two, Protocol::One]),
            one: with(&[Protocol::One]),
            two: with(&[Protocol::Two]),
        }
    }
}

impl Upstream {
    /// `roots` are all that is trusted.
    pub(crate) fn new(roots: Vec<Vec<u8>>, proxy: Option<Arc<Proxy>>) -> Self {
        Self { tls: LazyLock::new(Box::new(|| Tls::new(roots))), proxy }
    }

    /// Gets ready for TLS before somebody waits for it.
    pub(crate) fn warm_up(&self) {
        LazyLock::force(&self.tls);
    }

    /// The proxy on the way to `peer`.
    pub(crate) fn proxy_for(&self, peer: &Peer) -> Option<&Proxy> {
        let proxy = self.proxy.as_deref()?;
        proxy.is_for(Some(&peer.name), peer.address).then_some(proxy)
    }

    /// Connects to `peer`, in TLS if that is what its client speaks. `window` is what its
    /// connection may hold unread.
    pub(crate) async fn connect(
        &self,
        peer: &Peer,
        offer: Offer,
        window: u32,
    ) -> Result<Connected, Trouble> {
        let proxy = self.proxy_for(peer);
        let stream = match proxy {
            None => Box::new(dial(&[peer.address], Some(window)).await?),
            Some(_) => self.reach_proxy().await?,
        };
        let stream = match proxy.filter(|proxy| peer.tls || !proxy.takes_requests()) {
            None => stream,
            Some(proxy) => join(proxy, peer, stream).await?,
        };
        if !peer.tls {
            return Ok(Connected { stream, protocol: Protocol::One });
        }
        let config = match offer {
            Offer::Both => &self.tls.both,
            Offer::Only(Protocol::One) => &self.tls.one,
            Offer::Only(Protocol::Two) => &self.tls.two,
        };
        secure(config, peer.name.as_str(), offer, stream).await
    }

    /// Connects to the proxy, in TLS if that is what it speaks.
    pub(crate) async fn reach_proxy(&self) -> Result<Box<dyn Stream>, Trouble> {
        let proxy = self.proxy.as_deref().ok_or(Trouble::Proxy(None))?;
        let stream: Box<dyn Stream> = Box::new(dial(&proxy.addresses, None).await?);
        if !proxy.tls {
            return Ok(stream);
        }
        let only = Offer::Only(Protocol::One);
        Ok(secure(&self.tls.one, &proxy.host, only, stream).await?.stream)
    }
}

async fn dial(addresses: &[SocketAddr], window: Option<u32>) -> Result<TcpStream, Trouble> {
    let mut last = Trouble::Connect("no address".to_owned());
    for address in addresses {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are short and waited for.
                let _ = stream.set_nodelay(true);
                let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
                // While few are open, the kernel may hold as much as a long way needs.
                if let Some(window) = window.filter(|window| *window < LARGEST_WINDOW) {
                    outside::bound_unread(&stream, window as usize);
                }
                return Ok(stream);
            }
            Ok(Err(error)) => last = Trouble::Connect(error.to_string()),
            Err(_) => last = Trouble::Slow,
        }
    }
    Err(last)
}

/// Asks a proxy to be joined to the peer.
async fn join(
    proxy: &Proxy,
    peer: &Peer,
    mut stream: Box<dyn Stream>,
) -> Result<Box<dyn Stream>, Trouble> {
    let broken = |error: std::io::Error| Trouble::Connect(error.to_string());
    let asked = async {
        let request = proxy.connect_request(Some(&peer.name), peer.address);
        stream.write_all(&request).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let mut answer = Vec::new();
        loop {
            match proxy::answer(&answer) {
                Answer::More => {}
                // Nobody speaks before the client's hello, so nothing may be behind the head.
                Answer::Joined(end) if end == answer.len() => return Ok(()),
                Answer::Joined(_) => return Err(Trouble::Proxy(None)),
                Answer::Refused(status) => return Err(Trouble::Proxy(status)),
            }
            let mut piece = [0; 1024];
            match stream.read(&mut piece).await.map_err(broken)? {
                0 => return Err(Trouble::Proxy(None)),
                length => answer.extend_from_slice(&piece[..length]),
            }
        }
    };
    timeout(HANDSHAKE_LIMIT, asked).await.unwrap_or(Err(Trouble::Slow))?;
    Ok(stream)
}

async fn secure(
    config: &Arc<ClientConfig>,
    name: &str,
    offer: Offer,
    stream: Box<dyn Stream>,
) -> Result<Connected, Trouble> {
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| Trouble::Tls("not a name that certificates can have".to_owned()))?;
    let handshake = TlsConnector::from(Arc::clone(config)).connect(name, stream);
    let stream = match timeout(HANDSHAKE_LIMIT, handshake).await {
        Err(_) => return Err(Trouble::Slow),
        Ok(Err(error)) => return Err(tls_trouble(&error)),
        Ok(Ok(stream)) => stream,
    };
    let protocol = match (stream.get_ref().1.alpn_protocol(), offer) {
        (Some(b"h2"), _) => Protocol::Two,
        (None, Offer::Only(Protocol::Two)) => {
            return Err(Trouble::Tls("the server does not speak HTTP/2".to_owned()));
        }
        _ => Protocol::One,
    };
    Ok(Connected { stream: Box::new(stream), protocol })
}

fn tls_trouble(error: &std::io::Error) -> Trouble {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => Trouble::Certificate(why.to_string()),
        Some(error) => Trouble::Tls(error.to_string()),
        None => Trouble::Tls(error.to_string()),
    }
}

impl Trouble {
    /// As it is told inside.
    pub(crate) fn why(&self) -> String {
        match self {
            Self::Connect(why) => format!("cannot connect to it: {why}"),
            Self::Proxy(None) => "the HTTP proxy of the host did not answer as one".to_owned(),
            Self::Proxy(Some(status)) => {
                format!("the HTTP proxy of the host refused it with status {status}")
            }
            Self::Certificate(why) => format!("its certificate is not trusted: {why}"),
            Self::Tls(why) => format!("its TLS failed: {why}"),
            Self::Slow => "it took too long to answer".to_owned(),
            Self::Broken(why) => format!("its answer is broken: {why}"),
        }
    }
}
