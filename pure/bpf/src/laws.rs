//! Laws: properties that hold for every filter and packet. Tests and fuzz targets call them; they
//! panic if a law is violated. Not part of the public interface.
//!
//! An input consists of the number of instructions, a byte of [`Choice`], eight bytes for each
//! instruction ([`insn`]), and the packet.

use alloc::format;
use alloc::vec::Vec;

use crate::cbpf::{self, Ancillary, OPS, Op, Place, Program};
use crate::decide::{self, Rule, Tree};
use crate::disasm::{Classic, Extended};
use crate::ebpf::Insn;
use crate::translate::{TranslateError, XdpOptions, skb_program, xdp_program};
use crate::vm_cbpf::{self, PacketInfo};
use crate::vm_ebpf::maps::{Kind, Maps};
use crate::vm_ebpf::{self, Hook, Packet};

/// Metadata with every field set, each to a different value.
const INFO: PacketInfo = PacketInfo {
    protocol: 0x0800,
    packet_type: 3,
    ifindex: 0x0102_0304,
    queue_index: 5,
    rx_hash: 0x0607_0809,
    mark: 10,
    hardware_type: 1,
    vlan: Some((0x88a8, 0x2b0c)),
    network_offset: 14,
};

/// Second byte of an input: whether to append `ret a`, which makes more programs valid, and how
/// much of the packet is in the first buffer.
struct Choice(u8);

impl Choice {
    fn appends_return(&self) -> bool {
        self.0 & 1 == 0
    }

    fn first_len(&self, len: usize) -> usize {
        len * usize::from(self.0 >> 1) / 127
    }
}

/// Decodes an instruction from eight bytes: the row of [`OPS`], or 255 followed by the code itself;
/// the jumps if true and false; the constant, in reversed native byte order.
pub fn insn(bytes: [u8; 8]) -> cbpf::Insn {
    let [row, code, jt, jf, constant @ ..] = bytes;
    let code = match row {
        u8::MAX => code.into(),
        _ => OPS[usize::from(row) % OPS.len()].code,
    };
    cbpf::Insn::new(code, jt, jf, u32::from_be_bytes(constant))
}

/// The input for a valid program and this packet: the inverse of decoding.
pub fn input_of(insns: &[cbpf::Insn], packet: &[u8]) -> Vec<u8> {
    let mut input = alloc::vec![insns.len() as u8, 1 | 127 << 1];
    for insn in insns {
        let row = OPS.iter().position(|info| info.code == insn.code);
        let row = row.map_or(u8::MAX, |row| row as u8);
        input.extend([row, insn.code as u8, insn.jt, insn.jf]);
        input.extend(insn.k.to_be_bytes());
    }
    input.extend(packet);
    input
}

/// Checks any filter on any packet: it is refused with a reason, or gives the same result in the
/// interpreter and in every translation. Returns whether it was run.
pub fn filter_input(input: &[u8]) -> bool {
    let Some((choice, insns, packet)) = parts(input) else {
        return false;
    };
    let text = format!("{}", Classic(&insns));
    assert_eq!(text.lines().count(), insns.len());
    match Program::new(insns) {
        Ok(program) => {
            verdicts(&program, packet, choice.first_len(packet.len()));
            true
        }
        Err(invalid) => {
            assert!(!format!("{invalid}").is_empty());
            false
        }
    }
}

/// Splits an input into the choice, the instructions and the packet.
fn parts(input: &[u8]) -> Option<(Choice, Vec<cbpf::Insn>, &[u8])> {
    let (&[count, choice], rest) = input.split_first_chunk::<2>()?;
    let choice = Choice(choice);
    let (words, _) = rest.as_chunks::<8>();
    let words = &words[..words.len().min(count.into())];
    let packet = &rest[words.len() * 8..];
    let mut insns: Vec<_> = words.iter().map(|bytes| insn(*bytes)).collect();
    if choice.appends_return() {
        insns.push(cbpf::Insn::new(0x16, 0, 0, 0));
    }
    Some((choice, insns, packet))
}

/// The program of an input, if it is valid, and the packet.
pub fn program_of(input: &[u8]) -> Option<(Program, &[u8])> {
    let (_, insns, packet) = parts(input)?;
    Some((Program::new(insns).ok()?, packet))
}

/// Checks that a program gives the same result in the interpreter and in every translation.
pub fn program_input(program: &Program, packet: &[u8]) {
    verdicts(program, packet, packet.len());
}

/// Whether the program loads metadata that only the kernel has, for which the interpreter rejects
/// the packet.
fn asks_the_kernel(program: &Program) -> bool {
    program.ops().any(|op| match op {
        Op::LoadAbs(_, index) => matches!(
            Place::of(index),
            Place::Ancillary(Ancillary::Cpu | Ancillary::Random)
        ),
        _ => false,
    })
}

