//! Port forwarding: from the client to addresses inside, and from listeners inside to the client.
//!
//! Both ends inside are opened by the logged-in user, so that the network rules of the sandbox
//! apply. Refusals are reported on the server side, once each: SSH clients show no reason.

use crate::channels::Channels;
use crate::relay::{self, EndNotice, StreamCloser};
use msb_api::{AcceptedConn, Account, LinkListener, Target};
use msb_spec::{Error, Kind, Result};
use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{Channel, ChannelOpenFailure};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Listeners inside that one connection may open.
const MAX_LISTENERS: usize = 32;

/// Address of a forward as the client named it: host and port, or path and zero.
type ForwardAddress = (String, u32);
type Stopper = Box<dyn Fn() + Send + Sync>;
type OpenedChannel = (Handle, std::result::Result<Channel<Msg>, russh::Error>);
type OpeningChannel = Pin<Box<dyn Future<Output = OpenedChannel> + Send>>;

/// Port forwards of one client connection.
pub(crate) struct PortForwards {
    channels: Arc<Channels>,
    listeners: Mutex<HashMap<ForwardAddress, Stopper>>,
}

impl PortForwards {
    pub(crate) fn new(channels: &Arc<Channels>) -> Self {
        Self { channels: Arc::clone(channels), listeners: Mutex::default() }
    }

    /// A TCP target, seen from inside; `None` if it is no valid port.
    pub(crate) fn tcp(host: &str, port: u32) -> Option<Target> {
        let port = u16::try_from(port).ok()?;
        (host.len() <= 255).then(|| Target::Tcp { host: host.to_owned(), port })
    }

    /// A Unix socket of the sandbox as a target.
    pub(crate) fn unix(path: &str) -> Target {
        Target::Unix { path: path.as_bytes().to_vec() }
    }

    /// Forwards a connection of the client to an address inside.
    pub(crate) async fn dial(
        &self,
        channel: Channel<Msg>,
        target: Target,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
        reply: ChannelOpenHandle,
        handle: Handle,
    ) {
        let (_, write) = channel.split();
        let closer = Arc::new(StreamCloser::default());
        let stop = Arc::clone(&closer);
        let Some(ends) = self.channels.start(write, handle, stop) else {
            return reply.reject(ChannelOpenFailure::ResourceShortage).await;
        };
        let channels = Arc::clone(&self.channels);
        let work = move || {
            let (id, server) = (ends.out.id(), &channels.server);
            let dialled = account().and_then(|account| {
                server.api()?.link_dial(&server.name, Some(&account.user), &target)
            });
            match dialled {
                Ok(stream) if closer.set_stream(&stream) => {
                    server.runtime.block_on(reply.accept());
                    relay::relay(&channels, ends, stream, EndNotice::None);
                }
                other => {
                    if let Err(error) = other {
                        server.report_refusal(error.under("a connection was not forwarded"));
                    }
                    channels.remove(id);
                    server.runtime.block_on(reply.reject(ChannelOpenFailure::ConnectFailed));
                }
            }
        };
        // If the thread cannot start, the dropped reply refuses the channel.
        let _ = thread::Builder::new().name("ssh-dial".to_owned()).spawn(work);
    }

    /// Listens at a port inside and forwards its connections to the client. Port 0 is replaced by
    /// the chosen one.
    pub(crate) async fn listen_tcp(
        &self,
        address: &str,
        port: &mut u32,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
        handle: Handle,
    ) -> bool {
        let Some(target) = Self::tcp(address, *port) else { return false };
        let Some(listener) = self.open_listener(target, account).await else { return false };
        if let (0, Target::Tcp { port: chosen, .. }) = (*port, listener.at()) {
            // The client finds the forward by this port, which the guest has chosen.
            if self.listeners().keys().any(|(_, taken)| *taken == u32::from(*chosen)) {
                let message = "the guest chose a port that is forwarded already";
                self.channels.server.report_refusal(Error::new(Kind::Protocol, message));
                return false;
            }
            *port = u32::from(*chosen);
        }
        let (address, port) = (address.to_owned(), *port);
        let address_key = (address.clone(), port);
        let open = move |from: &AcceptedConn| {
            let (host, from_port) = (from.host.clone(), u32::from(from.port));
            let (handle, address) = (handle.clone(), address.clone());
            let opened = async move {
                let channel =
                    handle.channel_open_forwarded_tcpip(address, port, host, from_port).await;
                (handle, channel)
            };
            Box::pin(opened) as OpeningChannel
        };
        self.accept_loop(address_key, listener, open)
    }

