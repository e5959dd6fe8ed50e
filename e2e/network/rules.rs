//! Network rules: their order, by name, address, group, port and protocol.

use crate::testnet::TestNet;

const YES: &str = "open";
const NO: &str = "refused";

#[test]
fn the_first_rule_that_matches_decides() {
    let probes = ["tcp 203.0.113.10 80", "tcp 203.0.113.12 80", "tcp 203.0.113.18 80"];
    for user in TestNet::users() {
        for (rules, expected) in [
            (&["deny@203.0.113.12"][..], [YES, NO, YES]),
            (&["allow@203.0.113.10", "deny@203.0.113.0/24"], [YES, NO, NO]),
            (&["deny@203.0.113.0/24", "allow@203.0.113.10"], [NO, NO, NO]),
            (&["deny@203.0.113.8/29", "allow@public"], [NO, NO, YES]),
            (&["deny@public"], [NO, NO, NO]),
            (&["deny@any"], [NO, NO, NO]),
        ] {
            let flags: Vec<&str> = rules.iter().flat_map(|rule| ["--net-rule", rule]).collect();
            assert_eq!(user.probe(&flags, &probes), expected, "{rules:?}");
        }
    }
}

#[test]
fn what_no_rule_is_about_is_decided_by_the_default() {
    let probes = ["tcp web.example.com 80", "tcp 203.0.113.12 80", "tcp 10.9.9.10 80"];
    for user in TestNet::users() {
        let flags = ["--net-default", "deny", "--net-rule", "allow@web.example.com"];
        assert_eq!(user.probe(&flags, &probes), [YES, NO, NO]);
        let flags = ["--net-default", "allow", "--net-rule", "deny@203.0.113.12"];
        assert_eq!(user.probe(&flags, &probes), [YES, NO, YES]);
        let flags = ["--net-default", "deny"];
        assert_eq!(user.probe(&flags, &probes), ["unknown", NO, NO]);
    }
}

#[test]
fn a_star_stands_for_what_is_below_and_not_for_the_name_itself() {
    let probes = [
        "tcp a.wild.example.org 443",
        "tcp b.a.wild.example.org 443",
        "name wild.example.org",
        "name badwild.example.org",
        "tcp a.wild.example.org 80",
        "tcp A.Wild.Example.ORG 443",
    ];
    for user in TestNet::users() {
        let flags = ["--net-default", "deny", "--net-rule", "allow@*.wild.example.org:tcp:443"];
        assert_eq!(user.probe(&flags, &probes), [YES, YES, "unknown", "unknown", NO, YES]);
    }
}

#[test]
fn ports_and_protocols_are_those_of_the_rule() {
    let probes = [
        "tcp 203.0.113.10 80",
        "tcp 203.0.113.10 443",
        "tcp 203.0.113.10 7000",
        "tcp 203.0.113.10 7002",
        "udp 203.0.113.10 7000",
        "udp 203.0.113.10 443",
    ];
    for user in TestNet::users() {
        for (rule, expected) in [
            ("allow@203.0.113.10:tcp:80", [YES, NO, NO, NO, NO, NO]),
            ("allow@203.0.113.10:tcp:80,443", [YES, YES, NO, NO, NO, NO]),
            ("allow@203.0.113.10:tcp:7000-7001", [NO, NO, YES, NO, NO, NO]),
            ("allow@203.0.113.10:tcp", [YES, YES, YES, YES, NO, NO]),
            ("allow@203.0.113.10:udp:7000", [NO, NO, NO, NO, YES, NO]),
            ("allow@203.0.113.10:udp", [NO, NO, NO, NO, YES, NO]),
            ("allow@203.0.113.10:udp:443", [NO, NO, NO, NO, NO, YES]),
            ("allow@203.0.113.10", [YES, YES, YES, YES, YES, NO]),
            ("allow@203.0.113.10:icmp", [NO; 6]),
            ("deny@203.0.113.10", [NO; 6]),
        ] {
            let flags = ["--net-default", "deny", "--net-rule", rule];
            assert_eq!(user.probe(&flags, &probes), expected, "{rule}");
        }
    }
}

#[test]
fn ipv6_is_ruled_like_ipv4() {
    let probes = ["tcp 2001:db8::10 80", "tcp 2001:db8::10 443", "udp 2001:db8::10 7000"];
    for user in TestNet::users() {
        for (rule, expected) in [
            ("allow@[2001:db8::10]:tcp:80", [YES, NO, NO]),
            ("allow@2001:db8::/32", [YES, YES, YES]),
            ("allow@[2001:db8::]/32:udp", [NO, NO, YES]),
            ("allow@203.0.113.0/24", [NO, NO, NO]),
            ("allow@public", [YES, YES, YES]),
        ] {
            let flags = ["--net-default", "deny", "--net-rule", rule];
            assert_eq!(user.probe(&flags, &probes), expected, "{rule}");
        }
    }
}

