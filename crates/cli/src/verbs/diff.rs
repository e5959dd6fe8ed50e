//! `msb diff`: what was changed in a workspace.

use super::ls::is_for_review;
use crate::git_patch_text::GitPatchText;
use crate::output::{self, Outcome};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use crate::{change_text, listing, workspace_target};
use clap::Parser;
use msb_api::{Api, Change, Depth, GitGap, RelPath};
use msb_engine::workspace::typed_path;
use msb_spec::{Error, Kind, Name, PlannedWorkspace, Result};
use serde::Serialize;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Shows what a sandbox has changed in its workspace; the host's files are as they were.
#[derive(Debug, Parser)]
#[command(override_usage = "msb diff [OPTIONS] [NAME] [PATH...]")]
pub(crate) struct DiffArgs {
    /// Name of the sandbox; may be left out in its workspace
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Only what lies there; without a name as in `./src`
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show the lines that differ; to a file or pipe, write a patch for `git apply`
    #[arg(long, short, conflicts_with_all = ["stat", "name_only", "json"])]
    patch: bool,
    /// Count the lines that differ
    #[arg(long, conflicts_with_all = ["name_only", "json"])]
    stat: bool,
    /// Print paths and nothing else
    #[arg(long, conflicts_with = "json")]
    name_only: bool,
    /// Show files that the host's .gitignore leaves out, too
    #[arg(long)]
    ignored: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    sandbox: &'a Name,
    host: &'a Path,
    guest: &'a str,
    changes: Vec<Change>,
}

impl TargetVerb for DiffArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = self.name.as_deref();
        let (name, typed) = workspace_target::find(target, &*api, name, self.paths, self.json)?;
        let paths = paths(&*api, &name, &typed)?;
        // People read lines; what is piped or kept has to be exact.
        let git = self.patch && !std::io::stdout().is_terminal();
        let patches = self.stat || self.patch && !git;
        let depth = Depth { digests: self.json, patches, git };
        let mut changes = api.workspace_diff(&name, &paths, depth)?;
        if self.json {
            let planned = planned(&*api, &name)?;
            let (host, guest) = (planned.host.as_path(), planned.guest.as_str());
            listing::json(&Report { sandbox: &name, host, guest, changes });
            return Ok(0);
        }
        let all = changes.len();
        changes.retain(|change| self.ignored || !change.ignored);
        let left_out = all - changes.len();
        if self.name_only {
            changes.iter().for_each(|change| output::print(change_text::name(&change.path, None)));
        } else if git {
            git_patch(&changes)?;
        } else if self.patch {
            let told = change_text::reportable(&changes);
            told.iter()
                .for_each(|change| output::write_stdout(change_text::patch(change).as_bytes()));
        } else if self.stat {
            stat(&changes);
        } else {
            list(&changes);
        }
        if left_out > 0 && !self.name_only {
            output::note(format!(
                "{} left out by the host's .gitignore; `--ignored` shows them",
                counted(left_out, "change is", "changes are")
            ));
        }
        Ok(0)
    }
}

/// Writes a patch for git. Files that are too large for it are an error, after everything else.
fn git_patch(changes: &[Change]) -> Result<()> {
    let patch = GitPatchText::of(changes);
    output::write_stdout(patch.text.as_bytes());
    let (large, others): (Vec<_>, Vec<_>) =
        patch.missing.iter().partition(|(_, gap)| *gap == GitGap::TooLarge);
    if !others.is_empty() {
        output::note(format!(
            "{} no form in a git patch; `msb apply` brings what it can",
            counted(others.len(), "change has", "changes have")
        ));
    }
    match large.first() {
        None => Ok(()),
        Some((first, _)) => {
            let count = counted(large.len(), "file is", "files are");
            let text = format!("{count} too large for a patch: `{}`", first.path);
            Err(Error::new(Kind::Limit, text).hint("`msb apply` brings files of any size"))
        }
    }
}

fn planned(api: &dyn Api, name: &Name) -> Result<PlannedWorkspace> {
    api.sandbox_inspect(name)?.plan.workspace.ok_or_else(|| {
        Error::new(Kind::State, format!("sandbox `{name}` has no workspace"))
            .hint("`msb create --workspace DIR` makes a sandbox with changes to review")
    })
}

/// The paths that were typed, below the workspace.
pub(super) fn paths(api: &dyn Api, name: &Name, typed: &[PathBuf]) -> Result<Vec<RelPath>> {
    if typed.is_empty() {
        return Ok(Vec::new());
    }
    let planned = planned(api, name)?;
    let guest = Path::new(&planned.guest);
    typed.iter().map(|path| typed_path(path, &planned.host, guest)).collect()
}

/// The ordinary ones, then those that have to be named, then those that cannot be applied.
pub(super) fn list(changes: &[Change]) {
    let told = change_text::reportable(changes);
    for change in told.iter().filter(|change| change.conflict.is_none() && change.risk.is_none()) {
        output::print(change_text::line(change));
    }
    let risky = told.iter().filter_map(|change| Some((change, change.risk.as_ref()?)));
    let risky: Vec<_> = risky.filter(|(change, _)| change.conflict.is_none()).collect();
    if !risky.is_empty() {
        output::print("\nthe host would run these later; each has to be named with --include:");
        for (change, risk) in risky {
            output::print(format!(
                "{}  # {}",
                change_text::line(change),
                msb_spec::shown(&risk.reason)
            ));
        }
    }
    let conflicts = told.iter().filter_map(|change| Some((change, change.conflict?)));
    let conflicts: Vec<_> = conflicts.collect();
    if !conflicts.is_empty() {
        output::print("\nconflicts, which keep everything from being applied:");
        for (change, conflict) in conflicts {
            output::print(format!("{}  # {}", change_text::line(change), conflict.reason()));
        }
    }
}

fn stat(changes: &[Change]) {
    let told = change_text::reportable(changes);
    let names: Vec<String> =
        told.iter().map(|change| change_text::name(&change.path, None)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let (mut added, mut removed) = (0u64, 0u64);
    for (change, name) in told.iter().zip(&names) {
        let (text, more, less) = change_text::counts(change);
        added += u64::from(more);
        removed += u64::from(less);
        output::print(format!("{name:<width$} | {text}").trim_end());
    }
    if !told.is_empty() {
        let files = counted(told.len(), "path", "paths");
        output::print(format!("{files} changed, {added} lines added, {removed} removed"));
    }
}

/// A number with its noun.
pub(super) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Tells what became of a sandbox that was only kept for its changes.
pub(super) fn tell_rest(api: &dyn Api, name: &Name) {
    match api.sandbox_summary(name) {
        Err(error) if error.kind() == Kind::NotFound => {
            output::note(format!("sandbox `{name}` had nothing else and is gone"));
        }
        Ok(sandbox) if is_for_review(&sandbox) => {
            output::note(format!("`msb discard {name}` forgets the changes that are left"));
        }
        _ => {}
    }
}
