//! Checks what this host offers for each tier, and how to get what is missing.

use crate::hardware;
use crate::host::{CgroupControllers, HostUser};
use crate::store::Home;
use msb_jail::NetDevice;
use msb_spec::{Bytes, Cgroup, Error, env};
use msb_sys::process::{self, Fork};
use serde::Serialize;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// The requirement is met.
    Good,
    /// Some feature is weaker or missing.
    Weaker,
    /// The tier does not work without it.
    Missing,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The tier that needs it: `process` or `vm`.
    pub tier: &'static str,
    /// The name of the check.
    pub what: &'static str,
    /// The severity of the result.
    pub grade: Grade,
    /// A description of the state found.
    pub found: String,
    /// How to fix it; `None` if nothing is wrong.
    pub fix: Option<String>,
}

/// Runs all checks. Changes nothing.
pub fn examine(home: Option<&Home>) -> Vec<Finding> {
    let user = HostUser::current();
    vec![
        kernel(),
        user_namespaces(),
        landlock(),
        seccomp(),
        ids(user),
        cgroups(),
        volumes(user),
        network_device(),
        container(),
        state_disk(home),
        processor(),
        kvm_device(),
        machine_entry(),
        guest_kernel(home),
        machine_jail(),
    ]
}

fn finding(
    tier: &'static str,
    what: &'static str,
    grade: Grade,
    found: impl Into<String>,
    fix: Option<&str>,
) -> Finding {
    let fix = fix.filter(|_| grade != Grade::Good).map(str::to_owned);
    Finding { tier, what, grade, found: found.into(), fix }
}

/// Which kind of device joins a sandbox to its gateway: TAP, or a veth pair where /dev/net/tun
/// cannot be opened.
fn network_device() -> Finding {
    let good = |found| finding("process", "network", Grade::Good, found, None);
    match msb_jail::try_device() {
        Ok(NetDevice::Tap) => good("by TAP devices (`/dev/net/tun`)"),
        Ok(NetDevice::Veth) => good("by veth pairs, because `/dev/net/tun` cannot be used"),
        Err(error) => finding(
            "process",
            "network",
            Grade::Weaker,
            format!("`/dev/net/tun` cannot be used, and {error}"),
            Some(
                "as root: `modprobe tun` and `chmod 666 /dev/net/tun`; a container needs \
                 `--device /dev/net/tun`; `--no-net` does without",
            ),
        ),
    }
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let numbers: Vec<u32> =
        release.split(['.', '-']).map_while(|part| part.parse().ok()).take(2).collect();
    // For Landlock ABI 2 (renames), and idmapped layers for root.
    let grade = if numbers.as_slice() >= [5, 19].as_slice() { Grade::Good } else { Grade::Missing };
    finding(
        "process",
        "kernel",
        grade,
        format!("Linux {release}"),
        Some("Linux 5.19 or newer is needed"),
    )
}

fn user_namespaces() -> Finding {
    let fix = if Path::new("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").exists() {
        "AppArmor restricts them: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or an \
         AppArmor profile for msb that allows `userns`"
    } else {
        "`sysctl kernel.unprivileged_userns_clone=1` and `user.max_user_namespaces` above 0"
    };
    match try_namespaces() {
        Ok(()) => {
            finding("process", "user namespaces", Grade::Good, "can be made, with mounts", None)
        }
        Err(error) => finding("process", "user namespaces", Grade::Missing, error, Some(fix)),
    }
}

/// Creates the namespaces of a sandbox in a child process, and tries a mount there.
fn try_namespaces() -> Result<(), String> {
    match process::fork_into(process::BIRTH_NAMESPACES | process::NETWORK_NAMESPACE, None) {
        Err(error) => Err(format!("cannot be made: {error}")),
        Ok(Fork::Child) => {
            let private = rustix::mount::MountPropagationFlags::PRIVATE
                | rustix::mount::MountPropagationFlags::REC;
            let mounted = rustix::mount::mount_change("/", private);
            process::leave(i32::from(mounted.is_err()))
        }
        Ok(Fork::Parent { pidfd, .. }) => {
            let status = rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            );
            match status.ok().flatten().and_then(|status| status.exit_status()) {
                Some(0) => Ok(()),
                _ => Err("can be made, but nothing can be mounted in them".to_owned()),
            }
        }
    }
}

