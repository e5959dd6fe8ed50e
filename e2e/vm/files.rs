//! Files into a microVM and out of it, and what must not come out.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

use sha2::{Digest, Sha256};

use crate::lab::{self, SharedSandbox};
use msb_e2e::eventually;

#[test]
fn a_large_file_comes_back_as_it_went() {
    let Some(shared) = SharedSandbox::get() else { return };
    let msb = &shared.msb;
    let bytes: Vec<u8> = (0..=255).cycle().take(8_000_001).collect();
    let source = msb.file("in.bin", &bytes);
    fs::set_permissions(&source, Permissions::from_mode(0o751)).unwrap();
    msb.words("cp in.bin box:/root/there.bin").ok();
    let wanted: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let look = "sha256sum </root/there.bin; stat -c %a /root/there.bin";
    assert_eq!(shared.shell(look).line(), format!("{wanted}  -\n751"));
    msb.words("cp box:/root/there.bin back.bin").ok();
    shared.shell("rm /root/there.bin").ok();
    let back = msb.scratch().join("back.bin");
    assert!(fs::read(&back).unwrap() == bytes);
    assert_eq!(fs::metadata(back).unwrap().permissions().mode() & 0o777, 0o751);
}

#[test]
fn a_tree_with_strange_names_comes_back_as_it_went() {
    let Some(shared) = SharedSandbox::get() else { return };
    let msb = &shared.msb;
    msb.file("strange/a/deep/file", "deep");
    msb.file("strange/empty", "");
    let tree = msb.scratch().join("strange");
    let long = "n".repeat(255);
    let names = [&b"new\nline"[..], b"esc\x1b[31m", b"\xff\xfe", "\u{202e}rtl".as_bytes()];
    let names = names.into_iter().chain([long.as_bytes()]).map(OsStr::from_bytes);
    for name in names.clone() {
        fs::write(tree.join(name), name.as_bytes()).unwrap();
        msb.chown(&tree.join(name));
    }
    symlink("a/deep/file", tree.join("link")).unwrap();
    symlink("/no/such/thing", tree.join("dangling")).unwrap();
    msb.words("cp strange box:/root/strange").ok();
    let gave = msb.words("cp box:/root/strange strange-back").ok();
    assert!(!gave.stderr.contains('\x1b'), "{gave:?}");
    assert_eq!(shared.shell("cat /root/strange/link; rm -r /root/strange").line(), "deep");
    let back = msb.scratch().join("strange-back");
    for name in names {
        assert_eq!(fs::read(back.join(name)).unwrap(), name.as_bytes());
    }
    assert_eq!(fs::read_link(back.join("dangling")).unwrap().to_str(), Some("/no/such/thing"));
    assert_eq!(fs::read_to_string(back.join("a/deep/file")).unwrap(), "deep");
    assert_eq!(fs::read_dir(&back).unwrap().count(), fs::read_dir(&tree).unwrap().count());
}

#[test]
fn a_sync_follows_into_a_machine_and_waits_while_it_is_paused() {
    for msb in lab::each() {
        msb.lasting("box", ["-m", "128M"]);
        msb.file("src/a/file", "one");
        msb.words("sync start src box:/root/app").ok();
        let inside = |path: &str| msb.shell_in("box", &format!("cat /root/app/{path}"));
        assert_eq!(inside("a/file").line(), "one");
        let source = msb.scratch().join("src");
        fs::rename(source.join("a"), source.join("b")).unwrap();
        fs::write(source.join("b/file"), "two").unwrap();
        eventually("what changes outside changes inside", || {
            inside("b/file").stdout == "two" && inside("a/file").code != 0
        });
        msb.words("pause box").ok();
        fs::write(source.join("b/file"), "three").unwrap();
        eventually("it is on its way", || {
            msb.json(["sync", "ls", "--json"])[0]["state"] == "copying"
        });
        msb.words("resume box").ok();
        eventually("it has arrived", || inside("b/file").stdout == "three");
        msb.words("pause box").ok();
        fs::write(source.join("b/file"), "four").unwrap();
        msb.words("sync stop --all").ok();
        msb.words("rm -f box").ok();
    }
}

