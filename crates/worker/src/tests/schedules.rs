//! Random schedules: whatever clients, the guest and the timers do, and in whatever order, each
//! Exec ends exactly once, for its clients and in the logs.

use super::rig::{CommandState, EndedRig, Rig, command, plan};
use crate::clock::Clock;
use msb_spec::{Command, Health, Restart, Span, Stdin, TermSize};
use msb_wire::{ClientMessage, FromGuest, Request};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Enough to reach every pair of events many times. A failure prints its seed;
/// `one_schedule_again` runs that one alone.
const SCHEDULES: u64 = 6000;
/// Steps of the longest schedule.
const STEPS: usize = 60;

/// xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    fn span(&mut self, most_ms: usize) -> Span {
        Span(Duration::from_millis(1 + self.below(most_ms) as u64))
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())])
    }
}

/// A schedule in progress.
struct Schedule {
    random: Random,
    rig: Rig,
    /// Clients that wait for the end of an Exec.
    exec_clients: Vec<usize>,
    /// Whether the guest tells lies, sends nonsense or dies.
    hostile: bool,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut plan = plan();
        if random.one_in(2) {
            plan.command = Some(random_command(&mut random));
            plan.restart = match random.below(4) {
                0 => Restart::Always(None),
                1 => Restart::OnFailure(Some(2)),
                _ => Restart::No,
            };
        }
        if random.one_in(3) {
            let (interval, timeout) = (random.span(3000), random.span(3000));
            plan.health = Some(Health { interval, timeout, ..Health::new("true") });
        }
        if random.one_in(3) {
            plan.idle_pause = Some(random.span(3000));
        }
        if random.one_in(8) {
            plan.idle_timeout = Some(random.span(20_000));
        }
        if random.one_in(8) {
            plan.max_duration = Some(random.span(60_000));
        }
        let has_main = plan.command.is_some();
        let hostile = random.one_in(3);
        let exec_clients = if has_main { vec![0] } else { Vec::new() };
        Self { random, rig: Rig::new(plan), exec_clients, hostile }
    }

    /// Runs to the end of the worker.
    fn run(mut self) {
        for _ in 0..self.random.below(STEPS) {
            match self.random.below(10) {
                0..4 => self.client_step(),
                4..8 => self.guest_step(),
                _ => self.timer_step(),
            }
            // Several things may be ready before the loop gets to run.
            for _ in 0..self.random.below(3) {
                self.rig.turn();
            }
            if self.rig.is_over() {
                break;
            }
        }
        let Self { mut rig, exec_clients, .. } = self;
        if !rig.is_over() {
            rig.settle();
        }
        let ended = if rig.is_over() { rig.end() } else { rig.stop() };
        check(&ended, &exec_clients);
    }

    fn client_step(&mut self) {
        let random = &mut self.random;
        let clients = self.rig.clients.len();
        match random.below(16) {
            0..5 => {
                let command = random_command(random);
                let client = self.rig.request(&Request::Exec(command));
                self.exec_clients.push(client);
            }
            5 => {
                let id = self.random.below(6) as u64;
                let client = self.rig.request(&Request::Attach { id });
                self.exec_clients.push(client);
            }
            6 => {
                let (id, signal) = (random.below(6) as u64, random.below(70) as i32);
                self.rig.request(&Request::Kill { id, signal });
            }
            7..11 => {
                let client = random.pick(&self.exec_clients).unwrap_or(0);
                let message = match random.below(7) {
                    0 => ClientMessage::Stdin(b"typed"),
                    1 => ClientMessage::Stdin(b""),
                    2 => ClientMessage::Signal(15),
                    3 => ClientMessage::Detach,
                    4 => ClientMessage::CloseOutput(1),
                    5 => ClientMessage::Resize(TermSize { rows: 2, cols: 3 }),
                    _ => ClientMessage::Go,
                };
                self.rig.clients[client].send(&message);
            }
            11 | 12 => {
                let client = random.below(clients);
                self.rig.clients[client].disconnect();
            }
            13 => {
                let request = match random.below(8) {
                    0 | 1 => Request::Pause,
                    2 | 3 => Request::Resume,
                    4 | 5 => Request::Hold,
                    6 => Request::Usage,
                    _ => Request::Status,
                };
                self.rig.request(&request);
            }
            14 => drop(self.rig.request(&Request::Wait)),
            _ if random.one_in(6) => {
                let request = match random.below(3) {
                    0 => Request::Drain,
                    1 => Request::Stop { grace: 1000 * random.below(12) as u64 },
                    _ => Request::Renew { left: Some(random.below(5000) as u64) },
                };
                self.rig.request(&request);
            }
            _ => {}
        }
    }

    fn guest_step(&mut self) {
        let (random, guest) = (&mut self.random, &mut self.rig.guest);
        let requested = guest.ids(CommandState::Requested);
        let running = guest.ids(CommandState::Running);
        match random.below(12) {
            0..4 => {
                if let Some(id) = random.pick(&requested) {
                    if random.one_in(6) { guest.fail(id) } else { guest.start(id) }
                }
            }
            4..7 => {
                if let Some(id) = random.pick(&running) {
                    let (code, left) = (random.below(3) as i32, random.one_in(4));
                    guest.exit(id, code, left);
                }
            }
            7 | 8 => {
                let ids: Vec<u64> = guest.commands.keys().copied().collect();
                if let Some(id) = random.pick(&ids) {
                    guest.write(id, b"output");
                }
            }
            9 => {
                let exited = guest.ids(CommandState::Exited);
                if let Some(id) = random.pick(&exited) {
                    guest.close_streams(id);
                }
            }
            10 => guest.answer_pause(!random.one_in(5)),
            _ if self.hostile => self.lie(),
            _ => {}
        }
    }

    /// Something that an honest guest never does.
    fn lie(&mut self) {
        let (random, guest) = (&mut self.random, &mut self.rig.guest);
        let id = random.below(8) as u64;
        let (code, signal, alone, hit) = (Some(0), None, random.one_in(2), None);
        match random.below(24) {
            0..6 => guest.send(&FromGuest::Started { id, pid: 0 }, &[]),
            6..12 => guest.send(&FromGuest::Exited { id, code, signal, alone, hit }, &[]),
            12..16 => {
                let failure = msb_wire::SpawnFailure::User;
                guest.send(&FromGuest::Failed { id, failure, errno: 0 }, &[]);
            }
            16..19 => guest.send(&FromGuest::Paused { paused: random.one_in(2) }, &[]),
            19 => guest.send(&FromGuest::Init { failure: None }, &[]),
            20 => guest.send(&FromGuest::InitEnded { code, signal }, &[]),
            21 => guest.send_raw(&[0xff; 7]),
            22 => guest.send_raw(&[3, 0]),
            _ => guest.die(),
        }
    }

    fn timer_step(&mut self) {
        let clock = &self.rig.clock;
        match self.rig.worker.next_deadline() {
            Some(at) if self.random.one_in(2) => clock.advance_to(at),
            _ => clock.advance(self.random.span(4000).0),
        }
        assert!(clock.now() >= self.rig.worker.lifetime.started);
    }
}

