//! SYN cookies (RFC 4987, section 3.6), sent by the XDP program itself.
//!
//! The program looks up the listening socket, and the kernel generates the cookie for it: the
//! host's TCP then accepts the ACK that returns it, and a connection takes memory only from that
//! ACK on. The kernel generates no cookies until the listener's queue is full
//! (`net.ipv4.tcp_syncookies` = 1), and the SYN goes to the host; with 2 every SYN is answered
//! here. The SYN+ACK has the MSS as its only option.
//!
//! ```text
//!   no socket on this host, or a connection    pass
//!   listener, SYN                              SYN+ACK with a cookie, sent back (XDP_TX)
//!   listener, ACK of a valid cookie            pass
//!   listener, anything else                    drop
//! ```

use bpf::asm::{Asm, Label};
use bpf::ebpf::Reg::{self, R0, R1, R2, R3, R4, R5, R6, R7, R9, R10};
use bpf::ebpf::{Alu, Cond, Helper, Width};

use crate::addresses::STACK_TOP;
use crate::emit::PACKET_LEN;

/// Stack offsets, in an area that filters no longer use: the Ethernet header with up to two tags,
/// the IP header without options, the TCP header with all options.
const ETHERNET: i16 = STACK_TOP - 24;
const IP: i16 = ETHERNET - 40;
const TCP: i16 = IP - 64;
/// `struct bpf_sock_tuple`, later the pseudo header for the checksum.
const TUPLE: i16 = TCP - 40;
const COOKIE: i16 = TUPLE - 8;
/// Packet offset of the TCP header.
const TCP_AT: i16 = COOKIE - 8;

/// Length of the reply's TCP header, with the MSS option alone.
const REPLY_LEN: i32 = 24;
/// Window of the SYN+ACK: ten segments (RFC 6928). The first ACK announces a larger one.
const WINDOW: u16 = 14_600;
/// Time to live and protocol of the reply's IP header.
const TTL: u8 = 64;
const PROTOCOL_TCP: u8 = 6;
/// `BPF_F_CURRENT_NETNS`.
const CURRENT_NETNS: i32 = -1;
/// `state` in `struct bpf_sock`, and `BPF_TCP_LISTEN`.
const SOCK_STATE: i16 = 72;
const LISTEN: i32 = 10;
/// FIN, SYN, RST, ACK.
const FLAGS: i32 = 0x17;
const SYN: i32 = 0x02;
const TAGS_MAX: i16 = 2;

/// Labels for the possible outcomes.
pub(crate) struct Ends {
    pub pass: Label,
    pub drop: Label,
    /// The packet is now the SYN+ACK; in a dry run it is still the SYN.
    pub answered: Label,
}

#[derive(Clone, Copy, PartialEq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn header_len(self) -> i32 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    /// Length of both addresses in the tuple, in bytes.
    fn addresses_len(self) -> i16 {
        match self {
            Self::V4 => 8,
            Self::V6 => 32,
        }
    }

    /// Offset of the addresses in the IP header.
    fn addresses_at(self) -> i16 {
        self.header_len() as i16 - self.addresses_len()
    }
}

/// Emits the whole challenge. Expects the context in R6; keeps R6 and R8, clobbers all others.
pub(crate) fn emit(a: &mut Asm, dry_run: bool) -> Ends {
    let ends = Ends {
        pass: a.label(),
        drop: a.label(),
        answered: a.label(),
    };
    let (ipv4, ipv6) = (a.label(), a.label());
    link_header(a, &ends, (ipv4, ipv6));
    for (label, family) in [(ipv4, Family::V4), (ipv6, Family::V6)] {
        a.bind(label);
        headers(a, family, &ends);
        decide(a, family, dry_run, &ends);
        if !dry_run {
            reply(a, family, &ends);
        }
    }
    ends
}

/// Sets the register to a stack address.
fn address(a: &mut Asm, reg: Reg, at: i16) {
    a.mov(reg, R10);
    a.alu(Alu::Add, reg, i32::from(at));
}

