//! The hash chain of the event log: continued after a worker died, and checked.
//!
//! The check covers the files that exist. A log that was rewritten completely, including its head
//! file, cannot be told from the original one; see `docs/audit.md`.

use crate::planning::now_ms;
use crate::repair;
use crate::sandboxes::Engine;
use msb_api::{Audit, Damage};
use msb_spec::{Kind, Name, Result, state};
use msb_wire::record::{Event, EventKind};
use msb_wire::{Head, Link, Reply, Request, unchained};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most entries of damage in a report.
const MAX_DAMAGE: usize = 100;

/// The head of the event log of a sandbox that has run. Without any record it is event 1 without a
/// hash.
pub(crate) fn head(directory: &Path) -> Head {
    last_head(directory).unwrap_or(Head { number: 1, chain: None })
}

/// The head from the head file, or from the log if that is newer. Events missing between the two
/// stay missing, and the check reports them.
fn last_head(directory: &Path) -> Option<Head> {
    let head_file = head_file(directory).map(|(head, _)| head);
    let last = repair::last_event(directory)
        .map(|event| Head { number: event.number.max(1), chain: event.chain });
    match (head_file, last) {
        (Some(head_file), Some(last)) if last.number > head_file.number => Some(last),
        // The head file is written before the first event; without it later events may be lost.
        (None, Some(last)) if last.chain.is_some() => {
            Some(Head { number: last.number + 1, ..last })
        }
        (head_file, last) => head_file.filter(|head| head.number > 0).or(last),
    }
}

/// The pid of the worker that last wrote the head file.
pub(crate) fn worker(directory: &Path) -> Option<u32> {
    head_file(directory)?.1
}

fn head_file(directory: &Path) -> Option<(Head, Option<u32>)> {
    Head::of_file(&fs::read_to_string(directory.join(state::HEAD)).ok()?)
}

/// Appends events to the log of a stopped sandbox.
pub(crate) fn append<const N: usize>(directory: &Path, happened: [EventKind; N]) {
    // Errors are ignored: on a full disk the next command repeats the repair.
    msb_log::warn_on_failure!(add(directory, head(directory), happened), "cannot write an event");
}

/// Starts the log of a sandbox that was created and not started.
pub(crate) fn begin(directory: &Path, happened: EventKind) {
    msb_log::warn_on_failure!(
        add(directory, Head::first(), [happened]),
        "cannot write the first event"
    );
}

fn add<const N: usize>(
    directory: &Path,
    mut head: Head,
    happened: [EventKind; N],
) -> io::Result<()> {
    let mut options = File::options();
    let head_file =
        options.write(true).create(true).truncate(false).open(directory.join(state::HEAD))?;
    // No worker pid: this process writes it.
    let keep = |head: &Head| head_file.write_all_at(head.kept(None).as_bytes(), 0);
    keep(&head)?;
    let path = directory.join(state::EVENTS);
    let mut log = File::options().read(true).append(true).create(true).open(path)?;
    let length = log.metadata()?.len();
    let mut lines = Vec::new();
    let mut last = [b'\n'];
    if length > 0 {
        log.read_exact_at(&mut last, length - 1)?;
    }
    // A truncated last line is terminated first.
    if last != [b'\n'] {
        lines.push(b'\n');
    }
    let mut begins = length == 0;
    for happened in happened {
        let event = Event::new(head.number + 1, now_ms(), happened);
        head.append(event, std::mem::take(&mut begins), &mut lines);
    }
    log.write_all(&lines).inspect_err(|_| drop(log.set_len(length)))?;
    keep(&head)
}

impl Engine {
    /// Checks the hash chain of the event log of a sandbox.
    pub fn audit(&self, name: &Name) -> Result<Audit> {
        let directory = self.home().directory(name);
        let plan = self.home().plan(name)?;
        // Read before the log: events that are appended meanwhile come after it.
        let reply = match self.home().is_running(name) {
            true => self.connect(name, &Request::Head).and_then(|mut worker| worker.reply()),
            false => Ok(Reply::Done),
        };
        let worker = match reply {
            Ok(Reply::Head(head)) => Some(head),
            // The worker has ended meanwhile.
            Err(error) if self.home().is_running(name) && error.kind() != Kind::State => {
                return Err(error);
            }
            _ => None,
        };
        let head = worker.or_else(|| head_file(&directory).map(|(head, _)| head));
        let rotated = format!("{}{}", state::EVENTS, state::ROTATED);
        // The current file is read first: if it is rotated meanwhile, it is read twice and not
        // skipped.
        let current = fs::read(directory.join(state::EVENTS)).unwrap_or_default();
        let older = fs::read(directory.join(rotated)).ok();
        let rotated_once = older.as_ref().is_some_and(|older| !older.is_empty());
        let older = older.filter(|older| current.is_empty() || !older.starts_with(&current));
        let mut check = ChainCheck::default();
        check.file(older.as_deref().unwrap_or_default());
        check.file(&current);
        if check.events == 0 && head.is_none() && !plan.ephemeral {
            check.note(1, "is missing, with all after it");
        }
        Ok(check.finish(name, head.as_ref(), rotated_once))
    }
}

