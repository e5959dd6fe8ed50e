use super::*;
use crate::intercept::request::{self, OriginServer};

fn rules(texts: &[&str], default: Decision) -> Rules {
    let rules = texts.iter().map(|text| Rule::parse(text).unwrap()).collect();
    let host = ["192.168.1.5", "203.0.113.9"].map(|text| text.parse().unwrap());
    let host = HostAddresses::listed(host);
    Rules::new(Policy { rules, default }, host, Vec::new(), Vec::new())
}

fn deny_by_default(texts: &[&str]) -> Rules {
    rules(texts, Decision::Deny)
}

fn name(text: &str) -> DomainName {
    DomainName::parse(text).unwrap()
}

fn names(texts: &[&str]) -> Vec<DomainName> {
    texts.iter().map(|text| name(text)).collect()
}

fn decide(
    rules: &Rules,
    flow: FlowProtocol,
    address: &str,
    resolved_names: &[&str],
) -> (bool, String) {
    let decision = rules.decide(flow, address.parse().unwrap(), &names(resolved_names));
    (decision.allows(), decision.rule)
}

#[track_caller]
fn check(
    texts: &[&str],
    flow: FlowProtocol,
    address: &str,
    resolved_names: &[&str],
    allowed: bool,
) {
    let (was, rule) = decide(&deny_by_default(texts), flow, address, resolved_names);
    assert_eq!(was, allowed, "{texts:?} {flow:?} {address} {resolved_names:?}: {rule}");
}

const HTTPS: FlowProtocol = FlowProtocol::Tcp(443);

#[test]
fn the_first_rule_that_matches_decides() {
    let own = ["deny@1.1.1.1", "allow@public"];
    assert_eq!(
        decide(&deny_by_default(&own), HTTPS, "1.1.1.1", &[]),
        (false, "deny@1.1.1.1".to_owned())
    );
    assert_eq!(
        decide(&deny_by_default(&own), HTTPS, "1.1.1.2", &[]),
        (true, "allow@public".to_owned())
    );
    assert_eq!(
        decide(&deny_by_default(&own), HTTPS, "10.1.1.1", &[]),
        (false, "default".to_owned())
    );
    let open = rules(&["deny@metadata"], Decision::Allow);
    assert_eq!(decide(&open, HTTPS, "10.1.1.1", &[]), (true, "default".to_owned()));
    assert!(!decide(&open, HTTPS, "169.254.169.254", &[]).0);
}

