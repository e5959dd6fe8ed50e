//! DNS: which server answers, and which answers are believed.

use crate::testnet::TestNet;

/// Attack 32.
#[test]
fn a_name_that_is_not_allowed_does_not_exist() {
    for user in TestNet::users() {
        let flags = ["--net-default", "deny", "--net-rule", "allow@web.example.com"];
        user.lasting("net", &flags);
        let probes = [
            "ask A web.example.com",
            "ask A evil.example.net",
            "ask AAAA evil.example.net",
            "ask TXT text.example.com",
            "ask MX example.com",
            "ask A web.example.com.evil.example.net",
            "ask A web.example.com fd6d:7362::1",
        ];
        let expected =
            ["ok 1", "nxdomain 0", "nxdomain 0", "nxdomain 0", "nxdomain 0", "nxdomain 0", "ok 1"];
        assert_eq!(user.probe_in("net", &probes), expected);
        // The server of the test network got no query: a query would leak the name.
        let asked = user.net.log("dns");
        assert!(!asked.contains("web.example.com.evil.example.net"), "{asked}");
        let denied = user.told("net", "evil.example.net");
        assert_eq!(denied[0]["decided"]["decision"], "deny", "{denied:?}");
        assert_eq!(denied[0]["decided"]["kind"], "dns", "{denied:?}");
    }
}

/// Attack 32: a query tells its name to the servers of the zone, so a rule for addresses sends none.
#[test]
fn a_rule_for_an_address_lets_no_query_out() {
    for user in TestNet::users() {
        for (number, rule) in [
            "allow@203.0.113.10",
            "allow@203.0.113.10:tcp:443",
            "allow@203.0.113.0/24",
            "allow@0.0.0.0/0",
            "allow@private",
            "allow@host",
        ]
        .into_iter()
        .enumerate()
        {
            let word = format!("data{number}-{}.evil.example.net", user.msb.uid());
            let asks = [format!("ask A {word}"), format!("ask TXT {word}")];
            let asks: Vec<&str> = asks.iter().map(String::as_str).collect();
            let flags = ["--net-default", "deny", "--net-rule", rule];
            assert_eq!(user.probe(&flags, &asks), ["nxdomain 0"; 2], "{rule}");
            let asked = user.net.log("dns");
            assert!(!asked.contains(&word), "{rule}: {asked}");
        }
        // The address itself is reached, and a name that a rule allows is answered.
        let flags = ["--net-default", "deny", "--net-rule", "allow@10.9.9.10"];
        assert_eq!(user.probe(&flags, &["tcp 10.9.9.10 7000"]), ["open"]);
        let flags = [&flags[..], &["--net-rule", "allow@office.example.com"]].concat();
        assert_eq!(user.probe(&flags, &["name office.example.com"]), ["10.9.9.10"]);
    }
}

#[test]
fn names_are_answered_as_the_resolver_of_the_host_answers() {
    for user in TestNet::users() {
        let probes = [
            "name web.example.com",
            "name www.example.com",
            "name dual.example.com",
            "name six.example.com",
            "name nothing.example.com",
            "ask TXT text.example.com",
            "ask MX example.com",
            "ask AAAA web.example.com",
            "ask A nothing.example.com",
            "ask ANY web.example.com",
            "ask AXFR example.com",
            "ask HTTPS web.example.com",
        ];
        let outcomes = user.probe(&[], &probes);
        assert_eq!(
            outcomes[..5],
            [
                "203.0.113.10",
                "203.0.113.10",
                "2001:db8::10 203.0.113.10",
                "2001:db8::10",
                "unknown"
            ]
        );
        assert_eq!(outcomes[5..9], ["ok 1", "ok 1", "ok 0", "nxdomain 0"]);
        for outcome in &outcomes[9..11] {
            assert!(["refused 0", "unimplemented 0"].contains(&outcome.as_str()), "{outcomes:?}");
        }
        // No ECH keys, which would hide the server name of TLS.
        assert_eq!(outcomes[11], "ok 0");
    }
}

