//! The disk image that every microVM boots: the guest program and its mount points.

/// The erofs image that the build script made.
pub(crate) fn boot_disk() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/boot.erofs"))
}

/// A file name for the image, derived from its content.
pub(crate) fn boot_disk_name() -> &'static str {
    include_str!(concat!(env!("OUT_DIR"), "/boot.name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_an_erofs_of_whole_blocks_that_holds_a_program() {
        let disk = boot_disk();
        assert_eq!(disk.len() % 4096, 0);
        assert_eq!(disk[1024..1028], 0xe0f5_e1e2_u32.to_le_bytes());
        assert!(disk.chunks(4096).any(|block| block.starts_with(b"\x7fELF")));
    }

    #[test]
    fn its_name_is_sixteen_digits() {
        let name = boot_disk_name();
        assert!(name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
