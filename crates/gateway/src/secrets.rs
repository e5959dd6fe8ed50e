//! Secrets: placeholders are replaced by values on the way out, values are masked on the way in.

pub(crate) mod escapes;
pub(crate) mod message_end;
pub(crate) mod patterns;
pub(crate) mod placeholder_scan;
pub(crate) mod scrub;
pub(crate) mod secret_value;
pub(crate) mod substitution;
pub(crate) mod value_search;
