//! Holds a client back whose commands do not read what it sends.
//!
//! SSH has a window for each channel, but russh opens it again when bytes arrive and not when somebody has taken
//! them. So the whole connection is not read any further while too much waits. That alone could last forever: a
//! command may not read before it has said something, and for that the client must say that it takes more, or
//! end an exchange of keys, behind bytes that we do not read. So while a channel for which bytes wait cannot
//! get rid of its output the gate is ajar: now and then a little is read, ever more seldom. (The same is done while
//! it is closed, from a second on, to notice a client that has gone and to answer one that asks whether we have.) A client
//! that sends without end to something that reads nothing for hours is given up. The window becomes small before the gate
//! closes, so that hardly anything stands before what is looked for, and tiny then.

use russh::ChannelId;
use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Enough for a fast client to go on while a command is scheduled, and little for a host with many.
const ENOUGH: usize = 4 << 20;
const HALF: usize = ENOUGH / 2;
/// What comes through a gate that is ajar for a day: a tiny window for one channel every two seconds, and for more of
/// them what is read each time, which are one and a half hours.
const TOO_MUCH: usize = 256 << 20;
/// What a message costs beside its bytes, so that many empty ones count as well.
const OVERHEAD: usize = 128;

/// What waits on one connection.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    channels: HashMap<ChannelId, Load>,
    /// Who waits for the gate.
    reader: Option<Waker>,
    /// Who waits for the client, to read and to write, and is to hear of a cut.
    others: [Option<Waker>; 2],
    /// How often somebody got rid of some output.
    said: u64,
    cut: bool,
}

/// How a connection may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As much as there is.
    Open,
    /// A little now and then; the number changes when it has helped.
    Ajar(u64),
}

/// How much there is for what a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// It may send much ahead.
    Much,
    /// It should send little.
    Little,
    /// The gate is closed.
    None,
}

/// What somebody waits for the client to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// Say something.
    Read,
    /// Take something.
    Write,
}

#[derive(Debug, Default)]
struct Load {
    waiting: usize,
    speaking: bool,
}

impl Gate {
    /// A channel is there.
    pub(crate) fn opened(&self, id: ChannelId) {
        self.state().channels.insert(id, Load::default());
    }

    /// Bytes have come for a channel. Whether that is still bearable.
    pub(crate) fn arrived(&self, id: ChannelId, bytes: usize) -> bool {
        let mut state = self.state();
        let Some(load) = state.channels.get_mut(&id) else { return true };
        load.waiting += bytes + OVERHEAD;
        state.waiting += bytes + OVERHEAD;
        state.waiting <= TOO_MUCH
    }

    /// How much a client may send ahead.
    pub(crate) fn room(&self) -> Room {
        match self.state().waiting {
            0..HALF => Room::Much,
            HALF..ENOUGH => Room::Little,
            _ => Room::None,
        }
    }

    /// Somebody has taken them.
    pub(crate) fn taken(&self, id: ChannelId, bytes: usize) {
        let mut state = self.state();
        let Some(load) = state.channels.get_mut(&id) else { return };
        let part = load.waiting.min(bytes + OVERHEAD);
        load.waiting -= part;
        state.waiting -= part;
        state.wake();
    }

    /// A channel wants to say something, or has.
    pub(crate) fn speaks(&self, id: ChannelId, speaking: bool) {
        let mut state = self.state();
        if let Some(load) = state.channels.get_mut(&id) {
            load.speaking = speaking;
        }
        match speaking {
            true => state.wake(),
            false => state.said += 1,
        }
    }

    /// A channel is gone, with all that waited for it.
    pub(crate) fn closed(&self, id: ChannelId) {
        let mut state = self.state();
        let load = state.channels.remove(&id).unwrap_or_default();
        state.waiting -= load.waiting;
        state.wake();
    }

    /// Ends the connection.
    pub(crate) fn cut(&self) {
        let mut state = self.state();
        state.cut = true;
        state.wake();
        state.others.iter_mut().filter_map(Option::take).for_each(Waker::wake);
    }

    /// Whether the connection was ended; if not, whoever asks is woken should that happen.
    pub(crate) fn poll_cut<T>(&self, wait: Wait, cx: &Context<'_>) -> Poll<io::Result<T>> {
        let mut state = self.state();
        if state.cut {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let place = &mut state.others[wait as usize];
        if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *place = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until the connection may be read.
    pub(crate) fn poll_open(&self, cx: &Context<'_>) -> Poll<io::Result<Way>> {
        let mut state = self.state();
        if state.cut {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match state.way() {
            Some(Way::Open) => Poll::Ready(Ok(Way::Open)),
            other => {
                state.reader = Some(cx.waker().clone());
                other.map_or(Poll::Pending, |way| Poll::Ready(Ok(way)))
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn way(&self) -> Option<Way> {
        if self.waiting < ENOUGH {
            return Some(Way::Open);
        }
        let mut loads = self.channels.values();
        loads.any(|load| load.speaking && load.waiting > 0).then_some(Way::Ajar(self.said))
    }

    /// Lets a reader look again.
    fn wake(&mut self) {
        if (self.cut || self.way().is_some())
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::ssh_encoding::Decode;

    fn id(number: u32) -> ChannelId {
        ChannelId::decode(&mut &number.to_be_bytes()[..]).unwrap()
    }

    fn is_open(gate: &Gate) -> bool {
        gate.poll_open(&Context::from_waker(Waker::noop())).is_ready()
    }

    fn is_ajar(gate: &Gate) -> bool {
        let way = gate.poll_open(&Context::from_waker(Waker::noop()));
        matches!(way, Poll::Ready(Ok(Way::Ajar(_))))
    }

    #[test]
    fn a_command_that_does_not_read_closes_the_gate() {
        let gate = Gate::default();
        gate.opened(id(1));
        assert!(gate.arrived(id(1), ENOUGH) && !is_open(&gate));
        assert_eq!(gate.room(), Room::None);
        gate.taken(id(1), ENOUGH);
        assert!(is_open(&gate));
        assert_eq!(gate.room(), Room::Much);
    }

    #[test]
    fn one_that_waits_for_its_own_output_leaves_it_ajar() {
        let gate = Gate::default();
        gate.opened(id(1));
        gate.opened(id(2));
        gate.arrived(id(1), ENOUGH);
        gate.speaks(id(2), true);
        assert!(!is_open(&gate), "nothing waits for the second");
        gate.speaks(id(1), true);
        assert!(is_ajar(&gate));
        gate.speaks(id(1), false);
        assert!(!is_open(&gate));
        gate.closed(id(1));
        assert!(is_open(&gate));
    }

    #[test]
    fn too_much_is_told_and_many_empty_messages_count() {
        let gate = Gate::default();
        gate.opened(id(1));
        assert!(!gate.arrived(id(1), TOO_MUCH));
        gate.closed(id(1));
        gate.opened(id(1));
        for _ in 0..ENOUGH / OVERHEAD {
            gate.arrived(id(1), 0);
        }
        assert!(!is_open(&gate));
        gate.cut();
        assert!(is_open(&gate), "whoever waits hears of a cut");
    }
}
