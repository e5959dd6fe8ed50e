//! The worker's end of a microVM: its process, its console and the guest's connections.

use crate::compromised;
use crate::ctl;
use crate::relay::Relay;
use crate::wired::Wired;
use msb_jail::{Confined, Shown, ShownIds};
use msb_spec::{
    Error, ImageRef, MachineBase, Plan, Profile, Result, Stage, Stored, Upper, UserRef, env,
};
use msb_sys::socket;
use msb_vm::{Disk, Link, Order, Report, Share};
use msb_wire::{
    Boot, BootNetwork, CTL_HELLO, FrameKind, MACHINE_PORT, MachineMount, MachineRoot, ShareOverlay,
    ToMachine, WrittenDisk, encode,
};
use rustix::net::sockopt::Timeout;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is kept of the console for whoever asks why the machine ended.
const TAIL: usize = 8 << 10;
/// How many lines of it are shown.
const LAST_LINES: usize = 8;
/// What a kernel says that gives up.
const PANIC: &str = "Kernel panic";
/// What is said on the link is a few bytes, which are there at once.
const LINK_LIMIT: Duration = Duration::from_secs(1);
/// Connections that have not yet said the word. Only the guest knows it.
const MOST_UNPROVEN: usize = 32;
/// A connection says the word at once.
const PROOF_LIMIT: Duration = Duration::from_secs(5);
/// A machine that is not ready by then never will be. Emulated ones are slow.
pub(crate) const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// What waits for a spare connection.
#[derive(Debug)]
pub(crate) enum Asked {
    /// An Exec, by its number, and the frames that start it.
    Exec(u64, Vec<u8>),
    /// A client's file operation, and the frame that begins it.
    Files(OwnedFd, Vec<u8>),
    /// A client's stream, each of whose directions ends on its own, and the frame that begins it.
    Stream(OwnedFd, Vec<u8>),
}

/// What came of a spare connection.
#[derive(Debug)]
pub(crate) enum Given {
    /// The connection of this Exec.
    Exec(u64, Wired),
    /// A file operation or a stream.
    Files(Relay),
    /// Somebody inside who asks for children.
    Ctl(Relay),
}

/// What came from the machine's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing that others must know.
    Nothing,
    /// Whether the last order was obeyed.
    Obeyed(bool),
    /// It is gone.
    Gone,
}

/// A machine that runs.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) link: Link,
    pub(crate) console: Option<OwnedFd>,
    pub(crate) control: Option<Wired>,
    /// There is one first connection: whoever comes after it is lost cannot be the guest.
    connected: bool,
    pub(crate) unproven: VecDeque<(Wired, Instant)>,
    spares: VecDeque<Wired>,
    asked: VecDeque<Asked>,
    /// Connections that are for whoever answers about children.
    ctl: VecDeque<Wired>,
    /// Where that one listens, if the sandbox may ask.
    answers: Option<OwnedFd>,
    boot: Boot,
    tail: VecDeque<u8>,
    said: u64,
    pub(crate) ready: bool,
    /// Why it cannot be what it should.
    pub(crate) failed: Option<Error>,
    pub(crate) paused: bool,
}