/// Attack 1.
#[test]
fn dot_dot_in_copies_does_not_reach_the_host() {
    let Some(shared) = SharedSandbox::get() else { return };
    let msb = &shared.msb;
    let canary = msb.file("dots/canary", "untouched");
    let intruder = msb.file("dots/intruder", "intruder");
    let path = canary.display().to_string();
    for path in [
        path.clone(),
        format!("/../../../../../../../..{path}"),
        format!("/tmp/../../..{path}"),
        format!("/proc/1/root/../..{path}"),
        format!("/proc/1/cwd/..{path}"),
    ] {
        let out = msb.scratch().join("dots-out");
        let gave = msb.run(["cp", &format!("box:{path}"), out.to_str().unwrap()]);
        assert_ne!(gave.code, 0, "{path}");
        assert!(fs::read_to_string(&out).is_err(), "{path} came out");
        msb.run(["cp", intruder.to_str().unwrap(), &format!("box:{path}")]);
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched", "{path}");
        shared.shell(&format!("rm -f {path}"));
    }
}

/// Attacks 2, 4 and 5.
#[test]
fn links_devices_and_set_id_bits_do_not_come_out() {
    let Some(shared) = SharedSandbox::get() else { return };
    let msb = &shared.msb;
    let canary = msb.file("links/canary", "link-secret").display().to_string();
    let make = format!(
        "mkdir /root/out; cd /root/out; ln -s {canary} file; ln -s /proc/1/root{canary} proc; \
         mknod null c 1 3; mkfifo fifo; echo content > plain; ln plain hard; \
         cp /bin/busybox suid; chmod 6755 suid; mkdir dir; chmod 6755 dir"
    );
    shared.shell(&make).ok();
    let out = msb.scratch().join("links-out");
    msb.run(["cp", "box:/root/out", out.to_str().unwrap()]);
    for name in ["file", "proc"] {
        let found = fs::symlink_metadata(out.join(name)).unwrap();
        assert!(found.is_symlink(), "{name} is {found:?}");
    }
    for entry in fs::read_dir(&out).unwrap() {
        let found = fs::symlink_metadata(entry.unwrap().path()).unwrap();
        let kind = found.file_type();
        assert!(!kind.is_char_device() && !kind.is_fifo() && !kind.is_block_device(), "{found:?}");
        assert_eq!(found.permissions().mode() & 0o6000, 0, "{found:?}");
    }
    assert_eq!(fs::read_to_string(out.join("hard")).unwrap(), "content\n");
    for single in ["/root/out/fifo", "/dev/zero", "/dev/vda", "/proc/kmsg"] {
        let target = msb.scratch().join("links-single");
        msb.run(["cp", &format!("box:{single}"), target.to_str().unwrap()]);
        let found = fs::symlink_metadata(&target);
        assert!(found.is_err() || found.unwrap().is_file(), "{single}");
        let _ = fs::remove_file(target);
    }
    shared.shell("rm -r /root/out").ok();
}

/// Attack 2: a second copy does not write through the links of the first.
#[test]
fn a_copy_does_not_write_through_links() {
    let Some(shared) = SharedSandbox::get() else { return };
    let msb = &shared.msb;
    let canary = msb.file("through/canary", "untouched");
    let directory = canary.parent().unwrap();
    shared.shell(&format!("mkdir /root/th; ln -s {} /root/th/dir", directory.display())).ok();
    let out = msb.scratch().join("through-out");
    msb.run(["cp", "box:/root/th", out.to_str().unwrap()]);
    shared.shell("cd /root/th; rm dir; mkdir dir; echo intruder | tee dir/canary dir/new").ok();
    msb.run(["cp", "box:/root/th/.", out.to_str().unwrap()]);
    msb.run(["cp", "box:/root/th", msb.scratch().to_str().unwrap()]);
    shared.shell("rm -r /root/th").ok();
    assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
}

#[test]
fn what_is_asked_for_before_the_first_command_is_there() {
    let Some(msb) = lab::user() else { return };
    let file = msb.file("host-file", "from the host");
    let flags = [
        "--copy".to_owned(),
        format!("{}:/srv/copied", file.display()),
        "--text".to_owned(),
        "/srv/text=written".to_owned(),
        "--symlink".to_owned(),
        "/srv/link=text".to_owned(),
        "--tmpfs".to_owned(),
        "/cache:8M".to_owned(),
        "--script".to_owned(),
        "hello=#!/bin/sh\necho hi".to_owned(),
    ];
    let look = "cat /srv/copied; echo; cat /srv/link; echo; hello; df -m /cache | grep -c ' 8 '";
    assert_eq!(msb.shell_with(flags, look).line(), "from the host\nwritten\nhi\n1");
}
