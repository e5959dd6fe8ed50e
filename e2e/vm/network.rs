//! The network of a microVM: the same gateway, behind virtio-net.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use msb_e2e::eventually;

use crate::lab;

/// A server on this machine's loopback that says hello to everybody. Returns its port.
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
fn a_machine_reaches_whom_its_rules_allow_and_nobody_else() {
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
