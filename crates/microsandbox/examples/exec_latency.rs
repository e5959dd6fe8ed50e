//! How long one Exec takes from the library, for `cargo xtask bench`.
//!
//! `exec_latency ROOTFS` makes a sandbox from the directory; for each line on stdin it runs
//! `/bin/true` in it once, output captured, and prints the nanoseconds that took.

#![expect(clippy::print_stdout, reason = "the bench reads what it prints")]

use microsandbox::{Isolation, Sandbox};
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let rootfs = std::env::args().nth(1).ok_or("no root filesystem given")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(answer(&rootfs))
}

async fn answer(rootfs: &str) -> Result<(), Box<dyn Error>> {
    let name = format!("exec-latency-{}", std::process::id());
    let sandbox = Sandbox::builder(name)
        .image(rootfs)
        .isolation(Isolation::Process)
        .ephemeral(true)
        .create()
        .await?;
    // Blocks the only thread between two Execs: nothing else is to happen then.
    for line in io::stdin().lock().lines() {
        line?;
        let start = Instant::now();
        let output = sandbox.exec("/bin/true", [""; 0]).await?;
        let took = start.elapsed();
        if !output.success() {
            return Err("`/bin/true` failed".into());
        }
        println!("{}", took.as_nanos());
        io::stdout().flush()?;
    }
    sandbox.kill().await?;
    Ok(())
}
