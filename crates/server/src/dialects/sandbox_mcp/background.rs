//! Commands that go on by themselves, each with a log inside.

use super::Surface;
use super::files::inside;
use super::ledger::Process;
use super::live::{Found, Live, hex};
use super::network::address;
use super::text::{MOST_BYTES, cut, quoted};
use crate::dialect::Call;
use msb_api::Place;
use msb_spec::{Command, Error, Kind, Result, Stdin};
use serde::Deserialize;
use std::time::{Duration, Instant};

const TERMINATE: i32 = 15;
const KILL: i32 = 9;
/// How long something has to end when it is asked to.
const GRACE: Duration = Duration::from_millis(200);
/// How long it may take to be gone when it was killed.
const GONE: Duration = Duration::from_secs(5);
/// Lines of its last words.
const LAST_LINES: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct Background {
    command: String,
    name: String,
    workdir: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Logs {
    name: String,
    tail: i64,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Kill {
    name: String,
    sandbox: String,
}

impl Surface {
    pub(super) fn bg(&self, call: &Call, asked: &Background) -> Result<String> {
        let id = match asked.name.as_str() {
            "" => format!("bg-{}", hex()),
            name => name.to_owned(),
        };
        if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
            return Err(Error::invalid(format!("not a name for a process: `{id}`"))
                .hint("it has letters, digits, `.`, `_` and `-`"));
        }
        if asked.command.contains('\0') {
            return Err(Error::invalid("a command has no NUL"));
        }
        let live = self.used(call, &asked.sandbox)?;
        let found = self.of(&live)?;
        if self.running(&found).iter().any(|process| process.id == id) {
            return Err(Error::new(Kind::Exists, format!("process '{id}' runs already"))
                .hint(format!("end it with kill('{id}'), or take another name")));
        }
        let log = log_of(&id);
        let env = super::shell::ENV_FILE;
        // What it starts ends with it, because it is an Exec of its own.
        let script = format!(
            "exec >{} 2>&1; [ ! -r {env} ] || . {env}; cd -- {} || exit; eval {}",
            quoted(&log),
            quoted(&asked.workdir),
            quoted(&asked.command),
        );
        let command = Command {
            argv: vec!["sh".to_owned(), "-c".to_owned(), script],
            stdin: Stdin::Closed,
            detached: true,
            workdir: Some("/".to_owned()),
            ..Command::default()
        };
        let begun = Instant::now();
        let exec = self.api().exec_start(&live.name, &command)?;
        let (exec, pid) = (exec.id(), exec.pid());
        let process = Process { id: id.clone(), exec, pid, command: asked.command.clone() };
        let mut life = found.life.clone();
        life.processes.retain(|process| process.id != id);
        life.processes.push(process);
        self.ledger.set_life(&live.name, Some(life));
        let noted = format!(
            "cd {} && nohup sh -c {} > {} 2>&1 & echo $!",
            quoted(&asked.workdir),
            quoted(&asked.command),
            quoted(&log)
        );
        self.ledger.add(&live.name, &noted, 0, begun.elapsed());
        // Addresses mean something inside alone; what others reach it by is its name.
        let network = match address(&found) {
            Some(_) => format!("Network: accessible at {}\n", live.name),
            None => String::new(),
        };
        Ok(format!(
            "Started [{id}] PID {pid}\n{network}Use logs('{id}') to read output, kill('{id}') to stop."
        ))
    }

    pub(super) fn logs(&self, call: &Call, asked: &Logs) -> Result<String> {
        let live = self.used(call, &asked.sandbox)?;
        let found = self.of(&live)?;
        let Some(process) = self.process(&found, &asked.name) else {
            return Ok(self.no_process(&found, &asked.name));
        };
        let alive = self.running(&found).contains(&process);
        let tail = usize::try_from(asked.tail).unwrap_or(0);
        let (id, pid, command) = (&process.id, process.pid, &process.command);
        let (state, rule) = (if alive { "alive" } else { "dead" }, "─".repeat(40));
        let said = self.last(&live, id, tail);
        Ok(format!("[{id}] PID {pid} ({state}) — {command}\n{rule}\n{said}"))
    }

    pub(super) fn kill(&self, call: &Call, asked: &Kill) -> Result<String> {
        let live = self.used(call, &asked.sandbox)?;
        let found = self.of(&live)?;
        let Some(process) = self.process(&found, &asked.name) else {
            return Ok(self.no_process(&found, &asked.name));
        };
        for (signal, patience) in [(TERMINATE, GRACE), (KILL, GONE)] {
            // It has ended already if there is nothing to signal.
            let gone = self.api().exec_signal(&live.name, process.exec, signal).is_err();
            let wait = || self.api().exec_wait(&live.name, process.exec, patience);
            if gone || wait().ok().flatten().is_some() {
                break;
            }
        }
        let mut life = self.of(&live)?.life;
        life.processes.retain(|other| other.id != process.id);
        self.ledger.set_life(&live.name, Some(life));
        let killed = format!("Killed [{}] PID {}", process.id, process.pid);
        Ok(match self.last(&live, &process.id, LAST_LINES).trim_end() {
            "" => killed,
            said => format!("{killed}\nLast output:\n{said}"),
        })
    }

    /// A sandbox that somebody uses, as it is now.
    pub(super) fn of(&self, live: &Live) -> Result<Found> {
        self.find(&live.name)?
            .ok_or_else(|| Error::new(Kind::NotFound, format!("no active sandbox '{}'", live.name)))
    }

    /// What runs in the background.
    pub(super) fn running(&self, found: &Found) -> Vec<Process> {
        if found.life.processes.is_empty() {
            return Vec::new();
        }
        let execs = self.api().exec_list(&found.summary.name).unwrap_or_default();
        let runs = |process: &&Process| {
            execs.iter().any(|exec| exec.id == process.exec && exec.exit.is_none())
        };
        found.life.processes.iter().filter(runs).cloned().collect()
    }

    fn process(&self, found: &Found, id: &str) -> Option<Process> {
        found.life.processes.iter().find(|process| process.id == id).cloned()
    }

    fn no_process(&self, found: &Found, id: &str) -> String {
        let all: Vec<&str> =
            found.life.processes.iter().map(|process| process.id.as_str()).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        let name = &found.summary.name;
        format!("Error: no background process '{id}' in sandbox '{name}'. Running: {all}")
    }

    /// The last lines that something has said.
    fn last(&self, live: &Live, id: &str, lines: usize) -> String {
        let at = Place::sandbox(&live.name);
        let path = inside(&log_of(id));
        let size = self.api().file_stat(&at, path.as_bytes(), true).map_or(0, |meta| meta.size);
        let from = size.saturating_sub(MOST_BYTES as u64);
        let mut bytes = Vec::new();
        // One that has not said anything has no log yet.
        let most = Some(MOST_BYTES as u64);
        let _ = self.api().file_read(&at, path.as_bytes(), from, most, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        let text = cut(&bytes, bytes.len() as u64);
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        all[all.len().saturating_sub(lines)..].concat()
    }
}

fn log_of(id: &str) -> String {
    format!("/tmp/_mcp_bg_{id}.log")
}
