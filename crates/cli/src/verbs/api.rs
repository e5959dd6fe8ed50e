//! `msb api`: sandboxes for one program, on the pipes between them.

use crate::output::Outcome;
use crate::target::tidy_up;
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_api::http::SecretValues;
use msb_api::{Create, Summary, Watch};
use msb_engine::{Engine, Launcher, SandboxTie};
use msb_server::{OwnedSandbox, SandboxOwner, Session};
use msb_spec::{CallOrigin, Error, Name, Result, Surface};
use msb_sys::signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that are read at once: a pipe holds as many.
const CHUNK: usize = 64 << 10;

/// Serves the session protocol to the program that starts it. The SDKs use it;
/// docs/session-protocol.md describes the frames.
///
/// Sandboxes of the session end with the program, unless it releases them.
#[derive(Debug, Parser)]
pub(crate) struct ApiArgs {
    /// Speak on stdin and stdout
    #[arg(long, required = true)]
    stdio: bool,
    /// End with the process of this pid, which has to be the one that starts msb
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,
}

impl LocalVerb for ApiArgs {
    fn run(self) -> Outcome {
        let parent = self.parent.map(watched_parent).transpose()?;
        // Ctrl-C at a terminal reaches the whole group; the program decides what it means.
        for ignored in [signal::SIGINT, signal::SIGQUIT, signal::SIGHUP] {
            signal::ignore(ignored);
        }
        msb_engine::raise_file_limit();
        // This process has threads, so it cannot become a worker by forking.
        let engine = Engine::open(Launcher::Execute("/proc/self/exe".into()))?
            .with_default_origin(CallOrigin::new(Surface::Sdk));
        tidy_up(&engine);
        let owner = Arc::new(EngineOwner(engine.clone()));
        let session = Session::new(Arc::new(engine), owner, Box::new(std::io::stdout()));
        serve(session, parent.as_ref())?;
        Ok(0)
    }
}

/// A descriptor that becomes readable when the parent has ended.
fn watched_parent(pid: i32) -> Result<OwnedFd> {
    let gone = || {
        Error::invalid(format!("not the process that started msb: {pid}"))
            .hint("`--parent` is the pid of the program itself")
    };
    let is_parent = || getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == pid);
    let parent = Pid::from_raw(pid).filter(|_| is_parent()).ok_or_else(gone)?;
    let watched = pidfd_open(parent, PidfdFlags::empty())
        .map_err(|error| Error::host("cannot watch the parent", error))?;
    // It may have ended in between, and its pid may be that of another process.
    if is_parent() { Ok(watched) } else { Err(gone()) }
}

/// Passes on the bytes of the program until it ends.
fn serve(mut session: Session, parent: Option<&OwnedFd>) -> Result<()> {
    let mut stdin = std::io::stdin().lock();
    let mut bytes = vec![0; CHUNK];
    loop {
        let input = rustix::stdio::stdin();
        let mut waiting = vec![PollFd::new(&input, PollFlags::IN)];
        waiting.extend(parent.map(|parent| PollFd::new(parent, PollFlags::IN)));
        match poll(&mut waiting, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(Error::host("cannot wait for the program", error)),
        }
        // Also if another process still holds the pipe.
        if waiting.get(1).is_some_and(|parent| !parent.revents().is_empty()) {
            return Ok(());
        }
        match stdin.read(&mut bytes) {
            Ok(0) => return session.finish(),
            Ok(count) => session.receive(&bytes[..count])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::host("cannot read from the program", error)),
        }
    }
}

/// Owns sandboxes of this machine.
struct EngineOwner(Engine);

impl EngineOwner {
    fn with(&self, secrets: SecretValues) -> Engine {
        let values = secrets.into_iter().map(|(name, value)| (name, value.into_bytes().into()));
        self.0.with_secrets(values.collect())
    }
}

impl SandboxOwner for EngineOwner {
    fn create(
        &self,
        create: &Create,
        secrets: SecretValues,
        watch: &dyn Watch,
    ) -> Result<(Summary, Box<dyn OwnedSandbox>)> {
        let (summary, tie) = self.with(secrets).create_owned(create, watch)?;
        Ok((summary, Box::new(Tie(tie))))
    }

    fn start(&self, name: &Name, secrets: SecretValues) -> Result<Option<Box<dyn OwnedSandbox>>> {
        let tie = self.with(secrets).start_owned(name)?;
        Ok(tie.map(|tie| Box::new(Tie(tie)) as Box<dyn OwnedSandbox>))
    }

    fn own(&self, name: &Name) -> Result<Box<dyn OwnedSandbox>> {
        Ok(Box::new(Tie(self.0.tie(name)?)))
    }
}

struct Tie(SandboxTie);

impl OwnedSandbox for Tie {
    fn release(self: Box<Self>) -> Result<()> {
        self.0.release()
    }
}
