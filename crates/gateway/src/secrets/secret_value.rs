//! The value of a Secret, in memory that is overwritten on drop.

use std::fmt;
use zeroize::Zeroizing;

/// The value of a Secret. `Debug` does not show it, and it cannot be compared or cloned.
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    /// Takes ownership of the bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_printed() {
        let value = SecretValue::new(b"sk-12345".to_vec());
        assert_eq!(format!("{value:?} {value:#?}"), "SecretValue SecretValue");
    }
}
