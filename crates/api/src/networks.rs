//! The network of a running sandbox.

use msb_spec::{Name, Policy, PublishedPort, Rule};
use msb_wire::{NetRecord, NetTable};

/// The Operations on networks.
pub trait Networks {
    operations!(networks trait_method);
}
