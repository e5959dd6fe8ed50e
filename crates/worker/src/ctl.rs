//! Access to `sandbox-ctl` for a sandbox with a spawn policy, which may request children.
//!
//! On the `process` tier the program and the socket of the ctl process are mounted. A microVM has
//! the program on its boot disk; its vsock connections are relayed to the same socket.

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
/// A file name for the program, derived from its content.
const NAME: &str = include_str!(concat!(env!("OUT_DIR"), "/ctl.name"));

/// Adds the mounts of `sandbox-ctl` to a Plan that has a spawn policy.
pub(crate) fn with_ctl_mounts<'a>(plan: &'a Plan, directory: &Path) -> Result<Cow<'a, Plan>> {
    if plan.spawn.is_none() {
        return Ok(Cow::Borrowed(plan));
    }
    let mut plan = plan.clone();
    let about = |error: io::Error| Error::host("cannot mount sandbox-ctl", error).at(Stage::Boot);
    // Mount sources are opened without following symlinks, and the state directory may be behind
    // one.
    let directory = directory.canonicalize().map_err(about)?;
    let program_file = program_file(&directory).map_err(about)?;
    let mount = |host: PathBuf, guest: &str, read_only: bool| PlannedMount {
        host,
        guest: guest.to_owned(),
        read_only,
        no_exec: false,
        file: true,
        volume: None,
    };
    plan.mounts.push(mount(program_file, ctl::PROGRAM, true));
    plan.mounts.push(mount(directory.join(state::CTL), ctl::SOCKET, false));
    Ok(Cow::Owned(plan))
}

/// Path of the program on the host. The file is written once for all sandboxes.
fn program_file(directory: &Path) -> io::Result<PathBuf> {
    let home = directory.parent().and_then(Path::parent).unwrap_or(directory);
    let guest_dir = home.join("guest");
    let path = guest_dir.join(format!("{NAME}.ctl"));
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&guest_dir)?;
    let temporary = guest_dir.join(format!(".ctl-{}", std::process::id()));
    fs::write(&temporary, PROGRAM)?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o555))?;
    fs::rename(&temporary, &path)?;
    Ok(path)
}

/// Connects a microVM's worker to the ctl process. This happens before the worker is confined,
/// because it may not connect afterwards; each connection of the guest is passed over this one.
pub(crate) fn connect(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    // The path may be longer than the 108 bytes of a socket address.
    let path = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), state::CTL);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Opens a connection to the ctl process by sending it one end of a socket pair. Fails if its queue
/// is full, because the worker never blocks.
pub(crate) fn open(ctl_process: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = msb_sys::socket::pair()?;
    msb_sys::socket::send_all(ctl_process, b"+", &[theirs.as_fd()])?;
    Ok(ours)
}
