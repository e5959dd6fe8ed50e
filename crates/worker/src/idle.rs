//! A sandbox in which nothing happens is paused, and wakes when something comes for it.
//!
//! Nothing happens while no Exec is begun, ends, is fed or says anything, no file is asked for, no
//! stream leads inside, its network carries nothing and its processes use next to no processor: who computes in silence is at
//! work. Checks of its health are nobody's doing.

use crate::exec::Exec;
use crate::guest::Way;
use crate::usage;
use crate::worker::Worker;
use msb_spec::{Error, Kind, Plan};
use msb_vm::Order;
use msb_wire::ToGateway;
use msb_wire::record::{Happened, Woken};
use std::time::{Duration, Instant};

/// A computation takes whole processors. Programs that wait and look at a clock now and then, an
/// idle kernel and a health check stay below this many thousandths of one.
const QUIET: u128 = 20;
/// The clock runs out at one of this many looks, so that it is late by a part of itself at most.
const LOOKS: u32 = 8;
/// A look reads a few files and asks the gateway: not for nothing all the time, and not so seldom
/// that a burst is lost in the mean of a long quiet.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A shorter time would be judged by what ended just before it.
const LEAST: Duration = Duration::from_millis(50);

/// The idle clock of a sandbox.
#[derive(Debug)]
pub(crate) struct Idle {
    after: Option<Duration>,
    /// When something last happened.
    since: Instant,
    next: Instant,
    /// Processor time in microseconds when it was last looked at, and when that was. None while its
    /// health is looked at.
    used: Option<(u64, Instant)>,
    /// How much of it was used, and in which time, since that was last judged.
    gathered: (u64, Duration),
    /// What its network had carried then.
    carried: Option<u64>,
    state: State,
}

/// Where a sandbox is between waking and sleeping. Some ways to pause take a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Awake,
    /// About to be paused; and what has come for it since.
    Falling(Option<Woken>),
    Asleep,
    /// About to go on.
    Waking(Woken),
}

impl Idle {
    pub(crate) fn new(plan: &Plan) -> Self {
        let now = Instant::now();
        let after = plan.idle_pause.map(|span| span.0);
        let state = State::Awake;
        let gathered = Default::default();
        Self { after, since: now, next: now, used: None, gathered, carried: None, state }
    }

    /// Goes by another clock from now on.
    pub(crate) fn set(&mut self, plan: &Plan) {
        self.after = plan.idle_pause.map(|span| span.0);
        self.since = Instant::now();
        self.next = self.since;
    }

    /// Something happened.
    pub(crate) fn stir(&mut self) {
        if self.after.is_some() {
            self.since = Instant::now();
        }
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.after.filter(|_| self.state == State::Awake).map(|_| self.next)
    }

    /// Whether it was this clock that paused the sandbox.
    pub(crate) fn asleep(&self) -> bool {
        self.state == State::Asleep
    }

    /// Whether what comes now has to wait a moment.
    pub(crate) fn between(&self) -> bool {
        matches!(self.state, State::Falling(_) | State::Waking(_))
    }

    /// Somebody pauses it: from now on only somebody lets it go on. Whether it stands still already.
    pub(crate) fn pause_for_good(&mut self) -> bool {
        let asleep = self.asleep();
        if asleep || matches!(self.state, State::Falling(_)) {
            self.state = State::Awake;
        }
        asleep
    }

    /// Takes the processor time that was used so far.
    fn used(&mut self, used: u64, now: Instant) {
        if let Some((before, then)) = self.used.replace((used, now)) {
            self.gathered.0 += used.saturating_sub(before);
            self.gathered.1 += now.saturating_duration_since(then);
        }
    }

    /// Judges by what was used since the last time; false if that was too short to tell.
    fn judge(&mut self, now: Instant) -> bool {
        let after = self.after.unwrap_or_default();
        self.next = now + (after / LOOKS).clamp(LOOK.0, LOOK.1);
        let (spent, span) = self.gathered;
        if span < LEAST {
            return false;
        }
        if u128::from(spent) * 1000 > span.as_micros() * QUIET {
            self.since = now;
        }
        self.gathered = Default::default();
        true
    }

