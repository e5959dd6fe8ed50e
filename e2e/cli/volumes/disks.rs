//! Volumes that are disks, where there is no microVM. With one, see `e2e/vm/volumes`.

use super::shell;
use msb_e2e::{Msb, skip};
use std::fs;

#[test]
fn without_a_microvm_an_ordinary_user_is_told_before_anything_is_made() {
    let Some(msb) = Msb::as_user() else { return skip("the tests run as no other user") };
    if msb.words("run --isolation vm -- true").code == 0 {
        return skip("this host runs microVMs");
    }
    let gave = msb.words("volume create data --kind disk");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("a disk volume needs a microVM or root"), "{gave:#?}");
    assert!(gave.stderr.contains("\nhint: leave `--kind` out"), "{gave:#?}");
    assert!(!msb.home().join("volumes").exists());
}

#[test]
fn a_disk_has_one_writer_or_several_readers() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("mounting a disk on this tier needs root");
    }
    msb.words("volume create data --kind disk --size 32M").ok();
    let write = "echo kept > /data/x; chown 33:44 /data/x";
    shell(&msb, &["data:/data"], write).ok();
    msb.words("create -n writer -v data:/data").ok();
    for mount in ["data:/data", "data:/data:ro"] {
        let gave = shell(&msb, &[mount], "cat /data/x");
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""));
        assert!(gave.stderr.contains("volume `data` is a disk that is in use"), "{gave:#?}");
        assert!(gave.stderr.contains("`msb stop writer` ends its use"), "{gave:#?}");
    }
    msb.words("stop writer").ok();
    msb.words("create -n reader -v data:/data:ro").ok();
    let gave = shell(&msb, &["data:/data:ro"], "cat /data/x; stat -c %u:%g /data/x; touch /data/y");
    assert_eq!(gave.stdout, "kept\n33:44\n");
    assert_eq!(msb.words("start writer").code, 125);
    msb.words("stop reader").ok();
    msb.words("start writer").ok();
    msb.words("rm -f writer reader").ok();
    let gave = shell(&msb, &["data:/a", "data:/b:ro"], "true");
    assert!(gave.stderr.contains("a disk can be mounted once: `data`"), "{gave:#?}");
    let gave = msb.words("volume ls data:/");
    assert!(gave.stderr.contains("volume `data` is a disk"), "{gave:#?}");
    assert!(gave.stderr.contains("`msb run -v data:/data"), "{gave:#?}");
}

/// Root's kernel never reads what a guest's has written.
#[test]
fn a_disk_that_a_microvm_could_write_is_not_mounted_by_the_host() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root mounts a disk on this tier");
    }
    msb.words("volume create data --kind disk --size 32M").ok();
    let record = msb.home().join("volumes/data/volume.json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"by_machine\":false", "\"by_machine\":true")).unwrap();
    for mount in ["data:/data", "data:/data:ro"] {
        let gave = shell(&msb, &[mount], "true");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("is a disk that a microVM has written"), "{gave:#?}");
        assert!(gave.stderr.contains("hint: `--isolation vm` mounts it"), "{gave:#?}");
    }
}
