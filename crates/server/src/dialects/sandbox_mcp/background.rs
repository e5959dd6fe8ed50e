//! Background commands, each with a log file in the sandbox.

use super::SandboxMcpState;
use super::active::{ActiveSandbox, ListedSandbox, hex};
use super::files::inside;
use super::format::{MOST_BYTES, cut, quoted};
use super::network::address;
use super::records::BackgroundProcess;
use crate::dialect::ToolCall;
use msb_api::Place;
use msb_spec::{Command, Error, Kind, Result, Stdin};
use msb_sys::signal::{SIGKILL as KILL, SIGTERM as TERMINATE};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(200);
/// Longest wait for the end of a killed process.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Lines of its last output in the result of `kill`.
const LAST_LINES: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct BackgroundArgs {
    command: String,
    name: String,
    workdir: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct LogsArgs {
    name: String,
    tail: i64,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct KillArgs {
    name: String,
    sandbox: String,
}

impl SandboxMcpState {
    pub(super) fn bg(&self, call: &ToolCall, args: &BackgroundArgs) -> Result<String> {
        let id = match args.name.as_str() {
            "" => format!("bg-{}", hex()),
            name => name.to_owned(),
        };
        if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
            return Err(Error::invalid(format!("not a process name: `{id}`"))
                .hint("it has letters, digits, `.`, `_` and `-`"));
        }
        if args.command.contains('\0') {
            return Err(Error::invalid("a command must not contain NUL"));
        }
        let handle = self.ensure_active(call, &args.sandbox)?;
        let found = self.listed(&handle)?;
        if self.running(&found).iter().any(|process| process.id == id) {
            return Err(Error::new(Kind::Exists, format!("process '{id}' is already running"))
                .hint(format!("end it with kill('{id}'), or choose another name")));
        }
        let log = log_of(&id);
        let env = super::shell::ENV_FILE;
        // It is an Exec of its own, so the processes that it starts end with it.
        let script = format!(
            "exec >{} 2>&1; [ ! -r {env} ] || . {env}; cd -- {} || exit; eval {}",
            quoted(&log),
            quoted(&args.workdir),
            quoted(&args.command),
        );
        let command = Command {
            argv: vec!["sh".to_owned(), "-c".to_owned(), script],
            stdin: Stdin::Closed,
            detached: true,
            workdir: Some("/".to_owned()),
            ..Command::default()
        };
        let started = Instant::now();
        let exec = self.api().exec_start(&handle.name, &command)?;
        let (exec, pid) = (exec.id(), exec.pid());
        let process =
            BackgroundProcess { id: id.clone(), exec, pid, command: args.command.clone() };
        let mut incarnation = found.incarnation.clone();
        incarnation.processes.retain(|process| process.id != id);
        incarnation.processes.push(process);
        self.records.set_incarnation(&handle.name, Some(incarnation));
        let noted = format!(
            "cd {} && nohup sh -c {} > {} 2>&1 & echo $!",
            quoted(&args.workdir),
            quoted(&args.command),
            quoted(&log)
        );
        self.records.add(&handle.name, &noted, 0, started.elapsed());
        // Addresses are valid only inside the sandbox; peers reach it by its name.
        let network = match address(&found) {
            Some(_) => format!("Network: accessible at {}\n", handle.name),
            None => String::new(),
        };
        Ok(format!(
            "Started [{id}] PID {pid}\n{network}Use logs('{id}') to read output, kill('{id}') to stop."
        ))
    }

    pub(super) fn logs(&self, call: &ToolCall, args: &LogsArgs) -> Result<String> {
        let handle = self.ensure_active(call, &args.sandbox)?;
        let found = self.listed(&handle)?;
        let Some(process) = self.process(&found, &args.name) else {
            return Ok(self.no_process(&found, &args.name));
        };
        let alive = self.running(&found).contains(&process);
        let tail = usize::try_from(args.tail).unwrap_or(0);
        let (id, pid, command) = (&process.id, process.pid, &process.command);
        let (state, rule) = (if alive { "alive" } else { "dead" }, "─".repeat(40));
        let text = self.log_tail(&handle, id, tail);
        Ok(format!("[{id}] PID {pid} ({state}) — {command}\n{rule}\n{text}"))
    }

    pub(super) fn kill(&self, call: &ToolCall, args: &KillArgs) -> Result<String> {
        let handle = self.ensure_active(call, &args.sandbox)?;
        let found = self.listed(&handle)?;
        let Some(process) = self.process(&found, &args.name) else {
            return Ok(self.no_process(&found, &args.name));
        };
        for (signal, patience) in [(TERMINATE, GRACE), (KILL, KILL_LIMIT)] {
            // It has already ended if there is nothing to signal.
            let gone = self.api().exec_signal(&handle.name, process.exec, signal).is_err();
            let wait = || self.api().exec_wait(&handle.name, process.exec, patience);
            if gone || wait().ok().flatten().is_some() {
                break;
            }
        }
        let mut incarnation = self.listed(&handle)?.incarnation;
        incarnation.processes.retain(|other| other.id != process.id);
        self.records.set_incarnation(&handle.name, Some(incarnation));
        let killed = format!("Killed [{}] PID {}", process.id, process.pid);
        Ok(match self.log_tail(&handle, &process.id, LAST_LINES).trim_end() {
            "" => killed,
            text => format!("{killed}\nLast output:\n{text}"),
        })
    }

    /// The current state of a sandbox in use.
    pub(super) fn listed(&self, handle: &ActiveSandbox) -> Result<ListedSandbox> {
        self.find(&handle.name)?.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("no active sandbox '{}'", handle.name))
        })
    }

    /// The background processes that are running.
    pub(super) fn running(&self, found: &ListedSandbox) -> Vec<BackgroundProcess> {
        if found.incarnation.processes.is_empty() {
            return Vec::new();
        }
        let execs = self.api().exec_list(&found.summary.name).unwrap_or_default();
        let runs = |process: &&BackgroundProcess| {
            execs.iter().any(|exec| exec.id == process.exec && exec.exit.is_none())
        };
        found.incarnation.processes.iter().filter(runs).cloned().collect()
    }

    fn process(&self, found: &ListedSandbox, id: &str) -> Option<BackgroundProcess> {
        found.incarnation.processes.iter().find(|process| process.id == id).cloned()
    }

    fn no_process(&self, found: &ListedSandbox, id: &str) -> String {
        let all: Vec<&str> =
            found.incarnation.processes.iter().map(|process| process.id.as_str()).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        let name = &found.summary.name;
        format!("Error: no background process '{id}' in sandbox '{name}'. Running: {all}")
    }

    /// The last lines of a process's log.
    fn log_tail(&self, handle: &ActiveSandbox, id: &str, lines: usize) -> String {
        let at = Place::sandbox(&handle.name);
        let path = inside(&log_of(id));
        let size = self.api().file_stat(&at, path.as_bytes(), true).map_or(0, |meta| meta.size);
        let from = size.saturating_sub(MOST_BYTES as u64);
        let mut bytes = Vec::new();
        // A process without output has no log yet.
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
