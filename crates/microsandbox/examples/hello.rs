//! The smallest use: a sandbox, a command, its output.
//!
//! `cargo run -p microsandbox --example hello`

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use microsandbox::{Result, Sandbox};

#[tokio::main]
async fn main() -> Result<()> {
    let sandbox = Sandbox::builder("my-sandbox").image("host").cpus(1).memory(512).create().await?;
    let output = sandbox.exec("python3", ["-c", "print('Hello!')"]).await?;
    println!("{}", output.stdout()?);
    sandbox.stop_and_wait().await?;
    Sandbox::remove("my-sandbox").await
}
