//! Workspaces: looked at, brought to the host, forgotten.

use crate::scratch::Scratch;
use microsandbox::{Depth, Kind, LeftOut, Selection, What};
use std::fs;

#[tokio::test]
async fn changes_are_looked_at_before_they_reach_the_host() {
    let scratch = Scratch::new();
    let project = scratch.path().join("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("a"), "one\n").unwrap();
    let shown = project.display().to_string();
    let sandbox = scratch.box_named("box").workspace(&shown).create().await.unwrap();
    sandbox.shell("cd /workspace; echo two >> a; echo x > b; echo x > Makefile").await.unwrap();
    let workspace = sandbox.workspace();
    assert_eq!(workspace.host().await.unwrap(), project.canonicalize().unwrap());

    let changes = workspace.diff().await.unwrap();
    let told: Vec<(String, What)> =
        changes.iter().map(|change| (change.path.to_string(), change.what)).collect();
    let wanted = [("Makefile", What::Added), ("a", What::Changed), ("b", What::Added)];
    assert_eq!(told, wanted.map(|(path, what)| (path.to_owned(), what)));
    let below = vec![workspace.path("/workspace/a").await.unwrap()];
    let depth = Depth { patches: true, ..Depth::default() };
    let change = workspace.diff_with(below.clone(), depth).await.unwrap().remove(0);
    assert_eq!(change.patch.unwrap().text, "@@ -1,1 +1,2 @@\n one\n+two\n");
    assert_eq!(fs::read_to_string(project.join("a")).unwrap(), "one\n");

    let all = Selection::default();
    let applied = workspace.check(&all).await.unwrap();
    assert_eq!(applied.left_out[0].1, LeftOut::Risk);
    assert!(!project.join("b").exists());
    workspace.apply(&all).await.unwrap();
    assert_eq!(fs::read_to_string(project.join("a")).unwrap(), "one\ntwo\n");
    assert!(project.join("b").exists() && !project.join("Makefile").exists());

    let error = workspace.discard(&[]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::State);
    sandbox.stop_and_wait().await.unwrap();
    assert_eq!(workspace.discard(&[]).await.unwrap(), 1);
    assert!(workspace.diff().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_sandbox_without_a_workspace_says_so() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let error = sandbox.workspace().diff().await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (Kind::State, "sandbox `box` has no workspace"));
}
