//! `--idle-pause`: an idle sandbox is paused, and the next request or packet wakes it.

use msb_e2e::{Msb, ends_within, eventually};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

fn is_asleep(msb: &Msb) -> bool {
    msb.json(["inspect", "box"])["worker"]["asleep"] == true
}

/// What it was last woken by.
fn woken(msb: &Msb) -> String {
    let said = msb.words("events box --json").ok().stdout;
    let resumed = said.lines().rev().find(|line| line.contains("\"resumed\"")).unwrap_or_default();
    let event: serde_json::Value = serde_json::from_str(resumed).unwrap_or_default();
    event["by"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn an_idle_sandbox_is_paused_and_wakes_for_the_next_request() {
    for msb in Msb::each() {
        msb.words("create -q -n box --idle-pause 1s host").ok();
        let cat = msb.run(["exec", "-d", "box", "--", "sleep", "1000"]).line();
        eventually("it falls asleep", || is_asleep(&msb));
        assert_eq!(msb.json(["ls", "--json"])[0]["status"], "paused");
        assert_eq!(msb.run(["exec", "box", "--", "echo", "up"]).line(), "up");
        assert_eq!(woken(&msb), "exec");
        eventually("it falls asleep again", || is_asleep(&msb));
        msb.file("x", "x");
        msb.words("cp x box:/root/x").ok();
        assert_eq!(woken(&msb), "files");
        eventually("and again", || is_asleep(&msb));
        msb.run(["kill", "box", &cat]).ok();
        assert_eq!(woken(&msb), "exec");
        // A sandbox that `msb pause` paused does not wake for an exec.
        eventually("and again", || is_asleep(&msb));
        msb.words("pause box").ok();
        let gave = msb.words("exec box -- true");
        assert!(gave.stderr.contains("msb resume box"), "{gave:#?}");
        msb.words("resume box").ok();
        msb.words("exec box -- true").ok();
        eventually("and again", || is_asleep(&msb));
        msb.words("stop -t 5s box").ok();
    }
}

#[test]
fn a_command_that_computes_or_writes_is_not_paused() {
    for msb in Msb::each() {
        msb.words("create -q -n box --idle-pause 2s host").ok();
        let computes = "n=0; while [ $n -lt 100000000 ]; do n=$((n+1)); done";
        let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", computes]).line();
        std::thread::sleep(Duration::from_secs(5));
        assert!(!is_asleep(&msb));
        msb.run(["kill", "box", &id, "-s", "KILL"]).ok();
        let talks = "while :; do echo; sleep 0.3; done";
        let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", talks]).line();
        std::thread::sleep(Duration::from_secs(5));
        assert!(!is_asleep(&msb));
        msb.run(["kill", "box", &id, "-s", "KILL"]).ok();
        eventually("it falls asleep", || is_asleep(&msb));
        msb.words("modify box --idle-pause 0").ok();
        assert!(!is_asleep(&msb));
    }
}

#[test]
fn a_caller_that_waits_for_a_command_gets_its_exit() {
    for msb in Msb::each() {
        msb.words("create -q -n box --idle-pause 1s host").ok();
        let child = msb.spawn(["exec", "box", "--", "sleep", "3"]);
        ends_within(child, Duration::from_secs(20)).ok();
        msb.words("exec -d box -- sleep 4").ok();
        eventually("it falls asleep", || is_asleep(&msb));
        msb.words("drain box").ok();
        ends_within(msb.spawn(["wait", "box"]), Duration::from_secs(20)).ok();
    }
}

#[test]
fn health_checks_neither_keep_it_awake_nor_fail_while_it_is_paused() {
    for msb in Msb::each() {
        // A check that computes, for more than the clock would let pass.
        let check = "n=0; while [ $n -lt 30000 ]; do n=$((n+1)); done";
        let words = "create -q -n box --restart always --idle-pause 2s --health-interval 200ms \
                     --health-retries 1 host --health";
        let mut words: Vec<&str> = words.split_whitespace().collect();
        words.extend([check, "--", "sleep", "1000"]);
        msb.run(words).ok();
        eventually("it falls asleep", || is_asleep(&msb));
        std::thread::sleep(Duration::from_secs(2));
        msb.words("exec box -- true").ok();
        eventually("it is well", || msb.json(["ls", "--json"])[0]["health"] == "healthy");
        assert!(!msb.words("events box --json").ok().stdout.contains("unhealthy"));
    }
}

#[test]
fn a_freezer_that_fails_costs_no_command() {
    let msb = Msb::new();
    msb.words("create -q -n box --idle-pause 1s host").ok();
    let limits = &msb.json(["inspect", "box"])["plan"]["limits"];
    let Some(root) = limits["cgroup"]["controllers"]["freezer"].as_str() else {
        return msb_e2e::skip("there is no freezer of cgroup v1");
    };
    let owner = limits["cgroup_owner"].as_str().expect("an owner");
    let switch = format!("{root}/msb-{owner}-box/inside/freezer.state");
    let ends = || ends_within(msb.spawn(["exec", "box", "--", "true"]), Duration::from_secs(10));
    // It cannot fall asleep.
    let broken = UnwritableFile::switch(&switch);
    std::thread::sleep(Duration::from_secs(3));
    ends().ok();
    drop(broken);
    eventually("it falls asleep", || is_asleep(&msb));
    // It cannot wake.
    let broken = UnwritableFile::switch(&switch);
    let gave = ends();
    assert_ne!(gave.code, 0, "{gave:#?}");
    drop(broken);
    ends().ok();
}

/// A file of the kernel's that cannot be written, until this is dropped.
struct UnwritableFile<'a>(&'a str);

impl<'a> UnwritableFile<'a> {
    fn switch(path: &'a str) -> Self {
        let mounted = Command::new("mount").args(["--bind", "/dev/full", path]).status();
        assert!(mounted.is_ok_and(|status| status.success()));
        Self(path)
    }
}

impl Drop for UnwritableFile<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// Answers each connection and each datagram with what it was sent.
const ECHO: &str = "
import socket, threading
tcp = socket.create_server(('0.0.0.0', 80))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('0.0.0.0', 80))
def datagrams():
    while True:
        data, peer = udp.recvfrom(100)
        udp.sendto(data, peer)