impl Machine {
    /// Starts the process that is the machine, in its jail.
    pub(crate) fn start(
        plan: &Plan,
        directory: &Path,
        frames: Option<BorrowedFd<'_>>,
        authority: Option<&str>,
    ) -> Result<(Confined, Self)> {
        let broken = |error: std::io::Error| {
            Error::host("cannot prepare the machine", error).at(Stage::Boot)
        };
        let mut laid = Laid::out(plan, directory)?;
        laid.machine.network = frames.is_some();
        laid.boot.network = frames.map(|_| BootNetwork { authority: authority.map(str::to_owned) });
        let (ours, theirs) = socket::pair().map_err(broken)?;
        // A machine that was taken over may say half a word, or read none.
        for way in [Timeout::Recv, Timeout::Send] {
            rustix::net::sockopt::set_socket_timeout(&ours, way, Some(LINK_LIMIT))
                .map_err(|error| broken(error.into()))?;
        }
        let answers = laid.boot.ctl.then(|| ctl::connect(directory)).transpose().map_err(broken)?;
        let machine = laid.machine;
        let canary = std::env::var_os(env::TEST_COMPROMISED);
        let confined = msb_jail::start_machine(plan, &laid.shown, theirs.as_fd(), move |link| {
            let link = Link::new(link);
            match canary {
                Some(canary) => link.fail(&compromised::report(&canary)),
                None => drop(msb_vm::enter(&machine, &link)),
            }
            125
        })?;
        let link = Link::new(ours);
        if let Some(frames) = frames {
            link.connect(frames).map_err(broken)?;
        }
        let machine = Self {
            link,
            console: None,
            control: None,
            connected: false,
            unproven: VecDeque::new(),
            spares: VecDeque::new(),
            asked: VecDeque::new(),
            ctl: VecDeque::new(),
            answers,
            boot: laid.boot,
            tail: VecDeque::new(),
            said: 0,
            ready: false,
            failed: None,
            paused: false,
        };
        Ok((confined, machine))
    }

    /// Takes what the machine's process has said.
    pub(crate) fn hear(&mut self) -> Heard {
        match self.link.next() {
            None => return Heard::Gone,
            Some(Report::Console(fd)) => {
                let _ = rustix::io::ioctl_fionbio(&fd, true);
                self.console = Some(fd);
            }
            Some(Report::Connection(fd)) => self.connected(fd),
            Some(Report::Failed(reason)) => {
                let error = Error::unsupported("the microVM could not be started").cause(reason);
                self.failed = Some(error.at(Stage::Boot));
            }
            Some(Report::Paused) => {
                self.paused = true;
                return Heard::Obeyed(true);
            }
            Some(Report::Resumed) => {
                self.paused = false;
                return Heard::Obeyed(true);
            }
            Some(Report::Refused) => return Heard::Obeyed(false),
        }
        Heard::Nothing
    }

    /// The first connection is the guest's before anything else runs inside.
    fn connected(&mut self, socket: OwnedFd) {
        let Ok(mut wired) = Wired::new(socket) else { return };
        if !self.connected {
            self.connected = true;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.boot.time_ns = u64::try_from(now.as_nanos()).unwrap_or(0);
            wired.send(&encode(FrameKind::Control, &self.boot));
            self.control = Some(wired);
        } else if self.unproven.len() < MOST_UNPROVEN {
            self.unproven.push_back((wired, Instant::now() + PROOF_LIMIT));
        }
    }

    /// Takes what a new connection says: the word, or it is closed.
    pub(crate) fn prove(&mut self, index: usize, buffer: &mut [u8]) {
        let Some((wired, _)) = self.unproven.get_mut(index) else { return };
        let alive = wired.receive(buffer);
        match wired.next() {
            Ok(None) if alive => {}
            Ok(Some(frame))
                if frame.kind == FrameKind::Hello && frame.payload == self.boot.token =>
            {
                self.spares.extend(self.unproven.remove(index).map(|(wired, _)| wired));
            }
            Ok(Some(frame)) if frame.kind == FrameKind::Hello && frame.payload == CTL_HELLO => {
                self.ctl.extend(self.unproven.remove(index).map(|(wired, _)| wired));
            }
            _ => drop(self.unproven.remove(index)),
        }
    }

    /// Closes connections that said nothing for too long.
    pub(crate) fn forget_silent(&mut self, now: Instant) {
        self.unproven.retain(|(_, limit)| now < *limit);
    }

    pub(crate) fn next_clock(&self) -> Option<Instant> {
        self.unproven.iter().map(|(_, limit)| *limit).min()
    }

    pub(crate) fn ask(&mut self, asked: Asked) {
        self.asked.push_back(asked);
    }