fn random_command(random: &mut Random) -> Command {
    Command {
        detached: random.one_in(3),
        timeout: random.one_in(4).then(|| random.span(5000)),
        tty: random.one_in(5).then_some(TermSize { rows: 24, cols: 80 }),
        stdin: if random.one_in(2) { Stdin::Streamed } else { Stdin::Closed },
        ..command()
    }
}

/// What holds after every schedule.
fn check(ended: &EndedRig, exec_clients: &[usize]) {
    // Each client checks on its own that it gets one last word at most; here is the least.
    for index in exec_clients {
        let client = &ended.clients[*index];
        assert!(
            !client.is_connected() || client.is_answered(),
            "client {index} waits for the end of its Exec in vain: {client:?}"
        );
    }
    let once = |ids: &[u64], what: &str| {
        let unique: BTreeSet<u64> = ids.iter().copied().collect();
        assert_eq!(unique.len(), ids.len(), "an Exec {what} twice: {ids:?}");
        unique
    };
    // A main command that cannot be started again ends without a start.
    let log_ended: Vec<u64> = ended.ended.iter().map(|(id, _)| *id).collect();
    let log_ended = once(&log_ended, "ended");
    assert!(once(&ended.started, "started").is_subset(&log_ended), "{:?}", ended.started);
    let events = |wanted| {
        let events = ended.exec_events.iter().filter(|(_, has_ended)| *has_ended == wanted);
        events.map(|(id, _)| *id).collect::<Vec<_>>()
    };
    let (starts, ends) = (once(&events(false), "started"), once(&events(true), "ended"));
    assert!(starts.is_subset(&ends), "{:?}", ended.exec_events);
    // What a client is told is what the log says.
    for client in &ended.clients {
        if let (Some(id), Some(exit)) = (client.started(), client.exit()) {
            assert!(ended.ended.contains(&(id, exit)), "Exec {id}: {exit:?} not logged");
        }
    }
}

fn run_range(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let run = catch_unwind(AssertUnwindSafe(|| Schedule::new(seed).run()));
        assert!(run.is_ok(), "the schedule of seed {seed} failed; its message is above");
    }
}

#[test]
fn any_order_of_events_ends_every_exec_exactly_once() {
    run_range(0..SCHEDULES / 2);
}

#[test]
fn any_other_order_of_events_ends_every_exec_exactly_once() {
    run_range(SCHEDULES / 2..SCHEDULES);
}

#[test]
fn one_schedule_again() {
    run_range(0..1);
}
