//! The persistent shell of a sandbox: variables last, and a command needs no new Exec.
//!
//! It is an interactive `sh` without a terminal. An interactive shell survives interrupts and
//! syntax
//! errors, and prints a prompt when it is ready again. A command is one line of its input:
//!
//! ```text
//! PS1=P; cd WORKDIR; . ENV; eval 'COMMAND' </dev/null; printf MARK+STATUS; printf MARK >&2
//! ```
//!
//! Mark and prompt are random for every command, so that no output can be mistaken for its end.
//! Later output of background children goes to the command that runs then. A prompt without a mark
//! before it means that the shell has aborted the line; its status is then queried. A command that
//! ends the shell (`exit`, `exec`) has the status of the shell.
//!
//! A thread reads the output of the Exec; the holder of the lock is the only listener.

use super::format::quoted;
use super::stream::MarkedStream;
use crate::cancel::Cancel;
use msb_api::{Api, CodeEvent, Exec, ExecEvent, ExecInput};
use msb_spec::encoding::hex;
use msb_spec::{CallOrigin, Command, Error, Kind, Name, Result, Span, Stdin};
use msb_sys::signal::{SIGINT as INTERRUPT, SIGKILL as KILL};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// The file with the environment, sourced before every command.
pub(super) const ENV_FILE: &str = "/etc/profile.d/mcp-env.sh";
/// The default working directory of commands.
pub(super) const WORKSPACE: &str = "/workspace";

/// Without these options, bash would edit its input lines and read startup files.
const START: &str = "unset ENV; PS1= PS2=; export PS1 PS2; \
    if [ -n \"$BASH_VERSION\" ]; then exec bash --posix --norc --noediting -i; fi; exec sh -i";
/// Time to start a shell. It takes milliseconds, but the host may be busy.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time for an interrupted or killed command to return control to the shell.
const GRACE: Duration = Duration::from_secs(1);
/// Kills all descendants of a process. Each level is a subshell, because `sh` has no local
/// variables.
const KILL_DESCENDANTS: &str = "below() ( for at in /proc/[0-9]*; do above=; \
    while read -r key value; do case $key in PPid:) above=$value; break;; esac; done \
    2>/dev/null <\"$at/status\"; \
    if [ \"$above\" = \"$1\" ]; then below \"${at#/proc/}\"; kill -9 \"${at#/proc/}\"; fi; \
    done; ) 2>/dev/null; below \"$1\"";
/// A digit that the shell computes in its prompt.
const COMPUTED_DIGIT: &str = "7";
/// Time to find and kill the descendants of a shell.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Output chunks in the channel; a command that writes faster waits.
const CHANNEL_SIZE: usize = 64;
/// Longest command in bytes on one line. Busybox reads input in blocks of 1024 bytes, with a prompt
/// before each; our own text takes about 350.
const LONGEST_COMMAND: usize = 600;

/// A message to the listener of a command.
enum ShellMessage {
    Said(ExecEvent),
    Failed(Error),
    Cancelled,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CommandEnd {
    /// It ended by itself, with this status.
    Exited(i32),
    /// It ended the shell, which had this status.
    ShellExited(i32),
    /// It was interrupted, and the shell is ready again.
    Interrupted,
    /// It was killed, and the shell with it.
    Killed,
}

/// Output and end of a command.
#[derive(Debug)]
pub(super) struct ShellOutput {
    pub(super) stdout: MarkedStream,
    pub(super) stderr: MarkedStream,
    pub(super) end: CommandEnd,
}

/// A command for the shell.
#[derive(Debug)]
pub(super) struct ShellLine<'a> {
    /// The text of the command.
    pub(super) command: &'a str,
    /// The working directory of the command.
    pub(super) workdir: &'a str,
    /// The file in the sandbox for its stdin; none for `/dev/null`.
    pub(super) stdin: Option<&'a str>,
    /// The time limit of the command.
    pub(super) limit: Duration,
}

