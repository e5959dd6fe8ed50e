//! The network of a running sandbox.

use msb_spec::{Name, Policy, Published, Result, Rule};
use msb_wire::{NetRecord, NetTable};

/// The Operations on networks.
pub trait Networks {
    /// Flows, ports and rules of a running sandbox.
    fn network_table(&self, name: &Name) -> Result<NetTable>;

    /// Puts rules before those of a running sandbox.
    fn network_allow(&self, name: &Name, rules: &[Rule]) -> Result<Policy>;

    /// Publishes a port of a running sandbox; what it became.
    fn port_publish(&self, name: &Name, port: &Published) -> Result<Published>;

    /// Takes a published port back.
    fn port_withdraw(&self, name: &Name, port: &Published) -> Result<()>;

    /// What was decided on the network of a sandbox so far.
    fn network_events(&self, name: &Name) -> Result<Vec<NetRecord>>;
}
