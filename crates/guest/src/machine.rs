//! PID 1 of a microVM: becomes the sandbox that its worker describes, and serves it.
//!
//! The kernel has mounted the boot disk, which holds this program and a few empty directories, and
//! devtmpfs on /dev. Everything else comes with the first frame of the first connection. What runs
//! in here later is as hostile to the guest as it is to the host; it can end the machine, and
//! cannot speak for it.

mod ctl;
mod exec;
mod layer;
mod network;
mod root;
mod serve;
mod tape;
#[cfg(test)]
mod tests;
mod usage;
mod worker;

use crate::files::{Doing, Done};
use crate::init::{Beside, Init, become_init};
use layer::Written;
use msb_spec::{Rlimit, RlimitName};
use msb_sys::machine;
use msb_sys::signal::{SIGCHLD, SIGKILL, Signals};
use msb_wire::{Boot, FromMachine, Hit, MACHINE_PORT, MachineUsage};
use root::{Built, Kernel};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::DumpableBehavior;
use rustix::time::{ClockId, Timespec};
use serve::{Ground, Serving};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use usage::Meter;
use worker::Worker;

/// How many files a command may have open, and how far it may raise that: what systemd gives.
/// The guest has four for each Exec.
const FILES: u64 = 1024;
const MOST_FILES: u64 = 524_288;
/// A clock that is this close was set by the machine itself, and better than we can.
const CLOCK_TOLERANCE: u64 = 500_000_000;
/// Long enough for the worker to read why there is no sandbox.
const FAREWELL: Duration = Duration::from_secs(2);
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where commands are beside an init that has the rest.
const OWN_CGROUP: &str = "msb";
/// The most that one call may send to the worker. From about 32 KiB on, newer kernels spread a
/// packet over several buffers; the VMM takes one, and drops the packet.
pub(crate) const PACKET: usize = 28 << 10;

/// Is PID 1 until the sandbox is over, and switches the machine off.
pub fn run() -> ! {
    let ended = Worker::dial(dial).map_or(Ended::default(), live);
    if !ended.ephemeral || !ended.disks.is_empty() {
        let _ = msb_sys::signal::send(-1, SIGKILL);
        let writable = ended.writable.iter().filter(|_| !ended.ephemeral);
        let lasting: Vec<&OwnedFd> = writable.chain(&ended.disks).collect();
        if !ended.ephemeral {
            rustix::fs::sync();
        }
        // Which writes what they hold, and leaves their journals empty for when they are next
        // mounted.
        for disk in lasting {
            let _ = machine::freeze(disk.as_fd());
        }
    }
    loop {
        // The kernel is told to restart by a way that ends the machine.
        let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
        std::thread::sleep(FAREWELL);
    }
}

/// Leaves a word on the console, where it is found when the machine is gone.
fn say(word: &str) {
    let _ = std::fs::write("/dev/kmsg", format!("<0>msb-guest: {word}"));
}

/// What is left of a sandbox.
#[derive(Default)]
struct Ended {
    writable: Option<OwnedFd>,
    /// Volumes that it wrote, which outlive it.
    disks: Vec<OwnedFd>,
    ephemeral: bool,
}

fn dial() -> io::Result<OwnedFd> {
    machine::connect(machine::HOST, MACHINE_PORT)
}

/// From the first connection to the end.
fn live(mut worker: Worker) -> Ended {
    // What needs no answer is done while the call goes through.
    let prepared = prepare();
    let Ok(boot) = worker.boot() else { return Ended::default() };
    let (kernel, signals) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return fail(&mut worker, failure, boot.ephemeral),
    };
    let ephemeral = boot.ephemeral;
    let mut inside = Inside::default();
    let mut serving = Serving::new(&mut inside, worker, signals, boot.restricted, &boot.token);
    match settle(&boot, &kernel) {
        Ok(settled) => *serving.ground() = settled,
        Err(failure) => return fail(serving.worker(), failure, ephemeral),
    }
    drop((boot, kernel));
    serving.worker().tell(&FromMachine::Ready);
    // However it ended, there is nobody left to serve.
    if serving.run() == serve::End::WorkerGone {
        say("the worker has gone");
    }
    Ended { writable: inside.writable, disks: inside.disks, ephemeral }
}

