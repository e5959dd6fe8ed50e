//! What goes on over one connection: its channels, what each is fed, and how each is stopped.
//!
//! Locks are held for a moment and never while anything is waited for; `early` before `slots`.

use crate::gate::Gate;
use crate::out::Out;
use crate::relay::Shut;
use crate::server::Site;
use msb_spec::TermSize;
use russh::server::{Handle, Msg};
use russh::{ChannelId, ChannelWriteHalf};
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Channels of one connection. An editor forwards some dozens of connections; a hundred commands at once
/// over one connection are well.
const MOST_CHANNELS: usize = 256;

/// Something that a client sends to a channel.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// For its stdin, or the other end of a connection.
    Data(Vec<u8>),
    /// That was all.
    Eof,
    /// Its terminal has another size.
    Resize(TermSize),
}

/// Everything about one connection that its threads share.
pub(crate) struct Board {
    pub(crate) site: Arc<Site>,
    pub(crate) gate: Arc<Gate>,
    slots: Mutex<HashMap<ChannelId, Slot>>,
    /// Channels of ours that the client has agreed to and nobody has taken up yet.
    early: Mutex<HashMap<ChannelId, Early>>,
}

struct Early {
    fed: Receiver<Inbound>,
    over: watch::Receiver<()>,
    shut: Arc<Shut>,
}

/// A session that has not said yet what it is for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) write: ChannelWriteHalf<Msg>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) tty: Option<TermSize>,
}

enum Slot {
    Asked(Asked),
    Running(Running),
}

/// A channel at work. Dropping it ends the work.
struct Running {
    feed: Sender<Inbound>,
    stop: Arc<dyn Stop>,
    _over: watch::Sender<()>,
}

/// Ends what a channel does, from any thread and without waiting.
pub(crate) trait Stop: Send + Sync {
    fn stop(&self);

    /// Passes a signal on, if that means anything.
    fn signal(&self, _: i32) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// What a channel at work needs to know.
pub(crate) struct Ends {
    pub(crate) out: Out,
    pub(crate) fed: Receiver<Inbound>,
}

impl Board {
    pub(crate) fn new(site: Arc<Site>, gate: Arc<Gate>) -> Self {
        Self { site, gate, slots: Mutex::default(), early: Mutex::default() }
    }

    /// Notes a new session; false if there are too many channels.
    pub(crate) fn ask(&self, write: ChannelWriteHalf<Msg>) -> bool {
        let mut slots = self.slots();
        if slots.len() >= MOST_CHANNELS {
            return false;
        }
        self.gate.opened(write.id());
        slots.insert(write.id(), Slot::Asked(Asked { write, env: Vec::new(), tty: None }));
        true
    }

    /// Whether half of the channels are taken, beyond which the inside opens none.
    pub(crate) fn is_half_full(&self) -> bool {
        self.slots().len() >= MOST_CHANNELS / 2
    }

    /// Changes what a session is going to be; false if it runs or is none.
    pub(crate) fn amend(&self, id: ChannelId, amend: impl FnOnce(&mut Asked) -> bool) -> bool {
        match self.slots().get_mut(&id) {
            Some(Slot::Asked(asked)) => amend(asked),
            _ => false,
        }
    }

    /// Takes a session that begins to work.
    pub(crate) fn take(&self, id: ChannelId) -> Option<Asked> {
        let mut slots = self.slots();
        match slots.remove(&id) {
            Some(Slot::Asked(asked)) => Some(asked),
            Some(running) => {
                slots.insert(id, running);
                None
            }
            None => None,
        }
    }

    /// Notes that a channel works; none if there are too many.
    pub(crate) fn run(
        &self,
        write: ChannelWriteHalf<Msg>,
        handle: Handle,
        stop: Arc<dyn Stop>,
    ) -> Option<Ends> {
        if self.slots().len() >= MOST_CHANNELS {
            return None;
        }
        let (fed, over) = self.occupy(write.id(), stop);
        Some(Ends { out: self.out(write, handle, over), fed })
    }

    /// The client has agreed to a channel of ours: what it sends from now on is kept, also if
    /// whoever opened it has not come to it yet.
    pub(crate) fn expect(&self, id: ChannelId) {
        let mut early = self.early();
        if !self.slots().contains_key(&id) {
            let shut = Arc::new(Shut::default());
            let (fed, over) = self.occupy(id, Arc::clone(&shut) as Arc<dyn Stop>);
            early.insert(id, Early { fed, over, shut });
        }
    }

    /// Takes up a channel of ours.
    pub(crate) fn adopt(&self, write: ChannelWriteHalf<Msg>, handle: Handle) -> (Ends, Arc<Shut>) {
        let mut early = self.early();
        let Early { fed, over, shut } = early.remove(&write.id()).unwrap_or_else(|| {
            let shut = Arc::new(Shut::default());
            let (fed, over) = self.occupy(write.id(), Arc::clone(&shut) as Arc<dyn Stop>);
            Early { fed, over, shut }
        });
        (Ends { out: self.out(write, handle, over), fed }, shut)
    }

    fn occupy(
        &self,
        id: ChannelId,
        stop: Arc<dyn Stop>,
    ) -> (Receiver<Inbound>, watch::Receiver<()>) {
        let (feed, fed) = mpsc::channel();
        let (over, told) = watch::channel(());
        self.gate.opened(id);
        self.slots().insert(id, Slot::Running(Running { feed, stop, _over: over }));
        (fed, told)
    }

    fn out(&self, write: ChannelWriteHalf<Msg>, handle: Handle, over: watch::Receiver<()>) -> Out {
        let (gate, runtime) = (Arc::clone(&self.gate), self.site.runtime.clone());
        Out { write, handle, gate, over, runtime }
    }

    /// Hands something on to a channel at work; false if it is too much.
    pub(crate) fn feed(&self, id: ChannelId, inbound: Inbound) -> bool {
        let slots = self.slots();
        let Some(Slot::Running(running)) = slots.get(&id) else { return true };
        let length = if let Inbound::Data(bytes) = &inbound { bytes.len() } else { 0 };
        let bearable = self.gate.arrived(id, length);
        if running.feed.send(inbound).is_err() {
            // Nobody takes it any more.
            self.gate.taken(id, length);
        }
        bearable
    }

    /// Passes a signal on to what a channel does.
    pub(crate) fn signal(&self, id: ChannelId, number: i32) {
        let stop = match self.slots().get(&id) {
            Some(Slot::Running(running)) => Arc::clone(&running.stop),
            _ => return,
        };
        stop.signal(number);
    }

    /// A channel is over.
    pub(crate) fn remove(&self, id: ChannelId) {
        let removed = self.slots().remove(&id);
        self.gate.closed(id);
        drop(removed);
    }

    /// The connection is over.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.slots());
        drop(all);
        self.early().clear();
        self.gate.cut();
    }

    fn early(&self) -> MutexGuard<'_, HashMap<ChannelId, Early>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<ChannelId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
