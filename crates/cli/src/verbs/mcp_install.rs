//! `msb mcp install` and `uninstall`: this program in the settings of an MCP client.
//!
//! Shows what would change, asks, keeps a copy of the file, and changes that one entry.

mod clients;
mod command;
mod edit;
mod one_line;

use crate::clock;
use crate::output::{self, Outcome};
use crate::settings_file::{FileContents, SettingsFile};
use crate::terminal;
use crate::verb_table::LocalVerb;
use clap::{Args, Parser, ValueEnum};
use clients::{Client, Scope};
use edit::{Entry, Spot, Value};
use msb_spec::{Error, Kind, Result, env};
use rustix::fs::Mode;
use serde_json::json;
use std::io::IsTerminal;

/// Adds `msb mcp` to the settings of an MCP client. Shows the change and asks before it writes;
/// the file as it was stays beside it. `msb mcp uninstall` takes the entry out again.
#[derive(Debug, Parser)]
#[command(override_usage = "msb mcp install [OPTIONS] CLIENT")]
pub(crate) struct McpInstallArgs {
    /// MCP client to change the settings of
    #[arg(value_name = "CLIENT")]
    client: Client,
    /// The tools that are offered [default: microsandbox]
    #[arg(long, value_name = "DIALECT")]
    dialect: Option<Dialect>,
    #[command(flatten)]
    change: Change,
}

/// Takes the entry that `msb mcp install` made out of the settings of an MCP client.
#[derive(Debug, Parser)]
#[command(override_usage = "msb mcp uninstall [OPTIONS] CLIENT")]
pub(crate) struct McpUninstallArgs {
    /// MCP client to change the settings of
    #[arg(value_name = "CLIENT")]
    client: Client,
    #[command(flatten)]
    change: Change,
}

#[derive(Debug, Args)]
struct Change {
    /// Name of the entry
    #[arg(long, short, value_name = "NAME", default_value = "microsandbox", value_parser = name)]
    name: String,
    /// In the settings of the project in the current directory
    #[arg(long)]
    project: bool,
    /// In your own settings (the default)
    #[arg(long, conflicts_with = "project")]
    user: bool,
    /// Also if an entry by that name is not ours
    #[arg(long, short)]
    force: bool,
    /// Show the change and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// The tools that a client is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dialect {
    Core,
    Microsandbox,
    Server,
    Opensandbox,
    SandboxMcp,
}

/// Closed to others: such files hold keys.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// As open as the umask lets it be: a project is shared.
const SHARED: Mode = Mode::from_raw_mode(0o666);

impl LocalVerb for McpInstallArgs {
    fn run(self) -> Outcome {
        let scope = self.change.scope();
        let entry = entry(self.client, scope, self.dialect)?;
        let settings = Settings::open(self.client, scope)?;
        let spot = self.change.spot(self.client);
        let after = settings.edited(|text| edit::put(text, spot, &entry))?;
        if after == settings.text {
            output::note(format!("`{}` has it already", settings.place.path().display()));
            return Ok(0);
        }
        if !settings.place.has_directory() && scope == Scope::User {
            let title = self.client.title();
            output::note(format!("{title} does not seem to be here: its directory is missing"));
        }
        for name in settings.edited(|text| edit::dropped(text, spot, &entry))? {
            let name = msb_spec::shown(&name);
            output::note(format!("`{name}` of the entry that is there goes: it is not ours"));
        }
        if self.change.write(&settings, spot, &after)? {
            output::note(self.client.notices());
        }
        Ok(0)
    }
}

impl LocalVerb for McpUninstallArgs {
    fn run(self) -> Outcome {
        let settings = Settings::open(self.client, self.change.scope())?;
        let spot = self.change.spot(self.client);
        match settings.edited(|text| edit::take(text, spot))? {
            Some(after) => drop(self.change.write(&settings, spot, &after)?),
            None => {
                let path = settings.place.path().display();
                return Err(Error::new(
                    Kind::NotFound,
                    format!("no `{}` in `{path}`", self.change.name),
                )
                .hint("`--name` and `--project` say which entry is meant")
                .into());
            }
        }
        Ok(0)
    }
}

impl Change {
    fn scope(&self) -> Scope {
        if self.project { Scope::Project } else { Scope::User }
    }

