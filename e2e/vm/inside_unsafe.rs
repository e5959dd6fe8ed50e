//! The half of a test that runs inside: what a shell cannot do.
//!
//! Each verb prints one line of what it found; a test compares it whole.

#![expect(
    unsafe_code,
    clippy::print_stdout,
    reason = "std has neither memory maps nor vsock, and what it finds it prints"
)]

use std::ffi::{CString, c_void};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
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
        ["datagram", to, length] => datagram(to, number(length)),
        ["stream", to, mebibytes] => stream(to, number(mebibytes)),
        ["frames", target, port] => frames(target, number(port) as u16),
        ["xattr", path, name] => xattr(path, name, None),
        ["xattr", path, name, value] => xattr(path, name, Some(value)),
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

/// An extended attribute: set, if there is a value, and then read.
fn xattr(path: &str, name: &str, value: Option<&str>) -> io::Result<String> {
    let (path, name) = (CString::new(path)?, CString::new(name)?);
    if let Some(value) = value {
        // SAFETY: the strings end in zero, and the value is as long as it is said to be.
        let set = unsafe {
            libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let mut read = [0u8; 256];
    // SAFETY: as above; the kernel writes at most as much as there is room.
    let length = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), read.as_mut_ptr().cast(), read.len())
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok(String::from_utf8_lossy(&read[..length]).into_owned())
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
    // SAFETY: the map is SIZE bytes, readable and writable, and nothing else refers to it.
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
    // SAFETY: just made, and nothing else refers to it.
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

/// Sends a datagram and compares what comes back.
fn datagram(to: &str, length: u32) -> io::Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    socket.connect(to)?;
    let sent: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
    socket.send(&sent)?;
    let mut got = vec![0; 1 << 16];
    let length = socket.recv(&mut got)?;
    Ok(if got[..length] == sent { "same".to_owned() } else { format!("{length} others") })
}

/// Sends a stream and hears how long it was; then hears one as long.
fn stream(to: &str, mebibytes: u32) -> io::Result<String> {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to)?;
    let block = vec![7; 1 << 20];
    for _ in 0..mebibytes {
        stream.write_all(&block)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut told = [0; 8];
    stream.read_exact(&mut told)?;
    let out = began.elapsed();
    let heard = io::copy(&mut stream, &mut io::sink())?;
    let (out, all) = (out.as_millis(), began.elapsed().as_millis());
    Ok(format!("{} {heard} out {out} ms, in {} ms", u64::from_le_bytes(told), all - out))
}

/// Frames of others, in pieces, in wrappings and of nothing at all, each of them with a datagram
/// for a port that is not allowed.
fn frames(target: &str, port: u16) -> io::Result<String> {
    let target: Ipv4Addr = target.parse().map_err(io::Error::other)?;
    let datagram = {
        let mut datagram = [40000u16.to_be_bytes(), port.to_be_bytes()].concat();
        datagram.extend([0, 16, 0, 0]);
        datagram.extend(b"stranger");
        datagram
    };
    let packet = |source: [u8; 4], piece: u16, head: u8| {
        let mut packet = vec![0x40 | head, 0, 0, 0, 0, 1];
        packet.extend(piece.to_be_bytes());
        packet.extend([64, 17, 0, 0]);
        packet.extend(source);
        packet.extend(target.octets());
        packet.resize(usize::from(head.max(5)) * 4, 1);
        packet.extend(&datagram);
        let length = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&length);
        packet
    };
    let own = [198, 18, 0, 2];
    let mut packets = Vec::new();
    for source in [own, [127, 0, 0, 1], [198, 18, 0, 1], [10, 0, 0, 1], [0; 4], [255; 4]] {
        for piece in [0, 0x2000, 0x2001, 1, 0x1fff, 0x4000] {
            packets.extend((0..16).map(|head| packet(source, piece, head)));
        }
    }
    packets.extend([Vec::new(), vec![0x45], vec![0xff; 1400], vec![0; 60000]]);
    let socket = raw_socket()?;
    let mut sent = 0;
    for packet in packets {
        for kind in [&[8, 0][..], &[0x86, 0xdd], &[0x81, 0, 0, 1, 8, 0], &[8, 6], &[0, 4]] {
            for from in [[2, 0x6d, 0x73, 0x62, 0, 2], [0xff; 6], [2, 0x6d, 0x73, 0x62, 0, 1]] {
                let mut frame = vec![2, 0x6d, 0x73, 0x62, 0, 1];
                frame.extend(from);
                frame.extend(kind);
                frame.extend(&packet);
                // SAFETY: the kernel reads the bytes of the frame.
                let gone = unsafe {
                    libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0)
                };
                sent += i32::from(gone > 0);
            }
        }
    }
    Ok(if sent > 8000 { "sent".to_owned() } else { format!("sent {sent}") })
}

/// A socket for frames of the device.
fn raw_socket() -> io::Result<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: takes three numbers and gives a descriptor or an error.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(all)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nothing else refers to it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: reads a name that ends in a zero.
    let index = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
    // SAFETY: all its fields are numbers, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads an address of the size that is given.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}
