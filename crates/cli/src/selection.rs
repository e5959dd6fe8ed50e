//! Which sandboxes a verb is about: by name, by label, or all.

use crate::output::{self, Failure, Outcome};
use clap::Args;
use msb_api::{Api, Summary};
use msb_spec::{Error, Name, Result};

/// Sandboxes by name or label.
#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// Names of sandboxes
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Sandboxes with this label (may be given several times; all must match)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
}

impl Selection {
    /// Whether any was named at all.
    pub(crate) fn is_given(&self) -> bool {
        !self.names.is_empty() || !self.labels.is_empty()
    }

    /// The sandboxes; at least one must be meant.
    pub(crate) fn required(&self, api: &dyn Api) -> Result<Vec<Name>> {
        if !self.is_given() {
            return Err(
                Error::invalid("no sandbox was named").hint("give a name, or `--label key=value`")
            );
        }
        self.optional(api)
    }

    /// The sandboxes; all of them if none was named.
    pub(crate) fn optional(&self, api: &dyn Api) -> Result<Vec<Name>> {
        let labels = self.labels.iter().map(|label| pair(label)).collect::<Result<Vec<_>>>()?;
        if !self.names.is_empty() {
            let names: Vec<Name> =
                self.names.iter().map(|name| Name::parse(name)).collect::<Result<_>>()?;
            for name in &names {
                api.sandbox_summary(name)?;
            }
            return Ok(names);
        }
        let matches = |summary: &Summary| {
            labels
                .iter()
                .all(|(key, value)| summary.labels.get(*key).is_some_and(|own| own == value))
        };
        Ok(api.sandbox_list()?.into_iter().filter(matches).map(|summary| summary.name).collect())
    }

    /// Does something to each; one that fails does not keep the others from it.
    pub(crate) fn each(
        &self,
        api: &dyn Api,
        mut act: impl FnMut(&Name) -> std::result::Result<(), Failure>,
    ) -> Outcome {
        let mut failed = false;
        let names = self.names.iter().map(|name| Name::parse(name)).collect::<Result<Vec<_>>>()?;
        let names = if names.is_empty() { self.required(api)? } else { names };
        let several = names.len() > 1;
        for name in names {
            match act(&name) {
                Ok(()) => {}
                Err(Failure::Error(error)) if several => {
                    output::print_error(&error);
                    failed = true;
                }
                Err(failure) => return Err(failure),
            }
        }
        if failed { Err(Failure::Reported) } else { Ok(0) }
    }
}

/// Splits `KEY=VALUE` at the first `=`.
pub(crate) fn pair(text: &str) -> Result<(&str, &str)> {
    text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
        Error::invalid(format!("not a label: `{}`", text)).hint("write it as `key=value`")
    })
}
