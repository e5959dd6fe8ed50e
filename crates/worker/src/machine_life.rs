//! What happens to a microVM while it runs: its boot, its console, its connections, its end.

use crate::exec::Stream;
use crate::execs;
use crate::machine::{BOOT_LIMIT, Given, Heard, Machine};
use crate::measuring::Counted;
use crate::worker::Worker;
use msb_spec::{Ending, Error, Kind, PlannedMount, Result, Stage, Stored};
use msb_sys::signal;
use msb_vm::Order;
use msb_wire::record::Source;
use msb_wire::{FrameKind, FromGuest, FromMachine, Reply, ToMachine, decode};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Connections that are joined, beyond which nobody inside gets another to ask for children.
const MOST_RELAYS: usize = 256;
/// Time for a guest to write everything to disk. What it has not written by then is lost, as it
/// would be with the power.
const SWITCH_OFF_LIMIT: Duration = Duration::from_secs(15);

/// A machine whose connections have closed is gone by then, if it is going.
const END_LIMIT: Duration = Duration::from_millis(500);

impl Worker {
    /// Waits until a machine is ready, or tells why it is not.
    pub(crate) fn await_machine(&mut self) -> Result<()> {
        if self.guest.machine().is_none() {
            return Ok(());
        }
        self.booting = Some(Instant::now() + BOOT_LIMIT);
        let done = loop {
            let machine = self.guest.machine_mut().expect("asked above");
            if machine.ready {
                break Ok(());
            }
            if let Some(error) = machine.failed.take() {
                break Err(error);
            }
            let late = self.booting.is_some_and(|limit| Instant::now() >= limit);
            if late || self.over.is_some() {
                let machine = self.guest.machine_mut().expect("asked above");
                break Err(unready(machine, late));
            }
            for (ready, flags) in self.wait() {
                self.handle(ready, flags);
                let machine = self.guest.machine();
                if self.over.is_some() || machine.is_some_and(|m| m.ready || m.failed.is_some()) {
                    break;
                }
            }
            self.look_at_machine(Instant::now());
        };
        self.booting = None;
        done
    }

    /// What the machine's process says.
    pub(crate) fn hear_machine(&mut self) {
        let Some(machine) = self.guest.machine_mut() else { return };
        // When it is gone its pidfd tells.
        if let Heard::Obeyed(obeyed) = machine.hear()
            && let Some(client) = self.ordering.pop_front()
        {
            let paused = self.guest.machine().is_some_and(|machine| machine.paused);
            if let Some(client) = client {
                let refused =
                    || Error::new(Kind::Host, "the microVM could not be paused or resumed");
                let reply = if obeyed { Reply::Done } else { Reply::Failed(refused()) };
                if obeyed {
                    self.guest.asked = paused;
                }
                if obeyed && !self.idle.asleep() {
                    self.record_order(paused);
                }
                self.answer(client, &reply);
            }
            if paused {
                self.interrupt_check();
            }
            self.idle_paused(paused);
            self.start_delayed_unless_held();
        }
        self.use_connections();
    }

