//! TCP, UDP and ICMP echo: long and short flows, many flows, and their limits.

use crate::testnet::{TestNet, WEB};
use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;

#[test]
fn a_half_closed_stream_still_brings_the_answer() {
    for user in TestNet::users() {
        let script = "cd /world; for host in 203.0.113.10 2001:db8::10; do \
                      /usr/bin/python3 streams.py half $host 7001 1000000; \
                      /usr/bin/python3 streams.py echo $host 7000 3000000; \
                      /usr/bin/python3 streams.py half $host 7001 0; done";
        // 1,000,000 times `x`, and nothing.
        let sums = [
            "1000000 6e91b4d18d5a6f5fdbc3a4e5ba7dbbb6b5aa19ae6b3e0f7d1d5b2c4ad8b0ee6b",
            "0 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ];
        let gave = user.inside(&[], script).ok();
        let lines: Vec<&str> = gave.stdout.lines().collect();
        for half in lines.chunks(3) {
            assert_eq!(half[0].split(' ').next(), sums[0].split(' ').next(), "{gave:#?}");
            assert_eq!(half[1..], ["same", sums[1]], "{gave:#?}");
        }
        assert_eq!(lines.len(), 6, "{gave:#?}");
    }
}

#[test]
fn servers_may_speak_first_and_refuse() {
    for user in TestNet::users() {
        let script = "cd /world; /usr/bin/python3 streams.py speaks 203.0.113.10 7002; \
                      /usr/bin/python3 streams.py speaks six.example.com 7002; \
                      /usr/bin/python3 streams.py abrupt 203.0.113.10 7000";
        let spoken = "hello, I speak first\nme too\n";
        assert_eq!(user.inside(&[], script).ok().stdout, format!("{spoken}{spoken}fine\n"));
        // No server listens there: the RST is the host's and comes at once.
        let probes = ["tcp 203.0.113.10 9", "tcp 2001:db8::10 9", "udp 203.0.113.10 9"];
        assert_eq!(user.probe(&[], &probes), ["refused"; 3]);
    }
}

const BULK: usize = 200 << 20;

/// 200 MB each way, and the same at the other end.
#[test]
fn large_transfers_arrive_whole() {
    let Some(net) = TestNet::get() else { return };
    let path = net.file("www/bulk");
    let mut random = File::open("/dev/urandom").unwrap().take(1 << 20);
    let mut block = Vec::new();
    random.read_to_end(&mut block).unwrap();
    let mut file = File::create(&path).unwrap();
    for at in 0..BULK >> 20 {
        // No two blocks alike, so that a lost or doubled one shows.
        block[..8].copy_from_slice(&at.to_le_bytes());
        file.write_all(&block).unwrap();
    }
    let sum = msb_e2e::gives(Command::new("sha256sum").arg(&path)).line();
    let sum = sum.split(' ').next().unwrap();
    for user in TestNet::users() {
        let script = "set -o pipefail; curl -sS http://web.example.com/bulk -o /tmp/bulk && \
                      sha256sum /tmp/bulk | cut -d' ' -f1 && \
                      curl -sS -T /tmp/bulk http://api.example.com/upload && \
                      curl -sS --cacert /world/ca.pem https://web.example.com/bulk | \
                      sha256sum | cut -d' ' -f1";
        let gave = user.inside(&[], script.trim_start_matches("set -o pipefail; ")).ok();
        assert_eq!(gave.stdout, format!("{sum}\n{BULK} {sum}\n{sum}\n"));
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn hundreds_of_short_streams_all_work() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let script = "/usr/bin/python3 /world/streams.py many web.example.com 7000 500";
        assert_eq!(user.within("net", script).line(), "500");
        let table = user.json(["net", "--json", "net"]);
        assert!(table["flows"].as_array().unwrap().len() < 100, "{table}");
    }
}

/// Streams and datagrams that are over cost nothing.
#[test]
fn thousands_of_flows_leave_no_memory_behind() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let processes = user.msb.processes("net");
        let gateway = processes.iter().find(|process| process.name == "msb-gateway").unwrap();
        let memory = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid)).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let script = "/usr/bin/python3 /world/streams.py many web.example.com 7000 1500; \
                      /usr/bin/python3 /world/streams.py datagrams web.example.com 7000 500";
        let mut after = Vec::new();
        for _ in 0..3 {
            assert_eq!(user.within("net", script).line(), "1500\n500");
            after.push(memory());
        }
        // The first round takes what all of them need at once.
        assert!(after[2] < after[0] + (4 << 10), "{after:?} KiB");
    }
}

#[test]
fn a_stream_may_be_silent_for_long() {
    for user in TestNet::users() {
        let script = "/usr/bin/python3 /world/streams.py idle 203.0.113.10 7000 10";
        assert_eq!(user.inside(&[], script).line(), "b");
    }
}