fn landlock() -> Finding {
    let fix = "boot with `landlock` in the kernel's `lsm=` list (Linux 5.19 or newer)";
    match process::landlock_version() {
        Some(version) if version >= 2 => {
            finding("process", "Landlock", Grade::Good, format!("version {version}"), None)
        }
        Some(version) => {
            finding("process", "Landlock", Grade::Missing, format!("version {version}"), Some(fix))
        }
        None => finding("process", "Landlock", Grade::Missing, "not offered", Some(fix)),
    }
}

fn seccomp() -> Finding {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let there = actions.split_whitespace().any(|action| action == "errno");
    let grade = if there { Grade::Good } else { Grade::Missing };
    let found = if there { "filters can be installed" } else { "not offered" };
    finding(
        "process",
        "seccomp",
        grade,
        found,
        Some("a kernel with CONFIG_SECCOMP_FILTER is needed"),
    )
}

fn ids(user: HostUser) -> Finding {
    if user.is_root() {
        return finding(
            "process",
            "user ids",
            Grade::Good,
            "64 Ki unused host ids for each sandbox",
            None,
        );
    }
    match user.subordinate_ids() {
        Some((uids, _)) => {
            let found = match user.is_container_root() {
                true => format!("root of a user namespace with {} ids", u64::from(uids.count) + 1),
                false => format!("newuidmap grants {}", uids.count),
            };
            finding("process", "user ids", Grade::Good, found, None)
        }
        None if user.is_container_root() => finding(
            "process",
            "user ids",
            Grade::Weaker,
            "root of a user namespace with one id: `--user` and sudo are refused in sandboxes",
            Some("map more ids, as `unshare --map-auto` and rootless podman do"),
        ),
        None => finding(
            "process",
            "user ids",
            Grade::Weaker,
            "only root exists in sandboxes of this user: `--user` and sudo are refused",
            Some("install `uidmap`, and have /etc/subuid and /etc/subgid grant this user ids"),
        ),
    }
}

fn cgroups() -> Finding {
    let controllers = CgroupControllers::find();
    let held: Vec<&str> =
        ["memory", "pids", "cpu"].into_iter().filter(|name| controllers.has(name)).collect();
    let version = match controllers.cgroup {
        Cgroup::None => "",
        Cgroup::V1 { .. } => "v1",
        Cgroup::V2 { .. } => "v2",
    };
    if held.len() == 3 {
        return finding(
            "process",
            "cgroups",
            Grade::Good,
            format!("{version}: {}", held.join(", ")),
            None,
        );
    }
    finding(
        "process",
        "cgroups",
        Grade::Weaker,
        "none that this user may write: memory is watched, processes are limited by rlimit",
        Some(
            "run as root, or in a delegated cgroup: \
             `systemd-run --user --scope -p Delegate=yes -- $SHELL`",
        ),
    )
}

/// Which kinds of volumes are available.
fn volumes(user: HostUser) -> Finding {
    let whole = "directories with and without a size, and disks";
    if !user.is_root() {
        return finding(
            "process",
            "volumes",
            Grade::Weaker,
            "directories without a size; no disks but in microVMs",
            Some("run msb as root for volumes with a size limit"),
        );
    }
    match has_loop_devices() {
        true => finding("process", "volumes", Grade::Good, whole, None),
        false => finding(
            "process",
            "volumes",
            Grade::Weaker,
            "directories without a size; there are no loop devices",
            Some("`modprobe loop`; in a container, hand it /dev/loop-control and loop devices"),
        ),
    }
}

/// Whether loop devices exist, so that root can mount an image file.
pub(crate) fn has_loop_devices() -> bool {
    fs::exists("/dev/loop-control").unwrap_or(false)
}

fn container() -> Finding {
    let inside = ["/.dockerenv", "/run/.containerenv"].iter().any(|path| Path::new(path).exists());
    if inside {
        return finding(
            "process",
            "surroundings",
            Grade::Weaker,
            "inside a container, which may mask /proc and forbid namespaces",
            Some(
                "start it with `--security-opt systempaths=unconfined --security-opt seccomp=unconfined`",
            ),
        );
    }
    finding("process", "surroundings", Grade::Good, "not in a container", None)
}

