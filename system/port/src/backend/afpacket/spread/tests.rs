//! Programs of fan-out groups in the interpreter: directions, fragments, tags, tunnels.

use bpf::cbpf::{Insn, Program};
use bpf::vm_cbpf::{PacketInfo, run_with};

use super::*;

fn compiled(fanout: Fanout) -> Program {
    let insns = program(fanout).unwrap();
    let insn = |it: &ClassicInsn| Insn::new(it.code, it.jt, it.jf, it.k);
    Program::new(insns.iter().map(insn).collect()).unwrap()
}

/// The hash of a received packet: from its network header.
fn received(program: &Program, protocol: u16, packet: &[u8]) -> u32 {
    let info = PacketInfo {
        protocol,
        ..PacketInfo::UNKNOWN
    };
    run_with(program, packet, packet.len() as u32, &info)
}

/// The hash of a sent packet: from its Ethernet header.
fn sent(program: &Program, packet: &[u8]) -> u32 {
    let info = PacketInfo {
        packet_type: OUTGOING as u8,
        ..PacketInfo::UNKNOWN
    };
    run_with(program, packet, packet.len() as u32, &info)
}

fn v4(from: u32, to: u32, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend(payload);
    packet
}

fn v6(from: u128, to: u128, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend(payload);
    packet
}

#[test]
fn both_directions_and_all_parts_have_one_hash() {
    let program = compiled(Fanout::Addresses);
    for (protocol, forth, back) in [
        (
            0x0800,
            v4(0x0a00_0001, 0xc000_0207, 17, &[1; 20]),
            v4(0xc000_0207, 0x0a00_0001, 6, &[]),
        ),
        (
            0x86dd,
            v6(7 << 90, 9, 17, &[1; 20]),
            v6(9, 7 << 90, 44, &[]),
        ),
    ] {
        let hash = received(&program, protocol, &forth);
        assert_ne!(hash, 0);
        assert_eq!(received(&program, protocol, &back), hash);
        let tag = [&[0, 7][..], &protocol.to_be_bytes(), &forth].concat();
        assert_eq!(received(&program, 0x8100, &tag), hash);
        let two = [&[0, 9, 0x81, 0][..], &tag].concat();
        let link = [&[2; 12][..], &[0x88, 0xa8], &two].concat();
        assert_eq!(sent(&program, &link), hash);
    }
    assert_eq!(received(&program, 0x0806, &[0; 28]), 0);
    assert_eq!(received(&program, 0x0800, &[0x45; 15]), 0);
}

/// Pairs whose addresses count up together, and hosts of one network, are spread.
#[test]
fn hosts_are_spread_evenly() {
    let program = compiled(Fanout::Addresses);
    for step in [1, 256, 1 << 16] {
        for other in [0, step] {
            let mut counts = [0; 4];
            for host in 0..1000 {
                let packet = v4(
                    0x0a00_0001 + host * step,
                    0x0b00_0001 + host * other,
                    6,
                    &[],
                );
                counts[received(&program, 0x0800, &packet) as usize % 4] += 1;
            }
            assert!(
                counts.iter().all(|count| (175..=325).contains(count)),
                "{counts:?}"
            );
        }
    }
}

#[test]
fn tunnels_have_the_hash_of_what_they_carry() {
    let (outer, inner) = (
        compiled(Fanout::Addresses),
        compiled(Fanout::InnerAddresses),
    );
    let (four, six) = (v4(1, 2, 6, &[3; 20]), v6(5, 6, 6, &[3; 20]));
    let ethernet = [&[2; 12][..], &[8, 0], &four].concat();
    let gtp = |flags: u8, more: &[u8], packet: &[u8]| {
        let header = [0, 9, 8, 104, 0, 0, 0, 0, flags, 255, 0, 0, 0, 0, 0, 1];
        [&header, more, packet].concat()
    };
    for (protocol, payload, packet) in [
        (4, four.clone(), &four),
        (41, six.clone(), &six),
        (47, [&[0, 0, 8, 0][..], &four].concat(), &four),
        (
            47,
            [&[0x30, 0, 0x86, 0xdd][..], &[1; 8], &six].concat(),
            &six,
        ),
        (
            47,
            [&[0x80, 0, 0x65, 0x58][..], &[1; 4], &ethernet].concat(),
            &four,
        ),
        (17, gtp(0x30, &[], &four), &four),
        (17, gtp(0x32, &[1; 4], &six), &six),
    ] {
        let kind = |packet: &[u8]| if packet[0] == 0x45 { 0x0800 } else { 0x86dd };
        let expected = received(&outer, kind(packet), packet);
        for tunnel in [v4(8, 9, protocol, &payload), v6(8, 9, protocol, &payload)] {
            assert_eq!(
                received(&inner, kind(&tunnel), &tunnel),
                expected,
                "{payload:?}"
            );
            assert_ne!(
                received(&outer, kind(&tunnel), &tunnel),
                expected,
                "{payload:?}"
            );
            let twice = v4(3, 4, if tunnel[0] == 0x45 { 4 } else { 41 }, &tunnel);
            assert_eq!(received(&inner, 0x0800, &twice), expected, "{payload:?}");
        }
        // A fragment is hashed by what all fragments have.
        let mut fragment = v4(8, 9, protocol, &payload);
        fragment[6] = 0x20;
        let expected = received(&outer, 0x0800, &fragment);
        assert_eq!(received(&inner, 0x0800, &fragment), expected, "{payload:?}");
    }
    // Without a tunnel nothing differs.
    assert_eq!(
        received(&inner, 0x86dd, &six),
        received(&outer, 0x86dd, &six)
    );
}
