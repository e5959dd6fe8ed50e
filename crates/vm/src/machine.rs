//! Builds and runs the microVM from its description.

use crate::arch;
use crate::kernel_unsafe;
use crate::link::{Link, Order, Report};
use crate::network::GatewaySocket;
use crate::share::HostDirectory;
use crate::vsock::VsockPort;
use msb_krun::{CacheMode, DiskImageFormat, SyncMode, VmBuilder, VmControl, VmPauseGeneration};
use msb_spec::{Error, GuestKernel, Result, Stage, addresses};
use std::convert::Infallible;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A virtio disk; the first is `vda`.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Path of the image on the host.
    pub path: PathBuf,
    /// Whether writes to it are refused.
    pub read_only: bool,
    /// Whether a flush of the guest must reach the host's disk.
    pub lasting: bool,
}

/// A host directory that the guest can mount by virtiofs.
#[derive(Debug, Clone)]
pub struct Share {
    /// Tag that it is mounted by.
    pub tag: String,
    /// Path of the directory on the host.
    pub path: PathBuf,
    /// Whether writes are refused. The mount inside refuses them as well.
    pub read_only: bool,
    /// User and group inside that own the files which this process owns on the host. `None` is for
    /// a layer of an overlay: its ids are passed unchanged.
    pub owner: Option<(u32, u32)>,
}

/// The description of a microVM.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Kernel, which boots from the first disk.
    pub kernel: GuestKernel,
    /// Number of its virtual CPUs.
    pub cpus: u8,
    /// Memory in MiB, including the kernel image.
    pub memory_mib: u32,
    /// Vsock port of the host that the guest may connect to.
    pub port: u32,
    /// Disks; the first holds the guest in an EROFS.
    pub disks: Vec<Disk>,
    /// Shared directories of the host.
    pub shares: Vec<Share>,
    /// Whether it has a network device, with its socket sent over the link.
    pub network: bool,
}

/// Devices of each microVM: console, vsock, VM generation id.
const BASE_DEVICES: usize = 3;

/// Longest time until the vCPUs run; a microVM that needs more has failed.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Runs the microVM in this process. Returns only if it could not start: the process exits with the
/// microVM.
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
    let pipe_error = |error: std::io::Error| {
        Error::host("cannot create the console pipe", error).at(Stage::Boot)
    };
    let kernel_mib = kernel_unsafe::map(&machine.kernel)?;
    let (console, output) = std::io::pipe().map_err(pipe_error)?;
    link.report(&Report::Console(console.into())).map_err(pipe_error)?;
    let devices =
        BASE_DEVICES + machine.disks.len() + machine.shares.len() + usize::from(machine.network);
    let mut builder = VmBuilder::new()
        .machine(|m| {
            m.vcpus(machine.cpus)
                .memory_mib(machine.memory_mib.saturating_sub(kernel_mib) as usize)
                .split_irqchip(devices > arch::SHARED_INTERRUPTS)
                // The VMM passes lengths from the guest's free page reports to madvise(2)
                // unchecked: a guest could zero memory of the VMM behind its own.
                .balloon(false)
                // The worker seeds the guest: one device less to probe.
                .rng(false)
                .msb_metrics(false)
        })
        .kernel(|k| k.cmdline(arch::PARAMETERS).init_path("/init"))
        // The VMM adds its own root parameters; later ones on the command line win.
        .exec(|e| e.env("root", "/dev/vda").env("rootfstype", "erofs"))
        .console(|c| c.output(format!("/proc/self/fd/{}", output.as_raw_fd())))
        .vsock(|v| v.custom(machine.port, Arc::new(VsockPort::new(link.clone()))));
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
        let socket = link.receive_gateway().map_err(|error| {
            Error::host("the gateway socket was not received", error).at(Stage::Network)
        })?;
        builder =
            builder.net(|n| n.mac(addresses::GUEST_LINK).custom(Box::new(GatewaySocket(socket))));
    }
    let start_error = |error: msb_krun::Error| {
        Error::unsupported("the microVM could not be started")
            .cause(error)
            .hint("`msb doctor` lists what is missing; `--isolation process` needs no microVM")
            .at(Stage::Boot)
    };
    let vm = builder.build().map_err(start_error)?;
    let control = vm.control_handle();
    let orders = link.clone();
    let thread = std::thread::Builder::new().name("orders".to_owned());
    thread
        .spawn(move || handle_orders(&control, &orders))
        .map_err(|error| Error::host("cannot start a thread", error).at(Stage::Boot))?;
    vm.enter().map_err(start_error)
}

/// Pauses and resumes the microVM on orders of the worker. Exits the process when the link closes.
fn handle_orders(control: &VmControl, link: &Link) {
    let mut paused: Option<VmPauseGeneration> = None;
    while let Some(order) = link.next_order() {
        let running = match paused {
            Some(_) => Ok(()),
            None => control.wait_until_running(START_LIMIT).map(drop),
        };
        let done = running.and_then(|()| match (order, paused) {
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
        if link.report(&answer).is_err() {
            break;
        }
    }
    msb_sys::process::leave(0)
}
