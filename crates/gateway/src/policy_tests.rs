use super::*;

fn rules(texts: &[&str], default: Decision) -> Rules {
    let rules = texts.iter().map(|text| Rule::parse(text).unwrap()).collect();
    let host = ["192.168.1.5", "203.0.113.9"].map(|text| text.parse().unwrap());
    let host = HostAddresses::listed(host);
    Rules::new(Policy { rules, default }, host, Vec::new(), Vec::new())
}

fn closed(texts: &[&str]) -> Rules {
    rules(texts, Decision::Deny)
}

fn name(text: &str) -> DomainName {
    DomainName::parse(text).unwrap()
}

fn names(texts: &[&str]) -> Vec<DomainName> {
    texts.iter().map(|text| name(text)).collect()
}

fn judge(rules: &Rules, flow: Flow, address: &str, tied: &[&str]) -> (bool, String) {
    let judgement = rules.judge(flow, address.parse().unwrap(), &names(tied));
    (judgement.allows(), judgement.rule)
}

#[track_caller]
fn check(texts: &[&str], flow: Flow, address: &str, tied: &[&str], allowed: bool) {
    let (was, rule) = judge(&closed(texts), flow, address, tied);
    assert_eq!(was, allowed, "{texts:?} {flow:?} {address} {tied:?}: {rule}");
}

const HTTPS: Flow = Flow::Tcp(443);

#[test]
fn the_first_rule_that_matches_decides() {
    let own = ["deny@1.1.1.1", "allow@public"];
    assert_eq!(judge(&closed(&own), HTTPS, "1.1.1.1", &[]), (false, "deny@1.1.1.1".to_owned()));
    assert_eq!(judge(&closed(&own), HTTPS, "1.1.1.2", &[]), (true, "allow@public".to_owned()));
    assert_eq!(judge(&closed(&own), HTTPS, "10.1.1.1", &[]), (false, "default".to_owned()));
    let open = rules(&["deny@metadata"], Decision::Allow);
    assert_eq!(judge(&open, HTTPS, "10.1.1.1", &[]), (true, "default".to_owned()));
    assert!(!judge(&open, HTTPS, "169.254.169.254", &[]).0);
}

#[test]
fn groups_are_apart() {
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
fn what_is_refused_is_refused_in_every_form() {
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
    // The host's own.
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
        assert!(!judge(&rules(&[], Decision::Allow), HTTPS, address, &[]).0, "{address}");
        check(&["allow@metadata"], HTTPS, address, &[], true);
        check(&[&format!("allow@{address}")], HTTPS, address, &[], true);
        check(&["deny@metadata", &format!("allow@{address}")], HTTPS, address, &[], false);
    }
    // Nor by its being the host's own.
    let policy =
        Policy { rules: vec![Rule::parse("allow@host").unwrap()], default: Decision::Deny };
    let own = HostAddresses::listed(["169.254.169.254".parse().unwrap()]);
    let own = Rules::new(policy, own, Vec::new(), Vec::new());
    assert!(!judge(&own, HTTPS, "169.254.169.254", &[]).0);
    check(&["deny@private", "allow@169.254.9.9"], HTTPS, "169.254.9.9", &[], false);
}

#[test]
fn the_host_is_not_one_of_its_neighbours() {
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
fn nobody_is_reached_by_no_rule() {
    for address in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "0.1.2.3", "ff02::1", "::"] {
        let judged = judge(&rules(&["allow@any"], Decision::Allow), HTTPS, address, &[]);
        assert_eq!(judged, (false, "no such address".to_owned()), "{address}");
    }
}