    fn spot(&self, client: Client) -> Spot<'_> {
        let keep = !self.project;
        Spot { section: client.section(), name: &self.name, force: self.force, keep }
    }

    /// Shows the change, and makes it if it is wanted; whether it was made.
    fn write(&self, settings: &Settings, spot: Spot<'_>, after: &str) -> Result<bool> {
        let path = settings.place.path().display();
        let shown = |text| edit::masked(text, spot);
        let before = shown(&settings.text);
        let patch = msb_engine::workspace::between(before.as_bytes(), shown(after).as_bytes());
        let text = format!("--- {path}\n+++ {path}\n{}", patch.text);
        let object = json!({"path": path.to_string(), "patch": patch.text});
        output::record(&object, text.trim_end_matches('\n'));
        if self.dry_run {
            output::note("nothing was written; without `--dry-run` this would be");
            return Ok(false);
        }
        if !self.yes && !asked()? {
            output::note("nothing was written");
            return Ok(false);
        }
        if let Some(found) = &settings.found {
            let copy = settings.place.back_up(found, &stamp())?;
            output::note(format!("the file as it was is `{}`", copy.display()));
        }
        let mode = if self.project { SHARED } else { PRIVATE };
        settings.place.write(settings.found.as_ref(), after.as_bytes(), mode)?;
        Ok(true)
    }
}

/// A file of settings as it is.
struct Settings {
    place: SettingsFile,
    found: Option<FileContents>,
    text: String,
}

impl Settings {
    fn open(client: Client, scope: Scope) -> Result<Self> {
        let place = client.place(scope)?;
        let found = place.read()?;
        let bytes = found.as_ref().map(|found| found.bytes.clone()).unwrap_or_default();
        let text = String::from_utf8(bytes).map_err(|error| {
            Error::invalid(format!("cannot change `{}`", place.path().display()))
                .cause(format!("it is not text at byte {}", error.utf8_error().valid_up_to()))
                .hint("nothing was written; mend the file and do it once more")
        })?;
        Ok(Self { place, found, text })
    }

    fn edited<T>(&self, edit: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        let path = self.place.path().display();
        edit(&self.text).map_err(|error| error.under(format!("cannot change `{path}`")))
    }
}

fn entry(client: Client, scope: Scope, dialect: Option<Dialect>) -> Result<Entry> {
    let mut words = vec!["mcp".to_owned()];
    if let Some(dialect) = dialect.filter(|dialect| *dialect != Dialect::Microsandbox)
        && let Some(value) = dialect.to_possible_value()
    {
        words.extend(["--dialect".to_owned(), value.get_name().to_owned()]);
    }
    let mut entry: Entry = client.marks().into_iter().collect();
    entry.push(("command", Value::Text(command::of(client, scope)?)));
    entry.push(("args", Value::List(words)));
    if let Some(home) = state_directory(scope)? {
        entry.push(("env", Value::Members(vec![(env::HOME, home)])));
    }
    Ok(entry)
}

/// The state directory that `MSB_HOME` names: the client starts the server without the variables
/// of this shell. A project is shared with users that have theirs elsewhere.
fn state_directory(scope: Scope) -> Result<Option<String>> {
    let Some(home) = std::env::var_os(env::HOME).filter(|home| !home.is_empty()) else {
        return Ok(None);
    };
    if scope == Scope::Project {
        output::note(format!("{} is not written into the settings of a project", env::HOME));
        return Ok(None);
    }
    let home = std::path::absolute(home)
        .map_err(|error| Error::host("cannot find the current directory", error))?;
    match home.into_os_string().into_string() {
        Ok(home) => Ok(Some(home)),
        Err(_) => Err(Error::unsupported(format!("the value of {} is not text", env::HOME))
            .hint("settings are JSON, which cannot hold it; choose another directory")),
    }
}

/// What every client takes for a name.
fn name(text: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !text.is_empty() && text.len() <= 64 && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err(Error::invalid(format!("not a name for a server: `{}`", msb_spec::shown(text)))
        .hint("up to 64 letters, digits, `-` and `_`"))
}

fn asked() -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::invalid("nothing was written: no terminal to ask at")
            .hint("`--yes` writes without asking, `--dry-run` only shows the change"));
    }
    let answer = terminal::line("Write this? [y/N] ")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// `20260102-030405`: fit for a file's name.
fn stamp() -> String {
    let written = clock::written(clock::now_ms());
    let digits = written.chars().filter(|c| c.is_ascii_digit() || *c == 'T').take(15);
    digits.map(|c| if c == 'T' { '-' } else { c }).collect()
}