#[test]
fn groups_do_not_overlap() {
    for (address, group) in [
        ("1.1.1.1", "public"),
        ("2606:4700::1", "public"),
        ("10.0.0.1", "private"),
        ("100.64.0.1", "private"),
        ("169.254.1.1", "metadata"),
        ("fe80::1", "private"),
        ("fd00::1", "private"),
        ("169.254.169.254", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("192.168.1.5", "host"),
        ("198.18.0.1", "host"),
        ("fd6d:7362::1", "host"),
    ] {
        for allowed in ["public", "private", "metadata", "loopback"] {
            let rule = format!("allow@{allowed}");
            check(&[&rule], HTTPS, address, &[], allowed == group);
        }
        let host = group == "host" || group == "loopback";
        check(&["allow@host"], HTTPS, address, &[], host);
        check(&["allow@any"], HTTPS, address, &[], group != "metadata");
    }
}

#[test]
fn a_denied_address_is_denied_in_every_form() {
    // All of them lead to 10.1.2.3.
    for address in [
        "10.1.2.3",
        "::ffff:10.1.2.3",
        "::10.1.2.3",
        "64:ff9b::10.1.2.3",
        "64:ff9b:1::10.1.2.3",
        "64:ff9b:1:a01:2:300::",
        "2002:a01:203::1",
        "2001:0:cb00:710a:0:0:f5fe:fdfc",
        "fe80::5efe:10.1.2.3",
    ] {
        for refused in ["10.1.2.3", "10.0.0.0/8", "private", "any"] {
            check(&[&format!("deny@{refused}"), "allow@any"], HTTPS, address, &[], false);
        }
        check(&["allow@public"], HTTPS, address, &[], false);
        check(&["deny@11.0.0.0/8", "allow@any"], HTTPS, address, &[], true);
    }
    // Addresses of the host.
    for address in
        ["203.0.113.9", "64:ff9b::203.0.113.9", "2002:cb00:7109::1", "64:ff9b::127.0.0.1"]
    {
        check(&["deny@host", "allow@any"], HTTPS, address, &[], false);
        check(&["allow@public"], HTTPS, address, &[], false);
    }
    // The gateway leads to the host's loopback, and to no other of its addresses.
    for refused in ["127.0.0.0/8", "127.0.0.1", "loopback", "host"] {
        check(&[&format!("deny@{refused}"), "allow@any"], HTTPS, "198.18.0.1", &[], false);
    }
    check(&["deny@private", "allow@host"], HTTPS, "198.18.0.1", &[], true);
    check(&["allow@any"], HTTPS, "64:ff9b::198.18.0.1", &[], false);
}

#[test]
fn metadata_is_reached_by_a_rule_that_names_it() {
    for address in [
        "169.254.169.254",
        "169.254.42.42",
        "169.254.0.23",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:42::42",
        "fe80::a9fe:a9fe",
        "64:ff9b::169.254.169.254",
    ] {
        for wider in ["any", "any:tcp:443", "public", "private", "host", "loopback", "a.example"] {
            check(&[&format!("allow@{wider}")], HTTPS, address, &["a.example"], false);
        }
        for wider in ["0.0.0.0/0", "::/0", "169.254.0.0/16", "169.254.169.254/31", "fd00::/8"] {
            check(&[&format!("allow@{wider}")], HTTPS, address, &[], false);
        }
        assert!(!decide(&rules(&[], Decision::Allow), HTTPS, address, &[]).0, "{address}");
        check(&["allow@metadata"], HTTPS, address, &[], true);
        check(&[&format!("allow@{address}")], HTTPS, address, &[], true);
        check(&["deny@metadata", &format!("allow@{address}")], HTTPS, address, &[], false);
    }
    // Nor because it is an address of the host.
    let policy =
        Policy { rules: vec![Rule::parse("allow@host").unwrap()], default: Decision::Deny };
    let own = HostAddresses::listed(["169.254.169.254".parse().unwrap()]);
    let own = Rules::new(policy, own, Vec::new(), Vec::new());
    assert!(!decide(&own, HTTPS, "169.254.169.254", &[]).0);
    check(&["deny@private", "allow@169.254.9.9"], HTTPS, "169.254.9.9", &[], false);
}

#[test]
fn the_host_is_not_part_of_its_networks() {
    check(&["allow@private"], HTTPS, "192.168.1.5", &[], false);
    check(&["allow@public"], HTTPS, "203.0.113.9", &[], false);
    check(&["allow@192.168.1.0/24"], HTTPS, "192.168.1.5", &[], true);
    check(&["allow@me.example"], HTTPS, "203.0.113.9", &["me.example"], false);
    check(&["allow@me.example", "allow@host"], HTTPS, "203.0.113.9", &["me.example"], true);
    check(&["allow@*.example"], HTTPS, "203.0.113.9", &["me.example"], false);
    check(&["deny@private", "allow@host"], HTTPS, "192.168.1.5", &[], false);
    // The gateway is the host by group only.
    check(&["allow@198.18.0.0/15"], HTTPS, "198.18.0.1", &[], false);
    check(&["allow@198.18.0.0/15"], HTTPS, "198.18.0.77", &[], false);
}

#[test]
fn unroutable_addresses_are_refused_by_any_rule() {
    for address in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "0.1.2.3", "ff02::1", "::"] {
        let decided = decide(&rules(&["allow@any"], Decision::Allow), HTTPS, address, &[]);
        assert_eq!(decided, (false, "unroutable address".to_owned()), "{address}");
    }
}