/// Copies packet bytes from the offset in R2 to the stack.
fn read(a: &mut Asm, to: i16, len: i32, short: Label) {
    a.mov(R4, len);
    read_r4(a, to, short);
}

/// Like [`read`], with the length in R4.
fn read_r4(a: &mut Asm, to: i16, short: Label) {
    a.mov(R1, R6);
    address(a, R3, to);
    a.call(Helper::XdpLoadBytes);
    a.jump_if(Cond::Ne, R0, 0, short);
}

/// A word of the packet, in memory order.
fn word(bytes: [u8; 4]) -> i32 {
    i32::from_ne_bytes(bytes)
}

/// Sets R7 to the length of the Ethernet header with its tags.
fn link_header(a: &mut Asm, ends: &Ends, (ipv4, ipv6): (Label, Label)) {
    a.mov(R2, 0);
    read(a, ETHERNET, 14, ends.pass);
    // The host never answers a SYN that was broadcast.
    a.load(Width::B, R1, R10, ETHERNET);
    a.jump_if(Cond::Set, R1, 1, ends.pass);
    for tag_count in 0..=TAGS_MAX {
        let (tagged, len) = (a.label(), 14 + 4 * tag_count);
        a.mov(R7, i32::from(len));
        a.load(Width::H, R1, R10, ETHERNET + len - 2);
        a.swap_be(R1, 16);
        a.jump_if(Cond::Eq, R1, 0x0800, ipv4);
        a.jump_if(Cond::Eq, R1, 0x86dd, ipv6);
        if tag_count < TAGS_MAX {
            a.jump_if(Cond::Eq, R1, 0x8100, tagged);
            a.jump_if(Cond::Eq, R1, 0x88a8, tagged);
        }
        a.jump(ends.pass);
        if tag_count < TAGS_MAX {
            a.bind(tagged);
            a.mov(R2, i32::from(len));
            read(a, ETHERNET + len, 4, ends.pass);
        }
    }
}

/// Copies the IP and TCP headers to the stack.
fn headers(a: &mut Asm, family: Family, ends: &Ends) {
    a.mov(R2, R7);
    read(a, IP, family.header_len(), ends.pass);
    let protocol = if family == Family::V4 { IP + 9 } else { IP + 6 };
    a.load(Width::B, R1, R10, protocol);
    a.jump_if(Cond::Ne, R1, i32::from(PROTOCOL_TCP), ends.pass);
    match family {
        Family::V4 => {
            // A fragment: no handshake uses one.
            a.load(Width::H, R1, R10, IP + 6);
            a.swap_be(R1, 16);
            a.jump_if(Cond::Set, R1, 0x3fff, ends.drop);
            a.load(Width::B, R1, R10, IP);
            a.alu(Alu::And, R1, 0x0f);
            a.alu(Alu::Lsh, R1, 2);
            a.jump_if(Cond::Lt, R1, 20, ends.drop);
        }
        Family::V6 => a.mov(R1, 40),
    }
    a.alu(Alu::Add, R1, R7);
    a.store(Width::D, R10, TCP_AT, R1);
    for at in (0..64).step_by(8) {
        a.store(Width::D, R10, TCP + at, 0);
    }
    a.mov(R2, R1);
    read(a, TCP, 20, ends.drop);
    header_len(a, R4);
    a.jump_if(Cond::Lt, R4, 20, ends.drop);
    a.load(Width::D, R2, R10, TCP_AT);
    read_r4(a, TCP, ends.drop);
}

/// Reads the TCP header length from the header, at most 60.
fn header_len(a: &mut Asm, to: Reg) {
    a.load(Width::B, to, R10, TCP + 12);
    a.alu(Alu::Rsh, to, 2);
    a.alu(Alu::And, to, 0x3c);
}

