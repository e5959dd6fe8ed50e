//! The channels of one connection: their input queues, and how each is stopped.
//!
//! Locks are held briefly and never across a wait; `unclaimed` is locked before `slots`.

use crate::channel_writer::ChannelWriter;
use crate::flow_control::FlowControl;
use crate::relay::StreamCloser;
use crate::server::ServerState;
use msb_spec::TermSize;
use russh::server::{Handle, Msg};
use russh::{ChannelId, ChannelWriteHalf};
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Channels of one connection. An editor forwards some dozens of connections, and a script may run
/// a hundred commands at once.
const MAX_CHANNELS: usize = 256;

/// Input of a channel from the client.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Bytes for stdin or for the forwarded connection.
    Data(Vec<u8>),
    /// End of file from the client.
    Eof,
    /// A new size of the terminal.
    Resize(TermSize),
}

/// State of one connection that its threads share.
pub(crate) struct Channels {
    pub(crate) server: Arc<ServerState>,
    pub(crate) flow: Arc<FlowControl>,
    slots: Mutex<HashMap<ChannelId, ChannelSlot>>,
    /// Channels that we opened and the client confirmed, before the opening thread has claimed
    /// them.
    unclaimed: Mutex<HashMap<ChannelId, UnclaimedChannel>>,
}

struct UnclaimedChannel {
    inbound: Receiver<Inbound>,
    closed: watch::Receiver<()>,
    closer: Arc<StreamCloser>,
}

/// A session channel before its `shell`, `exec` or `subsystem` request.
#[derive(Debug)]
pub(crate) struct PendingSession {
    pub(crate) write: ChannelWriteHalf<Msg>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) tty: Option<TermSize>,
}

enum ChannelSlot {
    Pending(PendingSession),
    Running(RunningChannel),
}

/// A channel with a running command or relay. Dropping it stops the work.
struct RunningChannel {
    inbound_sender: Sender<Inbound>,
    stop: Arc<dyn StopWork>,
    _closed: watch::Sender<()>,
}

/// Stops the work of a channel, from any thread and without waiting.
pub(crate) trait StopWork: Send + Sync {
    fn stop(&self);

    /// Forwards a signal, if the work is a command.
    fn signal(&self, _: i32) {}
}

impl Drop for RunningChannel {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// Writer and input queue of a running channel.
pub(crate) struct ChannelIo {
    pub(crate) out: ChannelWriter,
    pub(crate) inbound: Receiver<Inbound>,
}

impl Channels {
    pub(crate) fn new(server: Arc<ServerState>, flow: Arc<FlowControl>) -> Self {
        Self { server, flow, slots: Mutex::default(), unclaimed: Mutex::default() }
    }

    /// Registers a new session; false if there are too many channels.
    pub(crate) fn open_session(&self, write: ChannelWriteHalf<Msg>) -> bool {
        let mut slots = self.slots();
        if slots.len() >= MAX_CHANNELS {
            return false;
        }
        self.flow.channel_opened(write.id());
        slots.insert(
            write.id(),
            ChannelSlot::Pending(PendingSession { write, env: Vec::new(), tty: None }),
        );
        true
    }

    /// Whether half of the channels are in use: beyond that the sandbox cannot open more.
    pub(crate) fn is_half_full(&self) -> bool {
        self.slots().len() >= MAX_CHANNELS / 2
    }

    /// Changes a pending session; false if it runs already or does not exist.
    pub(crate) fn update_pending(
        &self,
        id: ChannelId,
        update: impl FnOnce(&mut PendingSession) -> bool,
    ) -> bool {
        match self.slots().get_mut(&id) {
            Some(ChannelSlot::Pending(pending)) => update(pending),
            _ => false,
        }
    }

    /// Takes a pending session in order to start it.
    pub(crate) fn take_pending(&self, id: ChannelId) -> Option<PendingSession> {
        let mut slots = self.slots();
        match slots.remove(&id) {
            Some(ChannelSlot::Pending(pending)) => Some(pending),
            Some(running) => {
                slots.insert(id, running);
                None
            }
            None => None,
        }
    }

