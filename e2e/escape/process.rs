//! Attacks on the `process` tier.

use msb_e2e::Msb;

#[test]
fn only_three_descriptors_are_open_in_a_command() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let script = "cd /proc/self/fd && echo *";
        let gave = msb.run(["run", rootfs.to_str().unwrap(), "--", "sh", "-c", script]);
        // The shell itself opens one more to read the directory.
        assert_eq!(gave.line(), "0 1 2 3");
    }
}
