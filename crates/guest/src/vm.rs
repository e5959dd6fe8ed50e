//! PID 1 of a microVM: sets up the sandbox that its worker describes, and serves it.
//!
//! The kernel has mounted the boot disk, with this program and a few empty directories, and
//! devtmpfs on /dev. Everything else comes with the boot message. Later processes are as hostile to
//! the guest as to the host: they can end the microVM, but not act as the guest.

mod control_conn;
mod ctl;
mod event_loop;
mod exec_conn;
mod layer_export;
mod network;
mod rootfs;
mod tar_writer;
#[cfg(test)]
mod tests;
mod usage;

use crate::files::{FileResult, WithContext};
use crate::init::{InitProcess, PendingInit, become_init};
use control_conn::ControlConn;
use event_loop::{EventLoop, VmEnv};
use layer_export::OverlayChanges;
use msb_spec::{Rlimit, RlimitName};
use msb_sys::machine;
use msb_sys::signal::{SIGCHLD, SIGKILL, Signals};
use msb_wire::{Boot, FromMachine, Hit, MACHINE_PORT, MachineUsage};
use rootfs::{KernelFs, RootBuild};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::DumpableBehavior;
use rustix::time::{ClockId, Timespec};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use usage::VmMeter;

/// Soft and hard limit of open files for a command, as in systemd. The guest needs four for each
/// Exec.
const SOFT_FILES: u64 = 1024;
const HARD_FILES: u64 = 524_288;
/// A clock within this many nanoseconds was set by the microVM itself, and more exactly.
const CLOCK_TOLERANCE: u64 = 500_000_000;
/// Long enough for the worker to read why the boot has failed.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
const CGROUPS: &str = "/sys/fs/cgroup";
/// Cgroup of commands, beside an init that owns the rest.
const COMMANDS_CGROUP: &str = "msb";
/// Bytes in one write to the worker. From about 32 KiB newer kernels split a packet over several
/// buffers; the VMM takes one buffer and drops the packet.
pub(crate) const PACKET: usize = 28 << 10;

/// Runs as PID 1 until the sandbox has ended, then powers the microVM off.
pub fn run() -> ! {
    let ended = ControlConn::connect(dial).map_or(VmEnd::default(), serve_vm);
    if !ended.ephemeral || !ended.disks.is_empty() {
        let _ = msb_sys::signal::send(-1, SIGKILL);
        let writable = ended.writable.iter().filter(|_| !ended.ephemeral);
        let lasting: Vec<&OwnedFd> = writable.chain(&ended.disks).collect();
        if !ended.ephemeral {
            rustix::fs::sync();
        }
        // FIFREEZE syncs them and leaves their journals empty.
        for disk in lasting {
            let _ = machine::freeze(disk.as_fd());
        }
    }
    loop {
        // The kernel is configured to restart in a way that ends the microVM.
        let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
        std::thread::sleep(CLOSE_LIMIT);
    }
}

/// Writes a line to the console, where the worker finds it.
fn log_to_console(word: &str) {
    let _ = std::fs::write("/dev/kmsg", format!("<0>msb-guest: {word}"));
}

/// What must be synced at the end of a sandbox.
#[derive(Default)]
struct VmEnd {
    writable: Option<OwnedFd>,
    /// Volumes that were written.
    disks: Vec<OwnedFd>,
    ephemeral: bool,
}

fn dial() -> io::Result<OwnedFd> {
    machine::connect(machine::HOST, MACHINE_PORT)
}

/// Serves the sandbox from the boot message to its end.
fn serve_vm(mut control: ControlConn) -> VmEnd {
    // Done while the connection is made.
    let prepared = prepare();
    let Ok(boot) = control.boot() else { return VmEnd::default() };
    let (kernel, signals) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return fail(&mut control, failure, boot.ephemeral),
    };
    let ephemeral = boot.ephemeral;
    let mut state = VmState::default();
    let mut event_loop = EventLoop::new(&mut state, control, signals, boot.restricted, &boot.token);
    match set_up(&boot, &kernel) {
        Ok(set_up) => *event_loop.env() = set_up,
        Err(failure) => return fail(event_loop.control(), failure, ephemeral),
    }
    drop((boot, kernel));
    event_loop.control().send(&FromMachine::Ready);
    // The loop has ended; the console gets the reason if it is not expected.
    if event_loop.run() == event_loop::LoopEnd::WorkerGone {
        log_to_console("the worker has closed the control connection");
    }
    VmEnd { writable: state.writable, disks: state.disks, ephemeral }
}

fn fail(control: &mut ControlConn, failure: crate::files::FileError, ephemeral: bool) -> VmEnd {
    let errno = failure.error.raw_os_error().unwrap_or(libc::EIO);
    control.send(&FromMachine::Failed { doing: failure.doing, errno });
    // Unread bytes are lost when the microVM ends.
    control.wait_closed(CLOSE_LIMIT);
    VmEnd { ephemeral, ..VmEnd::default() }
}