    /// Takes what its network has carried so far.
    fn carried(&mut self, carried: u64, now: Instant) {
        if self.carried.replace(carried).is_some_and(|before| before != carried) {
            self.since = now;
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.after.is_some_and(|after| now.saturating_duration_since(self.since) >= after)
    }
}

impl Worker {
    /// Looks whether anything happens, when that is due.
    pub(crate) fn look_at_idle(&mut self, now: Instant) {
        if self.idle.next().is_none_or(|next| now < next) {
            return;
        }
        let busy = self.guest.is_paused()
            || self.is_held()
            || self.awaits_restart()
            || self.life.stopping.is_some()
            || self.life.draining
            || self.has_streams()
            || self.execs.values().any(is_awaited)
            || !self.whole;
        if busy {
            self.idle.since = now;
        }
        let checks = self.checks_health();
        if !checks {
            self.use_is_known(now);
        }
        let judged = self.idle.judge(now);
        if !judged || checks {
            return;
        }
        // What the network carries is known before it is decided.
        if !self.ask_gateway_itself(&ToGateway::Traffic) {
            self.sleep_if_due(now, None);
        }
    }

    /// Notes what its processes have used until now.
    pub(crate) fn use_is_known(&mut self, now: Instant) {
        if self.idle.after.is_some() {
            let used = usage::measure(&self.guest.confined, self.life.started.elapsed()).cpu_us;
            self.idle.used(used, now);
        }
    }

    /// A check of its health begins, and what that uses is not the sandbox's doing.
    pub(crate) fn look_away(&mut self, now: Instant) {
        self.use_is_known(now);
        self.idle.used = None;
    }

    /// Whether it falls asleep as soon as somebody looks: a check of its health can wait for that.
    pub(crate) fn is_sleepy(&mut self, now: Instant) -> bool {
        let sleepy = self.idle.state == State::Awake && self.idle.is_due(now);
        if sleepy {
            self.idle.next = now;
        }
        sleepy
    }

    /// Whether a stream leads inside whose other end would wait for ever.
    pub(crate) fn has_streams(&mut self) -> bool {
        self.streams.open() > 0 || !self.relays.is_empty()
    }

    /// The gateway tells what it has carried, and how much of that to the sandbox.
    pub(crate) fn heard_traffic(&mut self, carried: u64, brought: u64) {
        let now = Instant::now();
        self.idle.carried(carried, now);
        self.sleep_if_due(now, Some(brought));
    }

    fn sleep_if_due(&mut self, now: Instant, brought: Option<u64>) {
        let still = self.guest.is_paused() || self.is_held() || self.checks_health();
        if self.idle.state != State::Awake || still || !self.idle.is_due(now) {
            return;
        }
        self.idle.state = State::Falling(None);
        // From now on whatever comes for it is told; and what came meanwhile, too.
        if let Some(brought) = brought {
            self.ask_gateway_itself(&ToGateway::Doze { brought });
        }
        let ordered = match &self.guest.way {
            Way::Machine(machine) => {
                machine.order(Order::Pause).map(|()| self.ordering.push_back(None)).is_ok()
            }
            Way::Jailed(_) => {
                self.stand_by_itself(true);
                true
            }
        };
        if !ordered {
            self.woke();
        }
    }

    /// Everything stands still, or goes on, or could not be made to.
    pub(crate) fn idle_paused(&mut self, paused: bool) {
        match (self.idle.state, paused) {
            (State::Falling(came), true) => {
                self.idle.state = State::Asleep;
                self.record(Happened::Paused { idle: true });
                if let Some(by) = came {
                    self.wake(by);
                }
            }
            (State::Waking(by), false) => {
                self.woke();
                self.record(Happened::Resumed { by: Some(by) });
            }
            (State::Asleep, false) => {
                self.woke();
                self.record(Happened::Resumed { by: Some(Woken::Asked) });
            }
            (_, false) => self.woke(),
            (State::Waking(_), true) => {
                self.idle.state = State::Asleep;
                self.fail_delayed(&Error::new(Kind::Host, "the sandbox does not wake"));
            }
            (_, true) => {}
        }
    }

