//! Connections that are led through: from the client to somewhere inside, and from inside to the client.
//!
//! Both are opened inside, by the user who has logged in, so that the rules of the sandbox's network hold for
//! them as for anything else there. Why one was refused is told on our side, once each: SSH has no
//! words for it that a client would show.

use crate::board::Board;
use crate::relay::{self, Farewell, Shut};
use msb_api::{Accepted, Account, LinkListener, Target};
use msb_spec::{Error, Kind, Result};
use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{Channel, ChannelOpenFailure};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Places inside that one connection may listen at.
const MOST_LISTENERS: usize = 32;

/// What one client has forwarded to it: an address and a port as the client named them, or a path and zero.
type Place = (String, u32);
type Stopper = Box<dyn Fn() + Send + Sync>;
type Opened = (Handle, std::result::Result<Channel<Msg>, russh::Error>);
type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

/// The forwarded connections of one client.
pub(crate) struct Forwards {
    board: Arc<Board>,
    listeners: Mutex<HashMap<Place, Stopper>>,
}

impl Forwards {
    pub(crate) fn new(board: &Arc<Board>) -> Self {
        Self { board: Arc::clone(board), listeners: Mutex::default() }
    }

    /// A port of a host, as it is seen from inside.
    pub(crate) fn tcp(host: &str, port: u32) -> Option<Target> {
        let port = u16::try_from(port).ok()?;
        (host.len() <= 255).then(|| Target::Tcp { host: host.to_owned(), port })
    }

    /// A socket of the sandbox's file system.
    pub(crate) fn unix(path: &str) -> Target {
        Target::Unix { path: path.as_bytes().to_vec() }
    }

    /// Leads a connection of the client to somewhere inside.
    pub(crate) async fn dial(
        &self,
        channel: Channel<Msg>,
        target: Target,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
        reply: ChannelOpenHandle,
        handle: Handle,
    ) {
        let (_, write) = channel.split();
        let shut = Arc::new(Shut::default());
        let stop = Arc::clone(&shut);
        let Some(ends) = self.board.run(write, handle, stop) else {
            return reply.reject(ChannelOpenFailure::ResourceShortage).await;
        };
        let board = Arc::clone(&self.board);
        let work = move || {
            let (id, site) = (ends.out.id(), &board.site);
            let dialled = account().and_then(|account| {
                site.api()?.link_dial(&site.name, Some(&account.user), &target)
            });
            match dialled {
                Ok(stream) if shut.begins(&stream) => {
                    site.runtime.block_on(reply.accept());
                    relay::carry(&board, ends, stream, Farewell::Nothing);
                }
                other => {
                    if let Err(error) = other {
                        site.refused(error.under("a connection was not forwarded"));
                    }
                    board.remove(id);
                    site.runtime.block_on(reply.reject(ChannelOpenFailure::ConnectFailed));
                }
            }
        };
        // A thread that cannot be started drops the reply, which refuses.
        let _ = thread::Builder::new().name("ssh-dial".to_owned()).spawn(work);
    }

    /// Listens at a port inside and leads what connects to the client. The port that was chosen is
    /// put in place of zero.
    pub(crate) async fn listen_tcp(
        &self,
        address: &str,
        port: &mut u32,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
        handle: Handle,
    ) -> bool {
        let Some(target) = Self::tcp(address, *port) else { return false };
        let Some(listener) = self.listener(target, account).await else { return false };
        if let (0, Target::Tcp { port: chosen, .. }) = (*port, listener.at()) {
            // By its port the client knows whom to join with what comes, and the guest has chosen it.
            if self.listeners().keys().any(|(_, taken)| *taken == u32::from(*chosen)) {
                let message = "the guest chose a port that is forwarded already";
                self.board.site.refused(Error::new(Kind::Protocol, message));
                return false;
            }
            *port = u32::from(*chosen);
        }
        let (address, port) = (address.to_owned(), *port);
        let place = (address.clone(), port);
        let open = move |from: &Accepted| {
            let (host, from_port) = (from.host.clone(), u32::from(from.port));
            let (handle, address) = (handle.clone(), address.clone());
            let opened = async move {
                let channel =
                    handle.channel_open_forwarded_tcpip(address, port, host, from_port).await;
                (handle, channel)
            };
            Box::pin(opened) as Opening
        };
        self.lead(place, listener, open)
    }