    /// Brings together what waits for a connection and connections that wait for something.
    pub(crate) fn give(&mut self) -> Option<Given> {
        while let Some(wired) = self.ctl.pop_front() {
            if let Some(relay) = self.answered(wired) {
                return Some(Given::Ctl(relay));
            }
        }
        while !self.asked.is_empty() {
            let mut wired = self.spares.pop_front()?;
            match self.asked.pop_front()? {
                Asked::Exec(id, frames) => {
                    wired.send(&frames);
                    return Some(Given::Exec(id, wired));
                }
                Asked::Files(client, frame) => {
                    wired.send(&frame);
                    let relay = wired.into_socket().map(|guest| Relay::new(client, guest));
                    if let Some(Ok(relay)) = relay {
                        return Some(Given::Files(relay));
                    }
                }
                Asked::Stream(client, frame) => {
                    wired.send(&frame);
                    let relay = wired.into_socket().map(|guest| Relay::framed(client, guest));
                    if let Some(Ok(relay)) = relay {
                        return Some(Given::Files(relay));
                    }
                }
            }
        }
        None
    }

    /// Joins somebody inside with whoever answers about children; who cannot be is sent away.
    fn answered(&self, mut wired: Wired) -> Option<Relay> {
        let outside = ctl::open(self.answers.as_ref()?.as_fd()).ok()?;
        wired.send(b"+");
        Relay::new(outside, wired.into_socket()?).ok()
    }

    /// Tells the guest something on its control connection.
    pub(crate) fn tell(&mut self, what: &ToMachine) {
        if let Some(control) = &mut self.control {
            control.send(&encode(FrameKind::Control, what));
        }
    }

    pub(crate) fn order(&self, order: Order) -> Result<()> {
        self.link.order(order).map_err(|error| Error::host("the machine does not listen", error))
    }

    /// Keeps the end of what the console says.
    pub(crate) fn remember(&mut self, bytes: &[u8]) {
        self.said += bytes.len() as u64;
        self.tail.extend(&bytes[bytes.len().saturating_sub(TAIL)..]);
        let over = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..over);
    }

    /// How many bytes the console has said.
    pub(crate) fn said(&self) -> u64 {
        self.said
    }

    /// Whether its kernel has given up.
    pub(crate) fn panicked(&mut self) -> bool {
        let text = String::from_utf8_lossy(self.tail.make_contiguous());
        text.contains(PANIC)
    }

    /// What the console said of the end, then its last lines, without anything that a terminal
    /// would obey.
    pub(crate) fn last_lines(&mut self) -> Vec<String> {
        let text = String::from_utf8_lossy(self.tail.make_contiguous()).into_owned();
        let shown = |line: &str| -> String {
            line.chars().filter(|letter| !letter.is_control()).take(200).collect()
        };
        let lines: Vec<String> = text.lines().map(shown).filter(|line| !line.is_empty()).collect();
        let first = lines.len().saturating_sub(LAST_LINES);
        let reason = lines[..first].iter().rev().find(|line| line.contains(PANIC));
        reason.into_iter().chain(&lines[first..]).cloned().collect()
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket()
    }
}

/// A machine laid out: what its process sees, what the VMM is told, what the guest is told.
struct Laid {
    shown: Vec<Shown>,
    machine: msb_vm::Machine,
    boot: Boot,
}

