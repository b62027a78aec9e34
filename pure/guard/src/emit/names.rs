//! Looks up the name of a DNS query: a function of the program, which is called once for a packet.
//!
//! It copies the packet from its UDP header on into scratch memory of the processor, walks the
//! labels of the first question, converts the name to lower case, and puts zeros after it, so that
//! the name, and the name without its first label, are keys of the hash table where they are.
//!
//! ```text
//!   scratch: at 0 the position of the name's end; at 4 the UDP header; at 12 the DNS header;
//!            at 24 the name, type and class, or zeros
//! ```

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use bpf::ebpf::{Alu, Cond, Helper, Width};
use bpf::translate::DirectHook;

use super::{Features, Maps};
use crate::headers::{Family, Head, NETWORK_MAX, emit_copy, emit_network};
use crate::names::NameLists;

/// Length of the longest label with its length byte.
const LABEL_MAX: i16 = 64;
/// Bytes of type and class.
const TYPE_CLASS: i16 = 4;

/// Offsets in the scratch memory.
const END: i16 = 0;
const UDP: i16 = 4;
const DNS: i16 = UDP + 8;
const NAME: i16 = DNS + 12;

/// Bytes of a packet up to its UDP port, if it has no IPv4 options.
const HEAD_LEN: i16 = NETWORK_MAX + 44;

/// Stack offsets of the function: the length of the packet, later of its part in the scratch
/// memory; and the key of that.
const LEN: i16 = -8;
const KEY: i16 = -12;

/// Maximum position of the last byte of a name that may be in a list.
fn end_max(lists: &NameLists) -> i16 {
    let first = if lists.has_below { LABEL_MAX } else { 0 };
    lists.key_len as i16 + first - 1
}

/// Length of the scratch memory.
pub(crate) fn scratch_len(lists: &NameLists) -> usize {
    // Zeros are stored behind the longest name.
    let len = NAME + end_max(lists) + 1 + (lists.key_len as i16).max(TYPE_CLASS);
    (len.max(UDP + HEAD_LEN) as usize).next_multiple_of(8)
}

/// Emits the function. Its arguments: the context, the address of two words that are 0, and the
/// packet's length. If the packet is a query whose name is in a list, the words become the type and
/// the lists.
pub(super) fn emit(a: &mut Asm, lists: &NameLists, maps: Maps, features: Features) {
    let (udp, out) = (a.label(), a.label());
    let function = Function {
        lists,
        maps,
        hook: features.hook,
        by_helper: features.frags,
        udp,
        out,
    };
    a.mov(R6, R1);
    a.mov(R9, R2);
    a.store(Width::D, R10, LEN, R3);
    function.headers(a);
    a.bind(udp);
    function.copy(a);
    function.question(a);
    function.lower(a);
    function.look_up(a);
    a.bind(out);
    a.mov(R0, 0);
    a.exit();
}

/// The parameters of the function. In its code R6 is the context, R7 the offset of the UDP header
/// and then the position of the name's last byte, R8 the scratch memory, R9 the address of the
/// result.
struct Function<'a> {
    lists: &'a NameLists,
    maps: Maps,
    hook: DirectHook,
    /// Whether the packet's bytes are copied by a helper.
    by_helper: bool,
    /// Where packets go that may be a query, with the offset of the UDP header in R7.
    udp: Label,
    out: Label,
}

