//! Row by row: the output of every method of the assembler, its printed form, and the result of
//! every cBPF instruction.

use crate::asm::{Asm, AsmError};
use crate::cbpf::{self, Invalid, Program};
use crate::disasm::Extended;
use crate::ebpf::Reg::{R0, R1, R2, R3, R4, R6, R9, R10};
use crate::ebpf::{Alu, Cond, Helper, Insn, Width};
use crate::translate;
use crate::vm_cbpf::{PacketInfo, run, run_with};
use std::string::ToString;
use std::vec::Vec;

/// The bytes of a word, as `llvm-objdump` shows them for a little-endian object.
fn bytes(insn: Insn) -> [u8; 8] {
    let mut bytes = insn.to_word().to_ne_bytes();
    if cfg!(target_endian = "big") {
        bytes[1] = bytes[1].rotate_right(4);
        bytes[2..4].reverse();
        bytes[4..].reverse();
    }
    bytes
}

/// A program with instructions of every kind.
fn every_kind() -> Vec<Insn> {
    let mut asm = Asm::new();
    assert!(asm.is_empty());
    let top = asm.label();
    asm.bind(top);
    asm.mov(R1, R2);
    assert!(!asm.is_empty());
    asm.mov32(R1, -2);
    asm.alu(Alu::Add, R3, R4);
    asm.alu(Alu::Sub, R3, 5);
    asm.alu32(Alu::Rsh, R9, 3);
    asm.alu32(Alu::Or, R9, R0);
    asm.swap_be(R2, 32);
    asm.load(Width::W, R1, R6, 16);
    asm.load(Width::H, R1, R6, -16);
    asm.load(Width::B, R9, R10, 1);
    asm.load(Width::D, R4, R3, 8);
    asm.store(Width::W, R10, -4, 7);
    asm.store(Width::D, R10, -8, R9);
    asm.store(Width::H, R3, 2, R4);
    asm.store(Width::B, R3, 2, 1);
    assert!(!asm.is_used(top));
    asm.jump(top);
    assert!(asm.is_used(top));
    asm.jump_if(Cond::Eq, R1, R2, top);
    asm.jump_if(Cond::Gt, R1, 9, top);
    asm.jump32_if(Cond::SignedLt, R1, R2, top);
    asm.jump32_if(Cond::Set, R1, 0x10, top);
    asm.load_imm64(R3, 0x1122_3344_5566_7788);
    asm.load_map(R1, 5);
    asm.load_map_value(R2, 6, 24);
    asm.load_abs(Width::W, 12);
    asm.load_abs(Width::H, 12);
    asm.load_ind(Width::B, R9, 3);
    asm.load_ind(Width::W, R9, -3);
    asm.call(Helper::MapLookup);
    asm.call_kfunc(0x1234);
    asm.exit();
    assert_eq!(asm.len(), 33);
    asm.finish().unwrap()
}

