//! How sandboxes begin and end, and with whom.

use crate::scratch::{Scratch, eventually, executable};
use microsandbox::{Ending, Health, Holds, Kind, Modify, Restart, Sandboxes, Span, Status};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[tokio::test]
async fn a_sandbox_is_made_stopped_started_and_removed() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    assert_eq!(sandbox.name().as_str(), "box");
    assert_eq!(sandbox.status().await.unwrap(), Status::Running);
    sandbox.fs().write("/kept", "x").await.unwrap();
    assert_eq!(sandbox.stop_and_wait().await.unwrap().ending, Ending::Stopped);
    assert_eq!(sandbox.status().await.unwrap(), Status::Stopped);
    assert_eq!(sandbox.stop_and_wait().await.unwrap().ending, Ending::Stopped);
    sandbox.stop().await.unwrap();

    let again = scratch.start("box").await.unwrap();
    assert!(again.is_owned());
    assert_eq!(again.fs().read("/kept").await.unwrap(), b"x");
    assert_eq!(scratch.remove("box").await.unwrap_err().kind(), Kind::State);
    again.kill().await.unwrap();
    scratch.remove("box").await.unwrap();
    assert!(scratch.list().await.unwrap().is_empty());
    assert_eq!(again.status().await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn sandboxes_are_found_and_listed() {
    let scratch = Scratch::new();
    let _b = scratch.box_named("b").label("team", "x").create().await.unwrap();
    let a = scratch.box_named("a").detached(true).create().await.unwrap();
    a.kill().await.unwrap();
    let listed: Vec<(String, Status)> = scratch
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|summary| (summary.name.to_string(), summary.status))
        .collect();
    assert_eq!(listed, [("a".to_owned(), Status::Stopped), ("b".to_owned(), Status::Running)]);
    let found = scratch.get("b").await.unwrap();
    assert!(!found.is_owned());
    assert_eq!(found.inspect().await.unwrap().plan.labels["team"], "x");
    assert!(found.exec("true", [""; 0]).await.unwrap().success());
}

#[tokio::test]
async fn dropping_the_handle_ends_the_sandbox_and_keeps_its_files() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    sandbox.fs().write("/kept", "x").await.unwrap();
    let found = scratch.get("box").await.unwrap();
    drop(sandbox);
    assert_eq!(found.wait().await.unwrap().ending, Ending::Stopped);
    assert_eq!(found.status().await.unwrap(), Status::Stopped);
    let again = scratch.start("box").await.unwrap();
    assert_eq!(again.fs().read("/kept").await.unwrap(), b"x");
}

#[tokio::test]
async fn an_ephemeral_sandbox_is_gone_with_its_handle() {
    let scratch = Scratch::new();
    let sandbox = scratch.box_named("box").ephemeral(true).create().await.unwrap();
    sandbox.fs().write("/x", "x").await.unwrap();
    assert_eq!(scratch.list().await.unwrap().len(), 1);
    drop(sandbox);
    eventually("it is gone", async || scratch.list().await.unwrap().is_empty()).await;

    let sandbox = scratch.box_named("box").ephemeral(true).create().await.unwrap();
    assert_eq!(sandbox.stop_and_wait().await.unwrap().ending, Ending::Stopped);
    assert!(scratch.list().await.unwrap().is_empty());
    assert_eq!(sandbox.stop_and_wait().await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_detached_sandbox_goes_on_without_its_handle() {
    let scratch = Scratch::new();
    let first = scratch.create().await;
    first.detach().await.unwrap();
    first.detach().await.unwrap();
    assert!(!first.is_owned());
    let second = scratch.box_named("second").detached(true).create().await.unwrap();
    drop((first, second));
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in ["box", "second"] {
        let found = scratch.get(name).await.unwrap();
        assert!(found.exec("true", [""; 0]).await.unwrap().success());
        found.stop_and_wait().await.unwrap();
        drop(scratch.start_detached(name).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(scratch.get("box").await.unwrap().status().await.unwrap(), Status::Running);
}

#[tokio::test]
async fn a_running_sandbox_can_be_tied_to_a_handle() {
    let scratch = Scratch::new();
    scratch.box_named("box").detached(true).create().await.unwrap();
    let tied = scratch.get("box").await.unwrap();
    tied.own().await.unwrap();
    tied.own().await.unwrap();
    assert_eq!(tied.status().await.unwrap(), Status::Running);
    // Starting what runs already does not take it from its owner.
    drop(scratch.start("box").await.unwrap());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let watching = scratch.get("box").await.unwrap();
    assert_eq!(watching.status().await.unwrap(), Status::Running);
    drop(tied);
    assert_eq!(watching.wait().await.unwrap().ending, Ending::Stopped);
}

/// Which state directory the child of the next test keeps its sandbox in.
const CHILD: &str = "MSB_TEST_OWNER_HOME";

/// Killed if the test fails before it does that itself.
struct Owner(Child);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn killing_the_owning_process_ends_the_sandbox() {
    if let Some(home) = std::env::var_os(CHILD) {
        let sandboxes = Sandboxes::new().home(home).executable(executable());
        let sandbox = sandboxes.builder("box").create().await.unwrap();
        sandbox.shell("touch /ready; sleep 600").await.unwrap();
        return;
    }
    let scratch = Scratch::new();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "life::killing_the_owning_process_ends_the_sandbox"]);
    again.env(CHILD, scratch.home()).stdout(Stdio::null());
    let mut owner = Owner(again.spawn().unwrap());
    eventually("the child's sandbox runs", async || match scratch.get("box").await {
        Ok(found) => found.fs().exists("/ready").await.unwrap_or(false),
        Err(_) => false,
    })
    .await;
    let found = scratch.get("box").await.unwrap();
    owner.0.kill().unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), found.wait()).await;
    assert_eq!(ended.unwrap().unwrap().ending, Ending::Stopped);
    assert_eq!(found.status().await.unwrap(), Status::Stopped);
}