impl Function<'_> {
    /// Finds the UDP header; falls through only to the code of `udp`.
    fn headers(&self, a: &mut Asm) {
        let short = a.label();
        a.load(Width::W, R2, R6, self.hook.data());
        a.load(Width::W, R3, R6, self.hook.data_end());
        self.ip(a, Head::Packet, short);
        a.bind(short);
        if !self.by_helper {
            a.jump(self.out);
            return;
        }
        self.scratch(a);
        a.load(Width::D, R4, R10, LEN);
        emit_copy(a, self.hook, (R8, UDP), HEAD_LEN, self.out);
        self.ip(a, Head::Copy, self.out);
    }

    /// Checks the IP header: UDP, no fragment, no IPv6 extension headers; and the port, where its
    /// offset is constant.
    fn ip(&self, a: &mut Asm, head: Head, short: Label) {
        let out = self.out;
        emit_network(a, head, (short, out), |a, family, network| {
            let (len, version, protocol) = match family {
                Family::V4 => (20, 0x40, 9),
                Family::V6 => (40, 0x60, 6),
            };
            head.need(a, network + len, short);
            a.load(Width::B, R1, R2, network + protocol);
            a.jump_if(Cond::Ne, R1, 17, out);
            a.load(Width::B, R1, R2, network);
            a.mov(R5, R1);
            a.alu(Alu::And, R5, 0xf0);
            a.jump_if(Cond::Ne, R5, version, out);
            a.mov(R7, i32::from(network + len));
            if family == Family::V4 {
                a.mov(R7, R1);
                a.alu(Alu::And, R7, 0x0f);
                a.jump_if(Cond::Lt, R7, 5, out);
                a.alu(Alu::Lsh, R7, 2);
                a.alu(Alu::Add, R7, i32::from(network));
                a.load(Width::H, R1, R2, network + 6);
                a.swap_be(R1, 16);
                a.jump_if(Cond::Set, R1, 0x3fff, out);
                a.jump_if(Cond::Ne, R7, i32::from(network + len), self.udp);
            }
            // Beyond the first buffer, the port is checked in the copy only.
            head.need(a, network + len + 4, self.udp);
            a.load(Width::H, R1, R2, network + len + 2);
            a.swap_be(R1, 16);
            a.jump_if(Cond::Ne, R1, 53, out);
            a.jump(self.udp);
        });
    }

    /// Sets R8 to the scratch memory.
    fn scratch(&self, a: &mut Asm) {
        a.store(Width::W, R10, KEY, 0);
        a.load_map(R1, self.maps.scratch);
        a.mov(R2, R10);
        a.alu(Alu::Add, R2, i32::from(KEY));
        a.call(Helper::MapLookup);
        // Never taken, as for the counters.
        a.jump_if(Cond::Eq, R0, 0, self.out);
        a.mov(R8, R0);
    }

    /// Copies the packet from its UDP header on, and stores the number of bytes at [`LEN`].
    fn copy(&self, a: &mut Asm) {
        let cut = a.label();
        let window = NAME - UDP + end_max(self.lists) + 1 + TYPE_CLASS;
        self.scratch(a);
        a.load(Width::D, R4, R10, LEN);
        a.alu(Alu::Sub, R4, R7);
        // Shorter than a query for the root, or negative: it ends within the IP header.
        let len_min = NAME - UDP + 1 + TYPE_CLASS;
        a.jump_if(Cond::SignedLt, R4, i32::from(len_min), self.out);
        a.jump_if(Cond::Le, R4, i32::from(window), cut);
        a.mov(R4, i32::from(window));
        a.bind(cut);
        a.store(Width::D, R10, LEN, R4);
        if !self.by_helper {
            return self.copy_directly(a, window);
        }
        a.mov(R1, R6);
        a.mov(R2, R7);
        a.mov(R3, R8);
        a.alu(Alu::Add, R3, i32::from(UDP));
        a.call(self.hook.load_bytes());
        a.jump_if(Cond::Ne, R0, 0, self.out);
    }

    /// Copies the bytes from offset R7 on, one after the other, up to the end of the packet.
    /// Nothing in the loop depends on its length, or the verifier would follow the rest once for
    /// each.
    fn copy_directly(&self, a: &mut Asm, window: i16) {
        let (next, done) = (a.label(), a.label());
        a.load(Width::W, R2, R6, self.hook.data());
        a.load(Width::W, R3, R6, self.hook.data_end());
        a.alu(Alu::Add, R2, R7);
        a.mov(R1, R8);
        a.mov(R5, 0);
        a.bind(next);
        a.mov(R0, R2);
        a.alu(Alu::Add, R0, 1);
        a.jump_if(Cond::Gt, R0, R3, done);
        a.load(Width::B, R0, R2, 0);
        a.store(Width::B, R1, UDP, R0);
        a.alu(Alu::Add, R1, 1);
        a.alu(Alu::Add, R2, 1);
        a.alu(Alu::Add, R5, 1);
        a.jump_if(Cond::Lt, R5, i32::from(window), next);
        a.bind(done);
    }

    /// Checks the query, walks the labels of its first question, and stores the type. R7 becomes
    /// the position of the empty label.
    fn question(&self, a: &mut Asm) {
        let (next, end, checked) = (a.label(), a.label(), a.label());
        let (out, end_max) = (self.out, end_max(self.lists));
        a.load(Width::H, R1, R8, UDP + 2);
        a.swap_be(R1, 16);
        a.jump_if(Cond::Ne, R1, 53, out);
        a.load(Width::B, R1, R8, DNS + 2);
        a.jump_if(Cond::Set, R1, 0x80, out);
        a.load(Width::H, R1, R8, DNS + 4);
        a.jump_if(Cond::Eq, R1, 0, out);
        // R1 is the position, R2 counts labels for the verifier: one has at least two bytes.
        a.mov(R1, 0);
        a.mov(R2, 0);
        a.bind(next);
        a.mov(R3, R8);
        a.alu(Alu::Add, R3, R1);
        a.load(Width::B, R4, R3, NAME);
        a.jump_if(Cond::Eq, R4, 0, end);
        a.jump_if(Cond::Gt, R4, 63, out);
        a.alu(Alu::Add, R1, R4);
        a.alu(Alu::Add, R1, 1);
        a.jump_if(Cond::Gt, R1, i32::from(end_max), out);
        a.alu(Alu::Add, R2, 1);
        a.jump_if(Cond::Le, R2, i32::from(end_max / 2), next);
        a.jump(out);
        a.bind(end);
        // Through memory, so that the verifier follows the rest once, not once for each number of
        // labels.
        a.store(Width::W, R8, END, R1);
        a.jump(checked);
        a.bind(checked);
        a.load(Width::W, R7, R8, END);
        a.jump_if(Cond::Gt, R7, i32::from(end_max), out);
        a.mov(R1, R7);
        a.alu(Alu::Add, R1, i32::from(NAME - UDP + 1 + TYPE_CLASS));
        a.load(Width::D, R2, R10, LEN);
        a.jump_if(Cond::Gt, R1, R2, out);
        a.mov(R3, R8);
        a.alu(Alu::Add, R3, R7);
        a.load(Width::H, R1, R3, NAME + 1);
        a.swap_be(R1, 16);
        a.store(Width::D, R9, 0, R1);
    }

    /// Converts the name to lower case, eight bytes at a time, and puts zeros after it. No length
    /// byte is a letter.
    fn lower(&self, a: &mut Asm) {
        let next = a.label();
        let all = |byte: u8| u64::from_ne_bytes([byte; 8]);
        a.mov(R1, R8);
        a.mov(R2, 0);
        a.bind(next);
        a.load(Width::D, R3, R1, NAME);
        // Bit 7 of each byte of R5: the byte without its own bit 7 is at least "A", and not above
        // "Z".
        a.load_imm64(R0, all(0x7f));
        a.mov(R4, R3);
        a.alu(Alu::And, R4, R0);
        a.load_imm64(R0, all(0x80 - b'A'));
        a.mov(R5, R4);
        a.alu(Alu::Add, R5, R0);
        a.load_imm64(R0, all(0x7f - b'Z'));
        a.alu(Alu::Add, R4, R0);
        a.alu(Alu::Xor, R5, R4);
        // The byte is ASCII.
        a.mov(R4, R3);
        a.alu(Alu::Xor, R4, -1);
        a.alu(Alu::And, R5, R4);
        a.load_imm64(R0, all(0x80));
        a.alu(Alu::And, R5, R0);
        a.alu(Alu::Rsh, R5, 2);
        a.alu(Alu::Or, R3, R5);
        a.store(Width::D, R1, NAME, R3);
        a.alu(Alu::Add, R1, 8);
        a.alu(Alu::Add, R2, 8);
        a.jump_if(Cond::Ge, R7, R2, next);
        a.mov(R1, R8);
        a.alu(Alu::Add, R1, R7);
        for word in (0..self.lists.key_len as i16).step_by(8) {
            a.store(Width::D, R1, NAME + 1 + word, 0);
        }
    }

    /// Looks up the name, and the name without its first label.
    fn look_up(&self, a: &mut Asm) {
        let key_len = self.lists.key_len as i32;
        if self.lists.has_exact {
            let absent = a.label();
            a.jump_if(Cond::Ge, R7, key_len, absent);
            a.load_map(R1, self.maps.names);
            a.mov(R2, R8);
            a.alu(Alu::Add, R2, i32::from(NAME));
            a.call(Helper::MapLookup);
            a.jump_if(Cond::Eq, R0, 0, absent);
            a.load(Width::D, R1, R0, 0);
            a.store(Width::D, R9, 8, R1);
            a.bind(absent);
        }
        if self.lists.has_below {
            // The root has no first label.
            a.jump_if(Cond::Eq, R7, 0, self.out);
            a.load(Width::B, R1, R8, NAME);
            a.alu(Alu::And, R1, 63);
            a.alu(Alu::Add, R1, 1);
            a.alu(Alu::Sub, R7, R1);
            a.jump_if(Cond::Ge, R7, key_len, self.out);
            a.mov(R2, R8);
            a.alu(Alu::Add, R2, R1);
            a.alu(Alu::Add, R2, i32::from(NAME));
            a.load_map(R1, self.maps.names);
            a.call(Helper::MapLookup);
            a.jump_if(Cond::Eq, R0, 0, self.out);
            a.load(Width::D, R1, R0, 8);
            a.load(Width::D, R2, R9, 8);
            a.alu(Alu::Or, R1, R2);
            a.store(Width::D, R9, 8, R1);
        }
    }
}
