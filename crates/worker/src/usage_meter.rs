//! Collects resource use from the host, the gateway and the guest, and keeps samples for an hour.

use crate::client::ClientRole;
use crate::host_usage;
use crate::log::now_ms;
use crate::worker::Worker;
use msb_wire::{DiskTraffic, MachineUsage, NetUsage, Reply, Sample, ToMachine, Usage};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Replies come within microseconds, but an overloaded guest may be slow.
const MEASURE_LIMIT: Duration = Duration::from_secs(2);
/// Interval of samples: 360 of them cover an hour.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// An hour of samples, in about 50 KiB.
const HISTORY_LENGTH: usize = 360;

/// A query that waits for replies of the gateway and the guest.
#[derive(Debug)]
pub(crate) struct UsageQuery {
    /// The client to answer; none for a sample of the history.
    client: Option<u64>,
    until: Instant,
    awaits_net: bool,
    awaits_guest: bool,
}

/// Reply to a usage query.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UsageReport {
    Net(NetUsage),
    Guest(MachineUsage),
}

/// Latest replies, pending queries and the history.
#[derive(Debug)]
pub(crate) struct UsageMeter {
    waiting: Vec<UsageQuery>,
    net: Option<NetUsage>,
    guest: Option<MachineUsage>,
    /// Highest CPU time and disk traffic so far.
    most: (u64, Option<DiskTraffic>),
    history: VecDeque<Sample>,
    next: Instant,
}

impl UsageMeter {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            waiting: Vec::new(),
            net: None,
            guest: None,
            most: (0, None),
            history: VecDeque::new(),
            next: now + SAMPLE_INTERVAL,
        }
    }

    /// When the next sample or timeout is due. A paused sandbox is not sampled.
    pub(crate) fn next(&self, paused: bool) -> Option<Instant> {
        let limits = self.waiting.iter().map(|query| query.until);
        limits.chain((!paused).then_some(self.next)).min()
    }

    /// Keeps counters from decreasing: without a cgroup, the use of a process that was not reaped
    /// is lost when it exits.
    fn keep_monotonic(&mut self, usage: &mut Usage) {
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
        if self.history.len() == HISTORY_LENGTH {
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
    /// Starts a query; the replies are combined in [`Self::answer_finished`].
    pub(crate) fn measure(&mut self, client: Option<u64>) {
        let awaits_net = self.request_net_usage();
        let vm = self.guest.vm_mut().filter(|vm| vm.ready && !vm.paused);
        let awaits_guest = vm.is_some();
        if let Some(vm) = vm {
            vm.send_control(&ToMachine::Measure);
        }
        if let Some(client) = client {
            self.set_role(client, ClientRole::Waiting);
        }
        let until = self.clock.now() + MEASURE_LIMIT;
        self.meter.waiting.push(UsageQuery { client, until, awaits_net, awaits_guest });
        self.answer_finished(|query| !query.awaits_net && !query.awaits_guest);
    }

    /// A reply of the gateway or the guest has arrived.
    pub(crate) fn add_usage_report(&mut self, report: UsageReport) {
        match report {
            UsageReport::Net(net) => {
                self.meter.net = Some(net);
                self.meter.waiting.iter_mut().for_each(|query| query.awaits_net = false);
            }
            UsageReport::Guest(guest) => {
                self.meter.guest = Some(guest);
                self.meter.waiting.iter_mut().for_each(|query| query.awaits_guest = false);
            }
        }
        self.answer_finished(|query| !query.awaits_net && !query.awaits_guest);
    }

    /// Takes a sample when it is due, and finishes queries that have timed out.
    pub(crate) fn run_meter(&mut self, now: Instant) {
        if now >= self.meter.next && !self.guest.is_paused() {
            self.meter.next = now + SAMPLE_INTERVAL;
            self.measure(None);
        }
        if self.meter.waiting.iter().any(|query| now >= query.until) {
            self.answer_finished(|query| now >= query.until);
        }
    }

    /// Samples of the last hour.
    pub(crate) fn history(&self) -> Vec<Sample> {
        self.meter.history.iter().copied().collect()
    }

    /// Answers queries that have all replies, or have timed out.
    fn answer_finished(&mut self, is_finished: impl Fn(&UsageQuery) -> bool) {
        let done: Vec<UsageQuery> =
            self.meter.waiting.extract_if(.., |query| is_finished(query)).collect();
        if done.is_empty() {
            return;
        }
        let mut usage = host_usage::measure(&*self.guest.process, self.uptime());
        self.meter.keep_monotonic(&mut usage);
        usage.net = self.meter.net.filter(|_| self.gateway.is_some());
        for query in done {
            // An old reply of the guest is not reported as current.
            usage.guest =
                self.meter.guest.filter(|_| !query.awaits_guest && self.is_guest_measured());
            if let Some(guest) = usage.guest {
                let (read, written) = (guest.disk_read, guest.disk_written);
                usage.disk = Some(DiskTraffic { read, written });
            }
            match query.client {
                Some(client) => self.answer(client, &Reply::Usage(usage)),
                None => self.meter.keep(&usage),
            }
        }
    }

    fn is_guest_measured(&self) -> bool {
        self.guest.vm().is_some_and(|vm| vm.ready && !vm.paused)
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
    fn counters_never_decrease() {
        let mut meter = UsageMeter::new(Instant::now());
        for (now, expected) in [
            (used(5, None), used(5, None)),
            (used(3, Some((4, 9))), used(5, Some((4, 9)))),
            (used(9, Some((6, 2))), used(9, Some((6, 9)))),
            (used(9, None), used(9, None)),
        ] {
            let mut usage = now;
            meter.keep_monotonic(&mut usage);
            assert_eq!(usage, expected);
        }
    }

    #[test]
    fn history_is_limited_to_an_hour() {
        let mut meter = UsageMeter::new(Instant::now());
        for pids in 0..400 {
            meter.keep(&Usage { pids, ..used(0, None) });
        }
        let kept: Vec<u32> = meter.history.iter().map(|sample| sample.pids).collect();
        assert_eq!(kept, (40..400).collect::<Vec<_>>());
        let bytes = meter.history.capacity() * size_of::<Sample>();
        assert!(bytes < 100 << 10, "{bytes}");
    }

    #[test]
    fn a_paused_sandbox_is_not_sampled() {
        let meter = UsageMeter::new(Instant::now());
        assert!(meter.next(false).is_some());
        assert_eq!(meter.next(true), None);
    }
}
