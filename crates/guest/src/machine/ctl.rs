//! The way from inside a machine to children of its own: the socket that programs know, and for
//! each connection there one to the worker, which joins it with whoever answers.
//!
//! A process of its own does that, beside the guest and with nothing of it: whoever is inside can
//! end or even take over this process, and gains no more than the socket gives everybody.

use super::{PACKET, dial, root};
use crate::files::{Doing, Done};
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

/// The program, where the boot disk has it.
const ON_DISK: &str = "/ctl";
/// As many as are answered outside, and some that wait.
const MOST: usize = 16;
/// Enough for a loop that copies.
const STACK: usize = 64 << 10;
/// Before another connection is taken where there was none to give.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes hold of the program while the boot disk is the root.
pub(super) fn take() -> Done<OwnedFd> {
    root::take(ON_DISK)
}

/// Shows the program and the socket, and has a process take connections there.
pub(super) fn furnish(
    inside: &RootDir,
    program: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
) -> Done<()> {
    let target = root::make_mount_point(inside, ctl::PROGRAM, true)?;
    target.cover_with(program.as_fd()).doing("mount at", Path::new(ctl::PROGRAM))?;
    let place = Path::new(ctl::SOCKET);
    let (Some(above), Some(name)) = (place.parent(), place.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into()).doing("listen at", place);
    };
    // An address of a socket is a path: it is bound from the directory, where it is one name.
    inside.make_directories(above).and_then(|above| above.enter()).doing("enter", above)?;
    // One of a life before, or of the image.
    let _ = fs::remove_file(name);
    let listener = UnixListener::bind(name).doing("listen at", place)?;
    rustix::fs::chmod(name, Mode::from_raw_mode(0o666))
        .map_err(io::Error::from)
        .doing("open", place)?;
    std::env::set_current_dir("/").doing("enter", Path::new("/"))?;
    let listener = OwnedFd::from(listener);
    if let Fork::Child = msb_sys::process::fork_into(0, group).doing("serve", place)? {
        // Nothing that owns a descriptor is dropped from here on.
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
    // A message is a place for a connection.
    let (give_back, places) = mpsc::channel();
    for _ in 0..MOST {
        let _ = give_back.send(());
    }
    while places.recv().is_ok() {
        let place = Place(give_back.clone());
        match listener.accept() {
            Ok((stream, _)) => {
                let pass = move || {
                    let _place = place;
                    let _ = pass_on(&stream);
                };
                let _ = thread::Builder::new().stack_size(STACK).spawn(pass);
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// A place that is given back.
struct Place(mpsc::Sender<()>);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Joins a connection with one to the host, until either side has gone.
fn pass_on(client: &UnixStream) -> io::Result<()> {
    let host = dial()?;
    let up = PollFlags::OUT;
    poll(&mut [PollFd::new(&host, up)], None)?;
    rustix::net::sockopt::socket_error(&host)??;
    rustix::io::ioctl_fionbio(&host, false)?;
    // As any socket: only its reads and writes are used.
    let host = UnixStream::from(host);
    let mut hello = header(FrameKind::Hello, CTL_HELLO.len()).to_vec();
    hello.extend_from_slice(CTL_HELLO);
    (&host).write_all(&hello)?;
    // Nothing is sent before somebody is there who reads it as what it is.
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
        // Who has said all that it wants still listens; who hangs up does not.
        if happened[0].contains(PollFlags::IN) && !copy(client, &host, &mut buffer)? {
            return wait_for_answer(client, &host, &mut buffer);
        }
        if happened[0].intersects(PollFlags::HUP | PollFlags::ERR) {
            return host.shutdown(Shutdown::Both);
        }
    }
}

/// The client says no more, which ends its line: what comes is passed on until it hangs up or the host does.
fn wait_for_answer(
    client: &UnixStream,
    mut host: &UnixStream,
    buffer: &mut [u8],
) -> io::Result<()> {
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

/// What one says goes to the other; false at its end.
fn copy(mut from: &UnixStream, mut to: &UnixStream, buffer: &mut [u8]) -> io::Result<bool> {
    let length = from.read(buffer)?;
    to.write_all(&buffer[..length])?;
    Ok(length > 0)
}
