//! The programs that are compared, and the command lines that make them do the same.
//!
//! Everyone gets namespaces of its own (user, mount, pid, net, ipc, uts), the same root, /proc,
//! /dev and a /tmp. The others get less than `msb` gives: no overlay, no Landlock, no seccomp.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::bench_dir::BenchDir;
use super::runner::View;
use super::stopwatch::Argv;
use crate::workspace;

/// Seconds; longer than any benchmark. The payload of what is only there to be entered.
const FOREVER: &str = "86400";

const RUN: [&str; 5] = ["run", "--no-net", "-q", "--isolation", "process"];

/// Makes command lines with full paths, so that no search along PATH is timed.
pub(super) struct Contenders {
    msb: String,
    rootfs: String,
    oci: String,
    run: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Oci {
    Crun,
    Runc,
}

impl Oci {
    pub(super) const ALL: [Oci; 2] = [Oci::Crun, Oci::Runc];

    pub(super) fn name(self) -> &'static str {
        match self {
            Oci::Crun => "crun",
            Oci::Runc => "runc",
        }
    }
}

impl Contenders {
    /// Writes the bundles of the OCI runtimes.
    pub(super) fn prepare(bench_dir: &BenchDir) -> Result<Self> {
        let contenders = Contenders {
            msb: bench_dir.path("msb"),
            rootfs: bench_dir.path("rootfs"),
            oci: bench_dir.path("oci"),
            run: bench_dir.path("run"),
        };
        let [uid, gid] = ["-u", "-g"].map(|flag| number(flag, bench_dir.user.name));
        let (uid, gid) = (uid?, gid?);
        for (bundle, payload) in
            [("true", &["/bin/true"][..]), ("sleep", &["/bin/sleep", FOREVER][..])]
        {
            let dir = format!("{}/{bundle}", contenders.oci);
            fs::create_dir_all(&dir)?;
            let config = config(&contenders.rootfs, payload, uid, gid);
            fs::write(format!("{dir}/config.json"), config.to_string())?;
        }
        Ok(contenders)
    }

    pub(super) fn msb(&self, arguments: &[&str]) -> Argv {
        words(&self.msb, arguments)
    }

    pub(super) fn msb_run(&self) -> Argv {
        self.msb(&[&RUN[..], &[self.rootfs.as_str(), "--", "/bin/true"]].concat())
    }

    pub(super) fn msb_run_image(&self, image: &str, command: &[&str]) -> Argv {
        self.msb_run_with(&[&[image, "--"], command].concat())
    }

    /// Options, image and command.
    pub(super) fn msb_run_with(&self, rest: &[&str]) -> Argv {
        self.msb(&[&RUN[..], &["--pull", "never"], rest].concat())
    }

    /// What makes a sandbox that stays, and what removes it.
    pub(super) fn msb_box(&self, name: &str) -> [Argv; 2] {
        let create = ["create", "--no-net", "-q", "--isolation", "process", "--name", name];
        [
            self.msb(&[&create[..], &[self.rootfs.as_str()]].concat()),
            self.msb(&["rm", "-q", "-f", name]),
        ]
    }

    pub(super) fn bwrap_true(&self) -> Argv {
        self.bwrap(&["/bin/true"])
    }

    /// A sandbox that stays; `name` is its host name.
    pub(super) fn bwrap_box(&self, name: &str) -> Argv {
        self.bwrap(&["--hostname", name, "/bin/sleep", FOREVER])
    }

    fn bwrap(&self, rest: &[&str]) -> Argv {
        let flags = ["--unshare-all", "--die-with-parent", "--bind", &self.rootfs, "/"];
        let mounts = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"];
        words(&installed("bwrap"), &[&flags[..], &mounts[..], rest].concat())
    }

    pub(super) fn oci(&self, oci: Oci, arguments: &[&str]) -> Argv {
        let state = format!("{}/{}", self.run, oci.name());
        words(&installed(oci.name()), &[&["--root", &state][..], arguments].concat())
    }

    pub(super) fn oci_run(&self, oci: Oci, id: &str) -> Argv {
        self.oci(oci, &["run", "--bundle", &format!("{}/true", self.oci), id])
    }

    /// What starts a container that stays, and what removes it.
    pub(super) fn oci_box(&self, oci: Oci, id: &str) -> [Argv; 2] {
        let bundle = format!("{}/sleep", self.oci);
        let pid_file = self.pid_file(oci, id);
        [
            self.oci(oci, &["run", "--detach", "--pid-file", &pid_file, "--bundle", &bundle, id]),
            self.oci(oci, &["delete", "--force", id]),
        ]
    }

    /// Where the first process of such a container is noted.
    pub(super) fn pid_file(&self, oci: Oci, id: &str) -> String {
        format!("{}/{}-{id}.pid", self.run, oci.name())
    }

    /// The payload itself, as a program of the host.
    pub(super) fn host_true(&self) -> Argv {
        words(&format!("{}/bin/true", self.rootfs), &[])
    }
}

/// Starts a sandbox and a container of each runtime, all called `name`; which of the others
/// could not be started shows when they are measured.
pub(super) fn start_boxes(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    name: &str,
) -> Result<()> {
    let [start, end] = contenders.msb_box(name);
    bench_dir.start(View::Plain, &start, end).context("cannot create a sandbox")?;
    for oci in Oci::ALL {
        let [start, end] = contenders.oci_box(oci, name);
        if let Err(error) = bench_dir.start(View::NoHybrid, &start, end) {
            eprintln!("warning: {}: {error:#}", oci.name());
        }
    }
    Ok(())
}

/// Where the distribution's package has put it: runc lies in sbin on some.
fn installed(name: &str) -> String {
    let sbin = format!("/usr/sbin/{name}");
    if Path::new(&sbin).exists() { sbin } else { format!("/usr/bin/{name}") }
}

pub(super) fn words(program: &str, arguments: &[&str]) -> Argv {
    [&[program], arguments].concat().into_iter().map(str::to_owned).collect()
}

fn number(flag: &str, user: &str) -> Result<u32> {
    let number = workspace::output(Command::new("id").args([flag, user]))?;
    number.trim().parse().with_context(|| format!("no number of user `{user}`"))
}

/// What `crun spec --rootless` of Debian 12 writes, but for the payload, a writable root, a
/// private /tmp, and no view of cgroups, which the others do not give either.
fn config(rootfs: &str, payload: &[&str], uid: u32, gid: u32) -> serde_json::Value {
    let capabilities = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"];
    let quiet = ["nosuid", "noexec", "nodev"];
    json!({
        "ociVersion": "1.0.0",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": payload,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": {
                "bounding": capabilities,
                "effective": capabilities,
                "permitted": capabilities,
            },
            "noNewPrivileges": true,
        },
        "root": {"path": rootfs, "readonly": false},
        "hostname": "oci",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": quiet},
            {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": quiet},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs",
             "options": ["nosuid", "noexec", "nodev", "ro"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "nodev"]},
        ],
        "linux": {
            "uidMappings": [{"containerID": 0, "hostID": uid, "size": 1}],
            "gidMappings": [{"containerID": 0, "hostID": gid, "size": 1}],
            "namespaces": [
                {"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"},
                {"type": "user"}, {"type": "mount"},
            ],
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware",
                "/proc/scsi",
            ],
            "readonlyPaths": [
                "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
            ],
        },
    })
}
