//! Compares the program with a naive statement of rules with names, on queries that are cut at
//! every length, damaged, and spread over several buffers.

use barewire_guard::{
    Account, Features, Maps, Name, NameTest, QueryType, Rule, Verdict, counters_len, emit,
    emit_chain, limits_len, name_table,
};
use bpf::ebpf::Insn;
use bpf::translate::DirectHook;
use bpf::vm_cbpf::PacketInfo;
use bpf::vm_ebpf::{self, Hook, Kernel, Packet, STEPS_MAX, maps};

const MAPS: Maps = Maps {
    counters: 1,
    limits: 2,
    prefixes: 3,
    names: 4,
    scratch: 5,
    sources: 6,
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

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

const LABELS: [&str; 9] = [
    "a",
    "com",
    "example",
    "x9",
    "EXAMPLE",
    "www",
    "[z{",
    "a-label-of-twenty-bytes",
    "a-label-of-63-bytes-a-label-of-63-bytes-a-label-of-63-bytes-abc",
];

/// A name as text, of up to 255 bytes on the wire.
fn name(random: &mut Random) -> String {
    let mut labels: Vec<&str> = Vec::new();
    let count = [0, 1, 2, 2, 3, 4, 8, 100][random.below(8)];
    let mut len = 1;
    for _ in 0..count {
        let label = match count {
            100 => random.one_of(&LABELS[..1]),
            _ => random.one_of(&LABELS),
        };
        len += label.len() + 1;
        if len + 2 <= 255 {
            labels.push(label);
        }
    }
    match labels.is_empty() {
        true => ".".to_owned(),
        false => labels.join("."),
    }
}

fn test(random: &mut Random) -> NameTest {
    let below = [0, 1, 2][random.below(3)];
    let names = (0..1 + random.below(5)).map(|_| match (random.below(2), name(random)) {
        (_, name) if name == "." => name,
        (half, name) if below == 1 || below == 2 && half == 0 => format!("*.{name}"),
        (_, name) => name,
    });
    let names: Vec<String> = names.collect();
    let types = [vec![], vec![1], vec![1, 255]][random.below(3)].clone();
    NameTest {
        list: Name::parse_list(&names.join(" ")).unwrap().into(),
        types: types.into_iter().map(QueryType).collect(),
    }
}

/// A query for a name of the rules, or a similar one, mostly undamaged.
fn query(random: &mut Random, rules: &[Rule]) -> Vec<u8> {
    let mut packet = vec![2; 12];
    for _ in 0..[0, 0, 1, 2, 3][random.below(5)] {
        packet.extend(random.one_of(&[&[0x81, 0, 0, 9], &[0x88, 0xa8, 0, 9]]));
    }
    if random.below(3) == 0 {
        packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
        packet.extend([0x20; 32]);
    } else {
        let words = [0, 0, 1, 10][random.below(4)];
        packet.extend([
            8,
            0,
            0x45 + words as u8,
            0,
            0,
            0,
            0,
            7,
            0x40,
            0,
            64,
            17,
            0,
            0,
        ]);
        packet.extend([10; 8]);
        packet.extend(vec![1; words * 4]);
    }
    packet.extend([
        0xc0, 0, 0, 53, 0, 0, 0, 0, 0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0,
    ]);
    let at = packet.len();
    let rule = &rules[random.below(rules.len())];
    let list = rule.names.as_ref().unwrap().list.clone();
    let chosen = &list[random.below(list.len())];
    if chosen.is_below() != (random.below(8) == 0) {
        let label = random.one_of(&LABELS);
        packet.push(label.len() as u8);
        packet.extend(label.bytes());
    }
    packet.extend(chosen.wire());
    if random.below(2) == 0 {
        packet[at..].make_ascii_uppercase();
    }
    packet.extend([0, [1, 28, 255][random.below(3)], 0, 1]);
    packet.extend(vec![7; random.below(40)]);
    for _ in 0..random.below(5).saturating_sub(2) {
        let at = random.below(packet.len());
        packet[at] = match random.below(4) {
            0 => packet[at] ^ 1 << random.below(8),
            // A compression pointer, a label that is too long.
            1 => 0xc0,
            2 => 64,
            _ => 0,
        };
    }
    packet
}

struct Run {
    insns: Vec<Insn>,
    maps: maps::Maps,
    hook: DirectHook,
}

impl Run {
    fn new(rules: &[Rule], insns: Vec<Insn>, hook: DirectHook) -> Self {
        let mut maps = maps::Maps::new();
        let table = name_table(rules).unwrap();
        maps.add(1, maps::Kind::Array, (4, counters_len(rules.len())), 1);
        maps.add(2, maps::Kind::Array, (4, limits_len(rules.len())), 1);
        maps.add(
            4,
            maps::Kind::Hash,
            (table.key_len, 16),
            table.entries.len(),
        );
        maps.add(5, maps::Kind::Array, (4, table.scratch_len), 1);
        for entry in &table.entries {
            let lists = entry.lists.map(u64::to_ne_bytes).concat();
            assert_eq!(maps.update(4, &entry.key, &lists, 0), 0);
        }
        Self { insns, maps, hook }
    }

    fn verdict(&mut self, bytes: &[u8], first_len: usize) -> u32 {
        let hook = match self.hook {
            DirectHook::Xdp => Hook::Xdp { first_len },
            DirectHook::Tc => Hook::Tc { first_len },
        };
        let packet = (hook, &mut Packet::new(bytes));
        let info = PacketInfo::UNKNOWN;
        let verdict = vm_ebpf::run(&self.insns, packet, &info, &mut self.maps, STEPS_MAX);
        verdict.unwrap_or_else(|fault| panic!("{fault:?}: {first_len} of {bytes:02x?}"))
    }

    fn account(&mut self) -> Account {
        let bytes = self.maps.get(1, &[0; 4]).unwrap();
        let words = bytes.chunks_exact(8).map(|word| word.try_into().unwrap());
        Account::of(&words.map(u64::from_ne_bytes).collect::<Vec<_>>())
    }
}

fn all_features() -> [Features; 5] {
    let xdp = DirectHook::Xdp;
    [
        (xdp, true, true),
        (xdp, true, false),
        (xdp, false, true),
        (DirectHook::Tc, true, true),
        (DirectHook::Tc, true, false),
    ]
    .map(|(hook, frags, indirect)| Features {
        hook,
        frags,
        indirect,
    })
}

#[test]
fn programs_match_what_the_rules_say_at_every_length() {
    let mut random = Random(0x4e53);
    let (mut checked, mut matching) = (0, 0);
    for round in 0..120 {
        let verdicts = [Verdict::Count, Verdict::Drop];
        let count = 1 + random.below(5);
        let rules: Vec<Rule> = (0..count)
            .map(|at| Rule {
                names: Some(test(&mut random)),
                ..Rule::new(&at.to_string(), verdicts[usize::from(at + 1 == count)])
            })
            .collect();
        let features = all_features()[round % 5];
        let emit = if round % 2 == 0 { emit } else { emit_chain };
        let insns = emit(&rules, false, MAPS, features).unwrap();
        let mut run = Run::new(&rules, insns, features.hook);
        let mut counts = vec![0; rules.len()];
        for _ in 0..12 {
            let whole = query(&mut random, &rules);
            for len in 14..=whole.len() {
                let packet = &whole[..len];
                let first_len = match features.frags && random.below(2) == 0 {
                    true => random.below(len + 1),
                    false => len,
                };
                let verdict = run.verdict(packet, first_len);
                let names = rules.iter().map(|rule| rule.names.as_ref().unwrap());
                let expected: Vec<bool> = names.map(|names| names.matches(packet)).collect();
                let is_dropped = verdict
                    == match features.hook {
                        DirectHook::Xdp => 1,
                        DirectHook::Tc => 2,
                    };
                assert_eq!(
                    is_dropped,
                    expected[count - 1],
                    "{first_len} of {packet:02x?}"
                );
                for (sum, is) in counts.iter_mut().zip(&expected) {
                    *sum += u64::from(*is);
                }
                checked += 1;
                matching += usize::from(expected.contains(&true));
            }
        }
        let account = run.account();
        let ours: Vec<u64> = account.rules.iter().map(|rule| rule.packets).collect();
        assert_eq!(ours, counts, "{rules:?}");
    }
    assert!(
        checked > 100_000 && matching > 10_000,
        "{matching} of {checked}"
    );
}
