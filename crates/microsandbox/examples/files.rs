//! Files in and out of a sandbox, whole and in pieces.
//!
//! `cargo run -p microsandbox --example files`

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use microsandbox::{Result, Sandbox};
use tokio::io::AsyncWriteExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sandbox = Sandbox::builder("example-files").ephemeral(true).create().await?;
    let fs = sandbox.fs();

    fs.write("/work/poem.txt", "so much depends\nupon\n").await?;
    fs.append("/work/poem.txt", "a red wheel\nbarrow\n").await?;
    let sorted = sandbox.exec("sort", ["/work/poem.txt"]).await?;
    print!("{}", sorted.stdout()?);

    // A large file goes through in pieces and is never whole in memory.
    let mut writer = fs.writer("/work/large").await?;
    for _ in 0..64 {
        writer.write_all(&[b'x'; 1 << 20]).await?;
    }
    println!("{} bytes written", writer.finish().await?);
    let mut reader = fs.reader("/work/large").await?;
    let read = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await?;
    println!("{read} bytes read");

    for entry in fs.list("/work").await? {
        println!("{:>10}  {}", entry.size, entry.name.display());
    }
    let out = std::env::temp_dir().join(format!("example-files-{}", std::process::id()));
    let copied = fs.copy_to_host("/work", &out).await?;
    println!("{} entries copied to {}", copied.entries, out.display());
    std::fs::remove_dir_all(&out)?;
    sandbox.stop_and_wait().await?;
    Ok(())
}