/// The state of a check.
#[derive(Default)]
struct ChainCheck {
    events: u64,
    unchained: u64,
    from: Option<u64>,
    last: Option<Head>,
    /// Heads of the valid lines, to look up a head file that is behind the log.
    seen: Vec<Head>,
    damage: Vec<Damage>,
}

impl ChainCheck {
    fn file(&mut self, bytes: &[u8]) {
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        // The part after the last line end is empty, unless a line was truncated.
        if lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
        let mut begins = true;
        for line in lines {
            self.line(line, std::mem::take(&mut begins));
        }
    }

    fn line(&mut self, line: &[u8], begins: bool) {
        let before = self.last.as_ref().map_or(0, |last| last.number);
        let Ok(event) = serde_json::from_slice::<Event>(line) else {
            return self.note(before + 1, "cannot be read");
        };
        self.events += 1;
        self.from.get_or_insert(event.number);
        let Some((content, chain)) = unchained(line) else {
            self.unchained_line(&event, before);
            return;
        };
        let known = self.last.as_ref().map(|last| last.chain.clone());
        let previous = match (known, &event.after) {
            // The first line of a file carries the hash before it.
            (None, None) if event.number == 1 => Some(Link::first()),
            (None, Some(after)) => Some(after.clone()),
            (None, None) => None,
            (Some(Some(link)), _) => Some(link),
            // Lines before it were written before the log had hashes.
            (Some(None), Some(after)) if *after == Link::first() => Some(after.clone()),
            (Some(None), _) => None,
        };
        let number = event.number;
        match previous {
            _ if self.last.is_some() && number <= before => self.note(number, "is out of order"),
            _ if self.last.is_some() && number > before + 1 => {
                self.missing(before + 1, number - 1);
                // The previous line is missing; the first line of a file carries the hash before
                // it.
                let own = event.after.as_ref().filter(|_| begins);
                if own.is_some_and(|after| after.next(&content) != chain) {
                    self.note(number, "was changed");
                }
            }
            None => self.note(number, "does not follow from what is before it"),
            Some(previous) if previous.next(&content) != chain => {
                let own = event.after.as_ref().is_some_and(|after| after.next(&content) == chain);
                self.note(
                    number,
                    match own {
                        true => "does not follow from what is before it",
                        false => "was changed, or what is before it",
                    },
                );
            }
            Some(_) => {}
        }
        let head = Head { number: number.max(before), chain: Some(chain) };
        self.seen.push(head.clone());
        self.last = Some(head);
    }

    /// Checks a line without a hash: written before the log had hashes, or stripped.
    fn unchained_line(&mut self, event: &Event, before: u64) {
        let number = event.number;
        if self.last.as_ref().is_some_and(|last| last.chain.is_some()) {
            return self.note(number, "has no hash");
        }
        self.unchained += 1;
        if self.last.is_some() && number > before + 1 {
            self.missing(before + 1, number - 1);
        } else if self.last.is_some() && number <= before {
            self.note(number, "is out of order");
        }
        self.last = Some(Head { number: number.max(before), chain: None });
    }

    fn missing(&mut self, from: u64, to: u64) {
        match from == to {
            true => self.note(from, "is missing"),
            false => self.note(from, &format!("to {to} are missing")),
        }
    }

    fn note(&mut self, number: u64, what: &str) {
        if self.damage.len() < MAX_DAMAGE {
            self.damage.push(Damage { number, what: what.to_owned() });
        }
    }

    fn finish(mut self, name: &Name, head: Option<&Head>, rotated_once: bool) -> Audit {
        let to = self.last.as_ref().map_or(0, |last| last.number);
        // A head of number 0 exists before the first event and has nothing to compare.
        let chained = head.is_some_and(|head| head.number > 0 && head.chain.is_some());
        let is_ours = self.unchained == 0 || chained;
        if !rotated_once && self.from.is_some_and(|from| from > 1) && is_ours {
            // After a rotation, the previous file exists.
            self.damage.insert(
                0,
                Damage {
                    number: 1,
                    what: format!("to {} are missing", self.from.unwrap_or(2) - 1),
                },
            );
        }
        match head {
            Some(head) if head.number > to => self.missing(to + 1, head.number),
            Some(head) => {
                // A worker that was killed may have appended events without updating the head file.
                let found = self.seen.iter().find(|seen| seen.number == head.number).cloned();
                let same = found.as_ref().is_none_or(|found| found.chain == head.chain);
                if !same && self.damage.is_empty() {
                    self.note(head.number, "is not the one that was written");
                }
                if chained && found.is_none() && self.damage.is_empty() {
                    self.note(head.number, "has no hash");
                }
            }
            None if self.seen.is_empty() => {}
            None => self.note(to, "may not be the last: the head file is missing"),
        }
        Audit {
            name: name.to_string(),
            events: self.events,
            from: self.from,
            to,
            unchained: self.unchained,
            head: self
                .last
                .and_then(|last| last.chain)
                .map(|chain| Head { number: to, chain: Some(chain) }),
            damage: self.damage,
        }
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
