//! The first process of a sandbox, as the worker's loop needs it. Tests have one that is no
//! process.

use msb_jail::cgroup::SandboxCgroup;
use msb_jail::{JailedProcess, ProcessDir};
use msb_spec::Result;
use rustix::process::{Signal, WaitId, WaitIdOptions};
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The process of the guest, or of the VMM around it.
pub(crate) trait GuestProcess: Debug {
    /// Its pid on the host.
    fn pid(&self) -> u32;
    /// A descriptor that is readable once the process has exited.
    fn pidfd(&self) -> BorrowedFd<'_>;
    /// Waits until the guest runs, or returns why it does not.
    fn wait_started(&mut self) -> Result<()>;
    /// Sends SIGKILL, and returns at once.
    fn send_kill(&self);
    /// Waits until it has exited.
    fn wait_exited(&self);
    /// Its exit status, if it has exited by itself.
    fn exit_status(&self) -> Option<i32>;
    /// Its cgroup, if the Plan has one.
    fn group(&self) -> Option<&SandboxCgroup>;
    /// Where its processes are listed.
    fn processes(&self) -> &ProcessDir;
    /// Its tmpfs mounts, if the worker enforces the memory limit.
    fn tmpfs_mounts(&self) -> &[OwnedFd];
    /// Its writable layer, if the size of that is limited.
    fn sized_upper(&self) -> Option<&OwnedFd>;
    /// Read end of the console of the image's init.
    fn console(&self) -> Option<BorrowedFd<'_>>;
    /// Closes the console at its end.
    fn close_console(&mut self);
}

impl GuestProcess for JailedProcess {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn wait_started(&mut self) -> Result<()> {
        Self::wait_started(self)
    }

    fn send_kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn wait_exited(&self) {
        let _ = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }

    fn exit_status(&self) -> Option<i32> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
        status.ok().flatten().and_then(|status| status.exit_status())
    }

    fn group(&self) -> Option<&SandboxCgroup> {
        self.group.as_ref()
    }

    fn processes(&self) -> &ProcessDir {
        &self.processes
    }

    fn tmpfs_mounts(&self) -> &[OwnedFd] {
        &self.tmpfs_mounts
    }

    fn sized_upper(&self) -> Option<&OwnedFd> {
        self.sized_upper.as_ref()
    }

    fn console(&self) -> Option<BorrowedFd<'_>> {
        self.console.as_ref().map(AsFd::as_fd)
    }

    fn close_console(&mut self) {
        self.console = None;
    }
}
