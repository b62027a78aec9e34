//! Compares the program with decision trees and the one that evaluates every rule: they give the
//! same verdict and counts for packets in one buffer and in several.

use std::net::IpAddr;

use barewire_guard::{
    Account, Features, KEY_LEN, Limit, List, Maps, Prefix, RULES_MAX, Rule, Verdict, counters_len,
    emit, emit_chain, limits_len, trie_entries,
};
use bpf::cbpf::{Insn, Program};
use bpf::ebpf;
use bpf::vm_cbpf::PacketInfo;
use bpf::vm_ebpf::{self, Hook, Kernel, Packet, STEPS_MAX, maps};

const MAPS: Maps = Maps {
    counters: 1,
    limits: 2,
    prefixes: 3,
    names: 0,
    scratch: 0,
    sources: 4,
    samples: None,
};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// An IPv4 packet, sometimes with options.
    fn packet(&mut self) -> Vec<u8> {
        let mut packet = vec![0; 12];
        packet.extend(self.one_of(&[[8, 0], [8, 0], [0x86, 0xdd]]));
        let words = self.one_of(&[5, 5, 6]);
        let protocol = self.one_of(&[6, 17]);
        packet.extend([0x40 + words, 0, 0, 60, 0, 0, 0, 0, 64, protocol]);
        packet.extend([0, 0, 10, self.one_of(&[0, 1]), 0, 1, 10, 0, 0, 2]);
        packet.extend(vec![1; usize::from(words - 5) * 4]);
        packet.extend([0, 9, 0, self.one_of(&[1, 2, 3, 4, 5, 77])]);
        packet.extend([0; 20]);
        let len = packet.len();
        packet.truncate(len - self.below(3) / 2 * self.below(len - 13));
        packet
    }

    /// A filter on some of: IPv4, a protocol, a destination port.
    fn filter(&mut self) -> Program {
        let mut insns = Vec::new();
        let mut test = |load: &[(u16, u32)], value: u32| {
            insns.extend(load.iter().map(|(code, k)| Insn::new(*code, 0, 0, *k)));
            insns.extend([Insn::new(0x15, 1, 0, value), Insn::new(0x06, 0, 0, 0)]);
        };
        test(&[(0x28, 12)], 0x800);
        if self.below(4) > 0 {
            test(&[(0x30, 23)], self.one_of(&[6, 17]));
        }
        if self.below(5) > 0 {
            test(&[(0xb1, 14), (0x48, 16)], 1 + self.below(5) as u32);
        }
        insns.push(Insn::new(0x06, 0, 0, 1));
        Program::new(insns).unwrap()
    }

    fn rule(&mut self, id: u32) -> Rule {
        let verdict = match self.below(7) {
            0 | 1 => Verdict::Pass,
            2 | 3 => Verdict::Drop,
            // Time does not advance in the interpreter, so only the burst of a limit counts.
            4 => Verdict::Limit(Limit::new(1, 3).unwrap()),
            _ => Verdict::Count,
        };
        let list = |text: &str| -> Option<List> { Some([Prefix::parse(text).unwrap()].into()) };
        Rule {
            id,
            name: id.to_string(),
            matcher: (self.below(12) > 0).then(|| self.filter()),
            sources: list("10.1.0.0/16").filter(|_| self.below(9) == 0),
            destinations: list("10.0.0.0/24").filter(|_| self.below(9) == 0),
            names: None,
            verdict,
            priority: 0,
        }
    }
}

/// A program with its maps.
struct Run {
    insns: Vec<ebpf::Insn>,
    maps: maps::Maps,
}

impl Run {
    fn new(rules: &[Rule], insns: Vec<ebpf::Insn>) -> Self {
        let mut maps = maps::Maps::new();
        maps.now_ns = 5_000_000_000;
        let count = rules.len();
        maps.add(1, maps::Kind::Array, (4, counters_len(count)), 1);
        maps.add(2, maps::Kind::Array, (4, limits_len(count)), 1);
        maps.add(3, maps::Kind::Trie, (KEY_LEN, 8), 10);
        maps.add(4, maps::Kind::LruHash, (KEY_LEN, 8), 10);
        for entry in trie_entries(rules).unwrap() {
            let lists = entry.lists.to_ne_bytes();
            assert_eq!(maps.update(3, &entry.key, &lists, 0), 0);
        }
        Self { insns, maps }
    }

    fn verdict(&mut self, bytes: &[u8], first_len: usize, steps_max: u32) -> Option<u32> {
        let hook = Hook::Xdp { first_len };
        let mut packet = Packet::new(bytes);
        let packet = (hook, &mut packet);
        let info = PacketInfo::UNKNOWN;
        vm_ebpf::run(&self.insns, packet, &info, &mut self.maps, steps_max).ok()
    }

