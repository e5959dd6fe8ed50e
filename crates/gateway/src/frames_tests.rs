use super::*;

fn frame(kind: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; VIRTIO_HEADER_LEN + 12];
    frame[VIRTIO_HEADER_LEN + 6..VIRTIO_HEADER_LEN + 12].copy_from_slice(&addresses::GUEST_LINK);
    frame.extend_from_slice(&kind);
    frame.extend_from_slice(payload);
    frame
}

const GUEST: IpAddr = IpAddr::V4(addresses::GUEST);
const GUEST6: IpAddr = IpAddr::V6(addresses::GUEST6);

fn server() -> IpAddr {
    "1.2.3.4".parse().unwrap()
}

#[test]
fn arp_request_for_the_gateway_is_answered() {
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
    request.extend_from_slice(&addresses::GUEST_LINK);
    request.extend_from_slice(&addresses::GUEST.octets());
    request.extend_from_slice(&[0; 6]);
    request.extend_from_slice(&addresses::GATEWAY.octets());
    let request_frame = frame(ARP, &request);
    let Some(Inbound::LinkQuery(LinkReply::Arp(answer))) = read(&request_frame) else {
        panic!("no answer")
    };
    assert_eq!(answer[6..8], [0, 2]);
    assert_eq!(answer[8..14], addresses::GATEWAY_LINK);
    assert_eq!(answer[18..24], addresses::GUEST_LINK);
    // An unused address of the network is answered, so that packets to it are refused at once.
    request[27] = 9;
    assert!(read(&frame(ARP, &request)).is_some());
    request[24..].copy_from_slice(&addresses::GUEST.octets());
    assert_eq!(read(&frame(ARP, &request)), None);
    request[24..].copy_from_slice(&[10, 0, 0, 1]);
    assert_eq!(read(&frame(ARP, &request)), None);
}

#[test]
fn neighbor_solicitation_for_the_gateway_is_answered() {
    let mut payload = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    payload.extend_from_slice(&addresses::GATEWAY6.octets());
    let group: IpAddr = "ff02::1:ff00:1".parse().unwrap();
    let request_frame = frame(IPV6, &packet(GUEST6, group, ICMP6, 255, &payload));
    let Some(Inbound::LinkQuery(LinkReply::IpPacket(answer))) = read(&request_frame) else {
        panic!("no answer")
    };
    assert_eq!(answer[40], ADVERTISEMENT);
    assert_eq!(answer[40 + 26..40 + 32], addresses::GATEWAY_LINK);
    // The sum over a message with its checksum is 0xffff.
    assert_eq!(
        ones_complement_sum(&answer[40..], u32::from(ones_complement_sum(&answer[8..40], 58 + 32))),
        0xffff
    );
    let unknown = frame(IPV6, &packet("::".parse().unwrap(), group, ICMP6, 255, &payload));
    assert_eq!(read(&unknown), None);
}

#[test]
fn fragments_and_foreign_sources_are_dropped() {
    let bytes = packet(GUEST, server(), UDP, 64, b"12345678");
    assert!(matches!(read(&frame(IPV4, &bytes)), Some(Inbound::IpPacket(_))));
    for (at, value) in [(6, 0x20), (7, 1), (0, 0x44), (0, 0x65), (12, 1), (2, 0xff), (3, 10)] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        assert_eq!(read(&frame(IPV4, &wrong)), None, "{at} {value}");
    }
    let six = packet("2001:db8::1".parse().unwrap(), GUEST6, UDP, 64, b"12345678");
    assert_eq!(read(&frame(IPV6, &six)), None);
}

#[test]
fn padding_is_cut_off() {
    let mut padded = packet(GUEST, server(), UDP, 64, b"12345678");
    padded.extend_from_slice(&[0; 30]);
    let framed = frame(IPV4, &padded);
    let Some(Inbound::IpPacket(read)) = read(&framed) else { panic!("dropped") };
    assert_eq!(read.payload, b"12345678");
}

#[test]
fn no_frame_panics() {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    let good = [
        frame(IPV4, &packet(GUEST, server(), TCP, 64, &[0x50; 40])),
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
        if let Some(Inbound::IpPacket(packet)) = read(&bytes) {
            unreachable(&packet, Unreachable::Refused);
            if let Some(segment) = TcpSegment::read(packet.payload) {
                segment.rst_reply(&packet);
            }
        }
    }
}

