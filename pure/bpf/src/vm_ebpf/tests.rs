//! Individual instructions, memory, maps and limits.

use alloc::vec::Vec;

use super::maps::{Kind, Maps};
use super::*;
use crate::asm::Asm;
use crate::ebpf::Reg::{self, R0, R1, R2, R3, R6, R7, R10};
use crate::ebpf::{Alu, Cond, Helper, Width};

fn eval(insns: &[Insn], packet: &[u8], maps: &mut Maps) -> Result<u32, Fault> {
    let first_len = packet.len();
    let mut packet = Packet::new(packet);
    let hook = Hook::Xdp { first_len };
    run(
        insns,
        (hook, &mut packet),
        &PacketInfo::UNKNOWN,
        maps,
        10_000,
    )
}

fn of(write: impl FnOnce(&mut Asm)) -> Result<u32, Fault> {
    let mut a = Asm::new();
    write(&mut a);
    eval(
        &a.finish().unwrap(),
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &mut Maps::new(),
    )
}

fn raw(code: u8, dst: Reg, src: Reg, off: i16, imm: i32) -> Insn {
    let (dst, src) = (dst as u8, src as u8);
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

#[test]
fn arithmetic_is_that_of_the_rfc() {
    // Code, offset, operands of 64 bits, result.
    let rows: [(u8, i16, u64, u64, u64); 16] = [
        (0x1f, 0, 5, 7, -2_i64 as u64),
        (0x1c, 0, 5, 7, 0xffff_fffe),
        (0x3f, 0, 7, 0, 0),
        (0x9f, 0, 7, 0, 7),
        (0x3f, 1, -7_i64 as u64, 2, -3_i64 as u64),
        (0x9f, 1, -7_i64 as u64, 2, -1_i64 as u64),
        (0x3f, 1, i64::MIN as u64, u64::MAX, i64::MIN as u64),
        (0x9f, 1, i64::MIN as u64, u64::MAX, 0),
        (0x3c, 1, -8_i64 as u64, 2, 0xffff_fffc),
        (0x6f, 0, 1, 65, 2),
        (0x6c, 0, 1, 33, 2),
        (0xcf, 0, -16_i64 as u64, 2, -4_i64 as u64),
        (0xcc, 0, 0x8000_0000, 31, 0xffff_ffff),
        (0xbf, 8, 0, 0x80, -128_i64 as u64),
        (0xbc, 16, 0, 0x8000, 0xffff_8000),
        (0xbf, 32, 0, 0x8000_0000, 0xffff_ffff_8000_0000),
    ];
    for (code, off, a, b, expected) in rows {
        let result = of(|asm| {
            asm.load_imm64(R0, a);
            asm.load_imm64(R1, b);
            asm.raw(raw(code, R0, R1, off, 0));
            asm.load_imm64(R2, expected);
            let same = asm.label();
            asm.jump_if(Cond::Eq, R0, R2, same);
            asm.mov(R0, 1);
            asm.exit();
            asm.bind(same);
            asm.mov(R0, 2);
            asm.exit();
        });
        assert_eq!(result, Ok(2), "{code:#x} {off} {a:#x} {b:#x}");
    }
}

#[test]
fn conditions_are_signed_and_unsigned_and_of_32_bits() {
    let rows: [(u8, u64, u64, bool); 8] = [
        (0x6d, 1, u64::MAX, true),
        (0x2d, 1, u64::MAX, false),
        (0xcd, u64::MAX, 0, true),
        (0xdd, 0, 0, true),
        (0x7d, 0, 1, false),
        (0x1e, 1 << 32, 0, true),
        (0x6e, 0, 0xffff_ffff, true),
        (0x4d, 6, 9, false),
    ];
    for (code, a, b, holds) in rows {
        let result = of(|asm| {
            asm.load_imm64(R1, a);
            asm.load_imm64(R2, b);
            asm.mov(R0, 1);
            asm.raw(raw(code, R1, R2, 1, 0));
            asm.mov(R0, 0);
            asm.exit();
        });
        assert_eq!(result, Ok(holds.into()), "{code:#x} {a:#x} {b:#x}");
    }
}

#[test]
fn atomic_operations_return_the_old_value() {
    for (imm, stored, fetched) in [
        (0x00, 15, 3),
        (0x01, 15, 12),
        (0x41, 15, 12),
        (0x51, 0, 12),
        (0xa1, 15, 12),
        (0xe1, 3, 12),
    ] {
        let result = of(|asm| {
            asm.store(Width::D, R10, -8, 12);
            asm.mov(R1, 3);
            asm.raw(raw(0xdb, R10, R1, -8, imm));
            asm.load(Width::D, R0, R10, -8);
            asm.alu(Alu::Lsh, R0, 8);
            asm.alu(Alu::Or, R0, R1);
            asm.exit();
        });
        assert_eq!(result, Ok(stored << 8 | fetched), "{imm:#x}");
    }
}

#[test]
fn local_calls_have_their_own_stack_and_registers() {
    let result = of(|asm| {
        asm.mov(R6, 5);
        asm.store(Width::D, R10, -8, 7);
        asm.mov(R1, R10);
        asm.alu(Alu::Add, R1, -8);
        asm.raw(raw(0x85, R0, R1, 0, 2));
        asm.alu(Alu::Add, R0, R6);
        asm.exit();
        asm.mov(R6, 100);
        asm.load(Width::D, R0, R1, 0);
        asm.store(Width::D, R10, -8, R6);
        asm.exit();
    });
    assert_eq!(result, Ok(12));
    // A call of itself.
    let endless = [raw(0x85, R0, R1, 0, -1)];
    let fault = eval(&endless, &[], &mut Maps::new()).unwrap_err();
    assert_eq!(fault.1, "calls too deeply");
}

#[test]
fn programs_that_the_verifier_rejects_fault() {
    let cases: Vec<(&str, Result<u32, Fault>)> = alloc::vec![
        ("not set", of(|a| a.exit())),
        ("not set", of(|a| a.load(Width::D, R0, R10, -8))),
        ("outside", of(|a| a.load(Width::D, R0, R10, 0))),
        ("outside", of(|a| a.store(Width::D, R10, -520, 0))),
        ("unaligned", of(|a| a.store(Width::D, R10, -12, 0))),
        ("out of the program", of(|a| a.mov(R0, 1))),
        ("frame pointer", of(|a| a.mov(R10, 1))),
        ("part of a context", of(|a| a.load(Width::D, R0, R1, 0))),
        ("no such field", of(|a| a.load(Width::W, R0, R1, 24))),
        ("too many steps", of(|a| a.raw(raw(0x05, R0, R0, -1, 0)))),
        (
            "out of the program",
            of(|a| a.raw(raw(0x05, R0, R0, -9, 0)))
        ),
        ("unknown helper", of(|a| a.raw(raw(0x85, R0, R0, 0, 9999)))),
        (
            "no map",
            of(|a| {
                a.load_map(R1, 3);
                a.store(Width::W, R10, -4, 0);
                a.mov(R2, R10);
                a.alu(Alu::Add, R2, -4);
                a.call(Helper::MapLookup);
            })
        ),
    ];
    for (why, result) in cases {
        assert!(result.unwrap_err().1.contains(why), "{result:?}, not {why}");
    }
    for off in [5, -1] {
        let result = of(|a| {
            a.load(Width::W, R2, R1, 0);
            a.load(Width::W, R0, R2, off);
        });
        assert_eq!(result.unwrap_err().1, "outside");
    }
}

#[test]
fn a_first_buffer_longer_than_the_packet_is_refused() {
    let mut packet = Packet::new(&[1, 2, 3, 4]);
    let target = (Hook::Xdp { first_len: 5 }, &mut packet);
    let result = run(&[], target, &PacketInfo::UNKNOWN, &mut Maps::new(), 10);
    let why = "the first buffer is longer than the packet";
    assert_eq!(result.unwrap_err().1, why);
}

#[test]
fn maps_behave_like_those_of_the_kernel() {
    let mut maps = Maps::new();
    maps.add(3, Kind::Trie, (8, 8), 10);
    for (len, address, value) in [(8_u32, [10, 0, 0, 0], 1_u64), (24, [10, 1, 2, 0], 2)] {
        let mut key = len.to_ne_bytes().to_vec();
        key.extend(address);
        assert_eq!(maps.update(3, &key, &value.to_ne_bytes(), 0), 0);
    }
    for (address, value) in [
        ([10, 1, 2, 9], Some(2)),
        ([10, 1, 3, 9], Some(1)),
        ([11; 4], None),
    ] {
        let mut key = 32_u32.to_ne_bytes().to_vec();
        key.extend(address);
        let found = maps
            .get(3, &key)
            .map(|v| u64::from_ne_bytes(v.try_into().unwrap()));
        assert_eq!(found, value, "{address:?}");
    }
    maps.add(4, Kind::LruHash, (1, 1), 2);
    for key in 1..=3 {
        assert_eq!(maps.update(4, &[key], &[key], 1), 0);
    }
    assert_eq!(
        (maps.look_up(4, &[1]), maps.update(4, &[3], &[0], 1)),
        (None, -17)
    );
    maps.add(5, Kind::Hash, (1, 1), 1);
    assert_eq!(
        (maps.update(5, &[1], &[1], 0), maps.update(5, &[2], &[1], 0)),
        (0, -7)
    );
    maps.add(6, Kind::Array, (4, 8), 2);
    assert!(maps.look_up(6, &1_u32.to_ne_bytes()).is_some());
    assert!(maps.look_up(6, &2_u32.to_ne_bytes()).is_none());
}

#[test]
fn a_program_counts_in_a_map_and_writes_metadata() {
    let mut a = Asm::new();
    let found = a.label();
    a.mov(R6, R1);
    a.store(Width::W, R10, -4, 1);
    a.load_map(R1, 7);
    a.mov(R2, R10);
    a.alu(Alu::Add, R2, -4);
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Ne, R0, 0, found);
    a.exit();
    a.bind(found);
    a.load(Width::D, R7, R0, 0);
    a.alu(Alu::Add, R7, 1);
    a.store(Width::D, R0, 0, R7);
    a.mov(R1, R6);
    a.mov(R2, -4);
    a.call(Helper::XdpAdjustMeta);
    a.load(Width::W, R3, R6, 8);
    a.store(Width::W, R3, 0, 0x0102_0304);
    a.mov(R0, R7);
    a.exit();
    let insns = a.finish().unwrap();
    let mut maps = Maps::new();
    maps.add(7, Kind::Array, (4, 8), 2);
    let mut packet = Packet::new(&[9; 14]);
    for count in 1..=3 {
        packet.meta = HEADROOM;
        let hook = Hook::Xdp { first_len: 14 };
        let target = (hook, &mut packet);
        let result = run(&insns, target, &PacketInfo::UNKNOWN, &mut maps, STEPS_MAX);
        assert_eq!(result, Ok(count));
    }
    assert_eq!(packet.metadata(), 0x0102_0304_u32.to_ne_bytes());
    assert_eq!(packet.bytes(), [9; 14]);
}
