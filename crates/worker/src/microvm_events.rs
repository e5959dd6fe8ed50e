//! Events of a microVM: boot, console, vsock connections, power-off.

use crate::exec::OutputStream;
use crate::exec_events;
use crate::microvm::{BOOT_LIMIT, ConnAssignment, MicroVm, VmEvent};
use crate::usage_meter::UsageReport;
use crate::worker::Worker;
use msb_spec::{Ending, Error, Kind, PlannedMount, Result, Stage, VolumeStorage};
use msb_sys::signal;
use msb_vm::Order;
use msb_wire::record::Source;
use msb_wire::{FrameKind, FromGuest, FromMachine, Reply, ToMachine, decode};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::time::{Duration, Instant};

/// Relays beyond which new connections of `sandbox-ctl` are closed.
const MAX_RELAYS: usize = 256;
/// Time for a guest to sync its disks. Later writes are lost, as in a power cut.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(15);

/// If a closed connection means that the VMM is exiting, it has exited within this time.
const END_LIMIT: Duration = Duration::from_millis(500);

impl Worker {
    /// Waits until a microVM is ready, or returns why it is not.
    pub(crate) fn await_vm(&mut self) -> Result<()> {
        if self.guest.vm().is_none() {
            return Ok(());
        }
        self.lifetime.boot_deadline = Some(self.clock.now() + BOOT_LIMIT);
        let done = loop {
            let vm = self.guest.vm_mut().expect("checked above");
            if vm.ready {
                break Ok(());
            }
            if let Some(error) = vm.failed.take() {
                break Err(error);
            }
            let now = self.clock.now();
            let late = self.lifetime.boot_deadline.is_some_and(|limit| now >= limit);
            if late || self.lifetime.outcome.is_some() {
                let vm = self.guest.vm_mut().expect("checked above");
                break Err(boot_error(vm, late));
            }
            for (ready, flags) in self.wait() {
                self.handle(ready, flags);
                let vm = self.guest.vm();
                if self.lifetime.outcome.is_some()
                    || vm.is_some_and(|m| m.ready || m.failed.is_some())
                {
                    break;
                }
            }
            self.expire_unauthenticated(self.clock.now());
        };
        self.lifetime.boot_deadline = None;
        done
    }

    /// Reads the VMM's link.
    pub(crate) fn read_vm_link(&mut self) {
        let Some(vm) = self.guest.vm_mut() else { return };
        // Its exit is noticed by the pidfd.
        if let VmEvent::OrderDone(done) = vm.read_report(self.clock.now())
            && let Some(client) = self.guest.pending_vm_orders.pop_front()
        {
            let paused = self.guest.vm().is_some_and(|vm| vm.paused);
            if let Some(client) = client {
                let refused =
                    || Error::new(Kind::Host, "the microVM could not be paused or resumed");
                let reply = if done { Reply::Done } else { Reply::Failed(refused()) };
                if done {
                    self.guest.paused_by_user = paused;
                }
                if done && !self.idle.is_paused() {
                    self.record_pause(paused);
                }
                self.answer(client, &reply);
            }
            if paused {
                self.cancel_check();
            }
            self.on_pause_changed(paused);
            self.start_delayed_unless_held();
        }
        self.assign_connections();
    }

