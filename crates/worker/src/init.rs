//! The image's own init: let it become PID 1, hear what it says, end with it.

use crate::guest::Way;
use crate::machine::BOOT_LIMIT;
use crate::worker::Worker;
use msb_spec::{Ending, Error, Exit, InitProgram, Isolation, Kind, Profile, Result, Stage};
use msb_sys::signal;
use msb_wire::record::Source;
use msb_wire::{Handover, InitFailure, Reply, ToGuest, ToMachine};
use std::time::Instant;

/// ENOENT, which has one number everywhere.
const NO_FILE: i32 = 2;

/// How far an init has come.
#[derive(Debug, Default)]
pub(crate) enum Handing {
    /// Nobody has asked for one yet.
    #[default]
    NotYet,
    /// The guest was told; who waits for that.
    Asked(Option<u64>),
    /// It is PID 1.
    Up,
    /// It could not be.
    Failed(Error),
}

impl Worker {
    /// Waits until the image's init is PID 1, or tells why it is not. Where something is to be
    /// changed before it begins, that comes first.
    pub(crate) fn await_init(&mut self) -> Result<()> {
        if self.plan.init.is_none() || !self.plan.patches.is_empty() {
            return Ok(());
        }
        self.hand_over(None);
        self.booting = Some(Instant::now() + BOOT_LIMIT);
        let done = loop {
            match &self.handing {
                Handing::Up => break Ok(()),
                Handing::Failed(error) => break Err(error.clone()),
                Handing::NotYet | Handing::Asked(_) => {}
            }
            let late = self.booting.is_some_and(|limit| Instant::now() >= limit);
            if late || self.over.is_some() {
                let message = "the guest went away before the init began";
                break Err(Error::new(Kind::Protocol, message).at(Stage::Boot));
            }
            for (ready, flags) in self.wait() {
                self.handle(ready, flags);
                if self.over.is_some() {
                    break;
                }
            }
        };
        self.booting = None;
        done
    }

    /// Tells the guest to let the init begin; `client` waits for that.
    pub(crate) fn hand_over(&mut self, client: Option<u64>) {
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
        self.handing = Handing::Asked(client);
        match &mut self.guest.way {
            Way::Machine(machine) => machine.tell(&ToMachine::Init(handover)),
            Way::Jailed(jailed) => {
                if jailed.ask(&ToGuest::Init(handover), &[]).is_err() {
                    self.finish(Ending::Crashed, None);
                }
            }
        }
    }

    /// What came of that.
    pub(crate) fn handed_over(&mut self, failure: Option<InitFailure>) {
        let Handing::Asked(client) = self.handing else { return };
        let Some(failure) = failure else {
            self.handing = Handing::Up;
            self.life.init = true;
            if let Some(client) = client {
                self.complete();
                if let Some(client) = self.clients.get_mut(&client) {
                    client.reply(&Reply::Ready);
                }
                self.start_first();
            }
            return;
        };
        let error = self.no_init(failure);
        self.handing = Handing::Failed(error.clone());
        if let Some(client) = client {
            self.unstarted = vec![(client, error)];
            self.finish(Ending::Own, None);
        }
    }

    fn no_init(&self, failure: InitFailure) -> Error {
        let plain = |text: String| -> String {
            text.chars().filter(|letter| !letter.is_control()).take(200).collect()
        };
        let said = std::io::Error::from_raw_os_error;
        let asked = self.plan.init.as_ref().map(|init| init.program.to_string());
        let asked = asked.unwrap_or_default();
        match failure {
            InitFailure::None => Error::new(Kind::CommandNotFound, "the image has no init").hint(
                format!("`--init PATH` names one; looked for {}", InitProgram::USUAL.join(", ")),
            ),
            InitFailure::NotFound => {
                Error::new(Kind::CommandNotFound, format!("init not found inside: `{asked}`"))
                    .hint("`--init auto` looks where images usually have one")
            }
            InitFailure::NotExecutable { path, errno } => {
                let message = format!("the init cannot be executed: `{}`", plain(path));
                let error = Error::new(Kind::NotExecutable, message).cause(said(errno));
                match errno {
                    // It was there a moment ago.
                    NO_FILE => error.hint("the image lacks what it is run by: a script's interpreter, or a program's loader"),
                    _ => error,
                }
            }
            InitFailure::Systemd { path } => InitProgram::no_systemd(&plain(path)),
            InitFailure::Process { errno } => {
                Error::host("the guest cannot hand PID 1 over", said(errno))
            }
        }
        .at(Stage::Boot)
    }

    /// PID 1 is over, and everything inside with it.
    pub(crate) fn init_ended(&mut self, code: Option<i32>, signal: Option<i32>) {
        if !matches!(self.handing, Handing::Up) {
            return;
        }
        // The kernel ends PID 1 this way when somebody below it switches off; nothing else can.
        let off = self.guest.machine().is_some()
            && matches!(signal, Some(signal::SIGINT | signal::SIGHUP));
        let memory = self.life.memory_hit(&self.guest.confined, &mut self.memory_seen);
        let ending = match self.life.stopping {
            Some((ending, _)) => ending,
            None if off => Ending::PoweredOff,
            None if memory && signal.is_some() => Ending::Memory,
            None => Ending::Own,
        };
        self.life.init = false;
        self.finish(ending, Some(Exit { code, signal, ending, reached: None }));
    }

    /// What an init in a jail says; false once there is nothing more.
    pub(crate) fn hear_init(&mut self) -> bool {
        let Some(console) = &self.guest.confined.console else { return false };
        match rustix::io::read(console, &mut self.buffer) {
            Ok(n) if n > 0 => {
                self.output.output(Source::System, 0, &self.buffer[..n]);
                true
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            _ => {
                self.guest.confined.console = None;
                false
            }
        }
    }
}
