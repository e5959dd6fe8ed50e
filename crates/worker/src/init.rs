//! The image's own init: starting it as PID 1, reading its console, ending with it.

use crate::guest::GuestTransport;
use crate::microvm::BOOT_LIMIT;
use crate::worker::Worker;
use msb_spec::{Ending, Error, Exit, InitProgram, Isolation, Kind, Profile, Result, Stage};
use msb_sys::signal;
use msb_wire::record::Source;
use msb_wire::{Handover, InitFailure, Reply, ToGuest, ToMachine};

/// ENOENT; the number is the same on every architecture.
const NO_FILE: i32 = 2;

/// State of the image's init.
#[derive(Debug, Default)]
pub(crate) enum InitState {
    /// The guest has not been told to start it.
    #[default]
    NotRequested,
    /// The guest was told to start it; this client waits for the result.
    Requested(Option<u64>),
    /// It is PID 1 inside.
    Running,
    /// It could not be started.
    Failed(Error),
}

impl Worker {
    /// Waits until the image's init is PID 1, or returns why it is not. Does nothing if the caller
    /// patches files first; then the `Go` frame starts the init.
    pub(crate) fn await_init(&mut self) -> Result<()> {
        if self.plan.init.is_none() || !self.plan.patches.is_empty() {
            return Ok(());
        }
        self.start_init(None);
        self.lifetime.boot_deadline = Some(self.clock.now() + BOOT_LIMIT);
        let done = loop {
            match &self.guest.init_state {
                InitState::Running => break Ok(()),
                InitState::Failed(error) => break Err(error.clone()),
                InitState::NotRequested | InitState::Requested(_) => {}
            }
            let now = self.clock.now();
            let late = self.lifetime.boot_deadline.is_some_and(|limit| now >= limit);
            if late || self.lifetime.outcome.is_some() {
                let message = "the guest ended before the init started";
                break Err(Error::new(Kind::Protocol, message).at(Stage::Boot));
            }
            for (ready, flags) in self.wait() {
                self.handle(ready, flags);
                if self.lifetime.outcome.is_some() {
                    break;
                }
            }
        };
        self.lifetime.boot_deadline = None;
        done
    }

    /// Tells the guest to start the init; `client` waits for the result.
    pub(crate) fn start_init(&mut self, client: Option<u64>) {
        let Some(init) = &self.plan.init else { return };
        let mut env = self.plan.env.clone();
        env.extend(init.env.clone());
        let handover = Handover {
            candidates: init.program.candidates(),
            guessed: init.program == InitProgram::Auto,
            args: init.args.clone(),
            env: env.into_iter().collect(),
            rlimits: self.plan.rlimits.clone(),
            systemd: self.plan.isolation == Isolation::Vm,
            restricted: self.plan.security.profile == Profile::Restricted,
            stop_signal: init.stop_signal,
        };
        self.guest.init_state = InitState::Requested(client);
        match &mut self.guest.transport {
            GuestTransport::Vm(vm) => vm.send_control(&ToMachine::Init(handover)),
            GuestTransport::Jail(jail) => {
                if jail.request(&ToGuest::Init(handover), &[]).is_err() {
                    self.finish(Ending::Crashed, None);
                }
            }
        }
    }

    /// The init was started, or has failed.
    pub(crate) fn on_init_started(&mut self, failure: Option<InitFailure>) {
        let InitState::Requested(client) = self.guest.init_state else { return };
        let Some(failure) = failure else {
            self.guest.init_state = InitState::Running;
            self.lifetime.init = true;
            if let Some(client) = client {
                self.mark_created();
                if let Some(client) = self.clients.get_mut(client) {
                    client.reply(&Reply::Ready);
                }
                self.start_main();
            }
            return;
        };
        let error = self.init_error(failure);
        self.guest.init_state = InitState::Failed(error.clone());
        if let Some(client) = client {
            self.execs.failed_main = vec![(client, error)];
            self.finish(Ending::Own, None);
        }
    }

    fn init_error(&self, failure: InitFailure) -> Error {
        let plain = |text: String| -> String {
            text.chars().filter(|letter| !letter.is_control()).take(200).collect()
        };
        let os_error = std::io::Error::from_raw_os_error;
        let program = self.plan.init.as_ref().map(|init| init.program.to_string());
        let program = program.unwrap_or_default();
        match failure {
            InitFailure::None => Error::new(Kind::CommandNotFound, "the image has no init").hint(
                format!("`--init PATH` names one; looked for {}", InitProgram::USUAL.join(", ")),
            ),
            InitFailure::NotFound => {
                Error::new(Kind::CommandNotFound, format!("init not found inside: `{program}`"))
                    .hint("`--init auto` looks where images usually have one")
            }
            InitFailure::NotExecutable { path, errno } => {
                let message = format!("the init cannot be executed: `{}`", plain(path));
                let error = Error::new(Kind::NotExecutable, message).cause(os_error(errno));
                match errno {
                    // The file existed a moment ago, so its interpreter is missing.
                    NO_FILE => error
                        .hint("the image lacks the script's interpreter or the program's loader"),
                    _ => error,
                }
            }
            InitFailure::Systemd { path } => InitProgram::no_systemd(&plain(path)),
            InitFailure::Process { errno } => {
                Error::host("the guest cannot start the init as PID 1", os_error(errno))
            }
        }
        .at(Stage::Boot)
    }

    /// The init has exited, and everything inside with it.
    pub(crate) fn on_init_exited(&mut self, code: Option<i32>, signal: Option<i32>) {
        if !matches!(self.guest.init_state, InitState::Running) {
            return;
        }
        // The kernel reports reboot(2) in a pid namespace as this signal of its init; a process
        // cannot kill it so.
        let off =
            self.guest.vm().is_some() && matches!(signal, Some(signal::SIGINT | signal::SIGHUP));
        let memory = self.lifetime.memory_hit(self.guest.process.group());
        let ending = match self.lifetime.stopping {
            Some((ending, _)) => ending,
            None if off => Ending::PoweredOff,
            None if memory && signal.is_some() => Ending::Memory,
            None => Ending::Own,
        };
        self.lifetime.init = false;
        self.finish(ending, Some(Exit { code, signal, ending, reached: None }));
    }

    /// Reads the console of an init in a jail; false when nothing is left to read.
    pub(crate) fn read_init_console(&mut self) -> bool {
        let Some(console) = self.guest.process.console() else { return false };
        match rustix::io::read(console, &mut self.buffer) {
            Ok(n) if n > 0 => {
                self.logs.output.output(Source::System, 0, &self.buffer[..n]);
                true
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            _ => {
                self.guest.process.close_console();
                false
            }
        }
    }
}
