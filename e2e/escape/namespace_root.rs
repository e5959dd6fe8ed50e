//! Sandboxes of root in a user namespace that maps root of the host, as `sudo unshare --map-root-user`
//! makes one: root inside is root outside, without its capabilities.

use msb_e2e::{CmdOutput, Msb, skip};

/// Runs a script with `$0` as msb, as root of a new user namespace.
fn as_namespace_root(msb: &Msb, script: &str) -> CmdOutput {
    let mut command = msb.user_command("/usr/bin/unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script]);
    CmdOutput::from(command.arg(msb.binary()).output().expect("unshare can be executed"))
}

/// Attack 22, as root of a user namespace that maps root of the host: files of /proc that this root
/// may write without a capability, or it alone may read, are not there.
#[test]
fn files_of_proc_for_root_alone_are_masked_where_root_inside_is_root_outside() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("root of the host has to be the root of the namespace");
    }
    let script = "\"$0\" run -- sh -c 'stat -c %F:%a:%n /proc/[a-z]*; ls -A /proc/irq /proc/bus'";
    let gave = as_namespace_root(&msb, script).ok().stdout;
    let (files, listed): (Vec<&str>, Vec<&str>) =
        gave.lines().partition(|line| line.split(':').count() == 3);
    assert!(files.len() > 20, "{gave}");
    for file in files.iter().filter(|file| file.starts_with("regular")) {
        let mode = file.split(':').nth(1).and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let mode = mode.expect("an octal number");
        assert!(mode & 0o222 == 0 && mode & 0o004 != 0, "{file}");
    }
    let shown: Vec<&str> =
        listed.into_iter().filter(|line| !line.is_empty() && !line.ends_with(':')).collect();
    assert_eq!(shown, [""; 0]);
    let own = "\"$0\" run -- sh -c 'id -u; cat /proc/uptime /proc/self/status >/dev/null'";
    assert_eq!(as_namespace_root(&msb, own).ok().stdout, "0\n");
}
