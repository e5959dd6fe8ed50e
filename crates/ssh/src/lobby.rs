//! Who is connected: those who have shown who they are, and those who have not yet.
//!
//! The two are counted apart, so that whoever connects and says nothing takes no place of those who may come in. When too
//! many wait, the one that has waited longest is cut: a client that means it has shown its key by then.

use crate::gate::Gate;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections at once. Each costs some threads and megabytes when it is busy.
pub(crate) const MOST_INSIDE: usize = 256;
/// Connections that have not shown who they are; as many as a script starts at once, and cheap.
pub(crate) const MOST_WAITING: usize = 128;

/// Where connections are counted.
#[derive(Debug, Default)]
pub(crate) struct Lobby(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The oldest has the smallest number.
    waiting: BTreeMap<u64, Arc<Gate>>,
    inside: usize,
}

/// The place of one connection; free again when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    lobby: Arc<Lobby>,
    number: u64,
    inside: Mutex<bool>,
}

impl Lobby {
    /// A place for a newcomer, and whether somebody had to go for it.
    pub(crate) fn enter(self: &Arc<Self>, gate: &Arc<Gate>) -> (Seat, bool) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let full = state.waiting.len() >= MOST_WAITING;
        let oldest = if full { state.waiting.pop_first() } else { None };
        state.waiting.insert(number, Arc::clone(gate));
        drop(state);
        let cut = oldest.map(|(_, gate)| gate.cut()).is_some();
        (Seat { lobby: Arc::clone(self), number, inside: Mutex::default() }, cut)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// It has shown who it is; false if too many have.
    pub(crate) fn admit(&self) -> bool {
        let (mut inside, mut state) = (self.inside(), self.lobby.state());
        if !*inside && state.inside < MOST_INSIDE {
            state.waiting.remove(&self.number);
            state.inside += 1;
            *inside = true;
        }
        *inside
    }

    /// Whether it was admitted.
    pub(crate) fn is_inside(&self) -> bool {
        *self.inside()
    }

    fn inside(&self) -> MutexGuard<'_, bool> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let (inside, mut state) = (self.is_inside(), self.lobby.state());
        state.waiting.remove(&self.number);
        state.inside -= usize::from(inside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_cut(gate: &Gate) -> bool {
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        matches!(gate.poll_open(&cx), std::task::Poll::Ready(Err(_)))
    }

    #[test]
    fn those_who_wait_keep_nobody_out() {
        let lobby = Arc::new(Lobby::default());
        let gates: Vec<_> = (0..=MOST_WAITING).map(|_| Arc::new(Gate::default())).collect();
        let mut seats: Vec<_> = gates[1..].iter().map(|gate| lobby.enter(gate)).collect();
        assert!(seats.iter().all(|(_, cut)| !cut));
        // Whoever has been admitted is not waiting, however long it has been there.
        assert!(seats[0].0.admit() && seats[0].0.is_inside());
        assert!(!lobby.enter(&gates[0]).1);
        seats.push(lobby.enter(&gates[0]));
        let (_seat, cut) = lobby.enter(&gates[0]);
        assert!(cut && is_cut(&gates[2]) && !is_cut(&gates[1]) && !is_cut(&gates[3]));
    }

    #[test]
    fn those_inside_are_counted_until_they_go() {
        let (lobby, gate) = (Arc::new(Lobby::default()), Arc::new(Gate::default()));
        let mut seats: Vec<_> = (0..MOST_INSIDE)
            .map(|_| {
                let (seat, cut) = lobby.enter(&gate);
                assert!(!cut && seat.admit() && seat.admit());
                seat
            })
            .collect();
        let (late, _) = lobby.enter(&gate);
        assert!(!late.admit() && !late.is_inside());
        seats.pop();
        assert!(late.admit());
    }
}
