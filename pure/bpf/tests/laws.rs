//! The law of `bpf::laws` over random filters, over filters that libpcap made, and over the fuzz
//! corpus, which is made here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-bpf --test laws` writes the corpus anew.

mod programs;

use std::fs;
use std::path::Path;

use barewire_bpf::cbpf::{ANCILLARY_BASE, Insn, LINK_BASE, NETWORK_BASE, OPS, Program};
use barewire_bpf::laws::{extended_input, filter_input, input_of};
use barewire_bpf::translate::{XdpOptions, skb_program, xdp_program};
use programs::{Row, TCP_PORT_80};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// An instruction that is likely to pass the checks with this many after it.
    fn insn(&mut self, behind: u64) -> Insn {
        let code = OPS[self.below(OPS.len() as u64) as usize].code;
        let small = self.below(40) as u32;
        let k = match code {
            // Scratch memory, shifts, division: within bounds nearly always.
            0x02 | 0x03 | 0x60 | 0x61 => self.below(16) as u32,
            0x64 | 0x74 => self.below(32) as u32,
            0x34 | 0x94 => small + 1,
            0x05 => self.below(behind.max(1)) as u32,
            // Packet loads: mostly inside, at its end, far outside, and what is special.
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => match self.below(12) {
                0 => NETWORK_BASE + small,
                1 => LINK_BASE + small,
                2 => ANCILLARY_BASE + self.below(18) as u32 * 4,
                3 => self.one_of(&[0x7fff, 0x8000, 0xfffb, 0xfffc, 0xffff, 0x1_0000, u32::MAX]),
                _ => small,
            },
            _ => match self.below(3) {
                0 => self.one_of(&[0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
                _ => small,
            },
        };
        let (jt, jf) = (self.below(behind.max(1)), self.below(behind.max(1)));
        Insn::new(code, jt as u8, jf as u8, k)
    }

    fn input(&mut self) -> Vec<u8> {
        let count = 1 + self.below(24);
        let mut insns: Vec<_> = (1..count).map(|at| self.insn(count - at)).collect();
        insns.push(match self.below(3) {
            0 => Insn::new(0x06, 0, 0, self.below(3) as u32),
            _ => Insn::new(0x16, 0, 0, 0),
        });
        let packet_len = self.below(64);
        let packet: Vec<u8> = (0..packet_len).map(|_| self.below(256) as u8).collect();
        let mut input = input_of(&insns, &packet);
        input[1] = 1 | (self.below(128) as u8) << 1;
        input
    }
}

#[test]
fn random_filters_have_one_verdict() {
    let mut random = Random(0x5eed);
    let run = (0..60_000)
        .filter(|_| filter_input(&random.input()))
        .count();
    assert!(run > 10_000, "only {run} filters passed the checks");
}

#[test]
fn random_instructions_end_or_fault() {
    let mut random = Random(0xebbf);
    let codes = [
        0x07, 0x0f, 0x18, 0x61, 0x79, 0x7b, 0x62, 0x85, 0x95, 0xb7, 0xbf, 0xdb, 0xd4, 0xdc, 0x1d,
        0x05, 0x81, 0x30, 0x50, 0x9f, 0x3c, 0xc7, 0x6d, 0x06, 0xd7,
    ];
    for _ in 0..100_000 {
        let count = 1 + random.below(16) as u8;
        let mut input = vec![count];
        for _ in 0..count {
            let code = match random.below(8) {
                0 => random.below(256) as u8,
                _ => random.one_of(&codes),
            };
            let regs = random.below(11) as u8 | (random.below(11) as u8) << 4;
            let off = random.one_of(&[0_i16, 1, -1, -8, -4, 4, 8, 32, i16::MIN, i16::MAX]);
            let imm = random.one_of(&[0_i32, 1, 2, 3, 4, 5, 51, 54, 189, 190, -1, 16, 64, 0xe1]);
            input.extend([code, regs]);
            input.extend(off.to_le_bytes());
            input.extend(imm.to_le_bytes());
        }
        input.extend((0..random.below(40)).map(|_| 7));
        extended_input(&input);
    }
}

/// Ethernet, IPv4 with an option, TCP to port 80.
fn packet() -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    packet.extend([0x46, 0, 0, 48, 0, 1, 0, 0, 64, 6, 0, 0]);
    packet.extend([192, 0, 2, 1, 192, 0, 2, 2, 1, 1, 1, 0]);
    packet.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2]);
    packet.extend([0x50, 2, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    packet
}

/// Filters as libpcap makes them for Ethernet (code, true, false, constant), each with a name.
fn filters() -> Vec<(&'static str, Vec<Insn>)> {
    let greater_100: &[Row] = &[
        (0x80, 0, 0, 0),
        (0x35, 0, 1, 100),
        (0x06, 0, 0, 262_144),
        (0x06, 0, 0, 0),
    ];
    let inbound: &[Row] = &[
        (0x28, 0, 0, ANCILLARY_BASE + 4),
        (0x15, 1, 0, 4),
        (0x06, 0, 0, 262_144),
        (0x06, 0, 0, 0),
    ];
    let scratch: &[Row] = &[
        (0x61, 0, 0, 3),
        (0x30, 0, 0, 14),
        (0x0c, 0, 0, 0),
        (0x02, 0, 0, 15),
        (0x60, 0, 0, 15),
        (0x9c, 0, 0, 0),
        (0x16, 0, 0, 0),
    ];
    let backward: &[Row] = &[
        (0x30, 0, 0, 23),
        (0x15, 1, 0, 6),
        (0x05, 0, 0, -3_i32 as u32),
        (0x06, 0, 0, 1),
    ];
    let vlan: &[Row] = &[
        (0x30, 0, 0, ANCILLARY_BASE + 48),
        (0x15, 0, 4, 1),
        (0x28, 0, 0, ANCILLARY_BASE + 44),
        (0x54, 0, 0, 0xfff),
        (0x15, 0, 1, 0xb0c),
        (0x06, 0, 0, 262_144),
        (0x06, 0, 0, 0),
    ];
    let all = [
        ("tcp-port-80", TCP_PORT_80),
        ("greater-100", greater_100),
        ("inbound", inbound),
        ("scratch-memory", scratch),
        ("jump-backward", backward),
        ("vlan", vlan),
    ];
    let made = all.map(|(name, rows)| {
        let insn = |&(code, jt, jf, k): &Row| Insn::new(code, jt, jf, k);
        (name, rows.iter().map(insn).collect())
    });
    made.into()
}

/// The filters on whole and cut packets, and loads at special indices.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let packet = packet();
    let mut seeds = Vec::new();
    for (name, insns) in filters() {
        seeds.push((name.to_owned(), input_of(&insns, &packet)));
        for cut in [0, 14, 30] {
            let input = input_of(&insns, &packet[..cut]);
            seeds.push((format!("{name}-{cut}-bytes"), input));
        }
    }
    for index in [LINK_BASE, NETWORK_BASE, ANCILLARY_BASE, 0xffff, u32::MAX] {
        let insns = [Insn::new(0x30, 0, 0, index), Insn::new(0x16, 0, 0, 0)];
        seeds.push((format!("load-at-{index:x}"), input_of(&insns, &packet)));
    }
    seeds
}

