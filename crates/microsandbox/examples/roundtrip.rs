//! What an Exec costs from the library, output captured, against starting the same program on
//! the host. Both alternate, so that a noisy machine disturbs both alike.
//!
//! `cargo run --release -p microsandbox --example roundtrip [ROUNDS]`

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use microsandbox::{Result, Sandbox};
use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WARM_UP: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(1000), |text| text.parse())?;
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    single.block_on(compare("current_thread", rounds))?;
    let multi = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    multi.block_on(compare("multi_thread", rounds))
}

async fn compare(runtime: &str, rounds: usize) -> Result<(), Box<dyn Error>> {
    let program = std::env::temp_dir().join(format!("static-true-{}", std::process::id()));
    fs::write(&program, smallest_program())?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let name = format!("roundtrip-{}", std::process::id());
    let sandbox = Sandbox::builder(&name).ephemeral(true).create().await?;
    sandbox.fs().copy_from_host(&program, "/usr/local/bin/static-true").await?;

    let (mut inside, mut bare, mut captured) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        let start = Instant::now();
        let output = sandbox.exec("/usr/local/bin/static-true", [""; 0]).await?;
        let library = start.elapsed();
        assert!(output.success(), "{output:?}");

        let start = Instant::now();
        let status = Command::new(&program).stdin(Stdio::null()).status()?;
        let host = start.elapsed();
        assert!(status.success(), "{status}");

        let start = Instant::now();
        let output = Command::new(&program).output()?;
        let host_captured = start.elapsed();
        assert!(output.status.success());

        if round >= WARM_UP {
            inside.push(library);
            bare.push(host);
            captured.push(host_captured);
        }
    }
    sandbox.kill().await?;
    fs::remove_file(&program)?;

    let (inside, bare, captured) = (median(inside), median(bare), median(captured));
    let ratio = |below: Duration| inside.as_secs_f64() / below.as_secs_f64();
    println!("{runtime}: median of {rounds}");
    println!("  Exec from the library, output captured  {inside:>10.1?}");
    println!("  posix_spawn and wait on the host        {bare:>10.1?}  {:.2}×", ratio(bare));
    println!(
        "  the same, output captured               {captured:>10.1?}  {:.2}×",
        ratio(captured)
    );
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A static executable that exits with zero and does nothing else.
fn smallest_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let (machine, code): (u16, &[u8]) = if cfg!(target_arch = "aarch64") {
        // mov x0, 0; mov x8, 93; svc 0
        (183, &[0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4])
    } else {
        // xor edi, edi; mov eax, 60; syscall
        (62, &[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 5])
    };
    let length = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([2u16, machine].iter().flat_map(|half| half.to_le_bytes()));
    file.extend(1u32.to_le_bytes());
    file.extend([BASE + HEADERS, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    // One segment, readable and executable, that is the whole file.
    file.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    file.extend([0, BASE, BASE, length, length, 0x1000].iter().flat_map(|word| word.to_le_bytes()));
    file.extend_from_slice(code);
    file
}
