//! Every setting with its value and where that comes from.

use super::document;
use crate::target::Target;
use msb_engine::Home;
use msb_engine::conf::{Settings, settings_path};
use msb_spec::{Error, Result, env};
use serde::Serialize;

/// One setting, as it applies now.
#[derive(Debug, Serialize)]
pub(super) struct SettingValue {
    /// Dotted key, as in `defaults.memory`.
    pub(super) key: String,
    /// The value as it is typed; none if nothing is set and msb has no fixed default.
    pub(super) value: Option<String>,
    /// `default`, `config.toml`, `flag`, or `environment` with the name of the variable.
    pub(super) source: String,
}

/// All settings: those of the program, those with a default, then everything else in the file.
pub(super) fn all(target: &Target) -> Result<Vec<SettingValue>> {
    let path = settings_path()?;
    let about = |error: Error| error.under(format!("cannot use `{}`", path.display()));
    // A mistake in the file is told with its line, as by every verb.
    let settings = Settings::read(&Home::chosen_path()?)?;
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| about(Error::host("it cannot be read", error)))?,
    };
    let mut in_file: Vec<(Vec<String>, String)> = document::leaves(&text).map_err(about)?;
    for (keys, _) in &mut in_file {
        *keys = document::canonical(&joined(keys))?;
    }
    let mut values = vec![home()?, remote(target)];
    let limits = settings.image_limits;
    for (key, variable, default) in [
        ("defaults.image", None, Some("host".to_owned())),
        ("defaults.isolation", Some(env::ISOLATION), Some("auto".to_owned())),
        ("defaults.memory", None, None),
        ("defaults.cpus", None, None),
        ("defaults.network", Some(env::NET), Some("public".to_owned())),
        ("defaults.trust_host_cas", None, Some("false".to_owned())),
        ("image_limits.bytes", None, Some(limits.bytes.to_string())),
        ("image_limits.entries", None, Some(limits.entries.to_string())),
        ("image_limits.depth", None, Some(limits.depth.to_string())),
        ("image_limits.layers", None, Some(limits.layers.to_string())),
        ("image_limits.manifest", None, Some(limits.manifest.to_string())),
    ] {
        let place = in_file.iter().position(|(keys, _)| keys.join(".") == key);
        let from_file = place.map(|index| in_file.remove(index).1);
        let from_variable = variable.and_then(|name| Some((name, std::env::var(name).ok()?)));
        let (value, source) = match (from_variable, from_file) {
            (Some((name, value)), _) => (Some(value), from_environment(name)),
            (None, Some(value)) => (Some(value), FILE.to_owned()),
            (None, None) => (default, DEFAULT.to_owned()),
        };
        values.push(SettingValue { key: key.to_owned(), value, source });
    }
    values.extend(in_file.into_iter().map(|(keys, value)| SettingValue {
        key: joined(&keys),
        value: Some(value),
        source: FILE.to_owned(),
    }));
    Ok(values)
}

const FILE: &str = "config.toml";
const DEFAULT: &str = "default";

fn from_environment(name: &str) -> String {
    format!("environment ({name})")
}

/// Where sandboxes, images and settings are kept.
fn home() -> Result<SettingValue> {
    let value = Some(Home::chosen_path()?.display().to_string());
    let is_set = std::env::var_os(env::HOME).is_some_and(|path| !path.is_empty());
    let source = if is_set { from_environment(env::HOME) } else { DEFAULT.to_owned() };
    Ok(SettingValue { key: "home".to_owned(), value, source })
}

/// The server that verbs are sent to.
fn remote(target: &Target) -> SettingValue {
    let (value, source) = match target {
        Target::Local => (None, DEFAULT.to_owned()),
        Target::Remote(server) => (
            Some(server.url().to_owned()),
            match server.is_from_environment() {
                true => from_environment(env::REMOTE),
                false => "flag".to_owned(),
            },
        ),
    };
    SettingValue { key: "remote".to_owned(), value, source }
}

/// Keys with dots or spaces are quoted, so that `msb config get` takes them.
fn joined(keys: &[String]) -> String {
    let plain = |key: &str| {
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    let quoted = keys.iter().map(|key| match plain(key) {
        true => key.clone(),
        false => toml_edit::Key::new(key.as_str()).to_string(),
    });
    quoted.collect::<Vec<_>>().join(".")
}
