//! The worker's end of the link to its guest. Everything that arrives on it is untrusted.

use crate::guest_process::GuestProcess;
use crate::init::InitState;
use crate::microvm::MicroVm;
use crate::open_streams::OpenStreams;
use crate::pause::PauseRequest;
use crate::vsock_relay::VsockRelay;
use msb_jail::{GuestEntry, InitEntry, InitHandoff};
use msb_spec::{Error, Isolation, Kind, Plan, Result, Stage};
use msb_sys::socket::{self, DescriptorSocket};
use msb_wire::{FrameKind, FramedSocket, FromGuest, MAX_FROM_GUEST, ToGuest, encode};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A guest that does not read for this long is stopped or compromised.
const SEND_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// The guest of a running sandbox: its process, the link to it, and what it was asked for.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) process: Box<dyn GuestProcess>,
    pub(crate) transport: GuestTransport,
    /// Everything in a jail is frozen, or the disk of a microVM is.
    pub(crate) frozen: bool,
    /// Paused on request of a client; only a client can resume it.
    pub(crate) paused_by_user: bool,
    /// Pauses and resumes in progress, in order.
    pub(crate) pending_pauses: VecDeque<PauseRequest>,
    /// Clients that wait for the VMM to pause or resume, in order; `None` is the idle timer.
    pub(crate) pending_vm_orders: VecDeque<Option<u64>>,
    /// State of the image's own init.
    pub(crate) init_state: InitState,
    /// The guest has reported that no other process is left.
    pub(crate) no_children_left: bool,
    /// Relays into a microVM, by number.
    pub(crate) relays: BTreeMap<u64, VsockRelay>,
    /// Open streams into a jail.
    pub(crate) streams: OpenStreams,
}

/// How the guest is reached.
#[derive(Debug)]
pub(crate) enum GuestTransport {
    /// A process in a jail; descriptors are passed with the frames.
    Jail(JailLink),
    /// In a microVM, over vsock.
    Vm(Box<MicroVm>),
}

/// The link to a guest in a jail.
#[derive(Debug)]
pub(crate) struct JailLink(FramedSocket<DescriptorSocket>);

impl Guest {
    /// Creates the jail or the microVM and starts the guest in it.
    pub(crate) fn start(
        plan: &Plan,
        directory: &Path,
        link: Option<BorrowedFd<'_>>,
        authority: Option<&str>,
    ) -> Result<Self> {
        if plan.isolation == Isolation::Vm {
            let (jailed, vm) = MicroVm::start(plan, directory, link, authority)?;
            let transport = GuestTransport::Vm(Box::new(vm));
            return Ok(Self::new(Box::new(jailed), transport));
        }
        let broken =
            |error: std::io::Error| Error::host("cannot prepare the guest", error).at(Stage::Boot);
        let (ours, theirs) = socket::pair().map_err(broken)?;
        rustix::net::sockopt::set_socket_timeout(
            &ours,
            rustix::net::sockopt::Timeout::Send,
            Some(SEND_LIMIT),
        )
        .map_err(|error| broken(error.into()))?;
        let gateway = link.map(|link| msb_jail::NetDeviceHandoff { link, ca_cert: authority });
        let plan = &crate::ctl::with_ctl_mounts(plan, directory)?;
        let roles: (GuestEntry, InitEntry) = (run_guest, msb_guest::become_init);
        let jailed = msb_jail::start(plan, gateway.as_ref(), roles, theirs.as_fd())?;
        if let Some(console) = &jailed.console {
            rustix::io::ioctl_fionbio(console, true).map_err(|error| broken(error.into()))?;
        }
        let transport = GuestTransport::Jail(JailLink::new(ours));
        Ok(Self::new(Box::new(jailed), transport))
    }