impl Laid {
    fn out(plan: &Plan, directory: &Path) -> Result<Self> {
        let Some(planned) = &plan.machine else {
            return Err(Error::invalid("this Plan has no machine").at(Stage::Boot));
        };
        let mut kernel = planned.kernel.clone();
        let file = |from: &Path, to: &str, read_only: bool| Shown {
            from: from.to_owned(),
            to: to.to_owned(),
            named: false,
            file: true,
            read_only,
            ids: ShownIds::Owner,
            workspace: None,
            volume: None,
        };
        let mut shown =
            vec![file(&kernel.path, "kernel", true), file(&boot_disk(directory)?, "guest", true)];
        kernel.path = PathBuf::from("/kernel");
        let mut machine = msb_vm::Machine {
            kernel,
            cpus: planned.cpus,
            memory_mib: planned.memory_mib,
            port: MACHINE_PORT,
            disks: vec![Disk { path: "/guest".into(), read_only: true, lasting: false }],
            shares: Vec::new(),
            network: false,
        };
        let lasting = !plan.ephemeral;
        let mut upper = None;
        if let MachineBase::Image { path, .. } = &planned.base {
            let named = is_named(plan, path);
            shown.push(Shown { named, ..file(path, "image", true) });
            machine.disks.push(Disk { path: "/image".into(), read_only: true, lasting: false });
        }
        if let Upper::Disk { path } = &plan.rootfs.upper {
            shown.push(file(path, "disk", false));
            upper = Some(device(machine.disks.len()));
            machine.disks.push(Disk { path: "/disk".into(), read_only: false, lasting });
        }
        let mut written = Vec::new();
        for (index, path) in planned.written.iter().enumerate() {
            let name = format!("written{index}");
            shown.push(file(path, &name, true));
            let fstype = msb_spec::Machine::fstype_of(path).to_owned();
            written.push(WrittenDisk { device: device(machine.disks.len()), fstype });
            let path = Path::new("/").join(name);
            machine.disks.push(Disk { path, read_only: true, lasting: false });
        }
        let root = match &planned.base {
            MachineBase::Image { fstype, .. } => {
                MachineRoot::Image { device: device(1), fstype: fstype.clone(), upper }
            }
            MachineBase::Shares => {
                MachineRoot::Shares { overlays: lowers(plan, &mut shown, &mut machine), upper }
            }
        };
        let mounts = mounts(plan, &mut shown, &mut machine);
        let mut seed = [0; 32];
        let mut token = [0; 16];
        for bytes in [&mut seed[..], &mut token[..]] {
            rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())
                .map_err(|error| Error::host("cannot get random bytes", error).at(Stage::Boot))?;
        }
        let boot = Boot {
            version: msb_wire::VERSION,
            hostname: plan.hostname.clone(),
            time_ns: 0,
            seed,
            token,
            root,
            written,
            tmpfs: plan
                .tmpfs
                .iter()
                .map(|tmpfs| (tmpfs.guest.as_str().to_owned(), tmpfs.size))
                .collect(),
            mounts,
            pids: plan.limits.pids.map(|limit| limit.value),
            restricted: plan.security.profile == Profile::Restricted,
            ephemeral: plan.ephemeral,
            network: None,
            ctl: plan.spawn.is_some(),
            init: plan.init.is_some(),
        };
        Ok(Self { shown, machine, boot })
    }
}

/// The name of a disk, by its place.
fn device(index: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(index).unwrap_or(25).min(25));
    format!("vd{letter}")
}

/// Whether a root filesystem is the user's own, and not one of our store.
fn is_named(plan: &Plan, path: &Path) -> bool {
    matches!(&plan.image, ImageRef::Path(image) if image == path)
}

/// Directories below the root, each a share of its own.
fn lowers(plan: &Plan, shown: &mut Vec<Shown>, machine: &mut msb_vm::Machine) -> Vec<ShareOverlay> {
    let mut count = 0;
    let mut share = |lower: &msb_spec::Lower| {
        let tag = format!("lower{count}");
        count += 1;
        let ids = if lower.owned { ShownIds::Sandbox } else { ShownIds::Host };
        let from = lower.path.clone();
        let to = tag.clone();
        let (volume, workspace) = (None, None);
        let (named, file) = (is_named(plan, &from), false);
        shown.push(Shown { from, to, named, file, read_only: true, ids, volume, workspace });
        let path = Path::new("/").join(&tag);
        machine.shares.push(Share { tag: tag.clone(), path, read_only: true, owner: None });
        tag
    };
    let overlay = |overlay: &msb_spec::Overlay| ShareOverlay {
        at: overlay.at.clone(),
        tags: overlay.lowers.iter().map(&mut share).collect(),
    };
    plan.rootfs.overlays.iter().map(overlay).collect()
}

