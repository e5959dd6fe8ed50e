//! Volumes, made, used by two sandboxes, looked into and removed.

use crate::scratch::Scratch;
use microsandbox::{Kind, VolumeKind};
use std::fs;

#[tokio::test]
async fn a_volume_is_shared_and_outlives_its_sandboxes() {
    let scratch = Scratch::new();
    let made = scratch.volume_builder("data").label("team", "a").create().await.unwrap();
    assert_eq!((made.name(), made.kind(), made.size()), ("data", VolumeKind::Dir, None));
    let one = scratch.box_named("one").volume("data", "/data").create().await.unwrap();
    let two = scratch.box_named("two").volume_read_only("data", "/in").create().await.unwrap();
    assert!(one.shell("echo shared > /data/x").await.unwrap().success());
    let script = "cat /in/x; echo y > /in/y || echo refused";
    assert_eq!(two.shell(script).await.unwrap().stdout().unwrap(), "shared\nrefused\n");
    let found = scratch.volume("data").await.unwrap();
    assert_eq!(found.sandboxes().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(scratch.remove_volume("data").await.unwrap_err().kind(), Kind::State);
    one.stop_and_wait().await.unwrap();
    two.stop_and_wait().await.unwrap();
    for name in ["one", "two"] {
        scratch.remove(name).await.unwrap();
    }
    fs::write(scratch.path().join("in"), "copied").unwrap();
    assert_eq!(found.copy_in(scratch.path().join("in"), "/y").await.unwrap().bytes, 6);
    assert_eq!(found.read("/y").await.unwrap(), b"copied");
    found.copy_out("/x", scratch.path().join("out")).await.unwrap();
    assert_eq!(fs::read(scratch.path().join("out")).unwrap(), b"shared\n");
    scratch.remove_volume("data").await.unwrap();
    assert!(scratch.volumes().await.unwrap().is_empty());
    assert_eq!(scratch.volume("data").await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn mistakes_are_told_before_anything_is_made() {
    let scratch = Scratch::new();
    for builder in [
        scratch.volume_builder("../x"),
        scratch.volume_builder("x").size(1),
        scratch.volume_builder("x").label("", "a"),
    ] {
        assert_eq!(builder.create().await.unwrap_err().kind(), Kind::Invalid);
    }
    assert!(!scratch.home().join("volumes").exists());
}
