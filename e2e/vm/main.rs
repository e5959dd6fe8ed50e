//! The vm tier, in the nested lab: `cargo xtask lab --nested`. A host without KVM skips it whole.

/// Whether this is a machine on which microVMs can be tested.
fn has_kvm() -> bool {
    std::env::var_os("MSB_LAB").is_some()
}

#[test]
fn this_machine_has_kvm() {
    if !has_kvm() {
        msb_e2e::skip("no test of the vm tier: they run in the lab, `cargo xtask lab --nested`");
    }
}