    /// A guest that runs already.
    pub(crate) fn new(process: Box<dyn GuestProcess>, transport: GuestTransport) -> Self {
        Self {
            process,
            transport,
            frozen: false,
            paused_by_user: false,
            pending_pauses: VecDeque::new(),
            pending_vm_orders: VecDeque::new(),
            init_state: InitState::default(),
            no_children_left: false,
            relays: BTreeMap::new(),
            streams: OpenStreams::default(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        match &self.transport {
            GuestTransport::Jail(jail) => jail.socket(),
            GuestTransport::Vm(vm) => vm.socket(),
        }
    }

    /// Whether the sandbox is frozen, or the vCPUs of its microVM are paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.frozen || self.vm().is_some_and(|vm| vm.paused)
    }

    pub(crate) fn vm(&self) -> Option<&MicroVm> {
        match &self.transport {
            GuestTransport::Jail(_) => None,
            GuestTransport::Vm(vm) => Some(vm),
        }
    }

    pub(crate) fn vm_mut(&mut self) -> Option<&mut MicroVm> {
        match &mut self.transport {
            GuestTransport::Jail(_) => None,
            GuestTransport::Vm(vm) => Some(vm),
        }
    }

    /// Kills the guest, and with it everything in the sandbox. Returns once it is dead.
    pub(crate) fn kill_and_wait(&self) {
        self.send_kill();
        self.process.wait_exited();
    }

    /// Sends SIGKILL to the guest and returns at once.
    pub(crate) fn send_kill(&self) {
        self.process.send_kill();
        // On cgroup v1 a frozen process dies only after it is thawed.
        if let Some(group) = self.process.group().filter(|_| self.frozen) {
            group.thaw_for_kill();
        }
    }
}

/// Why a request was not sent to a guest in a jail.
#[derive(Debug)]
pub(crate) enum GuestSendError {
    /// The host is out of descriptors or memory, or the guest does not read. The link is intact;
    /// only this request has failed.
    Shortage(Error),
    /// The guest is dead or about to be.
    Dead(Error),
}

impl GuestSendError {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Shortage(error) | Self::Dead(error) => error,
        }
    }
}

fn shortage_error(error: std::io::Error) -> Error {
    if Errno::from_io_error(&error) == Some(Errno::AGAIN) {
        return Error::new(Kind::Timeout, "the guest does not read requests")
            .hint("something in the sandbox may have stopped it; `msb stop -f` ends it");
    }
    Error::new(Kind::Limit, "this host has too many descriptors in flight for the request")
        .cause(error)
        .hint("other programs of this user have too many in Unix sockets; try again later")
}

/// Entry point of the jail's first process.
fn run_guest(link: OwnedFd, restricted: bool, init: Option<InitHandoff>) -> i32 {
    let init = init.map(|InitHandoff { pid, start_pipe, proc }| msb_guest::PendingInit {
        pid,
        start_pipe,
        proc,
    });
    msb_guest::run(link, restricted, init)
}

impl JailLink {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(FramedSocket::new(socket.into(), MAX_FROM_GUEST))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.0.socket().as_fd()
    }

    /// Sends a request to the guest, with descriptors.
    pub(crate) fn request(&self, what: &ToGuest, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.send(&encode(FrameKind::Control, what), fds).map_err(GuestSendError::into_error)
    }

    /// Sends an encoded frame to the guest, with descriptors.
    pub(crate) fn send(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), GuestSendError> {
        let sent = socket::send_or_tell(self.socket(), frame, fds);
        let Err(unsent) = sent else { return Ok(()) };
        if unsent.is_shortage() {
            return Err(GuestSendError::Shortage(shortage_error(unsent.error)));
        }
        // After a partial frame the link is unusable. Closing it is noticed by the loop.
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Both);
        let error =
            Error::new(Kind::Protocol, "the link to the guest is broken").cause(unsent.error);
        Err(GuestSendError::Dead(error))
    }

    /// Reads what has arrived; false when the guest has closed the link.
    pub(crate) fn receive(&mut self) -> bool {
        let mut buffer = [0u8; 4096];
        match self.0.receive(&mut buffer) {
            Ok(0) => false,
            Ok(_) => {
                // Each Exec brings at most one descriptor; hoarding them is an attack.
                self.0.socket_mut().fds.truncate(64);
                true
            }
            Err(error) => {
                let transient = [Errno::INTR, Errno::AGAIN, Errno::NOMEM, Errno::NOBUFS];
                Errno::from_io_error(&error).is_some_and(|errno| transient.contains(&errno))
            }
        }
    }

    /// The next message of the guest.
    pub(crate) fn next(&mut self) -> Result<Option<FromGuest>> {
        let malformed =
            |error| Error::new(Kind::Protocol, "the guest sent a malformed frame").cause(error);
        match self.0.next_frame().map_err(malformed)? {
            None => Ok(None),
            Some(frame) => frame.value().map(Some).map_err(malformed),
        }
    }

    /// The terminal descriptor that came with `Started`.
    pub(crate) fn take_terminal(&mut self) -> Option<OwnedFd> {
        let fds = &mut self.0.socket_mut().fds;
        (!fds.is_empty()).then(|| fds.remove(0))
    }
}
