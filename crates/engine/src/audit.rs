//! The chain of the event log: gone on with behind a worker that died, and checked.
//!
//! What is checked is what is there: a log that somebody wrote anew from its first line to its head cannot
//! be told from the true one. `docs/audit.md` says what to do about that.

use crate::planning::now_ms;
use crate::repair;
use crate::sandboxes::Engine;
use msb_api::{Audit, Damage};
use msb_spec::{Kind, Name, Result, state};
use msb_wire::record::{Event, Happened};
use msb_wire::{Head, Link, Reply, Request, unchained};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// More damage than this is not listed: who reads so much knows.
const MOST_DAMAGE: usize = 100;

/// Where the event log of a sandbox that has run ends. If nothing says so, there was one event at least.
pub(crate) fn head(directory: &Path) -> Head {
    known_head(directory).unwrap_or(Head { number: 1, chain: None })
}

/// The same by the file that says so, unless lines were added after it. What is missing between the
/// two stays missing, and is found.
fn known_head(directory: &Path) -> Option<Head> {
    let kept = kept(directory).map(|(head, _)| head);
    let last = repair::last_event(directory)
        .map(|event| Head { number: event.number.max(1), chain: event.chain });
    match (kept, last) {
        (Some(kept), Some(last)) if last.number > kept.number => Some(last),
        // That file is written before the first line; without it nobody knows what came after the last.
        (None, Some(last)) if last.chain.is_some() => {
            Some(Head { number: last.number + 1, ..last })
        }
        (kept, last) => kept.filter(|head| head.number > 0).or(last),
    }
}

/// The worker that last wrote there.
pub(crate) fn worker(directory: &Path) -> Option<u32> {
    kept(directory)?.1
}

fn kept(directory: &Path) -> Option<(Head, Option<u32>)> {
    Head::of_file(&fs::read_to_string(directory.join(state::HEAD)).ok()?)
}

/// Adds events to the log of a sandbox that nobody runs.
pub(crate) fn append<const N: usize>(directory: &Path, happened: [Happened; N]) {
    // On a full disk the next command tries again.
    let _ = add(directory, head(directory), happened);
}

/// Begins the log of a sandbox that was made and not started.
pub(crate) fn begin(directory: &Path, happened: Happened) {
    let _ = add(directory, Head::first(), [happened]);
}

fn add<const N: usize>(
    directory: &Path,
    mut head: Head,
    happened: [Happened; N],
) -> io::Result<()> {
    let mut options = File::options();
    let kept =
        options.write(true).create(true).truncate(false).open(directory.join(state::HEAD))?;
    // No worker has written this.
    let keep = |head: &Head| kept.write_all_at(head.kept(None).as_bytes(), 0);
    keep(&head)?;
    let path = directory.join(state::EVENTS);
    let mut log = File::options().read(true).append(true).create(true).open(path)?;
    let length = log.metadata()?.len();
    let mut lines = Vec::new();
    let mut last = [b'\n'];
    if length > 0 {
        log.read_exact_at(&mut last, length - 1)?;
    }
    // What was cut short is no beginning of what comes next.
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
    /// Checks the chain of a sandbox's event log.
    pub fn audit(&self, name: &Name) -> Result<Audit> {
        let directory = self.home().directory(name);
        let plan = self.home().plan(name)?;
        // Asked first: what is added meanwhile comes after it.
        let told = match self.home().is_running(name) {
            true => self.connect(name, &Request::Head).and_then(|mut worker| worker.reply()),
            false => Ok(Reply::Done),
        };
        let worker = match told {
            Ok(Reply::Head(head)) => Some(head),
            // It has ended while it was asked.
            Err(error) if self.home().is_running(name) && error.kind() != Kind::State => {
                return Err(error);
            }
            _ => None,
        };
        let head = worker.or_else(|| kept(&directory).map(|(head, _)| head));
        let rotated = format!("{}{}", state::EVENTS, state::ROTATED);
        // The newer first: should it become the older meanwhile, it is read twice and not never.
        let current = fs::read(directory.join(state::EVENTS)).unwrap_or_default();
        let older = fs::read(directory.join(rotated)).ok();
        let begun_anew = older.as_ref().is_some_and(|older| !older.is_empty());
        let older = older.filter(|older| current.is_empty() || !older.starts_with(&current));
        let mut check = Check::default();
        check.file(older.as_deref().unwrap_or_default());
        check.file(&current);
        if check.events == 0 && head.is_none() && !plan.ephemeral {
            check.note(1, "is missing, with all after it");
        }
        Ok(check.finish(name, head.as_ref(), begun_anew))
    }
}

/// A log on its way through the check.
#[derive(Default)]
struct Check {
    events: u64,
    unchained: u64,
    from: Option<u64>,
    last: Option<Head>,
    /// The links of the last lines that were good, for a head that is a little behind.
    seen: Vec<Head>,
    damage: Vec<Damage>,
}

impl Check {
    fn file(&mut self, bytes: &[u8]) {
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        // What comes after the last end of a line; a line without one was cut short.
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
            self.plain(&event, before);
            return;
        };
        let known = self.last.as_ref().map(|last| last.chain.clone());
        let previous = match (known, &event.after) {
            // The first that is left says itself what came before it.
            (None, None) if event.number == 1 => Some(Link::first()),
            (None, Some(after)) => Some(after.clone()),
            (None, None) => None,
            (Some(Some(link)), _) => Some(link),
            // Before it were lines of a time without chains.
            (Some(None), Some(after)) if *after == Link::first() => Some(after.clone()),
            (Some(None), _) => None,
        };
        let number = event.number;
        match previous {
            _ if self.last.is_some() && number <= before => self.note(number, "is out of order"),
            _ if self.last.is_some() && number > before + 1 => {
                self.missing(before + 1, number - 1);
                // What is before it is gone; if it is first in its file it can say so itself.
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

    /// A line without a hash: from before there were any, or stripped of it.
    fn plain(&mut self, event: &Event, before: u64) {
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
        if self.damage.len() < MOST_DAMAGE {
            self.damage.push(Damage { number, what: what.to_owned() });
        }
    }

    fn finish(mut self, name: &Name, head: Option<&Head>, begun_anew: bool) -> Audit {
        let to = self.last.as_ref().map_or(0, |last| last.number);
        // Before the first line there is a head, and nothing to say where it leads.
        let chained = head.is_some_and(|head| head.number > 0 && head.chain.is_some());
        let is_ours = self.unchained == 0 || chained;
        if !begun_anew && self.from.is_some_and(|from| from > 1) && is_ours {
            // A log that was begun anew has the one before it beside it.
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
                // A worker that was killed may have written lines after it, and never its head.
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
            None => self.note(to, "may not be the last: the file that says so is missing"),
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