/// Sets up what is the same for every sandbox.
fn prepare() -> FileResult<(KernelFs, Signals)> {
    let about = Path::new("the guest");
    msb_sys::process::set_name(c"msb-guest");
    // Processes without all capabilities must not read our memory or descriptors through /proc.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(io::Error::from)
        .doing("make undumpable", about)?;
    msb_sys::process::set_rlimit(libc::RLIMIT_NOFILE, HARD_FILES, HARD_FILES)
        .doing("raise the limit of", about)?;
    let signals = Signals::collect(&[SIGCHLD]).doing("collect signals of", about)?;
    msb_sys::net::raise_loopback().doing("raise", Path::new("lo"))?;
    Ok((KernelFs::mount()?, signals))
}

/// Sets up this sandbox, in order.
fn set_up(boot: &Boot, kernel: &KernelFs) -> FileResult<VmState> {
    if boot.version != msb_wire::VERSION {
        let other = io::ErrorKind::InvalidData.into();
        return Err(other).doing("boot for", Path::new("a worker of another version"));
    }
    set_clock(boot.time_ns).doing("set", Path::new("the clock"))?;
    seed(&boot.seed)?;
    let host = boot.hostname.as_str();
    rustix::system::sethostname(host.as_bytes())
        .map_err(io::Error::from)
        .doing("set the host name", Path::new(host))?;
    let writable = match rootfs::build(&boot.root, &boot.written, boot.ephemeral)? {
        RootBuild::Root(writable) => Some(writable),
        // No command ever runs here, so nothing else is needed.
        RootBuild::OverlayChanges(written) => {
            return Ok(VmState { written: Some(written), ..VmState::default() });
        }
    };
    let trees = rootfs::open_mounts(&boot.mounts)?;
    let disks = rootfs::writable_disks(&boot.mounts)?;
    let ctl = boot.ctl.then(ctl::open_program).transpose()?;
    // Before the pivot: afterwards the image controls paths.
    let (group, pids_events) = enter_cgroup(boot.pids, boot.init)?;
    let inside = rootfs::enter(kernel)?;
    rootfs::mount_all(&inside, &boot.tmpfs, &boot.mounts, &trees)?;
    if let Some(given) = &boot.network {
        network::set_up()?;
        network::bind_etc_files(&inside, given, host)?;
    }
    if let Some(program) = &ctl {
        ctl::serve(&inside, program, group.as_ref().map(AsFd::as_fd))?;
    }
    if boot.restricted {
        rustix::thread::set_no_new_privs(true)
            .map_err(io::Error::from)
            .doing("set", Path::new("no_new_privs"))?;
    }
    let init = boot.init.then(|| fork_init(kernel)).transpose()?;
    let again = |fd: &OwnedFd| fd.try_clone().doing("open", Path::new("the writable disk"));
    let measured = writable.as_ref().map(again).transpose()?;
    let meter = Some(VmMeter::new(kernel.proc()?, measured, pids_events)?);
    Ok(VmState { meter, writable, disks, group, init, written: None })
}

fn set_clock(time_ns: u64) -> io::Result<()> {
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    let now_ns = (now.tv_sec as u64).saturating_mul(1_000_000_000) + now.tv_nsec as u64;
    if now_ns.abs_diff(time_ns) <= CLOCK_TOLERANCE {
        return Ok(());
    }
    let time = Timespec {
        tv_sec: (time_ns / 1_000_000_000) as _,
        tv_nsec: (time_ns % 1_000_000_000) as _,
    };
    Ok(rustix::time::clock_settime(ClockId::Realtime, time)?)
}

fn seed(bytes: &[u8; 32]) -> FileResult<()> {
    let path = Path::new("/dev/urandom");
    let device = File::options().write(true).open(path).doing("open", path)?;
    machine::add_entropy(device.as_fd(), bytes).doing("seed", path)
}

