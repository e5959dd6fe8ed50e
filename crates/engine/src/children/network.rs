//! The network of a child: nothing that its parent has not, and nothing that was its parent's alone.
//!
//! Of a way out it has the rules that its parent was made with. Secrets, published ports, names that
//! are not looked into, and rules that were added since stay with the parent.

use crate::planning::network::device;
use msb_spec::{
    Bytes, Decision, FamilyNetwork, Isolation, Name, NetworkSpec, Peers, Plan, SpawnPolicy, WayOut,
};

/// The network that a child shares with its family. None where it would take a device that cannot be
/// made: sharing is what is usual, and nobody asked for it.
pub(super) fn shared(parent: &Plan, policy: &SpawnPolicy, name: &Name) -> Option<FamilyNetwork> {
    let wanted = policy.peers != Peers::None && FamilyNetwork::admits(name);
    parent.family_network().filter(|_| wanted && has_device(parent))
}

/// The network that its parent has joined by name, if the child is to be in it, too.
pub(super) fn joined(parent: &Plan, policy: &SpawnPolicy, name: &Name) -> Option<Name> {
    let wanted = policy.peers == Peers::All && FamilyNetwork::admits(name);
    let network = parent.network.as_ref().filter(|_| wanted && has_device(parent))?;
    network.join.clone()
}

fn has_device(parent: &Plan) -> bool {
    parent.isolation == Isolation::Vm || device().is_ok()
}

/// How a child gets out. Whose parent has no network does not.
pub(super) fn way_out(parent: &Plan, policy: &SpawnPolicy) -> WayOut {
    parent.network.as_ref().map_or(WayOut::None, |_| policy.net)
}

/// The network to ask for; none if there is nobody that it would lead to or from.
pub(super) fn asked(
    parent: &Plan,
    policy: &SpawnPolicy,
    shared: bool,
    join: Option<Name>,
) -> Option<NetworkSpec> {
    let own = parent.network.as_ref()?;
    let shared = shared || join.is_some();
    match policy.net {
        WayOut::Parent => Some(NetworkSpec {
            rules: own.policy.rules.clone(),
            default: Some(own.policy.default),
            dns: own.dns.clone(),
            max_connections: Some(own.max_connections),
            egress_rate: own.egress_rate.map(Bytes),
            join,
            ..NetworkSpec::default()
        }),
        WayOut::None => (shared || policy.ports).then(|| NetworkSpec {
            default: Some(Decision::Deny),
            join,
            ..NetworkSpec::default()
        }),
    }
}
