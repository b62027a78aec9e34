//! Finds the outermost IP header, behind up to two VLAN tags (802.1Q, 802.1ad).

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{self, R0, R1, R2, R3, R4, R6, R7};
use bpf::ebpf::{Alu, Cond, Width};
use bpf::translate::DirectHook;

const TAGS_MAX: i16 = 2;

/// Maximum offset of an IP header that [`emit_network`] finds.
pub(crate) const NETWORK_MAX: i16 = 14 + 4 * TAGS_MAX;

/// Where the packet's first bytes are; R2 is the address of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// In the packet's first buffer; R3 is its end.
    Packet,
    /// In a copy; R3 is the number of bytes.
    Copy,
}

impl Head {
    /// Jumps to `short` unless there are at least this many bytes. Clobbers R4.
    pub fn need(self, a: &mut Asm, len: i16, short: Label) {
        match self {
            Self::Packet => {
                a.mov(R4, R2);
                a.alu(Alu::Add, R4, i32::from(len));
                a.jump_if(Cond::Gt, R4, R3, short);
            }
            Self::Copy => a.jump_if(Cond::Lt, R3, i32::from(len), short),
        }
    }
}

/// IP version of the header found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Emits the search. `found` emits what is done with a header at this offset, and ends with a jump;
/// packets without one go to `none`, and those whose EtherType is not in the head to `short`.
/// Clobbers R1 and R4.
pub(crate) fn emit_network(
    a: &mut Asm,
    head: Head,
    (short, none): (Label, Label),
    mut found: impl FnMut(&mut Asm, Family, i16),
) {
    for tag_count in 0..=TAGS_MAX {
        let network = 14 + 4 * tag_count;
        let (ipv4, ipv6, tagged) = (a.label(), a.label(), a.label());
        head.need(a, network, short);
        a.load(Width::H, R1, R2, network - 2);
        a.swap_be(R1, 16);
        a.jump_if(Cond::Eq, R1, 0x0800, ipv4);
        a.jump_if(Cond::Eq, R1, 0x86dd, ipv6);
        if tag_count < TAGS_MAX {
            a.jump_if(Cond::Eq, R1, 0x8100, tagged);
            a.jump_if(Cond::Eq, R1, 0x88a8, tagged);
        }
        a.jump(none);
        a.bind(ipv4);
        found(a, Family::V4, network);
        a.bind(ipv6);
        found(a, Family::V6, network);
        a.bind(tagged);
    }
}

/// Copies the first bytes of a packet, whose length is in R4, to memory at this offset from a
/// register; then R2 is the address, and R3 the number of bytes. Packets without an Ethernet header
/// go to `none`. Needs the context in R6; clobbers R0 to R5, and R7.
pub(crate) fn emit_copy(
    a: &mut Asm,
    hook: DirectHook,
    (base, off): (Reg, i16),
    len_max: i16,
    none: Label,
) {
    let short = a.label();
    a.jump_if(Cond::Lt, R4, 14, none);
    a.jump_if(Cond::Le, R4, i32::from(len_max), short);
    a.mov(R4, i32::from(len_max));
    a.bind(short);
    a.mov(R7, R4);
    a.mov(R1, R6);
    a.mov(R2, 0);
    a.mov(R3, base);
    a.alu(Alu::Add, R3, i32::from(off));
    a.call(hook.load_bytes());
    a.jump_if(Cond::Ne, R0, 0, none);
    a.mov(R2, base);
    a.alu(Alu::Add, R2, i32::from(off));
    a.mov(R3, R7);
}