/// A running shell of a sandbox.
pub(super) struct Shell {
    api: Arc<dyn Api>,
    sandbox: Name,
    pid: u32,
    input: Arc<dyn ExecInput>,
    notes: Receiver<ShellMessage>,
    sender: SyncSender<ShellMessage>,
    /// Whether it has exited; set by the reading thread.
    over: Arc<AtomicBool>,
    /// Whether it is bash, which prints `exit` when it exits.
    is_bash: bool,
    /// Whether it reads long lines in several blocks.
    short_lines: bool,
    /// The prompt after the last command, which may still be in transit.
    prompt: String,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.input.signal(KILL);
    }
}

impl Shell {
    /// Opens a shell in a running sandbox.
    pub(super) fn open(api: &Arc<dyn Api>, name: &Name) -> Result<Self> {
        let command = Command {
            argv: ["sh", "-c", START].map(str::to_owned).to_vec(),
            workdir: Some("/".to_owned()),
            stdin: Stdin::Streamed,
            unlogged: true,
            ..Command::default()
        };
        let exec = api.exec_start(name, &command)?;
        let (sender, notes) = mpsc::sync_channel(CHANNEL_SIZE);
        let over = Arc::new(AtomicBool::new(false));
        let (input, pid) = (exec.input(), exec.pid());
        let (report_status, end) = (sender.clone(), Arc::clone(&over));
        std::thread::Builder::new()
            .name("shell".to_owned())
            .spawn(move || read(exec, &report_status, &end))
            .map_err(|error| Error::host("cannot start a thread for the shell", error))?;
        let mut shell = Self {
            api: Arc::clone(api),
            sandbox: name.clone(),
            pid,
            input,
            notes,
            sender,
            over,
            is_bash: false,
            short_lines: false,
            prompt: prompt()?,
        };
        let recorded = ShellLine {
            command: "[ -z \"$BASH_VERSION\" ] || set +o history; \
                printf '%s|' \"$BASH_VERSION\"; readlink /proc/$$/exe 2>/dev/null; true",
            workdir: "/",
            stdin: None,
            limit: START_LIMIT,
        };
        let first = shell.run(&recorded, &Cancel::default())?;
        if first.end != CommandEnd::Exited(0) {
            return Err(Error::new(Kind::Host, "the shell in the sandbox does not answer")
                .hint("the image needs a `sh`"));
        }
        let text = String::from_utf8_lossy(first.stdout.kept());
        let (bash, program) = text.split_once('|').unwrap_or_default();
        shell.is_bash = !bash.is_empty();
        // A shell whose program is unknown is treated as busybox.
        shell.short_lines = program.trim().is_empty() || program.contains("busybox");
        Ok(shell)
    }

