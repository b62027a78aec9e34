//! The program of a record ring: a socket filter that writes each packet into mapped memory, and
//! then rejects it, so that the kernel does no further work.
//!
//! ```text
//! | control, one page | records ...                              | room after the last |
//!   head seen lost passed ... tail wake_at
//!
//! record: stamp | cap_len wire_len | time | flags tci tpid | bytes, up to a multiple of 8
//! ```
//!
//! Positions run freely; a record begins at its position modulo the ring's length and is never
//! split at the ring's end, because there is room for one after it. A writer reserves its place by
//! advancing `head` (a compare-and-swap, because packets arrive on several processors at once),
//! fills the record, and writes the stamp last: the position, XORed with a secret, so that no stale
//! bytes, even chosen by an attacker, pass for a finished record. The reader advances `tail`.
//!
//! A ring used from end to end is not in any cache: each record's lines come from memory first. A
//! reader that has read everything therefore sends the writers back to the ring's start: it
//! advances `head`, which no writer is advancing at that moment (the compare-and-swap checks that),
//! to the epoch after next, and then `tail`. An epoch is twice the ring's length, so nothing else
//! puts two between them; meanwhile the used space is the distance of `head` from the start of its
//! epoch.
//!
//! Since Linux 5.12 (atomic operations).

use bpf::asm::Asm;
use bpf::cbpf;
use bpf::ebpf::Reg::{self, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use bpf::ebpf::{Alu, Cond, Helper, Insn, Width};
use bpf::translate::{TranslateError, emit_skb};

/// Byte offsets in the control page. Fields that the program updates and those that the reader
/// updates are on different cache lines.
pub(super) mod control {
    /// Position after the last reserved record.
    pub(in super::super) const HEAD: usize = 0;
    /// Number of packets seen.
    pub(in super::super) const SEEN: usize = 8;
    /// Number of packets for which there was no room.
    pub(in super::super) const LOST: usize = 16;
    /// Number of packets selected by the user's filter, if there is one.
    pub(in super::super) const PASSED: usize = 24;
    /// Number of packets seen by a program with a filter; those seen without one are in `SEEN`,
    /// because such programs may replace each other.
    pub(in super::super) const SEEN_BY_FILTER: usize = 32;
    /// Position of the first record that the reader still needs.
    pub(in super::super) const TAIL: usize = 128;
    /// Position of `head` at which to wake the sleeping reader.
    pub(in super::super) const WAKE_AT: usize = 136;
    /// Length of the page.
    pub(in super::super) const LEN: usize = 4096;
}

/// Byte offsets in a record.
pub(super) mod record {
    pub(in super::super) const STAMP: usize = 0;
    pub(in super::super) const CAP_LEN: usize = 8;
    pub(in super::super) const WIRE_LEN: usize = 12;
    pub(in super::super) const TIME: usize = 16;
    pub(in super::super) const FLAGS: usize = 24;
    pub(in super::super) const VLAN_TCI: usize = 28;
    pub(in super::super) const VLAN_TPID: usize = 30;
    /// Offset of the packet's bytes.
    pub(in super::super) const DATA: usize = 32;

    /// Flags: mask of the packet type (`PACKET_OUTGOING` and so on).
    pub(in super::super) const KIND_MASK: u32 = 0xff;
    /// Flag: there is a VLAN tag.
    pub(in super::super) const HAS_VLAN: u32 = 1 << 8;
    /// Flag: the kernel failed to copy the bytes.
    pub(in super::super) const BROKEN: u32 = 1 << 9;

    /// Length of a record with this many packet bytes.
    #[inline]
    pub(in super::super) fn len(cap_len: u32) -> u64 {
        (DATA as u64 + u64::from(cap_len)).next_multiple_of(8)
    }
}

/// Offsets in `struct __sk_buff`.
mod skb {
    pub(super) const LEN: i16 = 0;
    pub(super) const KIND: i16 = 4;
    pub(super) const VLAN_PRESENT: i16 = 20;
    pub(super) const VLAN_TCI: i16 = 24;
    pub(super) const VLAN_PROTO: i16 = 28;
}

/// `PACKET_OUTGOING`.
const OUTGOING: i32 = 4;
/// `bpf_skb_load_bytes` (Since Linux 4.5).
const SKB_LOAD_BYTES: i32 = 26;
/// Maximum number of attempts to reserve a place. A failure means that another processor reserved
/// one meanwhile.
const TRIES: i32 = 64;
/// Stack offsets of the map's key and of the control page's address.
const KEY: i16 = -4;
const CONTROL: i16 = -16;
/// The stack below is used by the translated filter.
const FILTER_STACK: i16 = -16;

/// Configuration of the program.
pub(super) struct Spec<'a> {
    pub(super) map_fd: i32,
    /// Length of the ring in bytes: a power of two.
    pub(super) ring_len: u32,
    /// Maximum number of bytes kept of each packet.
    pub(super) cap_max: u32,
    pub(super) secret: u64,
    pub(super) filter: Option<&'a cbpf::Program>,
    /// Whether to exclude outgoing packets.
    pub(super) reject_outgoing: bool,
    /// Whether to timestamp each packet.
    pub(super) time: bool,
}