#[test]
fn a_rule_by_name_is_no_rule_for_its_neighbours() {
    let probes = ["tcp web.example.com 80", "name evil.example.net", "tcp 203.0.113.12 80"];
    for user in TestNet::users() {
        let flags = ["--net-default", "deny", "--net-rule", "allow@web.example.com"];
        assert_eq!(user.probe(&flags, &probes), [YES, "unknown", NO]);
        // A name that another name leads to.
        let flags = ["--net-default", "deny", "--net-rule", "allow@www.example.com:tcp:80"];
        assert_eq!(user.probe(&flags, &["tcp www.example.com 80"]), [YES]);
        let script = "curl -sS http://www.example.com/whom";
        assert_eq!(user.inside(&flags, script).line(), "www.example.com");
        // All hosts but one.
        let flags = ["--net-rule", "deny@web.example.com"];
        let probes = ["name web.example.com", "tcp evil.example.net 80"];
        assert_eq!(user.probe(&flags, &probes), ["unknown", YES]);
    }
}

/// The DNS server of a name chooses the address: the name opens nothing that a rule for that
/// address does not, neither another port nor the machine itself.
#[test]
fn a_name_opens_no_more_than_the_rule_for_its_address() {
    let flags = |rules: [&'static str; 2]| {
        let rules = rules.into_iter().flat_map(|rule| ["--net-rule", rule]);
        ["--net-default", "deny"].into_iter().chain(rules).collect::<Vec<_>>()
    };
    for user in TestNet::users() {
        let probes = [
            "tcp office.example.com 7000",
            "tcp office.example.com 7001",
            "udp office.example.com 7000",
        ];
        for rules in [
            ["allow@10.9.9.10:tcp:7000", "allow@office.example.com"],
            ["allow@office.example.com", "allow@10.9.9.0/24:tcp:7000"],
            ["allow@*.example.com", "allow@private:tcp:7000"],
        ] {
            assert_eq!(user.probe(&flags(rules), &probes), [YES, NO, NO], "{rules:?}");
        }
        let probes = ["tcp desk.example.com 7778", "tcp desk.example.com 7777"];
        let rules = ["allow@host:tcp:7778", "allow@desk.example.com"];
        assert_eq!(user.probe(&flags(rules), &probes), [YES, NO]);
        // The machine's own address on the internet.
        let probes =
            ["name home.example.com", "tcp home.example.com 7778", "tcp 198.51.100.2 7778"];
        let rules = ["allow@home.example.com", "allow@web.example.com"];
        assert_eq!(user.probe(&flags(rules), &probes), ["unknown", "unknown", NO]);
        let seen = user.net.canaries();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

/// A refused range is refused however its addresses are written.
#[test]
fn a_refused_range_is_refused_through_translators() {
    let probes = ["tcp 64:ff9b::cb00:710a 7000", "tcp 2002:cb00:710a::1 7000"];
    for user in TestNet::users() {
        assert_eq!(user.probe(&[], &probes), [YES; 2]);
        for rule in ["deny@203.0.113.0/24", "deny@203.0.113.10:tcp:7000"] {
            for net in ["public", "all"] {
                let flags = ["--net", net, "--net-rule", rule];
                assert_eq!(user.probe(&flags, &probes), [NO; 2], "{flags:?}");
            }
        }
        // The machine's own address.
        let own = ["tcp 64:ff9b::c633:6402 7000"];
        assert_eq!(user.probe(&["--net", "private"], &own), [NO]);
        assert_eq!(user.probe(&["--net", "all", "--net-rule", "deny@host"], &own), [NO]);
        assert_eq!(user.probe(&["--net", "all"], &own), [YES]);
    }
}

/// Attack 34: a denied name in SNI or the Host header is denied at any address.
#[test]
fn a_denied_name_is_not_reached_by_its_address() {
    for user in TestNet::users() {
        let flags = ["--net-rule", "deny@hidden.example.com"];
        let script = "cd /world; python=/usr/bin/python3; \
                      $python web.py sni 203.0.113.18 443 hidden.example.com; \
                      $python web.py host 203.0.113.18 80 hidden.example.com; \
                      $python web.py sni 203.0.113.18 443 shared.example.com; \
                      $python web.py host 203.0.113.18 80 shared.example.com";
        let gave = user.inside(&flags, script).ok();
        let lines: Vec<&str> = gave.stdout.lines().collect();
        assert_eq!(lines[0], "refused", "{gave:#?}");
        assert!(lines[1].starts_with("403 "), "{gave:#?}");
        assert!(gave.stdout.ends_with("200 shared.example.com\n200 shared.example.com\n"));
    }
}

/// A flow that hides its host name does not bypass a rule about a name.
#[test]
fn a_denied_name_is_not_reached_by_what_hides_it() {
    for user in TestNet::users() {
        let word = format!("hides-{}", user.msb.uid());
        let (other, api) = ("Host: other.example.com", "Host: api.example.com");
        let requests = [
            format!("GET /{word} HTTP/1.1\\r\\n{other}\\r\\n{api}\\r\\n\\r\\n"),
            format!("GET /{word} HTTP/1.1\\r\\n{api}\\r\\n{other}\\r\\n\\r\\n"),
            format!(
                "GET /fine HTTP/1.1\\r\\n{other}\\r\\n\\r\\n\
                 GET /{word} HTTP/1.1\\r\\n{api}\\r\\nConnection: close\\r\\n\\r\\n"
            ),
            format!("GET http://api.example.com/{word} HTTP/1.1\\r\\n{other}\\r\\n\\r\\n"),
            format!("GET /{word} HTTP/1.0\\r\\n\\r\\n"),
            format!("GET /{word} HTTP/1.1\\r\\nHost: 203.0.113.11\\r\\n\\r\\n"),
            format!("GET  /{word} HTTP/1.1\\r\\n{api}\\r\\nConnection: close\\r\\n\\r\\n"),
            format!("GET /{word} HTTP/1.1\\r\\n{api}\\r\\n"),
            format!(" GET /{word} HTTP/1.1\\r\\n{api}\\r\\nConnection: close\\r\\n\\r\\n"),
        ];
        let mut script = "cd /world; python=/usr/bin/python3; ".to_owned();
        for port in [443, 8443] {
            script += &format!("$python web.py sni 203.0.113.11 {port} - api.example.com; ");
        }
        for request in &requests {
            for port in [80, 8080] {
                script += &format!("$python web.py say 203.0.113.11 {port} '{request}'; ");
            }
        }
        for rule in ["deny@api.example.com", "deny@api.example.com:http:*:/"] {
            let gave = user.inside(&["--net-rule", rule], &script).ok();
            assert!(gave.stdout.starts_with("refused\nrefused\n"), "{gave:#?}");
            let arrived = user.net.requests(&word);
            assert!(arrived.is_empty(), "{rule}: {arrived:#?}");
        }
        // A rule for the address allows every name at it.
        let flags = ["--net-rule", "allow@203.0.113.11", "--net-rule", "deny@api.example.com"];
        let script = format!("curl -sS -o /dev/null http://203.0.113.11/{word}");
        user.inside(&flags, &script).ok();
        assert_eq!(user.net.requests(&word).len(), 1);
    }
}

#[test]
fn rules_come_from_files_too() {
    let probes = ["tcp 203.0.113.10 80", "tcp 203.0.113.12 80", "tcp 10.9.9.10 80"];
    for user in TestNet::users() {
        let toml = user
            .msb
            .file("rules.toml", "rules = [\"deny@203.0.113.12\", \"allow@10.9.9.10:tcp:80\"]\n");
        let json = user.msb.file("rules.json", "{\"rules\": [\"deny@203.0.113.10\"]}");
        let (toml, json) = (toml.to_str().unwrap(), json.to_str().unwrap());
        assert_eq!(user.probe(&["--net-rules", toml], &probes), [YES, NO, YES]);
        assert_eq!(user.probe(&["--net-rules", json], &probes), [NO, YES, NO]);
        let both = ["--net-rules", toml, "--net-rules", json];
        assert_eq!(user.probe(&both, &probes), [NO, NO, YES]);
        // Flags come first.
        let flags = ["--net-rule", "allow@203.0.113.12", "--net-rules", toml];
        assert_eq!(user.probe(&flags, &probes), [YES, YES, YES]);
        let wrong = user.msb.file("wrong.toml", "rules = [\"allow@exa mple\"]\n");
        let gave = user.inside(&["--net-rules", wrong.to_str().unwrap()], "true");
        assert_ne!(gave.code, 0);
        assert!(
            gave.stderr.contains("wrong.toml") && gave.stderr.contains("exa mple"),
            "{gave:#?}"
        );
    }
}

#[test]
fn a_sandbox_described_in_a_file_has_its_network() {
    let probes = ["tcp web.example.com 80", "tcp 203.0.113.12 80"];
    for user in TestNet::users() {
        let conf = user.msb.file(
            "box.toml",
            "image = \"host\"\n[network]\ndefault = \"deny\"\nrules = [\"allow@web.example.com\"]\n",
        );
        let flags = ["--conf", conf.to_str().unwrap()];
        assert_eq!(user.probe(&flags, &probes), [YES, NO]);
        let flags = [flags[0], flags[1], "--net-rule", "allow@203.0.113.12"];
        assert_eq!(user.probe(&flags, &probes), [YES, YES]);
    }
}

#[test]
fn rules_for_no_network_are_an_error() {
    for user in TestNet::users() {
        for flags in [
            &["--no-net", "--net-rule", "allow@web.example.com"][..],
            &["--no-net", "-p", "8080:80"],
            &["--net", "everywhere"],
            &["--net-rule", "allow@"],
            &["--net-max-connections", "0"],
        ] {
            let gave = user.inside(flags, "echo ran");
            assert_ne!(gave.code, 0, "{flags:?}: {gave:#?}");
            assert!(!gave.stdout.contains("ran"), "{flags:?}");
            assert!(gave.stderr.contains("error: "), "{flags:?}: {gave:#?}");
        }
    }
}
