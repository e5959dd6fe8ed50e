//! Accepts connections and closes those that do not authenticate in time.

use crate::client_stream::ClientStream;
use crate::conn_limiter::{ConnLimiter, ConnPermit, MAX_UNAUTHENTICATED};
use crate::connection::SshConnection;
use crate::flow_control::FlowControl;
use crate::keys::{HostKey, Keys};
use msb_api::Api;
use msb_spec::{Error, Kind, Name, Result};
use russh::server::Config;
use russh::{MethodKind, MethodSet, Preferred, SshId, cipher, compression, kex, mac};
use std::borrow::Cow;
use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;

/// Time until a client must have authenticated; sshd allows two minutes, for typing passwords.
const LOGIN_LIMIT: Duration = Duration::from_secs(20);
/// Rejected keys of one connection. An agent offers all its keys, and russh counts each; there are
/// no passwords to guess, and the time is limited as well.
const MAX_AUTH_ATTEMPTS: usize = 64;
/// Window of a channel in bytes, usually.
pub(crate) const WINDOW: u32 = 2 << 20;
/// Window in bytes while many bytes are queued for commands that do not read: two packets.
pub(crate) const SMALL_WINDOW: u32 = 64 << 10;
/// Window in bytes while reads are paused, so that trickled bytes add up slowly.
pub(crate) const TINY_WINDOW: u32 = 4 << 10;
/// Largest packet in bytes that all clients must accept (RFC 4253), and what OpenSSH sends.
const MAX_PACKET: u32 = 32 << 10;
/// Packets that wait to be encrypted.
const QUEUED_PACKETS: usize = 64;
/// Silence of a client before TCP keep-alive probes are sent.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Interval of these probes, and their number before the peer counts as dead.
const KEEPALIVE_PROBES: (Duration, u32) = (Duration::from_secs(10), 3);
/// Refusals that are reported; a client that provokes more is only noisy.
const MAX_REPORTS: usize = 32;

/// Which clients are allowed to log in.
#[derive(Clone)]
pub enum Door {
    /// All: the client is the parent of this process, which could start commands in the sandbox
    /// anyway.
    Anybody,
    /// Clients with one of these keys; read again at each login.
    Keys(Arc<dyn Fn() -> Keys + Send + Sync>),
}

/// What an SSH server serves.
#[derive(Clone)]
pub struct SshServerConfig {
    /// The Operations that it calls.
    pub api: Arc<dyn Api>,
    /// Name of the served sandbox.
    pub name: Name,
    /// Fails once the name belongs to another sandbox, or to none.
    pub still: Still,
    /// Host key that clients see.
    pub host_key: HostKey,
    /// Which clients may log in.
    pub door: Door,
    /// Receives notices for the user of this process.
    pub tell: Tell,
}

/// Checks that the sandbox is the one that it was at the start of the server; called before each
/// operation.
pub type Still = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Callback that receives notices for the user.
pub type Tell = Arc<dyn Fn(&ServerNotice) + Send + Sync>;

/// A notice for the user that runs the server.
#[derive(Debug)]
pub enum ServerNotice {
    /// Why a request was refused: SSH cannot tell the client.
    Refused(Error),
    /// A client has logged in.
    Login {
        /// User inside that it logged in as.
        user: String,
        /// SHA-256 fingerprint of its key.
        key: String,
        /// IP address of the client.
        from: String,
    },
}

/// State that all connections share.
pub(crate) struct ServerState {
    api: Arc<dyn Api>,
    still: Still,
    pub(crate) name: Name,
    pub(crate) door: Door,
    pub(crate) runtime: tokio::runtime::Handle,
    tell: Tell,
    reported: Mutex<HashSet<String>>,
}

impl ServerState {
    /// The Operations, as long as the name belongs to the sandbox of the login. A later command or
    /// signal must not reach another sandbox of that name.
    pub(crate) fn api(&self) -> Result<&dyn Api> {
        (self.still)()?;
        Ok(&*self.api)
    }

    /// Reports a refusal to the user, each text once.
    pub(crate) fn report_refusal(&self, error: Error) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let text = format!("{} {:?}", error.message(), error.causes());
        if reported.len() < MAX_REPORTS && reported.insert(text) {
            self.notify(&ServerNotice::Refused(error));
        }
    }

    /// Sends a notice to the user.
    pub(crate) fn notify(&self, event: &ServerNotice) {
        (self.tell)(event);
    }
}

