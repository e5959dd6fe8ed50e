//! Saved filesystems, from a program's side.

use crate::scratch::{Scratch, eventually};
use microsandbox::{Kind, Status};

#[tokio::test]
async fn sandboxes_are_saved_started_from_and_put_back() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    sandbox.fs().write("/root/a", "one").await.unwrap();
    let taken = sandbox.snapshot("base").await.unwrap();
    assert!(taken.paused_us.is_some(), "it was running");
    let from = scratch.box_named("two").image("snapshot:base").create().await.unwrap();
    assert_eq!(from.fs().read("/root/a").await.unwrap(), b"one");
    sandbox.fs().write("/root/a", "changed").await.unwrap();
    sandbox.kill().await.unwrap();
    sandbox.clone_as("three").await.unwrap();
    scratch.rollback("box", "base").await.unwrap();
    for (name, text) in [("box", "one"), ("three", "changed")] {
        let started = scratch.start(name).await.unwrap();
        assert_eq!(started.fs().read("/root/a").await.unwrap(), text.as_bytes(), "{name}");
        started.kill().await.unwrap();
    }
    scratch.reset("box", false).await.unwrap();
    let again = scratch.start("box").await.unwrap();
    assert_eq!(again.fs().read("/root/a").await.unwrap_err().kind(), Kind::NotFound);
    scratch.restore("base", "four").await.unwrap();
    assert_eq!(scratch.get("four").await.unwrap().status().await.unwrap(), Status::Stopped);
}

#[tokio::test]
async fn snapshots_are_named_verified_saved_and_removed() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    sandbox.fs().write("/root/a", "one").await.unwrap();
    sandbox.kill().await.unwrap();
    let taken = sandbox.snapshot("base").await.unwrap();
    assert_eq!(taken.paused_us, None);
    assert_eq!(sandbox.snapshot("base").await.unwrap_err().kind(), Kind::Exists);
    scratch.tag_snapshot("base", "stable").await.unwrap();
    assert_eq!(scratch.snapshot("stable").await.unwrap().id, taken.id);
    // A process that was left behind writes down what it holds.
    let known = async || scratch.snapshot("base").await.unwrap().digest.is_some();
    eventually("it is known what it holds", known).await;
    assert!(scratch.verify_snapshot("base").await.unwrap().intact);
    let file = scratch.path().join("base.tar");
    scratch.save_snapshot("base", &file, false).await.unwrap();
    scratch.remove_snapshot("stable", false).await.unwrap();
    scratch.remove_snapshot("base", false).await.unwrap();
    assert!(scratch.snapshots().await.unwrap().is_empty());
    assert_eq!(scratch.load_snapshot(&file, Some("back")).await.unwrap().as_str(), "back");
    let from = scratch.box_named("two").image("snapshot:back").create().await.unwrap();
    assert_eq!(from.fs().read("/root/a").await.unwrap(), b"one");
}