fn fail(worker: &mut Worker, failure: crate::files::Failure, ephemeral: bool) -> Ended {
    let errno = failure.error.raw_os_error().unwrap_or(libc::EIO);
    worker.tell(&FromMachine::Failed { doing: failure.doing, errno });
    // Bytes that are on their way are lost with the machine.
    worker.wait_closed(FAREWELL);
    Ended { ephemeral, ..Ended::default() }
}

/// Everything that is the same for every sandbox.
fn prepare() -> Done<(Kernel, Signals)> {
    let about = Path::new("the guest");
    msb_sys::process::set_name(c"msb-guest");
    // Nobody without every capability may read our memory or descriptors through /proc.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(io::Error::from)
        .doing("close", about)?;
    msb_sys::process::set_rlimit(libc::RLIMIT_NOFILE, MOST_FILES, MOST_FILES)
        .doing("raise the limit of", about)?;
    let signals = Signals::collect(&[SIGCHLD]).doing("collect signals of", about)?;
    msb_sys::net::raise_loopback().doing("raise", Path::new("lo"))?;
    Ok((Kernel::mount()?, signals))
}

/// Everything that this sandbox wants, in order.
fn settle(boot: &Boot, kernel: &Kernel) -> Done<Inside> {
    if boot.version != msb_wire::VERSION {
        let other = io::ErrorKind::InvalidData.into();
        return Err(other).doing("understand", Path::new("a worker of another version"));
    }
    set_clock(boot.time_ns).doing("set", Path::new("the clock"))?;
    seed(&boot.seed)?;
    let host = boot.hostname.as_str();
    rustix::system::sethostname(host.as_bytes())
        .map_err(io::Error::from)
        .doing("be named", Path::new(host))?;
    let writable = match root::build(&boot.root, &boot.written, boot.ephemeral)? {
        Built::Root(writable) => Some(writable),
        // Nothing is ever run here, so that nothing has to be put in order for it.
        Built::Written(written) => {
            return Ok(Inside { written: Some(written), ..Inside::default() });
        }
    };
    let trees = root::take_mounts(&boot.mounts)?;
    let disks = root::written_disks(&boot.mounts)?;
    let ctl = boot.ctl.then(ctl::take).transpose()?;
    // Before the root changes: below it, names are the image's.
    let (group, refusals) = enter_cgroup(boot.pids, boot.init)?;
    let inside = root::enter(kernel)?;
    root::furnish(&inside, &boot.tmpfs, &boot.mounts, &trees)?;
    if let Some(given) = &boot.network {
        network::set_up()?;
        network::furnish(&inside, given, host)?;
    }
    if let Some(program) = &ctl {
        ctl::furnish(&inside, program, group.as_ref().map(AsFd::as_fd))?;
    }
    if boot.restricted {
        rustix::thread::set_no_new_privs(true)
            .map_err(io::Error::from)
            .doing("give up", Path::new("new privileges"))?;
    }
    let init = boot.init.then(|| make_room(kernel)).transpose()?;
    let again = |fd: &OwnedFd| fd.try_clone().doing("open", Path::new("the writable disk"));
    let measured = writable.as_ref().map(again).transpose()?;
    let meter = Some(Meter::new(kernel.proc()?, measured, refusals)?);
    Ok(Inside { meter, writable, disks, group, init, written: None })
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

fn seed(bytes: &[u8; 32]) -> Done<()> {
    let path = Path::new("/dev/urandom");
    let device = File::options().write(true).open(path).doing("open", path)?;
    machine::add_entropy(device.as_fd(), bytes).doing("seed", path)
}

/// Shows cgroups, and enters one where so many processes and threads may be. Returns the one that
/// it was in before and the file that counts refusals.
///
/// Where there will be an init, it has what is below for itself, but for a place of our own.
fn enter_cgroup(pids: Option<u32>, init: bool) -> Done<(Option<OwnedFd>, Option<File>)> {
    // With the option, which older kernels lack, entering one does not wait for all processors.
    let show = || {
        let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        root::mount("cgroup2", CGROUPS, "cgroup2", quiet, "favordynmods")
            .or_else(|_| root::mount("cgroup2", CGROUPS, "cgroup2", quiet, ""))
    };
    if pids.is_none() && !init {
        // A kernel may have been made without them.
        let _ = show();
        return Ok((None, None));
    }
    show()?;
    let sandbox = format!("{CGROUPS}/sandbox");
    let write =
        |path: String, text: String| std::fs::write(&path, text).doing("write", Path::new(&path));
    write(format!("{CGROUPS}/cgroup.subtree_control"), "+pids".to_owned())?;
    if init {
        // As many as this kernel has, for an init that divides what it has among its services.
        for controller in ["+cpu", "+memory", "+io"] {
            let _ = write(format!("{CGROUPS}/cgroup.subtree_control"), controller.to_owned());
        }
    }
    root::make_dir(&sandbox)?;
    if let Some(pids) = pids {
        // The guest is in it too, so that commands are from their first moment.
        write(format!("{sandbox}/pids.max"), u64::from(pids).saturating_add(1).to_string())?;
    }
    write(format!("{sandbox}/cgroup.procs"), "0".to_owned())?;
    let events = format!("{sandbox}/pids.events");
    let events = File::open(&events).doing("open", Path::new(&events))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let outside = rustix::fs::open(CGROUPS, flags, Mode::empty())
        .map_err(io::Error::from)
        .doing("open", Path::new(CGROUPS))?;
    // From now on it is the root of what is seen.
    let about = Path::new(CGROUPS);
    msb_sys::process::unshare(msb_sys::process::CGROUP_NAMESPACE).doing("close", about)?;
    rustix::mount::unmount(CGROUPS, UnmountFlags::DETACH)
        .map_err(io::Error::from)
        .doing("unmount", about)?;
    show()?;
    Ok((Some(outside), Some(events)))
}

/// Forks whoever will be PID 1 of a pid namespace below ours, with a /proc that shows it. All who
/// are made from now on are born there. The guest leaves the cgroup to it, which no process may be
/// in that is not its own once it divides that up.
fn make_room(kernel: &Kernel) -> Done<Init> {
    let about = Path::new("the init");
    let proc = kernel.proc()?;
    let (ours, theirs) = msb_sys::socket::pair().doing("reach", about)?;
    msb_sys::process::unshare(msb_sys::process::PID_NAMESPACE).doing("make room for", about)?;
    let Some(pid) = msb_sys::process::fork_child().doing("make room for", about)? else {
        let console = root::renew_proc().ok().and_then(|()| {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::open("/dev/console", flags, Mode::empty()).ok()
        });
        // Nothing that owns a descriptor is dropped from here on.
        let kept = console.and_then(|console| {
            msb_sys::process::keep_these([theirs.as_fd(), console.as_fd()]).ok()
        });
        let code = kept.map_or(125, |[turn, console]| become_init(turn, &console));
        msb_sys::process::leave(code);
    };
    let place = format!("{CGROUPS}/{OWN_CGROUP}");
    root::make_dir(&place)?;
    let tasks = format!("{place}/cgroup.procs");
    std::fs::write(&tasks, "0").doing("enter", Path::new(&tasks))?;
    Ok(Init::new(Beside { pid, turn: ours, proc }))
}

/// The machine from inside. Empty until the sandbox is what it should be: nothing is asked of it
/// before.
#[derive(Default)]
struct Inside {
    meter: Option<Meter>,
    writable: Option<OwnedFd>,
    disks: Vec<OwnedFd>,
    group: Option<OwnedFd>,
    init: Option<Init>,
    /// What sandboxes wrote before, where that is all that is wanted.
    written: Option<Vec<Written>>,
}

impl Ground for Inside {
    fn connect(&mut self) -> io::Result<OwnedFd> {
        dial()
    }

    fn signal_all(&mut self, signal: i32) {
        let _ = msb_sys::signal::send(-1, signal);
    }

    fn init(&mut self) -> Option<&mut Init> {
        self.init.as_mut()
    }

    fn hit(&mut self) -> Option<Hit> {
        self.meter.as_mut()?.hit()
    }

    fn usage(&mut self) -> MachineUsage {
        self.meter.as_ref().map(Meter::usage).unwrap_or_default()
    }

    fn open_files(&self) -> Rlimit {
        Rlimit { name: RlimitName::Nofile, soft: Some(FILES), hard: Some(MOST_FILES) }
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

    fn written(&self) -> Option<&[Written]> {
        self.written.as_deref()
    }
}
