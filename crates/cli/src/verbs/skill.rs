//! `msb skill`: what teaches a coding agent to use msb, put where that agent reads such things.
//!
//! Files that were changed since, or that msb did not make, are neither written over nor removed
//! without `--force`.

mod agents;
mod files;

use crate::output::{self, Outcome};
use crate::settings_file::SettingsFile;
use crate::verb_table::LocalVerb;
use agents::Agent;
use clap::{Args, Parser};
use files::{FILES, InstalledFiles, State};
use msb_spec::{Error, Kind, Result};
use rustix::fs::Mode;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Puts the skill where a coding agent finds it.
#[derive(Debug, Parser)]
#[command(
    override_usage = "msb skill install [OPTIONS] AGENT\n       msb skill install [OPTIONS] --dir PATH"
)]
pub(crate) struct SkillInstallArgs {
    #[command(flatten)]
    target: SkillTarget,
}

/// Removes what `msb skill install` has put there.
#[derive(Debug, Parser)]
#[command(
    override_usage = "msb skill uninstall [OPTIONS] AGENT\n       msb skill uninstall [OPTIONS] --dir PATH"
)]
pub(crate) struct SkillUninstallArgs {
    #[command(flatten)]
    target: SkillTarget,
}

#[derive(Debug, Args)]
struct SkillTarget {
    /// Which agent
    #[arg(value_name = "AGENT", required_unless_present = "dir")]
    agent: Option<Agent>,
    /// For the project in the current directory
    #[arg(long)]
    project: bool,
    /// For you, in every project (the default)
    #[arg(long, conflicts_with = "project")]
    user: bool,
    /// Directory that holds skills, in place of the agent's own
    #[arg(long, value_name = "PATH", conflicts_with_all = ["agent", "project", "user"])]
    dir: Option<PathBuf>,
    /// Also files that were changed since, or are not ours
    #[arg(long, short)]
    force: bool,
    /// Show what would be done and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Prints the skill, or one of its references.
#[derive(Debug, Parser)]
#[command(override_usage = "msb skill show [REFERENCE]")]
pub(crate) struct SkillShowArgs {
    /// Which reference: cli, network, storage or mcp
    #[arg(value_name = "REFERENCE")]
    reference: Option<String>,
}

/// As open as the umask lets it be.
const SHARED: Mode = Mode::from_raw_mode(0o666);

impl LocalVerb for SkillInstallArgs {
    fn run(self) -> Outcome {
        let target = self.target;
        let installed = target.installed()?;
        let mut steps = Vec::new();
        for (name, text) in FILES {
            let place = target.place(name)?;
            let found = place.read()?;
            match installed.state(name, found.as_ref()) {
                State::Same => continue,
                State::Changed if !target.force => return Err(changed(&place).into()),
                State::Missing | State::Old | State::Changed => {}
            }
            steps.push((place, found, text));
        }
        if steps.is_empty() && installed.is_current() {
            output::note(format!("`{}` has it already", target.shown()?));
            return Ok(0);
        }
        for (place, found, text) in &steps {
            if !target.dry_run {
                place.write(found.as_ref(), text.as_bytes(), SHARED)?;
            }
            let letter = if found.is_some() { 'M' } else { 'A' };
            tell_change(letter, place.path());
        }
        for name in installed.no_longer_ours() {
            target.drop_file(&installed, name)?;
        }
        if target.dry_run {
            output::note("nothing was written; without `--dry-run` this would be");
            return Ok(0);
        }
        // Last: an installation that was cut off is completed by the next.
        let list = target.place(files::LIST)?;
        list.write(list.read()?.as_ref(), files::list().as_bytes(), SHARED)?;
        Ok(0)
    }
}

impl LocalVerb for SkillUninstallArgs {
    fn run(self) -> Outcome {
        let target = self.target;
        let installed = target.installed()?;
        let mut any = installed.has_list();
        let names: Vec<String> = installed.names().map(str::to_owned).collect();
        for name in &names {
            any |= target.drop_file(&installed, name)?;
        }
        if !any {
            let message = format!("no skill of ours in `{}`", target.shown()?);
            return Err(Error::new(Kind::NotFound, message)
                .hint("`--project` and `--dir` say which one is meant")
                .into());
        }
        if target.dry_run {
            output::note("nothing was removed; without `--dry-run` this would be");
            return Ok(0);
        }
        if installed.has_list() {
            target.place(files::LIST)?.remove()?;
        }
        let mut directories: Vec<&str> = names.iter().filter_map(|name| above(name)).collect();
        directories.sort_unstable();
        directories.dedup();
        for directory in directories {
            target.place(directory)?.remove_directory();
        }
        target.place("")?.remove_directory();
        Ok(0)
    }
}

impl LocalVerb for SkillShowArgs {
    fn run(self) -> Outcome {
        let name = match self.reference.as_deref() {
            None => "SKILL.md".to_owned(),
            Some(word) => format!("references/{}.md", word.trim_end_matches(".md")),
        };
        let found = FILES.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| {
            let word = self.reference.as_deref().map(msb_spec::shown).unwrap_or_default();
            Error::new(Kind::NotFound, format!("the skill has no reference `{word}`"))
                .hint("it has cli, network, storage and mcp")
        })?;
        output::write_stdout(text.as_bytes());
        Ok(0)
    }
}

impl SkillTarget {
    /// A file of the skill; none is the skill itself.
    fn place(&self, name: &str) -> Result<SettingsFile> {
        let inside = PathBuf::from("msb").join(name);
        match (&self.dir, self.agent) {
            (Some(dir), _) => SettingsFile::of_user(&dir.join(inside)),
            (None, Some(agent)) if self.project => {
                SettingsFile::of_project(&PathBuf::from(agent.of_project()).join(inside))
            }
            (None, Some(agent)) => SettingsFile::of_user(&agent.of_user()?.join(inside)),
            (None, None) => Err(Error::invalid("no agent is named").hint("`--dir` needs none")),
        }
    }

    fn installed(&self) -> Result<InstalledFiles> {
        Ok(InstalledFiles::of(self.place(files::LIST)?.read()?.as_ref()))
    }

    fn shown(&self) -> Result<String> {
        Ok(self.place("")?.path().display().to_string())
    }

    /// Removes a file that is as it was installed, and tells; whether it was there as such.
    fn drop_file(&self, installed: &InstalledFiles, name: &str) -> Result<bool> {
        let place = self.place(name)?;
        let found = place.read()?;
        match installed.state(name, found.as_ref()) {
            State::Missing => return Ok(false),
            State::Changed if !self.force => {
                output::note(format!(
                    "left: `{}` is not as it was installed",
                    place.path().display()
                ));
                return Ok(false);
            }
            State::Same | State::Old | State::Changed => {}
        }
        if !self.dry_run {
            place.remove()?;
        }
        tell_change('D', place.path());
        Ok(true)
    }
}

/// Prints a file that was added (A), modified (M) or deleted (D).
fn tell_change(letter: char, path: &Path) {
    let path = path.display().to_string();
    output::record(&json!({"path": path, "change": letter}), format!("{letter}  {path}"));
}

fn above(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(above, _)| above)
}

fn changed(place: &SettingsFile) -> Error {
    let message = format!("`{}` is not as it was installed", place.path().display());
    Error::new(Kind::Exists, message)
        .hint("nothing was written; `--force` writes over it, `msb skill show` prints ours")
}
