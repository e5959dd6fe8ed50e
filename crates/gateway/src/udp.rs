//! UDP flows and ICMP echo: the table of open flows, and what is sent and received on them.

pub(crate) mod flow;
pub(crate) mod flow_table;
