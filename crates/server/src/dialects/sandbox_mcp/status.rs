//! Overviews: all sandboxes with their ports and syncs, and the command history of one.

use super::SandboxMcpState;
use super::active::{ListedSandbox, name_of};
use super::base_image::IMAGE;
use super::lifecycle::{NETWORK, OFFLINE};
use super::network::address;
use super::records::now;
use super::syncs::shown;
use msb_api::SyncState;
use msb_spec::Result;
use serde::Deserialize;
use std::fmt::Write;
use std::time::Duration;

#[derive(Debug, Deserialize)]
pub(super) struct HistoryArgs {
    limit: i64,
    sandbox: String,
}

impl SandboxMcpState {
    pub(super) fn status(&self) -> Result<String> {
        let mut text = String::new();
        let all = self.all()?;
        if all.is_empty() {
            text.push_str("No active sandboxes.\n");
        }
        for found in &all {
            let name = &found.summary.name;
            let ip = address(found).map(|ip| format!("  ip:{ip}")).unwrap_or_default();
            let background = self.running(found).len();
            let background = match background {
                0 => String::new(),
                count => format!("  bg:{count}"),
            };
            let _ = writeln!(
                text,
                "  {:<12} {}  shell:{}{ip}{background}  idle:{}s  {}  cmds:{}",
                name.as_str(),
                found.incarnation.container,
                self.shell_of(found),
                self.idle(found).as_secs(),
                found.resources,
                self.records.entries(name).len(),
            );
        }
        let image = match self.base.current(self.api()) {
            Some(chosen) => match &chosen.why {
                None => chosen.shown(),
                Some(why) => format!("host ({IMAGE} could not be built: {why})"),
            },
            None => format!("{IMAGE} (built at first use)"),
        };
        let _ = writeln!(text, "Image:    {image}");
        text.push_str("Volumes:  per-sandbox (workspace + apk/pip/npm caches)\n");
        let offline = all.iter().find_map(|found| found.summary.labels.get(OFFLINE));
        let _ = match offline {
            Some(why) => writeln!(text, "Network:  none ({why})"),
            None => writeln!(text, "Network:  {NETWORK}"),
        };
        self.more_status(&mut text, &all);
        Ok(text.trim_end().to_owned())
    }

    /// Adds profiles, port forwards and sync jobs, if there are any.
    fn more_status(&self, text: &mut String, all: &[ListedSandbox]) {
        let profiles = &self.config.sandbox_mcp.profiles;
        if !profiles.is_empty() {
            text.push_str("Profiles:\n");
            for (name, profile) in profiles {
                let cpus = profile.cpus.map_or_else(|| "2".to_owned(), |cpus| cpus.to_string());
                let memory = profile.memory.map_or_else(|| "512M".to_owned(), |it| it.to_string());
                let vm = if profile.virtualization { " virtualization" } else { "" };
                let _ = writeln!(text, "  {name}: {cpus}cpu/{memory}{vm}");
            }
        }
        let forwards = self.forwards(all);
        if !forwards.is_empty() {
            text.push_str("Port forwards:\n");
            for forward in forwards {
                let _ = writeln!(text, "  {forward}");
            }
        }
        let jobs = self.jobs().unwrap_or_default();
        if !jobs.is_empty() {
            text.push_str("Sync jobs:\n");
            for job in jobs {
                let state = match job.status.state {
                    SyncState::Ended => "ended",
                    SyncState::Copying | SyncState::Watching => "running",
                };
                let _ = writeln!(
                    text,
                    "  {}: {} -> {}:{} ({} files, {state})",
                    shown(&job),
                    job.source,
                    job.sandbox,
                    job.target,
                    job.status.files
                );
            }
        }
    }

    pub(super) fn list_all(&self) -> Result<String> {
        let all = self.all()?;
        if all.is_empty() {
            return Ok(
                "No active sandboxes. Use any sandbox tool to auto-create 'default'.".to_owned()
            );
        }
        let mut text = format!(
            "{:<12}  {:<16}  {:<8}  {:>6}  Resources\n",
            "Name", "Container", "Shell", "Idle"
        );
        text.push_str(&"─".repeat(65));
        for found in &all {
            let idle = format!("{}s", self.idle(found).as_secs());
            let _ = write!(
                text,
                "\n{:<12}  {:<16}  {:<8}  {idle:>6}  {}",
                found.summary.name.as_str(),
                found.incarnation.container,
                self.shell_of(found),
                found.resources,
            );
        }
        Ok(text)
    }

    /// The state of a sandbox's shell; a shell that was not needed yet counts as alive.
    pub(super) fn shell_of(&self, found: &ListedSandbox) -> &'static str {
        match self.active.get(&found.summary.name) {
            Some(handle) if !handle.responds() => "dead",
            _ => "alive",
        }
    }

    /// Time since the last use of a sandbox, on this server or another.
    pub(super) fn idle(&self, found: &ListedSandbox) -> Duration {
        let name = &found.summary.name;
        let here = self.active.get(name).map(|handle| handle.idle());
        let made = Duration::from_millis(now().saturating_sub(found.summary.created));
        [here, self.records.idle(name)].into_iter().flatten().fold(made, Duration::min)
    }

    pub(super) fn history(&self, args: &HistoryArgs) -> Result<String> {
        let limit = usize::try_from(args.limit).unwrap_or(0);
        let sandbox = &args.sandbox;
        let mut entries = name_of(sandbox).map(|name| self.records.entries(&name))?;
        entries.reverse();
        entries.truncate(limit);
        if entries.is_empty() {
            return Ok(format!("No command history for '{sandbox}'."));
        }
        let mut text = format!("Recent commands in '{sandbox}' ({} shown):", entries.len());
        for (number, entry) in entries.iter().enumerate() {
            let status = match entry.status {
                0 => "ok".to_owned(),
                status => format!("exit:{status}"),
            };
            let age = now().saturating_sub(entry.time) / 1000;
            let (number, taken) = (number + 1, entry.taken_ms);
            let _ = write!(
                text,
                "\n  {number:>2}. [{status}] {taken:.0}ms {age}s ago  {}",
                entry.command
            );
        }
        Ok(text)
    }
}