    fn account(&mut self) -> Account {
        let bytes = self.maps.get(1, &[0; 4]).unwrap();
        let words = bytes.chunks_exact(8).map(|word| word.try_into().unwrap());
        Account::of(&words.map(u64::from_ne_bytes).collect::<Vec<_>>())
    }
}

#[test]
fn trees_decide_and_count_as_the_rules_do_in_turn() {
    let mut random = Random(0x7ee5);
    for round in 0..400 {
        let features = Features {
            hook: bpf::translate::DirectHook::Xdp,
            frags: round % 4 != 0,
            indirect: round % 3 != 0,
        };
        let count = 3 + random.below(20) as u32;
        let rules: Vec<_> = (0..count).map(|id| random.rule(id)).collect();
        let is_dry = round % 16 == 0;
        let tree = emit(&rules, is_dry, MAPS, features).unwrap();
        let chain = emit_chain(&rules, is_dry, MAPS, features).unwrap();
        let (mut tree, mut chain) = (Run::new(&rules, tree), Run::new(&rules, chain));
        for _ in 0..100 {
            let packet = random.packet();
            let first_len = match features.frags {
                true => packet.len() - random.below(2) * random.below(packet.len() + 1),
                false => packet.len(),
            };
            let [ours, expected] =
                [&mut tree, &mut chain].map(|run| run.verdict(&packet, first_len, STEPS_MAX));
            assert!(expected.is_some());
            assert_eq!(ours, expected, "{first_len} of {packet:02x?}\n{rules:?}");
        }
        assert_eq!(tree.account(), chain.account(), "{rules:?}");
        assert_eq!(tree.account().seen.packets, 100);
    }
}

/// A rule on the protocol and one of: the source, the source port, the destination port, either
/// port.
fn rule_on_one_field(random: &mut Random, id: u32) -> Rule {
    let mut insns = Vec::new();
    let mut test = |load: &[(u16, u32)], value: u32| {
        insns.extend(load.iter().map(|(code, k)| Insn::new(*code, 0, 0, *k)));
        insns.extend([Insn::new(0x15, 1, 0, value), Insn::new(0x06, 0, 0, 0)]);
    };
    test(&[(0x28, 12)], 0x800);
    let value = random.below(60) as u32;
    match random.below(5) {
        0 => test(&[(0x20, 26)], 0x0a00_0000 | value),
        1 => test(&[(0x30, 23)], 17),
        _ => test(&[(0x30, 23)], 6),
    }
    match random.below(4) {
        0 => test(&[(0xb1, 14), (0x48, 14)], value),
        1 => test(&[(0xb1, 14), (0x48, 16)], value),
        2 => test(&[(0x30, 29)], value),
        _ => insns.extend(
            [
                (0xb1, 0, 0, 14),
                (0x48, 0, 0, 14),
                (0x15, 2, 0, value),
                (0x48, 0, 0, 16),
                (0x15, 0, 1, value),
                (0x06, 0, 0, 1),
                (0x06, 0, 0, 0),
            ]
            .map(|(code, jt, jf, k)| Insn::new(code, jt, jf, k)),
        ),
    }
    insns.push(Insn::new(0x06, 0, 0, 1));
    let mut rule = random.rule(id);
    (rule.sources, rule.destinations) = (None, None);
    if rule.verdict == Verdict::Count && random.below(20) > 0 {
        rule.verdict = Verdict::Drop;
    }
    rule.matcher = Some(Program::new(insns).unwrap());
    rule
}

#[test]
fn the_first_of_several_fields_rules_decides() {
    let mut random = Random(0xf1e1d);
    for round in 0..60 {
        let features = Features {
            hook: bpf::translate::DirectHook::Xdp,
            frags: round % 4 != 0,
            indirect: round % 3 != 0,
        };
        let count = 20 + random.below(100) as u32;
        let rules: Vec<_> = (0..count)
            .map(|id| rule_on_one_field(&mut random, id))
            .collect();
        let tree = emit(&rules, false, MAPS, features).unwrap();
        let chain = emit_chain(&rules, false, MAPS, features).unwrap();
        let (mut tree, mut chain) = (Run::new(&rules, tree), Run::new(&rules, chain));
        for _ in 0..200 {
            let mut packet = random.packet();
            let mut set = |at: usize, value: usize| {
                if let Some(byte) = packet.get_mut(at) {
                    *byte = value as u8;
                }
            };
            set(12, 8);
            set(13, 0);
            for at in [29, 35, 37, 39] {
                set(at, random.below(70));
            }
            let first_len = match features.frags {
                true => packet.len() - random.below(2) * random.below(packet.len() + 1),
                false => packet.len(),
            };
            let [ours, expected] =
                [&mut tree, &mut chain].map(|run| run.verdict(&packet, first_len, STEPS_MAX));
            assert!(expected.is_some());
            assert_eq!(ours, expected, "{first_len} of {packet:02x?}\n{rules:?}");
        }
        assert_eq!(tree.account(), chain.account(), "{rules:?}");
    }
}