#[test]
fn datagrams_come_back_and_refusals_too() {
    for user in TestNet::users() {
        let probes = [
            "udp 203.0.113.10 7000",
            "udp web.example.com 7000",
            "udp 2001:db8::10 7000",
            "udp 203.0.113.10 443",
            "udp 10.9.9.10 7000",
        ];
        let expected = ["open", "open", "open", "refused", "refused"];
        assert_eq!(user.probe(&[], &probes), expected);
        // As large as datagrams get, and many of one socket.
        let script = "/usr/bin/python3 - <<'PYTHON'
import os, socket
for host, family in [('203.0.113.10', socket.AF_INET), ('2001:db8::10', socket.AF_INET6)]:
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.settimeout(60)
        one.connect((host, 7000))
        for size in [0, 1, 1400, 1472, 1473, 9000, 60000]:
            sent = os.urandom(size)
            one.send(sent)
            print(size, one.recv(65536) == sent)
PYTHON";
        let gave = user.inside(&[], script).ok();
        assert!(!gave.stdout.contains("False"), "{gave:#?}");
        assert_eq!(gave.stdout.lines().count(), 14, "{gave:#?}");
    }
}

#[test]
fn allowed_hosts_can_be_pinged() {
    for user in TestNet::users() {
        for (target, answers) in [
            (WEB, true),
            ("web.example.com", true),
            ("2001:db8::10", true),
            ("10.9.9.10", false),
            ("169.254.169.254", false),
            ("198.51.100.2", false),
        ] {
            let gave = user.inside(&[], &format!("ping -n -c 2 -i 0.2 -W 20 {target}"));
            assert_eq!(gave.stdout.contains("2 received"), answers, "{target}: {gave:#?}");
        }
        let only_tcp = ["--net-default", "deny", "--net-rule", "allow@203.0.113.10:tcp"];
        let gave = user.inside(&only_tcp, &format!("ping -n -c 1 -W 20 {WEB}"));
        assert!(gave.stdout.contains(" 0 received"), "{gave:#?}");
        let only_ping = ["--net-default", "deny", "--net-rule", "allow@203.0.113.10:icmp"];
        let gave = user.inside(&only_ping, &format!("ping -n -c 1 -W 20 {WEB}"));
        assert!(gave.stdout.contains("1 received"), "{gave:#?}");
    }
}

/// Attack 35: what is neither TCP, UDP nor an echo stays inside.
#[test]
fn raw_packets_of_other_kinds_stay_inside() {
    for user in TestNet::users() {
        let script = "/usr/bin/python3 - <<'PYTHON'
import socket
for protocol in [1, 2, 4, 47, 50, 89, 132]:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol) as one:
            # Of ICMP a timestamp request, which is no echo.
            one.sendto(b'\\x0d\\x00\\xf2\\xff' + bytes(16), ('203.0.113.10', 0))
            print(protocol, 'sent')
    except OSError as error:
        print(protocol, error.strerror)
PYTHON";
        let mut listener = user.net.outside("/usr/bin/python3");
        let listens = "import socket, sys
listeners = []
for protocol in [1, 2, 4, 47, 50, 89, 132]:
    one = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
    one.setblocking(False)
    listeners.append((protocol, one))
print('listens', flush=True)
sys.stdin.read()
for protocol, one in listeners:
    while True:
        try:
            packet = one.recv(65536)
        except BlockingIOError:
            break
        # Echoes, and what the cable itself says, are none of them.
        if protocol != 1 or packet[20] == 13:
            print('got', protocol, flush=True)
";
        listener.args(["-c", listens]).stdin(std::process::Stdio::piped());
        let mut listener = listener.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut out = listener.stdout.take().unwrap();
        let mut line = [0; 8];
        out.read_exact(&mut line).unwrap();
        user.inside(&["--net", "all"], script);
        drop(listener.stdin.take());
        let mut heard = String::new();
        out.read_to_string(&mut heard).unwrap();
        listener.wait().unwrap();
        assert_eq!(heard, "");
    }
}

#[test]
fn concurrent_streams_are_limited() {
    for user in TestNet::users() {
        user.lasting("net", &["--net-max-connections", "8"]);
        let script = "/usr/bin/python3 /world/streams.py hold 203.0.113.10 7000 12";
        assert_eq!(user.within("net", script).line(), "8 open, 4 refused\nagain");
        let denied = user.told("net", "--net-max-connections");
        assert_eq!(denied[0]["decided"]["decision"], "deny");
    }
}

/// Measured at the other end: not faster than asked for, by a factor that no clock hides.
#[test]
fn egress_bandwidth_is_limited() {
    for user in TestNet::users() {
        // 3 MB at 1 MB a second, of which a second's worth may go at once.
        let script = "/usr/bin/python3 - <<'PYTHON'
import socket, time
with socket.create_connection(('203.0.113.10', 7001), timeout=60) as one:
    begun = time.monotonic()
    one.sendall(b'x' * 3_000_000)
    one.shutdown(socket.SHUT_WR)
    print(one.recv(100).decode().split()[0], time.monotonic() - begun >= 1)
PYTHON";
        let gave = user.inside(&["--net-egress-rate", "1M"], script).line();
        assert_eq!(gave, "3000000 True");
        // What comes in is not meant.
        let script = "curl -sS http://web.example.com/";
        let gave = user.inside(&["--net-egress-rate", "10K"], script).line();
        assert_eq!(gave, "hello from the web");
    }
}