/// Looks up the socket and asks the kernel for a cookie; falls through with the cookie on the
/// stack. A dry run never falls through.
fn decide(a: &mut Asm, family: Family, dry_run: bool, ends: &Ends) {
    let (not_listening, syn) = (a.label(), a.label());
    for at in (0..family.addresses_len()).step_by(4) {
        a.load(Width::W, R1, R10, IP + family.addresses_at() + at);
        a.store(Width::W, R10, TUPLE + at, R1);
    }
    a.load(Width::W, R1, R10, TCP);
    a.store(Width::W, R10, TUPLE + family.addresses_len(), R1);
    a.mov(R1, R6);
    address(a, R2, TUPLE);
    a.mov(R3, i32::from(family.addresses_len()) + 4);
    a.mov(R4, CURRENT_NETNS);
    a.mov(R5, 0);
    a.call(Helper::SkcLookupTcp);
    a.jump_if(Cond::Eq, R0, 0, ends.pass);
    a.mov(R9, R0);
    a.load(Width::W, R1, R9, SOCK_STATE);
    a.jump_if(Cond::Ne, R1, LISTEN, not_listening);
    a.load(Width::B, R1, R10, TCP + 13);
    a.alu(Alu::And, R1, FLAGS);
    a.jump_if(Cond::Eq, R1, SYN, syn);
    ask(a, family, Helper::TcpCheckSyncookie);
    a.jump_if(Cond::Eq, R1, 0, ends.pass);
    a.jump(ends.drop);
    a.bind(not_listening);
    release(a);
    a.jump(ends.pass);
    a.bind(syn);
    if dry_run {
        release(a);
        a.jump(ends.answered);
    } else {
        ask(a, family, Helper::TcpGenSyncookie);
        a.jump_if(Cond::SignedLt, R1, 0, ends.pass);
    }
}

/// Calls one of the two helpers with the listener in R9, then releases it; R1 = the result.
fn ask(a: &mut Asm, family: Family, helper: Helper) {
    a.mov(R1, R9);
    address(a, R2, IP);
    a.mov(R3, family.header_len());
    address(a, R4, TCP);
    header_len(a, R5);
    // This was checked before, but the verifier has lost the bound and refuses a length of 0.
    let long_enough = a.label();
    a.jump_if(Cond::Ge, R5, 20, long_enough);
    a.mov(R5, 20);
    a.bind(long_enough);
    a.call(helper);
    a.store(Width::D, R10, COOKIE, R0);
    release(a);
    a.load(Width::D, R1, R10, COOKIE);
}

fn release(a: &mut Asm) {
    a.mov(R1, R9);
    a.call(Helper::SkRelease);
}

/// Turns the packet into a SYN+ACK that carries the cookie.
fn reply(a: &mut Asm, family: Family, ends: &Ends) {
    a.mov(R2, R7);
    a.alu(Alu::Add, R2, family.header_len() + REPLY_LEN);
    a.load(Width::D, R1, R10, PACKET_LEN);
    a.alu(Alu::Sub, R2, R1);
    a.mov(R1, R6);
    a.call(Helper::XdpAdjustTail);
    a.jump_if(Cond::Ne, R0, 0, ends.drop);
    for at in (0..6).step_by(2) {
        swap(a, Width::H, ETHERNET + at, ETHERNET + 6 + at);
    }
    reply_ip(a, family);
    reply_tcp(a, family);
    write(a, 0, ETHERNET, None, ends.drop);
    write(a, 0, IP, Some(family.header_len()), ends.drop);
    write(a, family.header_len(), TCP, Some(REPLY_LEN), ends.drop);
    a.jump(ends.answered);
}

/// Swaps two fields on the stack.
fn swap(a: &mut Asm, width: Width, one: i16, other: i16) {
    a.load(width, R1, R10, one);
    a.load(width, R2, R10, other);
    a.store(width, R10, one, R2);
    a.store(width, R10, other, R1);
}

fn reply_ip(a: &mut Asm, family: Family) {
    let half = family.addresses_len() / 2;
    for at in (0..half).step_by(4) {
        let at = IP + family.addresses_at() + at;
        swap(a, Width::W, at, at + half);
    }
    match family {
        Family::V4 => {
            let total_len = (family.header_len() + REPLY_LEN) as u8;
            a.store(Width::W, R10, IP, word([0x45, 0, 0, total_len]));
            a.store(Width::W, R10, IP + 4, word([0, 0, 0x40, 0]));
            a.store(Width::W, R10, IP + 8, word([TTL, PROTOCOL_TCP, 0, 0]));
            a.mov(R5, 0);
            checksum(a, IP, family.header_len(), IP + 10);
        }
        Family::V6 => {
            a.store(Width::W, R10, IP, word([0x60, 0, 0, 0]));
            let rest = [0, REPLY_LEN as u8, PROTOCOL_TCP, TTL];
            a.store(Width::W, R10, IP + 4, word(rest));
        }
    }
}

