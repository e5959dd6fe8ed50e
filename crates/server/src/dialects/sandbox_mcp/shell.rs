//! The shell of a sandbox: one that stays, so that a command costs no new process and variables last.
//!
//! It is an interactive `sh` without a terminal. That kind goes on after an interrupt and after a syntax
//! error, and says with a prompt that it waits again. A command is one line of its input:
//!
//! ```text
//! PS1=P; cd WORKDIR; . ENV; eval 'COMMAND' </dev/null; printf MARK+STATUS; printf MARK >&2
//! ```
//!
//! Mark and prompt are random for every command, so that nothing a command says is taken for its end; what
//! children that go on say later belongs to whoever listens then. A prompt without the mark before it means
//! that the shell gave the line up, and it is asked how that ended. A command that ends the shell
//! (`exit`, `exec`) has ended with the status of the shell.
//!
//! A thread reads what the Exec says; whoever holds the shell is its only listener.

use super::stream::Stream;
use super::text::quoted;
use crate::cancel::Cancel;
use msb_api::{Api, CodeEvent, Exec, ExecEvent, ExecInput};
use msb_spec::{Command, Error, Kind, Name, Result, Span, Stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// Sourced before every command.
pub(super) const ENV_FILE: &str = "/etc/profile.d/mcp-env.sh";
/// Where commands run unless they say.
pub(super) const WORKSPACE: &str = "/workspace";

/// Bash would edit the lines of its input, and read files of the user.
const BEGIN: &str = "unset ENV; PS1= PS2=; export PS1 PS2; \
    if [ -n \"$BASH_VERSION\" ]; then exec bash --posix --norc --noediting -i; fi; exec sh -i";
/// A shell starts in milliseconds; a machine that is busy may take longer.
const BEGIN_LIMIT: Duration = Duration::from_secs(20);
/// How long a command that was interrupted has to give the shell back, and one that was killed.
const GRACE: Duration = Duration::from_secs(1);
/// Kills everything below a process. A subshell for each: what it knows must not get mixed.
const KILL_BELOW: &str = "below() ( for at in /proc/[0-9]*; do above=; \
    while read -r key value; do case $key in PPid:) above=$value; break;; esac; done \
    2>/dev/null <\"$at/status\"; \
    if [ \"$above\" = \"$1\" ]; then below \"${at#/proc/}\"; kill -9 \"${at#/proc/}\"; fi; \
    done; ) 2>/dev/null; below \"$1\"";
/// Any digit.
const RECKONED: &str = "7";
/// How long it may take to find and kill what a command has started.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Pieces of output on their way; a command that says much waits.
const ROOM: usize = 64;
/// Busybox reads its input in pieces of 1024 bytes, with a prompt before each; ours take some 350.
const LONGEST_COMMAND: usize = 600;

const INTERRUPT: i32 = 2;
const KILL: i32 = 9;

/// What a listener is told.
enum Note {
    Said(ExecEvent),
    Failed(Error),
    Cancelled,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, with this status.
    Well(i32),
    /// With the shell, whose status this is.
    WithShell(i32),
    /// It was interrupted, and the shell is there.
    Interrupted,
    /// It was killed, and the shell with it.
    Killed,
}

/// What came of a command.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
    pub(super) ended: Ended,
}

/// A command for the shell.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// What is done.
    pub(super) command: &'a str,
    /// Where.
    pub(super) workdir: &'a str,
    /// The file inside that it reads, if it reads anything.
    pub(super) stdin: Option<&'a str>,
    /// How long it may take.
    pub(super) limit: Duration,
}

/// A shell that waits for commands.
pub(super) struct Shell {
    api: Arc<dyn Api>,
    sandbox: Name,
    pid: u32,
    input: Arc<dyn ExecInput>,
    notes: Receiver<Note>,
    sender: SyncSender<Note>,
    /// Whether it has ended; set by the thread that reads.
    over: Arc<AtomicBool>,
    /// Bash says `exit` when it does.
    is_bash: bool,
    /// Whether long lines come to it in pieces.
    short_lines: bool,
    /// What it says when it waits again after the last command; that may still be on its way.
    prompt: String,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.input.signal(KILL);
    }
}

