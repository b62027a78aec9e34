//! The conservation law on random packets, fragments and tunnels with every kind of meter, and on
//! the inputs of the fuzz target, which are generated here.

use std::path::{Path, PathBuf};

/// xorshift64*: sufficient for random walks.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound
    }

    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }
}

fn ipv4(random: &mut Random, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let fragment: u16 = match random.below(4) {
        0 => [0x2000, 0x2001, 0x0002, 0x4000][random.below(4) as usize],
        _ => 0,
    };
    let mut bytes = vec![0x45, random.byte() & 4];
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, random.below(3) as u8]);
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([60 + random.below(4) as u8, protocol, 0, 0]);
    bytes.extend([
        10,
        0,
        0,
        random.below(4) as u8,
        10,
        0,
        0,
        random.below(4) as u8,
    ]);
    bytes.extend(payload);
    bytes
}

fn transport(random: &mut Random) -> (u8, Vec<u8>) {
    let mut bytes = vec![0, random.below(5) as u8, 0x20, random.below(3) as u8];
    let len = random.below(40) as usize;
    match random.below(4) {
        0 => {
            bytes.extend([0, 8 + len as u8, 0, 0]);
            bytes.resize(8 + len, random.byte());
            (17, bytes)
        }
        1 => (
            1,
            vec![[8, 0, 3, 11][random.below(4) as usize], 0, 0, 0, 0, 0, 0, 0],
        ),
        _ => {
            let flags = [2, 18, 16, 24, 17, 4][random.below(6) as usize];
            bytes.extend([
                0,
                0,
                1,
                random.byte(),
                0,
                0,
                0,
                0,
                0x50,
                flags,
                1,
                0,
                0,
                0,
                0,
                0,
            ]);
            bytes.resize(20 + len, random.byte());
            (6, bytes)
        }
    }
}

fn packet(random: &mut Random) -> Vec<u8> {
    let (protocol, payload) = transport(random);
    let mut ip = ipv4(random, protocol, &payload);
    match random.below(6) {
        0 => ip = ipv4(random, 4, &ip),
        1 => {
            let gre = [&[0x20, 0, 8, 0, 0, 0, 0, random.below(3) as u8], &ip[..]].concat();
            ip = ipv4(random, 47, &gre);
        }
        _ => {}
    }
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, random.below(3) as u8];
    if random.below(3) == 0 {
        let tag = [0x81, 0x88, 0x91][random.below(3) as usize];
        bytes.extend([
            tag,
            if tag == 0x88 { 0xa8 } else { 0 },
            0,
            random.below(3) as u8,
        ]);
    }
    bytes.extend([8, 0]);
    bytes.extend(ip);
    for _ in 0..random.below(8).saturating_sub(5) {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

/// An input of the law: the meter's configuration, then packets.
fn input(random: &mut Random, packet_count: u64) -> Vec<u8> {
    let mut input: Vec<u8> = (0..4).map(|_| random.byte()).collect();
    for _ in 0..packet_count {
        let mut bytes = packet(random);
        bytes.truncate(255);
        let cut = if random.below(8) == 0 {
            random.byte()
        } else {
            0
        };
        let step = match random.below(10) {
            0 => random.byte(),
            _ => random.below(3) as u8,
        };
        let what = match random.below(30) {
            0 => 1,
            1 if random.below(5) == 0 => 2,
            2 => 8,
            3 => 16,
            _ => 0,
        };
        input.extend([bytes.len() as u8, step, cut, what]);
        input.extend(bytes);
    }
    input
}

#[test]
fn no_packet_is_lost_or_counted_twice() {
    let seed = std::env::var("BAREWIRE_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()) * 7919 + 1);
    println!("to repeat: BAREWIRE_SEED={seed} cargo test -p barewire-flow --test conservation");
    let mut random = Random(seed);
    for _ in 0..600 {
        barewire_flow::conservation::law(&input(&mut random, 150));
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/flow_account")
}

/// The inputs match this generator; `BAREWIRE_BLESS=1` rewrites them.
#[test]
fn the_corpus_matches_the_generator_and_passes() {
    let mut random = Random(4711);
    let is_writing = std::env::var_os("BAREWIRE_BLESS").is_some();
    if is_writing {
        std::fs::create_dir_all(corpus()).unwrap();
    }
    for nth in 0..24u8 {
        let mut made = input(&mut random, 12);
        // Each level, with and without extras.
        made[0] = (made[0] & 0xf8) | (nth % 3);
        made[1] = if nth % 2 == 0 { 0 } else { made[1] };
        let path = corpus().join(format!("made-{nth}"));
        if is_writing {
            std::fs::write(&path, &made).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == made, "{}", path.display());
    }
    // Whatever else fuzzing has found.
    for entry in std::fs::read_dir(corpus()).unwrap() {
        barewire_flow::conservation::law(&std::fs::read(entry.unwrap().path()).unwrap());
    }
}
