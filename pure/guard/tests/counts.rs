//! Packets and bytes that a program counts, over many packets of different lengths, compared with
//! sums by a plain reading of the rules.

use barewire_guard::{
    Account, Counters, Features, KEY_LEN, Limit, Maps, Rule, Verdict, counters_len, emit,
    emit_chain, limits_len,
};
use bpf::cbpf::{Insn, Program};
use bpf::vm_cbpf::PacketInfo;
use bpf::vm_ebpf::{self, Hook, Packet, STEPS_MAX, maps};

const MAPS: Maps = Maps {
    counters: 1,
    limits: 2,
    prefixes: 3,
    names: 0,
    scratch: 0,
    sources: 4,
    samples: None,
};

const PASSED: u32 = 2;
const DROPPED: u32 = 1;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound as u64) as usize
    }
}

/// A packet of IPv4 with this protocol and destination port; the rest of its length is zeros.
fn packet(protocol: u8, port: u8, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    (packet[12], packet[14]) = (8, 0x45);
    (packet[23], packet[37]) = (protocol, port);
    packet
}

/// What a rule matches: a protocol, any if it is 0, and ports up to one.
#[derive(Clone, Copy, Debug)]
struct Test {
    protocol: u8,
    port_max: u8,
}

impl Test {
    fn matches(self, protocol: u8, port: u8) -> bool {
        (self.protocol == 0 || self.protocol == protocol) && port <= self.port_max
    }

    fn program(self) -> Program {
        let mut insns = Vec::new();
        if self.protocol != 0 {
            insns.push(Insn::new(0x30, 0, 0, 23));
            insns.push(Insn::new(0x15, 1, 0, self.protocol.into()));
            insns.push(Insn::new(0x06, 0, 0, 0));
        }
        insns.push(Insn::new(0x30, 0, 0, 37));
        insns.push(Insn::new(0x25, 0, 1, self.port_max.into()));
        insns.push(Insn::new(0x06, 0, 0, 0));
        insns.push(Insn::new(0x06, 0, 0, 1));
        Program::new(insns).unwrap()
    }
}

/// What the rules do in turn, and what they count.
struct Model {
    rules: Vec<(Test, Verdict)>,
    /// Packets that limits still let pass: time stands still.
    left: Vec<u32>,
    account: Account,
}

fn add(counters: &mut Counters, len: usize) {
    counters.packets += 1;
    counters.bytes += len as u64;
}

impl Model {
    fn new(rules: &[(Test, Verdict)]) -> Model {
        let left = rules.iter().map(|(_, verdict)| match verdict {
            Verdict::Limit(limit) => limit.burst(),
            _ => 0,
        });
        let account = Account {
            rules: vec![Counters::default(); rules.len()],
            ..Account::default()
        };
        Model {
            rules: rules.to_vec(),
            left: left.collect(),
            account,
        }
    }

    fn verdict(&mut self, protocol: u8, port: u8, len: usize) -> u32 {
        add(&mut self.account.seen, len);
        for (at, (test, verdict)) in self.rules.iter().enumerate() {
            if !test.matches(protocol, port) {
                continue;
            }
            let counters = &mut self.account.rules[at];
            add(counters, len);
            let is_dropped = match verdict {
                Verdict::Count => continue,
                Verdict::Drop => true,
                Verdict::Limit(_) if self.left[at] == 0 => true,
                Verdict::Limit(_) => {
                    self.left[at] -= 1;
                    false
                }
                _ => false,
            };
            if is_dropped {
                counters.dropped += 1;
                counters.dropped_bytes += len as u64;
                return DROPPED;
            }
            return PASSED;
        }
        add(&mut self.account.unmatched, len);
        PASSED
    }
}

/// A program with its maps.
struct Run {
    insns: Vec<bpf::ebpf::Insn>,
    maps: maps::Maps,
}

impl Run {
    fn new(count: usize, insns: Vec<bpf::ebpf::Insn>) -> Run {
        let mut maps = maps::Maps::new();
        maps.now_ns = 5_000_000_000;
        maps.add(1, maps::Kind::Array, (4, counters_len(count)), 1);
        maps.add(2, maps::Kind::Array, (4, limits_len(count)), 1);
        maps.add(3, maps::Kind::Trie, (KEY_LEN, 8), 10);
        maps.add(4, maps::Kind::LruHash, (KEY_LEN, 8), 10);
        Run { insns, maps }
    }

