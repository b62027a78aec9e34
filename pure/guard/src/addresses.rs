//! Reads the packet's IP addresses as keys of the prefix trie, on the stack, and looks them up.
//!
//! Up to two VLAN tags (802.1Q, 802.1ad) are skipped. The addresses are read from the first buffer,
//! or from a copy of the packet's start if its headers continue in the next buffer.

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{R0, R1, R2, R3, R4, R6, R10};
use bpf::ebpf::{Alu, Cond, Helper, Width};
use bpf::translate::DirectHook;

use crate::emit::PACKET_LEN;
use crate::headers::{Family, Head, NETWORK_MAX, emit_copy, emit_network};
use crate::prefix::KEY_BITS;

/// Stack offset of the source address's key, 24 bytes.
pub(crate) const SOURCE_KEY: i16 = -40;
/// Stack offset of the destination address's key.
pub(crate) const DESTINATION_KEY: i16 = -64;
/// Stack offset of the lists that contain the source, one bit each.
pub(crate) const SOURCE_LISTS: i16 = -72;
/// Stack offset of the lists that contain the destination.
pub(crate) const DESTINATION_LISTS: i16 = -80;
/// Stack offset of the key of a per-source limit, 24 bytes.
pub(crate) const BUCKET_KEY: i16 = -104;
/// Stack offset of a new value for that key.
pub(crate) const BUCKET: i16 = -112;
/// Stack offset of what [`crate::emit::names`] finds in a query: the type, 8 bytes, and the lists
/// that contain the name.
pub(crate) const QUERY: i16 = -128;
/// Stack offset of the lists that contain the name.
pub(crate) const NAME_LISTS: i16 = QUERY + 8;
/// Lowest stack offset in use.
pub(crate) const STACK_TOP: i16 = -128;

pub(crate) const FAMILY: i16 = 4;
pub(crate) const ADDRESS: i16 = 8;
/// Bytes up to the end of an IPv6 header.
const HEAD_LEN: i16 = NETWORK_MAX + 40;
/// Stack area of a copy of the headers, which filters use later.
const COPY: i16 = STACK_TOP - (HEAD_LEN + 7) / 8 * 8;
/// Stack offset of the copy: addresses are in whole words, as the verifier requires on the stack.
const HEAD: i16 = COPY + 2;
const _: () = assert!(HEAD + HEAD_LEN <= STACK_TOP);

/// Writes both keys; the family of a packet without addresses is 0. `has_buffers`: packets may have
/// several. Clobbers R0 to R5, and R7.
pub(crate) fn emit_keys(a: &mut Asm, hook: DirectHook, has_buffers: bool) {
    let (done, short) = (a.label(), a.label());
    for key in [SOURCE_KEY, DESTINATION_KEY] {
        a.store(Width::W, R10, key, KEY_BITS as i32);
        a.store(Width::W, R10, key + FAMILY, 0);
        a.store(Width::D, R10, key + ADDRESS, 0);
        a.store(Width::D, R10, key + ADDRESS + 8, 0);
    }
    a.load(Width::W, R2, R6, hook.data());
    a.load(Width::W, R3, R6, hook.data_end());
    read(a, Head::Packet, (short, done));
    a.bind(short);
    if has_buffers {
        // The verifier requires that all of it is set.
        for word in (COPY..STACK_TOP).step_by(8) {
            a.store(Width::D, R10, word, 0);
        }
        a.load(Width::D, R4, R10, PACKET_LEN);
        emit_copy(a, hook, (R10, HEAD), HEAD_LEN, done);
        read(a, Head::Copy, (done, done));
    }
    a.bind(done);
}

/// Reads the addresses from the head.
fn read(a: &mut Asm, head: Head, (short, done): (Label, Label)) {
    emit_network(a, head, (short, done), |a, family, network| {
        let (number, len, at, word_count) = match family {
            Family::V4 => (4, 20, 12, 1),
            Family::V6 => (6, 40, 8, 4),
        };
        head.need(a, network + len, short);
        copy(a, number, network + at, word_count);
        a.jump(done);
    });
}

/// Copies both addresses, of `word_count` words each, from packet offset `at`.
fn copy(a: &mut Asm, family: u8, at: i16, word_count: i16) {
    for (index, key) in [SOURCE_KEY, DESTINATION_KEY].into_iter().enumerate() {
        let from = at + index as i16 * word_count * 4;
        let family = i32::from_ne_bytes([0, 0, 0, family]);
        a.store(Width::W, R10, key + FAMILY, family);
        for word in 0..word_count {
            a.load(Width::W, R1, R2, from + word * 4);
            a.store(Width::W, R10, key + ADDRESS + word * 4, R1);
        }
    }
}

/// Looks up an address and stores the word of its lists on the stack. Clobbers R0 to R5.
pub(crate) fn emit_look_up(a: &mut Asm, trie_fd: i32, key: i16, lists: i16) {
    let absent = a.label();
    a.store(Width::D, R10, lists, 0);
    a.load_map(R1, trie_fd);
    a.mov(R2, R10);
    a.alu(Alu::Add, R2, i32::from(key));
    a.call(Helper::MapLookup);
    a.jump_if(Cond::Eq, R0, 0, absent);
    a.load(Width::D, R1, R0, 0);
    a.store(Width::D, R10, lists, R1);
    a.bind(absent);
}

/// Jumps to `miss` unless the list with this bit contains the address.
pub(crate) fn emit_test(a: &mut Asm, lists: i16, bit: u64, miss: Label) {
    let hit = a.label();
    a.load(Width::D, R1, R10, lists);
    a.load_imm64(R2, bit);
    a.jump_if(Cond::Set, R1, R2, hit);
    a.jump(miss);
    a.bind(hit);
}
