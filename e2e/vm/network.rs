//! The network of a microVM: the same gateway, behind virtio-net.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use msb_e2e::eventually;

use crate::lab;

/// A server on this machine's loopback that says hello to every client. Returns its port.
fn hello() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is up");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello");
        }
    });
    port
}

/// Attacks 29 and 30.
#[test]
fn a_machine_reaches_only_what_its_rules_allow() {
    for msb in lab::each() {
        let port = hello();
        let get = |address: &str| format!("wget -q -O - http://{address}:{port}/ || echo refused");
        let script = [get("198.18.0.1"), get("10.9.9.9"), get("169.254.169.254")].join("; ");
        let gave = msb.shell_with(["--net", "host", "-m", "128M"], &script);
        assert!(gave.stdout.starts_with("hello"), "{gave:#?}");
        let gave = msb.shell_with(["--net", "public", "-m", "128M"], &script);
        assert_eq!(gave.stdout, "refused\nrefused\nrefused\n", "{gave:#?}");
        let gave = msb.shell_with(["--no-net", "-m", "128M"], "ls /sys/class/net");
        assert_eq!(gave.stdout, "lo\n", "{gave:#?}");
    }
}

#[test]
fn a_published_port_leads_into_a_machine_and_is_recorded() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("web", ["--net", "public", "-p", "80", "-m", "128M"]);
    let serve = "echo inside > /index.html; exec httpd -f -p 80 -h /";
    msb.run(["exec", "-d", "web", "--", "sh", "-c", serve]).ok();
    let listed = msb.words("port ls web").line();
    let address = listed.strip_suffix(":80").unwrap().to_owned();
    let fetch = || -> Option<String> {
        let mut stream = TcpStream::connect(&address).ok()?;
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.ends_with("inside\n").then_some(answer)
    };
    eventually("it answers", || fetch().is_some());
    let events = msb.words("events web --net").ok();
    assert!(events.stdout.contains("allow  tcp  from 127.0.0.1 port 80"), "{events:#?}");
    msb.words("rm -f web").ok();
    assert!(TcpStream::connect(&address).is_err());
}

/// Attack 38.
#[test]
fn a_secret_is_a_placeholder_inside_a_machine_that_trusts_the_gateway() {
    let Some(msb) = lab::user() else { return };
    let flags = ["run", "-m", "128M", "--secret", "API_KEY@api.example.com"];
    let rootfs = msb.rootfs().display().to_string();
    let look = "env; cat /proc/*/environ 2>/dev/null; cat /.msb/trusted.pem";
    let mut command = msb.command(flags);
    command.args([&rootfs, "--", "sh", "-c", look]).env("API_KEY", "canary-of-a-secret");
    let gave = msb_e2e::gives(&mut command).ok();
    assert!(gave.stdout.contains("API_KEY=msb-secret-"), "{gave:#?}");
    assert!(gave.stdout.contains("SSL_CERT_FILE=/.msb/trusted.pem"), "{gave:#?}");
    assert!(gave.stdout.contains("BEGIN CERTIFICATE"), "{gave:#?}");
    assert!(!gave.stdout.contains("canary-of-a-secret"), "{gave:#?}");
}

/// Attack 35, with frames that no kernel sends: only datagrams of its own, to allowed hosts.
#[test]
fn forged_frames_of_a_machine_reach_no_host() {
    let Some(msb) = lab::user() else { return };
    lab::with_inside(&msb);
    let port = hello();
    let closed = UdpSocket::bind("127.0.0.1:0").expect("loopback is up");
    let canary = closed.local_addr().expect("it is bound").port();
    let rule = format!("allow@host:tcp:{port}");
    msb.lasting("box", ["--net-default", "deny", "--net-rule", &rule, "-m", "128M"]);
    let sent = msb.words(&format!("exec box -- inside frames 198.18.0.1 {canary}"));
    assert_eq!(sent.line(), "sent");
    let fetch = format!("wget -q -O - http://198.18.0.1:{port}/");
    assert_eq!(msb.shell_in("box", &fetch).line(), "hello", "it goes on");
    closed.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let mut heard = [0; 16];
    assert!(closed.recv(&mut heard).is_err(), "{heard:?}");
}

#[test]
fn long_datagrams_and_streams_of_a_machine_arrive_whole() {
    let Some(msb) = lab::user() else { return };
    lab::with_inside(&msb);
    let echo = UdpSocket::bind("127.0.0.1:0").expect("loopback is up");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is up");
    let datagrams = echo.local_addr().expect("it is bound").port();
    let streams = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok((length, whence)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..length], whence);
        }
    });
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let length = std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or(0);
            let _ = stream.write_all(&length.to_le_bytes());
            let _ = std::io::copy(&mut std::io::repeat(7).take(length), &mut stream);
        }
    });
    msb.lasting("box", ["--net", "host", "-m", "128M"]);
    for length in [1, 1473, 9000, 65000] {
        let gave =
            msb.words(&format!("exec box -- inside datagram 198.18.0.1:{datagrams} {length}"));
        assert_eq!(gave.line(), "same", "{length}");
    }
    let gave = msb.words(&format!("exec box -- inside stream 198.18.0.1:{streams} 16")).line();
    assert!(gave.starts_with("16777216 16777216 "), "{gave}");
}
