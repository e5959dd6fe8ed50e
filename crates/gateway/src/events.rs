//! Limits how many network events a second are recorded one by one; the rest is counted.

use msb_spec::Decision;
use msb_wire::{NetEvent, Verdict};
use tracing::{Span, debug, debug_span};

/// The span of a flow, for events of the diagnostic log.
pub(crate) fn flow_span(verdict: &Verdict) -> Span {
    debug_span!("flow", id = verdict.flow)
}

/// Writes an event to the diagnostic log. Requests are logged without query strings, Secrets by
/// their names.
pub(crate) fn log(event: &NetEvent) {
    match event {
        NetEvent::Decided(verdict) => flow_span(verdict).in_scope(|| {
            debug!(
                decision = ?verdict.decision,
                direction = ?verdict.direction,
                kind = ?verdict.kind,
                name = verdict.name.as_ref().map(tracing::field::display),
                address = verdict.address.as_ref().map(tracing::field::display),
                port = verdict.port,
                rule = verdict.rule,
                request = verdict.request,
                secrets = ?verdict.secrets,
                "decided",
            );
        }),
        NetEvent::Ended { flow, sent, received } => {
            debug_span!("flow", id = flow).in_scope(|| debug!(sent, received, "closed"));
        }
        NetEvent::Skipped { count } => debug!(count, "events were not recorded"),
    }
}

/// Events a second that are recorded one by one. Refusals may use all of it.
const MAX_PER_SECOND: u32 = 200;
/// The part of it that allowed flows may use, so that a busy build hides no refusal.
const MAX_ALLOWED_PER_SECOND: u32 = 120;
/// The length of the counting window: one second, in microseconds.
const WINDOW: u64 = 1_000_000;

/// Admits events up to the limit and counts the rest.
#[derive(Debug, Default)]
pub(crate) struct EventLimiter {
    since: u64,
    sent: u32,
    skipped: u64,
}

impl EventLimiter {
    /// Whether this event is recorded. One that is not is counted as skipped.
    pub(crate) fn admit(&mut self, event: &NetEvent, now: u64) -> bool {
        if now.saturating_sub(self.since) >= WINDOW {
            self.since = now;
            self.sent = 0;
        }
        let refusal =
            matches!(event, NetEvent::Decided(verdict) if verdict.decision == Decision::Deny);
        let limit = if refusal { MAX_PER_SECOND } else { MAX_ALLOWED_PER_SECOND };
        if self.sent >= limit {
            self.skipped += 1;
            return false;
        }
        self.sent += 1;
        true
    }

    /// Counts an event that was dropped for another reason.
    pub(crate) fn skip(&mut self) {
        self.skipped += 1;
    }

    /// When the count of skipped events is to be reported, in microseconds; `None` if there are
    /// none.
    pub(crate) fn due(&self) -> Option<u64> {
        (self.skipped > 0).then_some(self.since + WINDOW)
    }

    /// Takes the count of skipped events, as an event; `None` if there are none.
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
        let mut events = EventLimiter::default();
        let allowed = (0..500).filter(|_| events.admit(&event(Decision::Allow), 5)).count();
        let refused = (0..50).filter(|_| events.admit(&event(Decision::Deny), 6)).count();
        assert_eq!((allowed, refused), (120, 50));
        assert_eq!(events.due(), Some(WINDOW));
        assert_eq!(events.skipped(), Some(NetEvent::Skipped { count: 380 }));
        assert_eq!(events.due(), None);
        assert!(events.admit(&event(Decision::Allow), 5 + WINDOW));
    }
}