/// Start of the epoch after next: no full ring reaches that far.
#[inline]
pub(super) fn rewound(position: u64, ring_len: u64) -> u64 {
    (position & !(2 * ring_len - 1)).wrapping_add(4 * ring_len)
}

/// Length of the map's single value in bytes.
pub(super) fn value_len(ring_len: u32, cap_max: u32) -> u32 {
    control::LEN as u32 + ring_len + record::len(cap_max) as u32
}

/// The atomic operations, by their `imm`.
#[derive(Clone, Copy)]
enum Atomic {
    Add = 0x00,
    /// Returns the old value in the operand register.
    Exchange = 0xe1,
    /// Compares with R0, and returns the old value in it.
    CompareExchange = 0xf1,
}

/// `BPF_STX | BPF_ATOMIC | BPF_DW`.
fn atomic(asm: &mut Asm, op: Atomic, base: Reg, offset: usize, src: Reg) {
    asm.raw(Insn {
        code: 0xdb,
        dst: base as u8,
        src: src as u8,
        off: offset as i16,
        imm: op as i32,
    });
}

/// `dst = base + the length of a record with R7 bytes of packet`.
fn behind(asm: &mut Asm, dst: Reg, base: Reg) {
    asm.mov(dst, R7);
    asm.alu(Alu::Add, dst, record::DATA as i32 + 7);
    asm.alu(Alu::And, dst, -8);
    asm.alu(Alu::Add, dst, base);
}

/// Emits the program. R6 is the packet, R7 the number of bytes kept, R8 the record's position, R9
/// first the control page and then a page before the record.
pub(super) fn assemble(spec: &Spec<'_>) -> Result<Vec<Insn>, TranslateError> {
    let mut asm = Asm::new();
    let (reject, full) = (asm.label(), asm.label());
    asm.mov(R6, R1);
    if spec.reject_outgoing {
        asm.load(Width::W, R2, R6, skb::KIND);
        asm.jump_if(Cond::Eq, R2, OUTGOING, reject);
    }
    asm.store(Width::W, R10, KEY, 0);
    asm.mov(R2, R10);
    asm.alu(Alu::Add, R2, i32::from(KEY));
    asm.load_map(R1, spec.map_fd);
    asm.call(Helper::MapLookup);
    asm.jump_if(Cond::Eq, R0, 0, reject);
    asm.mov(R9, R0);
    asm.mov(R1, 1);
    let seen = match spec.filter {
        Some(_) => control::SEEN_BY_FILTER,
        None => control::SEEN,
    };
    atomic(&mut asm, Atomic::Add, R9, seen, R1);
    select(&mut asm, spec, reject)?;
    take_place(&mut asm, spec, full);
    write_record(&mut asm, spec);

    // Does the reader sleep until this much is present? Then wake it, once, by letting a packet
    // through.
    asm.load(Width::D, R2, R10, CONTROL);
    behind(&mut asm, R1, R8);
    asm.load(Width::D, R3, R2, control::WAKE_AT as i16);
    asm.jump_if(Cond::Lt, R1, R3, reject);
    asm.mov(R1, -1);
    asm.store(Width::D, R2, control::WAKE_AT as i16, R1);
    asm.mov(R0, 1);
    asm.exit();

    asm.bind(full);
    asm.mov(R1, 1);
    atomic(&mut asm, Atomic::Add, R9, control::LOST, R1);
    asm.bind(reject);
    asm.mov(R0, 0);
    asm.exit();
    Ok(asm.finish()?)
}

/// Runs the user's filter; sets R7 to the number of bytes to keep, at least one.
fn select(asm: &mut Asm, spec: &Spec<'_>, reject: bpf::asm::Label) -> Result<(), TranslateError> {
    let cut = asm.label();
    if let Some(filter) = spec.filter {
        let hit = asm.label();
        emit_skb(asm, filter, FILTER_STACK, hit, reject)?;
        if asm.is_used(hit) {
            asm.bind(hit);
        }
        asm.mov32(R8, R0);
        asm.jump_if(Cond::Eq, R8, 0, reject);
        asm.mov(R1, 1);
        atomic(asm, Atomic::Add, R9, control::PASSED, R1);
        asm.load(Width::W, R7, R6, skb::LEN);
        asm.jump_if(Cond::Le, R7, R8, cut);
        asm.mov(R7, R8);
    } else {
        asm.load(Width::W, R7, R6, skb::LEN);
    }
    asm.bind(cut);
    let fits = asm.label();
    asm.jump_if(Cond::Le, R7, spec.cap_max as i32, fits);
    asm.mov(R7, spec.cap_max as i32);
    asm.bind(fits);
    // There are no empty packets, but the verifier requires the check (before Linux 6.8 it derives
    // a lower bound only from an ordering, not from an inequality).
    asm.jump_if(Cond::Lt, R7, 1, reject);
    Ok(())
}