impl Shell {
    /// Opens one in a sandbox that runs.
    pub(super) fn open(api: &Arc<dyn Api>, name: &Name) -> Result<Self> {
        let command = Command {
            argv: ["sh", "-c", BEGIN].map(str::to_owned).to_vec(),
            workdir: Some("/".to_owned()),
            stdin: Stdin::Streamed,
            unlogged: true,
            ..Command::default()
        };
        let exec = api.exec_start(name, &command)?;
        let (sender, notes) = mpsc::sync_channel(ROOM);
        let over = Arc::new(AtomicBool::new(false));
        let (input, pid) = (exec.input(), exec.pid());
        let (told, ended) = (sender.clone(), Arc::clone(&over));
        std::thread::Builder::new()
            .name("shell".to_owned())
            .spawn(move || read(exec, &told, &ended))
            .map_err(|error| Error::host("cannot make a thread for the shell", error))?;
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
        let asked = Line {
            command: "[ -z \"$BASH_VERSION\" ] || set +o history; \
                printf '%s|' \"$BASH_VERSION\"; readlink /proc/$$/exe 2>/dev/null; true",
            workdir: "/",
            stdin: None,
            limit: BEGIN_LIMIT,
        };
        let first = shell.run(&asked, &Cancel::default())?;
        if first.ended != Ended::Well(0) {
            return Err(Error::new(Kind::Host, "the shell in the sandbox does not answer")
                .hint("the image needs a `sh`"));
        }
        let said = String::from_utf8_lossy(first.stdout.kept());
        let (bash, program) = said.split_once('|').unwrap_or_default();
        shell.is_bash = !bash.is_empty();
        // One that cannot be asked is small, as busybox is.
        shell.short_lines = program.trim().is_empty() || program.contains("busybox");
        Ok(shell)
    }

