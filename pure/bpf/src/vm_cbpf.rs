//! Interprets cBPF programs.
//!
//! It has the semantics of libpcap's `bpf_filter`: a load that is not entirely within the captured
//! bytes ends the program with 0, as does a division by 0; a shift by 32 or more gives 0. (Linux
//! deviates: `SO_ATTACH_FILTER` takes shift counts modulo 32, and lets X + k wrap around.)
//!
//! Programs are checked in advance, so a run always ends and never panics.

use crate::cbpf::{Ancillary, Insn, MEMORY_WORDS, Place, Program};

/// Metadata of a captured packet, for ancillary loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PacketInfo {
    /// EtherType, in host byte order.
    pub protocol: u16,
    /// `PACKET_HOST` … `PACKET_OUTGOING` of `if_packet.h`.
    pub packet_type: u8,
    /// Index of the interface.
    pub ifindex: u32,
    /// Index of the queue.
    pub queue_index: u16,
    /// The flow hash, 0 if unknown.
    pub rx_hash: u32,
    /// The firewall mark.
    pub mark: u32,
    /// `ARPHRD_…`.
    pub hardware_type: u16,
    /// The VLAN tag that is not in the bytes: EtherType and tag control information.
    pub vlan: Option<(u16, u16)>,
    /// Offset of the network header in the bytes.
    pub network_offset: u32,
}

impl PacketInfo {
    /// No metadata. The hardware type is Ethernet, as for most captures.
    pub const UNKNOWN: PacketInfo = PacketInfo {
        protocol: 0,
        packet_type: 0,
        ifindex: 0,
        queue_index: 0,
        rx_hash: 0,
        mark: 0,
        hardware_type: 1,
        vlan: None,
        network_offset: 14,
    };
}

/// Runs the program; returns how many bytes of the packet to keep, 0 for none.
///
/// `wire_len` is the packet's length on the wire; `bytes` may be shorter.
#[inline]
pub fn run(program: &Program, bytes: &[u8], wire_len: u32) -> u32 {
    run_with(program, bytes, wire_len, &PacketInfo::UNKNOWN)
}

/// Like [`run`], with metadata.
pub fn run_with(program: &Program, bytes: &[u8], wire_len: u32, info: &PacketInfo) -> u32 {
    run_or_refuse(program.insns(), bytes, wire_len, info).unwrap_or(0)
}

/// Like [`run`], for unchecked instructions: invalid ones reject the packet. Endless backward jumps
/// are stopped as in [`run`].
pub fn run_insns(insns: &[Insn], bytes: &[u8], wire_len: u32) -> u32 {
    run_or_refuse(insns, bytes, wire_len, &PacketInfo::UNKNOWN).unwrap_or(0)
}

#[inline(always)]
fn at<const N: usize>(bytes: &[u8], index: u32) -> Option<[u8; N]> {
    bytes.get(index as usize..)?.first_chunk().copied()
}

/// The packet's bytes at an index that may be relative to a header or denote an ancillary value.
#[cold]
fn special(bytes: &[u8], index: u32, width: u32, info: &PacketInfo, a: u32, x: u32) -> Option<u32> {
    let index = match Place::of(index) {
        // In a packet this long, the index is an ordinary offset.
        Place::Packet(index) | Place::Link(index) => index,
        Place::Network(index) => info.network_offset.checked_add(index)?,
        Place::Ancillary(ancillary) => return load_ancillary(ancillary, info, a, x),
        Place::Nothing => return None,
    };
    Some(match width {
        4 => u32::from_be_bytes(at(bytes, index)?),
        2 => u16::from_be_bytes(at(bytes, index)?).into(),
        _ => at::<1>(bytes, index)?[0].into(),
    })
}

/// The value of an ancillary load; `None`, which rejects the packet, for what a capture does not
/// contain.
fn load_ancillary(ancillary: Ancillary, info: &PacketInfo, a: u32, x: u32) -> Option<u32> {
    Some(match ancillary {
        Ancillary::Protocol => info.protocol.into(),
        Ancillary::PacketType => info.packet_type.into(),
        Ancillary::Ifindex => info.ifindex,
        Ancillary::Mark => info.mark,
        Ancillary::Queue => info.queue_index.into(),
        Ancillary::HardwareType => info.hardware_type.into(),
        Ancillary::RxHash => info.rx_hash,
        Ancillary::XorX => a ^ x,
        Ancillary::VlanTci => info.vlan.map_or(0, |(_, tci)| tci.into()),
        Ancillary::VlanPresent => info.vlan.is_some().into(),
        Ancillary::VlanProtocol => info.vlan.map_or(0, |(protocol, _)| protocol.into()),
        Ancillary::Netlink
        | Ancillary::NetlinkNested
        | Ancillary::Cpu
        | Ancillary::PayloadOffset
        | Ancillary::Random => return None,
    })
}

