//! The two versions of Linux cooked headers. The port's packets have the second, programs get the
//! first unless they choose.

use bpf::cbpf::{INSN_COUNT_MAX, Insn, Op, Program, Width};
use port::Vlan;

/// `DLT_LINUX_SLL`.
pub const DLT_V1: i32 = 113;
/// `DLT_LINUX_SLL2`.
pub const DLT_V2: i32 = 276;

/// Length of the second version's header.
pub const LEN_V2: usize = 20;
/// Length of the first version's header.
const LEN_V1: u32 = 16;
/// By how many bytes it is longer than the first version's.
pub const LONGER: u32 = 4;

/// Copies a packet with a header of the second version to `to`, with one of the first; one that is
/// too short becomes empty. A VLAN tag is put before the protocol.
pub fn to_v1(packet: &[u8], tag: Option<Vlan>, to: &mut Vec<u8>) {
    to.clear();
    let Some((header, payload)) = packet.split_first_chunk::<LEN_V2>() else {
        return;
    };
    let (protocol, hardware, address) = (&header[..2], &header[8..10], &header[12..20]);
    // Packet type and length of the address have one byte there, and two here.
    to.extend_from_slice(&[0, header[10]]);
    to.extend_from_slice(hardware);
    to.extend_from_slice(&[0, header[11]]);
    to.extend_from_slice(address);
    if let Some(tag) = tag {
        to.extend_from_slice(&tag.bytes());
    }
    to.extend_from_slice(protocol);
    to.extend_from_slice(payload);
}

/// Translates a filter for packets with headers of the first version to one for the second. `None`
/// if it loads what has no equal there, such as the length of the packet.
pub fn for_v2(filter: &Program) -> Option<Program> {
    if filter.insns().len() > INSN_COUNT_MAX {
        return None;
    }
    let insns: Option<Vec<Insn>> = filter
        .insns()
        .iter()
        .map(|insn| insn_for_v2(*insn))
        .collect();
    Program::new(insns?).ok()
}

fn insn_for_v2(insn: Insn) -> Option<Insn> {
    /// `BPF_LD | BPF_IMM`; `BPF_LD | BPF_ABS` of four, two and one bytes.
    const NUMBER: u16 = 0x00;
    const WORD: u16 = 0x20;
    const HALF: u16 = 0x28;
    const BYTE: u16 = 0x30;
    /// `SKF_AD_OFF` and what is there (linux/filter.h): the kernel's metadata, of which the second
    /// header has protocol, packet type and index of the interface.
    const METADATA: u32 = 0xffff_f000;
    const PROTOCOL: u32 = METADATA;
    const TYPE: u32 = METADATA + 4;
    const INTERFACE: u32 = METADATA + 8;
    let at = |k| Some(Insn { k, ..insn });
    // In the packet behind the header, and not the kernel's metadata.
    let behind = |k: u32| {
        let is_behind = k >= LEN_V1 && k.cast_signed() >= 0;
        is_behind.then(|| Insn {
            k: k + LONGER,
            ..insn
        })
    };
    match insn.decode()? {
        // Their width does not matter.
        Op::LoadAbs(_, PROTOCOL) => Some(Insn::new(HALF, 0, 0, 0)),
        Op::LoadAbs(_, TYPE) => Some(Insn::new(BYTE, 0, 0, 10)),
        Op::LoadAbs(_, INTERFACE) => Some(Insn::new(WORD, 0, 0, 4)),
        Op::LoadAbs(width, k) => match (width, k) {
            // Packet type and length of the address have a byte there.
            (Width::H, 0) => Some(Insn::new(BYTE, 0, 0, 10)),
            (Width::H, 4) => Some(Insn::new(BYTE, 0, 0, 11)),
            (Width::B, 0 | 4) => Some(Insn::new(NUMBER, 0, 0, 0)),
            (Width::B, 1) => at(10),
            (Width::B, 5) => at(11),
            // Hardware type, address, protocol.
            (Width::H, 2) | (Width::B, 2 | 3) => at(k + 6),
            (_, 6..14) if k + width.bytes() <= 14 => at(k + 6),
            (Width::H, 14) | (Width::B, 14 | 15) => at(k - 14),
            _ => behind(k),
        },
        Op::LoadInd(_, k) | Op::LoadMsh(k) => behind(k),
        Op::Ret(0) => Some(insn),
        Op::Ret(k) => at(k.saturating_add(LONGER)),
        Op::LoadLen(_) | Op::RetA => None,
        _ => Some(insn),
    }
}

