//! Cleaning up behind workers that were killed.

use crate::planning::now_ms;
use crate::store::{Claim, Home};
use crate::sync;
use crate::workspace;
use msb_spec::{Ending, Name, Plan, Result, state};
use msb_wire::record::{Event, Happened};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
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
    leave_networks(home);
    said.extend(sync::repair(home));
    said
}

/// Removes the sockets by which sandboxes that are gone were reached, and networks without any.
fn leave_networks(home: &Home) {
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
    plan && !matches!(
        last_event(&directory).map(|event| event.happened),
        Some(Happened::Stopped { .. })
    )
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
    let number = last_event(&claim.directory).map_or(0, |event| event.number);
    let crashed = Happened::Stopped { ending: Ending::Crashed, exit: None };
    append(&claim.directory, number + 1, Happened::Repaired);
    append(&claim.directory, number + 2, crashed);
    Ok(format!("cleaned up after sandbox `{}`, whose worker was killed", plan.name))
}

/// Removes the cgroup directories of a sandbox without processes.
pub(crate) fn remove_cgroup(plan: &Plan) {
    /// What was killed leaves its cgroup a moment later.
    const EMPTY_LIMIT: Duration = Duration::from_secs(2);
    let since = Instant::now();
    for directory in plan.limits.cgroup_directories(&plan.name).values() {
        let is_busy = |error: io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        while fs::remove_dir(directory).is_err_and(is_busy) && since.elapsed() < EMPTY_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The last event of a sandbox.
pub(crate) fn last_event(directory: &Path) -> Option<Event> {
    let current = last_line(&directory.join(state::EVENTS));
    current.or_else(|| last_line(&directory.join(format!("{}{}", state::EVENTS, state::ROTATED))))
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
    append(directory, 1, Happened::Stopped { ending: Ending::Stopped, exit: None });
}

fn append(directory: &Path, number: u64, happened: Happened) {
    let mut line = serde_json::to_vec(&Event { number, time: now_ms(), happened })
        .expect("our own types always serialise");
    line.push(b'\n');
    let file = File::options().append(true).create(true).open(directory.join(state::EVENTS));
    // On a full disk the next command tries again.
    let _ = file.and_then(|mut file| file.write_all(&line));
}