/// Space that a state directory should have: an image and what a sandbox writes.
const ENOUGH_SPACE: u64 = 1 << 30;

/// The disk of the state directory: whether it can be written, and how much space it has.
fn state_disk(home: Option<&Home>) -> Finding {
    let fix = format!("set {} to a directory on a local disk with 1 GiB of free space", env::HOME);
    let say = |grade, found: String| finding("process", "state disk", grade, found, Some(&fix));
    let Some(path) = home.map(Home::path) else {
        return say(Grade::Missing, "the state directory cannot be used".to_owned());
    };
    let shown = path.display();
    let (Ok(space), Ok(kind)) = (rustix::fs::statvfs(path), rustix::fs::statfs(path)) else {
        return say(Grade::Missing, format!("`{shown}` cannot be read"));
    };
    let free = Bytes(space.f_bavail * space.f_frsize);
    let read_only = space.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    if read_only || rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_err() {
        return say(Grade::Missing, format!("`{shown}` cannot be written"));
    }
    if kind.f_type == OVERLAY_MAGIC {
        let found =
            format!("`{shown}` is on overlayfs, where only `msb run` without volumes works");
        return say(Grade::Weaker, found);
    }
    match free.0 < ENOUGH_SPACE || space.f_favail == 0 && space.f_files > 0 {
        true => say(Grade::Weaker, format!("only {free} are free for `{shown}`")),
        false => say(Grade::Good, format!("{free} are free for `{shown}`")),
    }
}

/// `f_type` of overlayfs, which takes no upper directory of another overlay.
const OVERLAY_MAGIC: rustix::fs::FsWord = 0x794c_7630;

fn processor() -> Finding {
    match msb_sys::kvm::is_claimed() {
        true => finding("vm", "processor", Grade::Good, "virtualises (`svm` or `vmx`)", None),
        false => finding(
            "vm",
            "processor",
            Grade::Missing,
            "no hardware virtualisation (neither `svm` nor `vmx`)",
            Some(hardware::PROCESSOR_FIX),
        ),
    }
}

fn kvm_device() -> Finding {
    match hardware::access() {
        Ok(()) => finding("vm", hardware::DEVICE, Grade::Good, "can be opened", None),
        Err(error) => finding(
            "vm",
            hardware::DEVICE,
            Grade::Missing,
            format!("cannot be opened: {error}"),
            Some(hardware::DEVICE_FIX),
        ),
    }
}

/// Tried only with device and processor support: elsewhere it takes seconds to fail.
fn machine_entry() -> Finding {
    let missing =
        |found: String, fix| finding("vm", "machine entry", Grade::Missing, found, Some(fix));
    if hardware::access().is_err() || !msb_sys::kvm::is_claimed() {
        return missing("not tried without the above".to_owned(), "fix the above first");
    }
    match msb_sys::kvm::enter_once() {
        Ok(()) => finding("vm", "machine entry", Grade::Good, "a machine was entered", None),
        Err(error) => missing(format!("fails: {error}"), hardware::ENTRY_FIX),
    }
}

fn guest_kernel(home: Option<&Home>) -> Finding {
    let unusable = || Error::unsupported("the state directory cannot be used");
    match home.ok_or_else(unusable).and_then(|home| msb_kernel::find(&home.kernels())) {
        Ok(kernel) => finding(
            "vm",
            "guest kernel",
            Grade::Good,
            format!("Linux {} in `{}`", kernel.version, kernel.path.display()),
            None,
        ),
        Err(error) => finding(
            "vm",
            "guest kernel",
            Grade::Missing,
            error.message(),
            Some(error.advice().unwrap_or("`msb setup vm` builds one, once")),
        ),
    }
}

/// Whether the jail around the VMM can be created; it needs the same kernel features as the
/// `process` tier.
fn machine_jail() -> Finding {
    let needed = [user_namespaces(), landlock(), seccomp()];
    let lacking: Vec<&str> =
        needed.iter().filter(|one| one.grade == Grade::Missing).map(|one| one.what).collect();
    if lacking.is_empty() {
        return finding("vm", "jail", Grade::Good, "can be made around the machine", None);
    }
    let found = format!("cannot be made without {}", lacking.join(", "));
    finding("vm", "jail", Grade::Missing, found, Some("fix these for `process` above"))
}