    /// Registers a running channel; `None` if there are too many.
    pub(crate) fn start(
        &self,
        write: ChannelWriteHalf<Msg>,
        handle: Handle,
        stop: Arc<dyn StopWork>,
    ) -> Option<ChannelIo> {
        if self.slots().len() >= MAX_CHANNELS {
            return None;
        }
        let (inbound, closed) = self.insert_running(write.id(), stop);
        Some(ChannelIo { out: self.out(write, handle, closed), inbound })
    }

    /// Registers a channel that we opened and the client has confirmed. Its input is queued from
    /// now on, before the opening thread claims it.
    pub(crate) fn reserve(&self, id: ChannelId) {
        let mut unclaimed = self.unclaimed();
        if !self.slots().contains_key(&id) {
            let closer = Arc::new(StreamCloser::default());
            let (inbound, closed) =
                self.insert_running(id, Arc::clone(&closer) as Arc<dyn StopWork>);
            unclaimed.insert(id, UnclaimedChannel { inbound, closed, closer });
        }
    }

    /// Claims a channel that we have opened.
    pub(crate) fn claim(
        &self,
        write: ChannelWriteHalf<Msg>,
        handle: Handle,
    ) -> (ChannelIo, Arc<StreamCloser>) {
        let mut unclaimed = self.unclaimed();
        let UnclaimedChannel { inbound, closed, closer } =
            unclaimed.remove(&write.id()).unwrap_or_else(|| {
                let closer = Arc::new(StreamCloser::default());
                let (inbound, closed) =
                    self.insert_running(write.id(), Arc::clone(&closer) as Arc<dyn StopWork>);
                UnclaimedChannel { inbound, closed, closer }
            });
        (ChannelIo { out: self.out(write, handle, closed), inbound }, closer)
    }

    fn insert_running(
        &self,
        id: ChannelId,
        stop: Arc<dyn StopWork>,
    ) -> (Receiver<Inbound>, watch::Receiver<()>) {
        let (inbound_sender, inbound) = mpsc::channel();
        let (closed_sender, closed) = watch::channel(());
        self.flow.channel_opened(id);
        self.slots().insert(
            id,
            ChannelSlot::Running(RunningChannel { inbound_sender, stop, _closed: closed_sender }),
        );
        (inbound, closed)
    }

    fn out(
        &self,
        write: ChannelWriteHalf<Msg>,
        handle: Handle,
        closed: watch::Receiver<()>,
    ) -> ChannelWriter {
        let (flow, runtime) = (Arc::clone(&self.flow), self.server.runtime.clone());
        ChannelWriter { write, handle, flow, closed, runtime }
    }

    /// Queues input for a running channel; false if too much is queued.
    pub(crate) fn deliver(&self, id: ChannelId, inbound: Inbound) -> bool {
        let slots = self.slots();
        let Some(ChannelSlot::Running(running)) = slots.get(&id) else { return true };
        let length = if let Inbound::Data(bytes) = &inbound { bytes.len() } else { 0 };
        let within_limit = self.flow.received(id, length);
        if running.inbound_sender.send(inbound).is_err() {
            // The worker of the channel has ended.
            self.flow.consumed(id, length);
        }
        within_limit
    }

    /// Forwards a signal to the command of a channel.
    pub(crate) fn signal(&self, id: ChannelId, number: i32) {
        let stop = match self.slots().get(&id) {
            Some(ChannelSlot::Running(running)) => Arc::clone(&running.stop),
            _ => return,
        };
        stop.signal(number);
    }

    /// Removes a closed channel and stops its work.
    pub(crate) fn remove(&self, id: ChannelId) {
        let removed = self.slots().remove(&id);
        self.flow.channel_closed(id);
        drop(removed);
    }

    /// Removes all channels and aborts the connection.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.slots());
        drop(all);
        self.unclaimed().clear();
        self.flow.abort();
    }

    fn unclaimed(&self) -> MutexGuard<'_, HashMap<ChannelId, UnclaimedChannel>> {
        self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<ChannelId, ChannelSlot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
