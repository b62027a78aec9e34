//! Decision trees of random filters, on random packets at every length.

mod programs;

use barewire_bpf::cbpf::{Insn, Program};
use barewire_bpf::decide::{Base, Node, Options, Rule, Tree};
use barewire_bpf::laws;
use programs::{Row, TCP_PORT_80};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % u64::from(bound)) as u32
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize]
    }

    /// Few different values, so that some filters match.
    fn byte(&mut self) -> u8 {
        self.one_of(&[0, 1, 2, 5, 0x45, 0x46, 0x80, 0xff])
    }

    fn packet(&mut self) -> Vec<u8> {
        let len = self.below(20);
        (0..len).map(|_| self.byte()).collect()
    }

    /// Appends a load, a computation on its result, and a comparison that refuses or continues.
    fn test(&mut self, insns: &mut Vec<Insn>) {
        let op = |code, k| Insn::new(code, 0, 0, k);
        let off = self.one_of(&[0, 1, 2, 2, 3, 4, 9]);
        let width = self.one_of(&[0x20, 0x28, 0x30, 0x30]);
        match self.below(12) {
            // X is a header length, a constant, a memory word, or a load from the packet.
            0 => insns.extend([op(0xb1, self.below(3)), op(width | 0x60, off)]),
            1 => insns.extend([op(0x01, self.below(5)), op(width | 0x60, off)]),
            2 => insns.extend([op(0x30, off), op(0x02, 3), op(0x61, 3), op(0x48, 1)]),
            3 => insns.extend([
                op(0xb1, 0),
                op(0x87, 0),
                op(0x04, 1),
                op(0x07, 0),
                op(0x50, off),
            ]),
            _ => insns.push(op(width, off)),
        }
        // Indirect loads have a different opcode from absolute ones.
        if let Some(last) = insns.last_mut().filter(|last| last.code & 0xe7 == 0x60) {
            last.code = last.code & 0x1f | 0x40;
        }
        let byte = self.byte().into();
        match self.below(14) {
            0 => insns.push(op(0x54, self.one_of(&[0xf, 0xf0, 0xff00, 0xff, 0x40]))),
            1 => insns.push(op(0x14, byte)),
            2 => insns.push(op(0x04, byte)),
            3 => insns.push(op(self.one_of(&[0x74, 0x64]), self.below(9))),
            4 => insns.push(op(self.one_of(&[0x44, 0xa4, 0x94]), byte.max(1))),
            _ => {}
        }
        let wide = match width {
            0x30 => 0,
            0x28 => u32::from(self.byte()) << 8,
            _ => u32::from(self.byte()) << 24 | u32::from(self.byte()) << 8,
        };
        let value = self.one_of(&[byte, wide | byte, wide]);
        let code = self.one_of(&[0x15, 0x15, 0x15, 0x15, 0x15, 0x25, 0x35, 0x45]);
        let (jt, jf) = match self.below(5) {
            0 => (0, 1),
            _ => (1, 0),
        };
        insns.push(Insn::new(code, jt, jf, value));
        let result = self.below(8) / 7;
        insns.push(Insn::new(0x06, 0, 0, result));
    }

    fn filter(&mut self) -> Program {
        loop {
            let mut insns = Vec::new();
            let count = 1 + self.below(4);
            for _ in 0..count {
                self.test(&mut insns);
            }
            insns.push(match self.below(8) {
                0 => Insn::new(0x16, 0, 0, 0),
                _ => Insn::new(0x06, 0, 0, 9),
            });
            if let Ok(program) = Program::new(insns) {
                return program;
            }
        }
    }
}

const OPTIONS: Options = Options {
    indirect: true,
    insn_count_max: 4_000,
};

fn rules(programs: &[Program], decides: impl Fn(usize) -> bool) -> Vec<Rule<'_>> {
    let rule = |(at, program)| Rule {
        program: Some(program),
        decides: decides(at),
    };
    programs.iter().enumerate().map(rule).collect()
}

fn switches(tree: &Tree) -> usize {
    tree.nodes
        .iter()
        .filter(|node| matches!(node, Node::Switch(_)))
        .count()
}

#[test]
fn random_filters_match_the_same_packets_in_a_tree() {
    let mut random = Random(0xdec1de);
    let mut switched = 0;
    for round in 0..1_500 {
        let count = 1 + random.below(12);
        let programs: Vec<_> = (0..count).map(|_| random.filter()).collect();
        let packets: Vec<_> = (0..30).map(|_| random.packet()).collect();
        let packets: Vec<_> = packets.iter().map(Vec::as_slice).collect();
        let options = Options {
            indirect: round % 3 != 0,
            insn_count_max: [4_000, 400, 0][round % 5 % 3],
        };
        let decides = round as u64 * 0x9e37_79b9;
        let rules = rules(&programs, |at| decides >> at & 1 == 0);
        switched += switches(&laws::tree(&rules, &options, &packets));
    }
    assert!(switched > 700, "only {switched} fields were compared");
}