#[test]
fn a_name_rule_matches_resolved_addresses() {
    let own = ["allow@a.example", "allow@*.zone.example"];
    check(&own, HTTPS, "1.1.1.1", &["a.example"], true);
    check(&own, HTTPS, "1.1.1.1", &["other.example", "x.zone.example"], true);
    check(&own, HTTPS, "1.1.1.1", &["other.example"], false);
    check(&own, HTTPS, "1.1.1.1", &[], false);
    check(&["deny@a.example", "allow@public"], HTTPS, "1.1.1.1", &["a.example"], false);
}

#[test]
fn a_name_leads_to_no_private_address() {
    for address in ["10.0.0.1", "169.254.169.254", "127.0.0.1", "192.168.1.5"] {
        check(&["allow@a.example"], HTTPS, address, &["a.example"], false);
    }
}

/// The server of the zone chooses the address: it opens nothing that an address rule did not.
#[test]
fn a_name_opens_no_other_port_than_the_address_rule() {
    for (own, address) in [
        (["allow@a.example", "allow@10.0.0.0/8:tcp:8001"], "10.0.0.1"),
        (["allow@10.0.0.1:tcp:8001", "allow@a.example"], "10.0.0.1"),
        (["allow@*.example", "allow@host:tcp:8001"], "192.168.1.5"),
        (["allow@a.example", "allow@host:tcp:8001"], "203.0.113.9"),
        (["allow@a.example:tcp", "allow@metadata:tcp:8001"], "169.254.169.254"),
        (["allow@a.example:http", "allow@private:tcp:8001"], "10.0.0.1"),
    ] {
        for (flow, allowed) in [
            (FlowProtocol::Tcp(8001), true),
            (FlowProtocol::Tcp(8002), false),
            (FlowProtocol::Tcp(80), false),
            (FlowProtocol::Tcp(443), false),
            (FlowProtocol::Udp(8001), false),
            (FlowProtocol::Echo, false),
        ] {
            check(&own, flow, address, &["a.example"], allowed);
        }
    }
    // A rule that denies some requests admits the flow, and opens no address either.
    let own = ["deny@a.example:http:POST:/", "allow@a.example"];
    check(&own, FlowProtocol::Tcp(80), "10.0.0.1", &["a.example"], false);
    check(&own, FlowProtocol::Tcp(80), "1.1.1.1", &["a.example"], true);
    // A port that is denied by address is denied by every name.
    let own = ["allow@a.example", "deny@10.0.0.1:tcp:22", "allow@private"];
    check(&own, FlowProtocol::Tcp(22), "10.0.0.1", &["a.example"], false);
    check(&own, FlowProtocol::Tcp(23), "10.0.0.1", &["a.example"], true);
}

#[test]
fn flows_that_hide_their_name_need_an_explicit_port() {
    for (flow, plain) in [
        (FlowProtocol::Tcp(443), true),
        (FlowProtocol::Tcp(22), true),
        (FlowProtocol::Udp(123), true),
        (FlowProtocol::Echo, true),
        (FlowProtocol::Tcp(53), false),
        (FlowProtocol::Tcp(853), false),
        (FlowProtocol::Udp(53), false),
        (FlowProtocol::Udp(443), false),
        (FlowProtocol::Udp(853), false),
    ] {
        check(&["allow@public"], flow, "1.1.1.1", &[], plain);
        assert_eq!(decide(&rules(&[], Decision::Allow), flow, "1.1.1.1", &[]).0, plain);
        let (tcp, udp) =
            (matches!(flow, FlowProtocol::Tcp(_)), matches!(flow, FlowProtocol::Udp(_)));
        check(&["allow@public:tcp"], flow, "1.1.1.1", &[], plain && tcp);
        check(&["allow@public:udp"], flow, "1.1.1.1", &[], plain && udp);
        check(&["allow@public:icmp"], flow, "1.1.1.1", &[], flow == FlowProtocol::Echo);
        check(&["allow@public:tcp:22,53,443,853"], flow, "1.1.1.1", &[], tcp);
        check(&["allow@public:udp:1-1000"], flow, "1.1.1.1", &[], udp);
        let refused = ["deny@public", "allow@any:tcp:1-1000", "allow@any:udp:1-1000"];
        check(&refused, flow, "1.1.1.1", &[], false);
    }
}

