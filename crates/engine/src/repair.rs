//! Cleaning up behind workers that were killed.

use crate::audit;
use crate::store::{Claim, Home};
use crate::sync;
use crate::workspace;
use msb_spec::{Ending, Name, Plan, Result, state};
use msb_wire::record::{Event, Happened};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

/// Looks at every sandbox and repairs what a dead worker has left. Says what it did.
pub(crate) fn all(home: &Home) -> Vec<String> {
    let mut said = Vec::new();
    for name in home.names() {
        if let Ok(Some(note)) = one(home, &name) {
            said.push(note);
        }
        // One that is still at work, or cannot be undone yet, says so itself.
        said.extend(workspace::recover(home, &name).unwrap_or_default());
    }
    said.extend(sync::repair(home));
    said
}

/// Removes the sockets by which sandboxes that are gone were reached, and networks without any.
pub(crate) fn leave_networks(home: &Home) {
    let within = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    for network in within(&home.networks()) {
        for socket in within(&network.path()) {
            let file = socket.file_name();
            let owner = file.to_str().and_then(|file| file.strip_suffix(".gateway"));
            // Names of hosts have no capitals.
            let is_there = |owner: &str| {
                let mut own = home.names().into_iter();
                own.any(|name| name.as_str().eq_ignore_ascii_case(owner) && home.is_running(&name))
            };
            if owner.is_some_and(|owner| !is_there(owner)) {
                let _ = fs::remove_file(socket.path());
            }
        }
        // Only if nobody is left.
        let _ = fs::remove_dir(network.path());
    }
}

/// Repairs one sandbox if its worker died without a word.
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
    // Somebody may have been quicker while we waited for nothing.
    if !is_unfinished(home, name) {
        return Ok(None);
    }
    clean(home, &plan, &claim).map(Some)
}

/// Whether the last word on a sandbox is not that it stopped.
fn is_unfinished(home: &Home, name: &Name) -> bool {
    let directory = home.directory(name);
    let plan = fs::exists(directory.join(state::PLAN)).unwrap_or(false);
    plan && !matches!(last_turn(&directory), Some(Happened::Stopped { .. }))
}

fn clean(home: &Home, plan: &Plan, claim: &Claim) -> Result<String> {
    remove_cgroup(plan);
    if claim.directory.join(state::UNFINISHED).exists() {
        home.discard(claim)?;
        return Ok(format!("removed sandbox `{}`, whose maker was killed half way", plan.name));
    }
    if plan.ephemeral && !workspace::has_changes(plan) {
        home.discard(claim)?;
        return Ok(format!("removed sandbox `{}`, whose worker was killed", plan.name));
    }
    let _ = fs::remove_file(claim.directory.join(state::SOCKET));
    let crashed = Happened::Stopped { ending: Ending::Crashed, exit: None };
    audit::append(&claim.directory, [Happened::Repaired, crashed]);
    Ok(format!("cleaned up after sandbox `{}`, whose worker was killed", plan.name))
}

/// Removes the cgroup directories of a sandbox without processes.
pub(crate) fn remove_cgroup(plan: &Plan) {
    /// What was killed leaves its cgroup a moment later.
    const EMPTY_LIMIT: Duration = Duration::from_secs(2);
    let since = Instant::now();
    let freezer = plan.limits.freezer(&plan.name);
    if let Some(freezer) = &freezer {
        // What was killed while it was paused dies when it goes on.
        let _ = fs::write(freezer.inside.join(freezer.switch), freezer.thaw);
    }
    let directories = plan.limits.cgroup_directories(&plan.name);
    for directory in freezer.iter().map(|own| &own.inside).chain(directories.values()) {
        let is_busy = |error: io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        while fs::remove_dir(directory).is_err_and(is_busy) && since.elapsed() < EMPTY_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The last event of a sandbox.
pub(crate) fn last_event(directory: &Path) -> Option<Event> {
    last_such(directory, |_| true)
}

/// The last event that is wanted: mostly near the end, but a sandbox may have run many commands since.
fn last_such(directory: &Path, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
    let rotated = format!("{}{}", state::EVENTS, state::ROTATED);
    let last_in = |bytes: Vec<u8>| {
        let lines = bytes.split(|byte| *byte == b'\n').rev();
        lines.filter_map(|line| serde_json::from_slice(line).ok()).find(&wanted)
    };
    [state::EVENTS, &rotated].into_iter().find_map(|name| {
        let path = directory.join(name);
        let near = last_in(end_of(&path).ok()?);
        near.or_else(|| last_in(fs::read(&path).ok()?))
    })
}

/// The end of a file: some hundred events.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    const LATEST: u64 = 128 << 10;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LATEST)))?;
    let mut end = Vec::new();
    file.take(LATEST).read_to_end(&mut end)?;
    Ok(end)
}

/// The last event of a sandbox that changes whether it runs, is paused or ends.
pub(crate) fn last_turn(directory: &Path) -> Option<Happened> {
    let turns = |event: &Event| {
        matches!(
            event.happened,
            Happened::Started { .. }
                | Happened::Draining
                | Happened::Paused { .. }
                | Happened::Resumed { .. }
                | Happened::Stopped { .. }
        )
    };
    last_such(directory, turns).map(|event| event.happened)
}

/// The number of the last Exec of a sandbox.
pub(crate) fn last_exec(directory: &Path) -> u64 {
    let number = |line: serde_json::Value| line.get("exec")?.as_u64();
    let current = last_line(&directory.join(state::EXECS)).and_then(number);
    let rotated = || {
        last_line(&directory.join(format!("{}{}", state::EXECS, state::ROTATED))).and_then(number)
    };
    let last = current.or_else(rotated).unwrap_or(0);
    // Execs end out of order; the highest number is near the end.
    let file = File::open(directory.join(state::EXECS)).ok();
    let all = file.into_iter().flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
    let numbers = all.filter_map(|line| number(serde_json::from_str(&line).ok()?));
    numbers.max().unwrap_or(last).max(last)
}

fn last_line<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// The only event of a sandbox that was made and not started.
pub(crate) fn not_started(directory: &Path) {
    audit::begin(directory, Happened::Stopped { ending: Ending::Stopped, exit: None });
}

/// Adds something that happened to a sandbox which does not run.
pub(crate) fn note(directory: &Path, happened: Happened) {
    audit::append(directory, [happened]);
}
