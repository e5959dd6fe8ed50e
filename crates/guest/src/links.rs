//! Streams that lead into the sandbox, each in a process of its own that becomes the asking user
//! first, as for files. One frame says whether there is a stream; what follows it is the stream.

mod dial;
mod join;
mod listen;
mod names;

use crate::machine::PACKET;
use crate::sftp;
use crate::users::{self, NoUser};
use join::{Spoken, join};
pub(crate) use listen::Listeners;
use msb_spec::UserRef;
use msb_sys::process::Fork;
use msb_wire::{FrameKind, LinkFailure, LinkReply, Target, encode};
use rustix::fs::Mode;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Who is at a stream's end inside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Who<'a> {
    /// None is root.
    pub(crate) user: Option<&'a UserRef>,
    /// Without any capability, as commands are here.
    pub(crate) powerless: bool,
}

/// What a stream is to be.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// SFTP is spoken on it.
    Sftp,
    /// It leads to something that listens.
    Dial(Target),
    /// It tells of those who connect there. They are joined with what comes on the other end.
    Listen(Target, OwnedFd),
    /// Nothing: it was refused.
    Refused(LinkFailure),
}

/// Why there is none, and what the kernel said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NoLink {
    failure: LinkFailure,
    errno: i32,
}

impl NoLink {
    fn new(failure: LinkFailure) -> Self {
        Self { failure, errno: 0 }
    }
}

/// Serves a stream on the last of these descriptors in a child, whose pid is returned. The child
/// keeps the others open: the worker sees by them when it has ended.
pub(crate) fn serve_apart(who: Who<'_>, wanted: &Wanted, mut fds: Vec<OwnedFd>) -> Option<i32> {
    let socket = fds.pop()?;
    let child = msb_sys::process::fork_child().ok()?;
    if child.is_none() {
        in_child(who, wanted, socket.as_fd(), &fds, Spoken::Plain);
    }
    child
}

/// The same for the guest of a machine, on a connection that must not be closed first. The child
/// is made in `group`, where no limit holds.
pub(crate) fn serve_aside(
    who: Who<'_>,
    wanted: &Wanted,
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if let Fork::Child = msb_sys::process::fork_into(0, group)? {
        in_child(who, wanted, socket.as_fd(), &[], Spoken::Framed(PACKET));
    }
    Ok(())
}

/// It may last for days, and keeps nothing else open. Nothing that owns a descriptor is dropped from here
/// on.
fn in_child(
    who: Who<'_>,
    wanted: &Wanted,
    socket: BorrowedFd<'_>,
    others: &[OwnedFd],
    spoken: Spoken,
) -> ! {
    let mut kept = vec![socket];
    kept.extend(others.iter().map(AsFd::as_fd));
    if let Wanted::Listen(_, orders) = wanted {
        kept.push(orders.as_fd());
    }
    if msb_sys::process::close_others(&kept).is_ok() {
        answer(who, wanted, socket, spoken);
        wait_closed(socket, spoken);
    }
    msb_sys::process::leave(0);
}

/// The machine between us and the host drops what it has not passed on when we close first.
fn wait_closed(socket: BorrowedFd<'_>, spoken: Spoken) {
    if spoken != Spoken::Plain && rustix::io::ioctl_fionbio(socket, false).is_ok() {
        let mut buffer = [0; 4096];
        while rustix::io::read(socket, &mut buffer).is_ok_and(|n| n > 0) {}
    }
}

/// Becomes the user, says whether there is a stream, and is its other end.
fn answer(who: Who<'_>, wanted: &Wanted, socket: BorrowedFd<'_>, spoken: Spoken) {
    msb_sys::signal::reset();
    msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let failed = |none: NoLink| {
        tell(socket, &LinkReply::Failed { failure: none.failure, errno: none.errno });
    };
    let home = match become_user(who) {
        Ok(home) => home,
        Err(none) => return failed(none),
    };
    match wanted {
        Wanted::Sftp => {
            msb_sys::process::set_name(c"sftp-server");
            tell(socket, &LinkReply::Open);
            let most = match spoken {
                Spoken::Plain => usize::MAX,
                Spoken::Framed(most) => most,
            };
            sftp::serve(socket, most, home);
        }
        Wanted::Dial(to) => {
            msb_sys::process::set_name(c"msb-dial");
            match dial::dial(to) {
                Ok(peer) => {
                    tell(socket, &LinkReply::Open);
                    let _ = join(socket, spoken, peer.as_fd());
                }
                Err(none) => failed(none),
            }
        }
        Wanted::Listen(at, orders) => {
            msb_sys::process::set_name(c"msb-listen");
            listen::listen(socket, orders.as_fd(), spoken, at);
        }
        Wanted::Refused(failure) => failed(NoLink::new(*failure)),
    }
}

/// Becomes the user and goes to its home. Returns that, or `/` where there is none.
fn become_user(who: Who<'_>) -> Result<PathBuf, NoLink> {
    let found = who.user.filter(|user| !user.is_root()).map(users::find);
    let found = found.transpose().map_err(|none| match none {
        NoUser::Unknown => NoLink::new(LinkFailure::User),
        NoUser::OnlyRoot => NoLink::new(LinkFailure::OnlyRoot),
    })?;
    let home = found.as_ref().map(|found| found.home.clone());
    let home = home.unwrap_or_else(|| users::Homes::default().of_root());
    let identity = found.as_ref().map(|found| &found.identity);
    let become_it = match who.powerless {
        true => msb_sys::process::become_powerless(identity),
        false => identity.map_or(Ok(()), msb_sys::process::become_user),
    };
    become_it.map_err(|error| NoLink {
        failure: LinkFailure::System,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })?;
    let home = [Path::new(&home), Path::new("/")]
        .into_iter()
        .find(|place| std::env::set_current_dir(place).is_ok());
    Ok(home.unwrap_or(Path::new("/")).to_owned())
}

/// If the other side cannot hear, it is gone, and the next read ends us.
fn tell(socket: BorrowedFd<'_>, reply: &LinkReply) {
    let _ = msb_sys::socket::send_all(socket, &encode(FrameKind::Link, reply), &[]);
}
