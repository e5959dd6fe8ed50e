//! How much the sandbox uses: asked of everybody who counts, and kept for an hour.

use crate::client::Role;
use crate::log::now_ms;
use crate::usage;
use crate::worker::Worker;
use msb_wire::{DiskTraffic, MachineUsage, NetUsage, Reply, Sample, ToMachine, Usage};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Whoever counts answers within microseconds; a guest that is swamped takes longer.
const MEASURE_LIMIT: Duration = Duration::from_secs(2);
/// How often something is kept: a line of 360 points tells an hour.
const INTERVAL: Duration = Duration::from_secs(10);
/// An hour of them, in some 50 KiB.
const KEPT: usize = 360;

/// Somebody waits until all have counted.
#[derive(Debug)]
pub(crate) struct Measuring {
    /// Nobody, if it is kept.
    client: Option<u64>,
    until: Instant,
    awaits_net: bool,
    awaits_guest: bool,
}

/// What somebody has counted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counted {
    Net(NetUsage),
    Guest(MachineUsage),
}

/// What was counted, and who waits for it.
#[derive(Debug)]
pub(crate) struct Meter {
    waiting: Vec<Measuring>,
    net: Option<NetUsage>,
    guest: Option<MachineUsage>,
    /// The most that was counted of what only grows.
    most: (u64, Option<DiskTraffic>),
    history: VecDeque<Sample>,
    next: Instant,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            waiting: Vec::new(),
            net: None,
            guest: None,
            most: (0, None),
            history: VecDeque::new(),
            next: Instant::now() + INTERVAL,
        }
    }

    /// The next moment at which something is to be done; nothing is counted of what stands still.
    pub(crate) fn next(&self, paused: bool) -> Option<Instant> {
        let limits = self.waiting.iter().map(|one| one.until);
        limits.chain((!paused).then_some(self.next)).min()
    }

    /// Without a cgroup, what a process used whom nobody waited for is forgotten when it ends.
    fn never_less(&mut self, usage: &mut Usage) {
        let (cpu_us, disk) = &mut self.most;
        *cpu_us = usage.cpu_us.max(*cpu_us);
        usage.cpu_us = *cpu_us;
        if let Some(now) = &mut usage.disk {
            let before = disk.unwrap_or(*now);
            now.read = now.read.max(before.read);
            now.written = now.written.max(before.written);
            *disk = Some(*now);
        }
    }

    fn keep(&mut self, usage: &Usage) {
        if self.history.len() == KEPT {
            self.history.pop_front();
        }
        self.history.push_back(Sample {
            time: now_ms(),
            cpu_us: usage.cpu_us,
            memory: usage.memory,
            guest_memory: usage.guest.map(|guest| guest.memory),
            pids: usage.guest.map_or(usage.pids, |guest| guest.pids),
            disk: usage.disk,
            net: usage.net,
        });
    }
}

impl Worker {
    /// Answers how much is used, as the host, the gateway and the guest count it.
    pub(crate) fn measure(&mut self, client: Option<u64>) {
        let awaits_net = self.ask_traffic();
        let machine = self.guest.machine_mut().filter(|machine| machine.ready && !machine.paused);
        let awaits_guest = machine.is_some();
        if let Some(machine) = machine {
            machine.tell(&ToMachine::Measure);
        }
        if let Some(client) = client {
            self.set_role(client, Role::Waiting);
        }
        let until = Instant::now() + MEASURE_LIMIT;
        self.meter.waiting.push(Measuring { client, until, awaits_net, awaits_guest });
        self.tell_measured(|one| !one.awaits_net && !one.awaits_guest);
    }

    /// Somebody has counted.
    pub(crate) fn counted(&mut self, counted: Counted) {
        match counted {
            Counted::Net(net) => {
                self.meter.net = Some(net);
                self.meter.waiting.iter_mut().for_each(|one| one.awaits_net = false);
            }
            Counted::Guest(guest) => {
                self.meter.guest = Some(guest);
                self.meter.waiting.iter_mut().for_each(|one| one.awaits_guest = false);
            }
        }
        self.tell_measured(|one| !one.awaits_net && !one.awaits_guest);
    }

    /// Keeps how much is used when it is time for that, and gives up on those who do not count.
    pub(crate) fn look_at_meter(&mut self, now: Instant) {
        if now >= self.meter.next && !self.guest.is_paused() {
            self.meter.next = now + INTERVAL;
            self.measure(None);
        }
        if self.meter.waiting.iter().any(|one| now >= one.until) {
            self.tell_measured(|one| now >= one.until);
        }
    }

    /// What was used in the last hour.
    pub(crate) fn history(&self) -> Vec<Sample> {
        self.meter.history.iter().copied().collect()
    }

    /// Tells those who need wait no longer.
    fn tell_measured(&mut self, is_done: impl Fn(&Measuring) -> bool) {
        let done: Vec<Measuring> = self.meter.waiting.extract_if(.., |one| is_done(one)).collect();
        if done.is_empty() {
            return;
        }
        let mut usage = usage::measure(&self.guest.confined, self.life.started.elapsed());
        self.meter.never_less(&mut usage);
        usage.net = self.meter.net.filter(|_| self.outward.is_some());
        for one in done {
            // What was counted long ago is not told as if it were so now.
            usage.guest = self.meter.guest.filter(|_| !one.awaits_guest && self.counts_inside());
            if let Some(guest) = usage.guest {
                let (read, written) = (guest.disk_read, guest.disk_written);
                usage.disk = Some(DiskTraffic { read, written });
            }
            match one.client {
                Some(client) => self.answer(client, &Reply::Usage(usage)),
                None => self.meter.keep(&usage),
            }
        }
    }

    fn counts_inside(&self) -> bool {
        self.guest.machine().is_some_and(|machine| machine.ready && !machine.paused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(cpu_us: u64, disk: Option<(u64, u64)>) -> Usage {
        let disk = disk.map(|(read, written)| DiskTraffic { read, written });
        Usage { cpu_us, memory: 0, pids: 0, uptime_ms: 0, disk, net: None, guest: None }
    }

    #[test]
    fn what_only_grows_never_falls() {
        let mut meter = Meter::new();
        for (now, told) in [
            (used(5, None), used(5, None)),
            (used(3, Some((4, 9))), used(5, Some((4, 9)))),
            (used(9, Some((6, 2))), used(9, Some((6, 9)))),
            (used(9, None), used(9, None)),
        ] {
            let mut usage = now;
            meter.never_less(&mut usage);
            assert_eq!(usage, told);
        }
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut meter = Meter::new();
        for pids in 0..400 {
            meter.keep(&Usage { pids, ..used(0, None) });
        }
        let kept: Vec<u32> = meter.history.iter().map(|sample| sample.pids).collect();
        assert_eq!(kept, (40..400).collect::<Vec<_>>());
        let bytes = meter.history.capacity() * size_of::<Sample>();
        assert!(bytes < 100 << 10, "{bytes}");
    }

    #[test]
    fn nobody_is_woken_for_what_stands_still() {
        let meter = Meter::new();
        assert!(meter.next(false).is_some());
        assert_eq!(meter.next(true), None);
    }
}