#[test]
fn http_rules_admit_the_flow() {
    let own = deny_by_default(&["deny@a.example:http:POST:/", "allow@b.example"]);
    let decided = own.decide(HTTPS, "1.1.1.1".parse().unwrap(), &names(&["a.example"]));
    assert!(decided.allows());
    assert_eq!(decided.name_check, NameCheck::Requests);
    assert!(own.must_read_first(HTTPS, "1.1.1.1".parse().unwrap(), &names(&["a.example"])));
    assert!(!own.must_read_first(HTTPS, "1.1.1.1".parse().unwrap(), &names(&["b.example"])));
    check(&["allow@a.example:http"], FlowProtocol::Udp(443), "1.1.1.1", &["a.example"], false);
}

#[test]
fn a_flow_allowed_by_name_must_show_it() {
    let own = deny_by_default(&["allow@a.example", "allow@1.1.1.2"]);
    let address = "1.1.1.1".parse().unwrap();
    let resolved_names = names(&["a.example", "b.example"]);
    assert_eq!(own.decide(HTTPS, address, &resolved_names).name_check, NameCheck::Name);
    assert_eq!(own.decide(HTTPS, "1.1.1.2".parse().unwrap(), &[]).name_check, NameCheck::None);
    let tls = |text: &str| SniffResult::Tls { name: Some(name(text)) };
    let http = |text: &str| SniffResult::Http { host: Some(name(text)) };
    for (port, sniffed, passes) in [
        (443, tls("a.example"), true),
        (443, tls("b.example"), false),
        (443, tls("c.example"), false),
        (443, SniffResult::Tls { name: None }, false),
        (443, http("a.example"), true),
        (443, SniffResult::Other, false),
        (80, http("a.example"), true),
        (80, http("b.example"), false),
        (80, SniffResult::Http { host: None }, false),
        (80, SniffResult::Other, false),
        (22, SniffResult::Other, true),
        (22, tls("c.example"), false),
    ] {
        let seen = own.classify(port, address, &resolved_names, NameCheck::Name, &sniffed);
        let read = matches!(sniffed, SniffResult::Http { .. });
        let passed = if read { StreamAction::Intercept(name("a.example")) } else { seen.clone() };
        let passed = passed == seen && !matches!(seen, StreamAction::Refuse(_));
        assert_eq!(passed, passes, "{port} {sniffed:?}: {seen:?}");
    }
}

#[test]
fn a_flow_allowed_by_address_must_not_show_a_denied_name() {
    let own =
        deny_by_default(&["deny@bad.example", "allow@ruled.example:http:GET:/", "allow@public"]);
    let address = "1.1.1.1".parse().unwrap();
    assert_eq!(own.decide(HTTPS, address, &[]).name_check, NameCheck::NotDenied);
    let tls = |text: &str| SniffResult::Tls { name: Some(name(text)) };
    let classify = |sniffed| own.classify(443, address, &[], NameCheck::NotDenied, &sniffed);
    assert!(matches!(classify(tls("bad.example")), StreamAction::Refuse(_)));
    assert_eq!(classify(tls("good.example")), StreamAction::Pass(Some(name("good.example"))));
    assert_eq!(classify(tls("ruled.example")), StreamAction::Intercept(name("ruled.example")));
    // A flow without a name could be for one that a rule denies.
    assert!(matches!(classify(SniffResult::Tls { name: None }), StreamAction::Refuse(_)));
    assert!(matches!(classify(SniffResult::Other), StreamAction::Refuse(_)));
    let on = |port, sniffed| own.classify(port, address, &[], NameCheck::NotDenied, &sniffed);
    assert_eq!(on(22, SniffResult::Other), StreamAction::Pass(None));
    for port in [80, 8080] {
        assert!(matches!(on(port, SniffResult::Http { host: None }), StreamAction::Refuse(_)));
        let good = SniffResult::Http { host: Some(name("good.example")) };
        assert_eq!(
            on(port, good),
            StreamAction::Intercept(name("good.example")),
            "each request is read"
        );
    }
}

