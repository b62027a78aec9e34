//! Programs of fan-out groups: they return a hash of a packet's IP addresses, and the kernel takes
//! it modulo the number of members (`fanout_demux_bpf` in `net/packet/af_packet.c`).
//!
//! The hash is the same for both directions and reads nothing behind the IP header, so that
//! fragments are with their flow. It is classic BPF, which needs no privilege. A load outside the
//! packet ends the program with 0.
//!
//! The kernel runs the program where the packet is: a received one begins with its network header,
//! the outer VLAN tag removed; a sent one begins with its link header.

use bpf::cbpf::{ANCILLARY_BASE, NETWORK_BASE};
use sys::bpf::ClassicInsn;

use crate::options::Fanout;

#[cfg(test)]
mod tests;

const LD_W_IND: u16 = 0x40;
const LD_H_IND: u16 = 0x48;
const LD_B_IND: u16 = 0x50;
const LD_H_ABS: u16 = 0x28;
const LD_W_ABS: u16 = 0x20;
const LD_IMM: u16 = 0x00;
const LDX_IMM: u16 = 0x01;
const LD_MEM: u16 = 0x60;
const LDX_MEM: u16 = 0x61;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ADD_K: u16 = 0x04;
const ADD_X: u16 = 0x0c;
const MUL_K: u16 = 0x24;
const AND_K: u16 = 0x54;
const XOR_X: u16 = 0xac;
const LSH_K: u16 = 0x64;
const RSH_K: u16 = 0x74;
const JA: u16 = 0x05;
const JEQ_K: u16 = 0x15;
const JSET_K: u16 = 0x45;
const TAX: u16 = 0x07;
const TXA: u16 = 0x87;
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;

/// Metadata (`SKF_AD_…`): EtherType, `skb->pkt_type`, `ARPHRD_…`.
const PROTOCOL: u32 = ANCILLARY_BASE;
const PACKET_TYPE: u32 = ANCILLARY_BASE + 4;
const HARDWARE: u32 = ANCILLARY_BASE + 28;

const OUTGOING: u32 = 4;
const HARDWARE_ETHERNET: u32 = 1;
const HARDWARE_LOOPBACK: u32 = 772;

const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const ETHERNET_IN_GRE: u32 = 0x6558;
/// EtherTypes of VLAN tags.
const TAGS: [u32; 3] = [0x8100, 0x88a8, 0x9100];
/// Maximum number of tags behind the one that the kernel removes.
const TAG_COUNT_MAX: usize = 3;
/// Maximum number of tunnels in each other.
const TUNNEL_COUNT_MAX: usize = 2;
/// UDP port of GTP-U (3GPP TS 29.281 section 4.4.2).
const GTPU: u32 = 2152;

/// Odd constants with about half of their bits set; the last two finish MurmurHash3.
const MULTIPLY: u32 = 0x9e37_79b1;
const FINISH: [u32; 2] = [0x85eb_ca6b, 0xc2b2_ae35];

/// Words of scratch memory: where the IP header is, its EtherType, both addresses or what follows
/// the header, and two more.
const START: u32 = 0;
const TYPE: u32 = 1;
const FIRST: u32 = 2;
const SECOND: u32 = 3;
const NEXT: u32 = 4;
const WORD: u32 = 5;

/// The program of a mode; `None` if the kernel has the mode itself.
pub(super) fn program(fanout: Fanout) -> Option<Vec<ClassicInsn>> {
    let tunnel_count = match fanout {
        Fanout::Addresses => 0,
        Fanout::InnerAddresses => TUNNEL_COUNT_MAX,
        _ => return None,
    };
    let mut code = Code::default();
    code.find_ip();
    let hash = code.label();
    for _ in 0..tunnel_count {
        code.enter_tunnel(hash);
    }
    code.place(hash);
    code.hash();
    Some(code.finish())
}

/// A place to jump to.
#[derive(Clone, Copy)]
struct Label(usize);

/// Instructions, with jumps to labels: forward only, as the kernel wants them.
#[derive(Default)]
struct Code {
    insns: Vec<ClassicInsn>,
    /// Indices of `ja` instructions, and their labels.
    jumps: Vec<(usize, usize)>,
    places: Vec<usize>,
}

impl Code {
    fn op(&mut self, code: u16, k: u32) -> &mut Self {
        self.branch(code, k, 0, 0)
    }

