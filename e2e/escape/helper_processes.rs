//! Attacks by a helper process that was taken over by the archive or the tree that it reads.

use msb_e2e::Msb;
use msb_e2e::raw_image::{Blob, RawImage, RawLayer};
use std::fs;
use std::path::Path;

/// The command, with attacks in the place of what its confined helper would do.
fn attacked(msb: &Msb, args: &[&str], canary: &Path) -> String {
    let mut command = msb.command(args);
    command.env("MSB_TEST_COMPROMISED_HELPER", canary);
    msb_e2e::gives(&mut command).stderr
}

/// Attack 9: the process that unpacks a layer: its decompressors are the widest target.
#[test]
fn a_compromised_unpacker_has_its_directory_and_nothing_else() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "home-secret");
        let image = RawImage::new([Blob::zstd(&RawLayer::new().file("hello", "there"))]);
        let archive = msb.scratch().join("image.tar");
        fs::write(&archive, image.oci_archive("local/image:1")).expect("an archive");
        msb.chown(&archive);
        let load = ["load", "-i", archive.to_str().expect("a path of ours")];
        let said = attacked(&msb, &load, &canary);
        assert!(said.contains("attempts, all refused"), "{said}");
        // The same process, not taken over.
        msb.run(load).ok();
    }
}

/// Attack 45: the process that compares what a sandbox wrote with the files of the host.
#[test]
fn a_compromised_review_has_its_workspace_and_nothing_else() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "home-secret");
        msb.file("project/file", "before");
        msb.chown(&msb.scratch().join("project"));
        msb.words("create -n box --workspace project").ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo after > file"]).ok();
        let said = attacked(&msb, &["diff", "box"], &canary);
        assert!(said.contains("attempts, all refused"), "{said}");
        let said = attacked(&msb, &["apply", "box"], &canary);
        assert!(said.contains("attempts, all refused"), "{said}");
        assert_eq!(fs::read_to_string(msb.scratch().join("project/file")).unwrap(), "before");
        msb.run(["apply", "box"]).ok();
        assert_eq!(fs::read_to_string(msb.scratch().join("project/file")).unwrap(), "after\n");
    }
}