    /// The same at a socket of the sandbox's file system.
    pub(crate) async fn listen_unix(
        &self,
        path: &str,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
        handle: Handle,
    ) -> bool {
        let Some(listener) = self.listener(Self::unix(path), account).await else { return false };
        let path = path.to_owned();
        let place = (path.clone(), 0);
        let open = move |_: &Accepted| {
            let (handle, path) = (handle.clone(), path.clone());
            let opened = async move {
                let channel = handle.channel_open_forwarded_streamlocal(path).await;
                (handle, channel)
            };
            Box::pin(opened) as Opening
        };
        self.lead(place, listener, open)
    }

    /// Ends the listening at a place; whether there was any.
    pub(crate) fn cancel(&self, place: &Place) -> bool {
        let stopper = self.listeners().remove(place);
        stopper.map(|stop| stop()).is_some()
    }

    /// Ends all of it.
    pub(crate) fn clear(&self) {
        self.listeners().drain().for_each(|(_, stop)| stop());
    }

    async fn listener(
        &self,
        target: Target,
        account: impl FnOnce() -> Result<Account> + Send + 'static,
    ) -> Option<Box<dyn LinkListener>> {
        if self.listeners().len() >= MOST_LISTENERS {
            return None;
        }
        let site = Arc::clone(&self.board.site);
        let listen = move || {
            let user = account()?.user;
            site.api()?.link_listen(&site.name, Some(&user), &target)
        };
        let listened = tokio::task::spawn_blocking(listen).await.unwrap_or_else(|_| {
            Err(Error::host("cannot listen inside", std::io::Error::other("no thread is free")))
        });
        listened
            .inspect_err(|error| {
                let error = error.clone().under("a forward from inside was refused");
                self.board.site.refused(error);
            })
            .ok()
    }

    /// Waits for those who connect, in a thread.
    fn lead(
        &self,
        place: Place,
        mut listener: Box<dyn LinkListener>,
        open: impl Fn(&Accepted) -> Opening + Send + 'static,
    ) -> bool {
        let stopper = listener.stopper();
        let board = Arc::clone(&self.board);
        let work = move || {
            while let Ok(Some(accepted)) = listener.accept() {
                // What is inside decides how many there are, so that the client keeps a part for itself.
                if board.is_half_full() {
                    let many = Error::new(Kind::Limit, "too many connections from inside at once");
                    board.site.refused(many.cause("the newest are not forwarded"));
                    continue;
                }
                // The client answers each; meanwhile others wait, as they would at any socket.
                let opened = board.site.runtime.block_on(open(&accepted));
                if let (handle, Ok(channel)) = opened {
                    hand_over(&board, handle, channel, accepted.stream);
                }
            }
        };
        let begun = thread::Builder::new().name("ssh-listen".to_owned()).spawn(work).is_ok();
        if begun && let Some(before) = self.listeners().insert(place, stopper) {
            before();
        }
        begun
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, HashMap<Place, Stopper>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries one connection from inside to the client.
fn hand_over(board: &Arc<Board>, handle: Handle, channel: Channel<Msg>, stream: UnixStream) {
    let (_, write) = channel.split();
    let (ends, shut) = board.adopt(write, handle);
    let board = Arc::clone(board);
    let work = move || match shut.begins(&stream) {
        true => relay::carry(&board, ends, stream, Farewell::Nothing),
        false => {
            ends.out.close();
            board.remove(ends.out.id());
        }
    };
    let _ = thread::Builder::new().name("ssh-out".to_owned()).spawn(work);
}
