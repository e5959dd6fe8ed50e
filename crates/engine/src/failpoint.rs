//! Failpoints: with the feature `fixture`, tests let a launch fail after each of its steps.

use crate::sandboxes::Engine;

/// A step of launching a sandbox, in the order of the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "fixture"), expect(unreachable_pub, reason = "tests name the steps"))]
pub enum LaunchStep {
    /// The values of Secrets were read.
    Secrets,
    /// The volumes were locked.
    VolumeLocks,
    /// The layers were locked against removal.
    LayerLock,
    /// The directory has all its files, under a temporary name.
    DirectoryFilled,
    /// The directory has the name of the sandbox.
    DirectoryNamed,
    /// The socket for requests of children listens.
    CtlSocket,
    /// The worker process exists.
    WorkerForked,
    /// The process for requests of children exists.
    CtlProcess,
    /// The guest has booted.
    GuestReady,
    /// A patch was applied.
    Patch,
    /// The guest was told that all patches were applied.
    PatchesDone,
    /// The first command has started.
    CommandStarted,
}

#[cfg(not(feature = "fixture"))]
impl Engine {
    /// Does nothing: only tests fail here.
    #[inline]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with the fixture")]
    pub(crate) fn reached(&self, _step: LaunchStep) -> msb_spec::Result<()> {
        Ok(())
    }
}

#[cfg(feature = "fixture")]
pub use fixture::LaunchFault;

#[cfg(feature = "fixture")]
mod fixture {
    use super::{Engine, LaunchStep};
    use msb_spec::{Error, Kind, Result};

    /// What happens after a step of a launch.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LaunchFault {
        /// The step returns an error.
        Fail,
        /// This process is killed.
        Kill,
    }

    impl LaunchStep {
        /// Every step, in the order of the launch.
        pub const ALL: [Self; 12] = [
            Self::Secrets,
            Self::VolumeLocks,
            Self::LayerLock,
            Self::DirectoryFilled,
            Self::DirectoryNamed,
            Self::CtlSocket,
            Self::WorkerForked,
            Self::CtlProcess,
            Self::GuestReady,
            Self::Patch,
            Self::PatchesDone,
            Self::CommandStarted,
        ];
    }

    impl Engine {
        /// An engine with a fault after this step of each launch.
        #[must_use]
        pub fn with_fault(mut self, step: LaunchStep, fault: LaunchFault) -> Self {
            self.fault = Some((step, fault));
            self
        }

        /// Fails if a test has put a fault after this step.
        pub(crate) fn reached(&self, step: LaunchStep) -> Result<()> {
            match self.fault {
                Some((at, LaunchFault::Fail)) if at == step => {
                    Err(Error::new(Kind::State, format!("fault after {step:?}")))
                }
                Some((at, LaunchFault::Kill)) if at == step => {
                    let own = rustix::process::getpid().as_raw_nonzero().get();
                    let killed = msb_sys::signal::send(own, msb_sys::signal::SIGKILL);
                    killed.map_err(|error| Error::host("cannot kill this process", error))
                }
                _ => Ok(()),
            }
        }
    }
}