#[tokio::test]
async fn a_killed_worker_is_noticed_and_repaired() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox.exec_stream("sleep", ["60"]).await.unwrap();
    let pid = sandbox.inspect().await.unwrap().worker.unwrap().pid;
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(exec.wait().await.unwrap_err().kind(), Kind::Protocol);
    assert_eq!(sandbox.wait().await.unwrap().ending, Ending::Crashed);
    assert_eq!(sandbox.status().await.unwrap(), Status::Crashed);
    assert_eq!(sandbox.exec("true", [""; 0]).await.unwrap_err().kind(), Kind::State);
    scratch.repair().await.unwrap();
    let again = scratch.start("box").await.unwrap();
    assert!(again.exec("true", [""; 0]).await.unwrap().success());
}

#[tokio::test]
async fn stopping_asks_before_it_kills() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let script = "trap 'echo asked > /kept; exit' TERM; echo ready; while :; do sleep 0.05; done";
    let mut exec = sandbox.exec_stream("sh", ["-c", script]).await.unwrap();
    exec.next().await.unwrap();
    exec.next().await.unwrap();
    sandbox.stop().await.unwrap();
    assert_eq!(exec.wait().await.unwrap().ending, Ending::Stopped);
    sandbox.wait().await.unwrap();
    let again = scratch.start("box").await.unwrap();
    assert_eq!(again.fs().read("/kept").await.unwrap(), b"asked\n");
}

#[tokio::test]
async fn a_drained_sandbox_ends_with_its_last_command() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox.exec_stream("cat", [""; 0]).await.unwrap();
    assert!(sandbox.drain().await.unwrap());
    assert_eq!(sandbox.exec("true", [""; 0]).await.unwrap_err().kind(), Kind::State);
    assert_eq!(sandbox.status().await.unwrap(), Status::Draining);
    exec.close_stdin().await.unwrap();
    assert!(exec.wait().await.unwrap().success());
    assert_eq!(sandbox.wait().await.unwrap().ending, Ending::Drained);
    assert!(!sandbox.drain().await.unwrap());
}

#[tokio::test]
async fn waiting_can_be_given_up() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let given_up = tokio::time::timeout(Duration::from_millis(100), sandbox.wait()).await;
    assert!(given_up.is_err());
    assert_eq!(sandbox.status().await.unwrap(), Status::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_create_the_same_name_one_wins() {
    let scratch = Scratch::new();
    let mut creating = tokio::task::JoinSet::new();
    for _ in 0..8 {
        creating.spawn(scratch.box_named("box").create());
    }
    let (won, lost): (Vec<_>, Vec<_>) =
        creating.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    for error in lost.into_iter().map(Result::unwrap_err) {
        assert_eq!(error.kind(), Kind::Exists, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_state_directory_serves_several_at_once() {
    let scratch = Scratch::bare();
    let mut creating = tokio::task::JoinSet::new();
    for number in 0..4 {
        creating.spawn(scratch.box_named(&format!("box{number}")).ephemeral(true).create());
    }
    for sandbox in creating.join_all().await {
        assert!(sandbox.unwrap().exec("true", [""; 0]).await.unwrap().success());
    }
}

#[tokio::test]
async fn replacing_ends_the_one_that_was_there() {
    let scratch = Scratch::new();
    let first = scratch.create().await;
    first.fs().write("/mine", "x").await.unwrap();
    let second = scratch.box_named("box").replace(true).create().await.unwrap();
    assert!(!second.fs().exists("/mine").await.unwrap());
    // The handle of the old one must not end the new one.
    drop(first);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(second.exec("true", [""; 0]).await.unwrap().success());
}

#[tokio::test]
async fn a_service_is_begun_again_looked_after_changed_and_renamed() {
    let scratch = Scratch::new();
    let health = Health { interval: Span(Duration::from_millis(100)), ..Health::new("true") };
    let sandbox = scratch
        .box_named("svc")
        .service(["sh", "-c", "exit 3"], Restart::OnFailure(Some(1)))
        .health(health)
        .detached(true)
        .create()
        .await
        .unwrap();
    let stopped = sandbox.wait().await.unwrap();
    assert_eq!(stopped.exit.unwrap().code, Some(3));
    let labels = [("a".to_owned(), "b".to_owned())].into();
    let changed = sandbox.modify(Modify { labels, ..Modify::default() }).await.unwrap();
    assert_eq!((changed[0].what.as_str(), changed[0].holds), ("label a", Holds::Now));
    scratch.rename("svc", "other").await.unwrap();
    let other = scratch.get("other").await.unwrap();
    assert_eq!(other.inspect().await.unwrap().plan.labels["a"], "b");
}
