//! Reads `/proc`: the process tree, and its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// The proportional set size, in KiB, of all processes that have `word` among their arguments and
/// of all they started, but not of `payload`, the program that the sandbox is there for.
pub(super) fn resident(word: &str, payload: &str) -> Result<u64> {
    let roots = all().into_iter().filter(|&pid| has_argument(pid, word));
    let mut pids: BTreeSet<u32> = BTreeSet::new();
    for root in roots {
        pids.insert(root);
        pids.extend(descendants(root));
    }
    let mut sum = 0;
    for pid in pids {
        if name(pid) != payload {
            sum += sizes(pid)?.proportional;
        }
    }
    Ok(sum)
}

/// Ends what a process has started, not the process itself.
pub(super) fn kill_descendants(pid: u32) {
    let pids = descendants(pid).into_iter().map(|pid| pid.to_string());
    // Some may be gone by now: that is what we want.
    let _ = Command::new("kill").arg("-9").args(pids).stderr(Stdio::null()).status();
}

fn descendants(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in all() {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(&below);
        open.extend(below);
    }
    found
}

pub(super) fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn has_argument(pid: u32, word: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).any(|argument| argument == word.as_bytes())
}

pub(super) fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    number_after(&status, "PPid:")?.try_into().ok()
}

/// What memory a process takes, in KiB.
pub(super) struct Sizes {
    /// Its own pages, and its part of those it shares.
    pub(super) proportional: u64,
    /// All pages it has.
    pub(super) resident: u64,
}

/// Fails for a thread of the kernel, which has none.
pub(super) fn sizes(pid: u32) -> Result<Sizes> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{path}`"))?;
    let size = |label| number_after(&text, label).with_context(|| format!("no size in `{path}`"));
    Ok(Sizes { proportional: size("Pss:")?, resident: size("Rss:")? })
}

fn number_after(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::id;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_process_started_is_found_and_measured_and_ended() {
        let mut shell = Command::new("sh").args(["-c", "sleep 86397.5; exit 7"]).spawn().unwrap();
        // The child of the shell is the shell's copy until it has become `sleep`.
        let mut size = 0;
        for _ in 0..60_000 {
            size = resident("86397.5", "none").unwrap_or_default();
            if size > 0 {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let found = descendants(id()).iter().filter(|&&pid| pid == shell.id()).count();
        kill_descendants(shell.id());

        assert_eq!(found, 1);
        assert!(size > 0);
        assert_eq!(resident("no such argument", "none").unwrap(), 0);
        assert_eq!(shell.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn the_number_after_a_label_is_read() {
        let text = "Rss:  900 kB\nPss_Anon: 1 kB\nPss:                 123 kB\n";
        assert_eq!(number_after(text, "Pss:"), Some(123));
        assert_eq!(number_after(text, "Swap:"), None);
    }
}
