//! What this host can do, tier by tier, and how to get what is missing.

use crate::hardware;
use crate::host::{Controllers, User, subordinate};
use crate::kernel;
use crate::planning;
use crate::store::Home;
use msb_spec::{Cgroup, Error};
use msb_sys::process::{self, Fork};
use serde::Serialize;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

/// How a finding bears on running sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// It is there.
    Good,
    /// Something is weaker or missing without it.
    Weaker,
    /// The tier does not work without it.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which tier it is for.
    pub tier: &'static str,
    /// What was looked at.
    pub what: &'static str,
    /// How it is.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// How to get it.
    pub fix: Option<String>,
}

/// Looks at everything. Changes nothing.
pub fn examine(home: Option<&Home>) -> Vec<Finding> {
    let user = User::current();
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

/// The gateway itself needs nothing else.
fn network_device() -> Finding {
    match planning::network::device() {
        Ok(()) => finding("process", "network", Grade::Good, "devices can be made", None),
        Err(error) => {
            let found = error.causes().join(": ");
            let found = format!("{}: {found}", error.message());
            finding("process", "network", Grade::Weaker, found, error.advice())
        }
    }
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let numbers: Vec<u32> =
        release.split(['.', '-']).map_while(|part| part.parse().ok()).take(2).collect();
    // Landlock that governs renames, and idmapped layers for root.
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

/// Makes what a sandbox would make and takes its word for it.
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

fn ids(user: User) -> Finding {
    if user.is_root() {
        return finding(
            "process",
            "user ids",
            Grade::Good,
            "64 Ki unused host ids for each sandbox",
            None,
        );
    }
    match subordinate(&user.name().unwrap_or_default(), user.uid) {
        Some((uids, _)) => finding(
            "process",
            "user ids",
            Grade::Good,
            format!("newuidmap grants {}", uids.count),
            None,
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
    let controllers = Controllers::find();
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

/// What volumes are limited by here.
fn volumes(user: User) -> Finding {
    let whole = "directories with and without a size, and disks";
    if !user.is_root() {
        return finding(
            "process",
            "volumes",
            Grade::Weaker,
            "directories without a size; no disks but in microVMs",
            Some("run msb as root for volumes whose size is limited"),
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

/// Whether root can mount a file as a disk.
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

/// Only where both the device and the processor are there: others take seconds to fail.
fn machine_entry() -> Finding {
    let missing =
        |found: String, fix| finding("vm", "machine entry", Grade::Missing, found, Some(fix));
    if hardware::access().is_err() || !msb_sys::kvm::is_claimed() {
        return missing("not tried without the above".to_owned(), "mend the above first");
    }
    match msb_sys::kvm::enter_once() {
        Ok(()) => finding("vm", "machine entry", Grade::Good, "a machine was entered", None),
        Err(error) => missing(format!("fails: {error}"), hardware::ENTRY_FIX),
    }
}

fn guest_kernel(home: Option<&Home>) -> Finding {
    let unusable = || Error::unsupported("the state directory cannot be used");
    match home.ok_or_else(unusable).and_then(kernel::find) {
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

/// The process of a machine is in a jail, which the `process` tier is made of too.
fn machine_jail() -> Finding {
    let needed = [user_namespaces(), landlock(), seccomp()];
    let lacking: Vec<&str> =
        needed.iter().filter(|one| one.grade == Grade::Missing).map(|one| one.what).collect();
    if lacking.is_empty() {
        return finding("vm", "jail", Grade::Good, "can be made around the machine", None);
    }
    let found = format!("cannot be made without {}", lacking.join(", "));
    finding("vm", "jail", Grade::Missing, found, Some("mend these for `process` above"))
}
