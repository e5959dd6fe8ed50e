//! What a new sandbox can be told.

use crate::scratch::{Scratch, executable};
use microsandbox::{Ending, GuestPath, Patch, PullWhen, Security};
use std::fs;
use std::process::Command;
use std::time::Duration;

#[tokio::test]
async fn every_command_has_the_settings_of_its_sandbox() {
    let scratch = Scratch::new();
    let sandbox = scratch
        .box_named("box")
        .envs([("A", "1"), ("B", "2")])
        .workdir("/srv/app")
        .hostname("elsewhere")
        .rlimit("nofile=123")
        .script("greet", "echo hello $1")
        .create()
        .await
        .unwrap();
    let output = sandbox.shell("echo $A$B; pwd; hostname; ulimit -n; greet you").await.unwrap();
    assert_eq!(output.stdout().unwrap(), "12\n/srv/app\nelsewhere\n123\nhello you\n");
}

#[tokio::test]
async fn an_image_brings_its_environment() {
    let scratch = Scratch::bare();
    let context = scratch.path().join("context");
    fs::create_dir(&context).unwrap();
    fs::copy("/bin/busybox", context.join("busybox")).unwrap();
    let text = "FROM scratch\nCOPY busybox /bin/sh\nENV GREETING=hello\nWORKDIR /srv/app\n";
    fs::write(context.join("Containerfile"), text).unwrap();
    let mut build = Command::new(executable());
    build.args(["build", "-q", "-t", "greeter"]).arg(&context).env("MSB_HOME", scratch.home());
    assert!(build.status().unwrap().success());
    let builder = scratch.box_named("box").image("greeter").pull(PullWhen::Never);
    let sandbox = builder.create().await.unwrap();
    let output = sandbox.shell("echo $GREETING; pwd").await.unwrap();
    assert_eq!(output.stdout().unwrap(), "hello\n/srv/app\n");
}

#[tokio::test]
async fn files_are_put_in_place_before_anything_runs() {
    let scratch = Scratch::new();
    let file = scratch.path().join("file");
    fs::write(&file, "from the host").unwrap();
    let path = |text| GuestPath::parse(text).unwrap();
    let sandbox = scratch
        .box_named("box")
        .copy(&file, "/in/file")
        .patch(Patch::Text { path: path("/in/text"), content: "text".into(), mode: Some(0o600) })
        .patch(Patch::Mkdir { path: path("/in/dir") })
        .create()
        .await
        .unwrap();
    assert_eq!(sandbox.fs().read("/in/file").await.unwrap(), b"from the host");
    assert_eq!(sandbox.fs().stat("/in/text").await.unwrap().mode, 0o600);
    assert!(sandbox.fs().stat("/in/dir").await.unwrap().is_dir());
}

#[tokio::test]
async fn host_paths_are_shown_as_asked() {
    let scratch = Scratch::new();
    for name in ["rw", "ro"] {
        fs::create_dir(scratch.path().join(name)).unwrap();
        fs::write(scratch.path().join(name).join("file"), name).unwrap();
    }
    let sandbox = scratch
        .box_named("box")
        .mount(scratch.path().join("rw"), "/rw")
        .mount_read_only(scratch.path().join("ro"), "/ro")
        .tmpfs("/cache:8M")
        .create()
        .await
        .unwrap();
    let script = "cat /rw/file /ro/file; echo new > /rw/new; \
                  echo x > /ro/new || echo refused; stat -f -c %T /cache";
    let output = sandbox.shell(script).await.unwrap();
    assert_eq!(output.stdout().unwrap(), "rwrorefused\ntmpfs\n");
    assert_eq!(fs::read(scratch.path().join("rw/new")).unwrap(), b"new\n");
}

#[tokio::test]
async fn a_command_runs_as_the_user_that_was_asked_for() {
    let scratch = Scratch::new();
    let sandbox = match scratch.box_named("box").user("1234:1234").create().await {
        Ok(sandbox) => sandbox,
        // Without subordinate ids there is only root, and that is what it says.
        Err(error) => return assert_eq!(error.kind(), microsandbox::Kind::Unsupported),
    };
    assert_eq!(sandbox.shell("id -u; id -g").await.unwrap().stdout().unwrap(), "1234\n1234\n");
    let root = sandbox.exec_with("id", |command| command.arg("-u").user("root")).await.unwrap();
    assert_eq!(root.stdout().unwrap(), "0\n");
}

#[tokio::test]
async fn memory_that_runs_out_is_told() {
    let scratch = Scratch::new();
    let sandbox = scratch.box_named("box").memory(64).create().await.unwrap();
    let script = "x = bytearray(400 << 20); print(len(x))";
    let output = sandbox.exec("python3", ["-c", script]).await.unwrap();
    assert_eq!(output.exit().ending, Ending::Memory, "{output:?}");
    assert!(sandbox.exec("true", [""; 0]).await.unwrap().success());
}

#[tokio::test]
async fn a_sandbox_ends_when_its_time_is_over() {
    let scratch = Scratch::new();
    let (longest, idle) = (Duration::from_millis(700), Duration::from_millis(300));
    let first = scratch.box_named("first").max_duration(longest).create().await.unwrap();
    let second = scratch.box_named("second").idle_timeout(idle).create().await.unwrap();
    let endless = first.exec("sleep", ["60"]).await.unwrap();
    assert_eq!(endless.exit().ending, Ending::MaxDuration);
    assert_eq!(first.wait().await.unwrap().ending, Ending::MaxDuration);
    assert_eq!(second.wait().await.unwrap().ending, Ending::Idle);
}

#[tokio::test]
async fn an_init_is_pid_1_or_a_mistake_that_is_told() {
    let scratch = Scratch::new();
    let content = "#!/bin/sh\nwhile :; do sleep 100; done\n".to_owned();
    let path = GuestPath::parse("/opt/own-init").unwrap();
    let script = Patch::Text { path, content, mode: Some(0o755) };
    let builder = scratch.box_named("box").patch(script).init("/opt/own-init");
    let sandbox = builder.create().await.unwrap();
    let output = sandbox.exec("cat", ["/proc/1/comm"]).await.unwrap();
    assert_eq!(output.stdout().unwrap(), "own-init\n");
    let mistake = scratch.box_named("other").init("own-init").create().await.unwrap_err();
    assert_eq!(mistake.message(), "not an init: `own-init`");
}

#[tokio::test]
async fn a_restricted_sandbox_has_no_capabilities() {
    let scratch = Scratch::new();
    let sandbox =
        scratch.box_named("box").security(Security::Restricted).cpus(1).create().await.unwrap();
    let output = sandbox.exec("grep", ["-E", "CapEff|NoNewPrivs", "/proc/self/status"]).await;
    let output = output.unwrap();
    assert_eq!(output.stdout().unwrap(), "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
}

#[tokio::test]
async fn a_directory_can_be_the_image() {
    let scratch = Scratch::new();
    let root = scratch.path().join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy("/bin/busybox", root.join("bin/sh")).expect("busybox-static is installed");
    let sandbox = scratch.box_named("box").image(root.to_str().unwrap()).create().await.unwrap();
    assert_eq!(sandbox.shell("echo in here").await.unwrap().stdout().unwrap(), "in here\n");
}
