//! Hosts without a kernel feature: no sandbox runs there less confined than promised.

use msb_e2e::{Msb, compiled, ends};
use std::process::Stdio;

/// One mechanism that the kernel answers for, and how it says that it does not have it.
struct MissingFeature {
    call: i64,
    errno: i32,
    /// Argument and value that it is about; none is the whole call.
    only: Option<(i32, i32)>,
}

const fn call(call: i64, errno: i32) -> MissingFeature {
    MissingFeature { call, errno, only: None }
}

/// Attack 23.
#[test]
fn nothing_runs_where_a_mechanism_is_missing() {
    let (set_dumpable, drop_capability, no_new_privileges) = (4, 24, 38);
    let prctl = |option| MissingFeature {
        call: libc::SYS_prctl,
        errno: libc::EPERM,
        only: Some((0, option)),
    };
    let lacks = [
        call(libc::SYS_landlock_create_ruleset, libc::ENOSYS),
        call(libc::SYS_landlock_create_ruleset, libc::EOPNOTSUPP),
        call(libc::SYS_landlock_add_rule, libc::EPERM),
        call(libc::SYS_landlock_restrict_self, libc::EPERM),
        call(libc::SYS_seccomp, libc::ENOSYS),
        call(libc::SYS_seccomp, libc::EINVAL),
        call(libc::SYS_capset, libc::EPERM),
        call(libc::SYS_pivot_root, libc::EPERM),
        call(libc::SYS_unshare, libc::EPERM),
        call(libc::SYS_clone3, libc::EPERM),
        call(libc::SYS_mount_setattr, libc::ENOSYS),
        call(libc::SYS_move_mount, libc::ENOSYS),
        call(libc::SYS_open_tree, libc::ENOSYS),
        call(libc::SYS_fsopen, libc::ENOSYS),
        call(libc::SYS_keyctl, libc::EPERM),
        call(libc::SYS_prlimit64, libc::EPERM),
        call(libc::SYS_sethostname, libc::EPERM),
        prctl(drop_capability),
        prctl(no_new_privileges),
        prctl(set_dumpable),
    ];
    let deny = compiled("deny", include_str!("../programs/deny.c"));
    for msb in Msb::each() {
        let shared = msb.file("shared/file", "");
        let directory = shared.parent().unwrap();
        let volume = format!("{}:/shared", directory.display());
        for MissingFeature { call, errno, only } in &lacks {
            let (argument, value) = only.unwrap_or((-1, -1));
            let mut command = msb.user_command(&deny);
            command.args([call.to_string(), errno.to_string()]);
            command.args([argument.to_string(), value.to_string()]).arg(msb.binary());
            command.args(["run", "--security", "restricted", "-v", &volume]).arg(msb.rootfs());
            command.args(["--", "touch", "/shared/ran"]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let gave = ends(child);
            let lack = format!("call {call} {only:?} says {errno}: {gave:#?}");
            assert!(!directory.join("ran").exists(), "it ran all the same: {lack}");
            assert_eq!(gave.code, 125, "{lack}");
            assert!(gave.stderr.starts_with("error: "), "{lack}");
            assert_eq!(msb.run(["ls", "-q"]).line(), "", "{lack}");
        }
    }
}

/// Attack 23.
#[test]
fn nothing_runs_without_user_namespaces() {
    for msb in Msb::each() {
        let shared = msb.file("shared/file", "");
        let directory = shared.parent().unwrap();
        let volume = format!("{}:/shared", directory.display());
        let mut command = msb.user_command("unshare");
        command.args(["-Urm", "sh", "-c"]);
        command.args(["echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"", "sh"]);
        command.arg(msb.binary()).args(["run", "-v", &volume]).arg(msb.rootfs());
        command.args(["--", "touch", "/shared/ran"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let gave = ends(child);
        assert!(!directory.join("ran").exists(), "{gave:#?}");
        assert_eq!(gave.code, 125, "{gave:#?}");
        assert!(gave.stderr.contains("hint: "), "{gave:#?}");
        assert_eq!(msb.run(["ls", "-q"]).line(), "");
    }
}

/// Attack 23: a limit that cannot be held is an error before anything runs.
#[test]
fn a_limit_that_the_host_cannot_hold_is_refused() {
    let Some(msb) = Msb::as_user() else {
        return msb_e2e::skip("root can hold every limit here");
    };
    let shared = msb.file("shared/file", "");
    let directory = shared.parent().unwrap();
    let volume = format!("{}:/shared", directory.display());
    let rootfs = msb.rootfs();
    let gave =
        msb.run(["create", "-n", "web", "--disk", "64M", "-v", &volume, rootfs.to_str().unwrap()]);
    assert_eq!(gave.code, 125, "{gave:#?}");
    assert!(gave.stderr.contains("hint: "), "{gave:#?}");
    assert_eq!(msb.run(["ls", "-q"]).line(), "");
}
