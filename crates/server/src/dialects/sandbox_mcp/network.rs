//! The network that sandboxes share: who has an address on it, and who finds whom.

use super::Surface;
use super::begin::OFFLINE;
use super::commands::Ask;
use super::live::Found;
use super::text::quoted;
use crate::dialect::Call;
use msb_spec::{Result, addresses};
use std::fmt::Write;
use std::net::IpAddr;

/// How long all the others have to be found by one.
const LIMIT: f64 = 15.0;

impl Surface {
    pub(super) fn network_info(&self, call: &Call) -> Result<String> {
        let all = self.all()?;
        if all.is_empty() {
            return Ok("No active sandboxes.".to_owned());
        }
        let mut text = String::new();
        for found in &all {
            let name = &found.summary.name;
            let ip = address(found).map_or_else(|| "unknown".to_owned(), |ip| ip.to_string());
            let (container, shell) = (&found.life.container, self.shell_of(found));
            let _ = writeln!(text, "{:<12}  {container}  ip:{ip}  shell:{shell}", name.as_str());
            if let Some(why) = found.summary.labels.get(OFFLINE) {
                let _ = writeln!(text, "  no network: {why}");
            }
            let others = all.iter().filter(|other| other.summary.name != *name);
            let others: Vec<&Found> = others.filter(|other| address(other).is_some()).collect();
            if address(found).is_none() || others.is_empty() {
                continue;
            }
            for (peer, reached) in self.reached(call, found, &others) {
                let _ = writeln!(text, "  -> {peer}: {}", if reached { "ok" } else { "FAIL" });
            }
        }
        Ok(text.trim_end().to_owned())
    }

    /// Which of the others a sandbox finds by their names.
    fn reached(&self, call: &Call, found: &Found, others: &[&Found]) -> Vec<(String, bool)> {
        let names: Vec<String> = others.iter().map(|it| quoted(it.summary.name.as_str())).collect();
        // Names are looked up as programs inside do it; images without `getent` have `nslookup`.
        let command = format!(
            "for n in {}; do {{ getent hosts $n || nslookup $n; }} >/dev/null 2>&1 && echo $n; done",
            names.join(" ")
        );
        let live = self.lives.of(&found.summary.name);
        let output = self.run_quietly(call, &live, &Ask::new(&command, LIMIT));
        let said = output.map(|output| output.stdout).unwrap_or_default();
        let reached = |other: &&Found| {
            let name = other.summary.name.to_string();
            let reached = said.lines().any(|line| line == name);
            (name, reached)
        };
        others.iter().map(reached).collect()
    }
}

/// The address that a sandbox has inside, if it has a network.
pub(super) fn address(found: &Found) -> Option<IpAddr> {
    found.is_online.then_some(IpAddr::V4(addresses::GUEST))
}