/// Host paths of the user's and volumes, each a share or a disk of its own.
fn mounts(plan: &Plan, shown: &mut Vec<Shown>, machine: &mut msb_vm::Machine) -> Vec<MachineMount> {
    let mut mounts = Vec::new();
    let owner = mount_owner(plan);
    for (index, mount) in plan.mounts.iter().enumerate() {
        let tag = format!("mount{index}");
        let (guest, read_only) = (mount.guest.clone(), mount.read_only);
        if mount.volume.as_ref().is_some_and(|volume| volume.stored == Stored::Disk) {
            let from = mount.host.clone();
            let path = Path::new("/").join(&tag);
            let ids = ShownIds::Owner;
            let (volume, workspace) = (None, None);
            shown.push(Shown {
                from,
                to: tag,
                named: false,
                file: true,
                read_only,
                ids,
                volume,
                workspace,
            });
            let tag = device(machine.disks.len());
            machine.disks.push(Disk { path, read_only, lasting: true });
            mounts.push(MachineMount { tag, disk: true, guest, read_only, file: None });
            continue;
        }
        // A share is a directory; a single file is alone in one.
        let file = mount.file.then(|| "file".to_owned());
        let to = file.as_ref().map_or_else(|| tag.clone(), |file| format!("{tag}/{file}"));
        let (from, volume) = (mount.host.clone(), mount.volume.clone());
        // Its files are root's for the machine's process, which may write nobody else's; the
        // share gives them to the user inside.
        let ids = ShownIds::Owner;
        let workspace = None;
        let (named, file_alone) = (volume.is_none(), mount.file);
        shown.push(Shown { from, to, named, file: file_alone, read_only, ids, volume, workspace });
        let path = Path::new("/").join(&tag);
        machine.shares.push(Share { tag: tag.clone(), path, read_only, owner: Some(owner) });
        mounts.push(MachineMount { tag, disk: false, guest, read_only, file });
    }
    if let Some(workspace) = &plan.workspace {
        let tag = "workspace".to_owned();
        shown.push(Shown {
            from: workspace.host.clone(),
            to: tag.clone(),
            named: true,
            file: false,
            read_only: false,
            ids: ShownIds::Owner,
            volume: None,
            workspace: Some(workspace.clone()),
        });
        let path = Path::new("/").join(&tag);
        machine.shares.push(Share { tag: tag.clone(), path, read_only: false, owner: Some(owner) });
        mounts.push(MachineMount {
            tag,
            disk: false,
            guest: workspace.guest.clone(),
            read_only: false,
            file: None,
        });
        // One below another comes after it.
        mounts.sort_by(|one, other| Path::new(&one.guest).cmp(Path::new(&other.guest)));
    }
    mounts
}

/// The user that runs Execs, if it is known outside: a name is only known inside, so a mount
/// belongs to root there.
fn mount_owner(plan: &Plan) -> (u32, u32) {
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
    let user = plan.user.as_ref();
    (number(user.map(UserRef::user)), number(user.and_then(UserRef::group)))
}

/// The disk that holds the guest, written once for all machines.
fn boot_disk(directory: &Path) -> Result<PathBuf> {
    let about = |error: std::io::Error| Error::host("cannot write the guest's disk", error);
    let home = directory.parent().and_then(Path::parent).unwrap_or(directory);
    let place = home.join("guest");
    let path = place.join(format!("{}.img", crate::boot_disk::boot_disk_name()));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(&place).map_err(about)?;
    let aside = place.join(format!(".{}", std::process::id()));
    std::fs::write(&aside, crate::boot_disk::boot_disk()).map_err(about)?;
    std::fs::rename(&aside, &path).map_err(about)?;
    Ok(path)
}