#[test]
fn only_rules_about_names_make_a_stream_show_one() {
    let address = "1.1.1.1".parse().unwrap();
    let harmless = |texts: &[&str]| {
        deny_by_default(texts).must_show_name(HTTPS, address, NameCheck::NotDenied)
    };
    for (texts, must_show) in [
        (&["deny@bad.example", "allow@public"][..], true),
        (&["allow@a.example:http:GET:/", "allow@public"], true),
        (&["deny@bad.example:tcp:443", "allow@public"], true),
        (&["deny@bad.example:tcp:22", "allow@public"], false),
        (&["deny@bad.example:udp", "allow@public"], false),
        (&["allow@good.example", "allow@public"], false),
        // A rule for the address covers every name at it.
        (&["allow@1.1.1.1", "deny@bad.example", "allow@public"], false),
        (&["allow@2.2.2.2", "deny@bad.example", "allow@public"], true),
        (&["deny@2.2.2.2", "allow@public", "deny@bad.example"], false),
    ] {
        assert_eq!(harmless(texts), must_show, "{texts:?}");
    }
}

#[test]
fn only_reachable_names_are_queried() {
    let query_allowed = |texts: &[&str], default, text: &str| {
        rules(texts, default).decide_dns_query(&name(text)).allows()
    };
    let (deny, allow) = (Decision::Deny, Decision::Allow);
    assert!(query_allowed(&["allow@a.example"], deny, "a.example"));
    assert!(!query_allowed(&["allow@a.example"], deny, "b.example"));
    assert!(query_allowed(&["allow@a.example:http:GET:/"], deny, "a.example"));
    assert!(query_allowed(&["allow@public"], deny, "b.example"));
    assert!(query_allowed(&["allow@any:tcp:80"], deny, "b.example"));
    // A query sends the name to other servers: no address rule is a reason for that.
    for address in ["10.0.0.0/8", "1.1.1.1", "1.1.1.1:udp:53", "0.0.0.0/0", "::/0"] {
        assert!(!query_allowed(&[&format!("allow@{address}")], deny, "b.example"), "{address}");
    }
    for group in ["private", "host", "loopback", "metadata"] {
        assert!(!query_allowed(&[&format!("allow@{group}")], deny, "b.example"), "{group}");
    }
    // Addresses that remain where public ones are denied are no reason either.
    assert!(!query_allowed(&["deny@public", "allow@any"], deny, "b.example"));
    assert!(!query_allowed(&["deny@public"], allow, "b.example"));
    assert!(!query_allowed(&["deny@0.0.0.0/0", "deny@::/0", "allow@any"], deny, "b.example"));
    assert!(!query_allowed(&["deny@public:tcp", "allow@any:tcp:80"], deny, "b.example"));
    assert!(query_allowed(&["deny@0.0.0.0/0", "allow@any"], deny, "b.example"));
    assert!(query_allowed(&["deny@public:tcp", "allow@any"], deny, "b.example"));
    assert!(query_allowed(&["deny@public:tcp:80", "allow@any"], deny, "b.example"));
    assert!(query_allowed(&["deny@public", "allow@b.example", "allow@private"], deny, "b.example"));
    assert!(!query_allowed(&["deny@b.example", "allow@public"], deny, "b.example"));
    assert!(query_allowed(&["deny@b.example:tcp:22", "allow@public"], deny, "b.example"));
    assert!(query_allowed(&["allow@public", "deny@b.example"], deny, "b.example"));
    assert!(!query_allowed(&["deny@any", "allow@public"], deny, "b.example"));
    assert!(query_allowed(&[], allow, "b.example"));
    assert!(!query_allowed(&["allow:ingress@any"], deny, "b.example"));
}