    fn woke(&mut self) {
        let now = Instant::now();
        (self.idle.state, self.idle.since, self.idle.next) = (State::Awake, now, now);
        (self.idle.used, self.idle.carried) = (None, None);
        self.idle.gathered = Default::default();
    }

    /// Something comes for the sandbox: it goes on, if it was its idle clock that paused it.
    pub(crate) fn wake(&mut self, by: Woken) {
        self.idle.stir();
        match self.idle.state {
            State::Awake | State::Waking(_) => return,
            State::Falling(_) => {
                self.idle.state = State::Falling(Some(by));
                return;
            }
            State::Asleep => self.idle.state = State::Waking(by),
        }
        match &self.guest.way {
            Way::Machine(machine) => match machine.order(Order::Resume) {
                Ok(()) => self.ordering.push_back(None),
                Err(error) => {
                    self.idle.state = State::Asleep;
                    self.fail_delayed(&error);
                }
            },
            Way::Jailed(_) => self.stand_by_itself(false),
        }
    }
}

/// Whether somebody waits for its end. Who looks at a terminal waits for what it says.
fn is_awaited(exec: &Exec) -> bool {
    !exec.own && !exec.tty && !exec.watchers.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(after: u64) -> (Idle, Instant) {
        let now = Instant::now();
        let after = Some(Duration::from_secs(after));
        let state = State::Awake;
        let gathered = Default::default();
        (Idle { after, since: now, next: now, used: None, gathered, carried: None, state }, now)
    }

    #[test]
    fn who_computes_in_silence_is_not_idle() {
        let (mut idle, begun) = idle(10);
        for second in 0..60 {
            let now = begun + Duration::from_secs(second);
            idle.used(second * 500_000, now);
            idle.judge(now);
            assert!(!idle.is_due(now), "after {second} s");
        }
    }

    #[test]
    fn who_only_looks_at_a_clock_is_idle() {
        let (mut idle, begun) = idle(10);
        for second in 0..10 {
            let now = begun + Duration::from_secs(second);
            idle.used(second * 5_000, now);
            idle.judge(now);
            idle.carried(7, now);
            assert!(!idle.is_due(now), "after {second} s");
        }
        assert!(idle.is_due(begun + Duration::from_secs(10)));
    }

    #[test]
    fn what_is_used_between_checks_is_judged_and_what_they_use_is_not() {
        let (mut idle, begun) = idle(10);
        let at = |ms| begun + Duration::from_millis(ms);
        // Each check takes 100 ms of a processor, in 200 ms, every second.
        for second in 0..10 {
            idle.used(second * 100_000, at(second * 1000));
            assert_eq!(idle.judge(at(second * 1000)), second > 0);
            idle.used = None;
            idle.used((second + 1) * 100_000, at(second * 1000 + 200));
            assert!(!idle.judge(at(second * 1000 + 210)), "nothing to judge by");
        }
        assert!(idle.is_due(at(10_000)));
        idle.used(1_000_000 + 100_000, at(10_000));
        assert!(idle.judge(at(10_000)) && !idle.is_due(at(10_000)));
    }

    #[test]
    fn traffic_begins_the_clock_anew_and_looks_are_spread_over_it() {
        let (mut idle, begun) = idle(10);
        idle.carried(7, begun);
        idle.carried(8, begun + Duration::from_secs(9));
        assert!(!idle.is_due(begun + Duration::from_secs(18)));
        assert!(idle.is_due(begun + Duration::from_secs(19)));
        idle.judge(begun);
        assert_eq!(idle.next(), Some(begun + Duration::from_millis(1250)));
    }
}
