//! Reachable addresses: by default, and with each mode of `--net`.

use crate::testnet::{TestNet, WITHOUT_TUN, changed};
use msb_e2e::{ends, skip};

#[test]
fn the_internet_is_reached_by_name_and_by_address() {
    for user in TestNet::users() {
        let script = "set -e; curl -sS http://web.example.com/; curl -sS http://203.0.113.10/; \
                      curl -sS --cacert /world/ca.pem https://www.example.com/; \
                      curl -sS --cacert /world/ca.pem https://203.0.113.10/; \
                      curl -sS 'http://[2001:db8::10]/'; \
                      curl -sS --cacert /world/ca.pem https://six.example.com/";
        assert_eq!(user.inside(&[], script).line(), ["hello from the web"; 6].join("\n"));
        // Said, it is the same.
        assert_eq!(user.inside(&["--net", "public"], script).code, 0);
    }
}

/// Addresses that a sandbox with the default network must not reach.
const CLOSED: &[&str] = &[
    "10.9.9.9 80",
    "10.9.9.9 443",
    "172.16.9.9 80",
    "192.168.77.1 80",
    "100.64.0.9 80",
    "169.254.9.9 80",
    "169.254.169.254 80",
    "100.100.100.200 80",
    "fd00:9::9 80",
    "fd00:ec2::254 80",
    "::ffff:10.9.9.9 80",
    "64:ff9b::a09:909 80",
    "2002:a09:909::1 80",
    // The machine itself, by each of its addresses, and by the one that could mean it.
    "198.51.100.2 7777",
    "192.168.77.2 7777",
    "2001:db8:1::2 7777",
    "198.18.0.1 7777",
    "fd6d:7362::1 7777",
    "127.0.0.1 7777",
    "::1 7777",
    // Multicast, reserved, broadcast and unspecified.
    "224.0.0.1 80",
    "ff02::1 80",
    "240.0.0.1 80",
    "255.255.255.255 80",
    "0.0.0.0 7777",
    "198.18.1.1 80",
];