    fn branch(&mut self, code: u16, k: u32, jt: u8, jf: u8) -> &mut Self {
        self.insns.push(ClassicInsn { code, jt, jf, k });
        self
    }

    fn label(&mut self) -> Label {
        self.places.push(0);
        Label(self.places.len() - 1)
    }

    fn place(&mut self, label: Label) {
        self.places[label.0] = self.insns.len();
    }

    fn jump(&mut self, label: Label) {
        self.jumps.push((self.insns.len(), label.0));
        self.op(JA, 0);
    }

    /// Jumps if A equals the constant (`JEQ_K`) or has a bit of it (`JSET_K`).
    fn jump_if(&mut self, code: u16, k: u32, label: Label) {
        self.branch(code, k, 0, 1).jump(label);
    }

    fn jump_unless(&mut self, code: u16, k: u32, label: Label) {
        self.branch(code, k, 1, 0).jump(label);
    }

    fn finish(mut self) -> Vec<ClassicInsn> {
        for (at, label) in self.jumps {
            self.insns[at].k = (self.places[label] - at - 1) as u32;
        }
        self.insns
    }

    /// A = EtherType behind VLAN tags, X = offset of the header.
    fn find_ip(&mut self) {
        let (sent, ethernet, tags) = (self.label(), self.label(), self.label());
        self.op(LDX_IMM, 0).op(LD_W_ABS, PACKET_TYPE);
        self.jump_if(JEQ_K, OUTGOING, sent);
        self.op(LD_W_ABS, PROTOCOL).jump(tags);
        self.place(sent);
        self.op(LD_W_ABS, HARDWARE);
        self.jump_if(JEQ_K, HARDWARE_ETHERNET, ethernet);
        self.jump_if(JEQ_K, HARDWARE_LOOPBACK, ethernet);
        // Whatever the link header is, the kernel knows what follows it.
        self.op(LDX_IMM, NETWORK_BASE).op(LD_W_ABS, PROTOCOL);
        self.jump(tags);
        self.place(ethernet);
        self.op(LDX_IMM, 14).op(LD_H_ABS, 12);
        self.place(tags);
        for _ in 0..TAG_COUNT_MAX {
            let (tag, after) = (self.label(), self.label());
            TAGS.iter().for_each(|&kind| self.jump_if(JEQ_K, kind, tag));
            self.jump(after);
            self.place(tag);
            self.op(LD_H_IND, 2);
            self.advance(4);
            self.place(after);
        }
    }

    /// X += `len`; A is kept.
    fn advance(&mut self, len: u32) {
        self.op(ST, WORD).op(TXA, 0).op(ADD_K, len);
        self.op(TAX, 0).op(LD_MEM, WORD);
    }

    /// Moves A and X to the header inside a tunnel; jumps to `hash`, with those of the outer one,
    /// if there is none.
    fn enter_tunnel(&mut self, hash: Label) {
        let names = [(); 9].map(|()| self.label());
        let [v4, v6, find, over_v4, over_v6, gre, udp, none, inside] = names;
        self.op(ST, TYPE).op(STX, START);
        self.jump_if(JEQ_K, IPV4, v4);
        self.jump_if(JEQ_K, IPV6, v6);
        self.op(RET_K, 0);
        self.place(v4);
        // More fragments, or an offset: only the first fragment has the inner header.
        self.op(LD_H_IND, 6);
        self.jump_if(JSET_K, 0x3fff, none);
        self.op(LD_B_IND, 0).op(AND_K, 0xf).op(LSH_K, 2);
        self.op(ADD_X, 0).op(ST, NEXT).op(LD_B_IND, 9).jump(find);
        self.place(v6);
        self.op(TXA, 0).op(ADD_K, 40).op(ST, NEXT).op(LD_B_IND, 6);
        self.place(find);
        self.op(LDX_MEM, NEXT);
        for (protocol, label) in [(4, over_v4), (41, over_v6), (47, gre), (17, udp)] {
            self.jump_if(JEQ_K, protocol, label);
        }
        self.jump(none);
        self.place(gre);
        self.gre(none, inside);
        self.place(udp);
        self.gtp(none, (over_v4, over_v6));
        self.place(over_v4);
        self.op(LD_IMM, IPV4).jump(inside);
        self.place(over_v6);
        self.op(LD_IMM, IPV6).jump(inside);
        self.place(none);
        self.op(LDX_MEM, START).op(LD_MEM, TYPE).jump(hash);
        self.place(inside);
    }

