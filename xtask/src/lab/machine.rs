//! The emulated machine: QEMU without hardware virtualisation, so it runs wherever the tests do.

use std::path::Path;
use std::process::Command;

use super::kernel::Kernel;

/// What a machine has beyond what all have.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// cgroup v2 with all controllers.
    Cgroups,
    /// AMD's virtualisation, so that its kernel has a real /dev/kvm.
    Nested,
    /// With KVM, and time as a count of instructions: repeatable whatever else the host does.
    Counted,
}

impl Kind {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Kind::Cgroups => {
                &["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"]
            }
            // With two processors, one that emulates a guest may not hear the other, and both hang.
            Kind::Nested => {
                &["-accel", "tcg,thread=single", "-cpu", "max,+svm", "-smp", "1", "-m", "4096"]
            }
            Kind::Counted => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=off",
                "-cpu",
                "max,+svm",
                "-smp",
                "1",
                "-m",
                "4096",
            ],
        }
    }
}

/// The command line that boots it; its console is stdin and stdout.
pub(crate) fn command(kind: Kind, kernel: &Kernel, disk: &Path) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-M", "q35", "-nodefaults", "-no-user-config", "-no-reboot"])
        .args(kind.arguments())
        .args(["-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-drive")
        .arg(format!("file={},if=none,id=root,format=raw,cache=unsafe", disk.display()))
        // Of QEMU's disks, the one with a driver that is built into the cloud kernel.
        .args(["-device", "nvme,drive=root,serial=root"])
        // `loglevel=1`: the kernel's word on each killed process would tear our lines apart.
        // `panic=-1` with `-no-reboot`: a panic ends the machine at once.
        .arg("-append")
        .arg(
            "console=ttyS0 quiet loglevel=1 panic=-1 watchdog_thresh=45 softlockup_panic=1 \
             cgroup_no_v1=all root=/dev/nvme0n1 rw init=/init",
        );
    command
}
