//! Looks into flows whose requests are ruled one by one, or may carry Secrets.
//!
//! One thread with everything that waits on it. The event loop hands flows over as sockets and
//! takes Verdicts back; neither waits for the other. Opens no files.
//!
//! Locks, none of them held while waiting: the certificates (`Shared::issuing`), the idle
//! connection of a flow (`line`) and its first trouble (`exchange`), what a flow's reading and
//! answering sides tell each other (`guarded::Gate`). No two of them are ever held at once.

mod authority;
mod body;
mod escapes;
mod event;
mod exchange;
pub(crate) mod fuzz;
mod guarded;
mod head;
mod line;
mod message_end;
mod path;
pub(crate) mod patterns;
pub(crate) mod refusal;
mod request;
mod scrub;
mod secrets;
mod serve;
mod stall;
#[cfg(test)]
mod tests;
mod upstream;
mod value_search;
mod websocket;

use crate::budget::{Budget, REQUEST, Reserved, Share};
use crate::proxy::Proxy;
use crate::secret_value::SecretValue;
pub(crate) use authority::Authority;
use authority::Issuing;
use event::{Events, Happened};
use msb_spec::{DomainName, Error, Kind, PlannedSecret, Policy, Result};
use msb_wire::NetEvent;
use secrets::Secrets;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::rustls::ServerConfig;
use upstream::{Protocol, Upstream};

/// Bodies that are read whole at a time: others wait, instead of being refused for want of memory.
const BUFFERS: usize = 2;

/// What interception is to do.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The rules.
    pub(crate) policy: Policy,
    /// The Secrets and their values.
    pub(crate) secrets: Vec<(PlannedSecret, SecretValue)>,
    /// The proxy of the host.
    pub(crate) proxy: Option<Arc<Proxy>>,
    /// Authorities that the other side is verified with, in DER.
    pub(crate) roots: Vec<Vec<u8>>,
    /// The memory that all of it may take.
    pub(crate) budget: Budget,
}

/// A flow to be looked into.
#[derive(Debug)]
pub(crate) struct Intercepted {
    /// Its number.
    pub(crate) flow: u64,
    /// A unix stream: the client's bytes from the first on.
    pub(crate) socket: OwnedFd,
    /// Whom it is for, as its first bytes showed.
    pub(crate) name: DomainName,
    /// Where that is; already decided.
    pub(crate) address: SocketAddr,
    /// Whether the address is one of the host's own.
    pub(crate) is_host: bool,
    /// Whether the client speaks TLS.
    pub(crate) tls: bool,
    /// The memory that it gets.
    pub(crate) share: Share,
}

/// What is handed over.
enum Work {
    /// To be looked into.
    Look(Intercepted),
    /// To be joined to the proxy of the host, which is spoken to in TLS; a unix stream.
    Secure(OwnedFd, Reserved),
}

/// The thread that looks into flows. It ends when this is dropped.
pub(crate) struct Interceptor {
    flows: mpsc::UnboundedSender<Work>,
    policy: watch::Sender<Arc<Policy>>,
    happened: Happened,
    budget: Budget,
}

/// What all flows share.
struct Shared {
    secrets: Arc<Secrets>,
    policy: watch::Receiver<Arc<Policy>>,
    upstream: Arc<Upstream>,
    /// None where nobody inside trusts us, and only plain requests are looked into.
    issuing: Option<Mutex<Issuing>>,
    events: Events,
    buffers: Semaphore,
    budget: Budget,
}

impl Shared {
    fn config(&self, name: &DomainName, protocol: Protocol) -> Result<Arc<ServerConfig>> {
        let issuing = self.issuing.as_ref();
        let issuing =
            issuing.ok_or_else(|| Error::new(Kind::Unsupported, "nobody inside trusts us"))?;
        issuing.lock().unwrap_or_else(PoisonError::into_inner).config(name, protocol)
    }
}

impl Interceptor {
    /// Makes the certificate authority and starts the thread.
    pub(crate) fn start(settings: Settings) -> Result<(Self, Authority)> {
        let (issuing, authority) = Issuing::new()?;
        Ok((Self::begin(settings, Some(issuing))?, authority))
    }

    /// Starts the thread for plain requests only, which costs next to nothing.
    pub(crate) fn start_plain(settings: Settings) -> Result<Self> {
        Self::begin(settings, None)
    }

    fn begin(settings: Settings, issuing: Option<Issuing>) -> Result<Self> {
        let failed = |cause: std::io::Error| Error::host("cannot start to look into flows", cause);
        let (events, happened) = event::queue()?;
        let budget = settings.budget.clone();
        let (policy, rules) = watch::channel(Arc::new(settings.policy));
        let (flows, mut taken) = mpsc::unbounded_channel::<Work>();
        let shared = Arc::new(Shared {
            secrets: Arc::new(Secrets::new(settings.secrets)),
            policy: rules,
            upstream: Arc::new(Upstream::new(settings.roots, settings.proxy)),
            issuing: issuing.map(Mutex::new),
            events,
            buffers: Semaphore::new(BUFFERS),
            budget: settings.budget,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let serve = move || {
            if shared.issuing.is_some() {
                shared.upstream.warm_up();
            }
            runtime.block_on(async {
                while let Some(work) = taken.recv().await {
                    let shared = Arc::clone(&shared);
                    match work {
                        Work::Look(flow) => tokio::spawn(serve::serve(shared, flow)),
                        Work::Secure(socket, memory) => {
                            tokio::spawn(serve::secure(shared, socket, memory))
                        }
                    };
                }
            });
        };
        std::thread::Builder::new().name("intercept".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Self { flows, policy, happened, budget })
    }

    /// Looks into a flow from now on. Never waits: who hands flows over bounds their number.
    pub(crate) fn take(&self, flow: Intercepted) {
        // Without the thread the socket is closed, which ends the flow.
        let _ = self.flows.send(Work::Look(flow));
    }

    /// Has TLS spoken between this stream and the proxy of the host. Its end is the stream's.
    pub(crate) fn secure(&self, socket: OwnedFd) {
        // Without memory for it the socket is closed, which ends the flow.
        if let Some(memory) = self.budget.reserve(REQUEST) {
            let _ = self.flows.send(Work::Secure(socket, memory));
        }
    }

    /// Decides by these rules from the next request on.
    pub(crate) fn rules(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    /// The next thing to record, without waiting.
    pub(crate) fn next(&self) -> Option<NetEvent> {
        self.happened.next()
    }

    /// Readable when there may be something to record.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.happened.wake()
    }
}
