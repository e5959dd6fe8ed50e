//! Data of this dialect about a sandbox, stored in labels that clients do not see.

use msb_api::Summary;
use std::collections::BTreeMap;

/// Prefix of these labels.
const OURS: &str = "msb.mcp.";
/// The level of the system log of a sandbox.
pub(super) const LOG_LEVEL: &str = "msb.mcp.log-level";
/// Marks a sandbox with an empty system log.
pub(super) const QUIET: &str = "msb.mcp.quiet";
/// Default milliseconds between two samples; `off` disables metrics.
pub(super) const METRICS: &str = "msb.mcp.metrics";

/// The labels that the client gave.
pub(super) fn own(labels: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    let given = labels.iter().filter(|(key, _)| !is_ours(key));
    given.map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// Whether a label is reserved for msb.
pub(super) fn is_ours(key: &str) -> bool {
    key.starts_with(OURS) || key == crate::scoped_api::LABEL
}

/// The value of one of our labels.
pub(super) fn of<'a>(sandbox: &'a Summary, key: &str) -> Option<&'a str> {
    sandbox.labels.get(key).map(String::as_str)
}