#[test]
fn a_refused_syn_gets_a_matching_reset() {
    let mut syn = [0; 20];
    syn[..2].copy_from_slice(&4000u16.to_be_bytes());
    syn[2..4].copy_from_slice(&443u16.to_be_bytes());
    syn[4..8].copy_from_slice(&7u32.to_be_bytes());
    syn[12] = 5 << 4;
    syn[13] = 2;
    let bytes = packet(GUEST, server(), TCP, 64, &syn);
    let framed = frame(IPV4, &bytes);
    let Some(Inbound::IpPacket(read)) = read(&framed) else { panic!("dropped") };
    let segment = TcpSegment::read(read.payload).unwrap();
    assert!(segment.is_syn());
    let answer = segment.rst_reply(&read);
    assert_eq!(answer[12..16], [1, 2, 3, 4]);
    let answer = TcpSegment::read(&answer[20..]).unwrap();
    assert!(answer.is_rst());
    assert_eq!((answer.source, answer.target, answer.acknowledged), (443, 4000, 8));
}

#[test]
fn an_unreachable_port_quotes_the_packet() {
    let bytes = packet(GUEST, server(), UDP, 64, b"12345678");
    let framed = frame(IPV4, &bytes);
    let Some(Inbound::IpPacket(read)) = read(&framed) else { panic!("dropped") };
    let sent_back = unreachable(&read, Unreachable::Port);
    assert_eq!(sent_back[20..22], [3, 3]);
    assert_eq!(sent_back[28..], bytes);
    assert_eq!(ones_complement_sum(&sent_back[20..], 0), 0xffff);
    assert_eq!(ones_complement_sum(&sent_back[..20], 0), 0xffff);
}

#[test]
fn a_frame_for_tap_leaves_the_checksum_to_the_device() {
    let payload = packet(server(), GUEST, UDP, 64, &[0, 53, 16, 0, 0, 8, 0, 0]);
    let mut bytes = vec![0xff; HEADERS_LEN];
    bytes.extend_from_slice(&payload);
    write_headers(&mut bytes, addresses::GUEST_LINK, LinkKind::Tap);
    assert_eq!(bytes[..VIRTIO_HEADER_LEN], [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 1, 0]);
    let expected = ones_complement_sum(&payload[12..20], 17 + 8);
    assert_eq!(bytes[HEADERS_LEN + 26..HEADERS_LEN + 28], expected.to_be_bytes());
}

#[test]
fn the_mss_of_a_syn_is_clamped_to_the_mtu() {
    let segment = |flags: u8, options: &[u8]| {
        let mut segment = vec![0; 20];
        segment[12] = ((20 + options.len()) / 4) as u8 * 16;
        segment[13] = flags;
        segment.extend_from_slice(options);
        segment
    };
    let asks = [1, 1, 8, 4, 9, 9, 2, 4, 0xff, 0xc8, 0, 0];
    for (guest, target, kind, most) in
        [(GUEST, server(), IPV4, 1460u16), (GUEST6, "2001:db8::1".parse().unwrap(), IPV6, 1440)]
    {
        for (flags, wanted) in [(2, most), (0x12, most), (0x10, 0xffc8)] {
            let mut frame = frame(kind, &packet(guest, target, TCP, 64, &segment(flags, &asks)));
            clamp_mss(&mut frame, 1500);
            assert_eq!(frame[frame.len() - 4..frame.len() - 2], wanted.to_be_bytes());
        }
        let little = [2, 4, 2, 0];
        let mut frame = frame(kind, &packet(guest, target, TCP, 64, &segment(2, &little)));
        clamp_mss(&mut frame, 1500);
        assert!(frame.ends_with(&little));
    }
    // FrameError options neither panic nor loop for ever.
    for options in [&[3, 0, 0, 0][..], &[2, 4, 1, 1, 2, 9, 9, 9], &[2, 4, 0xff, 0xff, 7, 200, 0, 0]]
    {
        let bytes = frame(IPV4, &packet(GUEST, server(), TCP, 64, &segment(2, options)));
        for length in 0..=bytes.len() {
            clamp_mss(&mut bytes[..length].to_vec(), 1500);
        }
    }
}