    /// Whether the shell is still running.
    pub(super) fn is_alive(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    /// Whether a command is too long for one line and has to be sourced from a file.
    pub(super) fn needs_file(&self, command: &str, workdir: &str) -> bool {
        self.short_lines
            && command.len() + command.matches('\'').count() * 3 + workdir.len() * 2
                > LONGEST_COMMAND
    }

    /// Records that a client's command begins. Fails if the shell is gone: nothing has run then.
    pub(super) fn announce(&self, code: &str, origin: &CallOrigin) -> Result<()> {
        self.input.note(&CodeEvent::Began { code, origin })
    }

    /// Records the end of a command that was announced. If the shell is gone, its end is recorded
    /// already.
    pub(super) fn record_end(&self, status: Option<i32>, took: Duration) {
        let _ = self.input.note(&CodeEvent::Ended { status, took });
    }

    /// Runs a command that was announced to its end, and records that.
    pub(super) fn run_announced(
        &mut self,
        line: &ShellLine<'_>,
        cancel: &Cancel,
    ) -> Result<ShellOutput> {
        let started = Instant::now();
        let ran = self.run(line, cancel);
        let status = match ran.as_ref().map(|ran| &ran.end) {
            Ok(CommandEnd::Exited(status) | CommandEnd::ShellExited(status)) => Some(*status),
            _ => None,
        };
        self.record_end(status, started.elapsed());
        ran
    }

    /// Runs a command to its end.
    fn run(&mut self, line: &ShellLine<'_>, cancel: &Cancel) -> Result<ShellOutput> {
        // Drops output that background children wrote since the last command.
        while self.notes.try_recv().is_ok() {}
        let sender = self.sender.clone();
        // If the channel is full, the listener is awake and checks for cancellation itself.
        let _hook = cancel.when_cancelled(move || drop(sender.try_send(ShellMessage::Cancelled)));
        let (mark, prompt) = (random()?, prompt()?);
        let text = command_line(line, &mark, &prompt);
        let mut listener = OutputListener::new(mark, prompt, &self.prompt);
        self.input.write(text.as_bytes())?;

        let mut due = Instant::now() + line.limit;
        let (mut late, mut killed) = (false, false);
        let end = loop {
            let left = due.saturating_duration_since(Instant::now());
            let note = match cancel.is_cancelled() && !late {
                true => Ok(ShellMessage::Cancelled),
                // Checked here, too: a command that always writes must still time out.
                false if left.is_zero() => Err(RecvTimeoutError::Timeout),
                false => self.notes.recv_timeout(left),
            };
            match note {
                Ok(ShellMessage::Said(ExecEvent::Stdout(bytes))) => listener.stdout.push(&bytes),
                Ok(ShellMessage::Said(ExecEvent::Stderr(bytes))) => listener.stderr.push(&bytes),
                Ok(ShellMessage::Said(ExecEvent::Exited(_))) if late => break CommandEnd::Killed,
                Ok(ShellMessage::Said(ExecEvent::Exited(exit))) => {
                    break CommandEnd::ShellExited(exit.status());
                }
                Ok(ShellMessage::Failed(_)) if late => break CommandEnd::Killed,
                Ok(ShellMessage::Failed(error)) => return Err(error),
                Err(RecvTimeoutError::Disconnected) => break CommandEnd::Killed,
                Ok(ShellMessage::Cancelled) | Err(RecvTimeoutError::Timeout) if !late => {
                    late = true;
                    due = Instant::now() + GRACE;
                    let _ = self.input.signal(INTERRUPT);
                }
                Ok(ShellMessage::Cancelled) => {}
                // Kills the descendants, not the shell: it continues when it has no child to wait
                // for.
                Err(RecvTimeoutError::Timeout) if !killed => {
                    killed = true;
                    self.kill_descendants();
                    due = Instant::now() + GRACE;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.input.signal(KILL);
                    self.over.store(true, Ordering::Release);
                    break CommandEnd::Killed;
                }
            }
            if let Some(status) = listener.status() {
                break if late { CommandEnd::Interrupted } else { CommandEnd::Exited(status) };
            }
            if listener.was_aborted() {
                // The shell aborted the line; it is asked for the status.
                listener.query_status()?;
                self.input.write(status_query(&listener.mark, &listener.prompt).as_bytes())?;
            }
        };
        self.prompt = listener.prompt;
        let (mut stdout, mut stderr) = (listener.stdout, listener.stderr);
        stdout.finish();
        stderr.finish();
        if matches!(end, CommandEnd::ShellExited(_)) && self.is_bash {
            stderr.drop_end(b"exit\n");
        }
        Ok(ShellOutput { stdout, stderr, end })
    }
}

impl Shell {
    /// Kills all descendants of the shell, in any session.
    fn kill_descendants(&self) {
        let command = Command {
            argv: ["sh", "-c", KILL_DESCENDANTS, "sh", &self.pid.to_string()]
                .map(str::to_owned)
                .to_vec(),
            workdir: Some("/".to_owned()),
            stdin: Stdin::Closed,
            timeout: Some(Span(KILL_LIMIT)),
            unlogged: true,
            ..Command::default()
        };
        if let Ok(mut exec) = self.api.exec_start(&self.sandbox, &command) {
            while let Ok(Some(_)) = exec.next() {}
        }
    }
}

/// Collects both output streams of a command.
struct OutputListener {
    stdout: MarkedStream,
    stderr: MarkedStream,
    mark: String,
    prompt: String,
}

impl OutputListener {
    fn new(mark: String, prompt: String, stale: &str) -> Self {
        let stream = || MarkedStream::new(&mark, &prompt, stale);
        Self { stdout: stream(), stderr: stream(), mark, prompt }
    }

