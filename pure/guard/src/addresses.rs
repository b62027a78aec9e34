//! Reads the packet's IP addresses as keys of the prefix trie, on the stack, and looks them up.
//!
//! Up to two VLAN tags (802.1Q, 802.1ad) are skipped. The addresses are read from the first buffer,
//! which holds the headers with every driver.

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{R0, R1, R2, R3, R4, R6, R10};
use bpf::ebpf::{Alu, Cond, Helper, Width};
use bpf::translate::DirectHook;

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
/// Lowest stack offset in use.
pub(crate) const STACK_TOP: i16 = -112;

pub(crate) const FAMILY: i16 = 4;
pub(crate) const ADDRESS: i16 = 8;
const TAGS_MAX: i16 = 2;

/// Writes both keys; the family of a packet without addresses is 0. Clobbers R0 to R4.
pub(crate) fn emit_keys(a: &mut Asm, hook: DirectHook) {
    let done = a.label();
    for key in [SOURCE_KEY, DESTINATION_KEY] {
        a.store(Width::W, R10, key, KEY_BITS as i32);
        a.store(Width::W, R10, key + FAMILY, 0);
        a.store(Width::D, R10, key + ADDRESS, 0);
        a.store(Width::D, R10, key + ADDRESS + 8, 0);
    }
    a.load(Width::W, R2, R6, hook.data());
    a.load(Width::W, R3, R6, hook.data_end());
    for tag_count in 0..=TAGS_MAX {
        let network = 14 + 4 * tag_count;
        let (ipv4, ipv6, tagged) = (a.label(), a.label(), a.label());
        need(a, network, done);
        a.load(Width::H, R1, R2, network - 2);
        a.swap_be(R1, 16);
        a.jump_if(Cond::Eq, R1, 0x0800, ipv4);
        a.jump_if(Cond::Eq, R1, 0x86dd, ipv6);
        if tag_count < TAGS_MAX {
            a.jump_if(Cond::Eq, R1, 0x8100, tagged);
            a.jump_if(Cond::Eq, R1, 0x88a8, tagged);
        }
        a.jump(done);
        a.bind(ipv4);
        need(a, network + 20, done);
        copy(a, 4, network + 12, 1);
        a.jump(done);
        a.bind(ipv6);
        need(a, network + 40, done);
        copy(a, 6, network + 8, 4);
        if tag_count < TAGS_MAX {
            a.jump(done);
        }
        a.bind(tagged);
    }
    a.bind(done);
}

/// Jumps to `short` unless the packet's first buffer has at least this many bytes.
fn need(a: &mut Asm, len: i16, short: Label) {
    a.mov(R4, R2);
    a.alu(Alu::Add, R4, i32::from(len));
    a.jump_if(Cond::Gt, R4, R3, short);
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
