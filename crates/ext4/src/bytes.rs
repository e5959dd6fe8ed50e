//! Little-endian records and CRC32C.

/// A zeroed record of fixed size with little-endian numbers.
pub(crate) struct FieldBuffer<const SIZE: usize>(pub(crate) [u8; SIZE]);

impl<const SIZE: usize> FieldBuffer<SIZE> {
    pub(crate) fn new() -> Self {
        Self([0; SIZE])
    }

    pub(crate) fn u16(&mut self, at: usize, number: u16) {
        self.bytes(at, &number.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, at: usize, number: u32) {
        self.bytes(at, &number.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// CRC32C without the final inversion, continued from `sum`.
pub(crate) fn crc32c(sum: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    bytes
        .iter()
        .fold(sum, |sum, byte| (sum >> 8) ^ TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize])
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut sum = index as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(sum & 1));
            bit += 1;
        }
        table[index] = sum;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
    }
}