#[test]
fn a_name_rule_is_about_tied_addresses() {
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

/// The answer to a DNS query is chosen by others: it opens nothing that an address rule did not.
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
            (Flow::Tcp(8001), true),
            (Flow::Tcp(8002), false),
            (Flow::Tcp(80), false),
            (Flow::Tcp(443), false),
            (Flow::Udp(8001), false),
            (Flow::Echo, false),
        ] {
            check(&own, flow, address, &["a.example"], allowed);
        }
    }
    // A rule that refuses some requests lets the others in, and opens no address either.
    let own = ["deny@a.example:http:POST:/", "allow@a.example"];
    check(&own, Flow::Tcp(80), "10.0.0.1", &["a.example"], false);
    check(&own, Flow::Tcp(80), "1.1.1.1", &["a.example"], true);
    // A port that is refused by address is refused by every name.
    let own = ["allow@a.example", "deny@10.0.0.1:tcp:22", "allow@private"];
    check(&own, Flow::Tcp(22), "10.0.0.1", &["a.example"], false);
    check(&own, Flow::Tcp(23), "10.0.0.1", &["a.example"], true);
}

#[test]
fn what_hides_its_name_must_be_named() {
    for (flow, plain) in [
        (Flow::Tcp(443), true),
        (Flow::Tcp(22), true),
        (Flow::Udp(123), true),
        (Flow::Echo, true),
        (Flow::Tcp(53), false),
        (Flow::Tcp(853), false),
        (Flow::Udp(53), false),
        (Flow::Udp(443), false),
        (Flow::Udp(853), false),
    ] {
        check(&["allow@public"], flow, "1.1.1.1", &[], plain);
        assert_eq!(judge(&rules(&[], Decision::Allow), flow, "1.1.1.1", &[]).0, plain);
        let (tcp, udp) = (matches!(flow, Flow::Tcp(_)), matches!(flow, Flow::Udp(_)));
        check(&["allow@public:tcp"], flow, "1.1.1.1", &[], plain && tcp);
        check(&["allow@public:udp"], flow, "1.1.1.1", &[], plain && udp);
        check(&["allow@public:icmp"], flow, "1.1.1.1", &[], flow == Flow::Echo);
        check(&["allow@public:tcp:22,53,443,853"], flow, "1.1.1.1", &[], tcp);
        check(&["allow@public:udp:1-1000"], flow, "1.1.1.1", &[], udp);
        let refused = ["deny@public", "allow@any:tcp:1-1000", "allow@any:udp:1-1000"];
        check(&refused, flow, "1.1.1.1", &[], false);
    }
}

#[test]
fn requests_are_let_in_to_be_ruled() {
    let own = closed(&["deny@a.example:http:POST:/", "allow@b.example"]);
    let judged = own.judge(HTTPS, "1.1.1.1".parse().unwrap(), &names(&["a.example"]));
    assert!(judged.allows());
    assert_eq!(judged.proof, Proof::Requests);
    assert!(own.reads_first(HTTPS, "1.1.1.1".parse().unwrap(), &names(&["a.example"])));
    assert!(!own.reads_first(HTTPS, "1.1.1.1".parse().unwrap(), &names(&["b.example"])));
    check(&["allow@a.example:http"], Flow::Udp(443), "1.1.1.1", &["a.example"], false);
}

#[test]
fn what_was_allowed_by_name_has_to_show_it() {
    let own = closed(&["allow@a.example", "allow@1.1.1.2"]);
    let address = "1.1.1.1".parse().unwrap();
    let tied = names(&["a.example", "b.example"]);
    assert_eq!(own.judge(HTTPS, address, &tied).proof, Proof::Name);
    assert_eq!(own.judge(HTTPS, "1.1.1.2".parse().unwrap(), &[]).proof, Proof::None);
    let tls = |text: &str| Sniffed::Tls { name: Some(name(text)) };
    let http = |text: &str| Sniffed::Http { host: Some(name(text)) };
    for (port, sniffed, passes) in [
        (443, tls("a.example"), true),
        (443, tls("b.example"), false),
        (443, tls("c.example"), false),
        (443, Sniffed::Tls { name: None }, false),
        (443, http("a.example"), true),
        (443, Sniffed::Other, false),
        (80, http("a.example"), true),
        (80, http("b.example"), false),
        (80, Sniffed::Http { host: None }, false),
        (80, Sniffed::Other, false),
        (22, Sniffed::Other, true),
        (22, tls("c.example"), false),
    ] {
        let seen = own.look(port, address, &tied, Proof::Name, &sniffed);
        let read = matches!(sniffed, Sniffed::Http { .. });
        let passed = if read { Seen::Intercept(name("a.example")) } else { seen.clone() };
        let passed = passed == seen && !matches!(seen, Seen::Refuse(_));
        assert_eq!(passed, passes, "{port} {sniffed:?}: {seen:?}");
    }
}

