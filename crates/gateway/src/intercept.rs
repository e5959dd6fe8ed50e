//! The Interceptor: an HTTP proxy for flows that have HTTP rules or may carry Secrets. It
//! terminates TLS on both sides.
//!
//! It is one thread with an async runtime. The event loop hands flows over as sockets and takes
//! Verdicts back; neither waits for the other. It opens no files.
//!
//! Locks, none of them held across `.await`: the certificates (`InterceptContext::issuer`), the
//! idle connection of a flow (`upstream_conn`) and its first error (`exchange`), and the state that
//! reading and answering share (`request_guard::GuardState`). No two of them are held at once.

mod body;
mod event_queue;
mod exchange;
pub(crate) mod fuzz;
mod http1_framing;
mod idle_timeout;
pub(crate) mod path_views;
pub(crate) mod refusal;
pub(crate) mod request;
mod request_guard;
mod serve;
#[cfg(test)]
mod tests;
pub(crate) mod upstream;
mod upstream_conn;
mod websocket;

use crate::budget::{ConnectionMemory, MemoryBudget, MemoryReservation, REQUEST_BYTES};
use crate::proxy::HttpProxy;
use crate::secrets::secret_value::SecretValue;
use crate::secrets::substitution::SecretSet;
use crate::tls::ca::{CaCertificate, CertificateIssuer};
use crate::tls::client::HttpVersion;
use event_queue::{EventReceiver, EventSender};
use msb_spec::{DomainName, Error, Kind, PlannedSecret, Policy, Result};
use msb_wire::NetEvent;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::rustls::ServerConfig;
use upstream::Upstream;

/// Request bodies that are buffered at a time. Others wait, instead of being refused for lack of
/// memory.
const MAX_BUFFERED_BODIES: usize = 2;

/// The configuration of an Interceptor.
#[derive(Debug)]
pub(crate) struct InterceptSettings {
    /// The network policy, with its HTTP rules.
    pub(crate) policy: Policy,
    /// The Secrets with their values.
    pub(crate) secrets: Vec<(PlannedSecret, SecretValue)>,
    /// The HTTP proxy of the host, if any.
    pub(crate) proxy: Option<Arc<HttpProxy>>,
    /// CA certificates that servers are verified with, in DER.
    pub(crate) roots: Vec<Vec<u8>>,
    /// The memory budget of all intercepted connections.
    pub(crate) budget: MemoryBudget,
}

/// A flow that is handed over to be intercepted.
#[derive(Debug)]
pub(crate) struct FlowHandoff {
    /// The number of the flow.
    pub(crate) flow: u64,
    /// A Unix stream socket with the client's bytes, from the first on.
    pub(crate) socket: OwnedFd,
    /// The server name that its first bytes showed.
    pub(crate) name: DomainName,
    /// The address of the server, which the policy has allowed.
    pub(crate) address: SocketAddr,
    /// Whether the address belongs to the host itself.
    pub(crate) is_host: bool,
    /// Whether the client uses TLS.
    pub(crate) tls: bool,
    /// The memory that is reserved for it.
    pub(crate) memory: ConnectionMemory,
}

/// A task for the interception thread.
enum InterceptTask {
    /// A flow to intercept.
    Inspect(FlowHandoff),
    /// A Unix stream socket to connect to the host's proxy over TLS.
    ProxyTls(OwnedFd, MemoryReservation),
}

/// The interception thread. It ends when this is dropped.
pub(crate) struct Interceptor {
    flows: mpsc::UnboundedSender<InterceptTask>,
    policy: watch::Sender<Arc<Policy>>,
    events: EventReceiver,
    budget: MemoryBudget,
}

/// What all intercepted flows share.
struct InterceptContext {
    secrets: Arc<SecretSet>,
    policy: watch::Receiver<Arc<Policy>>,
    upstream: Arc<Upstream>,
    /// `None` if the sandbox does not trust a CA of ours; then only plain HTTP is intercepted.
    issuer: Option<Mutex<CertificateIssuer>>,
    events: EventSender,
    buffers: Semaphore,
    budget: MemoryBudget,
}

impl InterceptContext {
    fn server_config(&self, name: &DomainName, protocol: HttpVersion) -> Result<Arc<ServerConfig>> {
        let issuer = self.issuer.as_ref();
        let issuer = issuer.ok_or_else(|| {
            Error::new(Kind::Unsupported, "the sandbox does not trust a CA of its gateway")
        })?;
        issuer.lock().unwrap_or_else(PoisonError::into_inner).server_config(name, protocol)
    }
}

impl Interceptor {
    /// Generates the CA and starts the thread.
    pub(crate) fn start(settings: InterceptSettings) -> Result<(Self, CaCertificate)> {
        let (issuer, ca) = CertificateIssuer::new()?;
        Ok((Self::spawn(settings, Some(issuer))?, ca))
    }

    /// Starts the thread for plain HTTP only, which costs next to nothing.
    pub(crate) fn start_plain(settings: InterceptSettings) -> Result<Self> {
        Self::spawn(settings, None)
    }

    fn spawn(settings: InterceptSettings, issuer: Option<CertificateIssuer>) -> Result<Self> {
        let failed =
            |cause: std::io::Error| Error::host("cannot start the interception thread", cause);
        let (sender, events) = event_queue::queue()?;
        let budget = settings.budget.clone();
        let (policy, policy_receiver) = watch::channel(Arc::new(settings.policy));
        let (flows, mut tasks) = mpsc::unbounded_channel::<InterceptTask>();
        let shared = Arc::new(InterceptContext {
            secrets: Arc::new(SecretSet::new(settings.secrets)),
            policy: policy_receiver,
            upstream: Arc::new(Upstream::new(settings.roots, settings.proxy)),
            issuer: issuer.map(Mutex::new),
            events: sender,
            buffers: Semaphore::new(MAX_BUFFERED_BODIES),
            budget: settings.budget,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let serve = move || {
            if shared.issuer.is_some() {
                shared.upstream.warm_up();
            }
            runtime.block_on(async {
                while let Some(task) = tasks.recv().await {
                    let shared = Arc::clone(&shared);
                    match task {
                        InterceptTask::Inspect(flow) => tokio::spawn(serve::serve(shared, flow)),
                        InterceptTask::ProxyTls(socket, memory) => {
                            tokio::spawn(serve::proxy_tls(shared, socket, memory))
                        }
                    };
                }
            });
        };
        std::thread::Builder::new().name("intercept".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Self { flows, policy, events, budget })
    }

    /// Takes a flow over. Never blocks: the limit on flows bounds the queue.
    pub(crate) fn take(&self, flow: FlowHandoff) {
        // If the thread has ended, the socket is closed, which ends the flow.
        let _ = self.flows.send(InterceptTask::Inspect(flow));
    }

    /// Connects this socket to the host's proxy over TLS. The end of either closes both.
    pub(crate) fn proxy_tls(&self, socket: OwnedFd) {
        // Without memory the socket is closed, which ends the flow.
        if let Some(memory) = self.budget.reserve(REQUEST_BYTES) {
            let _ = self.flows.send(InterceptTask::ProxyTls(socket, memory));
        }
    }

    /// Replaces the policy, from the next request on.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    /// The next event to record, without blocking.
    pub(crate) fn next(&self) -> Option<NetEvent> {
        self.events.next()
    }

    /// A descriptor that is readable while there may be events.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.events.wake()
    }
}
