//! What a sandbox with a spawn policy is shown, to ask for children with.
//!
//! On the `process` tier these are mounts: the program, and the socket at which a process outside
//! answers. A microVM has the program on its boot disk and opens connections, which end there too.

use msb_spec::{Error, Plan, PlannedMount, Result, Stage, ctl, state};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::borrow::Cow;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-ctl"));
/// A name for its file which no other content has.
const NAME: &str = include_str!(concat!(env!("OUT_DIR"), "/ctl.name"));

/// The Plan with what is shown; the same if there is nothing.
pub(crate) fn shown<'a>(plan: &'a Plan, directory: &Path) -> Result<Cow<'a, Plan>> {
    if plan.spawn.is_none() {
        return Ok(Cow::Borrowed(plan));
    }
    let mut plan = plan.clone();
    let about =
        |error: io::Error| Error::host("cannot show the way to children", error).at(Stage::Boot);
    // Mounts are found by paths without links; the state directory may lie behind one.
    let directory = directory.canonicalize().map_err(about)?;
    let program = program(&directory).map_err(about)?;
    let mount = |host: PathBuf, guest: &str, read_only: bool| PlannedMount {
        host,
        guest: guest.to_owned(),
        read_only,
        file: true,
        volume: None,
    };
    plan.mounts.push(mount(program, ctl::PROGRAM, true));
    plan.mounts.push(mount(directory.join(state::CTL), ctl::SOCKET, false));
    Ok(Cow::Owned(plan))
}

/// The program in a file, written once for all sandboxes.
fn program(directory: &Path) -> io::Result<PathBuf> {
    let home = directory.parent().and_then(Path::parent).unwrap_or(directory);
    let place = home.join("guest");
    let path = place.join(format!("{NAME}.ctl"));
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&place)?;
    let aside = place.join(format!(".ctl-{}", std::process::id()));
    fs::write(&aside, PROGRAM)?;
    fs::set_permissions(&aside, Permissions::from_mode(0o555))?;
    fs::rename(&aside, &path)?;
    Ok(path)
}

/// The connection of a machine's worker to the process that answers. It is made before the worker is
/// confined, which then has no right to connect; each connection from inside goes over it.
pub(crate) fn connect(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    // Its path may be longer than an address can be.
    let path = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), state::CTL);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// One more connection with the process that answers; it is given the other end. Where too many wait
/// already this fails: the worker never waits.
pub(crate) fn open(answers: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = msb_sys::socket::pair()?;
    msb_sys::socket::send_all(answers, b"+", &[theirs.as_fd()])?;
    Ok(ours)
}
