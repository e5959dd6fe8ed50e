//! The worker's end of the link to its guest. Everything that comes from there is hostile.

use msb_jail::{Confined, Program};
use msb_spec::{Error, Kind, Plan, Result, Stage};
use msb_sys::socket;
use msb_wire::{Decoder, FrameKind, FromGuest, MAX_FROM_GUEST, ToGuest, encode};
use rustix::fs::{MemfdFlags, SealFlags, StatVfsMountFlags};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The guest program, built by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/msb-guest"));
/// Changes with every byte of it.
const PROGRAM_HASH: &str = env!("GUEST_HASH");

/// A guest that reads nothing for this long has been stopped or taken over.
const SEND_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// A running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) confined: Confined,
    socket: OwnedFd,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
}

impl Guest {
    /// Makes the jail and starts the guest in it.
    pub(crate) fn start(plan: &Plan, programs: &Path) -> Result<Self> {
        let broken =
            |error: std::io::Error| Error::host("cannot prepare the guest", error).at(Stage::Boot);
        let program = program(programs).map_err(broken)?;
        let (ours, theirs) = socket::pair().map_err(broken)?;
        rustix::net::sockopt::set_socket_timeout(
            &ours,
            rustix::net::sockopt::Timeout::Send,
            Some(SEND_LIMIT),
        )
        .map_err(|error| broken(error.into()))?;
        let confined = msb_jail::start(plan, &program, theirs.as_fd())?;
        Ok(Self { confined, socket: ours, decoder: Decoder::new(MAX_FROM_GUEST), fds: Vec::new() })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks the guest for something.
    pub(crate) fn ask(&self, what: &ToGuest, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let frame = encode(FrameKind::Control, what);
        socket::send_all(self.socket.as_fd(), &frame, fds)
            .map_err(|error| Error::new(Kind::Protocol, "the guest does not listen").cause(error))
    }

    /// Reads what has arrived; false when the guest has closed the link.
    pub(crate) fn receive(&mut self) -> Result<bool> {
        let mut buffer = [0u8; 4096];
        match socket::receive(self.socket.as_fd(), &mut buffer, &mut self.fds) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.decoder.push(&buffer[..n]);
                // One Exec at a time brings at most one; a hoard of them is an attack.
                self.fds.truncate(64);
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(true),
            Err(_) => Ok(false),
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

    /// Ends the guest, and with it everything in the sandbox. Returns once it is dead.
    pub(crate) fn kill(&self) {
        let kill = rustix::process::Signal::KILL;
        let _ = rustix::process::pidfd_send_signal(&self.confined.pidfd, kill);
        let _ = rustix::process::waitid(
            rustix::process::WaitId::PidFd(self.confined.pidfd.as_fd()),
            rustix::process::WaitIdOptions::EXITED,
        );
    }
}

/// The program as a file that every sandbox shares, or, where files cannot be executed, in memory.
fn program(directory: &Path) -> io::Result<Program> {
    let path = directory.join(format!("guest-{PROGRAM_HASH}"));
    if !is_whole(&path) {
        fs::create_dir_all(directory)?;
        let aside = directory.join(format!(".making-{}", std::process::id()));
        fs::write(&aside, PROGRAM)?;
        fs::set_permissions(&aside, Permissions::from_mode(0o755))?;
        fs::rename(&aside, &path)?;
    }
    let flags = rustix::fs::statvfs(&path)?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return sealed(PROGRAM).map(Program::Open);
    }
    Ok(Program::File(path))
}

/// Nothing half-written is ever executed, even if the disk was full once.
fn is_whole(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == PROGRAM.len() as u64)
}

/// The program in memory that nobody can change, not even through /proc/1/exe.
fn sealed(program: &[u8]) -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("msb-guest", flags)?;
    let mut file = File::from(fd);
    file.write_all(program)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}