/// Serves clients of a TCP port, until the future is dropped.
pub async fn serve_port(served: &SshServerConfig, listener: TcpListener) -> Result<()> {
    let host_error = |error: std::io::Error| Error::host("cannot serve SSH", error);
    listener.set_nonblocking(true).map_err(host_error)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(host_error)?;
    let (server, config) = (server_state(served), Arc::new(config(served)));
    let limiter = Arc::new(ConnLimiter::default());
    loop {
        let accepted = listener.accept().await;
        let Ok((stream, peer)) = accepted else {
            // No descriptor is free: other connections must close first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let flow = Arc::new(FlowControl::default());
        let (permit, aborted) = limiter.register(&flow);
        if aborted {
            let message = format!("{MAX_UNAUTHENTICATED} connections have not shown a key");
            server.report_refusal(
                Error::new(Kind::Limit, message).cause("the oldest of them is closed"),
            );
        }
        let (server, config) = (Arc::clone(&server), Arc::clone(&config));
        tokio::spawn(async move {
            msb_log::debug_on_failure!(
                serve_tcp(server, config, stream, peer, flow, permit).await,
                "an SSH connection broke"
            );
        });
    }
}

/// Serves one client over two descriptors, until it disconnects.
pub async fn serve_pair(served: &SshServerConfig, input: OwnedFd, output: OwnedFd) -> Result<()> {
    let config = Arc::new(config(served));
    let flow = Arc::new(FlowControl::default());
    let line = ClientStream::pair(input, output, Arc::clone(&flow)).map_err(|error| {
        Error::host("cannot speak SSH on stdin and stdout", error)
            .hint("`--stdio` is for pipes and sockets, as ssh makes them for its ProxyCommand")
    })?;
    let (permit, _) = Arc::new(ConnLimiter::default()).register(&flow);
    serve_client(&server_state(served), config, line, flow, permit, None).await
}

fn server_state(served: &SshServerConfig) -> Arc<ServerState> {
    Arc::new(ServerState {
        api: Arc::clone(&served.api),
        still: Arc::clone(&served.still),
        name: served.name.clone(),
        door: served.door.clone(),
        runtime: tokio::runtime::Handle::current(),
        tell: Arc::clone(&served.tell),
        reported: Mutex::default(),
    })
}

async fn serve_tcp(
    server: Arc<ServerState>,
    config: Arc<Config>,
    stream: TcpStream,
    peer: SocketAddr,
    flow: Arc<FlowControl>,
    permit: ConnPermit,
) -> Result<()> {
    let host_error = |error: std::io::Error| Error::host("cannot serve a client", error);
    let own = stream.local_addr().map_err(host_error)?;
    stream.set_nodelay(true).map_err(host_error)?;
    keep_alive(&stream).map_err(|error| host_error(error.into()))?;
    let line = ClientStream::tcp(stream, Arc::clone(&flow)).map_err(host_error)?;
    serve_client(&server, config, line, flow, permit, Some((peer, own))).await
}

/// Enables TCP keep-alive. Not that of SSH: a client that is not read for a while could not answer.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_PROBES.0)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES.1)
}

/// Serves one client until it disconnects or is aborted.
async fn serve_client(
    server: &Arc<ServerState>,
    config: Arc<Config>,
    line: ClientStream,
    flow: Arc<FlowControl>,
    permit: ConnPermit,
    ends: Option<(SocketAddr, SocketAddr)>,
) -> Result<()> {
    let permit = Arc::new(permit);
    let connection = SshConnection::new(server, &flow, &permit, ends);
    let limit = tokio::spawn({
        let flow = Arc::clone(&flow);
        async move {
            tokio::time::sleep(LOGIN_LIMIT).await;
            if !permit.is_authenticated() {
                flow.abort();
            }
        }
    });
    // Dropping this future aborts the connection.
    let _abort = AbortOnDrop(flow);
    let session_error = |error: russh::Error| {
        Error::new(Kind::Protocol, "the SSH connection has ended early").cause(error)
    };
    let result = match russh::server::run_stream(config, line, connection).await {
        Ok(session) => session.await.map_err(session_error),
        Err(error) => Err(session_error(error)),
    };
    limit.abort();
    result
}

struct AbortOnDrop(Arc<FlowControl>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn config(served: &SshServerConfig) -> Config {
    let methods: &[MethodKind] = match served.door {
        Door::Anybody => &[MethodKind::None, MethodKind::PublicKey],
        Door::Keys(_) => &[MethodKind::PublicKey],
    };
    Config {
        server_id: SshId::Standard(Cow::Borrowed(concat!(
            "SSH-2.0-msb_",
            env!("CARGO_PKG_VERSION")
        ))),
        methods: MethodSet::from(methods),
        // There are no passwords, so the time of a refusal reveals nothing.
        auth_rejection_time: Duration::ZERO,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![served.host_key.private()],
        window_size: WINDOW,
        maximum_packet_size: MAX_PACKET,
        event_buffer_size: QUEUED_PACKETS,
        max_auth_attempts: MAX_AUTH_ATTEMPTS,
        // Sessions last for weeks; TCP keep-alive detects dead peers.
        inactivity_timeout: None,
        keepalive_interval: None,
        preferred: preferred(),
        ..Config::default()
    }
}

/// Offered algorithms, without those that only old clients need.
fn preferred() -> Preferred {
    const KEX: &[kex::Name] = &[
        kex::MLKEM768X25519_SHA256,
        kex::CURVE25519,
        kex::CURVE25519_PRE_RFC_8731,
        kex::EXTENSION_SUPPORT_AS_SERVER,
        kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
    ];
    // The order of the client decides. That of OpenSSH begins with ChaCha20 and, before version 10,
    // has AES-CTR before GCM. Both are several times slower on CPUs with AES instructions, so they
    // are not offered there.
    const AES: &[cipher::Name] = &[cipher::AES_128_GCM, cipher::AES_256_GCM];
    const ALL: &[cipher::Name] =
        &[cipher::CHACHA20_POLY1305, cipher::AES_128_GCM, cipher::AES_256_GCM];
    // AEAD ciphers need no MAC, but the list must not be empty.
    const MAC: &[mac::Name] = &[mac::HMAC_SHA256_ETM, mac::HMAC_SHA512_ETM];
    Preferred {
        kex: Cow::Borrowed(KEX),
        cipher: Cow::Borrowed(if has_aes() { AES } else { ALL }),
        mac: Cow::Borrowed(MAC),
        compression: Cow::Borrowed(&[compression::NONE]),
        ..Preferred::DEFAULT
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}