/// Mounts cgroups, and enters one with this limit of processes and threads. Returns the previous
/// cgroup and the open `pids.events`.
///
/// With an init, that cgroup is the init's, except for one of our own below it.
fn enter_cgroup(pids: Option<u32>, init: bool) -> FileResult<(Option<OwnedFd>, Option<File>)> {
    // With this option, which older kernels lack, entering a cgroup does not wait for all CPUs.
    let show = || {
        let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rootfs::mount("cgroup2", CGROUPS, "cgroup2", quiet, "favordynmods")
            .or_else(|_| rootfs::mount("cgroup2", CGROUPS, "cgroup2", quiet, ""))
    };
    if pids.is_none() && !init {
        // The kernel may lack cgroups.
        let _ = show();
        return Ok((None, None));
    }
    show()?;
    let sandbox = format!("{CGROUPS}/sandbox");
    let write =
        |path: String, text: String| std::fs::write(&path, text).doing("write", Path::new(&path));
    write(format!("{CGROUPS}/cgroup.subtree_control"), "+pids".to_owned())?;
    if init {
        // Controllers for an init that manages services; as many as the kernel has.
        for controller in ["+cpu", "+memory", "+io"] {
            let _ = write(format!("{CGROUPS}/cgroup.subtree_control"), controller.to_owned());
        }
    }
    rootfs::make_dir(&sandbox)?;
    if let Some(pids) = pids {
        // The guest is in it too, so that commands are limited from their start.
        write(format!("{sandbox}/pids.max"), u64::from(pids).saturating_add(1).to_string())?;
    }
    write(format!("{sandbox}/cgroup.procs"), "0".to_owned())?;
    let events = format!("{sandbox}/pids.events");
    let events = File::open(&events).doing("open", Path::new(&events))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let outside = rustix::fs::open(CGROUPS, flags, Mode::empty())
        .map_err(io::Error::from)
        .doing("open", Path::new(CGROUPS))?;
    // From now on it is the root of the visible cgroups.
    let about = Path::new(CGROUPS);
    msb_sys::process::unshare(msb_sys::process::CGROUP_NAMESPACE)
        .doing("create the cgroup namespace of", about)?;
    rustix::mount::unmount(CGROUPS, UnmountFlags::DETACH)
        .map_err(io::Error::from)
        .doing("unmount", about)?;
    show()?;
    Ok((Some(outside), Some(events)))
}

/// Forks the future PID 1 of a nested pid namespace, with its own /proc. Later children are created
/// in that namespace. The guest moves to a cgroup of its own, because an inner cgroup that enables
/// controllers may not contain processes.
fn fork_init(kernel: &KernelFs) -> FileResult<InitProcess> {
    let about = Path::new("the init");
    let proc = kernel.proc()?;
    let (ours, theirs) = msb_sys::socket::pair().doing("reach", about)?;
    msb_sys::process::unshare(msb_sys::process::PID_NAMESPACE)
        .doing("create the pid namespace of", about)?;
    let Some(pid) = msb_sys::process::fork_child().doing("create the pid namespace of", about)?
    else {
        let console = rootfs::remount_proc().ok().and_then(|()| {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open("/dev/console", flags, Mode::empty()).ok()
        });
        // Values that own a descriptor must not be dropped from here on.
        let kept = console.and_then(|console| {
            msb_sys::process::keep_these([theirs.as_fd(), console.as_fd()]).ok()
        });
        let code = kept.map_or(125, |[start_pipe, console]| become_init(start_pipe, &console));
        msb_sys::process::leave(code);
    };
    let cgroup = format!("{CGROUPS}/{COMMANDS_CGROUP}");
    rootfs::make_dir(&cgroup)?;
    let tasks = format!("{cgroup}/cgroup.procs");
    std::fs::write(&tasks, "0").doing("enter", Path::new(&tasks))?;
    Ok(InitProcess::new(PendingInit { pid, start_pipe: ours, proc }))
}

/// State of the microVM. Empty until the sandbox is set up; nothing uses it before.
#[derive(Default)]
struct VmState {
    meter: Option<VmMeter>,
    writable: Option<OwnedFd>,
    disks: Vec<OwnedFd>,
    group: Option<OwnedFd>,
    init: Option<InitProcess>,
    /// Changes of earlier sandboxes, if the microVM exists to export them.
    written: Option<Vec<OverlayChanges>>,
}

impl VmEnv for VmState {
    fn connect(&mut self) -> io::Result<OwnedFd> {
        dial()
    }

    fn signal_all(&mut self, signal: i32) {
        let _ = msb_sys::signal::send(-1, signal);
    }

    fn init(&mut self) -> Option<&mut InitProcess> {
        self.init.as_mut()
    }

    fn hit(&mut self) -> Option<Hit> {
        self.meter.as_mut()?.hit()
    }

    fn usage(&mut self) -> MachineUsage {
        self.meter.as_ref().map(VmMeter::usage).unwrap_or_default()
    }

    fn open_files(&self) -> Rlimit {
        Rlimit { name: RlimitName::Nofile, soft: Some(SOFT_FILES), hard: Some(HARD_FILES) }
    }

    fn hold(&mut self, hold: bool) -> bool {
        let Some(writable) = &self.writable else { return false };
        match hold {
            true => machine::freeze(writable.as_fd()).is_ok(),
            false => {
                let _ = machine::thaw(writable.as_fd());
                false
            }
        }
    }

    fn group(&self) -> Option<BorrowedFd<'_>> {
        self.group.as_ref().map(AsFd::as_fd)
    }

    fn written(&self) -> Option<&[OverlayChanges]> {
        self.written.as_deref()
    }
}