/// A filter that requires a value of one of four bytes, or of either of two.
fn on_one_field(random: &mut Random) -> Program {
    let value = random.below(40);
    let byte = |off| (0x30, 0, 0, off);
    let (first, second) = (random.below(4), random.below(4));
    let either = [
        byte(first),
        (0x15, 2, 0, value),
        byte(second),
        (0x15, 0, 1, value),
    ];
    let rows = match random.below(3) {
        0 => either.to_vec(),
        1 => vec![byte(first), (0x15, 0, 1, value)],
        _ => vec![(0xb1, 0, 0, 4), (0x50, 0, 0, 5), (0x15, 0, 1, value)],
    };
    program(&[&rows[..], &[(0x06, 0, 0, 1), (0x06, 0, 0, 0)]].concat())
}

#[test]
fn filters_on_different_fields_have_trees_of_their_own() {
    let mut random = Random(0xa11);
    let mut divided = 0;
    for round in 0..60 {
        let count = 120 + random.below(60);
        let programs: Vec<_> = (0..count).map(|_| on_one_field(&mut random)).collect();
        let packets = (0..30).map(|_| {
            let bytes = (0..20).map(|_| random.below(45) as u8);
            bytes.collect::<Vec<_>>()
        });
        let packets: Vec<_> = packets.collect();
        let packets: Vec<_> = packets.iter().map(Vec::as_slice).collect();
        let options = Options {
            indirect: round % 3 != 0,
            insn_count_max: 4_000,
        };
        // One of the filters lets the evaluation go on, now and then.
        let rules = rules(&programs, |at| round % 4 != 0 || at != 7);
        let tree = laws::tree(&rules, &options, &packets);
        let is_all = |node: &Node| matches!(node, Node::All(_));
        divided += usize::from(tree.nodes.iter().any(is_all));
        let most = packets.iter().map(|packet| tree.leaf(packet).len()).max();
        let is_whole = round % 4 != 0 && options.indirect;
        assert!(!is_whole || most < Some(20), "{most:?} of {count}");
    }
    assert!(divided > 20, "only {divided} trees were divided");
}

fn program(rows: &[Row]) -> Program {
    let insns = rows
        .iter()
        .map(|&(code, jt, jf, k)| Insn::new(code, jt, jf, k));
    Program::new(insns.collect()).unwrap()
}

/// Filters `tcp dst port 1`, `tcp dst port 2` and so on.
fn tcp_ports(count: u32) -> Vec<Program> {
    let port = |port: u32| {
        let rows = TCP_PORT_80.iter().map(|&(code, jt, jf, k)| match (k, jt) {
            // No source port has this value.
            (80, 2 | 12) => (code, jt, jf, 0x1_0000),
            (80, _) => (code, jt, jf, port),
            _ => (code, jt, jf, k),
        });
        program(&rows.collect::<Vec<_>>())
    };
    (1..=count).map(port).collect()
}

#[test]
fn many_ports_cost_a_few_comparisons() {
    let programs = tcp_ports(200);
    let rules = rules(&programs, |_| true);
    let options = Options {
        insn_count_max: 40_000,
        ..OPTIONS
    };
    let tree = Tree::new(&rules, &options);
    let mut packet = vec![0; 60];
    (packet[12], packet[14], packet[23]) = (8, 0x45, 6);
    for port in [1, 80, 200] {
        packet[37] = port;
        let leaf = tree.leaf(&packet);
        let indices: Vec<_> = leaf.iter().map(|left| left.index + 1).collect();
        assert_eq!(indices, [usize::from(port)]);
    }
    packet[37] = 201;
    assert!(tree.leaf(&packet).is_empty());
    packet[23] = 17;
    assert!(tree.leaf(&packet).is_empty());
}

#[test]
fn fields_are_within_reach_of_a_load() {
    for at in [14, 2047, 32_768, 40_000] {
        let one = |value| {
            let load = [(0xb1, 0, 0, at), (0x48, 0, 0, 2)];
            program(
                &[
                    &load[..],
                    &[(0x15, 0, 1, value), (0x06, 0, 0, 1), (0x06, 0, 0, 0)],
                ]
                .concat(),
            )
        };
        let programs = [1, 2, 3].map(one);
        let tree = Tree::new(&rules(&programs, |_| true), &OPTIONS);
        let bases = tree.nodes.iter().filter_map(|node| match node {
            Node::Switch(switch) => Some(switch.field.base),
            Node::Leaf(_) | Node::All(_) => None,
        });
        let is_used = bases.into_iter().any(|base| base == Base::Header(at));
        assert_eq!(is_used, at < 2048, "{at}");
    }
}

#[test]
fn nothing_comes_after_a_filter_that_decides_every_packet() {
    let all = program(&[(0x06, 0, 0, 1)]);
    let programs = [&tcp_ports(3)[..], &[all], &tcp_ports(9)].concat();
    let tree = Tree::new(&rules(&programs, |_| true), &OPTIONS);
    let indices = tree.leaves.iter().flatten().map(|left| left.index);
    assert_eq!(indices.max(), Some(3));
    // A filter that only counts is followed by the others.
    let tree = Tree::new(&rules(&programs, |_| false), &OPTIONS);
    let indices = tree.leaves.iter().flatten().map(|left| left.index);
    assert_eq!(indices.max(), Some(12));
}