    /// The exit status, after both streams have ended.
    fn status(&self) -> Option<i32> {
        let both = self.stdout.is_over() && self.stderr.is_over();
        both.then(|| self.stdout.status())
    }

    /// Whether the shell printed a prompt without the mark.
    fn was_aborted(&self) -> bool {
        let early = |stream: &MarkedStream| stream.was_prompted() && !stream.is_over();
        early(&self.stdout) || early(&self.stderr)
    }

    fn query_status(&mut self) -> Result<()> {
        (self.mark, self.prompt) = (random()?, prompt()?);
        self.stdout.restart(&self.mark, &self.prompt);
        self.stderr.restart(&self.mark, &self.prompt);
        Ok(())
    }
}

/// Forwards the output of the shell to its listener.
fn read(mut exec: Box<dyn Exec>, report_status: &SyncSender<ShellMessage>, over: &AtomicBool) {
    loop {
        let note = match exec.next() {
            Ok(Some(ExecEvent::Exited(exit))) => {
                over.store(true, Ordering::Release);
                let _ = report_status.send(ShellMessage::Said(ExecEvent::Exited(exit)));
                return;
            }
            Ok(Some(event)) => ShellMessage::Said(event),
            Ok(None) => {
                over.store(true, Ordering::Release);
                let error = Error::new(Kind::Protocol, "the exit status of the shell is missing");
                let _ = report_status.send(ShellMessage::Failed(error));
                return;
            }
            Err(error) => {
                over.store(true, Ordering::Release);
                let _ = report_status.send(ShellMessage::Failed(error));
                return;
            }
        };
        if report_status.send(note).is_err() {
            return;
        }
    }
}

/// The input line for a command. Our own parts print nothing, whatever options the command sets.
fn command_line(line: &ShellLine<'_>, mark: &str, prompt: &str) -> String {
    let (workdir, command) = (quoted(line.workdir), quoted(line.command));
    let stdin = line.stdin.map_or_else(|| "/dev/null".to_owned(), quoted);
    format!(
        "{{ PS1={};cd -- {workdir} >&2||printf 'cd: cannot enter %s\\n' {workdir} >&9;\
         [ ! -r {ENV_FILE} ]||. {ENV_FILE}; }} 9>&2 2>/dev/null;eval {command} <{stdin};{}\n",
        ps1_value(prompt),
        report_status(mark, prompt)
    )
}

/// The input line that prints only the status of the last command.
fn status_query(mark: &str, prompt: &str) -> String {
    format!("{}\n", report_status(mark, prompt))
}

fn report_status(mark: &str, prompt: &str) -> String {
    format!(
        "{{ printf '%s%d.' {mark} \"$?\";PS1={};PS2=;printf '%s%d.' {mark} 0 >&9; }} \
         9>&2 2>/dev/null",
        ps1_value(prompt)
    )
}

/// A random prompt, as the shell prints it. It computes the digit in the middle when it prompts.
fn prompt() -> Result<String> {
    let text = random()?;
    let (begin, end) = text.split_at(text.len() / 2);
    Ok(format!("{begin}{COMPUTED_DIGIT}{end}"))
}

/// The value for `PS1`. It differs from the printed prompt, so a command that prints its variables
/// does not print a prompt.
fn ps1_value(prompt: &str) -> String {
    let (begin, end) = prompt.split_at(prompt.len() / 2);
    format!("'{begin}$(({COMPUTED_DIGIT})){}'", &end[1..])
}

/// A random word that no output contains by accident.
fn random() -> Result<String> {
    let mut bytes = [0; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::host("cannot read random bytes from the host", error))?;
    Ok(hex(bytes))
}
