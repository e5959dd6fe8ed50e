//! Cleans up after workers that were killed.

use crate::audit;
use crate::store::{Home, LockedSandbox};
use crate::sync;
use crate::workspace;
use msb_spec::{Ending, Name, Plan, Result, state};
use msb_wire::record::{Event, EventKind};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

/// Repairs every sandbox with a dead worker. Returns one line for each repair.
pub(crate) fn all(home: &Home) -> Vec<String> {
    let mut notes = Vec::new();
    for name in home.names() {
        if let Ok(Some(note)) = one(home, &name) {
            notes.push(note);
        }
        // Errors are ignored here: `msb apply` reports them itself.
        notes.extend(workspace::recover(home, &name).unwrap_or_default());
    }
    notes.extend(sync::repair(home));
    notes
}

/// Removes sockets of stopped sandboxes from named networks, and networks without members.
pub(crate) fn remove_stale_networks(home: &Home) {
    let within = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    for network in within(&home.networks()) {
        for socket in within(&network.path()) {
            let file = socket.file_name();
            let owner = file.to_str().and_then(|file| file.strip_suffix(".gateway"));
            // Hostnames are case-insensitive.
            let is_there = |owner: &str| {
                let mut own = home.names().into_iter();
                own.any(|name| name.as_str().eq_ignore_ascii_case(owner) && home.is_running(&name))
            };
            if owner.is_some_and(|owner| !is_there(owner)) {
                let _ = fs::remove_file(socket.path());
            }
        }
        // Fails if the network still has members.
        let _ = fs::remove_dir(network.path());
    }
}

/// Repairs one sandbox if its worker died without recording the end.
pub(crate) fn one(home: &Home, name: &Name) -> Result<Option<String>> {
    if home.is_running(name) || !is_unfinished(home, name) {
        return Ok(None);
    }
    let Ok(plan) = home.plan(name) else {
        return Ok(None);
    };
    let Some(claim) = home.lock(name)? else {
        return Ok(None);
    };
    // Another process may have repaired it before the lock was taken.
    if !is_unfinished(home, name) {
        return Ok(None);
    }
    clean(home, &plan, &claim).map(Some)
}

/// Whether the last state change of a sandbox is not a stop.
fn is_unfinished(home: &Home, name: &Name) -> bool {
    let directory = home.directory(name);
    let plan = fs::exists(directory.join(state::PLAN)).unwrap_or(false);
    plan && !matches!(last_state_change(&directory), Some(EventKind::Stopped { .. }))
}

fn clean(home: &Home, plan: &Plan, claim: &LockedSandbox) -> Result<String> {
    remove_cgroup(plan);
    if claim.directory.join(state::UNFINISHED).exists() {
        home.discard(claim)?;
        return Ok(format!(
            "removed sandbox `{}`: it was being created when msb was killed",
            plan.name
        ));
    }
    if plan.ephemeral && !workspace::has_changes(plan) {
        home.discard(claim)?;
        return Ok(format!("removed sandbox `{}`: its worker was killed", plan.name));
    }
    let _ = fs::remove_file(claim.directory.join(state::SOCKET));
    let crashed = EventKind::Stopped { ending: Ending::Crashed, exit: None };
    audit::append(&claim.directory, [EventKind::Repaired, crashed]);
    Ok(format!("cleaned up after sandbox `{}`: its worker was killed", plan.name))
}

/// Removes the cgroup directories of a sandbox without processes.
pub(crate) fn remove_cgroup(plan: &Plan) {
    /// How long to wait until killed processes have left the cgroup.
    const EMPTY_LIMIT: Duration = Duration::from_secs(2);
    let since = Instant::now();
    let freezer = plan.limits.freezer(&plan.name);
    if let Some(freezer) = &freezer {
        // On cgroup v1, processes killed while frozen die when they are thawed.
        msb_log::warn_on_failure!(
            fs::write(freezer.inside.join(freezer.switch), freezer.thaw),
            "cannot thaw a cgroup"
        );
    }
    let directories = plan.limits.cgroup_directories(&plan.name);
    for directory in freezer.iter().map(|own| &own.inside).chain(directories.values()) {
        let is_busy = |error: io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        while fs::remove_dir(directory).is_err_and(is_busy) && since.elapsed() < EMPTY_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The last event in the log of a sandbox.
pub(crate) fn last_event(directory: &Path) -> Option<Event> {
    last_event_matching(directory, |_| true)
}

/// The last event that matches. It is searched at the end of the log first, then in all of it.
fn last_event_matching(directory: &Path, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
    let rotated = format!("{}{}", state::EVENTS, state::ROTATED);
    let last_in = |bytes: Vec<u8>| {
        let lines = bytes.split(|byte| *byte == b'\n').rev();
        lines.filter_map(|line| serde_json::from_slice(line).ok()).find(&wanted)
    };
    [state::EVENTS, &rotated].into_iter().find_map(|name| {
        let path = directory.join(name);
        let near = last_in(read_end(&path).ok()?);
        near.or_else(|| last_in(fs::read(&path).ok()?))
    })
}

/// The last 128 KiB of a file: some hundred events.
fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    const LATEST: u64 = 128 << 10;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LATEST)))?;
    let mut end = Vec::new();
    file.take(LATEST).read_to_end(&mut end)?;
    Ok(end)
}

/// The last event that changes whether the sandbox runs, is paused or ends.
pub(crate) fn last_state_change(directory: &Path) -> Option<EventKind> {
    let changes_state = |event: &Event| {
        matches!(
            event.happened,
            EventKind::Started { .. }
                | EventKind::Draining
                | EventKind::Paused { .. }
                | EventKind::Resumed { .. }
                | EventKind::Stopped { .. }
        )
    };
    last_event_matching(directory, changes_state).map(|event| event.happened)
}

/// The highest Exec id in the records of a sandbox.
pub(crate) fn last_exec(directory: &Path) -> u64 {
    let number = |line: serde_json::Value| line.get("exec")?.as_u64();
    let current = last_line(&directory.join(state::EXECS)).and_then(number);
    let rotated = || {
        last_line(&directory.join(format!("{}{}", state::EXECS, state::ROTATED))).and_then(number)
    };
    let last = current.or_else(rotated).unwrap_or(0);
    // Execs end out of order, so the last line need not have the highest id.
    let file = File::open(directory.join(state::EXECS)).ok();
    let all = file.into_iter().flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
    let numbers = all.filter_map(|line| number(serde_json::from_str(&line).ok()?));
    numbers.max().unwrap_or(last).max(last)
}

fn last_line<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// Records that a new sandbox was not started: a `Stopped` event.
pub(crate) fn not_started(directory: &Path) {
    audit::begin(directory, EventKind::Stopped { ending: Ending::Stopped, exit: None });
}

/// Appends an event to the log of a stopped sandbox.
pub(crate) fn note(directory: &Path, happened: EventKind) {
    audit::append(directory, [happened]);
}
