//! Takes connections, and lets nobody stay who does not show who it is.

use crate::connection::Connection;
use crate::gate::Gate;
use crate::keys::{HostKey, Keys};
use crate::line::Line;
use crate::lobby::{Lobby, MOST_WAITING, Seat};
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

/// How long somebody may take to show who it is; sshd allows two minutes, which are for typing passwords.
const LOGIN_LIMIT: Duration = Duration::from_secs(20);
/// Keys that somebody may offer in vain. An agent offers each that it has, and russh counts each; there are no passwords
/// that could be guessed, and the time is limited as well.
const MOST_TRIES: usize = 64;
/// What a client may send ahead on each channel.
pub(crate) const WINDOW: u32 = 2 << 20;
/// The same while much waits for commands that do not read: two packets.
pub(crate) const SMALL_WINDOW: u32 = 64 << 10;
/// The same while hardly anything is read, so that what is read all the same adds up slowly.
pub(crate) const TINY_WINDOW: u32 = 4 << 10;
/// The largest packet that every client must understand, and what OpenSSH sends.
const PACKET: u32 = 32 << 10;
/// Packets that wait to be encrypted.
const WAITING_PACKETS: usize = 64;
/// How long a client may be silent before its kernel is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(30);
/// How often it is asked, and how often in vain.
const ASK: (Duration, u32) = (Duration::from_secs(10), 3);
/// Refusals that are told; a client that provokes more of them is only noisy.
const MOST_TOLD: usize = 32;

/// Who may come in.
#[derive(Clone)]
pub enum Door {
    /// Whoever is at the other end could start commands in the sandbox anyway.
    Anybody,
    /// Whoever has one of these keys; asked for anew at each login.
    Keys(Arc<dyn Fn() -> Keys + Send + Sync>),
}

/// What is served.
#[derive(Clone)]
pub struct Served {
    /// The Operations.
    pub api: Arc<dyn Api>,
    /// The sandbox.
    pub name: Name,
    /// Fails once the name is another sandbox's, or nobody's.
    pub still: Still,
    /// The key by which it is known.
    pub host_key: HostKey,
    /// Who may come in.
    pub door: Door,
    /// Told to the person whose process this is.
    pub tell: Tell,
}

/// Whether a sandbox is the one that it was when the serving began; asked before anything is done in it.
pub type Still = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// How it is told.
pub type Tell = Arc<dyn Fn(&Told) + Send + Sync>;

/// What the person whose process this is may want to know.
#[derive(Debug)]
pub enum Told {
    /// Why something was refused for which SSH has no words.
    Refused(Error),
    /// Somebody has come in.
    Login {
        /// As whom.
        user: String,
        /// The fingerprint of the key.
        key: String,
        /// From which address.
        from: String,
    },
}

/// What all connections share.
pub(crate) struct Site {
    api: Arc<dyn Api>,
    still: Still,
    pub(crate) name: Name,
    pub(crate) door: Door,
    pub(crate) runtime: tokio::runtime::Handle,
    tell: Tell,
    told: Mutex<HashSet<String>>,
}

impl Site {
    /// The Operations, as long as the name means the sandbox for which somebody was let in. A command or a signal
    /// that comes later must not reach another that was given the name.
    pub(crate) fn api(&self) -> Result<&dyn Api> {
        (self.still)()?;
        Ok(&*self.api)
    }

    /// Tells a person why something was refused, once.
    pub(crate) fn refused(&self, error: Error) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let words = format!("{} {:?}", error.message(), error.causes());
        if told.len() < MOST_TOLD && told.insert(words) {
            self.tell(&Told::Refused(error));
        }
    }

    /// Tells a person something.
    pub(crate) fn tell(&self, told: &Told) {
        (self.tell)(told);
    }
}

