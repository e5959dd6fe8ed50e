//! The half of a test that runs inside: what a shell cannot do.
//!
//! Each verb prints one line of what it found; a test compares it whole.

#![expect(
    unsafe_code,
    clippy::print_stdout,
    reason = "std has neither memory maps nor vsock, and what it finds it prints"
)]

use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, hint, ptr, thread};

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = match words.as_slice() {
        ["map", path] => map(path),
        ["eat", mebibytes] => eat(number(mebibytes)),
        ["forks", wanted] => Ok(forks(number(wanted))),
        ["files"] => Ok(files()),
        ["vsock", cid, port] => Ok(vsock(number(cid), number(port)).map_or_else(
            |error| format!("refused: {:?}", error.kind()),
            |_| "connected".to_owned(),
        )),
        ["ports", from, to] => Ok(ports(number(from), number(to))),
        ["flood", port, times] => Ok(flood(number(port), number(times))),
        ["race", dir, out, rounds] => race(Path::new(dir), out, number(rounds)),
        _ => Err(io::Error::other("no such verb")),
    };
    match said {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> u32 {
    word.parse().unwrap_or(0)
}

/// A page of a file through a shared map: what is written there is in the file, and the other way.
fn map(path: &str) -> io::Result<String> {
    const SIZE: usize = 8192;
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(SIZE as u64)?;
    // SAFETY: a new map of a file that is open, at an address the kernel chooses.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the map is SIZE bytes, readable and writable, and nobody else knows it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), SIZE) };
    bytes[4096..4101].copy_from_slice(b"typed");
    // SAFETY: the range is the map's own.
    if unsafe { libc::msync(at.cast::<c_void>(), SIZE, libc::MS_SYNC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut read = [0; 5];
    file.read_exact_at(&mut read, 4096)?;
    file.write_all_at(b"written", 0)?;
    file.sync_all()?;
    let mapped = String::from_utf8_lossy(&bytes[..7]).into_owned();
    Ok(format!("read {} mapped {mapped}", String::from_utf8_lossy(&read)))
}

/// Takes memory and touches every page of it.
fn eat(mebibytes: u32) -> io::Result<String> {
    let mut taken = Vec::new();
    for _ in 0..mebibytes {
        taken.push(vec![7u8; 1 << 20]);
        hint::black_box(&taken);
    }
    Ok(format!("ate {}", taken.len()))
}

/// Starts processes until it may start no more.
fn forks(wanted: u32) -> String {
    let mut made = Vec::new();
    for _ in 0..wanted {
        match Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn() {
            Ok(child) => made.push(child),
            Err(error) => {
                let count = made.len();
                made.iter_mut().for_each(|child| drop(child.kill()));
                return format!("{count} then {:?}", error.kind());
            }
        }
    }
    made.iter_mut().for_each(|child| drop(child.kill()));
    format!("all {wanted}")
}

/// Opens files until it may open no more.
fn files() -> String {
    let mut open = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        open.push(file);
    }
    open.len().to_string()
}

fn vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes three numbers and gives a descriptor or an error.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all its fields are numbers, for which zero is a value.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    let size = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the kernel reads an address of the size that is given.
    let made = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size) };
    if made < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// The ports of the host that can be connected to, of those in a range.
fn ports(from: u32, to: u32) -> String {
    let open = (from..to).filter(|&port| vsock(2, port).is_ok());
    format!("open: {:?}", open.collect::<Vec<_>>())
}

/// Connects again and again, keeps the connections, and says nonsense on each.
fn flood(port: u32, times: u32) -> String {
    let mut open = Vec::new();
    let mut made = 0u32;
    for turn in 0..times {
        let Ok(fd) = vsock(2, port) else { continue };
        made += 1;
        let mut stream = File::from(fd);
        let nonsense: &[u8] = match turn % 4 {
            0 => &[0xff; 64],
            1 => &[0xff, 0xff, 0xff, 0xff, 1],
            2 => &[4, 0, 0, 0, 1],
            _ => &[],
        };
        let _ = stream.write_all(nonsense);
        open.push(stream);
    }
    drop(open);
    format!("made {}", if made > 0 { "some" } else { "none" })
}

/// A name of a shared directory changes between a directory and a link that leads out, while
/// another thread writes below it.
fn race(dir: &Path, out: &str, rounds: u32) -> io::Result<String> {
    let (name, real, link) = (dir.join("name"), dir.join("real"), dir.join("link"));
    fs::create_dir_all(&real)?;
    symlink(out, &link)?;
    fs::rename(&real, &name)?;
    let below = name.join("canary");
    let writer = thread::spawn(move || {
        for _ in 0..rounds {
            let _ = fs::write(&below, "intruder");
            let _ = fs::read(&below);
            let _ = fs::remove_file(&below);
        }
    });
    while !writer.is_finished() {
        let _ = fs::rename(&name, &real);
        let _ = fs::rename(&link, &name);
        let _ = fs::rename(&name, &link);
        let _ = fs::rename(&real, &name);
    }
    Ok("raced".to_owned())
}
