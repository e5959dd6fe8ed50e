//! Streams into the sandbox: SFTP, connections and listeners. Each runs in a child process that
//! switches to the requested user first. A `Link` frame reports the result, and the bytes after it
//! are the stream.

mod dial;
mod listen;
mod relay;
mod resolver;

use crate::sftp;
use crate::users::{self, UserError};
use crate::vm::PACKET;
pub(crate) use listen::Listeners;
use msb_spec::UserRef;
use msb_sys::process::Fork;
use msb_wire::{FrameKind, LinkFailure, LinkReply, Target, encode};
use relay::{HostFraming, relay};
use rustix::fs::Mode;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The user of a stream inside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamUser<'a> {
    /// The user; none is root.
    pub(crate) name: Option<&'a UserRef>,
    /// Whether it gets no capabilities, as commands here.
    pub(crate) drop_caps: bool,
}

/// What a stream is for.
#[derive(Debug)]
pub(crate) enum StreamKind {
    /// The SFTP server runs on it.
    Sftp,
    /// It is connected to a listening socket inside.
    Dial(Target),
    /// It reports accepted connections, which are relayed over connections that arrive on the
    /// descriptor.
    Listen(Target, OwnedFd),
    /// It was refused with this failure.
    Refused(LinkFailure),
}

/// Why there is no stream, with the errno or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LinkError {
    failure: LinkFailure,
    errno: i32,
}

impl LinkError {
    fn new(failure: LinkFailure) -> Self {
        Self { failure, errno: 0 }
    }
}

/// Serves a stream on the last of these descriptors in a child, and returns its pid. The child
/// holds the others until it exits, which the worker notices.
pub(crate) fn fork_server(
    user: StreamUser<'_>,
    kind: &StreamKind,
    mut fds: Vec<OwnedFd>,
) -> Option<i32> {
    let socket = fds.pop()?;
    let child = msb_sys::process::fork_child().ok()?;
    if child.is_none() {
        run_child(user, kind, socket.as_fd(), &fds, HostFraming::Plain);
    }
    child
}

/// Serves a stream in a microVM. The child must not close the connection first. It is created in
/// `group`, which has no pids limit.
pub(crate) fn fork_vm_server(
    user: StreamUser<'_>,
    kind: &StreamKind,
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if let Fork::Child = msb_sys::process::fork_into(0, group)? {
        run_child(user, kind, socket.as_fd(), &[], HostFraming::Framed(PACKET));
    }
    Ok(())
}

/// Runs in the child, which may last for days and holds no other descriptors. Values that own a
/// descriptor must not be dropped from here on.
fn run_child(
    user: StreamUser<'_>,
    kind: &StreamKind,
    socket: BorrowedFd<'_>,
    others: &[OwnedFd],
    framing: HostFraming,
) -> ! {
    let mut kept = vec![socket];
    kept.extend(others.iter().map(AsFd::as_fd));
    if let StreamKind::Listen(_, accepts) = kind {
        kept.push(accepts.as_fd());
    }
    if msb_sys::process::close_others(&kept).is_ok() {
        answer(user, kind, socket, framing);
        wait_closed(socket, framing);
    }
    msb_sys::process::leave(0);
}

/// Waits until the host closes a vsock connection: the VMM drops buffered bytes if we close first.
fn wait_closed(socket: BorrowedFd<'_>, framing: HostFraming) {
    if framing != HostFraming::Plain && rustix::io::ioctl_fionbio(socket, false).is_ok() {
        let mut buffer = [0; 4096];
        while rustix::io::read(socket, &mut buffer).is_ok_and(|n| n > 0) {}
    }
}

/// Switches to the user, reports whether there is a stream, and serves it.
fn answer(user: StreamUser<'_>, kind: &StreamKind, socket: BorrowedFd<'_>, framing: HostFraming) {
    msb_sys::signal::reset();
    msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let failed = |none: LinkError| {
        send_reply(socket, &LinkReply::Failed { failure: none.failure, errno: none.errno });
    };
    let home = match become_user(user) {
        Ok(home) => home,
        Err(none) => return failed(none),
    };
    match kind {
        StreamKind::Sftp => {
            msb_sys::process::set_name(c"sftp-server");
            send_reply(socket, &LinkReply::Open);
            let max_write = match framing {
                HostFraming::Plain => usize::MAX,
                HostFraming::Framed(max_write) => max_write,
            };
            sftp::serve(socket, max_write, home);
        }
        StreamKind::Dial(to) => {
            msb_sys::process::set_name(c"msb-dial");
            match dial::dial(to) {
                Ok(peer) => {
                    send_reply(socket, &LinkReply::Open);
                    let _ = relay(socket, framing, peer.as_fd());
                }
                Err(none) => failed(none),
            }
        }
        StreamKind::Listen(at, accepts) => {
            msb_sys::process::set_name(c"msb-listen");
            listen::listen(socket, accepts.as_fd(), framing, at);
        }
        StreamKind::Refused(failure) => failed(LinkError::new(*failure)),
    }
}

/// Switches to the user and changes to its home. Returns the home, or `/`.
fn become_user(user: StreamUser<'_>) -> Result<PathBuf, LinkError> {
    let found = user.name.filter(|user| !user.is_root()).map(users::find);
    let found = found.transpose().map_err(|none| match none {
        UserError::Unknown => LinkError::new(LinkFailure::User),
        UserError::OnlyRoot => LinkError::new(LinkFailure::OnlyRoot),
    })?;
    let home = found.as_ref().map(|found| found.home.clone());
    let home = home.unwrap_or_else(|| users::RootHome::default().get());
    let identity = found.as_ref().map(|found| &found.identity);
    let switched = match user.drop_caps {
        true => msb_sys::process::drop_privileges(identity),
        false => identity.map_or(Ok(()), msb_sys::process::become_user),
    };
    switched.map_err(|error| LinkError {
        failure: LinkFailure::System,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })?;
    let home = [Path::new(&home), Path::new("/")]
        .into_iter()
        .find(|dir| std::env::set_current_dir(dir).is_ok());
    Ok(home.unwrap_or(Path::new("/")).to_owned())
}

/// A failure means that the other end is closed, which the next read reports.
fn send_reply(socket: BorrowedFd<'_>, reply: &LinkReply) {
    let _ = msb_sys::socket::send_all(socket, &encode(FrameKind::Link, reply), &[]);
}
