//! TCP flows: the table of open flows, how a flow opens and closes, and what its first bytes show.

pub(crate) mod flow;
pub(crate) mod flow_table;
pub(crate) mod sniff;
pub(crate) mod tunnel;
