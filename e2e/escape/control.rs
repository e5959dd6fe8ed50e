//! Attacks on the state directory and its sockets, by other users of the host.

use msb_e2e::{Msb, as_unprivileged_user, compiled, ends, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Attack 42.
#[test]
fn the_state_directory_is_closed_to_others() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        for directory in ["", "sandboxes", "sandboxes/web"] {
            let meta = fs::metadata(msb.home().join(directory)).unwrap();
            assert_eq!(meta.mode() & 0o777, 0o700, "{directory}");
            assert_eq!(meta.uid(), msb.uid(), "{directory}");
        }
    }
}

/// Attack 42: the Plan has the sandbox's environment, the logs what its commands said.
#[test]
fn sockets_plans_and_logs_are_closed_even_without_their_directory() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let mut open = msb.user_command("sh");
        open.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(msb.binary());
        open.args(["create", "-q", "-n", "web", "-e", "TOKEN=secret"]).arg(&rootfs);
        ends(open.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).ok();
        msb.shell_in("web", "echo said").ok();
        let entries = fs::read_dir(msb.home().join("sandboxes/web")).unwrap();
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| !path.is_dir());
        let modes = files.map(|path| {
            let meta = fs::metadata(&path).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), meta.mode() & 0o777)
        });
        let open: Vec<(String, u32)> = modes.filter(|(_, mode)| mode & 0o077 != 0).collect();
        assert_eq!(open, [], "octal 0600 is {}", 0o600);
    }
}

/// Attack 42.
#[test]
fn another_user_cannot_speak_to_a_worker() {
    let sockets = compiled("sockets", include_str!("programs/sockets.c"));
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let socket = msb.home().join("sandboxes/web/worker.sock");
        assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
        let Some(mut stranger) = as_unprivileged_user(&sockets) else {
            return skip("needs root to become another user");
        };
        let output = stranger.arg(&socket).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.contains("connected"), "{said}");
        let names = as_unprivileged_user("ls").unwrap().arg(msb.home()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&names.stdout), "");
        // Not even by a name that needs no directory.
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        let abstracts = table.lines().filter(|line| line.contains('@') && line.contains("msb"));
        assert_eq!(abstracts.filter(|line| !line.contains("msb-canary")).count(), 0, "{table}");
    }
}

/// Attack 42.
#[test]
fn a_state_directory_that_others_may_enter_is_refused() {
    for msb in Msb::each() {
        for mode in [0o755, 0o770, 0o701, 0o707, 0o1777] {
            let home = msb.scratch().join(format!("home-{mode:o}"));
            fs::create_dir(&home).unwrap();
            msb.chown(&home);
            fs::set_permissions(&home, Permissions::from_mode(mode)).unwrap();
            refuses(&msb, &home);
            assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "{mode:o}");
        }
    }
}

/// Attack 42.
#[test]
fn a_state_directory_of_another_user_is_refused() {
    for msb in Msb::each().into_iter().filter(|_| Msb::new().is_root()) {
        let home = msb.scratch().join("theirs");
        fs::create_dir(&home).unwrap();
        let other = if msb.is_root() { 65534 } else { 0 };
        chown(&home, Some(other), Some(other)).unwrap();
        fs::set_permissions(&home, Permissions::from_mode(0o700)).unwrap();
        refuses(&msb, &home);
        let link = msb.scratch().join("link");
        symlink(&home, &link).unwrap();
        refuses(&msb, &link);
        assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
    }
}

#[track_caller]
fn refuses(msb: &Msb, home: &Path) {
    let shared = msb.file("shared/file", "");
    let volume = format!("{}:/shared", shared.parent().expect("a parent").display());
    let mut command = msb.command(["run", "-v", &volume]);
    command.arg(msb.rootfs()).args(["--", "touch", "/shared/ran"]).env("MSB_HOME", home);
    let gave = ends(
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("msb can be executed"),
    );
    assert_eq!(gave.code, 125, "{gave:#?}");
    assert!(gave.stderr.starts_with("error: "), "{gave:#?}");
    assert!(!shared.with_file_name("ran").exists());
}

/// What lies in a state directory is read back as untrusted.
#[test]
fn a_broken_state_directory_gives_errors_and_not_panics() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.run(["stop", "-q", "-f", "web"]).ok();
        let directory = msb.home().join("sandboxes/web");
        let plan = fs::read(directory.join("plan.json")).unwrap();
        let broken: [&[u8]; 7] = [
            b"",
            b"{}",
            b"null",
            b"\xff\xfe\x00",
            &plan[..plan.len() / 2],
            br#"{"version":1,"name":"../../../../etc"}"#,
            &[b'['; 200_000],
        ];
        for content in broken {
            for file in ["plan.json", "events.log", "execs.log", "output.log"] {
                let path = directory.join(file);
                let before = fs::read(&path).ok();
                fs::write(&path, content).unwrap();
                for args in [
                    &["ls"][..],
                    &["ls", "--json"],
                    &["ps", "-a", "--execs"],
                    &["inspect", "web"],
                    &["logs", "web"],
                    &["start", "web"],
                    &["stop", "-f", "web"],
                    &["exec", "web", "--", "true"],
                ] {
                    let gave = msb.run(args);
                    assert!(gave.code == 0 || gave.code == 125, "{file} {args:?}: {gave:#?}");
                    assert!(!gave.stderr.contains("panicked"), "{file} {args:?}: {gave:#?}");
                }
                match before {
                    Some(before) => fs::write(&path, before).unwrap(),
                    None => fs::remove_file(&path).unwrap(),
                }
            }
        }
    }
}

/// A name is a directory's, so it may not be a path.
#[test]
fn names_that_are_paths_are_refused() {
    for msb in Msb::each() {
        let canary = msb.file("home-beside/canary", "untouched");
        let beside: PathBuf = canary.parent().unwrap().to_owned();
        msb.run(["ls"]).ok();
        for name in ["../../home-beside", "..", ".", "/etc", "a/b", "", "-f", "a\nb", "\u{202e}x"] {
            let rootfs = msb.rootfs();
            let made = msb.run(["create", "-n", name, rootfs.to_str().unwrap()]);
            assert_eq!(made.code, 125, "{name:?}: {made:#?}");
            for verb in [&["rm", "-f"][..], &["stop"], &["start"], &["inspect"], &["logs"]] {
                let gave = msb.run([verb, &["--", name]].concat());
                assert_eq!(gave.code, 125, "{verb:?} {name:?}: {gave:#?}");
            }
        }
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert_eq!(fs::read_dir(beside).unwrap().count(), 1);
    }
}

/// Removing a sandbox removes what is its own and nothing that a link in it names.
#[test]
fn removing_a_sandbox_follows_no_links() {
    for msb in Msb::each() {
        let canary = msb.file("host/canary", "untouched");
        let directory = canary.parent().unwrap().display().to_string();
        msb.lasting("web", ["-v", &format!("{directory}:/volume")]);
        let attack = format!(
            "mkdir /a; ln -s {directory} /a/link; ln -s /volume /a/volume; chmod 000 /a; \
             ln -s {directory} /link; mkdir -p /deep/$(printf 'd/%.0s' $(seq 200))"
        );
        msb.shell_in("web", &attack).ok();
        symlink(&directory, msb.home().join("sandboxes/web/extra")).unwrap();
        msb.run(["rm", "-q", "-f", "web"]).ok();
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert!(!msb.home().join("sandboxes/web").exists());
        assert_eq!(fs::read_dir(msb.home().join("sandboxes")).unwrap().count(), 0);
    }
}