threading.Thread(target=datagrams, daemon=True).start()
print('up', flush=True)
while True:
    peer, _ = tcp.accept()
    peer.sendall(peer.recv(100))
    peer.close()
";

#[test]
fn traffic_to_a_published_port_wakes_it_without_a_lost_byte() {
    let msb = Msb::new();
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return msb_e2e::skip("there is no python3");
    }
    msb.words("create -q -n box --idle-pause 1s -p 127.0.0.1:0:80 -p 127.0.0.1:0:80/udp host").ok();
    msb.run(["exec", "-d", "box", "--", "python3", "-c", ECHO]).ok();
    eventually("it serves", || msb.words("logs box").stdout == "up\n");
    let ports = msb.json(["port", "ls", "box", "--json"]);
    let port = |end: &str| -> u16 {
        let mut list = ports.as_array().expect("a list").iter().filter_map(|it| it.as_str());
        let found = list.find_map(|port| port.strip_suffix(end)).expect("a port");
        found.rsplit_once(':').expect("an address").1.parse().expect("a number")
    };
    let (tcp, udp) = (port(":80"), port(":80/udp"));
    eventually("it falls asleep", || is_asleep(&msb));
    let mut stream = TcpStream::connect(("127.0.0.1", tcp)).unwrap();
    stream.write_all(b"hello").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "hello");
    eventually("that is told", || woken(&msb) == "traffic");
    eventually("it falls asleep again", || is_asleep(&msb));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.send_to(b"hello", ("127.0.0.1", udp)).unwrap();
    let mut buffer = [0; 100];
    let n = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"hello");
    eventually("that is told", || woken(&msb) == "traffic");
    // An explicit pause is not undone by traffic.
    msb.words("pause box").ok();
    let mut stream = TcpStream::connect(("127.0.0.1", tcp)).unwrap();
    stream.write_all(b"late").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(msb.json(["ls", "--json"])[0]["status"], "paused");
    msb.words("resume box").ok();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "late");
}