    fn verdict(&mut self, bytes: &[u8], first_len: usize) -> u32 {
        let mut packet = Packet::new(bytes);
        let packet = (Hook::Xdp { first_len }, &mut packet);
        let (info, maps) = (PacketInfo::UNKNOWN, &mut self.maps);
        vm_ebpf::run(&self.insns, packet, &info, maps, STEPS_MAX).unwrap()
    }

    fn account(&mut self) -> Account {
        let bytes = self.maps.get(1, &[0; 4]).unwrap();
        let words = bytes.chunks_exact(8).map(|word| word.try_into().unwrap());
        Account::of(&words.map(u64::from_ne_bytes).collect::<Vec<_>>())
    }
}

fn rules(random: &mut Random) -> Vec<(Test, Verdict)> {
    let count = 1 + random.below(12);
    let rule = |_| {
        let test = Test {
            protocol: [0, 6, 17][random.below(3)],
            port_max: random.below(80) as u8,
        };
        let verdict = match random.below(5) {
            0 => Verdict::Pass,
            1 => Verdict::Drop,
            2 => Verdict::Limit(Limit::new(1, 1 + random.below(40) as u32).unwrap()),
            _ => Verdict::Count,
        };
        (test, verdict)
    };
    (0..count).map(rule).collect()
}

#[test]
fn packets_and_bytes_of_every_rule_are_sums_over_all_packets() {
    let mut random = Random(0x5eed_c095);
    let mut sums = [0; 3];
    for round in 0..120 {
        let features = Features {
            hook: bpf::translate::DirectHook::Xdp,
            frags: round % 4 != 0,
            indirect: round % 3 != 0,
        };
        let tests = rules(&mut random);
        let (is_dry, is_tree) = (round % 7 == 0, round % 2 == 0);
        let as_rule = |(at, (test, verdict)): (usize, &(Test, Verdict))| Rule {
            id: at as u32,
            matcher: Some(test.program()),
            ..Rule::new(&at.to_string(), *verdict)
        };
        let rules: Vec<Rule> = tests.iter().enumerate().map(as_rule).collect();
        let insns = match is_tree {
            true => emit(&rules, is_dry, MAPS, features),
            false => emit_chain(&rules, is_dry, MAPS, features),
        };
        let (mut run, mut model) = (Run::new(rules.len(), insns.unwrap()), Model::new(&tests));
        for _ in 0..150 {
            let (protocol, port) = ([6, 17, 47][random.below(3)], random.below(100) as u8);
            let len = [60, 64, 255, 256, 1514, 9000, 60 + random.below(1400)][random.below(7)];
            let bytes = packet(protocol, port, len);
            let first_len = match features.frags {
                true => 60 + random.below(len - 59),
                false => len,
            };
            let expected = match (is_dry, model.verdict(protocol, port, len)) {
                (true, _) => PASSED,
                (false, verdict) => verdict,
            };
            let verdict = run.verdict(&bytes, first_len);
            assert_eq!(verdict, expected, "{protocol} {port} of {len}: {tests:?}");
        }
        assert_eq!(run.account(), model.account, "{tests:?}");
        for counters in &model.account.rules {
            sums[0] += u64::from(counters.dropped_bytes != 0);
            sums[1] += u64::from(counters.bytes != counters.dropped_bytes);
        }
        sums[2] += u64::from(model.account.unmatched.bytes != 0);
    }
    // Otherwise little was counted.
    assert!(sums[0] > 100 && sums[1] > 300 && sums[2] > 30, "{sums:?}");
}

#[test]
fn accounts_of_two_programs_are_added() {
    let block = |from: u64| Counters {
        packets: from,
        bytes: from + 1,
        dropped: from + 2,
        dropped_bytes: from + 3,
        answered: from + 4,
        steered: from + 5,
    };
    let mut sum = block(10);
    sum.add(&block(1_000));
    let expected = Counters {
        packets: 1_010,
        bytes: 1_012,
        dropped: 1_014,
        dropped_bytes: 1_016,
        answered: 1_018,
        steered: 1_020,
    };
    assert_eq!(sum, expected);
    assert_eq!(sum.passed(), 0);
}
