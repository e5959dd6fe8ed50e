use super::*;

fn frame(kind: [u8; 2], body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; VIRTIO + 12];
    frame[VIRTIO + 6..VIRTIO + 12].copy_from_slice(&addresses::GUEST_LINK);
    frame.extend_from_slice(&kind);
    frame.extend_from_slice(body);
    frame
}

const GUEST: IpAddr = IpAddr::V4(addresses::GUEST);
const GUEST6: IpAddr = IpAddr::V6(addresses::GUEST6);

fn outside() -> IpAddr {
    "1.2.3.4".parse().unwrap()
}

#[test]
fn who_asks_for_the_gateway_gets_its_link_address() {
    let mut question = vec![0, 1, 8, 0, 6, 4, 0, 1];
    question.extend_from_slice(&addresses::GUEST_LINK);
    question.extend_from_slice(&addresses::GUEST.octets());
    question.extend_from_slice(&[0; 6]);
    question.extend_from_slice(&addresses::GATEWAY.octets());
    let asked = frame(ARP, &question);
    let Some(Inbound::Asked(Reply::Arp(answer))) = read(&asked) else { panic!("no answer") };
    assert_eq!(answer[6..8], [0, 2]);
    assert_eq!(answer[8..14], addresses::GATEWAY_LINK);
    assert_eq!(answer[18..24], addresses::GUEST_LINK);
    // Nobody is there: told so by us at once, when something is sent to it.
    question[27] = 9;
    assert!(read(&frame(ARP, &question)).is_some());
    question[24..].copy_from_slice(&addresses::GUEST.octets());
    assert_eq!(read(&frame(ARP, &question)), None);
    question[24..].copy_from_slice(&[10, 0, 0, 1]);
    assert_eq!(read(&frame(ARP, &question)), None);
}

#[test]
fn who_asks_for_the_gateway_over_ipv6_gets_it_too() {
    let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(&addresses::GATEWAY6.octets());
    let group: IpAddr = "ff02::1:ff00:1".parse().unwrap();
    let asked = frame(IPV6, &packet(GUEST6, group, ICMP6, 255, &body));
    let Some(Inbound::Asked(Reply::Packet(answer))) = read(&asked) else { panic!("no answer") };
    assert_eq!(answer[40], ADVERTISEMENT);
    assert_eq!(answer[40 + 26..40 + 32], addresses::GATEWAY_LINK);
    // A sum over everything with its checksum is zero.
    assert_eq!(sum(&answer[40..], u32::from(sum(&answer[8..40], 58 + 32))), 0xffff);
    let unknown = frame(IPV6, &packet("::".parse().unwrap(), group, ICMP6, 255, &body));
    assert_eq!(read(&unknown), None);
}

#[test]
fn pieces_and_strangers_are_dropped() {
    let whole = packet(GUEST, outside(), UDP, 64, b"12345678");
    assert!(matches!(read(&frame(IPV4, &whole)), Some(Inbound::Packet(_))));
    for (at, value) in [(6, 0x20), (7, 1), (0, 0x44), (0, 0x65), (12, 1), (2, 0xff), (3, 10)] {
        let mut wrong = whole.clone();
        wrong[at] = value;
        assert_eq!(read(&frame(IPV4, &wrong)), None, "{at} {value}");
    }
    let six = packet("2001:db8::1".parse().unwrap(), GUEST6, UDP, 64, b"12345678");
    assert_eq!(read(&frame(IPV6, &six)), None);
}

#[test]
fn what_is_padded_is_read_without_its_padding() {
    let mut padded = packet(GUEST, outside(), UDP, 64, b"12345678");
    padded.extend_from_slice(&[0; 30]);
    let framed = frame(IPV4, &padded);
    let Some(Inbound::Packet(read)) = read(&framed) else { panic!("dropped") };
    assert_eq!(read.body, b"12345678");
}

#[test]
fn nothing_that_comes_in_panics() {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    let good = [
        frame(IPV4, &packet(GUEST, outside(), TCP, 64, &[0x50; 40])),
        frame(IPV6, &packet(GUEST6, GUEST6, ICMP6, 64, &[SOLICITATION; 40])),
        frame(ARP, &[0; 28]),
    ];
    for _ in 0..100_000 {
        let mut bytes = good[random() % good.len()].clone();
        for _ in 0..random() % 4 {
            let at = random() % bytes.len();
            bytes[at] = random() as u8;
        }
        bytes.truncate(random() % (bytes.len() + 1));
        if let Some(Inbound::Packet(packet)) = read(&bytes) {
            unreachable(&packet, Unreachable::Refused);
            if let Some(segment) = Segment::read(packet.body) {
                segment.reset(&packet);
            }
        }
    }
}

