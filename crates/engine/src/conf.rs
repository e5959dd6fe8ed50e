//! Reads sandboxes, patches and network rules from TOML files.

use crate::store::Home;
pub use msb_image::{SETTINGS_FILE, Settings};
use msb_spec::{Error, Patch, Result, Rule, SandboxDefaults, Spec, env};
use serde::Deserialize;
use std::path::PathBuf;

/// The defaults for new sandboxes: those of msb, then `[defaults]` of config.toml, then variables.
pub fn defaults() -> Result<SandboxDefaults> {
    let file = match Home::chosen_path() {
        Ok(home) => Settings::read(&home)?.defaults,
        // A client of a server needs no state directory.
        Err(_) => SandboxDefaults::default(),
    };
    let variable = |name: &str| std::env::var(name).ok();
    let (isolation, network) = (variable(env::ISOLATION), variable(env::NET));
    file.with_variables(isolation.as_deref(), network.as_deref())
}

/// The path of config.toml, whether or not it exists.
pub fn settings_path() -> Result<PathBuf> {
    Ok(Home::chosen_path()?.join(SETTINGS_FILE))
}

/// A Spec from a TOML file, with these defaults for what the file does not set.
pub fn spec_over(text: &str, defaults: &SandboxDefaults) -> Result<Spec> {
    let mut spec = spec(text)?;
    let table: toml::Table = toml::from_str(text).map_err(|error| unreadable(text, &error))?;
    let is_set = |path: &str| {
        let mut fields = path.split('.');
        let first = fields.next().and_then(|field| table.get(field));
        fields.try_fold(first, |value, field| Some(value?.get(field))).flatten().is_some()
    };
    defaults.fill(&mut spec, is_set);
    Ok(spec)
}

/// A Spec from a TOML file, with the defaults of the CLI.
pub fn spec(text: &str) -> Result<Spec> {
    let spec: Spec =
        msb_image::parse_toml(text, add_units).map_err(|error| unreadable(text, &error))?;
    let defaults = Spec::with_defaults();
    Ok(Spec { pids: spec.pids.or(defaults.pids), ..spec })
}

/// Adds `M` to sizes without a unit.
fn add_units(table: &mut toml::Table) {
    msb_image::plain_sizes_are_mib(table, &["memory", "disk"]);
    if let Some(spawn) = table.get_mut("spawn").and_then(toml::Value::as_table_mut) {
        msb_image::plain_sizes_are_mib(spawn, &["memory", "child_memory"]);
    }
    let tmpfs = table.get_mut("tmpfs").and_then(toml::Value::as_array_mut);
    for entry in tmpfs.into_iter().flatten() {
        if let Some((_, size)) = entry.as_str().and_then(|text| text.split_once(':'))
            && size.ends_with(|c: char| c.is_ascii_digit())
        {
            *entry = toml::Value::String(format!("{}M", entry.as_str().unwrap_or_default()));
        }
    }
}

/// Patches from a file: a list `[[patch]]`, each with one key such as `text` or `copy`.
pub fn patches(text: &str) -> Result<Vec<Patch>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        patch: Vec<Patch>,
    }
    let file: File = toml::from_str(text).map_err(|error| unreadable(text, &error))?;
    Ok(file.patch)
}

/// Network rules from a file: a list `rules`, in TOML or JSON.
pub fn rules(text: &str) -> Result<Vec<Rule>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        rules: Vec<Rule>,
    }
    if text.trim_start().starts_with('{') {
        let file: File = serde_json::from_str(text)
            .map_err(|error| Error::invalid("the file cannot be parsed").cause(error))?;
        return Ok(file.rules);
    }
    let file: File = toml::from_str(text).map_err(|error| unreadable(text, &error))?;
    Ok(file.rules)
}

fn unreadable(text: &str, error: &toml::de::Error) -> Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    msb_spec::file_mistake(line, error.message()).under("the file cannot be parsed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Bytes;

    #[test]
    fn a_spec_is_read_from_toml() {
        let spec = spec(
            "name = 'web'\nimage = './rootfs'\ncpus = 0.5\nmemory = '256M'\nworkdir = '/app'\n\
             mounts = ['.:/src:ro']\n[env]\nA = '1'\n[[patches]]\ntext = { path = '/x', content = 'y' }\n",
        )
        .unwrap();
        assert_eq!(spec.cpus.unwrap().to_string(), "0.5");
        assert_eq!(spec.env["A"], "1");
        assert!(spec.mounts[0].read_only);
        assert_eq!(spec.patches.len(), 1);
        assert_eq!(spec.pids, Spec::with_defaults().pids);
    }

    #[test]
    fn a_size_without_a_unit_is_mebibytes() {
        let spec = spec(
            "memory = 512\ndisk = '64'\ntmpfs = ['/a:32', '/b:1K', '/c']\n\
             [spawn]\nchild_memory = 128\n[env]\nmemory = '512'\n",
        )
        .unwrap();
        assert_eq!(spec.memory.zip(spec.disk), Some((Bytes::mib(512), Bytes::mib(64))));
        let sizes: Vec<Bytes> = spec.tmpfs.iter().map(|tmpfs| tmpfs.size).collect();
        assert_eq!(sizes, [Bytes::mib(32), Bytes(1 << 10), Bytes::mib(512)]);
        assert_eq!(spec.spawn.unwrap().child_memory, Bytes::mib(128));
        assert_eq!(spec.env["memory"], "512");
    }

    #[test]
    fn rules_are_read_from_toml_and_json() {
        let toml = rules("rules = ['allow@example.com', 'deny@any']").unwrap();
        let json = rules(r#" {"rules": ["allow@example.com", "deny@any"]}"#).unwrap();
        assert_eq!(toml, json);
        assert_eq!(toml[0].to_string(), "allow@example.com");
        assert!(rules("rules = ['perhaps@example.com']").is_err());
        let spec = spec("[network]\nreach = 'private'\nports = ['8080:80']").unwrap();
        assert_eq!(spec.network.unwrap().ports[0].to_string(), "127.0.0.1:8080:80");
    }

    #[test]
    fn a_file_wins_over_the_defaults() {
        let settings = "[defaults]\nimage = 'alpine'\nisolation = 'vm'\ntrust_host_cas = true";
        let defaults = Settings::parse(settings).unwrap().defaults;
        let spec = spec_over("image = 'host'\n[network]\nreach = 'public'", &defaults).unwrap();
        assert_eq!(spec.image, msb_spec::ImageRef::Host);
        assert_eq!(spec.isolation, msb_spec::IsolationChoice::Vm);
        assert!(spec.network.unwrap().trust_host_cas);
        let spec = spec_over("[network]\ntrust_host_cas = false", &defaults).unwrap();
        assert!(!spec.network.unwrap().trust_host_cas);
        assert_eq!(spec.image.to_string(), "docker.io/library/alpine:latest");
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert_eq!(spec("imagee = 'host'").unwrap_err().advice(), Some("did you mean `image`?"));
        assert!(patches("[[patch]]\nchown = { path = '/x' }").is_err());
    }
}
