//! Resource usage and health of sandboxes.

use super::SandboxMcpState;
use super::active::ListedSandbox;
use super::commands::ShellCommand;
use super::format::size;
use super::network::address;
use crate::dialect::ToolCall;
use msb_spec::Result;
use serde::Deserialize;
use std::fmt::Write;

/// Timeout in seconds for `df`, enough for a slow disk.
const LIMIT: f64 = 5.0;
/// Percentages that are reported as high, and as full.
const HIGH: u64 = 85;
const FULL: u64 = 95;

#[derive(Debug, Deserialize)]
pub(super) struct StatsArgs {
    sandbox: String,
}

/// Output of `df` for the root of a sandbox.
struct DfOutput {
    used: u64,
    total: u64,
    percent: u64,
}

impl SandboxMcpState {
    pub(super) fn stats(&self, call: &ToolCall, args: &StatsArgs) -> Result<String> {
        let handle = self.ensure_active(call, &args.sandbox)?;
        let found = self.listed(&handle)?;
        let metrics = self.api().sandbox_metrics(&handle.name)?;
        let (name, container) = (&found.summary.name, &found.incarnation.container);
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
        if let Some(disk) = self.disk(call, &handle) {
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
        let _ = write!(text, "\nHistory: {} commands", self.records.entries(name).len());
        Ok(text)
    }

    pub(super) fn health(&self, call: &ToolCall) -> Result<String> {
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

    /// One line about a sandbox, and the number of its issues.
    fn health_of(&self, call: &ToolCall, found: &ListedSandbox) -> (String, usize) {
        let name = &found.summary.name;
        let handle = self.active.of(name);
        // A busy shell is not queried: this call does not wait for a command of another.
        let busy = handle.is_busy();
        let disk = if busy { None } else { self.disk(call, &handle) };
        if disk.is_none() && !busy {
            return (format!("{name}:  shell=DEAD"), 1);
        }
        let mut issues = 0;
        let mut with_warning = |percent: u64, worst: &str| {
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
            let _ = write!(line, "  disk={}", with_warning(disk.percent, "FULL"));
        }
        if let Ok(metrics) = self.api().sandbox_metrics(name) {
            let limit = metrics.memory_limit.unwrap_or(found.resources.memory_mb << 20);
            let _ = write!(line, "  mem={}", with_warning(percent(metrics.memory, limit), "OOM"));
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

    /// Usage of the root file system; none if the shell does not respond.
    fn disk(&self, call: &ToolCall, handle: &super::active::ActiveSandbox) -> Option<DfOutput> {
        let output = self
            .run_quietly(call, handle, &ShellCommand::new("df -Pk / | tail -n 1", LIMIT))
            .ok()?;
        let words: Vec<&str> = output.stdout.split_whitespace().collect();
        let kib = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let (total, used) = (kib(1) << 10, kib(2) << 10);
        (output.status >= 0).then(|| DfOutput { used, total, percent: percent(used, total) })
    }

    /// Bytes received and sent on open flows.
    fn traffic(&self, found: &ListedSandbox) -> Option<(u64, u64)> {
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
