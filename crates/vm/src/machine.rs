//! A machine, from its description to its end.

use crate::arch;
use crate::connections::Port;
use crate::kernel_unsafe;
use crate::link::{Link, Order, Report};
use crate::network::Frames;
use crate::share::HostDirectory;
use msb_krun::{CacheMode, DiskImageFormat, SyncMode, VmBuilder, VmControl, VmPauseGeneration};
use msb_spec::{Error, GuestKernel, Result, Stage, addresses};
use std::convert::Infallible;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A disk: the first is `vda`.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The file behind it.
    pub path: PathBuf,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether what the guest flushes must reach the host's disk.
    pub lasting: bool,
}

/// A host directory that the guest can mount.
#[derive(Debug, Clone)]
pub struct Share {
    /// The name it is mounted by.
    pub tag: String,
    /// The directory.
    pub path: PathBuf,
    /// Whether writing is refused. Its mount refuses it as well.
    pub read_only: bool,
    /// The user and group of the guest that own what this process owns outside. Without them it
    /// is a layer of an overlay, and its ids are shown as they are.
    pub owner: Option<(u32, u32)>,
}

/// One microVM.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its kernel, which boots from the first disk.
    pub kernel: GuestKernel,
    /// Processors.
    pub cpus: u8,
    /// Memory in MiB, of which the kernel's image is a part.
    pub memory_mib: u32,
    /// The port of the host that the guest may connect to.
    pub port: u32,
    /// Disks, the first of which holds the guest in an EROFS.
    pub disks: Vec<Disk>,
    /// Directories of the host.
    pub shares: Vec<Share>,
    /// Whether it has a network device, whose packets come over the link.
    pub network: bool,
}

/// Devices that every machine has: console, vsock, generation.
const USUAL_DEVICES: usize = 3;

/// A machine that does not run by then never will.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Becomes the machine. Returns only if it could not be started: when it ends, so does the
/// process.
pub fn enter(machine: &Machine, link: &Link) -> Error {
    match start(machine, link) {
        Ok(never) => match never {},
        Err(error) => {
            link.fail(&error.to_string());
            error
        }
    }
}

fn start(machine: &Machine, link: &Link) -> Result<Infallible> {
    let broken = |error: std::io::Error| Error::host("cannot make a pipe", error).at(Stage::Boot);
    let kernel_mib = kernel_unsafe::map(&machine.kernel)?;
    let (console, output) = std::io::pipe().map_err(broken)?;
    link.tell(&Report::Console(console.into())).map_err(broken)?;
    let devices =
        USUAL_DEVICES + machine.disks.len() + machine.shares.len() + usize::from(machine.network);
    let mut builder = VmBuilder::new()
        .machine(|m| {
            m.vcpus(machine.cpus)
                .memory_mib(machine.memory_mib.saturating_sub(kernel_mib) as usize)
                .split_irqchip(devices > arch::SHARED_INTERRUPTS)
                // The VMM passes lengths that the guest reports as free to madvise(2) unchecked,
                // so a guest could zero memory of the VMM behind its own.
                .balloon(false)
                // The guest is seeded by its worker: a device less to find.
                .rng(false)
                .msb_metrics(false)
        })
        .kernel(|k| k.cmdline(arch::PARAMETERS).init_path("/init"))
        // The VMM names a root of its own; what comes later on the command line wins.
        .exec(|e| e.env("root", "/dev/vda").env("rootfstype", "erofs"))
        .console(|c| c.output(format!("/proc/self/fd/{}", output.as_raw_fd())))
        .vsock(|v| v.custom(machine.port, Arc::new(Port::new(link.clone()))));
    for disk in &machine.disks {
        builder = builder.disk(|d| {
            d.path(&disk.path)
                .format(DiskImageFormat::Raw)
                .read_only(disk.read_only)
                .cache(CacheMode::Writeback)
                .sync(if disk.lasting { SyncMode::Full } else { SyncMode::None })
        });
    }
    for share in &machine.shares {
        let directory = HostDirectory::new(&share.path, share.read_only, share.owner)
            .map_err(|error| Error::host("cannot share a directory", error).at(Stage::Boot))?;
        builder = builder.fs(|f| f.tag(&share.tag).custom(Box::new(directory)));
    }
    if machine.network {
        let frames = link.connected().map_err(|error| {
            Error::host("the gateway was not handed over", error).at(Stage::Network)
        })?;
        builder = builder.net(|n| n.mac(addresses::GUEST_LINK).custom(Box::new(Frames(frames))));
    }
    let refused = |error: msb_krun::Error| {
        Error::unsupported("the microVM could not be started")
            .cause(error)
            .hint("`msb doctor` tells what this host lacks; `--isolation process` does without")
            .at(Stage::Boot)
    };
    let vm = builder.build().map_err(refused)?;
    let control = vm.control_handle();
    let orders = link.clone();
    let obey = std::thread::Builder::new().name("orders".to_owned());
    obey.spawn(move || obey_orders(&control, &orders))
        .map_err(|error| Error::host("cannot start a thread", error).at(Stage::Boot))?;
    vm.enter().map_err(refused)
}

/// Pauses and resumes as the worker says, and ends with it.
fn obey_orders(control: &VmControl, link: &Link) {
    let mut paused: Option<VmPauseGeneration> = None;
    while let Some(order) = link.next_order() {
        let begun = match paused {
            Some(_) => Ok(()),
            None => control.wait_until_running(START_LIMIT).map(drop),
        };
        let done = begun.and_then(|()| match (order, paused) {
            (Order::Pause, None) => {
                paused = Some(control.pause()?);
                Ok(Report::Paused)
            }
            (Order::Pause, Some(_)) => Ok(Report::Paused),
            (Order::Resume, Some(generation)) => {
                control.resume(generation)?;
                paused = None;
                Ok(Report::Resumed)
            }
            (Order::Resume, None) => Ok(Report::Resumed),
        });
        let answer = done.unwrap_or(Report::Refused);
        if link.tell(&answer).is_err() {
            break;
        }
    }
    msb_sys::process::leave(0)
}
