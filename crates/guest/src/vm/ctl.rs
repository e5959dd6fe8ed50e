//! `sandbox-ctl` in a microVM: a Unix socket inside, with a vsock connection to the worker for each
//! client.
//!
//! A separate process relays these, with no descriptor of the guest. A compromised relay has only
//! what the socket gives every process inside.

use super::{PACKET, dial, rootfs};
use crate::files::{FileResult, WithContext};
use msb_spec::ctl;
use msb_sys::process::Fork;
use msb_sys::root_dir::RootDir;
use msb_wire::{CTL_HELLO, FrameKind, header};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Path of the program on the boot disk.
const ON_DISK: &str = "/ctl";
/// Connections at once: as many as are served outside, and a few that wait.
const MAX_CONNECTIONS: usize = 16;
/// Stack of a relay thread, in bytes.
const STACK: usize = 64 << 10;
/// Delay after a failed accept.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Clones the mount of the program while the boot disk is the root.
pub(super) fn open_program() -> FileResult<OwnedFd> {
    rootfs::clone_tree(ON_DISK)
}

/// Mounts the program, creates the socket, and forks the relay process.
pub(super) fn serve(
    inside: &RootDir,
    program: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
) -> FileResult<()> {
    let target = rootfs::make_mount_point(inside, ctl::PROGRAM, true)?;
    target.cover_with(program.as_fd()).doing("mount at", Path::new(ctl::PROGRAM))?;
    let path = Path::new(ctl::SOCKET);
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into()).doing("listen at", path);
    };
    // Bound relative to its directory, because a socket address is a path that the image could
    // redirect.
    inside.make_directories(above).and_then(|above| above.enter()).doing("enter", above)?;
    // Left from an earlier run, or part of the image.
    let _ = fs::remove_file(name);
    let listener = UnixListener::bind(name).doing("listen at", path)?;
    rustix::fs::chmod(name, Mode::from_raw_mode(0o666))
        .map_err(io::Error::from)
        .doing("open", path)?;
    std::env::set_current_dir("/").doing("enter", Path::new("/"))?;
    let listener = OwnedFd::from(listener);
    if let Fork::Child = msb_sys::process::fork_into(0, group).doing("serve", path)? {
        // Values that own a descriptor must not be dropped from here on.
        if let Ok(listener) = msb_sys::process::keep_only(listener.as_fd()) {
            msb_sys::signal::reset();
            msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
            msb_sys::process::set_name(c"sandbox-ctl");
            accept(&UnixListener::from(listener));
        }
        msb_sys::process::leave(0);
    }
    Ok(())
}

fn accept(listener: &UnixListener) {
    // Each message is a permit for one connection.
    let (release, permits) = mpsc::channel();
    for _ in 0..MAX_CONNECTIONS {
        let _ = release.send(());
    }
    while permits.recv().is_ok() {
        let permit = ConnPermit(release.clone());
        match listener.accept() {
            Ok((stream, _)) => {
                let pass = move || {
                    let _permit = permit;
                    let _ = relay(&stream);
                };
                let _ = thread::Builder::new().stack_size(STACK).spawn(pass);
            }
            Err(_) => thread::sleep(RETRY_DELAY),
        }
    }
}

/// A permit for one connection, returned on drop.
struct ConnPermit(mpsc::Sender<()>);

impl Drop for ConnPermit {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Relays a connection to the worker, until either side closes.
fn relay(client: &UnixStream) -> io::Result<()> {
    let host = dial()?;
    let up = PollFlags::OUT;
    poll(&mut [PollFd::new(&host, up)], None)?;
    rustix::net::sockopt::socket_error(&host)??;
    rustix::io::ioctl_fionbio(&host, false)?;
    // A vsock socket; only read and write are used.
    let host = UnixStream::from(host);
    let mut hello = header(FrameKind::Hello, CTL_HELLO.len()).to_vec();
    hello.extend_from_slice(CTL_HELLO);
    (&host).write_all(&hello)?;
    // Waits until the ctl process is connected, before anything is sent.
    (&host).read_exact(&mut [0])?;
    let mut buffer = vec![0; PACKET];
    loop {
        let mut waits = [PollFd::new(client, PollFlags::IN), PollFd::new(&host, PollFlags::IN)];
        match poll(&mut waits, None) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let happened = waits.map(|wait| wait.revents());
        if !happened[1].is_empty() && !copy(&host, client, &mut buffer)? {
            return Ok(());
        }
        // A half-closed client still reads; a closed one does not.
        if happened[0].contains(PollFlags::IN) && !copy(client, &host, &mut buffer)? {
            return relay_reply(client, &host, &mut buffer);
        }
        if happened[0].intersects(PollFlags::HUP | PollFlags::ERR) {
            return host.shutdown(Shutdown::Both);
        }
    }
}

/// The client has ended its request: completes the line, and relays the reply until either side
/// closes.
fn relay_reply(client: &UnixStream, mut host: &UnixStream, buffer: &mut [u8]) -> io::Result<()> {
    host.write_all(b"\n")?;
    loop {
        let mut waits = [PollFd::new(client, PollFlags::empty()), PollFd::new(host, PollFlags::IN)];
        match poll(&mut waits, None) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let happened = waits.map(|wait| wait.revents());
        if !happened[1].is_empty() && !copy(host, client, buffer)? || !happened[0].is_empty() {
            return Ok(());
        }
    }
}

/// Copies what is available; false at the end.
fn copy(mut from: &UnixStream, mut to: &UnixStream, buffer: &mut [u8]) -> io::Result<bool> {
    let length = from.read(buffer)?;
    to.write_all(&buffer[..length])?;
    Ok(length > 0)
}