fn verdicts(program: &Program, packet: &[u8], first_len: usize) {
    let expected = vm_cbpf::run_with(program, packet, packet.len() as u32, &INFO);
    if !asks_the_kernel(program) {
        let made = skb_program(program);
        same(program, &made, Hook::Socket, packet, expected);
    }
    for (frags, indirect_by_helper) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let options = XdpOptions {
            hook: crate::translate::DirectHook::Xdp,
            frags,
            indirect_by_helper,
            stack_top: 0,
        };
        let first_len = if frags { first_len } else { packet.len() };
        let made = xdp_program(program, &options);
        same(program, &made, Hook::Xdp { first_len }, packet, expected);
    }
}

/// Checks that a translation gives the same result, unless there is a reason for its absence.
fn same(
    program: &Program,
    made: &Result<Vec<Insn>, TranslateError>,
    hook: Hook,
    packet: &[u8],
    expected: u32,
) {
    let insns = match made {
        Ok(insns) => insns,
        Err(TranslateError::Jump { .. }) => return assert!(program.backward_jump().is_some()),
        Err(TranslateError::Ancillary { at, .. } | TranslateError::NetworkOffset { at }) => {
            return assert!(matches!(
                program.insns()[*at].decode(),
                Some(Op::LoadAbs(..))
            ));
        }
        Err(TranslateError::Asm(error)) => panic!("{error}: {}", Classic(program.insns())),
    };
    let mut copy = Packet::new(packet);
    // Translations only jump forward, so every run ends.
    let steps_max = insns.len() as u32;
    let result = vm_ebpf::run(insns, (hook, &mut copy), &INFO, &mut Maps::new(), steps_max);
    assert!(
        result == Ok(expected),
        "{result:?}, the interpreter says {expected}, {hook:?}, {} bytes\n{}\n{}",
        packet.len(),
        Classic(program.insns()),
        Extended(insns)
    );
    for insn in insns {
        assert_eq!(Insn::from_word(insn.to_word()), *insn);
    }
}

/// Filters as a decision tree: at every length of the packet, its leaf has the same matches as the
/// filters one by one, up to the first that decides. Returns the tree.
pub fn tree(rules: &[Rule<'_>], options: &decide::Options, packets: &[&[u8]]) -> Tree {
    let tree = Tree::new(rules, options);
    for packet in packets {
        for len in 0..=packet.len() {
            same_matches(rules, &tree, &packet[..len], packet.len() as u32);
        }
    }
    tree
}

fn same_matches(rules: &[Rule<'_>], tree: &Tree, packet: &[u8], wire_len: u32) {
    let is_match = |program: Option<&Program>| {
        program.is_none_or(|program| vm_cbpf::run_with(program, packet, wire_len, &INFO) != 0)
    };
    // The filters that match, to the first that decides.
    let matches = |found: &mut dyn Iterator<Item = (usize, bool)>| {
        let mut list = Vec::new();
        for (index, is_match) in found {
            if is_match {
                list.push(index);
                if rules[index].decides {
                    break;
                }
            }
        }
        list
    };
    let mut one_by_one = rules
        .iter()
        .enumerate()
        .map(|(at, rule)| (at, is_match(rule.program)));
    let leaf = tree.leaf(packet);
    let mut left = leaf
        .iter()
        .map(|left| (left.index, is_match(left.program.as_ref())));
    let expected = matches(&mut one_by_one);
    assert!(
        matches(&mut left) == expected,
        "the filters say {expected:?}, the leaf {leaf:?} of {packet:02x?}"
    );
}

/// Checks any eBPF instructions on any packet: they give a result or a fault, never panic, and end.
///
/// The input consists of the number of instructions, eight bytes for each, and the packet.
pub fn extended_input(input: &[u8]) {
    let Some((&count, rest)) = input.split_first() else {
        return;
    };
    let (words, _) = rest.as_chunks::<8>();
    let words = &words[..words.len().min(count.into())];
    let packet = &rest[words.len() * 8..];
    let insns: Vec<_> = words
        .iter()
        .map(|bytes| Insn::from_word(u64::from_ne_bytes(*bytes)))
        .collect();
    assert!(insns.is_empty() || !format!("{}", Extended(&insns)).is_empty());
    let first_len = packet.len() / 2;
    for hook in [Hook::Xdp { first_len }, Hook::Socket] {
        let mut maps = Maps::new();
        maps.add(3, Kind::Array, (4, 16), 2);
        maps.add(4, Kind::LruHash, (8, 8), 2);
        maps.add(5, Kind::Trie, (8, 8), 2);
        let mut copy = Packet::new(packet);
        let result = vm_ebpf::run(&insns, (hook, &mut copy), &INFO, &mut maps, 10_000);
        if let Err((at, why)) = result {
            assert!(
                at <= insns.len() || why.contains("out of the program"),
                "{at}: {why}"
            );
        }
        assert_eq!(copy.bytes().len(), packet.len());
    }
}