    /// What the guest says on its control connection.
    pub(crate) fn hear_control(&mut self, flags: PollFlags) {
        let Some(machine) = self.guest.machine_mut() else { return };
        let Some(control) = &mut machine.control else { return };
        if flags.contains(PollFlags::OUT) {
            control.flush();
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        if !control.receive(&mut self.buffer) {
            machine.control = None;
            return;
        }
        loop {
            let Some(control) = self.guest.machine_mut().and_then(|m| m.control.as_mut()) else {
                return;
            };
            let frame = match control.next() {
                Ok(None) => return,
                Ok(Some(frame)) if frame.kind == FrameKind::Control => frame,
                _ => return self.finish(Ending::Crashed, None),
            };
            match frame.value() {
                Ok(said) => self.machine_said(said),
                Err(_) => return self.finish(Ending::Crashed, None),
            }
        }
    }

    fn machine_said(&mut self, said: FromMachine) {
        let Some(machine) = self.guest.machine_mut() else { return };
        match said {
            FromMachine::Ready => machine.ready = true,
            FromMachine::Failed { doing, errno } => {
                let doing: String = doing.chars().filter(|c| !c.is_control()).take(200).collect();
                let error = Error::host(
                    format!("the guest cannot {doing}"),
                    std::io::Error::from_raw_os_error(errno),
                );
                machine.failed = Some(error.at(Stage::Boot));
            }
            FromMachine::Held { held } => self.stood_still(held),
            FromMachine::Init { failure } => self.handed_over(failure),
            FromMachine::InitEnded { code, signal } => self.init_ended(code, signal),
            FromMachine::Usage(guest) => self.counted(Counted::Guest(guest)),
        }
    }

    /// What the kernel of the machine says.
    pub(crate) fn hear_console(&mut self) {
        let Some(machine) = self.guest.machine_mut() else { return };
        let Some(console) = &machine.console else { return };
        match rustix::io::read(console, &mut self.buffer) {
            Ok(n) if n > 0 => {
                let bytes = &self.buffer[..n];
                machine.remember(bytes);
                self.output.output(Source::System, 0, bytes);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            _ => machine.console = None,
        }
    }

    /// Gives connections to what waits for them.
    pub(crate) fn use_connections(&mut self) {
        while let Some(given) = self.guest.machine_mut().and_then(Machine::give) {
            match given {
                Given::Exec(id, wired) => {
                    if let Some(exec) = self.execs.get_mut(&id) {
                        exec.wire(wired);
                    }
                }
                // Whoever floods us with them is sent away.
                Given::Ctl(_) if self.relays.len() >= MOST_RELAYS => {}
                Given::Files(relay) | Given::Ctl(relay) => {
                    self.relays.insert(self.next_client, relay);
                    self.next_client += 1;
                }
            }
        }
    }

    /// What a command in a machine says, and what becomes of it.
    pub(crate) fn hear_wired(&mut self, id: u64, flags: PollFlags) {
        let Some(exec) = self.execs.get_mut(&id) else { return };
        let Some(wired) = &mut exec.wired else { return };
        if flags.contains(PollFlags::OUT) {
            wired.flush();
            exec.write_stdin();
        }
        let Some(wired) = &mut exec.wired else { return };
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let alive = wired.receive(&mut self.buffer);
        loop {
            let Some(exec) = self.execs.get_mut(&id) else { return };
            let Some(wired) = &mut exec.wired else { return };
            let frame = match wired.next() {
                Ok(Some(frame)) => frame,
                Ok(None) if alive => return,
                Ok(None) => return self.cut_off(id),
                Err(_) => return self.finish(Ending::Crashed, None),
            };
            let stream = match frame.kind {
                FrameKind::Stdout => Stream::Stdout,
                FrameKind::Stderr => Stream::Stderr,
                FrameKind::Control => {
                    match decode::<FromGuest>(&frame.payload) {
                        Ok(said) if number(&said) == Some(id) => self.guest_said(&said),
                        _ => return self.finish(Ending::Crashed, None),
                    }
                    if self.over.is_some() {
                        return;
                    }
                    continue;
                }
                _ => return self.finish(Ending::Crashed, None),
            };
            if !exec.own {
                self.idle.stir();
            }
            exec.remember(&frame.payload);
            execs::tell(&mut self.output, &mut self.clients, exec, stream, &frame.payload);
        }
    }

    /// A command's connection ended without a word: its machine is ending, or the guest was made
    /// to close it.
    fn cut_off(&mut self, id: u64) {
        let mut waits = [PollFd::new(&self.guest.confined.pidfd, PollFlags::IN)];
        let limit = Timespec { tv_sec: 0, tv_nsec: END_LIMIT.subsec_nanos().into() };
        if matches!(rustix::event::poll(&mut waits, Some(&limit)), Ok(1..)) {
            return self.died();
        }
        if let Some(exec) = self.execs.get_mut(&id) {
            exec.wired = None;
            exec.running = true;
            self.exited(id, (None, Some(signal::SIGKILL)), None);
        }
    }

    /// Clocks of a machine that have run out.
    pub(crate) fn look_at_machine(&mut self, now: Instant) {
        if let Some(machine) = self.guest.machine_mut() {
            machine.forget_silent(now);
        }
    }

    /// The guest's process is dead.
    pub(crate) fn died(&mut self) {
        self.drain_console();
        let by_itself = rustix::process::waitid(
            rustix::process::WaitId::PidFd(self.guest.confined.pidfd.as_fd()),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        );
        let code = by_itself.ok().flatten().and_then(|status| status.exit_status());
        let panicked = self.guest.machine_mut().is_some_and(Machine::panicked);
        let ending = match self.guest.machine() {
            Some(_) if panicked => Ending::Panicked,
            Some(machine) if code == Some(0) && machine.ready => Ending::PoweredOff,
            _ => self.lost_guest(),
        };
        self.finish(ending, None);
    }

    /// Why a guest is gone that msb did not end.
    pub(crate) fn lost_guest(&mut self) -> Ending {
        match self.life.memory_hit(&self.guest.confined, &mut self.memory_seen) {
            true => Ending::Memory,
            false => Ending::Crashed,
        }
    }

    fn drain_console(&mut self) {
        while self.guest.machine().is_some_and(|machine| machine.console.is_some()) {
            let before = self.guest.machine().map(Machine::said);
            self.hear_console();
            if self.guest.machine().map(Machine::said) == before {
                return;
            }
        }
    }

    /// What is said of a machine that ended badly, with the last lines of its console.
    pub(crate) fn explain_end(&mut self) -> Option<Error> {
        if self.over.is_none_or(|stopped| stopped.ending != Ending::Panicked) {
            return None;
        }
        let lines = self.guest.machine_mut()?.last_lines();
        let error = Error::new(Kind::Host, "the kernel of the microVM panicked").at(Stage::Exec);
        Some(lines.into_iter().fold(error, Error::cause))
    }

    /// Has a machine that lasts, or whose volumes do, write everything to disk and end.
    pub(crate) fn switch_off(&mut self) {
        let writes_disk = |mount: &PlannedMount| {
            let disk = mount.volume.as_ref().is_some_and(|volume| volume.stored == Stored::Disk);
            disk && !mount.read_only
        };
        let lasts = !self.plan.ephemeral || self.plan.mounts.iter().any(writes_disk);
        if !lasts || self.forced {
            return;
        }
        let Some(machine) = self.guest.machine_mut().filter(|machine| machine.ready) else {
            return;
        };
        if machine.paused {
            let _ = machine.order(Order::Resume);
        }
        machine.tell(&ToMachine::PowerOff);
        // The guest waits for the end of these before it switches off.
        for exec in self.execs.values_mut() {
            exec.wired = None;
        }
        let limit = Instant::now() + SWITCH_OFF_LIMIT;
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let Some(machine) = self.guest.machine_mut() else { return };
            if let Some(control) = &mut machine.control {
                control.flush();
            }
            let mut waits = vec![PollFd::new(&self.guest.confined.pidfd, PollFlags::IN)];
            if let Some(console) = self.guest.machine().and_then(|m| m.console.as_ref()) {
                waits.push(PollFd::new(console, PollFlags::IN));
            }
            let timeout = Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(0),
                tv_nsec: left.subsec_nanos().into(),
            };
            let polled = rustix::event::poll(&mut waits, Some(&timeout));
            let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            if matches!(polled, Ok(0)) || ready[0] {
                return;
            }
            if ready.get(1) == Some(&true) {
                self.hear_console();
            }
        }
    }
}

/// Which Exec something is about.
fn number(said: &FromGuest) -> Option<u64> {
    match said {
        FromGuest::Started { id, .. }
        | FromGuest::Failed { id, .. }
        | FromGuest::Exited { id, .. } => Some(*id),
        FromGuest::Paused { .. } | FromGuest::Init { .. } | FromGuest::InitEnded { .. } => None,
    }
}

/// Why a machine was never ready.
fn unready(machine: &mut Machine, late: bool) -> Error {
    let message = match late {
        true => format!("the microVM was not ready after {} s", BOOT_LIMIT.as_secs()),
        false => "the microVM ended before it was ready".to_owned(),
    };
    let error = Error::new(Kind::Host, message).at(Stage::Boot);
    match machine.last_lines() {
        lines if lines.is_empty() => error.hint("`msb doctor` tells what this host lacks"),
        lines => lines.into_iter().fold(error, Error::cause),
    }
}