/// Whole programs: filters as they are translated for XDP and sockets, and a loop.
fn extended_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = vec![("loop".to_owned(), vec![1, 5, 0, 255, 255, 0, 0, 0, 0])];
    for (name, insns) in filters() {
        let program = Program::new(insns).unwrap();
        let options = XdpOptions {
            frags: true,
            indirect_by_helper: true,
            stack_top: 0,
        };
        for (hook, made) in [
            ("xdp", xdp_program(&program, &options)),
            ("socket", skb_program(&program)),
        ] {
            let Some(insns) = made.ok().filter(|insns| insns.len() <= 255) else {
                continue;
            };
            let mut input = vec![insns.len() as u8];
            input.extend(insns.iter().flat_map(|i| i.to_word().to_le_bytes()));
            input.extend(packet());
            seeds.push((format!("{name}-{hook}"), input));
        }
    }
    seeds
}

#[test]
fn the_corpus_of_extended_programs_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/ebpf");
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, input) in extended_seeds() {
            fs::write(folder.join(name), input).unwrap();
        }
    }
    for entry in fs::read_dir(&folder).unwrap() {
        extended_input(&fs::read(entry.unwrap().path()).unwrap());
    }
    for (name, input) in extended_seeds() {
        let there = fs::read(folder.join(&name)).unwrap_or_default();
        assert!(
            there == input,
            "{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
        );
    }
}

#[test]
fn the_laws_hold_for_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/bpf");
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, input) in seeds() {
            fs::write(folder.join(name), input).unwrap();
        }
    }
    for entry in fs::read_dir(&folder).unwrap() {
        filter_input(&fs::read(entry.unwrap().path()).unwrap());
    }
    for (name, input) in seeds() {
        let there = fs::read(folder.join(&name)).unwrap_or_default();
        assert!(
            there == input,
            "{name} is not what is made here: BAREWIRE_BLESS=1 writes it anew"
        );
        assert!(filter_input(&input), "{name} is refused");
    }
}