/// Attack 31.
#[test]
fn dns_answers_with_private_addresses_are_rejected() {
    for user in TestNet::users() {
        let probes = [
            "name private.example.com",
            "name meta.example.com",
            "name local.example.com",
            "name sixprivate.example.com",
            "name mapped.example.com",
            "name mixed.example.com",
        ];
        for flags in [&[][..], &["--net-rule", "allow@*.example.com"]] {
            let outcomes = user.probe(flags, &probes);
            assert_eq!(outcomes[..5], ["unknown"; 5], "{flags:?}");
            assert_eq!(outcomes[5], "203.0.113.10", "{flags:?}");
        }
        let flags = ["--net-rule", "allow@10.9.9.10"];
        let probes = ["name office.example.com", "name private.example.com"];
        assert_eq!(user.probe(&flags, &probes), ["10.9.9.10", "unknown"]);
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

/// Attack 31: an answer that was good, and then is another.
#[test]
fn an_allowed_name_that_flips_to_a_private_address_is_refused() {
    for user in TestNet::users() {
        for kind in ["private", "meta", "local"] {
            let name = format!("w{}.{kind}.flip.example.net", user.msb.uid());
            let rule = format!("allow@{name}");
            let box_name = format!("flip-{kind}");
            user.lasting(&box_name, &["--net-default", "deny", "--net-rule", &rule]);
            let ask = format!("name {name}");
            let first = user.probe_in(&box_name, &[&ask]);
            assert_eq!(first, ["203.0.113.10"]);
            // The good answer lives no second; what is kept must not outlive it by much.
            let mut last = Vec::new();
            for _ in 0..50 {
                std::thread::sleep(std::time::Duration::from_millis(100));
                last = user.probe_in(&box_name, &[&ask]);
                if last != first {
                    break;
                }
            }
            assert_eq!(last, ["unknown"]);
            let address = match kind {
                "private" => "10.9.9.9",
                "meta" => "169.254.169.254",
                _ => "127.0.0.1",
            };
            let probes = [format!("tcp {name} 80"), format!("tcp {address} 80")];
            let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
            assert_eq!(user.probe_in(&box_name, &probes), ["unknown", "refused"]);
            user.told(&box_name, "private answer");
            user.run(["rm", "-f", &box_name]).ok();
        }
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

/// Attack 35.
#[test]
fn other_dns_servers_are_closed_unless_named() {
    for user in TestNet::users() {
        let probes = [
            "ask A web.example.com 198.51.100.53",
            "tcp 198.51.100.53 53",
            "tcp 198.51.100.53 853",
            "udp 198.51.100.53 853",
            "udp 203.0.113.20 443",
            "udp 203.0.113.20 853",
            "tcp 203.0.113.20 853",
        ];
        for flags in [
            &[][..],
            &["--net", "all"],
            &["--net-default", "allow"],
            &["--net-rule", "allow@any:udp"],
        ] {
            assert_eq!(user.probe(flags, &probes), ["refused"; 7], "{flags:?}");
        }
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
        let flags = ["--net-rule", "allow@198.51.100.54:udp:53"];
        let probes = ["ask A any.name.at.all 198.51.100.54"];
        assert_eq!(user.probe(&flags, &probes), ["ok 1"]);
    }
}

#[test]
fn a_dns_server_can_be_chosen() {
    for user in TestNet::users() {
        let word = format!("chosen{}.example.net", user.msb.uid());
        let ask = format!("name {word}");
        let flags = ["--dns", "198.51.100.54"];
        assert_eq!(user.probe(&flags, &[&ask]), ["203.0.113.10"]);
        assert!(user.net.log("foreign").contains(&word));
        assert_eq!(user.probe(&["--dns", "127.0.0.1:53"], &[&ask]), ["unknown"]);
    }
}

/// Attack 32: data carried away in names.
#[test]
fn a_flood_of_random_names_is_limited_and_logged() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let script = "/usr/bin/python3 - <<'PYTHON'
import os, socket, struct, sys
sys.argv = ['probe']
exec(open('/world/probe.py').read().split('with ThreadPool')[0])
codes = {}
for number in range(400):
    label = os.urandom(15).hex()
    code = ask('A', label + '.flood.example.org').split()[0]
    codes[code] = codes.get(code, 0) + 1
print(codes.get('ok', 0), codes.get('refused', 0))
PYTHON";
        let gave = user.within("net", script).line();
        let counts: Vec<u32> = gave.split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(counts[0] <= 200 && counts[1] >= 200, "{gave}");
        let passed = user.net.log("dns").matches("flood.example.org from").count();
        assert!(passed <= 500, "{passed}");
        // Once for a burst, and not once for each.
        let logged = user.told("net", "\"deny\"");
        assert!(logged.len() < 20, "{logged:?}");
        // Others are answered meanwhile.
        assert_eq!(user.probe_in("net", &["name web.example.com"]), ["203.0.113.10"]);
    }
}

#[test]
fn names_are_answered_over_streams_too() {
    for user in TestNet::users() {
        let script = "/usr/bin/python3 - <<'PYTHON'
import socket, struct
name = b'\\x03web\\x07example\\x03com\\0'
for server in ['198.18.0.1', 'fd6d:7362::1']:
    with socket.create_connection((server, 53), timeout=60) as one:
        for number in (1, 2):
            query = struct.pack('>HHHHHH', number, 0x100, 1, 0, 0, 0) + name + b'\\0\\1\\0\\1'
            one.sendall(struct.pack('>H', len(query)) + query)
            size = struct.unpack('>H', one.recv(2, socket.MSG_WAITALL))[0]
            answer = one.recv(size, socket.MSG_WAITALL)
            print(answer[:2] == query[:2], socket.inet_ntoa(answer[-4:]))
PYTHON";
        assert_eq!(user.inside(&[], script).line(), ["True 203.0.113.10"; 4].join("\n"));
    }
}
