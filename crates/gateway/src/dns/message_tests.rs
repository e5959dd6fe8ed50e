use super::*;

fn name(text: &str) -> DomainName {
    DomainName::parse(text).unwrap()
}

/// A server's response with these addresses.
fn response(id: u16, query: &str, addresses: &[&str]) -> Vec<u8> {
    let mut packet = Packet::new_reply(id);
    packet.questions.push(Question::new(
        Name::new_unchecked(query),
        QTYPE::TYPE(TYPE::A),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    for address in addresses {
        let address: Ipv4Addr = address.parse().unwrap();
        packet.answers.push(ResourceRecord::new(
            Name::new_unchecked(query),
            CLASS::IN,
            60,
            RData::A(A { address: address.to_bits() }),
        ));
    }
    packet.build_bytes_vec_compressed().unwrap()
}

#[test]
fn a_query_is_parsed_as_it_was_built() {
    let bytes = build_query(7, &name("a.example.com"), A_RECORD);
    let query = DnsQuery::parse(&bytes).unwrap();
    assert_eq!((query.id, query.name.as_str(), query.qtype), (7, "a.example.com", A_RECORD));
    assert_eq!((query.max_udp_len, query.has_edns), (1232, true));
    let plain = &bytes[..bytes.len() - 11];
    let mut plain = plain.to_vec();
    plain[11] = 0;
    let query = DnsQuery::parse(&plain).unwrap();
    assert_eq!((query.max_udp_len, query.has_edns), (512, false));
}

#[test]
fn the_case_of_the_name_is_kept() {
    let mut bytes = build_query(7, &name("a.example.com"), A_RECORD);
    bytes[15] = b'E';
    let query = DnsQuery::parse(&bytes).unwrap();
    assert_eq!(query.name.as_str(), "a.example.com");
    let respond = query.respond(ResponseCode::NxDomain);
    assert_eq!(respond[3] & 15, 3);
    assert_eq!(respond[12..31], bytes[12..31]);
}

#[test]
fn malformed_queries_are_refused() {
    let good = build_query(7, &name("a.example.com"), A_RECORD);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        DnsQuery::parse(&bytes)
    };
    assert_eq!(with(2, 0x80), Err(None));
    assert_eq!(with(2, 0x10).unwrap_err().unwrap()[3] & 15, 4);
    assert_eq!(with(5, 2).unwrap_err().unwrap()[3] & 15, 1);
    assert_eq!(with(12, 0xc0).unwrap_err().unwrap()[3] & 15, 1);
    assert_eq!(with(13, b' ').unwrap_err().unwrap()[3] & 15, 5);
    assert_eq!(with(30, 3).unwrap_err().unwrap()[3] & 15, 5);
    assert_eq!(DnsQuery::parse(&good[..11]), Err(None));
    for (qtype, action) in [
        (1, QueryAction::Forward),
        (16, QueryAction::Forward),
        (64, QueryAction::Empty),
        (65, QueryAction::Empty),
        (252, QueryAction::Refuse),
        (255, QueryAction::Refuse),
    ] {
        let query = DnsQuery::parse(&build_query(1, &name("a.example"), qtype)).unwrap();
        assert_eq!(query.action(), action, "{qtype}");
    }
}

#[test]
fn a_response_to_another_query_is_unrelated() {
    let query = name("a.example");
    let good = response(9, "a.example", &["1.2.3.4"]);
    assert!(matches!(parse_response(&good, 9, &query, A_RECORD), DnsReply::Records(_)));
    assert!(matches!(parse_response(&good, 8, &query, A_RECORD), DnsReply::Unrelated));
    assert!(matches!(parse_response(&good, 9, &name("b.example"), A_RECORD), DnsReply::Unrelated));
    assert!(matches!(parse_response(&good, 9, &query, AAAA_RECORD), DnsReply::Unrelated));
    let mut cut = good.clone();
    cut[2] |= 2;
    assert!(matches!(parse_response(&cut, 9, &query, A_RECORD), DnsReply::Truncated));
    let mut failed = good.clone();
    failed[3] |= 2;
    assert!(matches!(parse_response(&failed, 9, &query, A_RECORD), DnsReply::Failed));
    let mut claims = good;
    claims[6] = 0xff;
    assert!(matches!(parse_response(&claims, 9, &query, A_RECORD), DnsReply::Failed));
}

#[test]
fn refused_addresses_are_removed() {
    let bytes = response(9, "a.example", &["1.2.3.4", "10.0.0.1"]);
    let DnsReply::Records(mut records) = parse_response(&bytes, 9, &name("a.example"), 1) else {
        panic!("no records")
    };
    let private: IpAddr = "10.0.0.1".parse().unwrap();
    assert!(!records.retain_addresses(|address| address != private));
    assert_eq!(records.addresses().collect::<Vec<_>>(), [("1.2.3.4".parse().unwrap(), 60)]);
    assert!(records.retain_addresses(|_| false));
}

#[test]
fn a_long_response_is_truncated_for_udp() {
    let many: Vec<String> = (0..100).map(|n| format!("1.2.3.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let bytes = response(9, "a.example", &many);
    let DnsReply::Records(records) = parse_response(&bytes, 9, &name("a.example"), 1) else {
        panic!("no records")
    };
    let query = DnsQuery::parse(&build_query(3, &name("a.example"), 1)).unwrap();
    let whole = query.respond_with_records(&records, 0, false);
    assert!(whole.len() > 1232);
    let cut = query.respond_with_records(&records, 0, true);
    assert!(cut.len() < 512);
    assert_eq!(cut[2] & 2, 2);
    let aged = Packet::parse(&whole).unwrap().answers[0].ttl;
    assert_eq!(aged, 60);
    let later = query.respond_with_records(&records, 25, false);
    assert_eq!(Packet::parse(&later).unwrap().answers[0].ttl, 35);
}

#[test]
fn no_message_panics() {
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    let good =
        [build_query(9, &name("a.example"), 1), response(9, "a.example", &["1.2.3.4", "1.2.3.5"])];
    for _ in 0..200_000 {
        let mut bytes = good[random() % good.len()].clone();
        for _ in 0..random() % 5 {
            let at = random() % bytes.len();
            bytes[at] = random() as u8;
        }
        bytes.truncate(random() % (bytes.len() + 1));
        if let Ok(query) = DnsQuery::parse(&bytes) {
            query.respond(ResponseCode::NoError);
        }
        if let DnsReply::Records(records) = parse_response(&bytes, 9, &name("a.example"), 1) {
            let query = DnsQuery::parse(&good[0]).unwrap();
            query.respond_with_records(&records, 1, true);
        }
    }
}