fn reply_tcp(a: &mut Asm, family: Family) {
    swap(a, Width::H, TCP, TCP + 2);
    a.load(Width::W, R1, R10, TCP + 4);
    a.swap_be(R1, 32);
    a.alu32(Alu::Add, R1, 1);
    a.swap_be(R1, 32);
    a.store(Width::W, R10, TCP + 8, R1);
    a.load(Width::D, R1, R10, COOKIE);
    a.mov(R2, R1);
    a.swap_be(R1, 32);
    a.store(Width::W, R10, TCP + 4, R1);
    // The MSS, which the kernel returns in the upper half.
    a.alu(Alu::Rsh, R2, 32);
    a.swap_be(R2, 16);
    a.store(Width::H, R10, TCP + 22, R2);
    a.store(Width::H, R10, TCP + 20, word16([2, 4]));
    let flags = [(REPLY_LEN as u8 / 4) << 4, 0x12];
    a.store(Width::H, R10, TCP + 12, word16(flags));
    a.store(Width::H, R10, TCP + 14, word16(WINDOW.to_be_bytes()));
    a.store(Width::W, R10, TCP + 16, 0);
    // The pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1): swapping the addresses does
    // not change the sum.
    let rest = TUPLE + family.addresses_len();
    match family {
        Family::V4 => a.store(
            Width::W,
            R10,
            rest,
            word([0, PROTOCOL_TCP, 0, REPLY_LEN as u8]),
        ),
        Family::V6 => {
            a.store(Width::W, R10, rest, word([0, 0, 0, REPLY_LEN as u8]));
            a.store(Width::W, R10, rest + 4, word([0, 0, 0, PROTOCOL_TCP]));
        }
    }
    let len = family.addresses_len() + if family == Family::V4 { 4 } else { 8 };
    a.mov(R5, 0);
    sum(a, TUPLE, i32::from(len));
    a.mov32(R5, R0);
    checksum(a, TCP, REPLY_LEN, TCP + 16);
}

fn word16(bytes: [u8; 2]) -> i32 {
    i32::from(u16::from_ne_bytes(bytes))
}

/// R0 = R5 plus the sum of bytes on the stack.
fn sum(a: &mut Asm, at: i16, len: i32) {
    a.mov(R1, 0);
    a.mov(R2, 0);
    address(a, R3, at);
    a.mov(R4, len);
    a.call(Helper::CsumDiff);
}

/// Computes the Internet checksum (RFC 1071) of R5 and of bytes on the stack.
fn checksum(a: &mut Asm, at: i16, len: i32, to: i16) {
    sum(a, at, len);
    a.mov32(R0, R0);
    for _ in 0..2 {
        a.mov(R1, R0);
        a.alu(Alu::And, R1, 0xffff);
        a.alu(Alu::Rsh, R0, 16);
        a.alu(Alu::Add, R0, R1);
    }
    a.alu(Alu::Xor, R0, 0xffff);
    a.store(Width::H, R10, to, R0);
}

/// Writes stack bytes to the packet: the Ethernet header, or `behind` bytes after it.
fn write(a: &mut Asm, behind: i32, from: i16, len: Option<i32>, failed: Label) {
    a.mov(R1, R6);
    match len {
        None => {
            a.mov(R2, 0);
            a.mov(R4, R7);
        }
        Some(len) => {
            a.mov(R2, R7);
            a.alu(Alu::Add, R2, behind);
            a.mov(R4, len);
        }
    }
    address(a, R3, from);
    a.call(Helper::XdpStoreBytes);
    a.jump_if(Cond::Ne, R0, 0, failed);
}
