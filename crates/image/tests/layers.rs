//! Runs the fuzz body on fixed input: valid layers with random mutations.

#[path = "../fuzz/body.rs"]
mod body;

/// Enough to mutate every field many times; takes some seconds.
const ROUNDS: u32 = 1_000;

/// xorshift64: the same sequence on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

#[test]
fn mutated_layers_stay_inside_the_tree() {
    let seeds = body::seeds();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..ROUNDS {
        let mut bytes = Vec::new();
        for _ in 0..=numbers.below(12) {
            bytes.extend_from_slice(&seeds[numbers.below(seeds.len())]);
        }
        for _ in 0..numbers.below(6) {
            let at = numbers.below(bytes.len());
            match numbers.below(4) {
                0 => bytes[at] = numbers.below(256) as u8,
                1 => bytes[at] ^= 1 << numbers.below(8),
                // The most relevant fields: names, sizes, types, targets.
                2 => {
                    let field = body::FIELDS[numbers.below(body::FIELDS.len())];
                    let at = (at / 512 * 512 + field + numbers.below(8)).min(bytes.len() - 1);
                    let letters = b"../\0:0123456789Lxg\xff\x80ad";
                    bytes[at] = letters[numbers.below(letters.len())];
                }
                _ => bytes.truncate(at.max(1)),
            }
        }
        body::exercise(&bytes);
    }
}

#[test]
fn random_bytes_stay_inside_the_tree() {
    let mut numbers = Numbers(42);
    for _ in 0..ROUNDS / 10 {
        let length = numbers.below(2048);
        let mut bytes: Vec<u8> = (0..length).map(|_| numbers.below(256) as u8).collect();
        let start: &[u8] =
            [&b""[..], &[0x1f, 0x8b, 8, 0], &[0x28, 0xb5, 0x2f, 0xfd]][numbers.below(3)];
        bytes.splice(0..0, start.iter().copied());
        body::exercise(&bytes);
    }
}

#[test]
fn disks_of_mutated_layers_pass_fsck() {
    let seeds = body::seeds();
    let mut numbers = Numbers(7);
    let path = std::env::temp_dir().join(format!("msb-bent-{}.erofs", std::process::id()));
    let mut whole = 0;
    for _ in 0..ROUNDS {
        let mut layers = [Vec::new(), Vec::new()];
        for _ in 0..=numbers.below(8) {
            let layer = numbers.below(2);
            layers[layer].extend_from_slice(&seeds[numbers.below(seeds.len())]);
        }
        let bounds = msb_image::unpack::Bounds { bytes: 1 << 20, entries: 40, depth: 6 };
        let mut open = std::fs::File::options();
        let file = open.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let layers = layers.iter().map(Vec::as_slice);
        if msb_image::pack::pack(layers, file, &bounds, [0; 16], None).is_err() {
            continue;
        }
        whole += 1;
        let output = std::process::Command::new("fsck.erofs").arg("--extract").arg(&path).output();
        let output = output.expect("erofs-utils is installed");
        let text =
            String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains("<E>"), "{text}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(whole > 100, "{whole}");
}
