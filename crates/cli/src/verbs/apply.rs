//! `msb apply`: changes of a workspace come to the host.

use super::diff::{counted, tell_rest};
use crate::output::{self, Outcome};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use crate::{change_text, listing, terminal, workspace_target};
use clap::Parser;
use msb_api::{Api, ApplyReport, Change, Depth, Item, ItemKind, LeftOut, RelPath, Selection, What};
use msb_engine::workspace::judge;
use msb_spec::{Error, Name, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, IsTerminal, Read};

/// Brings what a sandbox has changed in its workspace to the host: all of the chosen or nothing.
#[derive(Debug, Parser)]
#[command(override_usage = "msb apply [OPTIONS] [NAME]")]
pub(crate) struct ApplyArgs {
    /// Name of the sandbox; may be left out in its workspace
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Only what fits, as in `src/**` or `*.rs`; what the host would run later is named here
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Nothing that fits
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Files that the host's .gitignore leaves out, too
    #[arg(long)]
    ignored: bool,
    /// Even if the host has changed it since: its version is lost
    #[arg(long, value_name = "GLOB")]
    overwrite: Vec<String>,
    /// Ask about each file, by one key; `?` lists the keys
    #[arg(long, short, conflicts_with_all = ["json", "dry_run"])]
    interactive: bool,
    /// Check everything and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for ApplyArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let (named, quiet) = (self.name.as_deref(), self.quiet || self.json);
        if let Some(path) = named.filter(|named| workspace_target::is_path(named)) {
            return Err(Error::invalid(format!("not a sandbox name: `{path}`"))
                .hint("`--include GLOB` chooses what is applied")
                .into());
        }
        let (name, _) = workspace_target::find(target, &*api, named, Vec::new(), quiet)?;
        let mut selection = Selection {
            include: self.include,
            exclude: self.exclude,
            ignored: self.ignored,
            overwrite: self.overwrite,
            only: None,
        };
        if self.interactive {
            let Some(chosen) = ask(&*api, &name, &selection)? else {
                output::note("nothing was applied");
                return Ok(0);
            };
            selection.only = Some(chosen);
        }
        let applied = api.workspace_apply(&name, &selection, self.dry_run)?;
        if self.json {
            listing::json(&applied);
        } else if !self.quiet {
            tell(&applied, self.dry_run, selection.only.is_some());
            if !self.dry_run {
                tell_rest(&*api, &name);
            }
        }
        Ok(0)
    }
}

fn tell(applied: &ApplyReport, dry_run: bool, chosen: bool) {
    applied.notes.iter().for_each(output::note);
    for change in change_text::reportable(&applied.applied) {
        output::print(change_text::line(change));
    }
    if applied.applied.is_empty() {
        output::note("nothing was applied");
    } else if dry_run {
        output::note("nothing was written; without `--dry-run` this would be applied");
    } else {
        let (count, all) = counts(applied);
        output::note(format!("applied {count} of {}", counted(all, "change", "changes")));
    }
    if chosen {
        return;
    }
    let left_out = |why: LeftOut| {
        let of = applied.left_out.iter().filter(move |(_, reason)| *reason == why);
        of.map(|(change, _)| change)
    };
    let risky: Vec<&Change> = left_out(LeftOut::Risk).collect();
    if let Some(first) = risky.first() {
        output::note(format!(
            "left out, since the host would run them later: {}",
            risky.iter().map(|change| change.path.to_string()).collect::<Vec<_>>().join(", ")
        ));
        output::note(format!("`--include {}` brings one that you have read", first.path));
    }
    let ignored = left_out(LeftOut::Ignored).count();
    if ignored > 0 {
        let changes = counted(ignored, "change", "changes");
        output::note(format!(
            "left out {changes} by the host's .gitignore; `--ignored` brings them"
        ));
    }
    let special = left_out(LeftOut::Special).count();
    if special > 0 {
        output::note(format!("left out {}", counted(special, "special file", "special files")));
    }
}

/// How many changes were applied, and of how many; those that have a line of their own.
fn counts(applied: &ApplyReport) -> (usize, usize) {
    let paths: BTreeSet<&RelPath> = applied.applied.iter().map(|change| &change.path).collect();
    let left_out = applied.left_out.iter().map(|(change, _)| change);
    let all: Vec<Change> = applied.applied.iter().chain(left_out).cloned().collect();
    let told = change_text::reportable(&all);
    (told.iter().filter(|change| paths.contains(&change.path)).count(), told.len())
}

