//! Runs the fuzz targets on fixed input: valid hellos and requests with mutations.

/// Enough to mutate every field many times; takes a few seconds.
const ROUNDS: u32 = 60_000;

/// xorshift64: the same numbers on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Meaningful parts, which are combined in any order.
const PIECES: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\n",
    b"POST /v1/%2e%2e/admin?key=msb-placeholder HTTP/1.1\r\n",
    b"GET /x?a=%6dsb-placeholder&b HTTP/1.0\r\n",
    b"CONNECT a.example:1 HTTP/1.1\r\n",
    b"Host: api.example\r\n",
    b"Authorization: Bearer msb-placeholder\r\n",
    b"Authorization: Basic bWU6bXNiLXBsYWNlaG9sZGVy\r\n",
    b"X-Api-Key: msb-placeholdermsb-placeholder\r\n",
    b"X-Other: sk-live/0123+abc\r\n",
    b"Content-Length: 15\r\n",
    b"Content-Type: application/json\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Upgrade: websocket\r\n",
    b" folded\r\n",
    b"\r\n",
    b"\n",
    b"msb-placeholder",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"f;x\r\nmsb-placeholder\r\n0\r\nA: b\r\n\r\n",
    b"\x16\x03\x01\x00\x45\x01\x00\x00\x41\x03\x03",
    b"\x00\x00\x02\x13\x01\x01\x00\x00\x16\x00\x00\x00\x12\x00\x10\x00\x00\x0dtest.example1",
    &[7; 32],
];

fn mutated(numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=numbers.below(9) {
        bytes.extend_from_slice(PIECES[numbers.below(PIECES.len())]);
    }
    for _ in 0..numbers.below(4) {
        let at = numbers.below(bytes.len());
        match numbers.below(4) {
            0 => bytes[at] = numbers.below(256) as u8,
            1 => bytes[at] ^= 1 << numbers.below(8),
            2 => bytes.insert(at, bytes[numbers.below(bytes.len())]),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

#[test]
fn mutated_hellos_and_requests_are_read_one_way_or_refused() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..ROUNDS {
        let bytes = mutated(&mut numbers);
        msb_gateway::fuzz::sniff(&bytes);
        msb_gateway::fuzz::requests(&bytes);
        msb_gateway::fuzz::frame(&bytes);
        msb_gateway::fuzz::dns(&bytes);
    }
}

/// Frames, DNS queries and responses as bytes on the wire.
const PACKETS: &[&[u8]] = &[
    // A SYN over IPv4 and IPv6.
    b"\0\0\0\0\0\0\0\0\0\0\0\0\x02msb\0\x01\x02msb\0\x02\x08\0\
      \x45\0\0\x28\0\0\x40\0\x40\x06\0\0\xc6\x12\0\x02\x01\x02\x03\x04\
      \x9c\x40\0\x50\0\0\0\x07\0\0\0\0\x50\x02\xff\xff\0\0\0\0",
    b"\0\0\0\0\0\0\0\0\0\0\0\0\x02msb\0\x01\x02msb\0\x02\x86\xdd\
      \x60\0\0\0\0\x14\x06\x40\xfd\x6d\x73\x62\0\0\0\0\0\0\0\0\0\0\0\x02\
      \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\
      \x9c\x40\0\x50\0\0\0\x07\0\0\0\0\x50\x02\xff\xff\0\0\0\0",
    // An ARP request for the gateway.
    b"\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\x02msb\0\x02\x08\x06\
      \0\x01\x08\0\x06\x04\0\x01\x02msb\0\x02\xc6\x12\0\x02\0\0\0\0\0\0\xc6\x12\0\x01",
    b"\0\x09\x01\0\0\x01\0\0\0\0\0\x01\x01a\x07example\0\0\x01\0\x01\
      \0\0\x29\x04\xd0\0\0\0\0\0\0",
    b"\0\x09\x81\x80\0\x01\0\x02\0\0\0\0\x01a\x07example\0\0\x01\0\x01\
      \xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01b\xc0\x0e\
      \xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x01\x02\x03\x04",
];

#[test]
fn mutated_packets_are_read_or_dropped() {
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    for _ in 0..ROUNDS {
        let mut bytes = PACKETS[numbers.below(PACKETS.len())].to_vec();
        for _ in 0..numbers.below(5) {
            let at = numbers.below(bytes.len());
            match numbers.below(3) {
                0 => bytes[at] = numbers.below(256) as u8,
                1 => bytes.insert(at, bytes[numbers.below(bytes.len())]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        msb_gateway::fuzz::frame(&bytes);
        msb_gateway::fuzz::dns(&bytes);
    }
}

#[test]
fn random_bytes_are_read_one_way_or_refused() {
    let mut numbers = Numbers(42);
    for _ in 0..ROUNDS {
        let length = numbers.below(64);
        let bytes: Vec<u8> = (0..length).map(|_| numbers.below(256) as u8).collect();
        msb_gateway::fuzz::sniff(&bytes);
        msb_gateway::fuzz::requests(&bytes);
        msb_gateway::fuzz::frame(&bytes);
        msb_gateway::fuzz::dns(&bytes);
    }
}
