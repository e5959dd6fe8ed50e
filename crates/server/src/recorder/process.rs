//! Commands that run as processes of the test host.

use msb_api::{Exec, ExecEvent, ExecInput};
use msb_spec::{Command, Ending, Error, Exit, Kind, Result, Stdin, TermSize};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Starts a process in its own process group.
pub(super) fn start(command: &Command) -> Result<Box<dyn Exec>> {
    let (program, arguments) = command.argv.split_first().expect("a command");
    let stdin = match command.stdin {
        Stdin::Streamed => Stdio::piped(),
        Stdin::Closed => Stdio::null(),
    };
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .envs(command.env.iter().map(|(key, value)| (key, value)))
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| Error::new(Kind::CommandNotFound, "cannot start").cause(error))?;
    let pid = child.id();
    let stdin = child.stdin.take();
    let timeout = command.timeout;
    let (events_out, events) = mpsc::sync_channel(16);
    thread::spawn(move || watch(child, &events_out));
    let input = Arc::new(FakeInput { pid, stdin: Mutex::new(stdin) });
    if let Some(timeout) = timeout {
        let input = Arc::clone(&input);
        thread::spawn(move || {
            thread::sleep(timeout.0);
            input.signal(9)
        });
    }
    Ok(Box::new(FakeProcess { events, input, timed: timeout.is_some() }))
}

fn watch(mut child: Child, events_out: &SyncSender<ExecEvent>) {
    let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    thread::scope(|scope| {
        scope.spawn(|| relay(out, events_out, ExecEvent::Stdout));
        scope.spawn(|| relay(err, events_out, ExecEvent::Stderr));
    });
    let status = child.wait().expect("a child");
    let exit =
        Exit { code: status.code(), signal: status.signal(), ending: Ending::Own, reached: None };
    let _ = events_out.send(ExecEvent::Exited(exit));
}

fn relay(
    mut from: impl Read,
    events_out: &SyncSender<ExecEvent>,
    event: impl Fn(Vec<u8>) -> ExecEvent,
) {
    let mut piece = vec![0; 65536];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if events_out.send(event(piece[..length].to_vec())).is_err() {
            return;
        }
    }
}

struct FakeProcess {
    events: Receiver<ExecEvent>,
    input: Arc<FakeInput>,
    timed: bool,
}

impl Exec for FakeProcess {
    fn id(&self) -> u64 {
        1
    }

    fn pid(&self) -> u32 {
        self.input.pid
    }

    fn next(&mut self) -> Result<Option<ExecEvent>> {
        let timed = self.timed;
        Ok(self.events.recv().ok().map(|event| match event {
            ExecEvent::Exited(exit) if timed && exit.signal == Some(9) => {
                ExecEvent::Exited(Exit { ending: Ending::Timeout, ..exit })
            }
            event => event,
        }))
    }

    fn input(&self) -> Arc<dyn ExecInput> {
        Arc::clone(&self.input) as Arc<dyn ExecInput>
    }
}

impl Drop for FakeProcess {
    fn drop(&mut self) {
        let _ = self.input.signal(9);
    }
}

struct FakeInput {
    pid: u32,
    stdin: Mutex<Option<ChildStdin>>,
}

impl ExecInput for FakeInput {
    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        let stdin = stdin.as_mut().ok_or_else(|| Error::invalid("stdin is closed"))?;
        stdin.write_all(bytes).and_then(|()| stdin.flush()).map_err(|e| Error::host("write", e))
    }

    fn close(&self) -> Result<()> {
        self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    fn signal(&self, signal: i32) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid.cast_signed()).expect("a pid");
        let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
        rustix::process::kill_process_group(pid, signal).map_err(|e| Error::host("kill", e))
    }

    fn resize(&self, _: TermSize) -> Result<()> {
        Ok(())
    }

    fn detach(&self) -> Result<()> {
        Ok(())
    }
}