/// Advances `head` by a record of R7 bytes; sets R8 to the record's position. Jumps to `full`
/// without room.
fn take_place(asm: &mut Asm, spec: &Spec<'_>, full: bpf::asm::Label) {
    let (again, retry) = (asm.label(), asm.label());
    let (room, taken) = (asm.label(), asm.label());
    asm.mov(R5, 0);
    asm.bind(again);
    asm.load(Width::D, R8, R9, control::HEAD as i16);
    behind(asm, R1, R8);
    asm.mov(R2, R1);
    asm.load(Width::D, R3, R9, control::TAIL as i16);
    asm.alu(Alu::Sub, R2, R3);
    asm.jump_if(Cond::Le, R2, spec.ring_len as i32, room);
    // The reader has advanced since `head` was read.
    asm.jump_if(Cond::SignedLt, R2, 0, retry);
    // Full, or the reader is resetting the ring to its start.
    let epoch_len = 2 * u64::from(spec.ring_len);
    asm.mov(R2, R8);
    asm.alu(Alu::Rsh, R2, epoch_len.ilog2() as i32);
    asm.alu(Alu::Rsh, R3, epoch_len.ilog2() as i32);
    asm.alu(Alu::Sub, R2, R3);
    asm.jump_if(Cond::Lt, R2, 2, full);
    asm.mov(R2, R1);
    asm.alu(Alu::And, R2, (epoch_len - 1) as i32);
    asm.jump_if(Cond::Gt, R2, spec.ring_len as i32, full);
    asm.bind(room);
    asm.mov(R0, R8);
    atomic(asm, Atomic::CompareExchange, R9, control::HEAD, R1);
    asm.jump_if(Cond::Eq, R0, R8, taken);
    asm.bind(retry);
    asm.alu(Alu::Add, R5, 1);
    asm.jump_if(Cond::Lt, R5, TRIES, again);
    asm.jump(full);
    asm.bind(taken);
}

/// Fills the record at R8, and writes its stamp last.
fn write_record(asm: &mut Asm, spec: &Spec<'_>) {
    let at = |field: usize| (control::LEN + field) as i16;
    asm.store(Width::D, R10, CONTROL, R9);
    asm.mov(R1, R8);
    // The lowest bits are zero in any case; this shows the verifier the alignment.
    asm.alu(Alu::And, R1, (spec.ring_len - 8) as i32);
    asm.alu(Alu::Add, R9, R1);
    asm.mov(R1, R6);
    asm.mov(R2, 0);
    asm.mov(R3, R9);
    asm.alu(Alu::Add, R3, i32::from(at(record::DATA)));
    asm.mov(R4, R7);
    asm.raw(Insn {
        code: 0x85,
        imm: SKB_LOAD_BYTES,
        ..Insn::default()
    });
    asm.store(Width::W, R9, at(record::CAP_LEN), R7);
    asm.load(Width::W, R1, R6, skb::LEN);
    asm.store(Width::W, R9, at(record::WIRE_LEN), R1);
    asm.load(Width::W, R1, R6, skb::KIND);
    let (whole, plain) = (asm.label(), asm.label());
    asm.jump_if(Cond::Eq, R0, 0, whole);
    asm.alu(Alu::Or, R1, record::BROKEN as i32);
    asm.bind(whole);
    asm.load(Width::W, R2, R6, skb::VLAN_PRESENT);
    asm.jump_if(Cond::Eq, R2, 0, plain);
    asm.alu(Alu::Or, R1, record::HAS_VLAN as i32);
    asm.load(Width::W, R2, R6, skb::VLAN_TCI);
    asm.store(Width::H, R9, at(record::VLAN_TCI), R2);
    asm.load(Width::W, R2, R6, skb::VLAN_PROTO);
    asm.store(Width::H, R9, at(record::VLAN_TPID), R2);
    asm.bind(plain);
    asm.store(Width::W, R9, at(record::FLAGS), R1);
    if spec.time {
        asm.call(Helper::KtimeGetNs);
        asm.store(Width::D, R9, at(record::TIME), R0);
    }
    asm.load_imm64(R1, spec.secret);
    asm.alu(Alu::Xor, R1, R8);
    // An exchange orders preceding writes on every processor (a plain store does so only on x86).
    atomic(asm, Atomic::Exchange, R9, control::LEN + record::STAMP, R1);
}