#[test]
fn addresses_are_found_in_any_buffer() {
    let mut random = Random(0xb0f);
    let mut dropped = 0;
    for (frags, indirect) in [(true, true), (true, false), (false, true)] {
        let features = Features {
            hook: bpf::translate::DirectHook::Xdp,
            frags,
            indirect,
        };
        let list: List = ["10.1.0.0/16", "2001:db8::/32"]
            .map(|p| Prefix::parse(p).unwrap())
            .into();
        let rules = [Rule {
            sources: Some(list.clone()),
            destinations: Some(
                ["10.0.0.0/24", "2001:db8::/32"]
                    .map(|p| Prefix::parse(p).unwrap())
                    .into(),
            ),
            ..Rule::new("both", Verdict::Drop)
        }];
        let mut run = Run::new(&rules, emit(&rules, false, MAPS, features).unwrap());
        for _ in 0..3_000 {
            let mut packet = random.packet();
            if packet[12] == 0x86 && packet.len() > 54 && random.below(2) == 0 {
                packet[22..26].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
                packet[38..42].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
            }
            let address = |v4: usize, v6: usize| match packet[12] {
                8 => {
                    let four: Option<&[u8; 4]> = packet.get(v4..).and_then(|p| p.first_chunk());
                    four.map(|four| IpAddr::from(*four))
                }
                _ => {
                    let six: Option<&[u8; 16]> = packet.get(v6..).and_then(|p| p.first_chunk());
                    six.map(|six| IpAddr::from(*six))
                }
            };
            let both = address(26, 22).zip(address(30, 38));
            let expected = both.is_some_and(|(from, to)| rules[0].matches(&packet, from, to));
            for _ in 0..random.below(3) {
                packet.splice(12..12, [0x81, 0, 0, 1]);
            }
            let first_len = match frags {
                true => random.below(packet.len() + 1),
                false => packet.len(),
            };
            let verdict = run.verdict(&packet, first_len, STEPS_MAX);
            assert_eq!(
                verdict,
                Some(2 - u32::from(expected)),
                "{first_len} of {packet:02x?}"
            );
            dropped += u32::from(expected);
        }
    }
    assert!(dropped > 1_000, "{dropped}");
}

/// Rules for UDP to each of 200 ports.
fn ports(random: &mut Random) -> Vec<Rule> {
    let rule = |id| {
        let insns = [(0x28, 12, 0x800), (0x30, 23, 17), (0x28, 36, 1_000 + id)];
        let insns = insns.iter().flat_map(|&(code, off, value)| {
            let load = Insn::new(code, 0, 0, off);
            [load, Insn::new(0x15, 1, 0, value), Insn::new(0x06, 0, 0, 0)]
        });
        let insns = insns.chain([Insn::new(0x06, 0, 0, 1)]).collect();
        let mut rule = random.rule(id);
        (rule.sources, rule.destinations) = (None, None);
        rule.matcher = Some(Program::new(insns).unwrap());
        rule
    };
    (0..200).map(rule).collect()
}

#[test]
fn many_rules_take_few_steps() {
    let features = Features {
        hook: bpf::translate::DirectHook::Xdp,
        frags: true,
        indirect: true,
    };
    let rules = ports(&mut Random(0x57e9));
    let mut packet = vec![0; 60];
    (packet[12], packet[14], packet[23]) = (8, 0x45, 17);
    let verdict = |insns| Run::new(&rules, insns).verdict(&packet, 60, 120);
    assert_eq!(
        verdict(emit(&rules, false, MAPS, features).unwrap()),
        Some(2)
    );
    assert_eq!(
        verdict(emit_chain(&rules, false, MAPS, features).unwrap()),
        None
    );
}

#[test]
fn as_many_rules_as_there_can_be_have_a_program() {
    let mut random = Random(0x800);
    let rules: Vec<_> = (0..RULES_MAX as u32).map(|id| random.rule(id)).collect();
    for (frags, indirect) in [(true, true), (true, false), (false, true)] {
        let features = Features {
            hook: bpf::translate::DirectHook::Xdp,
            frags,
            indirect,
        };
        assert!(emit(&rules, false, MAPS, features).is_ok());
    }
}