#[test]
fn answers_hold_only_allowed_addresses() {
    let allows = |texts: &[&str], address: &str| {
        deny_by_default(texts).allows_answer(address.parse().unwrap(), false)
    };
    assert!(allows(&["allow@a.example"], "1.1.1.1"));
    for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "198.18.0.1", "fe80::1"]
    {
        assert!(!allows(&["allow@a.example", "allow@public"], address), "{address}");
    }
    assert!(allows(&["allow@private"], "10.0.0.1"));
    assert!(allows(&["allow@10.0.0.0/8:tcp:443"], "10.0.0.1"));
    assert!(!allows(&["deny@10.0.0.1", "allow@private"], "10.0.0.1"));
    assert!(!allows(&["allow@private"], "192.168.1.5"));
    assert!(!allows(&["allow@public"], "203.0.113.9"));
    assert!(!allows(&["allow@a.example"], "203.0.113.9"));
    assert!(allows(&["allow@a.example", "allow@host"], "203.0.113.9"));
}

#[test]
fn the_host_has_a_name_where_it_may_be_reached() {
    assert!(deny_by_default(&["allow@host"]).reaches_host());
    assert!(deny_by_default(&["allow@host:tcp:80"]).reaches_host());
    assert!(deny_by_default(&["allow@any"]).reaches_host());
    assert!(!deny_by_default(&["allow@private", "allow@public"]).reaches_host());
    assert!(!deny_by_default(&["deny@host", "allow@any"]).reaches_host());
}

#[test]
fn ingress_is_allowed_by_default() {
    let decide = |texts: &[&str], flow, peer: &str| {
        deny_by_default(texts).decide_ingress(flow, peer.parse().unwrap()).allows()
    };
    assert!(decide(&["deny@any"], FlowProtocol::Tcp(80), "10.0.0.1"));
    assert!(!decide(&["deny:ingress@10.0.0.0/8"], FlowProtocol::Tcp(80), "10.0.0.1"));
    assert!(!decide(&["deny:ingress@10.0.0.0/8"], FlowProtocol::Tcp(80), "::ffff:10.0.0.1"));
    assert!(decide(&["deny:ingress@any:tcp:22"], FlowProtocol::Tcp(80), "10.0.0.1"));
    let only = ["allow:ingress@host", "deny:ingress@any"];
    assert!(decide(&only, FlowProtocol::Udp(53), "127.0.0.1"));
    assert!(!decide(&only, FlowProtocol::Udp(53), "10.0.0.1"));
}

#[test]
fn new_rules_apply_at_once() {
    let mut own = deny_by_default(&["allow@public"]);
    own.replace(Policy { rules: Vec::new(), default: Decision::Deny });
    assert!(!decide(&own, HTTPS, "1.1.1.1", &[]).0);
}

#[test]
fn the_host_is_reached_at_one_port_or_at_any() {
    let decided = |texts: &[&str], port| deny_by_default(texts).decide_host(port).allows();
    for (texts, one, whichever) in [
        (&[][..], false, false),
        (&["allow@host"], true, true),
        (&["allow@any"], true, true),
        (&["allow@host:tcp"], true, true),
        (&["allow@host:tcp:7070"], true, false),
        (&["allow@host:udp"], false, false),
        (&["allow@public", "allow@private"], false, false),
        (&["deny@host:tcp:22", "allow@host"], true, false),
        (&["deny@host:udp", "allow@host"], true, true),
        (&["deny@host", "allow@any"], false, false),
        (&["allow@198.18.0.1"], false, false),
    ] {
        assert_eq!(decided(texts, Some(7070)), one, "{texts:?}");
        assert_eq!(decided(texts, None), whichever, "{texts:?}");
    }
    assert!(rules(&[], Decision::Allow).decide_host(None).allows());
}

