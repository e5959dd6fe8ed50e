//! A sandbox described in a TOML file.

use msb_spec::{Error, Patch, Result, Spec};
use serde::Deserialize;

/// A Spec from a file, with the defaults that every surface fills in.
pub fn spec(text: &str) -> Result<Spec> {
    let spec: Spec = toml::from_str(text).map_err(|error| unreadable(text, &error))?;
    let defaults = Spec::with_defaults();
    Ok(Spec { pids: spec.pids.or(defaults.pids), ..spec })
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

fn unreadable(text: &str, error: &toml::de::Error) -> Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    Error::invalid("the file cannot be understood")
        .cause(format!("line {line}: {}", error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_can_be_written_down() {
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
    fn a_word_that_means_nothing_is_refused() {
        assert!(spec("imagee = 'host'").is_err());
        assert!(patches("[[patch]]\nchown = { path = '/x' }").is_err());
    }
}
