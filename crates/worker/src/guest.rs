//! The worker's end of the link to its guest. Everything that comes from there is hostile.

use crate::machine::Machine;
use msb_jail::{Become, BecomeInit, Beside, Confined};
use msb_spec::{Error, Isolation, Kind, Plan, Result, Stage};
use msb_sys::socket;
use msb_wire::{Decoder, FrameKind, FromGuest, MAX_FROM_GUEST, ToGuest, encode};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A guest that reads nothing for this long has been stopped or taken over.
const SEND_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// A running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) confined: Confined,
    pub(crate) way: Way,
    /// Whether everything in a jail stands still.
    pub(crate) stopped: bool,
    /// Whether somebody has paused it, who alone lets it go on.
    pub(crate) asked: bool,
}

/// How a guest is reached.
#[derive(Debug)]
pub(crate) enum Way {
    /// It is a process in a jail, and descriptors travel beside the frames.
    Jailed(Jailed),
    /// It is in a machine of its own.
    Machine(Box<Machine>),
}

/// The link to a guest that is a process.
#[derive(Debug)]
pub(crate) struct Jailed {
    socket: OwnedFd,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
}

impl Guest {
    /// Makes the jail and starts the guest in it.
    pub(crate) fn start(
        plan: &Plan,
        directory: &Path,
        link: Option<BorrowedFd<'_>>,
        authority: Option<&str>,
    ) -> Result<Self> {
        if plan.isolation == Isolation::Vm {
            let (confined, machine) = Machine::start(plan, directory, link, authority)?;
            let way = Way::Machine(Box::new(machine));
            return Ok(Self { confined, way, stopped: false, asked: false });
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
        let outward = link.map(|link| msb_jail::Outward { link, authority });
        let plan = &crate::ctl::shown(plan, directory)?;
        let roles: (Become, BecomeInit) = (be_guest, msb_guest::become_init);
        let confined = msb_jail::start(plan, outward.as_ref(), roles, theirs.as_fd())?;
        if let Some(console) = &confined.console {
            rustix::io::ioctl_fionbio(console, true).map_err(|error| broken(error.into()))?;
        }
        let decoder = Decoder::new(MAX_FROM_GUEST);
        let way = Way::Jailed(Jailed { socket: ours, decoder, fds: Vec::new() });
        Ok(Self { confined, way, stopped: false, asked: false })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Jailed(jailed) => jailed.socket.as_fd(),
            Way::Machine(machine) => machine.socket(),
        }
    }

    /// Whether everything inside stands still.
    pub(crate) fn is_paused(&self) -> bool {
        self.stopped || self.machine().is_some_and(|machine| machine.paused)
    }

    pub(crate) fn machine(&self) -> Option<&Machine> {
        match &self.way {
            Way::Jailed(_) => None,
            Way::Machine(machine) => Some(machine),
        }
    }

    pub(crate) fn machine_mut(&mut self) -> Option<&mut Machine> {
        match &mut self.way {
            Way::Jailed(_) => None,
            Way::Machine(machine) => Some(machine),
        }
    }

    /// Ends the guest, and with it everything in the sandbox. Returns once it is dead.
    pub(crate) fn kill(&self) {
        self.begin_to_die();
        let _ = rustix::process::waitid(
            rustix::process::WaitId::PidFd(self.confined.pidfd.as_fd()),
            rustix::process::WaitIdOptions::EXITED,
        );
    }

    /// The same without waiting for it.
    pub(crate) fn begin_to_die(&self) {
        let kill = rustix::process::Signal::KILL;
        let _ = rustix::process::pidfd_send_signal(&self.confined.pidfd, kill);
        // What is frozen dies, on v1, only when it goes on.
        if let Some(group) = self.confined.group.as_ref().filter(|_| self.stopped) {
            group.let_die();
        }
    }
}

/// Why a guest in a jail was not asked.
#[derive(Debug)]
pub(crate) enum Unasked {
    /// The host has no room for it at the moment, or the guest reads nothing. The link is whole:
    /// only this request has failed.
    Shortage(Error),
    /// It is dead or about to be.
    Dead(Error),
}

impl Unasked {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Shortage(error) | Self::Dead(error) => error,
        }
    }
}

fn shortage(error: std::io::Error) -> Error {
    if Errno::from_io_error(&error) == Some(Errno::AGAIN) {
        return Error::new(Kind::Timeout, "the guest reads no requests")
            .hint("something in the sandbox may have stopped it; `msb stop -f` ends it");
    }
    Error::new(Kind::Limit, "this host has no room for the request's descriptors")
        .cause(error)
        .hint("other programs of this user hold too many; try again when they have ended")
}

/// What the jail's first process becomes.
fn be_guest(link: OwnedFd, restricted: bool, beside: Option<Beside>) -> i32 {
    let beside = beside.map(|Beside { pid, turn, proc }| msb_guest::Beside { pid, turn, proc });
    msb_guest::run(link, restricted, beside)
}

impl Jailed {
    /// Asks the guest for something.
    pub(crate) fn ask(&self, what: &ToGuest, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.send(&encode(FrameKind::Control, what), fds).map_err(Unasked::into_error)
    }

    /// The same for what is a frame already.
    pub(crate) fn send(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Unasked> {
        let sent = socket::send_or_tell(self.socket.as_fd(), frame, fds);
        let Err(unsent) = sent else { return Ok(()) };
        if unsent.is_shortage() {
            return Err(Unasked::Shortage(shortage(unsent.error)));
        }
        // Half a frame leaves nothing that could be said after it. The end of the link is heard.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let error = Error::new(Kind::Protocol, "the guest does not listen").cause(unsent.error);
        Err(Unasked::Dead(error))
    }

    /// Reads what has arrived; false when the guest has closed the link.
    pub(crate) fn receive(&mut self) -> bool {
        let mut buffer = [0u8; 4096];
        match socket::receive(self.socket.as_fd(), &mut buffer, &mut self.fds) {
            Ok(0) => false,
            Ok(n) => {
                self.decoder.push(&buffer[..n]);
                // One Exec at a time brings at most one; a hoard of them is an attack.
                self.fds.truncate(64);
                true
            }
            Err(error) => {
                let passing = [Errno::INTR, Errno::AGAIN, Errno::NOMEM, Errno::NOBUFS];
                Errno::from_io_error(&error).is_some_and(|errno| passing.contains(&errno))
            }
        }
    }

    /// The next thing it said.
    pub(crate) fn next(&mut self) -> Result<Option<FromGuest>> {
        let malformed = |error| Error::new(Kind::Protocol, "the guest sent nonsense").cause(error);
        match self.decoder.next_frame().map_err(malformed)? {
            None => Ok(None),
            Some(frame) => frame.value().map(Some).map_err(malformed),
        }
    }

    /// The terminal that came with `Started`.
    pub(crate) fn take_terminal(&mut self) -> Option<OwnedFd> {
        (!self.fds.is_empty()).then(|| self.fds.remove(0))
    }
}