/// Attacks 29 and 30. All of them are refused at once, without a timeout, and no packet arrived.
#[test]
fn only_the_internet_is_reached_by_default() {
    let probes: Vec<String> = ["tcp", "udp"]
        .iter()
        .flat_map(|kind| CLOSED.iter().map(move |target| format!("{kind} {target}")))
        .collect();
    let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
    for user in TestNet::users() {
        for flags in [&[][..], &["--net", "public"], &["--net-rule", "allow@web.example.com"]] {
            let outcomes = user.probe(flags, &probes);
            for (probe, outcome) in probes.iter().zip(&outcomes) {
                assert_eq!(outcome, "refused", "{probe} with {flags:?}");
            }
            assert_eq!(outcomes.len(), probes.len());
        }
        // Others prove that these are not silent for another reason.
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

/// Attack 29.
#[test]
fn no_network_mode_reaches_cloud_metadata() {
    let probes = [
        "tcp 169.254.169.254 80",
        "udp 169.254.169.254 80",
        "tcp ::ffff:169.254.169.254 80",
        "tcp 64:ff9b::a9fe:a9fe 80",
        "tcp fd00:ec2::254 80",
        "tcp 100.100.100.200 80",
        "tcp 169.254.42.42 80",
        "tcp 169.254.0.23 80",
        "tcp 168.63.129.16 80",
        "tcp 192.0.0.192 80",
        "tcp fd20:ce::254 80",
        "tcp fd00:42::42 80",
        "tcp 169.254.42.7 7000",
        "name meta.example.com",
    ];
    let mut expected = vec!["refused"; 13];
    expected.push("unknown");
    for user in TestNet::users() {
        for flags in [
            &["--net", "private"][..],
            &["--net", "host"],
            &["--net", "all"],
            &["--net-default", "allow"],
            &["--net-rule", "allow@meta.example.com"],
            &["--net-rule", "allow@*.example.com", "--net", "all"],
            &["--net-rule", "allow@any:tcp:80", "--net-rule", "allow@any:tcp:7000"],
            &["--net-rule", "allow@0.0.0.0/0", "--net-rule", "allow@[::]/0"],
            &["--net-rule", "allow@169.254.0.0/16", "--net-rule", "allow@private"],
        ] {
            assert_eq!(user.probe(flags, &probes), expected, "{flags:?}");
        }
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
        // It is reached by the rules that name it.
        for rule in ["allow@metadata", "allow@169.254.42.7", "allow@169.254.42.7:tcp:7000"] {
            assert_eq!(user.probe(&["--net-rule", rule], &["tcp 169.254.42.7 7000"]), ["open"]);
        }
    }
}

#[test]
fn without_a_network_there_is_loopback_alone() {
    for user in TestNet::users() {
        let script = "tail -n +3 /proc/net/dev | tr -d ' ' | cut -d: -f1; \
                      curl -sS http://203.0.113.10/ 2>&1; curl -sS http://web.example.com/ 2>&1; \
                      /usr/bin/python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & \
                      sleep 0.1; for i in $(seq 100); do \
                      curl -s http://127.0.0.1:8000/ >/dev/null && echo own && break; \
                      sleep 0.1; done";
        for flags in ["--no-net", "--net=none"] {
            let gave = user.inside(&[flags], script).ok();
            let lines: Vec<&str> = gave.stdout.lines().collect();
            assert_eq!(lines[0], "lo", "{gave:#?}");
            assert!(lines[1].contains("(7) Failed to connect"), "{gave:#?}");
            assert!(lines[2].contains("(6) Could not resolve"), "{gave:#?}");
            assert_eq!(lines[3..], ["own"], "{gave:#?}");
        }
        let mut usual = user.inside_command(&[], "tail -n +3 /proc/net/dev | wc -l");
        let usual = ends(usual.env("MSB_NET", "none").spawn().unwrap());
        assert_eq!(usual.line(), "1", "the variable says the same");
    }
}

#[test]
fn each_network_mode_reaches_what_it_says() {
    let probes = [
        "tcp 203.0.113.10 80",
        "tcp 10.9.9.10 80",
        "udp 10.9.9.10 7000",
        "name office.example.com",
        "tcp 198.18.0.1 7778",
        "tcp fd6d:7362::1 7778",
        "tcp host.msb.internal 7778",
        "tcp 198.51.100.2 7778",
        "tcp 192.168.77.2 7778",
        "tcp 224.0.0.1 80",
    ];
    let yes = "open";
    let no = "refused";
    let private = [yes, yes, yes, "10.9.9.10", no, no, "unknown", no, no, no];
    let host = [yes, yes, yes, "10.9.9.10", yes, yes, yes, yes, yes, no];
    let public = [yes, no, no, "unknown", no, no, "unknown", no, no, no];
    // No query leaves for a sandbox that reaches private networks alone.
    let no_public = [no, yes, yes, "unknown", no, no, "unknown", no, no, no];
    for user in TestNet::users() {
        for (flags, expected) in [
            (&["--net", "public"][..], public),
            (&["--net", "private"], private),
            (&["--net", "host"], host),
            (&["--net", "all"], host),
            (&["--net-default", "deny", "--net-rule", "allow@private"], no_public),
        ] {
            assert_eq!(user.probe(flags, &probes), expected, "{flags:?}");
        }
    }
}

/// A laptop changes networks: an address that the machine gets while a sandbox runs is its own from
/// that moment on, and no longer when it is gone.
#[test]
fn an_address_that_the_machine_gets_later_is_its_own() {
    let probe = ["tcp 203.0.113.22 7000"];
    for user in TestNet::users() {
        let change = |verb: &str| {
            let mut ip = user.net.at_home("ip");
            let done = ip.args(["address", verb, "203.0.113.22/32", "dev", "lo"]).status();
            assert!(done.expect("ip can be executed").success());
        };
        user.lasting("net", &["--net", "public"]);
        assert_eq!(user.probe_in("net", &probe), ["open"], "a server of the internet");
        change("add");
        let own = user.probe_in("net", &probe);
        change("del");
        assert_eq!(own, ["refused"], "a server of the machine");
        assert_eq!(user.probe_in("net", &probe), ["open"], "of the internet again");
    }
}

/// The host's loopback is what a sandbox means by its name, and nothing else is.
#[test]
fn the_machine_itself_is_reached_by_its_name_where_that_is_allowed() {
    for user in TestNet::users() {
        let script = "/usr/bin/python3 /world/streams.py speaks host.msb.internal 7778; \
                      /usr/bin/python3 /world/streams.py speaks 198.18.0.1 7778";
        let flags = ["--net-default", "deny", "--net-rule", "allow@host:tcp:7778"];
        let spoken = "hello, I speak first\nme too\n".repeat(2);
        assert_eq!(user.inside(&flags, script).ok().stdout, spoken);
        let probes = ["tcp host.msb.internal 3128", "tcp 203.0.113.10 80", "udp 198.18.0.1 7777"];
        assert_eq!(user.probe(&flags, &probes), ["refused"; 3]);
    }
}

#[test]
fn resolv_conf_and_hosts_name_the_gateway_and_the_sandbox() {
    for user in TestNet::users() {
        let gave = user.inside(&[], "cat /etc/resolv.conf; hostname; cat /etc/hosts").ok();
        assert!(gave.stdout.contains("nameserver 198.18.0.1"), "{gave:#?}");
        assert!(!gave.stdout.contains("127.0.0.1:53"), "{gave:#?}");
        // Its own name leads to itself, as programs expect.
        let script = "/usr/bin/python3 -c 'import socket; \
                      print(socket.gethostbyname(socket.gethostname()))'";
        let own = user.inside(&["--hostname", "own-name"], script).line();
        assert!(own == "198.18.0.2" || own.starts_with("127."), "{own}");
    }
}

/// By a veth pair, for large transfers both ways, many connections and datagrams.
#[test]
fn a_host_without_a_tun_device_has_a_network_all_the_same() {
    let script = "set -e; curl -sS http://web.example.com/; \
                  curl -sS --cacert /world/ca.pem https://www.example.com/; \
                  curl -sS 'http://[2001:db8::10]/'; ping -c1 -W5 203.0.113.10 >/dev/null; \
                  for i in 1 2 3 4 5 6 7 8; do curl -sS http://web.example.com/ & done; wait; \
                  head -c 30000000 /dev/zero | curl -sS -T - http://web.example.com/upload \
                      >/dev/null || true; \
                  if curl -sS -m 5 http://10.9.9.9/ 2>/dev/null; then echo reached; fi; \
                  cat /sys/class/net/eth0/address";
    for user in TestNet::users() {
        let command = user.inside_command(&[], script);
        for hidden in WITHOUT_TUN {
            let Some(mut wrapped) = changed(&command, hidden) else {
                return skip("msb is not run in the test network");
            };
            let gave = ends(wrapped.spawn().unwrap()).ok();
            assert_eq!(gave.stdout.matches("hello from the web").count(), 11, "{gave:#?}");
            assert!(!gave.stdout.contains("reached"), "{gave:#?}");
        }
    }
}
