//! A host directory in a sandbox: reviewed changes out of it, followed changes into it.
//!
//! `cargo run -p microsandbox --example workspace`, in a directory with `project` and `src`.

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use microsandbox::{Result, Sandbox, Selection};

#[tokio::main]
async fn main() -> Result<()> {
    let sandbox = Sandbox::builder("box").workspace("./project").create().await?;
    sandbox.shell("cd /workspace && echo done > result.txt").await?;
    for change in sandbox.workspace().diff().await? {
        println!("{:?} {}", change.what, change.path);
    }
    sandbox.workspace().apply(&Selection::default()).await?;

    let sync = sandbox.sync("./src", "/app").await?; // returns when the first copy is inside
    let status = sync.status().await?;
    sync.stop().await?;

    println!("{} files followed", status.files);
    sandbox.stop_and_wait().await?;
    Sandbox::remove("box").await
}