/// One table for both levels: a flow that its rules allow has its requests decided by the same
/// rules.
#[test]
fn flows_and_requests_are_decided_by_the_same_rules() {
    const API: &str = "api.example";
    const SITE: &str = "192.0.2.1";
    for (texts, address, port, flow_allowed, request_allowed, by) in [
        (&["deny@public", "allow@any"][..], SITE, 443, false, false, "deny@public"),
        (&["deny@private", "allow@public"], SITE, 443, true, true, "allow@public"),
        (&["deny@192.0.2.0/24", "allow@any"], SITE, 443, false, false, "deny@192.0.2.0/24"),
        (&["deny:ingress@any", "allow@any"], SITE, 443, true, true, "allow@any"),
        (&["deny@any:udp", "deny@any:icmp", "allow@any"], SITE, 443, true, true, "allow@any"),
        (&["deny@any:tcp:80", "allow@any:tcp:443"], SITE, 443, true, true, "allow@any:tcp:443"),
        (&["deny@*.example", "allow@any"], SITE, 443, false, false, "deny@*.example"),
        (&["allow@api.example", "deny@any"], SITE, 443, true, true, "allow@api.example"),
        // A name does not open a private address.
        (&["allow@api.example"], "10.0.0.1", 443, false, false, "default"),
        (&["allow@api.example", "allow@private"], "10.0.0.1", 443, true, true, "allow@api.example"),
        // An HTTP rule admits the flow; only its requests pass.
        (
            &["allow@api.example:http:GET:/v1"],
            SITE,
            443,
            true,
            true,
            "allow@api.example:http:GET:/v1",
        ),
        (&["allow@api.example:http:PUT:/v1"], SITE, 443, true, false, "default"),
        (&["allow@api.example:http:GET:/v2"], SITE, 443, true, false, "default"),
        (
            &["deny@api.example:http:GET:/v1", "allow@any"],
            SITE,
            443,
            true,
            false,
            "deny@api.example:http:GET:/v1",
        ),
        // Rules for the host, and not for its network, open the host.
        (&["allow@private"], "192.168.1.5", 443, false, false, "default"),
        (&["allow@host"], "192.168.1.5", 443, true, true, "allow@host"),
        // A port that hides names has to be listed.
        (&["allow@any"], SITE, 853, false, false, "default"),
        (&["allow@any:tcp:853"], SITE, 853, true, true, "allow@any:tcp:853"),
        (&["allow@any"], "169.254.169.254", 443, false, false, "default"),
        (&["allow@169.254.169.254"], "169.254.169.254", 443, true, true, "allow@169.254.169.254"),
        (&["allow@any"], "224.0.0.1", 443, false, false, "unroutable address"),
    ] {
        let rules = deny_by_default(texts);
        let address: IpAddr = address.parse().unwrap();
        let flow = rules.decide(FlowProtocol::Tcp(port), address, &names(&[API]));
        if !flow_allowed {
            // Such a flow has no requests.
            let decided = (flow.allows(), flow.rule.as_str());
            assert_eq!(decided, (false, by), "{texts:?} {address} {port}");
            continue;
        }
        let origin = OriginServer {
            name: name(API),
            address: (address, port).into(),
            tls: true,
            is_host: rules.is_host(address),
        };
        let head = hyper::Request::get("/v1").body(()).unwrap().into_parts().0;
        let request = request::decide(rules.policy(), &origin, &head);
        let decided = (flow.allows(), request.allows(), request.rule.as_str());
        assert_eq!(decided, (flow_allowed, request_allowed, by), "{texts:?} {address} {port}");
        if !texts.iter().any(|text| text.contains(":http")) {
            assert_eq!(flow.rule, request.rule, "{texts:?} {address} {port}");
        }
    }
}
