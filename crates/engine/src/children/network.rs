//! The network of a child: at most that of its parent, without what is private to the parent.
//!
//! A child with network access gets the rules that its parent was created with. Secrets, published
//! ports, TLS bypasses and rules added later stay with the parent.

use msb_spec::{
    Bytes, Decision, FamilyNetwork, Name, NetworkSpec, Peers, Plan, SpawnPolicy, WayOut,
};

/// The network that a child shares with its family.
pub(super) fn shared(parent: &Plan, policy: &SpawnPolicy, name: &Name) -> Option<FamilyNetwork> {
    let wanted = policy.peers != Peers::None && FamilyNetwork::admits(name);
    parent.family_network().filter(|_| wanted)
}

/// The named network of the parent, if the policy lets the child join it.
pub(super) fn joined(parent: &Plan, policy: &SpawnPolicy, name: &Name) -> Option<Name> {
    let wanted = policy.peers == Peers::All && FamilyNetwork::admits(name);
    let network = parent.network.as_ref().filter(|_| wanted)?;
    network.join.clone()
}

/// The network access of a child; none if its parent has no network.
pub(super) fn way_out(parent: &Plan, policy: &SpawnPolicy) -> WayOut {
    parent.network.as_ref().map_or(WayOut::None, |_| policy.net)
}

/// The network of the Spec; `None` if it would connect to nothing.
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
            dns_timeout: own.dns_timeout,
            dns_private: own.dns_private,
            max_connections: Some(own.max_connections),
            egress_rate: own.egress_rate.map(Bytes),
            trust_host_cas: own.trust_host_cas,
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