    /// GRE, version 0 (RFC 2784, RFC 2890), over IP or Ethernet.
    fn gre(&mut self, none: Label, inside: Label) {
        self.op(LD_H_IND, 0).op(ST, FIRST);
        // Routing, or another version.
        self.jump_if(JSET_K, 0x4007, none);
        self.op(LD_IMM, 4).op(ST, SECOND);
        // Checksum, key, sequence number: four bytes each.
        for bit in [0x8000, 0x2000, 0x1000] {
            self.op(LD_MEM, FIRST).branch(JSET_K, bit, 0, 3);
            self.op(LD_MEM, SECOND).op(ADD_K, 4).op(ST, SECOND);
        }
        self.op(LD_H_IND, 2).op(ST, FIRST);
        self.op(LD_MEM, SECOND).op(ADD_X, 0).op(TAX, 0);
        self.op(LD_MEM, FIRST);
        self.jump_if(JEQ_K, IPV4, inside);
        self.jump_if(JEQ_K, IPV6, inside);
        self.jump_unless(JEQ_K, ETHERNET_IN_GRE, none);
        self.op(LD_H_IND, 12);
        self.advance(14);
        self.jump_if(JEQ_K, IPV4, inside);
        self.jump_if(JEQ_K, IPV6, inside);
        self.jump(none);
    }

    /// GTP-U, version 1, a packet of the user without extension headers (TS 29.281 section 5.1).
    fn gtp(&mut self, none: Label, (over_v4, over_v6): (Label, Label)) {
        let found = self.label();
        self.op(LD_H_IND, 0);
        self.jump_if(JEQ_K, GTPU, found);
        self.op(LD_H_IND, 2);
        self.jump_unless(JEQ_K, GTPU, none);
        self.place(found);
        self.op(LD_B_IND, 8).op(AND_K, 0xf4);
        self.jump_unless(JEQ_K, 0x30, none);
        self.op(LD_B_IND, 9);
        self.jump_unless(JEQ_K, 255, none);
        // UDP's header, GTP's, and four bytes more with a sequence or N-PDU number.
        self.op(LD_B_IND, 8).branch(JSET_K, 3, 0, 2);
        self.op(LD_IMM, 20).branch(JA, 1, 0, 0).op(LD_IMM, 16);
        self.op(ADD_X, 0).op(TAX, 0).op(LD_B_IND, 0).op(RSH_K, 4);
        self.jump_if(JEQ_K, 4, over_v4);
        self.jump_if(JEQ_K, 6, over_v6);
        self.jump(none);
    }

    /// A = the IPv6 address at X + `at`, in one word.
    fn fold(&mut self, at: u32) {
        self.op(LD_W_IND, at);
        for word in 1..4 {
            self.op(MUL_K, MULTIPLY).op(ST, WORD);
            self.op(LD_W_IND, at + 4 * word).op(LDX_MEM, WORD);
            self.op(ADD_X, 0).op(LDX_MEM, START);
        }
    }

    /// Returns the hash of the addresses at X of the protocol A.
    fn hash(&mut self) {
        let (v4, v6, mix) = (self.label(), self.label(), self.label());
        self.op(STX, START);
        self.jump_if(JEQ_K, IPV4, v4);
        self.jump_if(JEQ_K, IPV6, v6);
        self.op(RET_K, 0);
        self.place(v4);
        self.op(LD_W_IND, 12).op(ST, FIRST);
        self.op(LD_W_IND, 16).op(ST, SECOND).jump(mix);
        self.place(v6);
        self.fold(8);
        self.op(ST, FIRST);
        self.fold(24);
        self.op(ST, SECOND);
        self.place(mix);
        // Sum and difference bits do not depend on the order; neither alone tells pairs apart whose
        // addresses count up together.
        self.op(LD_MEM, FIRST).op(LDX_MEM, SECOND).op(XOR_X, 0);
        self.op(ST, WORD).op(LD_MEM, FIRST).op(ADD_X, 0);
        self.op(MUL_K, MULTIPLY).op(LDX_MEM, WORD).op(XOR_X, 0);
        for (shift, factor) in [16, 13].into_iter().zip(FINISH) {
            self.op(TAX, 0).op(RSH_K, shift).op(XOR_X, 0);
            self.op(MUL_K, factor);
        }
        self.op(TAX, 0).op(RSH_K, 16).op(XOR_X, 0).op(RET_A, 0);
    }
}
