//! The network that sandboxes share: addresses and name resolution.

use super::SandboxMcpState;
use super::active::ListedSandbox;
use super::commands::ShellCommand;
use super::format::quoted;
use super::lifecycle::OFFLINE;
use crate::dialect::ToolCall;
use msb_spec::{Result, addresses};
use std::fmt::Write;
use std::net::IpAddr;

/// Timeout in seconds for resolving all peers from one sandbox.
const LIMIT: f64 = 15.0;

impl SandboxMcpState {
    pub(super) fn network_info(&self, call: &ToolCall) -> Result<String> {
        let all = self.all()?;
        if all.is_empty() {
            return Ok("No active sandboxes.".to_owned());
        }
        let mut text = String::new();
        for found in &all {
            let name = &found.summary.name;
            let ip = address(found).map_or_else(|| "unknown".to_owned(), |ip| ip.to_string());
            let (container, shell) = (&found.incarnation.container, self.shell_of(found));
            let _ = writeln!(text, "{:<12}  {container}  ip:{ip}  shell:{shell}", name.as_str());
            if let Some(why) = found.summary.labels.get(OFFLINE) {
                let _ = writeln!(text, "  no network: {why}");
            }
            let others = all.iter().filter(|other| other.summary.name != *name);
            let others: Vec<&ListedSandbox> =
                others.filter(|other| address(other).is_some()).collect();
            if address(found).is_none() || others.is_empty() {
                continue;
            }
            for (peer, reached) in self.reached(call, found, &others) {
                let _ = writeln!(text, "  -> {peer}: {}", if reached { "ok" } else { "FAIL" });
            }
        }
        Ok(text.trim_end().to_owned())
    }

    /// Which peers a sandbox can resolve by name.
    fn reached(
        &self,
        call: &ToolCall,
        found: &ListedSandbox,
        others: &[&ListedSandbox],
    ) -> Vec<(String, bool)> {
        let names: Vec<String> = others.iter().map(|it| quoted(it.summary.name.as_str())).collect();
        // Resolved as programs inside do it; images without `getent` have `nslookup`.
        let command = format!(
            "for n in {}; do {{ getent hosts $n || nslookup $n; }} >/dev/null 2>&1 && echo $n; done",
            names.join(" ")
        );
        let handle = self.active.of(&found.summary.name);
        let output = self.run_quietly(call, &handle, &ShellCommand::new(&command, LIMIT));
        let text = output.map(|output| output.stdout).unwrap_or_default();
        let reached = |other: &&ListedSandbox| {
            let name = other.summary.name.to_string();
            let reached = text.lines().any(|line| line == name);
            (name, reached)
        };
        others.iter().map(reached).collect()
    }
}

/// The address inside a sandbox, if it has a network.
pub(super) fn address(found: &ListedSandbox) -> Option<IpAddr> {
    found.is_online.then_some(IpAddr::V4(addresses::GUEST))
}