#[test]
fn what_was_allowed_by_address_may_be_anything_but_refused() {
    let own = closed(&["deny@bad.example", "allow@ruled.example:http:GET:/", "allow@public"]);
    let address = "1.1.1.1".parse().unwrap();
    assert_eq!(own.judge(HTTPS, address, &[]).proof, Proof::Harmless);
    let tls = |text: &str| Sniffed::Tls { name: Some(name(text)) };
    let look = |sniffed| own.look(443, address, &[], Proof::Harmless, &sniffed);
    assert!(matches!(look(tls("bad.example")), Seen::Refuse(_)));
    assert_eq!(look(tls("good.example")), Seen::Pass(Some(name("good.example"))));
    assert_eq!(look(tls("ruled.example")), Seen::Intercept(name("ruled.example")));
    // What hides its name could be for one that a rule is about.
    assert!(matches!(look(Sniffed::Tls { name: None }), Seen::Refuse(_)));
    assert!(matches!(look(Sniffed::Other), Seen::Refuse(_)));
    let on = |port, sniffed| own.look(port, address, &[], Proof::Harmless, &sniffed);
    assert_eq!(on(22, Sniffed::Other), Seen::Pass(None));
    for port in [80, 8080] {
        assert!(matches!(on(port, Sniffed::Http { host: None }), Seen::Refuse(_)));
        let good = Sniffed::Http { host: Some(name("good.example")) };
        assert_eq!(on(port, good), Seen::Intercept(name("good.example")), "each request is read");
    }
}

#[test]
fn only_rules_about_names_make_a_stream_show_one() {
    let address = "1.1.1.1".parse().unwrap();
    let harmless = |texts: &[&str]| closed(texts).must_show(HTTPS, address, Proof::Harmless);
    for (texts, shows) in [
        (&["deny@bad.example", "allow@public"][..], true),
        (&["allow@a.example:http:GET:/", "allow@public"], true),
        (&["deny@bad.example:tcp:443", "allow@public"], true),
        (&["deny@bad.example:tcp:22", "allow@public"], false),
        (&["deny@bad.example:udp", "allow@public"], false),
        (&["allow@good.example", "allow@public"], false),
        // Who names the address means whatever is there.
        (&["allow@1.1.1.1", "deny@bad.example", "allow@public"], false),
        (&["allow@2.2.2.2", "deny@bad.example", "allow@public"], true),
        (&["deny@2.2.2.2", "allow@public", "deny@bad.example"], false),
    ] {
        assert_eq!(harmless(texts), shows, "{texts:?}");
    }
}

#[test]
fn only_names_that_could_be_reached_are_asked_for() {
    let asks = |texts: &[&str], default, text: &str| {
        rules(texts, default).judge_question(&name(text)).allows()
    };
    let (deny, allow) = (Decision::Deny, Decision::Allow);
    assert!(asks(&["allow@a.example"], deny, "a.example"));
    assert!(!asks(&["allow@a.example"], deny, "b.example"));
    assert!(asks(&["allow@a.example:http:GET:/"], deny, "a.example"));
    assert!(asks(&["allow@public"], deny, "b.example"));
    assert!(asks(&["allow@any:tcp:80"], deny, "b.example"));
    // A query for a name tells it to others: no address is a reason for that.
    for address in ["10.0.0.0/8", "1.1.1.1", "1.1.1.1:udp:53", "0.0.0.0/0", "::/0"] {
        assert!(!asks(&[&format!("allow@{address}")], deny, "b.example"), "{address}");
    }
    for group in ["private", "host", "loopback", "metadata"] {
        assert!(!asks(&[&format!("allow@{group}")], deny, "b.example"), "{group}");
    }
    // What is left where the internet is refused is no reason either.
    assert!(!asks(&["deny@public", "allow@any"], deny, "b.example"));
    assert!(!asks(&["deny@public"], allow, "b.example"));
    assert!(!asks(&["deny@0.0.0.0/0", "deny@::/0", "allow@any"], deny, "b.example"));
    assert!(!asks(&["deny@public:tcp", "allow@any:tcp:80"], deny, "b.example"));
    assert!(asks(&["deny@0.0.0.0/0", "allow@any"], deny, "b.example"));
    assert!(asks(&["deny@public:tcp", "allow@any"], deny, "b.example"));
    assert!(asks(&["deny@public:tcp:80", "allow@any"], deny, "b.example"));
    assert!(asks(&["deny@public", "allow@b.example", "allow@private"], deny, "b.example"));
    assert!(!asks(&["deny@b.example", "allow@public"], deny, "b.example"));
    assert!(asks(&["deny@b.example:tcp:22", "allow@public"], deny, "b.example"));
    assert!(asks(&["allow@public", "deny@b.example"], deny, "b.example"));
    assert!(!asks(&["deny@any", "allow@public"], deny, "b.example"));
    assert!(asks(&[], allow, "b.example"));
    assert!(!asks(&["allow:ingress@any"], deny, "b.example"));
}