/// Serves whoever connects to a port, until it is dropped.
pub async fn serve_port(served: &Served, listener: TcpListener) -> Result<()> {
    let about = |error: std::io::Error| Error::host("cannot serve SSH", error);
    listener.set_nonblocking(true).map_err(about)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(about)?;
    let (site, config) = (site(served), Arc::new(config(served)));
    let lobby = Arc::new(Lobby::default());
    loop {
        let accepted = listener.accept().await;
        let Ok((stream, peer)) = accepted else {
            // No descriptor is free: others must go first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let gate = Arc::new(Gate::default());
        let (seat, cut) = lobby.enter(&gate);
        if cut {
            let many = format!("{MOST_WAITING} connections have not shown a key");
            site.refused(Error::new(Kind::Limit, many).cause("the oldest of them is cut off"));
        }
        let (site, config) = (Arc::clone(&site), Arc::clone(&config));
        tokio::spawn(async move {
            let _ = serve_tcp(site, config, stream, peer, gate, seat).await;
        });
    }
}

/// Serves the one client at the other end of two descriptors, until it leaves.
pub async fn serve_pair(served: &Served, input: OwnedFd, output: OwnedFd) -> Result<()> {
    let config = Arc::new(config(served));
    let gate = Arc::new(Gate::default());
    let line = Line::pair(input, output, Arc::clone(&gate)).map_err(|error| {
        Error::host("cannot speak SSH on stdin and stdout", error)
            .hint("`--stdio` is for pipes and sockets, as ssh makes them for its ProxyCommand")
    })?;
    let (seat, _) = Arc::new(Lobby::default()).enter(&gate);
    attend(&site(served), config, line, gate, seat, None).await
}

fn site(served: &Served) -> Arc<Site> {
    Arc::new(Site {
        api: Arc::clone(&served.api),
        still: Arc::clone(&served.still),
        name: served.name.clone(),
        door: served.door.clone(),
        runtime: tokio::runtime::Handle::current(),
        tell: Arc::clone(&served.tell),
        told: Mutex::default(),
    })
}

async fn serve_tcp(
    site: Arc<Site>,
    config: Arc<Config>,
    stream: TcpStream,
    peer: SocketAddr,
    gate: Arc<Gate>,
    seat: Seat,
) -> Result<()> {
    let about = |error: std::io::Error| Error::host("cannot serve a client", error);
    let own = stream.local_addr().map_err(about)?;
    stream.set_nodelay(true).map_err(about)?;
    keep_alive(&stream).map_err(|error| about(error.into()))?;
    let line = Line::tcp(stream, Arc::clone(&gate)).map_err(about)?;
    attend(&site, config, line, gate, seat, Some((peer, own))).await
}

/// Lets the kernels find out when one of them has gone. Not SSH's own way: a client that we do not read
/// for a while could not answer.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, ASK.0)?;
    sockopt::set_tcp_keepcnt(stream, ASK.1)
}

/// Speaks SSH with one client until it leaves or is cut off.
async fn attend(
    site: &Arc<Site>,
    config: Arc<Config>,
    line: Line,
    gate: Arc<Gate>,
    seat: Seat,
    ends: Option<(SocketAddr, SocketAddr)>,
) -> Result<()> {
    let seat = Arc::new(seat);
    let connection = Connection::new(site, &gate, &seat, ends);
    let limit = tokio::spawn({
        let gate = Arc::clone(&gate);
        async move {
            tokio::time::sleep(LOGIN_LIMIT).await;
            if !seat.is_inside() {
                gate.cut();
            }
        }
    });
    // If we are dropped, so is the connection.
    let _cut = Cut(gate);
    let told = |error: russh::Error| {
        Error::new(Kind::Protocol, "the SSH connection has ended early").cause(error)
    };
    let spoken = match russh::server::run_stream(config, line, connection).await {
        Ok(session) => session.await.map_err(told),
        Err(error) => Err(told(error)),
    };
    limit.abort();
    spoken
}

struct Cut(Arc<Gate>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.cut();
    }
}

fn config(served: &Served) -> Config {
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
        // There are no passwords, so nothing could be learnt from how long a refusal takes.
        auth_rejection_time: Duration::ZERO,
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![served.host_key.private()],
        window_size: WINDOW,
        maximum_packet_size: PACKET,
        event_buffer_size: WAITING_PACKETS,
        max_auth_attempts: MOST_TRIES,
        // Sessions last for weeks; whether a client is there is asked another way.
        inactivity_timeout: None,
        keepalive_interval: None,
        preferred: preferred(),
        ..Config::default()
    }
}

/// What is offered, and nothing that is only there for old clients.
fn preferred() -> Preferred {
    const KEX: &[kex::Name] = &[
        kex::MLKEM768X25519_SHA256,
        kex::CURVE25519,
        kex::CURVE25519_PRE_RFC_8731,
        kex::EXTENSION_SUPPORT_AS_SERVER,
        kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
    ];
    // The client's order decides. OpenSSH's begins with ChaCha20 and, before version 10, has AES in counter mode before
    // GCM; both are several times slower where the processor knows AES, so that they are not offered there.
    const AES: &[cipher::Name] = &[cipher::AES_128_GCM, cipher::AES_256_GCM];
    const ALL: &[cipher::Name] =
        &[cipher::CHACHA20_POLY1305, cipher::AES_128_GCM, cipher::AES_256_GCM];
    // Each of them authenticates by itself; a list must be there all the same.
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
