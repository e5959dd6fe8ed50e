//! A command that is talked to: its output as it comes, its stdin as it is written.
//!
//! `cargo run -p microsandbox --example stream`

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use microsandbox::{ExecEvent, Result, Sandbox};
use std::time::Duration;

const CONVERSATION: &str = r#"
while read -r line; do echo "heard $line"; done
echo "nothing more to hear" >&2
exit 3
"#;

#[tokio::main]
async fn main() -> Result<()> {
    let sandbox = Sandbox::builder("example-stream").ephemeral(true).create().await?;
    let mut exec = sandbox
        .exec_stream_with("sh", |command| {
            command.args(["-c", CONVERSATION]).timeout(Duration::from_secs(10))
        })
        .await?;

    let input = exec.input();
    tokio::spawn(async move {
        for word in ["one", "two", "three"] {
            input.write(format!("{word}\n")).await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        input.close().await
    });

    while let Some(event) = exec.next().await? {
        match event {
            ExecEvent::Started { id, pid } => println!("Exec {id} runs as pid {pid}"),
            ExecEvent::Stdout(bytes) => print!("stdout: {}", String::from_utf8_lossy(&bytes)),
            ExecEvent::Stderr(bytes) => print!("stderr: {}", String::from_utf8_lossy(&bytes)),
            ExecEvent::Exited(exit) => println!("exited with {}", exit.status()),
        }
    }
    sandbox.stop_and_wait().await.map(drop)
}