#[test]
fn answers_lead_to_nobody_who_was_not_allowed() {
    let may = |texts: &[&str], address: &str| closed(texts).may_answer(address.parse().unwrap());
    assert!(may(&["allow@a.example"], "1.1.1.1"));
    for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "198.18.0.1", "fe80::1"]
    {
        assert!(!may(&["allow@a.example", "allow@public"], address), "{address}");
    }
    assert!(may(&["allow@private"], "10.0.0.1"));
    assert!(may(&["allow@10.0.0.0/8:tcp:443"], "10.0.0.1"));
    assert!(!may(&["deny@10.0.0.1", "allow@private"], "10.0.0.1"));
    assert!(!may(&["allow@private"], "192.168.1.5"));
    assert!(!may(&["allow@public"], "203.0.113.9"));
    assert!(!may(&["allow@a.example"], "203.0.113.9"));
    assert!(may(&["allow@a.example", "allow@host"], "203.0.113.9"));
}

#[test]
fn the_host_has_a_name_where_it_may_be_reached() {
    assert!(closed(&["allow@host"]).reaches_host());
    assert!(closed(&["allow@host:tcp:80"]).reaches_host());
    assert!(closed(&["allow@any"]).reaches_host());
    assert!(!closed(&["allow@private", "allow@public"]).reaches_host());
    assert!(!closed(&["deny@host", "allow@any"]).reaches_host());
}

#[test]
fn everybody_may_come_in_where_no_rule_says_otherwise() {
    let judge = |texts: &[&str], flow, peer: &str| {
        closed(texts).judge_peer(flow, peer.parse().unwrap()).allows()
    };
    assert!(judge(&["deny@any"], Flow::Tcp(80), "10.0.0.1"));
    assert!(!judge(&["deny:ingress@10.0.0.0/8"], Flow::Tcp(80), "10.0.0.1"));
    assert!(!judge(&["deny:ingress@10.0.0.0/8"], Flow::Tcp(80), "::ffff:10.0.0.1"));
    assert!(judge(&["deny:ingress@any:tcp:22"], Flow::Tcp(80), "10.0.0.1"));
    let only = ["allow:ingress@host", "deny:ingress@any"];
    assert!(judge(&only, Flow::Udp(53), "127.0.0.1"));
    assert!(!judge(&only, Flow::Udp(53), "10.0.0.1"));
}

#[test]
fn new_rules_count_at_once() {
    let mut own = closed(&["allow@public"]);
    own.replace(Policy { rules: Vec::new(), default: Decision::Deny });
    assert!(!judge(&own, HTTPS, "1.1.1.1", &[]).0);
}

#[test]
fn the_host_is_reached_at_one_port_or_at_whichever() {
    let judged = |texts: &[&str], port| closed(texts).judge_host(port).allows();
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
        assert_eq!(judged(texts, Some(7070)), one, "{texts:?}");
        assert_eq!(judged(texts, None), whichever, "{texts:?}");
    }
    assert!(rules(&[], Decision::Allow).judge_host(None).allows());
}