/// Its instructions as bytes and as text.
#[rustfmt::skip]
const EVERY_KIND: [([u8; 8], &str); 33] = [
    ([0xbf, 0x21, 0, 0, 0, 0, 0, 0], "r1 = r2"),
    ([0xb4, 0x01, 0, 0, 0xfe, 0xff, 0xff, 0xff], "w1 = -2"),
    ([0x0f, 0x43, 0, 0, 0, 0, 0, 0], "r3 += r4"),
    ([0x17, 0x03, 0, 0, 5, 0, 0, 0], "r3 -= 5"),
    ([0x74, 0x09, 0, 0, 3, 0, 0, 0], "w9 >>= 3"),
    ([0x4c, 0x09, 0, 0, 0, 0, 0, 0], "w9 |= w0"),
    ([0xdc, 0x02, 0, 0, 32, 0, 0, 0], "r2 = be32 r2"),
    ([0x61, 0x61, 16, 0, 0, 0, 0, 0], "r1 = *(u32 *)(r6 +16)"),
    ([0x69, 0x61, 0xf0, 0xff, 0, 0, 0, 0], "r1 = *(u16 *)(r6 -16)"),
    ([0x71, 0xa9, 1, 0, 0, 0, 0, 0], "r9 = *(u8 *)(r10 +1)"),
    ([0x79, 0x34, 8, 0, 0, 0, 0, 0], "r4 = *(u64 *)(r3 +8)"),
    ([0x62, 0x0a, 0xfc, 0xff, 7, 0, 0, 0], "*(u32 *)(r10 -4) = 7"),
    ([0x7b, 0x9a, 0xf8, 0xff, 0, 0, 0, 0], "*(u64 *)(r10 -8) = r9"),
    ([0x6b, 0x43, 2, 0, 0, 0, 0, 0], "*(u16 *)(r3 +2) = r4"),
    ([0x72, 0x03, 2, 0, 1, 0, 0, 0], "*(u8 *)(r3 +2) = 1"),
    ([0x05, 0, 0xf0, 0xff, 0, 0, 0, 0], "goto 0"),
    ([0x1d, 0x21, 0xef, 0xff, 0, 0, 0, 0], "if r1 == r2 goto 0"),
    ([0x25, 0x01, 0xee, 0xff, 9, 0, 0, 0], "if r1 > 9 goto 0"),
    ([0xce, 0x21, 0xed, 0xff, 0, 0, 0, 0], "if w1 s< w2 goto 0"),
    ([0x46, 0x01, 0xec, 0xff, 16, 0, 0, 0], "if w1 & 0x10 goto 0"),
    ([0x18, 0x03, 0, 0, 0x88, 0x77, 0x66, 0x55], "r3 = 0x1122334455667788 ll"),
    ([0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11], ""),
    ([0x18, 0x11, 0, 0, 5, 0, 0, 0], "r1 = map of fd 5"),
    ([0, 0, 0, 0, 0, 0, 0, 0], ""),
    ([0x18, 0x22, 0, 0, 6, 0, 0, 0], "r2 = value of map of fd 6 + 24"),
    ([0, 0, 0, 0, 24, 0, 0, 0], ""),
    ([0x20, 0, 0, 0, 12, 0, 0, 0], "r0 = *(u32 *)skb[12]"),
    ([0x28, 0, 0, 0, 12, 0, 0, 0], "r0 = *(u16 *)skb[12]"),
    ([0x50, 0x90, 0, 0, 3, 0, 0, 0], "r0 = *(u8 *)skb[r9 +3]"),
    ([0x40, 0x90, 0, 0, 0xfd, 0xff, 0xff, 0xff], "r0 = *(u32 *)skb[r9 -3]"),
    ([0x85, 0, 0, 0, 1, 0, 0, 0], "call bpf_map_lookup_elem#1"),
    ([0x85, 0x20, 0, 0, 0x34, 0x12, 0, 0], "call kernel function of BTF id 4660"),
    ([0x95, 0, 0, 0, 0, 0, 0, 0], "exit"),
];

