//! Selects the sandboxes of a call.

use super::Microsandbox;
use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use msb_api::{Status, Summary};
use msb_spec::Name;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A selector. Names and labels are alternatives; the status is a further condition.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct SandboxSelector {
    pub(super) name: Option<String>,
    pub(super) names: Vec<String>,
    labels: BTreeMap<String, String>,
    pub(super) status: Option<String>,
}

impl SandboxSelector {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.name.iter().chain(&self.names).map(String::as_str)
    }

    fn is_empty(&self) -> bool {
        self.names().next().is_none() && self.labels.is_empty() && self.status.is_none()
    }

    /// Whether it selects everything, except for a status.
    pub(super) fn is_sweeping(&self) -> bool {
        self.names().next().is_none() && self.labels.is_empty()
    }

    fn takes(&self, sandbox: &Summary) -> bool {
        match self.status.as_deref() {
            None | Some("all") => true,
            Some(status) => shown(sandbox.status) == status,
        }
    }
}

/// The status in the terms of this dialect, which has none for paused sandboxes.
pub(super) fn shown(status: Status) -> &'static str {
    match status {
        Status::Running | Status::Paused => "running",
        Status::Draining => "draining",
        Status::Stopped => "stopped",
        Status::Crashed => "crashed",
    }
}

impl Microsandbox {
    /// The selected sandboxes, sorted by name; all if the selector is empty.
    pub(super) fn selected(&self, selector: &SandboxSelector) -> Result<Vec<Summary>, ToolFailure> {
        let mut found = BTreeMap::new();
        for name in selector.names() {
            let summary = self.summary(name)?;
            found.insert(summary.name.to_string(), summary);
        }
        if !selector.labels.is_empty() || selector.names().next().is_none() {
            let labelled = |it: &Summary| {
                selector.labels.iter().all(|(key, value)| it.labels.get(key) == Some(value))
            };
            let all = self.config.api.sandbox_list()?.into_iter().filter(labelled);
            found.extend(all.map(|summary| (summary.name.to_string(), summary)));
        }
        Ok(found.into_values().filter(|sandbox| selector.takes(sandbox)).collect())
    }

    /// The selected sandboxes, for tools that change them: an empty selector is an error.
    pub(super) fn chosen(&self, selector: &SandboxSelector) -> Result<Vec<Summary>, ToolFailure> {
        match selector.is_empty() {
            true => Err(ToolFailure::new("at least one selector is required")),
            false => self.selected(selector),
        }
    }

    pub(super) fn summary(&self, name: &str) -> Result<Summary, ToolFailure> {
        Ok(self.config.api.sandbox_summary(&named(name)?)?)
    }
}

/// Parses the name of a sandbox. An invalid name is a sandbox that does not exist.
pub(super) fn named(name: &str) -> Result<Name, ToolFailure> {
    Name::parse(name).map_err(|error| {
        let shown = msb_spec::shown(&name.chars().take(60).collect::<String>()).to_string();
        ToolFailure::new(format!("sandbox not found: {shown}"))
            .detail("hint", error.advice().unwrap_or("it is not a name"))
    })
}

/// Applies a function to each item. If some fail, the envelope still contains the results of the
/// others.
pub(super) fn each<T>(
    key: &str,
    targets: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> String,
    mut act: impl FnMut(&T) -> Result<Value, ToolFailure>,
) -> Outcome {
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for target in targets {
        match act(&target) {
            Ok(result) => results.push(result),
            Err(failure) => failures.push((name(&target), failure)),
        }
    }
    let Some((_, first)) = failures.first() else {
        return Ok(ToolSuccess::new(Value::Array(results)));
    };
    if results.is_empty() && failures.len() == 1 {
        return Err(first.clone());
    }
    let shown = |(name, failure): &(String, ToolFailure)| {
        let mut shown = failure.brief();
        shown[key] = json!(name);
        shown
    };
    let failed: Vec<Value> = failures.iter().map(shown).collect();
    let message = match failures.len() {
        1 => first.message().to_owned(),
        n => format!("{} (and {} more failed)", first.message(), n - 1),
    };
    Err(ToolFailure::new(message).detail("results", results).detail("failures", failed))
}
