//! Volumes with a size: it holds, and the host keeps its space.

use super::shell;
use msb_e2e::{Msb, ends, eventually, skip};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// As root; a directory of a limited size is not for others.
fn root() -> Option<Msb> {
    let msb = Msb::new();
    if msb.is_root() {
        return Some(msb);
    }
    skip("a directory of a limited size needs root");
    None
}

/// Loop devices that something of the test's is attached to.
fn devices(msb: &Msb) -> usize {
    let scratch = msb.scratch().display().to_string();
    let files = fs::read_dir("/sys/block").expect("sys").flatten();
    let files = files.map(|device| device.path().join("loop/backing_file"));
    files.filter(|file| fs::read_to_string(file).is_ok_and(|file| file.contains(&scratch))).count()
}

#[test]
fn an_ordinary_user_is_told_before_anything_is_made() {
    let Some(msb) = Msb::as_user() else { return skip("the tests run as no other user") };
    let gave = msb.words("volume create data --size 64M");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("a directory of a limited size needs root"), "{gave:#?}");
    assert!(gave.stderr.contains("\nhint: leave `--size` out"), "{gave:#?}");
    assert!(!msb.home().join("volumes").exists());
}

#[test]
fn a_write_past_the_size_fails_inside_and_the_host_keeps_its_space() {
    let Some(msb) = root() else { return };
    msb.words("volume create data --size 32M").ok();
    let disk = msb.home().join("volumes/data/image");
    assert!(
        fs::metadata(&disk).unwrap().blocks() * 512 < 4 << 20,
        "it takes no more than it holds"
    );
    let script = "dd if=/dev/zero of=/data/x bs=1M count=64 2>&1; echo $?; rm /data/x; \
                  echo small > /data/y; cat /data/y; ls -A /data";
    let gave = shell(&msb, &["data:/data"], script).ok();
    assert!(gave.stdout.contains("No space left on device"), "{gave:#?}");
    assert!(gave.stdout.ends_with("\n1\nsmall\ny\n"), "{gave:#?}");
    let taken = fs::metadata(&disk).unwrap();
    assert!(taken.len() == 32 << 20 && taken.blocks() * 512 <= 33 << 20);
    assert_eq!(msb.json(["volume", "inspect", "data"])["size"], 32 << 20);
    msb.file("large", vec![1u8; 40 << 20]);
    let gave = msb.words("volume cp large data:/");
    assert!(gave.stderr.contains("no space left on device"), "{gave:#?}");
    assert_eq!(msb.words("volume ls -q data:/").line(), "y", "half a copy is none");
    assert_eq!(msb.words("volume cat data:/y").line(), "small");
    eventually("no device is left", || devices(&msb) == 0);
    msb.words("volume rm data").ok();
}

#[test]
fn sandboxes_at_once_have_one_file_system() {
    let Some(msb) = root() else { return };
    msb.words("volume create data --size 64M").ok();
    let names: Vec<String> = (0..8).map(|number| format!("box{number}")).collect();
    let started: Vec<_> =
        names.iter().map(|name| msb.spawn(["create", "-n", name, "-v", "data:/data"])).collect();
    started.into_iter().for_each(|child| drop(ends(child).ok()));
    assert_eq!(devices(&msb), 1, "two would be two caches of one disk");
    for name in &names {
        let script = "echo $0 > /data/$0; chmod 600 /data/$0; sync";
        msb.run(["exec", name, "--", "sh", "-c", script, name]).ok();
    }
    for name in &names {
        let script = "cat /data/box*; stat -c %u /data/box0";
        let gave = msb.run(["exec", name, "--", "sh", "-c", script]);
        assert_eq!(gave.line(), format!("{}\n0", names.join("\n")));
    }
    msb.file("in", "from the host");
    msb.words("volume cp in data:/in").ok();
    assert_eq!(msb.words("exec box3 -- cat /data/in").line(), "from the host");
    assert_eq!(msb.words("volume cat data:/box7").line(), "box7");
    assert_eq!(devices(&msb), 1);
    msb.processes("box0")[0].signal("KILL");
    msb.words("exec box1 -- touch /data/after").ok();
    names.iter().for_each(|name| drop(msb.run(["rm", "-f", name])));
    eventually("no device is left", || devices(&msb) == 0);
    assert_eq!(msb.words("volume cat data:/box0").line(), "box0");
}

#[test]
fn a_file_made_setuid_inside_belongs_to_no_user_outside() {
    let Some(msb) = root() else { return };
    msb.words("volume create data").ok();
    shell(&msb, &["data:/data"], "cp /bin/true /data/suid; chmod 6755 /data/suid").ok();
    let found = fs::metadata(msb.home().join("volumes/data/data/suid")).unwrap();
    assert!(found.uid() >= 0x4000_0000 && found.gid() >= 0x4000_0000);
    msb.words("volume cp data:/suid out").ok();
    assert_eq!(fs::metadata(msb.scratch().join("out")).unwrap().mode() & 0o7777, 0o755);
}
