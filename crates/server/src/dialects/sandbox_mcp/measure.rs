//! How much a sandbox uses, and whether it is well.

use super::Surface;
use super::commands::Ask;
use super::live::Found;
use super::network::address;
use super::text::size;
use crate::dialect::Call;
use msb_spec::Result;
use serde::Deserialize;
use std::fmt::Write;

/// Long enough for a `df` on a slow disk; nobody waits longer to hear that something is ill.
const LIMIT: f64 = 5.0;
/// What is told as high, and what as too much.
const HIGH: u64 = 85;
const FULL: u64 = 95;

#[derive(Debug, Deserialize)]
pub(super) struct Stats {
    sandbox: String,
}

/// What `df` says of the disk that a sandbox writes to.
struct Disk {
    used: u64,
    total: u64,
    percent: u64,
}

impl Surface {
    pub(super) fn stats(&self, call: &Call, asked: &Stats) -> Result<String> {
        let live = self.used(call, &asked.sandbox)?;
        let found = self.of(&live)?;
        let metrics = self.api().sandbox_metrics(&live.name)?;
        let (name, container) = (&found.summary.name, &found.life.container);
        let mut text = format!("Sandbox: {container} ('{name}', {})", found.resources);
        let limit = metrics.memory_limit.unwrap_or(found.resources.memory_mb << 20);
        let _ = write!(
            text,
            "\nMemory:  {} / {} ({}%)",
            size(metrics.memory),
            size(limit),
            percent(metrics.memory, limit)
        );
        let _ = write!(text, "\nCPU:     {:.2}s total", metrics.cpu_us as f64 / 1e6);
        if let Some((received, sent)) = self.traffic(&found) {
            let _ = write!(text, "\nNet:     {} rx / {} tx", size(received), size(sent));
        }
        let _ = write!(text, "\nBlock:   {} written", size(metrics.disk.unwrap_or(0)));
        let _ = write!(text, "\nPIDs:    {}", metrics.pids);
        if let Some(disk) = self.disk(call, &live) {
            let (used, total) = (size(disk.used), size(disk.total));
            let _ = write!(text, "\nDisk:    {used}/{total} ({}% used)", disk.percent);
        }
        if let Some(ip) = address(&found) {
            let _ = write!(text, "\nIP:      {ip}");
        }
        let _ = write!(text, "\nUptime:  {}", span(metrics.uptime_ms));
        let running = self.running(&found);
        if !running.is_empty() {
            let names: Vec<&str> = running.iter().map(|process| process.id.as_str()).collect();
            let _ = write!(text, "\nBgProcs: {} ({})", names.len(), names.join(", "));
        }
        let _ = write!(text, "\nHistory: {} commands", self.ledger.entries(name).len());
        Ok(text)
    }

    pub(super) fn health(&self, call: &Call) -> Result<String> {
        let all = self.all()?;
        if all.is_empty() {
            return Ok("No active sandboxes".to_owned());
        }
        let mut lines = Vec::new();
        let mut issues = 0;
        for found in &all {
            let (line, ill) = self.health_of(call, found);
            issues += ill;
            lines.push(line);
        }
        Ok(format!("{} sandbox(es), {issues} issue(s)\n{}", all.len(), lines.join("\n")))
    }

    /// One line, and how much is wrong.
    fn health_of(&self, call: &Call, found: &Found) -> (String, usize) {
        let name = &found.summary.name;
        let live = self.lives.of(name);
        // A shell that is at work is not asked: nobody waits for a command of somebody else here.
        let busy = live.is_busy();
        let disk = if busy { None } else { self.disk(call, &live) };
        if disk.is_none() && !busy {
            return (format!("{name}:  shell=DEAD"), 1);
        }
        let mut issues = 0;
        let mut judged = |percent: u64, worst: &str| {
            let word = match percent {
                FULL.. => format!(" {worst}"),
                HIGH.. => " HIGH".to_owned(),
                _ => String::new(),
            };
            issues += usize::from(!word.is_empty());
            format!("{percent}%{word}")
        };
        let mut line = format!("{name}:  shell=ok");
        if let Some(disk) = disk {
            let _ = write!(line, "  disk={}", judged(disk.percent, "FULL"));
        }
        if let Ok(metrics) = self.api().sandbox_metrics(name) {
            let limit = metrics.memory_limit.unwrap_or(found.resources.memory_mb << 20);
            let _ = write!(line, "  mem={}", judged(percent(metrics.memory, limit), "OOM"));
            let _ = write!(line, "  up={}  procs={}", span(metrics.uptime_ms), metrics.pids);
        }
        let forwards = self.forwards(std::slice::from_ref(found));
        if !forwards.is_empty() {
            let all: Vec<String> =
                forwards.iter().map(|it| format!("{}->{}", it.port.host, it.port.guest)).collect();
            let _ = write!(line, "  fwd=[{}]", all.join(", "));
        }
        (line, issues)
    }

    /// The disk that a sandbox writes to; none if its shell does not answer.
    fn disk(&self, call: &Call, live: &super::live::Live) -> Option<Disk> {
        let output = self.run_quietly(call, live, &Ask::new("df -Pk / | tail -n 1", LIMIT)).ok()?;
        let words: Vec<&str> = output.stdout.split_whitespace().collect();
        let kib = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let (total, used) = (kib(1) << 10, kib(2) << 10);
        (output.status >= 0).then(|| Disk { used, total, percent: percent(used, total) })
    }

    /// Bytes that came in and went out on flows that are open.
    fn traffic(&self, found: &Found) -> Option<(u64, u64)> {
        let table = self.api().network_table(&found.summary.name).ok()?;
        let sum = |of: fn(&msb_api::NetFlow) -> u64| table.flows.iter().map(of).sum();
        Some((sum(|flow| flow.received), sum(|flow| flow.sent)))
    }
}

fn percent(part: u64, of: u64) -> u64 {
    part.saturating_mul(100).checked_div(of).unwrap_or(0)
}

fn span(ms: u64) -> String {
    format!("{}m{}s", ms / 60_000, ms / 1000 % 60)
}