#[test]
fn a_refused_stream_is_reset_in_its_own_words() {
    let mut syn = [0; 20];
    syn[..2].copy_from_slice(&4000u16.to_be_bytes());
    syn[2..4].copy_from_slice(&443u16.to_be_bytes());
    syn[4..8].copy_from_slice(&7u32.to_be_bytes());
    syn[12] = 5 << 4;
    syn[13] = 2;
    let whole = packet(GUEST, outside(), TCP, 64, &syn);
    let framed = frame(IPV4, &whole);
    let Some(Inbound::Packet(read)) = read(&framed) else { panic!("dropped") };
    let segment = Segment::read(read.body).unwrap();
    assert!(segment.opens());
    let answer = segment.reset(&read);
    assert_eq!(answer[12..16], [1, 2, 3, 4]);
    let answer = Segment::read(&answer[20..]).unwrap();
    assert!(answer.resets());
    assert_eq!((answer.source, answer.target, answer.acknowledged), (443, 4000, 8));
}

#[test]
fn an_unreachable_port_is_told_with_what_was_sent() {
    let whole = packet(GUEST, outside(), UDP, 64, b"12345678");
    let framed = frame(IPV4, &whole);
    let Some(Inbound::Packet(read)) = read(&framed) else { panic!("dropped") };
    let told = unreachable(&read, Unreachable::Port);
    assert_eq!(told[20..22], [3, 3]);
    assert_eq!(told[28..], whole);
    assert_eq!(sum(&told[20..], 0), 0xffff);
    assert_eq!(sum(&told[..20], 0), 0xffff);
}

#[test]
fn a_finished_frame_leaves_the_checksum_to_the_device() {
    let body = packet(outside(), GUEST, UDP, 64, &[0, 53, 16, 0, 0, 8, 0, 0]);
    let mut bytes = vec![0xff; BEFORE];
    bytes.extend_from_slice(&body);
    finish(&mut bytes, addresses::GUEST_LINK, Wire::Tap);
    assert_eq!(bytes[..VIRTIO], [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 1, 0]);
    let expected = sum(&body[12..20], 17 + 8);
    assert_eq!(bytes[BEFORE + 26..BEFORE + 28], expected.to_be_bytes());
}

#[test]
fn the_first_segment_of_a_stream_asks_for_what_fits() {
    let segment = |flags: u8, options: &[u8]| {
        let mut segment = vec![0; 20];
        segment[12] = ((20 + options.len()) / 4) as u8 * 16;
        segment[13] = flags;
        segment.extend_from_slice(options);
        segment
    };
    let asks = [1, 1, 8, 4, 9, 9, 2, 4, 0xff, 0xc8, 0, 0];
    for (guest, target, kind, most) in
        [(GUEST, outside(), IPV4, 1460u16), (GUEST6, "2001:db8::1".parse().unwrap(), IPV6, 1440)]
    {
        for (flags, wanted) in [(2, most), (0x12, most), (0x10, 0xffc8)] {
            let mut frame = frame(kind, &packet(guest, target, TCP, 64, &segment(flags, &asks)));
            ask_for_less(&mut frame, 1500);
            assert_eq!(frame[frame.len() - 4..frame.len() - 2], wanted.to_be_bytes());
        }
        let little = [2, 4, 2, 0];
        let mut frame = frame(kind, &packet(guest, target, TCP, 64, &segment(2, &little)));
        ask_for_less(&mut frame, 1500);
        assert!(frame.ends_with(&little));
    }
    // Nothing that cannot be read is read, or turns for ever.
    for options in [&[3, 0, 0, 0][..], &[2, 4, 1, 1, 2, 9, 9, 9], &[2, 4, 0xff, 0xff, 7, 200, 0, 0]]
    {
        let whole = frame(IPV4, &packet(GUEST, outside(), TCP, 64, &segment(2, options)));
        for length in 0..=whole.len() {
            ask_for_less(&mut whole[..length].to_vec(), 1500);
        }
    }
}
