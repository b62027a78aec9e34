//! Packets and bytes that a program counts, over many packets of different lengths, compared with
//! sums by a plain reading of the rules.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use barewire_guard::{
    Account, Counters, Features, KEY_LEN, Limit, List, Maps, PREFIXES_MAX, Prefix, Rule,
    SampleCounts, SourceLimit, Verdict, counters_len, emit, emit_chain, limits_len, trie_entries,
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
        maps.add(4, maps::Kind::LruHash, (KEY_LEN, 8), 1000);
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
    let counters = Counters {
        packets: 100,
        dropped: 20,
        answered: 3,
        steered: 4,
        ..Counters::default()
    };
    assert_eq!(counters.passed(), 73);
    // Of a rule that steers, the word of answers has the steered packets.
    let user = counters.of_user();
    assert_eq!((user.answered, user.steered), (0, 3));
    let mut samples = SampleCounts { taken: 1, lost: 2 };
    samples.add(&SampleCounts {
        taken: 10,
        lost: 20,
    });
    assert_eq!((samples.taken, samples.lost), (11, 22));
}

/// Adds addresses to a packet: of IPv4, or of IPv6 in its place.
fn from_source(source: IpAddr) -> Vec<u8> {
    let mut packet = packet(17, 9, 80);
    match source {
        IpAddr::V4(v4) => packet[26..30].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => {
            packet[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            packet[22..38].copy_from_slice(&v6.octets());
        }
    }
    packet
}

/// Each prefix of sources has the burst of its own, whatever the lengths of prefixes; other rules
/// have others.
#[test]
fn sources_share_a_limit_with_their_prefix_and_with_no_other() {
    const BURST: u32 = 3;
    let mut random = Random(0x5eed_50c5);
    let limit = Limit::new(1, BURST).unwrap();
    for (ipv4_len, ipv6_len) in [(32, 128), (24, 64), (1, 1), (17, 65), (8, 48), (31, 127)] {
        let source = SourceLimit::new(limit, ipv4_len, ipv6_len).unwrap();
        let rule = |id| Rule {
            id,
            ..Rule::new("sources", Verdict::LimitSources(source, None))
        };
        let features = Features {
            hook: bpf::translate::DirectHook::Xdp,
            frags: true,
            indirect: true,
        };
        let insns = |id| emit(&[rule(id)], false, MAPS, features).unwrap();
        let mut run = Run::new(1, insns(1));
        let prefix = |source: IpAddr| match source {
            IpAddr::V4(v4) => (4, u128::from(v4.to_bits() >> (32 - u32::from(ipv4_len)))),
            IpAddr::V6(v6) => (6, v6.to_bits() >> (128 - u32::from(ipv6_len))),
        };
        let mut passed: BTreeMap<(u8, u128), u32> = BTreeMap::new();
        // Few bits differ, at both ends of every length, so that many share a prefix.
        let mut any = || -> IpAddr {
            let bit = |random: &mut Random, at: u32| (random.below(2) as u128) << at;
            match random.below(2) {
                0 => {
                    let bits = [0, 1, 7, 8, 15, 24, 31].map(|at| bit(&mut random, at));
                    Ipv4Addr::from_bits(bits.iter().sum::<u128>() as u32).into()
                }
                _ => {
                    let bits = [0, 1, 62, 63, 64, 80, 127].map(|at| bit(&mut random, at));
                    Ipv6Addr::from_bits(bits.iter().sum()).into()
                }
            }
        };
        for _ in 0..600 {
            let source = any();
            let count = passed.entry(prefix(source)).or_default();
            let expected = if *count < BURST { PASSED } else { DROPPED };
            *count += u32::from(expected == PASSED);
            let verdict = run.verdict(&from_source(source), 80);
            assert_eq!(verdict, expected, "{source} by {ipv4_len} and {ipv6_len}");
        }
        // Another rule on the same map begins anew.
        run.insns = insns(2);
        assert_eq!(run.verdict(&from_source([10, 0, 0, 1].into()), 80), PASSED);
    }
    for (ipv4_len, ipv6_len) in [(0, 64), (33, 64), (24, 0), (24, 129)] {
        assert_eq!(SourceLimit::new(limit, ipv4_len, ipv6_len), None);
    }
}

/// A rule with both lists matches packets from the one to the other.
#[test]
fn lists_of_a_rule_hold_for_their_own_addresses() {
    let list = |text: &str| -> List { [Prefix::parse(text).unwrap()].into() };
    let rule = Rule {
        sources: Some(list("10.0.0.1/32")),
        destinations: Some(list("2001:db8::1/128")),
        ..Rule::new("both", Verdict::Drop)
    };
    let (from, to): (IpAddr, IpAddr) =
        ("10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let (other, far): (IpAddr, IpAddr) =
        ("10.0.0.0".parse().unwrap(), "2001:db8::".parse().unwrap());
    assert!(rule.matches(&[], from, to));
    assert!(!rule.matches(&[], other, to) && !rule.matches(&[], from, far));
    assert!(!rule.matches(&[], to, from));
}

/// The kernel makes no map of nothing.
#[test]
fn programs_without_rules_have_maps() {
    assert_eq!(limits_len(0), limits_len(1));
    assert!(limits_len(2) == 2 * limits_len(1) && counters_len(0) != 0);
}

#[test]
fn as_many_prefixes_as_there_can_be_are_accepted() {
    let prefixes = |count: u32| -> List {
        let prefix = |number| {
            let address = Ipv4Addr::from_bits(number);
            Prefix::parse(&address.to_string()).unwrap()
        };
        (0..count).map(prefix).collect()
    };
    let rule = |list: List| Rule {
        sources: Some(list),
        ..Rule::new("many", Verdict::Drop)
    };
    let most = PREFIXES_MAX as u32;
    assert_eq!(most, 1_048_576);
    assert_eq!(
        trie_entries(&[rule(prefixes(most))]).unwrap().len(),
        PREFIXES_MAX
    );
    let error = trie_entries(&[rule(prefixes(most)), rule(prefixes(1))]);
    assert!(error.is_err());
}