const HELP: &str = "y  apply this\nn  leave it out\nd  show the difference\na  apply this and all \
                    that follow, but what the host would run later\nq  apply nothing at all\n\
                    ?  show this\n";

/// Asks about each file. None if nothing is to be applied.
fn ask(
    api: &dyn Api,
    name: &Name,
    selection: &Selection,
) -> Result<Option<BTreeMap<RelPath, Option<String>>>> {
    let changes =
        api.workspace_diff(name, &[], Depth { digests: true, patches: true, git: false })?;
    let judged = judge(selection, &changes)?;
    let meant: BTreeSet<&RelPath> = changes
        .iter()
        .zip(&judged)
        .filter(|(_, left_out)| matches!(left_out, None | Some(LeftOut::Risk)))
        .map(|(change, _)| &change.path)
        .collect();
    let told = change_text::reportable(&changes);
    let asked: Vec<&Change> =
        told.into_iter().filter(|change| meant.contains(&change.path)).collect();
    let mut chosen = BTreeMap::new();
    let mut all = false;
    for (number, change) in (1..).zip(&asked) {
        if change.after.as_ref().is_some_and(has_no_digest) {
            // It could not be compared with what was shown.
            output::note(format!("left out, too large to be compared: {}", change.path));
            continue;
        }
        if all && change.risk.is_none() {
            choose(&mut chosen, &changes, change);
            continue;
        }
        loop {
            if let Some(risk) = &change.risk {
                output::write_stderr(format!("# {}\n", msb_spec::shown(&risk.reason)).as_bytes());
            }
            if let Some(conflict) = change.conflict {
                output::write_stderr(format!("# conflict: {}\n", conflict.reason()).as_bytes());
            }
            let question = format!(
                "{}\n({number}/{}) apply this [y,n,d,a,q,?]? ",
                change_text::line(change),
                asked.len()
            );
            match answer(&question)?.as_deref() {
                Some("y") => choose(&mut chosen, &changes, change),
                Some("n") => {}
                Some("a") => {
                    all = true;
                    choose(&mut chosen, &changes, change);
                }
                Some("q") | None => return Ok(None),
                Some("d") => {
                    output::write_stdout(change_text::patch(change).as_bytes());
                    continue;
                }
                Some(_) => {
                    output::prompt(HELP);
                    continue;
                }
            }
            break;
        }
    }
    Ok((!chosen.is_empty()).then_some(chosen))
}

/// Whether a file has more holes than are read for its digest.
fn has_no_digest(item: &Item) -> bool {
    item.kind == ItemKind::File && item.sha256.is_none()
}

/// One key at a terminal, or else one line; none at the end of what can be typed.
fn answer(question: &str) -> Result<Option<String>> {
    /// Longer than any answer.
    const LONGEST: u64 = 4096;
    if std::io::stdin().is_terminal() {
        return Ok(terminal::key(question)?.map(String::from));
    }
    output::prompt(question);
    let mut text = String::new();
    let read = std::io::stdin().lock().take(LONGEST).read_line(&mut text);
    let read = read.map_err(|error| Error::host("cannot read from the terminal", error))?;
    Ok((read > 0).then(|| text.trim().to_lowercase()))
}

/// Notes a change with the digest that it was shown with; of one that was renamed both ends, and of
/// a directory everything that goes with it.
fn choose(chosen: &mut BTreeMap<RelPath, Option<String>>, changes: &[Change], change: &Change) {
    let digest = |change: &Change| change.after.as_ref().and_then(|item| item.sha256.clone());
    chosen.insert(change.path.clone(), digest(change));
    chosen.extend(change.renamed_from.clone().map(|from| (from, None)));
    // A directory that goes is told by what was in it.
    let mut parent = change.path.parent();
    while let Some(path) = parent {
        parent = path.parent();
        let goes = |other: &&Change| other.path == path && other.what == What::Deleted;
        if change.what == What::Deleted && changes.iter().any(|other| goes(&other)) {
            chosen.insert(path, None);
        }
    }
}