#[test]
fn instructions_byte_by_byte() {
    let insns = every_kind();
    let text = Extended(&insns).to_string();
    let mut lines = text.lines();
    let mut is_second = false;
    for (at, (insn, (expected, text))) in insns.iter().zip(EVERY_KIND).enumerate() {
        assert_eq!(bytes(*insn), expected, "{at}: {text}");
        assert_eq!(Insn::from_word(insn.to_word()), *insn);
        if !is_second {
            assert_eq!(lines.next(), Some(&*std::format!("{at:4}: {text}")));
        }
        is_second = insn.is_wide();
        assert_eq!(is_second, expected[0] == 0x18);
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn errors_as_text() {
    for (fault, expected) in [
        (
            AsmError::UnboundLabel { at: 7 },
            "jump at 7 to a label without a place",
        ),
        (
            AsmError::JumpTooFar {
                at: 7,
                distance: 40_000,
            },
            "the program is too long: jump at 7 over 40000 instructions, at most 32767",
        ),
    ] {
        assert_eq!(fault.to_string(), expected);
    }
    for (fault, expected) in [
        (Invalid::Length(0), "0 instructions, must be 1 to 4096"),
        (
            Invalid::Code { at: 1, code: 0xff },
            "(001) 0xff is no instruction",
        ),
        (Invalid::DivisionByZero { at: 2 }, "(002) divides by 0"),
        (
            Invalid::Shift { at: 3, by: 32 },
            "(003) shifts by 32 bits, at most 31",
        ),
        (
            Invalid::Memory { at: 4, word: 16 },
            "(004) uses M[16], the last is M[15]",
        ),
        (
            Invalid::MemoryUnset { at: 5, word: 3 },
            "(005) may read M[3] before it is written",
        ),
        (
            Invalid::Jump { at: 6 },
            "(006) jumps backward or out of the program",
        ),
        (
            Invalid::Ancillary { at: 7, index: 0x10 },
            "(007) loads at 0x10, which names nothing",
        ),
        (Invalid::NoReturn, "the last instruction is not a return"),
    ] {
        assert_eq!(fault.to_string(), expected);
    }
}

/// Result of a program that sets X and A, runs the instructions, and returns A.
fn eval(a: u32, x: u32, insns: &[(u16, u8, u8, u32)]) -> u32 {
    let i = cbpf::Insn::new;
    let mut program = std::vec![i(0x01, 0, 0, x), i(0x00, 0, 0, a)];
    program.extend(insns.iter().map(|&(code, jt, jf, k)| i(code, jt, jf, k)));
    program.push(i(0x16, 0, 0, 0));
    let bytes: Vec<u8> = (0x10..0x40).collect();
    run(&Program::new(program).unwrap(), &bytes, 1500)
}

#[test]
#[rustfmt::skip]
fn instructions_of_cbpf() {
    for (code, k, expected) in [
        (0x20, 4, 0x1415_1617), (0x28, 4, 0x1415), (0x30, 4, 0x14),
        (0x40, 4, 0x1718_191a), (0x48, 4, 0x1718), (0x50, 4, 0x17),
        (0x00, 4, 4), (0x80, 4, 1500), (0x87, 0, 3),
        (0x04, 4, 0x64), (0x0c, 4, 0x63), (0x14, 4, 0x5c), (0x1c, 4, 0x5d),
        (0x24, 4, 0x180), (0x2c, 4, 0x120), (0x34, 4, 0x18), (0x3c, 4, 0x20),
        (0x94, 7, 5), (0x9c, 7, 0), (0x44, 4, 0x64), (0x4c, 4, 0x63),
        (0x54, 0x42, 0x40), (0x5c, 4, 0), (0xa4, 0x42, 0x22), (0xac, 4, 0x63),
        (0x64, 4, 0x600), (0x6c, 4, 0x300), (0x74, 4, 6), (0x7c, 4, 0xc),
        (0x84, 0, 0xffff_ffa0), (0x06, 77, 77),
    ] {
        assert_eq!(eval(0x60, 3, &[(code, 0, 0, k)]), expected, "{code:#x}");
    }
    // Into X, or through memory, and back.
    for (insns, expected) in [
        (&[(0x01, 0, 0, 9), (0x87, 0, 0, 0)][..], 9),
        (&[(0x07, 0, 0, 0), (0x00, 0, 0, 1), (0x87, 0, 0, 0)], 0x60),
        (&[(0x81, 0, 0, 0), (0x87, 0, 0, 0)], 1500),
        (&[(0xb1, 0, 0, 4), (0x87, 0, 0, 0)], 16),
        (&[(0xb1, 0, 0, 15), (0x87, 0, 0, 0)], 60),
        (&[(0x02, 0, 0, 5), (0x00, 0, 0, 1), (0x60, 0, 0, 5)], 0x60),
        (&[(0x03, 0, 0, 5), (0x60, 0, 0, 5)], 3),
        (&[(0x02, 0, 0, 5), (0x61, 0, 0, 5), (0x87, 0, 0, 0)], 0x60),
        // Over one instruction, and over none.
        (&[(0x05, 0, 0, 1), (0x00, 0, 0, 1)], 0x60),
        (&[(0x05, 0, 0, 0), (0x00, 0, 0, 1)], 1),
    ] {
        assert_eq!(eval(0x60, 3, insns), expected, "{insns:x?}");
    }
    // Code, A, the other operand, whether it holds.
    for (code, a, operand, holds) in [
        (0x15, 5, 5, true), (0x15, 5, 6, false),
        (0x25, 5, 4, true), (0x25, 5, 5, false),
        (0x35, 5, 5, true), (0x35, 5, 6, false),
        (0x45, 5, 4, true), (0x45, 5, 2, false),
    ] {
        let target = |code, k| {
            let skip = [(code, 1, 0, k), (0x06, 0, 0, 100), (0x06, 0, 0, 200)];
            eval(a, operand, &skip)
        };
        let expected = if holds { 200 } else { 100 };
        assert_eq!(target(code, operand), expected, "{code:#x} {operand}");
        assert_eq!(target(code | 8, 99), expected, "{code:#x} {operand}");
    }
    // Three rounds, then on.
    let down = [
        (0x14, 0, 0, 0x10), (0x15, 1, 0, 0x30), (0x05, 0, 0, (-3_i32) as u32),
        (0x04, 0, 0, 1),
    ];
    assert_eq!(eval(0x60, 3, &down), 0x31);
}

#[test]
fn ancillary_loads_read_packet_metadata() {
    let info = PacketInfo {
        protocol: 0x86dd,
        packet_type: 4,
        ifindex: 70_000,
        queue_index: 6,
        rx_hash: 0x1234_5678,
        mark: 0xfeed,
        hardware_type: 801,
        vlan: Some((0x88a8, 0x6005)),
        network_offset: 2,
    };
    let load = |index: u32, info: &PacketInfo| {
        let i = cbpf::Insn::new;
        let insns = std::vec![
            i(0x01, 0, 0, 6),
            i(0x00, 0, 0, 3),
            i(0x20, 0, 0, index),
            i(0x16, 0, 0, 0)
        ];
        run_with(
            &Program::new(insns).unwrap(),
            &[1, 2, 3, 4, 5, 6, 7],
            7,
            info,
        )
    };
    let names = (0..=60).step_by(4).map(|at| cbpf::ANCILLARY_BASE + at);
    let found: Vec<u32> = names.clone().map(|at| load(at, &info)).collect();
    let expected = [
        0x86dd,
        4,
        70_000,
        0,
        0,
        0xfeed,
        6,
        801,
        0x1234_5678,
        0,
        5,
        0x6005,
        1,
        0,
        0,
        0x88a8,
    ];
    assert_eq!(found, expected);
    let untagged = PacketInfo { vlan: None, ..info };
    let found: Vec<u32> = names.map(|at| load(at, &untagged)).collect();
    assert_eq!([found[11], found[12], found[15]], [0; 3]);
    assert_eq!(load(cbpf::NETWORK_BASE + 1, &info), 0x0405_0607);
    assert_eq!(load(cbpf::LINK_BASE + 1, &info), 0x0203_0405);
}

/// A forward jump does not clear what was written before it; the instructions it skips are not
/// considered.
#[test]
fn jumps_of_valid_programs() {
    let i = cbpf::Insn::new;
    let ret = i(0x06, 0, 0, 1);
    let refusal = |insns: &[cbpf::Insn]| {
        let program = Program::new(insns.to_vec()).unwrap();
        program.kernel_refusal()
    };
    assert_eq!(refusal(&[i(0x05, 0, 0, 0), ret]), None);
    assert_eq!(refusal(&[i(0x05, 0, 0, 1), i(0x60, 0, 0, 3), ret]), None);
    let stored = [i(0x02, 0, 0, 3), i(0x05, 0, 0, 0), i(0x60, 0, 0, 3), ret];
    assert_eq!(refusal(&stored), None);
    let passed_over = [i(0x05, 0, 0, 1), i(0x02, 0, 0, 3), i(0x60, 0, 0, 3), ret];
    let unset = Invalid::MemoryUnset { at: 2, word: 3 };
    assert_eq!(refusal(&passed_over), Some(unset));
    // To itself, to the first instruction, and before it.
    let back = |by: i32| [i(0x00, 0, 0, 0), i(0x05, 0, 0, by as u32), ret];
    for by in [-1, -2] {
        assert_eq!(refusal(&back(by)), Some(Invalid::Jump { at: 1 }), "{by}");
    }
    let insns = back(-3).to_vec();
    assert_eq!(Program::new(insns), Err(Invalid::Jump { at: 1 }));
}

/// Metadata of a socket's packet: fields of `struct __sk_buff` (Linux, include/uapi/linux/bpf.h),
/// and helpers.
#[test]
fn ancillaries_of_a_sockets_packet() {
    for (index, expected) in [
        (0, Some("r0 = *(u32 *)(r6 +16)\nr0 = be16 r0")),
        (4, Some("r0 = *(u32 *)(r6 +4)")),
        (8, Some("r0 = *(u32 *)(r6 +40)")),
        (12, None),
        (16, None),
        (20, Some("r0 = *(u32 *)(r6 +8)")),
        (24, Some("r0 = *(u32 *)(r6 +12)")),
        (28, None),
        (32, Some("r0 = *(u32 *)(r6 +68)")),
        (36, Some("call bpf_get_smp_processor_id#8")),
        (40, Some("w0 ^= w7")),
        (44, Some("r0 = *(u32 *)(r6 +24)")),
        (48, Some("r0 = *(u32 *)(r6 +20)")),
        (52, None),
        (56, Some("call bpf_get_prandom_u32#7")),
        (60, Some("r0 = *(u32 *)(r6 +28)\nr0 = be16 r0")),
    ] {
        let i = cbpf::Insn::new;
        let load = i(0x20, 0, 0, cbpf::ANCILLARY_BASE + index);
        let program = Program::new(std::vec![load, i(0x16, 0, 0, 0)]).unwrap();
        let Some(expected) = expected else {
            let error = translate::skb_program(&program).unwrap_err();
            let is_ancillary = matches!(error, translate::TranslateError::Ancillary { at: 0, .. });
            assert!(is_ancillary, "{index}: {error}");
            continue;
        };
        let insns = translate::skb_program(&program).unwrap();
        let text = Extended(&insns).to_string();
        let lines: Vec<_> = text.lines().map(|line| line[6..].to_string()).collect();
        let found = lines.join("\n");
        assert!(found.contains(expected), "{index}: {found}");
    }
}
