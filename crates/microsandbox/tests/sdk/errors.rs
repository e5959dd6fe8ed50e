//! What goes wrong has a kind to decide on.

use crate::scratch::Scratch;
use microsandbox::{Isolation, Kind, PullWhen, Sandboxes, Stage};

#[tokio::test]
async fn a_command_that_cannot_be_run_is_an_error() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let missing = sandbox.exec("no-such-command", [""; 0]).await.unwrap_err();
    assert_eq!((missing.kind(), missing.stage()), (Kind::CommandNotFound, Some(Stage::Exec)));
    let missing = sandbox.exec_stream("no-such-command", [""; 0]).await.unwrap_err();
    assert_eq!(missing.kind(), Kind::CommandNotFound);
    let closed = sandbox.exec("/etc/passwd", [""; 0]).await.unwrap_err();
    assert_eq!(closed.kind(), Kind::NotExecutable);
    let nobody = sandbox.exec_with("true", |command| command.user("no-such-user")).await;
    assert_eq!(nobody.unwrap_err().kind(), Kind::Invalid);
    let empty = sandbox.exec("", [""; 0]).await.unwrap_err();
    assert_eq!(empty.kind(), Kind::CommandNotFound);
    assert!(sandbox.exec("true", [""; 0]).await.unwrap().success());
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_leaves_nothing() {
    let scratch = Scratch::new();
    let kind = async |builder: microsandbox::SandboxBuilder| {
        builder.create().await.expect_err("it cannot be made").kind()
    };
    assert_eq!(kind(scratch.box_named("../box")).await, Kind::Invalid);
    let not_here = scratch.box_named("box").image("alpine").pull(PullWhen::Never);
    assert_eq!(kind(not_here).await, Kind::NotFound);
    assert_eq!(kind(scratch.box_named("box").image("no such")).await, Kind::Invalid);
    assert_eq!(kind(scratch.box_named("box").image("/no/such/dir")).await, Kind::NotFound);
    assert_eq!(kind(scratch.box_named("box").isolation(Isolation::Vm)).await, Kind::Unsupported);
    assert_eq!(kind(scratch.box_named("box").workdir("relative")).await, Kind::Invalid);
    assert_eq!(kind(scratch.box_named("box").mount("/no/such", "/x")).await, Kind::Host);
    assert_eq!(kind(scratch.box_named("box").volume("none", "/x")).await, Kind::NotFound);
    assert_eq!(kind(scratch.box_named("box").copy("/no/such", "/x")).await, Kind::Host);
    assert!(scratch.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn names_that_are_taken_or_unknown_are_different_errors() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let taken = scratch.box_named("box").create().await.unwrap_err();
    assert_eq!(taken.kind(), Kind::Exists);
    let unknown = scratch.get("bxo").await.unwrap_err();
    assert_eq!(unknown.kind(), Kind::NotFound);
    assert_eq!(unknown.advice(), Some("did you mean `box`?"));
    assert_eq!(scratch.start("nothing").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(scratch.remove("nothing").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(scratch.get("../x").await.unwrap_err().kind(), Kind::Invalid);
    assert!(sandbox.exec("true", [""; 0]).await.unwrap().success());
}

#[tokio::test]
async fn a_sandbox_that_has_stopped_says_so() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    sandbox.kill().await.unwrap();
    assert_eq!(sandbox.exec("true", [""; 0]).await.unwrap_err().kind(), Kind::State);
    assert_eq!(sandbox.fs().read("/etc/passwd").await.unwrap_err().kind(), Kind::State);
    assert_eq!(sandbox.fs().exists("/etc/passwd").await.unwrap_err().kind(), Kind::State);
    assert_eq!(sandbox.metrics().await.unwrap_err().kind(), Kind::State);
    assert_eq!(sandbox.own().await.unwrap_err().kind(), Kind::State);
    scratch.remove("box").await.unwrap();
    assert_eq!(sandbox.exec("true", [""; 0]).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(sandbox.fs().exists("/etc/passwd").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(sandbox.logs(Default::default()).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn an_executable_that_is_not_there_is_an_error() {
    let scratch = Scratch::new();
    let nowhere = Sandboxes::new().home(scratch.home()).executable("/no/such/msb");
    let error = nowhere.builder("box").create().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Host, "{error}");
    assert!(scratch.list().await.unwrap().is_empty());
}
