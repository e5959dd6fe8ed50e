use super::*;

fn name(text: &str) -> DomainName {
    DomainName::parse(text).unwrap()
}

/// What a server answers, with these addresses.
fn served(id: u16, asked: &str, addresses: &[&str]) -> Vec<u8> {
    let mut packet = Packet::new_reply(id);
    packet.questions.push(Question::new(
        Name::new_unchecked(asked),
        QTYPE::TYPE(TYPE::A),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    for address in addresses {
        let address: Ipv4Addr = address.parse().unwrap();
        packet.answers.push(ResourceRecord::new(
            Name::new_unchecked(asked),
            CLASS::IN,
            60,
            RData::A(A { address: address.to_bits() }),
        ));
    }
    packet.build_bytes_vec_compressed().unwrap()
}

#[test]
fn a_question_is_read_as_it_is_written() {
    let bytes = question(7, &name("a.example.com"), A_RECORD);
    let asked = Asked::read(&bytes).unwrap();
    assert_eq!((asked.id, asked.name.as_str(), asked.kind), (7, "a.example.com", A_RECORD));
    assert_eq!((asked.room, asked.extended), (1232, true));
    let plain = &bytes[..bytes.len() - 11];
    let mut plain = plain.to_vec();
    plain[11] = 0;
    let asked = Asked::read(&plain).unwrap();
    assert_eq!((asked.room, asked.extended), (512, false));
}

#[test]
fn letters_come_back_as_they_were_asked() {
    let mut bytes = question(7, &name("a.example.com"), A_RECORD);
    bytes[15] = b'E';
    let asked = Asked::read(&bytes).unwrap();
    assert_eq!(asked.name.as_str(), "a.example.com");
    let answer = asked.answer(Outcome::NoSuchName);
    assert_eq!(answer[3] & 15, 3);
    assert_eq!(answer[12..31], bytes[12..31]);
}

#[test]
fn what_is_no_question_is_refused() {
    let good = question(7, &name("a.example.com"), A_RECORD);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Asked::read(&bytes)
    };
    assert_eq!(with(2, 0x80), Err(None));
    assert_eq!(with(2, 0x10).unwrap_err().unwrap()[3] & 15, 4);
    assert_eq!(with(5, 2).unwrap_err().unwrap()[3] & 15, 1);
    assert_eq!(with(12, 0xc0).unwrap_err().unwrap()[3] & 15, 1);
    assert_eq!(with(13, b' ').unwrap_err().unwrap()[3] & 15, 5);
    assert_eq!(with(30, 3).unwrap_err().unwrap()[3] & 15, 5);
    assert_eq!(Asked::read(&good[..11]), Err(None));
    for (kind, treatment) in [
        (1, Treatment::Forward),
        (16, Treatment::Forward),
        (64, Treatment::Empty),
        (65, Treatment::Empty),
        (252, Treatment::Refuse),
        (255, Treatment::Refuse),
    ] {
        let asked = Asked::read(&question(1, &name("a.example"), kind)).unwrap();
        assert_eq!(asked.treatment(), treatment, "{kind}");
    }
}

#[test]
fn an_answer_to_something_else_is_none() {
    let asked = name("a.example");
    let good = served(9, "a.example", &["1.2.3.4"]);
    assert!(matches!(read_answer(&good, 9, &asked, A_RECORD), Said::Records(_)));
    assert!(matches!(read_answer(&good, 8, &asked, A_RECORD), Said::Nothing));
    assert!(matches!(read_answer(&good, 9, &name("b.example"), A_RECORD), Said::Nothing));
    assert!(matches!(read_answer(&good, 9, &asked, AAAA_RECORD), Said::Nothing));
    let mut cut = good.clone();
    cut[2] |= 2;
    assert!(matches!(read_answer(&cut, 9, &asked, A_RECORD), Said::TooLong));
    let mut failed = good.clone();
    failed[3] |= 2;
    assert!(matches!(read_answer(&failed, 9, &asked, A_RECORD), Said::Failed));
    let mut claims = good;
    claims[6] = 0xff;
    assert!(matches!(read_answer(&claims, 9, &asked, A_RECORD), Said::Failed));
}

#[test]
fn addresses_that_may_not_pass_are_taken_out() {
    let bytes = served(9, "a.example", &["1.2.3.4", "10.0.0.1"]);
    let Said::Records(mut records) = read_answer(&bytes, 9, &name("a.example"), 1) else {
        panic!("no records")
    };
    let private: IpAddr = "10.0.0.1".parse().unwrap();
    assert!(!records.keep(|address| address != private));
    assert_eq!(records.addresses().collect::<Vec<_>>(), [("1.2.3.4".parse().unwrap(), 60)]);
    assert!(records.keep(|_| false));
}

#[test]
fn a_long_answer_is_cut_to_the_askers_room() {
    let many: Vec<String> = (0..100).map(|n| format!("1.2.3.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let bytes = served(9, "a.example", &many);
    let Said::Records(records) = read_answer(&bytes, 9, &name("a.example"), 1) else {
        panic!("no records")
    };
    let asked = Asked::read(&question(3, &name("a.example"), 1)).unwrap();
    let whole = asked.answer_with(&records, 0, false);
    assert!(whole.len() > 1232);
    let cut = asked.answer_with(&records, 0, true);
    assert!(cut.len() < 512);
    assert_eq!(cut[2] & 2, 2);
    let aged = Packet::parse(&whole).unwrap().answers[0].ttl;
    assert_eq!(aged, 60);
    let later = asked.answer_with(&records, 25, false);
    assert_eq!(Packet::parse(&later).unwrap().answers[0].ttl, 35);
}

#[test]
fn nothing_that_is_sent_panics() {
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    let good =
        [question(9, &name("a.example"), 1), served(9, "a.example", &["1.2.3.4", "1.2.3.5"])];
    for _ in 0..200_000 {
        let mut bytes = good[random() % good.len()].clone();
        for _ in 0..random() % 5 {
            let at = random() % bytes.len();
            bytes[at] = random() as u8;
        }
        bytes.truncate(random() % (bytes.len() + 1));
        if let Ok(asked) = Asked::read(&bytes) {
            asked.answer(Outcome::Fine);
        }
        if let Said::Records(records) = read_answer(&bytes, 9, &name("a.example"), 1) {
            let asked = Asked::read(&good[0]).unwrap();
            asked.answer_with(&records, 1, true);
        }
    }
}
