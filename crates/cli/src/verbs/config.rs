//! `msb config`: the settings of config.toml, and where each value comes from.

mod document;
mod editor;
mod values;

use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::settings_file::{FileContents, SettingsFile};
use crate::target::Target;
use crate::verb_table::{LocalVerb, TargetVerb};
use clap::Parser;
use msb_engine::conf::{Settings, settings_path};
use msb_spec::{Error, Kind, Result};
use rustix::fs::Mode;

/// Shows every setting: its value, and whether that is a default or comes from config.toml, a
/// variable or a flag.
#[derive(Debug, Parser)]
#[command(override_usage = "msb config show [OPTIONS]")]
pub(crate) struct ConfigShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the value of one setting.
#[derive(Debug, Parser)]
#[command(override_usage = "msb config get [OPTIONS] KEY")]
pub(crate) struct ConfigGetArgs {
    /// Setting, as in `defaults.memory`
    #[arg(value_name = "KEY")]
    key: String,
    /// Print JSON, with where the value comes from
    #[arg(long)]
    json: bool,
}

/// Writes one setting to config.toml. Comments and the order of the file stay; a field that does
/// not exist or a wrong value is refused before anything is written.
#[derive(Debug, Parser)]
#[command(override_usage = "msb config set KEY VALUE")]
pub(crate) struct ConfigSetArgs {
    /// Setting, as in `defaults.memory`
    #[arg(value_name = "KEY")]
    key: String,
    /// Its new value, as in `512M`, `true` or `['https://mirror.example']`
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    value: String,
}

/// Removes one setting from config.toml, so that its default applies again.
#[derive(Debug, Parser)]
#[command(override_usage = "msb config unset KEY")]
pub(crate) struct ConfigUnsetArgs {
    /// Setting, as in `defaults.memory`
    #[arg(value_name = "KEY")]
    key: String,
}

/// Opens config.toml in VISUAL or EDITOR. What is saved is checked before it takes effect.
#[derive(Debug, Parser)]
#[command(override_usage = "msb config edit")]
pub(crate) struct ConfigEditArgs {}

impl TargetVerb for ConfigShowArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let values = values::all(target)?;
        if self.json {
            listing::json(&values);
            return Ok(0);
        }
        let mut table = Listing::new(&["KEY", "VALUE", "SOURCE"]);
        for it in values {
            table.row(&[it.key, it.value.unwrap_or_else(|| "-".to_owned()), it.source]);
        }
        table.print();
        Ok(0)
    }
}

impl TargetVerb for ConfigGetArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let values = values::all(target)?;
        let wanted = document::canonical(&self.key)?;
        let is_wanted = |key: &str| document::canonical(key).is_ok_and(|keys| keys == wanted);
        let Some(found) = values.iter().find(|it| is_wanted(&it.key)) else {
            let error = Error::new(Kind::NotFound, format!("no such setting: `{}`", self.key));
            let keys = values.iter().map(|it| it.key.as_str());
            return Err(match msb_spec::nearest(&wanted.join("."), keys) {
                Some(near) => error.hint(format!("did you mean `{near}`?")).into(),
                None => error.hint("`msb config show` lists the settings there are").into(),
            });
        };
        match self.json {
            true => listing::json(found),
            false => output::print(found.value.as_deref().unwrap_or_default()),
        }
        Ok(0)
    }
}

impl LocalVerb for ConfigSetArgs {
    fn run(self) -> Outcome {
        let config = Config::read()?;
        config.write(&document::set(&config.text, &self.key, &self.value)?)?;
        Ok(0)
    }
}

impl LocalVerb for ConfigUnsetArgs {
    fn run(self) -> Outcome {
        let config = Config::read()?;
        config.write(&document::unset(&config.text, &self.key)?)?;
        Ok(0)
    }
}

impl LocalVerb for ConfigEditArgs {
    fn run(self) -> Outcome {
        let config = Config::read()?;
        match editor::edit(&config.text, &check)? {
            Some(text) => config.write(&text)?,
            None => output::note("nothing was changed"),
        }
        Ok(0)
    }
}

/// config.toml as it was read. It is replaced by `rename(2)`, and only if it is unchanged by then.
struct Config {
    file: SettingsFile,
    before: Option<FileContents>,
    text: String,
}

impl Config {
    fn read() -> Result<Self> {
        // The state directory is made if it is missing, with its own permissions.
        msb_engine::Home::open()?;
        let file = SettingsFile::of_user(&settings_path()?)?;
        let before = file.read()?;
        let bytes = before.as_ref().map(|found| found.bytes.clone()).unwrap_or_default();
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::invalid(format!("not UTF-8: `{}`", file.path().display())))?;
        Ok(Self { file, before, text })
    }

    fn write(&self, text: &str) -> Result<()> {
        if text == self.text {
            return Ok(());
        }
        self.file.write(self.before.as_ref(), text.as_bytes(), Mode::RUSR | Mode::WUSR)
    }
}

/// Whether msb could use this text as its config.toml.
fn check(text: &str) -> Result<()> {
    Settings::parse(text)?.check()
}
