//! What is noted about a sandbox for this dialect alone: kept as labels, and not shown as such.

use msb_api::Summary;
use std::collections::BTreeMap;

/// Before the name of every such label.
const OURS: &str = "msb.mcp.";
/// How much of what happens to a sandbox is in its system log.
pub(super) const LOG_LEVEL: &str = "msb.mcp.log-level";
/// That its system log is empty.
pub(super) const QUIET: &str = "msb.mcp.quiet";
/// Milliseconds between two measurements where the call does not say; `off` is none at all.
pub(super) const METRICS: &str = "msb.mcp.metrics";

/// The labels that its maker gave.
pub(super) fn own(labels: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    let given = labels.iter().filter(|(key, _)| !is_ours(key));
    given.map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// Whether a label of that name is one of msb's own.
pub(super) fn is_ours(key: &str) -> bool {
    key.starts_with(OURS) || key == crate::scoped::LABEL
}

/// One of ours.
pub(super) fn of<'a>(sandbox: &'a Summary, key: &str) -> Option<&'a str> {
    sandbox.labels.get(key).map(String::as_str)
}