/// Lowest index with a special meaning, [`crate::cbpf::LINK_BASE`].
const SPECIAL: u32 = crate::cbpf::LINK_BASE;

/// Maximum number of backward jumps per packet. `protochain` loops once per header.
const BACKWARD_MAX: u32 = 1024;

/// `None` if a load was out of bounds, a division was by 0, or the program did not end.
fn run_or_refuse(insns: &[Insn], bytes: &[u8], wire_len: u32, info: &PacketInfo) -> Option<u32> {
    let mut memory = [0u32; MEMORY_WORDS];
    let (mut a, mut x) = (0u32, 0u32);
    let mut pc = 0usize;
    let mut backward = 0;
    loop {
        let insn = *insns.get(pc)?;
        let k = insn.k;
        pc += 1;
        let branch = |holds: bool| usize::from(if holds { insn.jt } else { insn.jf });
        // The codes of `cbpf::OPS`.
        match insn.code {
            0x20 if k >= SPECIAL => a = special(bytes, k, 4, info, a, x)?,
            0x28 if k >= SPECIAL => a = special(bytes, k, 2, info, a, x)?,
            0x30 if k >= SPECIAL => a = special(bytes, k, 1, info, a, x)?,
            0x20 => a = u32::from_be_bytes(at(bytes, k)?),
            0x28 => a = u16::from_be_bytes(at(bytes, k)?).into(),
            0x30 => a = at::<1>(bytes, k)?[0].into(),
            0x40 => a = u32::from_be_bytes(at(bytes, x.checked_add(k)?)?),
            0x48 => a = u16::from_be_bytes(at(bytes, x.checked_add(k)?)?).into(),
            0x50 => a = at::<1>(bytes, x.checked_add(k)?)?[0].into(),
            0xb1 => x = u32::from(at::<1>(bytes, k)?[0] & 0xf) << 2,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *memory.get(k as usize)?,
            0x61 => x = *memory.get(k as usize)?,
            0x80 => a = wire_len,
            0x81 => x = wire_len,
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            0x04 => a = a.wrapping_add(k),
            0x0c => a = a.wrapping_add(x),
            0x14 => a = a.wrapping_sub(k),
            0x1c => a = a.wrapping_sub(x),
            0x24 => a = a.wrapping_mul(k),
            0x2c => a = a.wrapping_mul(x),
            0x34 => a = a.checked_div(k)?,
            0x3c => a = a.checked_div(x)?,
            0x94 => a = a.checked_rem(k)?,
            0x9c => a = a.checked_rem(x)?,
            0x44 => a |= k,
            0x4c => a |= x,
            0x54 => a &= k,
            0x5c => a &= x,
            0xa4 => a ^= k,
            0xac => a ^= x,
            0x64 => a = a.checked_shl(k).unwrap_or(0),
            0x6c => a = a.checked_shl(x).unwrap_or(0),
            0x74 => a = a.checked_shr(k).unwrap_or(0),
            0x7c => a = a.checked_shr(x).unwrap_or(0),
            0x84 => a = a.wrapping_neg(),
            0x05 if k as i32 >= 0 => pc += k as usize,
            0x05 => {
                backward += 1;
                if backward > BACKWARD_MAX {
                    return None;
                }
                pc = pc.checked_add_signed(k as i32 as isize)?;
            }
            0x15 => pc += branch(a == k),
            0x1d => pc += branch(a == x),
            0x25 => pc += branch(a > k),
            0x2d => pc += branch(a > x),
            0x35 => pc += branch(a >= k),
            0x3d => pc += branch(a >= x),
            0x45 => pc += branch(a & k != 0),
            0x4d => pc += branch(a & x != 0),
            0x07 => x = a,
            0x87 => a = x,
            0x06 => return Some(k),
            0x16 => return Some(a),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbpf::{ANCILLARY_BASE, LINK_BASE, NETWORK_BASE, OPS};

    /// Runs instructions, which return by themselves or return A.
    fn eval(insns: &[(u16, u32)], bytes: &[u8]) -> u32 {
        let mut insns: std::vec::Vec<_> = insns
            .iter()
            .map(|&(code, k)| Insn::new(code, 0, 0, k))
            .collect();
        insns.push(Insn::new(0x16, 0, 0, 0));
        run(&Program::new(insns).unwrap(), bytes, 1500)
    }

    #[test]
    fn loads_are_in_network_order_and_end_the_program_outside() {
        let bytes: std::vec::Vec<u8> = (1..=20).collect();
        for (insns, expected) in [
            (&[(0x20, 16)][..], 0x1112_1314),
            (&[(0x20, 17)], 0),
            (&[(0x28, 18)], 0x1314),
            (&[(0x28, 19)], 0),
            (&[(0x30, 19)], 0x14),
            (&[(0x30, 20)], 0),
            (&[(0x20, 0x7fff_ffff)], 0),
            (&[(0x01, 2), (0x40, 3)], 0x0607_0809),
            (&[(0x01, 19), (0x48, 0)], 0),
            // X + k above 32 bits is out of bounds and does not wrap.
            (&[(0x01, 2), (0x50, u32::MAX)], 0),
            (&[(0xb1, 14), (0x87, 0)], 60),
            (&[(0xb1, 20), (0x87, 0)], 0),
            (&[(0x80, 0)], 1500),
            (&[(0x30, LINK_BASE + 2)], 3),
            (&[(0x30, NETWORK_BASE + 1)], 16),
            (&[(0x30, NETWORK_BASE + 6)], 0),
        ] {
            assert_eq!(eval(insns, &bytes), expected, "{insns:x?}");
        }
    }

    #[test]
    fn arithmetic_wraps_and_division_by_zero_rejects() {
        for (insns, expected) in [
            (&[(0x00, 5), (0x14, 7)][..], 0xffff_fffe),
            (&[(0x00, 5), (0x84, 0)], 0xffff_fffb),
            (&[(0x00, 0x8000_0000), (0x24, 2)], 0),
            (&[(0x00, 7), (0x3c, 0)], 0),
            (&[(0x00, 7), (0x01, 2), (0x9c, 0)], 1),
            (&[(0x00, 7), (0x01, 32), (0x6c, 0)], 0),
            (&[(0x00, 7), (0x01, 31), (0x6c, 0)], 0x8000_0000),
            (&[(0x00, 6), (0xa4, 3)], 5),
            (&[(0x00, 6), (0x01, 3), (0x20, ANCILLARY_BASE + 40)], 5),
            (
                &[(0x00, 9), (0x02, 15), (0x00, 1), (0x61, 15), (0x0c, 0)],
                10,
            ),
        ] {
            assert_eq!(eval(insns, &[]), expected, "{insns:x?}");
        }
    }

    #[test]
    fn ancillary_loads_read_the_given_metadata() {
        let info = PacketInfo {
            vlan: Some((0x88a8, 0x6005)),
            packet_type: 4,
            ifindex: 3,
            ..PacketInfo::default()
        };
        for (index, expected) in [(44, 0x6005), (48, 1), (60, 0x88a8), (4, 4), (8, 3), (56, 0)] {
            let insns = std::vec![
                Insn::new(0x30, 0, 0, ANCILLARY_BASE + index),
                Insn::new(0x16, 0, 0, 0),
            ];
            let program = Program::new(insns).unwrap();
            assert_eq!(run_with(&program, &[], 0, &info), expected, "{index}");
        }
    }

    #[test]
    fn every_instruction_of_the_table_is_executed() {
        // An unknown code rejects the packet; a known one continues to the return.
        for info in OPS {
            let insns = std::vec![
                Insn::new(0x01, 0, 0, 1),
                Insn::new(0x02, 0, 0, 1),
                Insn::new(info.code, 0, 0, u32::from(info.name != "ja")),
                Insn::new(0x06, 0, 0, 77),
            ];
            let result = run(&Program::new(insns).unwrap(), &[9; 8], 8);
            let expected = if info.code == 0x06 { 1 } else { 77 };
            let is_ret_a = info.code == 0x16;
            assert_eq!(result, if is_ret_a { 0 } else { expected }, "{info:?}");
        }
    }
}
