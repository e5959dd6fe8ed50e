//! What is recorded of flows, and what is left out when too much happens at once.

use msb_spec::Decision;
use msb_wire::NetEvent;

/// Events a second that are told one by one; what was refused may use all of it.
const MOST: u32 = 200;
/// The part of it that allowed flows may use, so that a busy build hides no refusal.
const MOST_ALLOWED: u32 = 120;
/// A second, in microseconds.
const WINDOW: u64 = 1_000_000;

/// Counts events and folds the rest.
#[derive(Debug, Default)]
pub(crate) struct Events {
    since: u64,
    told: u32,
    skipped: u64,
}

impl Events {
    /// Whether this event is told. One that is not is counted.
    pub(crate) fn admit(&mut self, event: &NetEvent, now: u64) -> bool {
        if now.saturating_sub(self.since) >= WINDOW {
            self.since = now;
            self.told = 0;
        }
        let refusal =
            matches!(event, NetEvent::Decided(verdict) if verdict.decision == Decision::Deny);
        let most = if refusal { MOST } else { MOST_ALLOWED };
        if self.told >= most {
            self.skipped += 1;
            return false;
        }
        self.told += 1;
        true
    }

    /// Counts an event that was not told for another reason.
    pub(crate) fn skip(&mut self) {
        self.skipped += 1;
    }

    /// When what was left out is to be told.
    pub(crate) fn due(&self) -> Option<u64> {
        (self.skipped > 0).then_some(self.since + WINDOW)
    }

    /// How many were left out since it was last asked.
    pub(crate) fn skipped(&mut self) -> Option<NetEvent> {
        let count = std::mem::take(&mut self.skipped);
        (count > 0).then_some(NetEvent::Skipped { count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Direction;
    use msb_wire::{FlowKind, Verdict};

    fn event(decision: Decision) -> NetEvent {
        NetEvent::Decided(Verdict {
            flow: 1,
            decision,
            direction: Direction::Egress,
            kind: FlowKind::Tcp,
            name: None,
            address: None,
            port: None,
            rule: "default".to_owned(),
            request: None,
            secrets: Vec::new(),
        })
    }

    #[test]
    fn a_storm_is_folded_and_refusals_are_kept_first() {
        let mut events = Events::default();
        let allowed = (0..500).filter(|_| events.admit(&event(Decision::Allow), 5)).count();
        let refused = (0..50).filter(|_| events.admit(&event(Decision::Deny), 6)).count();
        assert_eq!((allowed, refused), (120, 50));
        assert_eq!(events.due(), Some(WINDOW));
        assert_eq!(events.skipped(), Some(NetEvent::Skipped { count: 380 }));
        assert_eq!(events.due(), None);
        assert!(events.admit(&event(Decision::Allow), 5 + WINDOW));
    }
}
