//! A directory of the host, kept in step inside.

use crate::scratch::{Scratch, eventually};
use microsandbox::{Kind, SyncState};
use std::fs;

#[tokio::test]
async fn what_changes_outside_changes_inside_until_it_is_stopped() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("a")).unwrap();
    fs::write(source.join("a/file"), "one").unwrap();
    fs::write(source.join("x.log"), "").unwrap();
    let sync =
        sandbox.sync_with(&source, "/app", |options| options.exclude("*.log")).await.unwrap();
    assert_eq!(sandbox.fs().read_to_string("/app/a/file").await.unwrap(), "one");
    assert!(!sandbox.fs().exists("/app/x.log").await.unwrap());
    let status = sync.status().await.unwrap();
    assert_eq!((status.state, status.files, status.bytes), (SyncState::Watching, 1, 3));
    fs::write(source.join("a/file"), "two").unwrap();
    eventually("the change is inside", async || {
        sandbox.fs().read_to_string("/app/a/file").await.unwrap() == "two"
    })
    .await;
    let listed = scratch.syncs().await.unwrap();
    assert_eq!(listed.iter().map(|sync| sync.id.as_str()).collect::<Vec<_>>(), [sync.id()]);
    sync.stop().await.unwrap();
    assert_eq!(sync.status().await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(scratch.syncs().await.unwrap(), []);
}

#[tokio::test]
async fn a_sync_ends_with_its_sandbox() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let source = scratch.path().join("source");
    fs::create_dir_all(&source).unwrap();
    let sync = sandbox.sync(&source, "/app").await.unwrap();
    sandbox.kill().await.unwrap();
    eventually("it has ended", async || sync.status().await.unwrap().state == SyncState::Ended)
        .await;
    let reason = sync.status().await.unwrap().reason;
    assert!(reason.is_some_and(|reason| reason.ends_with("stopped")));
    let error = sandbox.sync(&source, "relative").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let error = sandbox.sync(&source, "/app").await.unwrap_err();
    assert_eq!(error.kind(), Kind::State);
}