    /// Reads the guest's control connection.
    pub(crate) fn read_vm_control(&mut self, flags: PollFlags) {
        let Some(vm) = self.guest.vm_mut() else { return };
        let Some(control) = &mut vm.control else { return };
        if flags.contains(PollFlags::OUT) {
            control.flush();
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        if !control.receive(&mut self.buffer) {
            vm.control = None;
            return;
        }
        loop {
            let Some(control) = self.guest.vm_mut().and_then(|m| m.control.as_mut()) else {
                return;
            };
            let frame = match control.next() {
                Ok(None) => return,
                Ok(Some(frame)) if frame.kind == FrameKind::Control => frame,
                _ => return self.finish(Ending::Crashed, None),
            };
            match frame.value() {
                Ok(message) => self.on_vm_message(message),
                Err(_) => return self.finish(Ending::Crashed, None),
            }
        }
    }

    fn on_vm_message(&mut self, message: FromMachine) {
        let Some(vm) = self.guest.vm_mut() else { return };
        match message {
            FromMachine::Ready => vm.ready = true,
            FromMachine::Failed { doing, errno } => {
                let doing: String = doing.chars().filter(|c| !c.is_control()).take(200).collect();
                let error = Error::host(
                    format!("the guest cannot {doing}"),
                    std::io::Error::from_raw_os_error(errno),
                );
                vm.failed = Some(error.at(Stage::Boot));
            }
            FromMachine::Held { held } => self.on_freeze_done(held),
            FromMachine::Init { failure } => self.on_init_started(failure),
            FromMachine::InitEnded { code, signal } => self.on_init_exited(code, signal),
            FromMachine::Usage(guest) => self.add_usage_report(UsageReport::Guest(guest)),
        }
    }

    /// Reads the console of the guest's kernel.
    pub(crate) fn read_vm_console(&mut self) {
        let Some(vm) = self.guest.vm_mut() else { return };
        let Some(console) = &vm.console else { return };
        match rustix::io::read(console, &mut self.buffer) {
            Ok(n) if n > 0 => {
                let bytes = &self.buffer[..n];
                vm.remember_console(bytes);
                self.logs.output.output(Source::System, 0, bytes);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            _ => vm.console = None,
        }
    }

    /// Assigns vsock connections to what waits for them.
    pub(crate) fn assign_connections(&mut self) {
        while let Some(assignment) = self.guest.vm_mut().and_then(MicroVm::next_assignment) {
            match assignment {
                ConnAssignment::Exec(id, vsock) => {
                    if let Some(exec) = self.execs.get_mut(id) {
                        exec.attach_vsock(vsock);
                    }
                }
                // Too many relays: close the connection.
                ConnAssignment::Ctl(_) if self.guest.relays.len() >= MAX_RELAYS => {}
                ConnAssignment::Files(relay) | ConnAssignment::Ctl(relay) => {
                    self.guest.relays.insert(self.clients.take_id(), relay);
                }
            }
        }
    }

    /// Reads output and events of a command in a microVM.
    pub(crate) fn read_exec_vsock(&mut self, id: u64, flags: PollFlags) {
        let Some(exec) = self.execs.get_mut(id) else { return };
        let Some(vsock) = &mut exec.vsock else { return };
        if flags.contains(PollFlags::OUT) {
            vsock.flush();
            exec.write_stdin();
        }
        let Some(vsock) = &mut exec.vsock else { return };
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let alive = vsock.receive(&mut self.buffer);
        loop {
            let Some(exec) = self.execs.get_mut(id) else { return };
            let Some(vsock) = &mut exec.vsock else { return };
            let frame = match vsock.next() {
                Ok(Some(frame)) => frame,
                Ok(None) if alive => return,
                Ok(None) => return self.on_vsock_closed(id),
                Err(_) => return self.finish(Ending::Crashed, None),
            };
            let stream = match frame.kind {
                FrameKind::Stdout => OutputStream::Stdout,
                FrameKind::Stderr => OutputStream::Stderr,
                FrameKind::Control => {
                    match decode::<FromGuest>(&frame.payload) {
                        Ok(message) if exec_id(&message) == Some(id) => {
                            self.on_guest_message(&message)
                        }
                        _ => return self.finish(Ending::Crashed, None),
                    }
                    if self.lifetime.outcome.is_some() {
                        return;
                    }
                    continue;
                }
                _ => return self.finish(Ending::Crashed, None),
            };
            if !exec.internal {
                self.idle.touch(self.clock.now());
            }
            exec.remember(&frame.payload);
            exec_events::deliver_output(
                &mut self.logs.output,
                &mut self.clients,
                exec,
                stream,
                &frame.payload,
            );
        }
    }

    /// The connection of a command closed before its exit was reported. Either the VMM is exiting,
    /// or the guest was made to close it.
    fn on_vsock_closed(&mut self, id: u64) {
        let mut waits = [PollFd::from_borrowed_fd(self.guest.process.pidfd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: 0, tv_nsec: END_LIMIT.subsec_nanos().into() };
        if matches!(rustix::event::poll(&mut waits, Some(&limit)), Ok(1..)) {
            return self.on_guest_dead();
        }
        if let Some(exec) = self.execs.get_mut(id) {
            exec.vsock = None;
            exec.running = true;
            self.on_exited(id, (None, Some(signal::SIGKILL)), None);
        }
    }

    /// Closes connections that did not send the token in time.
    pub(crate) fn expire_unauthenticated(&mut self, now: Instant) {
        if let Some(vm) = self.guest.vm_mut() {
            vm.close_expired(now);
        }
    }

    /// The guest process has exited.
    pub(crate) fn on_guest_dead(&mut self) {
        self.drain_console();
        let code = self.guest.process.exit_status();
        let panicked = self.guest.vm_mut().is_some_and(MicroVm::panicked);
        let ending = match self.guest.vm() {
            Some(_) if panicked => Ending::Panicked,
            Some(vm) if code == Some(0) && vm.ready => Ending::PoweredOff,
            _ => self.guest_loss_ending(),
        };
        self.finish(ending, None);
    }

    /// Why the guest ended although the worker did not kill it.
    pub(crate) fn guest_loss_ending(&mut self) -> Ending {
        match self.lifetime.memory_hit(self.guest.process.group()) {
            true => Ending::Memory,
            false => Ending::Crashed,
        }
    }

    fn drain_console(&mut self) {
        while self.guest.vm().is_some_and(|vm| vm.console.is_some()) {
            let before = self.guest.vm().map(MicroVm::console_bytes);
            self.read_vm_console();
            if self.guest.vm().map(MicroVm::console_bytes) == before {
                return;
            }
        }
    }

    /// Error for a kernel panic, with the last lines of the console.
    pub(crate) fn panic_error(&mut self) -> Option<Error> {
        if self.lifetime.outcome.is_none_or(|stopped| stopped.ending != Ending::Panicked) {
            return None;
        }
        let lines = self.guest.vm_mut()?.last_lines();
        let error = Error::new(Kind::Host, "the kernel of the microVM panicked").at(Stage::Exec);
        Some(lines.into_iter().fold(error, Error::cause))
    }

    /// Powers the microVM off, if its disk or a volume's must be synced.
    pub(crate) fn power_off_vm(&mut self) {
        let writes_disk = |mount: &PlannedMount| {
            let disk =
                mount.volume.as_ref().is_some_and(|volume| volume.stored == VolumeStorage::Disk);
            disk && !mount.read_only
        };
        let lasts = !self.plan.ephemeral || self.plan.mounts.iter().any(writes_disk);
        if !lasts || self.lifetime.forced {
            return;
        }
        let Some(vm) = self.guest.vm_mut().filter(|vm| vm.ready) else {
            return;
        };
        if vm.paused {
            let _ = vm.order(Order::Resume);
        }
        vm.send_control(&ToMachine::PowerOff);
        // The guest waits for these to close before it powers off.
        for exec in self.execs.values_mut() {
            exec.vsock = None;
        }
        let limit = Instant::now() + POWER_OFF_LIMIT;
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let Some(vm) = self.guest.vm_mut() else { return };
            if let Some(control) = &mut vm.control {
                control.flush();
            }
            let mut waits =
                vec![PollFd::from_borrowed_fd(self.guest.process.pidfd(), PollFlags::IN)];
            if let Some(console) = self.guest.vm().and_then(|m| m.console.as_ref()) {
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
                self.read_vm_console();
            }
        }
    }
}

/// The Exec that a message is about.
fn exec_id(message: &FromGuest) -> Option<u64> {
    match message {
        FromGuest::Started { id, .. }
        | FromGuest::Failed { id, .. }
        | FromGuest::Exited { id, .. } => Some(*id),
        FromGuest::Paused { .. } | FromGuest::Init { .. } | FromGuest::InitEnded { .. } => None,
    }
}

/// Error for a microVM that did not become ready.
fn boot_error(vm: &mut MicroVm, late: bool) -> Error {
    let message = match late {
        true => format!("the microVM was not ready after {} s", BOOT_LIMIT.as_secs()),
        false => "the microVM ended before it was ready".to_owned(),
    };
    let error = Error::new(Kind::Host, message).at(Stage::Boot);
    match vm.last_lines() {
        lines if lines.is_empty() => error.hint("`msb doctor` tells what this host lacks"),
        lines => lines.into_iter().fold(error, Error::cause),
    }
}
