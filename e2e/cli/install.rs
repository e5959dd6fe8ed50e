//! `msb install`: an image as a command of the host.

use msb_e2e::images::Layout;
use msb_e2e::registry::Registry;
use msb_e2e::terminal::Terminal;
use msb_e2e::{CmdOutput, Msb, ends};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Calls an installed command as a shell would, which knows nothing of the state directory.
fn call(msb: &Msb, name: &str) -> Command {
    let mut command = msb.user_command(installed(msb, name));
    command.env_remove("MSB_HOME").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn installed(msb: &Msb, name: &str) -> PathBuf {
    msb.home().join("bin").join(name)
}

#[track_caller]
fn gives(command: &mut Command) -> CmdOutput {
    ends(command.spawn().expect("a script can be executed"))
}

#[test]
fn an_installed_image_is_a_command_of_the_host() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let gave = msb.run(["install".as_ref(), rootfs.as_os_str()]).ok();
        assert_eq!(gave.stdout, format!("{}\n", installed(&msb, "rootfs").display()));
        let gave = gives(call(&msb, "rootfs").args(["echo", "two words", "$HOME", "'"]));
        assert_eq!(gave.line(), "two words $HOME '");
        let gave = gives(call(&msb, "rootfs").args(["sh", "-c", "exit 7"]));
        assert_eq!(gave.code, 7);
        let mut reading = call(&msb, "rootfs");
        reading.args(["wc", "-c"]).stdin(fs::File::open(msb.file("four", "four")).unwrap());
        assert_eq!(gives(&mut reading).line(), "4");
    }
}

#[test]
fn recorded_arguments_are_kept_as_typed() {
    let msb = Msb::new();
    let rootfs = msb.rootfs();
    let nasty = "a b'c\"d$(id)`id`\\e*;\n#";
    let script = r#"printf '%s|' "$NASTY" "$FILED" "$PWD" "$@""#;
    let variable = format!("NASTY={nasty}");
    msb.file("variables", "FILED=from a file\n");
    let flags = ["-e", &variable, "--env-file", "variables", "--name=x", "-v", ".:/shown"];
    let tail = ["-w", "/shown", "--", "sh", "-c", script, "sh", "first"];
    let args = [&["install"], &flags[..], &[rootfs.to_str().unwrap()], &tail[..]].concat();
    msb.run(args).ok();
    let other_dir = msb.file("other/found", "").parent().unwrap().to_owned();
    let gave = gives(call(&msb, "x").arg("last").current_dir(&other_dir)).ok();
    assert_eq!(gave.stdout, format!("{nasty}|from a file|/shown|first|last|"));

    // What is shown is found from where the command is called.
    let args = ["install", "-n", "y", "-v", ".:/shown", rootfs.to_str().unwrap(), "--", "ls"];
    msb.run(args).ok();
    assert_eq!(gives(call(&msb, "y").arg("/shown").current_dir(&other_dir)).line(), "found");
}

#[test]
fn an_image_is_fetched_when_it_is_installed() {
    for msb in Msb::each() {
        let registry = Registry::plain();
        let image = registry.push(Layout::busybox(), "team/box:1");
        msb.run(["install", &image]).ok();
        drop(registry);
        assert_eq!(gives(call(&msb, "box").args(["echo", "here"])).line(), "here");
        let gave = msb.run(["install", "--name", "other", &image.replace("box", "other")]);
        assert_eq!(gave.code, 125, "{gave:?}");
        assert!(!installed(&msb, "other").exists());
    }
}

#[test]
fn the_path_hint_is_shown_only_where_it_is_missing() {
    let msb = Msb::new();
    let bin = msb.home().join("bin");
    let note = msb.words("install host").ok().stderr;
    assert!(note.contains(&format!("`{}` is not on PATH", bin.display())), "{note}");
    let mut again = msb.command(["install", "host"]);
    again.env("PATH", format!("/usr/bin:{}", bin.display()));
    again.stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(gives(&mut again).ok().stderr, "");
}

#[test]
fn only_what_is_ours_is_overwritten_or_removed() {
    let msb = Msb::new();
    msb.words("install host --name mine").ok();
    let target = msb.file("target", fs::read(installed(&msb, "mine")).unwrap());
    symlink(&target, installed(&msb, "link")).unwrap();
    fs::write(installed(&msb, "foreign"), "#!/bin/sh\necho mine\n").unwrap();
    for name in ["link", "foreign"] {
        let before = fs::read(installed(&msb, name)).unwrap();
        for line in [format!("install host --name {name}"), format!("uninstall {name}")] {
            let gave = msb.words(&line);
            assert_eq!(gave.code, 125, "{line}");
            assert!(gave.stderr.contains("was not made by `msb install`"), "{gave:?}");
        }
        assert_eq!(fs::read(installed(&msb, name)).unwrap(), before);
    }
    msb.words("install host --name mine -- echo other").ok();
    assert_eq!(gives(&mut call(&msb, "mine")).line(), "other");
    assert_eq!(msb.words("uninstall mine").ok().stdout, "");
    assert!(!installed(&msb, "mine").exists());
    let gave = msb.words("uninstall mine");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.starts_with("error: no installed command `mine`"), "{gave:?}");
}

#[test]
fn a_command_name_with_a_path_is_refused() {
    let msb = Msb::new();
    for name in ["../x", "a/b", ".", "..", "", "-x", "a b", "msb"] {
        let flag = format!("--name={name}");
        for args in [&["install", "host", &flag][..], &["uninstall", name]] {
            assert_eq!(msb.run(args).code, 125, "{args:?}");
        }
    }
    assert!(!msb.home().join("x").exists());
    assert!(!msb.home().join("bin").exists());
}

#[test]
fn an_install_that_cannot_work_is_refused() {
    let msb = Msb::new();
    for line in [
        "install",
        "install ./no-such-rootfs",
        "install host --memory 1x",
        "install host --isolation jail",
        "install host --text nonsense",
        "install host -d",
        "install host --dry-run",
        "install host --conf no-such.toml",
    ] {
        let gave = msb.words(line);
        assert_eq!(gave.code, 125, "{line}: {gave:?}");
    }
    assert!(!msb.home().join("bin").exists());
    // A variable of the caller may be set when it is called.
    msb.words("install host -e NOT_SET_YET -- sh -c true").ok();
}

#[test]
fn at_a_terminal_an_installed_command_has_one() {
    let msb = Msb::new();
    let rootfs = msb.rootfs();
    msb.run(["install", "-n", "box", rootfs.to_str().unwrap(), "--", "sh", "-c"]).ok();
    let mut command = call(&msb, "box");
    command.arg("tty >/dev/null && stty size");
    let (code, shown) = Terminal::start(&command, 22, 77).ends();
    assert_eq!((code, shown.trim()), (0, "22 77"));
}
