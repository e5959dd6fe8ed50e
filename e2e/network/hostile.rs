//! Hostile sandboxes and servers: the gateway goes on, and leaks nothing.

use crate::testnet::{TestNet, TestUser};
use msb_e2e::{Process, skip};
use std::io::{BufRead, BufReader};

fn gateway(user: &TestUser, name: &str) -> Process {
    let processes = user.msb.processes(name);
    let found = processes.into_iter().find(|process| process.name == "msb-gateway");
    found.expect("a gateway")
}

/// Memory that a process uses, in KiB.
fn memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid))
        .expect("a process that runs");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process that runs");
    line.trim().trim_end_matches(" kB").parse().expect("a process that runs")
}

#[test]
fn frames_that_mean_nothing_harm_nothing() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let before = gateway(&user, "net");
        for seed in 1..4 {
            let script = format!("/usr/bin/python3 /world/frames.py {seed}");
            let gave = user.within("net", &script).line();
            if gave == "not permitted" {
                skip("a sandbox may send no frames of its own");
                break;
            }
            assert_eq!(gave, "sent");
        }
        assert!(before.is_alive(), "the gateway ended");
        assert!(memory(&before) < 200 << 10, "{} KiB", memory(&before));
        let probes = ["tcp web.example.com 80", "udp 2001:db8::10 7000", "tcp 10.9.9.10 80"];
        assert_eq!(user.probe_in("net", &probes), ["open", "open", "refused"]);
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

/// What is not read waits outside, and not in our memory.
#[test]
fn a_sandbox_that_does_not_read_costs_little() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let gateway = gateway(&user, "net");
        let script = "import socket, sys
held = []
for number in range(100):
    one = socket.create_connection(('203.0.113.10', 7003), timeout=60)
    one.sendall(b'more')
    held.append(one)
for one in held:
    assert one.recv(1000)
print('held', flush=True)
sys.stdin.read()";
        let args = ["exec", "net", "--", "/usr/bin/python3", "-c", script];
        let mut holds = user.command(args);
        let mut holds = holds.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(holds.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "held");
        // Clients that do read are served meanwhile.
        let script = "/usr/bin/python3 /world/streams.py echo web.example.com 7000 3000000";
        assert_eq!(user.within("net", script).line(), "same");
        let used = memory(&gateway);
        assert!(used < 200 << 10, "{used} KiB");
        drop(holds.stdin.take());
        holds.wait().unwrap();
    }
}

/// A server that never answers delays no other flow.
#[test]
fn a_silent_server_delays_no_other_flow() {
    for user in TestNet::users() {
        user.lasting("net", &["--net-max-connections", "64"]);
        let script = "for i in $(seq 20); do curl -s http://203.0.113.99/ & all=\"$all $!\"; done; \
                      for i in $(seq 20); do curl -sS http://web.example.com/ || exit 1; done; \
                      kill $all";
        let gave = user.within("net", script).ok();
        assert_eq!(gave.stdout, "hello from the web\n".repeat(20));
    }
}

/// Attack 28.
#[test]
fn what_the_sandbox_says_does_not_reach_a_terminal_raw() {
    for user in TestNet::users() {
        let flags = ["--net-default", "deny", "--net-rule", "allow@api.example.com:http:GET:/v1"];
        user.lasting("net", &flags);
        let script = "/usr/bin/python3 - <<'PYTHON'
import os, socket, ssl, struct
evil = b'\\x1b[31mred\\x1b]0;title\\x07\\nline'
label = bytes([len(evil)]) + evil
query = struct.pack('>HHHHHH', 1, 0x100, 1, 0, 0, 0) + label + b'\\x03com\\0\\0\\1\\0\\1'
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.settimeout(60)
    one.sendto(query, ('198.18.0.1', 53))
    one.recv(4096)
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
for path in [b'/' + evil, b'/%1b%5b31mred', b'/\\xe2\\x80\\xaertl', b'/' + b'x' * 5000]:
    with socket.create_connection(('api.example.com', 443), timeout=60) as plain:
        with context.wrap_socket(plain, server_hostname='api.example.com') as one:
            one.sendall(b'GET ' + path + b' HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n')
            print(one.recv(100)[:12].decode())
PYTHON";
        let gave = user.within("net", script).ok();
        assert!(gave.stdout.lines().all(|line| line.starts_with("HTTP/1.1 4")), "{gave:#?}");
        user.told("net", "GET /%1b%5b31mred");
        for args in [
            &["events", "--net", "net"][..],
            &["events", "--net", "--json", "net"],
            &["net", "net"],
            &["net", "--json", "net"],
        ] {
            let gave = user.run(args).ok();
            let raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!gave.stdout.contains(raw), "{args:?}: {:?}", gave.stdout);
            assert!(gave.stdout.lines().all(|line| line.len() < 4000), "{args:?}");
        }
    }
}

/// A server of names that lies or babbles.
#[test]
fn hostile_answers_for_names_are_not_believed() {
    for user in TestNet::users() {
        user.lasting("net", &["--dns", "127.0.0.1:5300"]);
        for kind in ["loop", "short", "otherid", "othername", "count", "alias", "rebound"] {
            let name = format!("{kind}.weird.example.net");
            let outcome = user.probe_in("net", &[&format!("ask A {name}")]);
            // What is wrong is no answer, and neither is one with a private address.
            let good = ["failed 0", "nxdomain 0", "refused 0", "ok 0"];
            assert!(good.contains(&outcome[0].as_str()), "{kind}: {outcome:?}");
        }
        let probes = ["tcp 10.9.9.9 80", "name web.weird.example.net"];
        assert_eq!(user.probe_in("net", &probes), ["refused", "203.0.113.10"]);
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

/// Attack 33: a name that the sandbox gave an address itself.
#[test]
fn the_hosts_file_of_the_sandbox_opens_no_rule() {
    for user in TestNet::users() {
        let flags = [
            "--net-default",
            "deny",
            "--net-rule",
            "allow@web.example.com",
            "--net-rule",
            "allow@api.example.com:http",
        ];
        user.lasting("net", &flags);
        let word = format!("fooled-{}", user.msb.uid());
        let script = format!(
            "curl -sS http://web.example.com/ >/dev/null; \
             for host in web api; do for scheme in http https; do for port in 80 443; do \
             curl -sk --max-time 60 -o /dev/null -w '%{{http_code}}\\n' \
             --connect-to $host.example.com:$port:203.0.113.12:$port \
             $scheme://$host.example.com:$port/{word}; done; done; done; true"
        );
        let gave = user.within("net", &script).ok();
        assert!(!gave.stdout.contains("200"), "{gave:#?}");
        assert!(!user.net.log("access").contains(&word));
    }
}

/// Attack 11: an image with files that block for ever, or have no end.
#[test]
fn an_image_without_ordinary_files_starts_all_the_same() {
    for user in TestNet::users() {
        let etc = user.msb.rootfs().join("etc");
        std::fs::create_dir_all(&etc).expect("a directory of the test's own");
        let _ = std::fs::remove_file(etc.join("hosts"));
        let made = std::process::Command::new("mkfifo").arg(etc.join("hosts")).status();
        assert!(made.expect("mkfifo").success());
        std::os::unix::fs::symlink("/dev/zero", etc.join("resolv.conf")).expect("a new name");
        let rootfs = user.msb.rootfs().display().to_string();
        let words = ["run", "--net", "public", &rootfs, "--", "cat", "/etc/hosts"];
        assert!(user.run(words).ok().stdout.contains("198.18.0.2"));
    }
}