    /// Whether it still runs.
    pub(super) fn is_alive(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    /// Whether a command is too long for one line, so that it has to come from a file.
    pub(super) fn needs_file(&self, command: &str, workdir: &str) -> bool {
        self.short_lines
            && command.len() + command.matches('\'').count() * 3 + workdir.len() * 2
                > LONGEST_COMMAND
    }

    /// Runs a command of somebody's to its end, which is noted as `asked`.
    pub(super) fn run_for(&mut self, asked: &str, line: &Line<'_>, cancel: &Cancel) -> Result<Ran> {
        // What cannot be noted cannot be run either, as it goes the same way.
        self.input.note(&CodeEvent::Began(asked))?;
        let begun = Instant::now();
        let ran = self.run(line, cancel);
        let status = match ran.as_ref().map(|ran| &ran.ended) {
            Ok(Ended::Well(status) | Ended::WithShell(status)) => Some(*status),
            _ => None,
        };
        // With its shell gone there is nobody to tell, and that is noted already.
        let _ = self.input.note(&CodeEvent::Ended { status, took: begun.elapsed() });
        ran
    }

    /// Runs a command to its end.
    fn run(&mut self, line: &Line<'_>, cancel: &Cancel) -> Result<Ran> {
        // What children of earlier commands have said is nobody's.
        while self.notes.try_recv().is_ok() {}
        let sender = self.sender.clone();
        // If there is no room, the listener is awake and looks by itself.
        let _hook = cancel.when_cancelled(move || drop(sender.try_send(Note::Cancelled)));
        let (mark, prompt) = (random()?, prompt()?);
        let text = written(line, &mark, &prompt);
        let mut listener = Listener::new(mark, prompt, &self.prompt);
        self.input.write(text.as_bytes())?;

        let mut due = Instant::now() + line.limit;
        let (mut late, mut killed) = (false, false);
        let ended = loop {
            let left = due.saturating_duration_since(Instant::now());
            let note = match cancel.is_cancelled() && !late {
                true => Ok(Note::Cancelled),
                // One that says something all the time is late all the same.
                false if left.is_zero() => Err(RecvTimeoutError::Timeout),
                false => self.notes.recv_timeout(left),
            };
            match note {
                Ok(Note::Said(ExecEvent::Stdout(bytes))) => listener.stdout.push(&bytes),
                Ok(Note::Said(ExecEvent::Stderr(bytes))) => listener.stderr.push(&bytes),
                Ok(Note::Said(ExecEvent::Exited(_))) if late => break Ended::Killed,
                Ok(Note::Said(ExecEvent::Exited(exit))) => break Ended::WithShell(exit.status()),
                Ok(Note::Failed(_)) if late => break Ended::Killed,
                Ok(Note::Failed(error)) => return Err(error),
                Err(RecvTimeoutError::Disconnected) => break Ended::Killed,
                Ok(Note::Cancelled) | Err(RecvTimeoutError::Timeout) if !late => {
                    late = true;
                    due = Instant::now() + GRACE;
                    let _ = self.input.signal(INTERRUPT);
                }
                Ok(Note::Cancelled) => {}
                // Not the shell: it goes on once nobody is left for whom it waits.
                Err(RecvTimeoutError::Timeout) if !killed => {
                    killed = true;
                    self.kill_below();
                    due = Instant::now() + GRACE;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.input.signal(KILL);
                    self.over.store(true, Ordering::Release);
                    break Ended::Killed;
                }
            }
            if let Some(status) = listener.status() {
                break if late { Ended::Interrupted } else { Ended::Well(status) };
            }
            if listener.was_given_up() {
                // The line was left in the middle; the shell knows how it ended.
                listener.ask_again()?;
                self.input.write(asking(&listener.mark, &listener.prompt).as_bytes())?;
            }
        };
        self.prompt = listener.prompt;
        let (mut stdout, mut stderr) = (listener.stdout, listener.stderr);
        stdout.finish();
        stderr.finish();
        if matches!(ended, Ended::WithShell(_)) && self.is_bash {
            stderr.drop_end(b"exit\n");
        }
        Ok(Ran { stdout, stderr, ended })
    }
}

impl Shell {
    /// Kills what the shell has started, whatever session it is in by now.
    fn kill_below(&self) {
        let command = Command {
            argv: ["sh", "-c", KILL_BELOW, "sh", &self.pid.to_string()].map(str::to_owned).to_vec(),
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

/// Both streams of a command on their way.
struct Listener {
    stdout: Stream,
    stderr: Stream,
    mark: String,
    prompt: String,
}

impl Listener {
    fn new(mark: String, prompt: String, stale: &str) -> Self {
        let stream = || Stream::new(&mark, &prompt, stale);
        Self { stdout: stream(), stderr: stream(), mark, prompt }
    }

    /// How it ended, once both streams have said so.
    fn status(&self) -> Option<i32> {
        let both = self.stdout.is_over() && self.stderr.is_over();
        both.then(|| self.stdout.status())
    }

    /// Whether the shell waits again without having said the mark.
    fn was_given_up(&self) -> bool {
        let early = |stream: &Stream| stream.was_prompted() && !stream.is_over();
        early(&self.stdout) || early(&self.stderr)
    }

    fn ask_again(&mut self) -> Result<()> {
        (self.mark, self.prompt) = (random()?, prompt()?);
        self.stdout.again(&self.mark, &self.prompt);
        self.stderr.again(&self.mark, &self.prompt);
        Ok(())
    }
}

/// Hands over what the shell says.
fn read(mut exec: Box<dyn Exec>, told: &SyncSender<Note>, over: &AtomicBool) {
    loop {
        let note = match exec.next() {
            Ok(Some(ExecEvent::Exited(exit))) => {
                over.store(true, Ordering::Release);
                let _ = told.send(Note::Said(ExecEvent::Exited(exit)));
                return;
            }
            Ok(Some(event)) => Note::Said(event),
            Ok(None) => {
                over.store(true, Ordering::Release);
                let error = Error::new(Kind::Protocol, "the end of the shell was not told");
                let _ = told.send(Note::Failed(error));
                return;
            }
            Err(error) => {
                over.store(true, Ordering::Release);
                let _ = told.send(Note::Failed(error));
                return;
            }
        };
        if told.send(note).is_err() {
            return;
        }
    }
}

/// A command as the shell reads it. What is ours says nothing, whatever the command has set.
fn written(line: &Line<'_>, mark: &str, prompt: &str) -> String {
    let (workdir, command) = (quoted(line.workdir), quoted(line.command));
    let stdin = line.stdin.map_or_else(|| "/dev/null".to_owned(), quoted);
    format!(
        "{{ PS1={};cd -- {workdir} >&2||printf 'cd: cannot enter %s\\n' {workdir} >&9;\
         [ ! -r {ENV_FILE} ]||. {ENV_FILE}; }} 9>&2 2>/dev/null;eval {command} <{stdin};{}\n",
        set(prompt),
        told(mark, prompt)
    )
}

/// The same for nothing but how the last one ended.
fn asking(mark: &str, prompt: &str) -> String {
    format!("{}\n", told(mark, prompt))
}

fn told(mark: &str, prompt: &str) -> String {
    format!(
        "{{ printf '%s%d.' {mark} \"$?\";PS1={};PS2=;printf '%s%d.' {mark} 0 >&9; }} \
         9>&2 2>/dev/null",
        set(prompt)
    )
}

/// A prompt as it is shown. The digit in its middle is one that the shell reckons when it prompts.
fn prompt() -> Result<String> {
    let text = random()?;
    let (begin, end) = text.split_at(text.len() / 2);
    Ok(format!("{begin}{RECKONED}{end}"))
}

/// The same as a variable has it: a command that shows its variables does not show a prompt.
fn set(prompt: &str) -> String {
    let (begin, end) = prompt.split_at(prompt.len() / 2);
    format!("'{begin}$(({RECKONED})){}'", &end[1..])
}

/// What no output holds by accident.
fn random() -> Result<String> {
    let mut bytes = [0; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::host("no randomness for a mark", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