#[cfg(test)]
mod tests {
    use bpf::vm_cbpf;

    use super::*;

    /// A translated filter selects of the packets with the second header what the original selects
    /// of those with the first.
    #[test]
    fn filters_select_the_same_behind_both_headers() {
        let mut state = 0x5eed_u64;
        let mut random = |below: u32| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u32 % below
        };
        let (mut translated, mut selected) = (0, 0);
        for _ in 0..4000 {
            let width = [0x20, 0x28, 0x30][random(3) as usize];
            let load = match random(4) {
                0 => vec![
                    Insn::new(0xb1, 0, 0, 16 + random(4)),
                    Insn::new(width + 0x20, 0, 0, random(30)),
                ],
                _ => vec![Insn::new(width, 0, 0, random(32))],
            };
            let mut insns = load;
            insns.push(Insn::new(0x54, 0, 0, 3));
            insns.push(Insn::new(0x15, 0, 1, random(4)));
            insns.push(Insn::new(6, 0, 0, 96));
            insns.push(Insn::new(6, 0, 0, 0));
            let filter = Program::new(insns).unwrap();
            let Some(second) = for_v2(&filter) else {
                continue;
            };
            translated += 1;
            let mut packet: Vec<u8> = (0..60).map(|_| random(256) as u8).collect();
            (packet[2], packet[3]) = (0, 0);
            let mut first = Vec::new();
            to_v1(&packet, None, &mut first);
            let wanted = vm_cbpf::run(&filter, &first, 56);
            selected += u32::from(wanted != 0);
            let found = vm_cbpf::run(&second, &packet, 60);
            assert_eq!(found.saturating_sub(LONGER), wanted, "{filter:?}");
        }
        assert!(
            translated > 2000 && selected > 200,
            "{translated} {selected}"
        );
        let of_interface = |load| {
            let insns = [load, Insn::new(0x15, 0, 1, 7), Insn::new(6, 0, 0, 96)];
            Program::new([&insns[..], &[Insn::new(6, 0, 0, 0)]].concat()).unwrap()
        };
        let first = of_interface(Insn::new(0x20, 0, 0, 0xffff_f008));
        let second = for_v2(&first).unwrap();
        assert_eq!(second.insns()[0], Insn::new(0x20, 0, 0, 4));
        let len = Program::new(vec![Insn::new(0x80, 0, 0, 0), Insn::new(6, 0, 0, 1)]).unwrap();
        assert_eq!(for_v2(&len), None);
    }

    #[test]
    fn a_second_header_becomes_a_first_one() {
        let packet = [
            8, 6, 0, 0, 0, 0, 0, 7, 3, 4, 1, 6, 11, 12, 13, 14, 15, 16, 0, 0, 0xaa, 0xbb,
        ];
        let mut to = vec![9];
        to_v1(&packet, None, &mut to);
        assert_eq!(
            to,
            [
                0, 1, 3, 4, 0, 6, 11, 12, 13, 14, 15, 16, 0, 0, 8, 6, 0xaa, 0xbb
            ]
        );
        assert_eq!(packet.len() - to.len(), LONGER as usize);
        let tag = Vlan {
            tpid: 0x8100,
            tci: 0x2005,
        };
        to_v1(&packet, Some(tag), &mut to);
        assert_eq!(to[12..], [0, 0, 0x81, 0, 0x20, 5, 8, 6, 0xaa, 0xbb]);
        to_v1(&packet[..19], None, &mut to);
        assert!(to.is_empty());
    }
}