    /// Listens at a Unix socket inside and forwards its connections to the client.
    pub(crate) async fn listen_unix(
        &self,
        path: &str,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
        handle: Handle,
    ) -> bool {
        let Some(listener) = self.open_listener(Self::unix(path), account).await else {
            return false;
        };
        let path = path.to_owned();
        let address_key = (path.clone(), 0);
        let open = move |_: &AcceptedConn| {
            let (handle, path) = (handle.clone(), path.clone());
            let opened = async move {
                let channel = handle.channel_open_forwarded_streamlocal(path).await;
                (handle, channel)
            };
            Box::pin(opened) as OpeningChannel
        };
        self.accept_loop(address_key, listener, open)
    }

    /// Stops a listener; false if there is none.
    pub(crate) fn cancel(&self, address_key: &ForwardAddress) -> bool {
        let stopper = self.listeners().remove(address_key);
        stopper.map(|stop| stop()).is_some()
    }

    /// Stops all listeners of the client.
    pub(crate) fn clear(&self) {
        self.listeners().drain().for_each(|(_, stop)| stop());
    }

    async fn open_listener(
        &self,
        target: Target,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
    ) -> Option<Box<dyn LinkListener>> {
        if self.listeners().len() >= MAX_LISTENERS {
            return None;
        }
        let server = Arc::clone(&self.channels.server);
        let listen = move || {
            let user = account()?.user;
            server.api()?.link_listen(&server.name, Some(&user), &target)
        };
        let listened = tokio::task::spawn_blocking(listen).await.unwrap_or_else(|_| {
            Err(Error::host(
                "cannot start a listener inside",
                std::io::Error::other("no thread is free"),
            ))
        });
        listened
            .inspect_err(|error| {
                let error = error.clone().under("cannot listen inside for a port forward");
                self.channels.server.report_refusal(error);
            })
            .ok()
    }

    /// Accepts connections of a listener in a thread.
    fn accept_loop(
        &self,
        address_key: ForwardAddress,
        mut listener: Box<dyn LinkListener>,
        open: impl Fn(&AcceptedConn) -> OpeningChannel + Send + 'static,
    ) -> bool {
        let stopper = listener.stopper();
        let channels = Arc::clone(&self.channels);
        let work = move || {
            while let Ok(Some(accepted)) = listener.accept() {
                // The sandbox decides how many connections arrive, so half of the channels stay for
                // the client.
                if channels.is_half_full() {
                    let error = Error::new(Kind::Limit, "too many connections from inside at once");
                    channels.server.report_refusal(error.cause("the newest are not forwarded"));
                    continue;
                }
                // The client confirms each channel; further connections wait in the backlog.
                let opened = channels.server.runtime.block_on(open(&accepted));
                if let (handle, Ok(channel)) = opened {
                    relay_accepted(&channels, handle, channel, accepted.stream);
                }
            }
        };
        let started = thread::Builder::new().name("ssh-listen".to_owned()).spawn(work).is_ok();
        if started && let Some(previous) = self.listeners().insert(address_key, stopper) {
            previous();
        }
        started
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, HashMap<ForwardAddress, Stopper>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Relays one connection from inside to the client.
fn relay_accepted(
    channels: &Arc<Channels>,
    handle: Handle,
    channel: Channel<Msg>,
    stream: UnixStream,
) {
    let (_, write) = channel.split();
    let (ends, closer) = channels.claim(write, handle);
    let channels = Arc::clone(channels);
    let work = move || match closer.set_stream(&stream) {
        true => relay::relay(&channels, ends, stream, EndNotice::None),
        false => {
            ends.out.close();
            channels.remove(ends.out.id());
        }
    };
    let _ = thread::Builder::new().name("ssh-out".to_owned()).spawn(work);
}
