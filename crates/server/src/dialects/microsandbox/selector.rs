//! Which sandboxes a call is about.

use super::Microsandbox;
use super::envelope::{Done, Failure, Outcome};
use msb_api::{Status, Summary};
use msb_spec::Name;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What a selector may hold. Names and labels add to each other; the status narrows them down.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Selector {
    pub(super) name: Option<String>,
    pub(super) names: Vec<String>,
    labels: BTreeMap<String, String>,
    pub(super) status: Option<String>,
}

impl Selector {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.name.iter().chain(&self.names).map(String::as_str)
    }

    fn is_empty(&self) -> bool {
        self.names().next().is_none() && self.labels.is_empty() && self.status.is_none()
    }

    /// Whether it takes whatever there is, but for a status.
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

/// A status as clients of this dialect know it: they have none for a sandbox that was paused.
pub(super) fn shown(status: Status) -> &'static str {
    match status {
        Status::Running | Status::Paused => "running",
        Status::Draining => "draining",
        Status::Stopped => "stopped",
        Status::Crashed => "crashed",
    }
}

impl Microsandbox {
    /// Those that a selector takes, sorted by name; without one all.
    pub(super) fn selected(&self, selector: &Selector) -> Result<Vec<Summary>, Failure> {
        let mut found = BTreeMap::new();
        for name in selector.names() {
            let summary = self.summary(name)?;
            found.insert(summary.name.to_string(), summary);
        }
        if !selector.labels.is_empty() || selector.names().next().is_none() {
            let labelled = |it: &Summary| {
                selector.labels.iter().all(|(key, value)| it.labels.get(key) == Some(value))
            };
            let all = self.world.api.sandbox_list()?.into_iter().filter(labelled);
            found.extend(all.map(|summary| (summary.name.to_string(), summary)));
        }
        Ok(found.into_values().filter(|sandbox| selector.takes(sandbox)).collect())
    }

    /// The same for what changes something: nobody means all by saying nothing.
    pub(super) fn chosen(&self, selector: &Selector) -> Result<Vec<Summary>, Failure> {
        match selector.is_empty() {
            true => Err(Failure::new("at least one selector is required")),
            false => self.selected(selector),
        }
    }

    pub(super) fn summary(&self, name: &str) -> Result<Summary, Failure> {
        Ok(self.world.api.sandbox_summary(&named(name)?)?)
    }
}

/// The name of a sandbox. What cannot be one names none that exists.
pub(super) fn named(name: &str) -> Result<Name, Failure> {
    Name::parse(name).map_err(|error| {
        let shown = msb_spec::shown(&name.chars().take(60).collect::<String>()).to_string();
        Failure::new(format!("sandbox not found: {shown}"))
            .detail("hint", error.advice().unwrap_or("it is not a name"))
    })
}

/// Does something with each of several. What fails does not hide what went well: its envelope holds
/// the results of the others.
pub(super) fn each<T>(
    key: &str,
    targets: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> String,
    mut act: impl FnMut(&T) -> Result<Value, Failure>,
) -> Outcome {
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for target in targets {
        match act(&target) {
            Ok(result) => results.push(result),
            Err(failure) => failures.push((name(&target), failure)),
        }
    }
    let Some((_, first)) = failures.first() else {
        return Ok(Done::new(Value::Array(results)));
    };
    if results.is_empty() && failures.len() == 1 {
        return Err(first.clone());
    }
    let shown = |(name, failure): &(String, Failure)| {
        let mut shown = failure.brief();
        shown[key] = json!(name);
        shown
    };
    let failed: Vec<Value> = failures.iter().map(shown).collect();
    let message = match failures.len() {
        1 => first.message().to_owned(),
        n => format!("{} (and {} more failed)", first.message(), n - 1),
    };
    Err(Failure::new(message).detail("results", results).detail("failures", failed))
}
