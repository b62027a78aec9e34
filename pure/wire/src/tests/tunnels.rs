//! All accessors of the views of tunnels and of headers that capture programs add.

use super::counted;
use crate::*;
use std::string::ToString;
use std::vec::Vec;

#[test]
fn headers_of_tunnels() {
    let bytes: [u8; 12] = counted(&[]);
    let view = vxlan::Vxlan::parse(&bytes).unwrap();
    assert_eq!((view.flags(), view.vni()), (0x10, 0x0014_1516));
    assert_eq!((view.next_protocol(), view.payload), (0x13, &bytes[8..]));
    assert_eq!(view.to_string(), "VXLAN, flags 0x10, vni 1316118");

    let options = [1, 2, 3, 0xe1, 4, 5, 6, 7, 8, 9, 10, 0];
    for (control, is_control) in [(0x5f, false), (0x80, true)] {
        let head: [u8; 8] = counted(&[(0, &[3, control])]);
        let bytes = [&head[..], &options, &[9]].concat();
        let view = geneve::Geneve::parse(&bytes).unwrap();
        assert_eq!((view.protocol(), view.vni()), (0x1213, 0x0014_1516));
        assert_eq!((view.is_control(), view.payload), (is_control, &[9][..]));
        let seen: Vec<_> = view.options().collect();
        assert_eq!(seen, [(0x0102, 3, &[4, 5, 6, 7][..]), (0x0809, 10, &[])]);
        assert_eq!(view.to_string(), "Geneve, vni 0x141516, proto 0x1213");
    }
    assert!(geneve::Geneve::parse(&[0x40; 80]).is_err_and(|e| e == Reason::BadVersion));

    for (first, len) in [(0x10, 8), (0x2a, 12)] {
        let bytes: [u8; 24] = counted(&[(0, &[first, 0xbc, 0xf6]), (11, &[0xfe])]);
        let view = erspan::Erspan::parse(&bytes).unwrap();
        let vlan = u16::from(first & 15) << 8 | 0xbc;
        assert_eq!((view.version, view.vlan), (first >> 4, vlan));
        assert_eq!((view.session_id, view.payload), (0x213, &bytes[len..]));
        let kind = ["II", "III"][usize::from(view.version - 1)];
        let expected = std::format!("ERSPAN type {kind}, session 531, vlan {vlan}");
        assert_eq!(view.to_string(), expected);
    }
    let bytes: [u8; 24] = counted(&[(0, &[0x20]), (11, &[1])]);
    assert_eq!(erspan::Erspan::parse(&bytes).unwrap().payload, &bytes[20..]);
    assert_eq!(erspan::Erspan::parse(&[0x30; 24]), Err(Reason::BadVersion));
    assert_eq!(erspan::Erspan::parse(&[0x10; 7]), Err(Reason::Truncated));

    let view = etherip::Etherip::parse(&[0x3f, 0xff, 7, 8]).unwrap();
    assert_eq!(view.payload, [7, 8]);
    assert_eq!(view.to_string(), "EtherIP, length 2");
    assert_eq!(etherip::Etherip::parse(&[0x43, 0]), Err(Reason::BadVersion));

    for (first, context) in [(0, &[][..]), (0x3f, &[1, 2, 3, 4])] {
        let words = 2 + context.len() as u8 / 4;
        let head: [u8; 8] = counted(&[(0, &[first, 0xc0 | words])]);
        let bytes = [&head[..], context, &[9]].concat();
        let view = nsh::Nsh::parse(&bytes).unwrap();
        assert_eq!((view.next_protocol(), view.path_id()), (0x13, 0x0014_1516));
        assert_eq!((view.index(), view.context), (0x17, context));
        assert_eq!(view.payload, [9]);
        assert_eq!(view.to_string(), "NSH, service path 1316118, index 23");
    }
    assert!(nsh::Nsh::parse(&[0x40; 300]).is_err_and(|e| e == Reason::BadVersion));
}

#[test]
fn gre_by_its_flags() {
    use gre::Gre;
    let (k, s) = (Some(0x1415_1617), Some(0x1415_1617));
    let (k8, s8, s12) = (Some(0x1819_1a1b), Some(0x1819_1a1b), Some(0x1c1d_1e1f));
    for (flags, version, key, seq, len) in [
        (0x00, 0, None, None, 4),
        (0x10, 0, None, s, 8),
        (0x20, 0, k, None, 8),
        (0x30, 0, k, s8, 12),
        (0x80, 0, None, None, 8),
        (0x90, 0, None, s8, 12),
        (0xa0, 0, k8, None, 12),
        (0xb0, 0, k8, s12, 16),
        // PPTP has no checksums, but acknowledgements.
        (0xb0, 1, k, s8, 12),
        (0x20, 0x81, k, None, 12),
        (0x10, 1, None, s, 8),
        (0x90, 1, None, s, 8),
        (0x30, 0x81, k, s8, 16),
    ] {
        let bytes: [u8; 20] = counted(&[(0, &[flags, version])]);
        let view = Gre::parse(&bytes).unwrap();
        assert_eq!((view.version(), view.protocol()), (version & 7, 0x1213));
        assert_eq!((view.key(), view.seq()), (key, seq), "{flags:x} {version}");
        assert_eq!(view.payload, &bytes[len..], "{flags:x} {version}");
        let parts = |key: u32| ((key >> 16) as u16, key as u16);
        let pptp = key.filter(|_| version & 1 != 0).map(parts);
        assert_eq!(view.pptp(), pptp);
        let net = key.map(|key: u32| (key >> 8, (key & 0xff) as u8));
        assert_eq!(view.nvgre(), net);
    }
    assert!(Gre::parse(&[0, 2, 0, 0]).is_err_and(|e| e == Reason::BadVersion));
    // Two source routes, then the empty one; after a checksum.
    let routes = [8, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 1, 5, 0, 0, 0, 0];
    let bytes = [&[0xc0, 0, 8, 0, 9, 9, 9, 9][..], &routes, &[7]].concat();
    assert_eq!(Gre::parse(&bytes).unwrap().payload, [7]);
    assert!(Gre::parse(&bytes[..24]).is_err());
}

#[test]
fn mobile_tunnels() {
    let bytes: [u8; 24] = counted(&[(0, &[0x1e]), (2, &[0, 3])]);
    let view = gtp0::Gtp0::parse(&bytes).unwrap();
    assert_eq!((view.message_type(), view.flow_label()), (0x11, 0x1617));
    assert_eq!(
        (view.tid(), view.payload),
        (0x1c1d_1e1f_2021_2223, &bytes[20..23])
    );

    // Without options, with them, with two extensions.
    for (flags, next, len) in [(0x30, 0, 8), (0x32, 9, 12), (0x34, 0, 12), (0x34, 0x85, 24)] {
        let mut bytes: [u8; 28] = counted(&[(0, &[flags]), (2, &[0, 18]), (11, &[next])]);
        (bytes[12], bytes[15]) = (1, 0x85);
        (bytes[16], bytes[23]) = (2, 0);
        let view = gtpu::Gtpu::parse(&bytes).unwrap();
        assert_eq!((view.message_type(), view.len()), (0x11, 18));
        assert_eq!((view.is_empty(), view.teid()), (false, 0x1415_1617));
        assert_eq!(view.payload, &bytes[len..26], "{flags:x} {next}");
    }
    let view = gtpu::Gtpu::parse(&[0x30, 1, 0, 0, 0, 0, 0, 9]).unwrap();
    assert!(view.is_empty() && view.payload.is_empty());
    assert!(gtpu::Gtpu::parse(&[0x50; 8]).is_err_and(|e| e == Reason::BadVersion));
    assert!(gtpu::Gtpu::parse(&[0x34, 1, 0, 9, 0, 0, 0, 9, 0, 0, 0, 1]).is_err());

    for (flags, ids, len) in [
        (0x00, 2, 6),
        (0x80, 2, 6),
        (0x40, 4, 8),
        (0x08, 2, 10),
        (0xc8, 4, 12),
        (0x02, 2, 8),
        (0x4a, 4, 14),
    ] {
        let mut bytes: [u8; 20] = counted(&[(0, &[flags, 0xf2])]);
        let mut payload = len;
        if flags & 2 != 0 {
            bytes[len - 2..len].copy_from_slice(&[0, 3]);
            payload += 3;
        }
        let view = l2tp::L2tp::parse(&bytes).unwrap();
        assert_eq!(view.is_control, flags & 0x80 != 0);
        let id = |at: usize| be16(bytes[at], bytes[at + 1]);
        assert_eq!(
            (view.tunnel, view.session),
            (id(ids), id(ids + 2)),
            "{flags:x}"
        );
        assert_eq!(view.payload, &bytes[payload..], "{flags:x}");
        let kind = if view.is_control { "control" } else { "data" };
        let (tunnel, session) = (view.tunnel, view.session);
        let expected = std::format!("L2TP {kind}, tunnel {tunnel}, session {session}");
        assert_eq!(view.to_string(), expected);
    }

    for (bytes, indications) in [
        (&[0x60, 1, 2, 3][..], 0),
        (&[0, 0, 1, 2, 3, 4, 5, 6, 0x60], 8),
        (&[0, 1, 2, 1, 9, 9, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x60], 16),
        (
            &[
                0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 1, 2, 3, 4, 5, 6, 0x60,
            ],
            21,
        ),
    ] {
        let view = teredo::Teredo::parse(bytes).unwrap();
        assert_eq!(view.indications, &bytes[..indications]);
        assert_eq!(view.payload, &bytes[indications..]);
        let expected = std::format!("Teredo, indications {indications} bytes");
        assert_eq!(view.to_string(), expected);
    }
    assert_eq!(teredo::Teredo::parse(&[0, 1, 2]), Err(Reason::Truncated));
    assert_eq!(teredo::Teredo::parse(&[0]), Err(Reason::Truncated));
}

#[test]
fn headers_of_pktap() {
    let set: [(usize, &[u8]); 3] = [(0, &[112, 0, 0, 0, 1, 0, 0, 0]), (20, &[0]), (60, &[0])];
    let bytes: [u8; 116] = counted(&set);
    let view = pktap::Pktap::parse(&bytes).unwrap();
    assert_eq!((view.header_len(), view.has_packet()), (112, true));
    assert_eq!((view.dlt(), view.process_id()), (0x1b1a_1918, 0x4746_4544));
    assert_eq!(
        (view.interface(), view.command()),
        (&bytes[12..20], &bytes[56..60])
    );
    assert_eq!(view.payload, &bytes[112..]);
    let bytes: [u8; 116] = counted(&set[..1]);
    let view = pktap::Pktap::parse(&bytes).unwrap();
    assert_eq!(
        (view.interface(), view.command()),
        (&bytes[12..36], &bytes[56..76])
    );
    let bytes: [u8; 116] = counted(&[(0, &[108, 0, 0, 0, 2, 0, 0, 0])]);
    let view = pktap::Pktap::parse(&bytes).unwrap();
    assert_eq!((view.has_packet(), view.payload), (false, &bytes[108..]));
    for wrong in [[107, 0, 0, 0], [1, 16, 0, 0]] {
        let bytes: [u8; 116] = counted(&[(0, &wrong)]);
        assert_eq!(pktap::Pktap::parse(&bytes), Err(Reason::BadHeaderLength));
    }
}

#[test]
fn headers_of_ppi() {
    // Two fields: the first is padded only if a flag is set.
    for (flags, at) in [(0, 17), (1, 20)] {
        let mut bytes: [u8; 40] = counted(&[(0, &[0, flags, 36, 0]), (8, &[7, 1, 5, 0])]);
        bytes[at..at + 4].copy_from_slice(&[2, 0, 9, 0]);
        for (value, has_fcs) in [(0xfe, false), (0x01, true)] {
            bytes[at + 12] = value;
            let view = ppi::Ppi::parse(&bytes).unwrap();
            assert_eq!((view.header_len(), view.dlt()), (36, 0x1716_1514));
            assert_eq!(view.field(0x107), Some(&bytes[12..17]));
            assert_eq!(view.field(2), Some(&bytes[at + 4..at + 13]), "{flags}");
            assert_eq!((view.field(3), view.has_fcs()), (None, has_fcs));
            assert_eq!(view.payload, &bytes[36..]);
            assert_eq!(view.to_string(), "PPI, DLT 387323156");
        }
    }
    assert_eq!(ppi::Ppi::parse(&[1; 40]), Err(Reason::BadVersion));
    assert_eq!(
        ppi::Ppi::parse(&[0, 0, 7, 0, 0, 0, 0, 0]),
        Err(Reason::BadHeaderLength)
    );
}

#[test]
fn headers_of_prism() {
    let bytes: [u8; 150] = counted(&[]);
    let view = prism::Prism::parse(&bytes).unwrap();
    assert_eq!((view.is_avs(), view.header_len()), (false, 144));
    assert_eq!(
        (view.to_string().as_str(), view.payload.len()),
        ("Prism, 144 bytes", 6)
    );
    let bytes: [u8; 12] = counted(&[(0, &[0x80, 0x21, 0x10, 1, 0, 0, 0, 10])]);
    let view = prism::Prism::parse(&bytes).unwrap();
    assert_eq!((view.is_avs(), view.header_len()), (true, 10));
    assert_eq!(
        (view.to_string().as_str(), view.payload.len()),
        ("AVS, 10 bytes", 2)
    );
    let bytes = [0x80, 0x21, 0x10, 1, 0, 0, 0, 7];
    assert_eq!(prism::Prism::parse(&bytes), Err(Reason::BadHeaderLength));
}

#[test]
fn headers_of_nflog_and_infiniband() {
    let bytes: [u8; 8] = counted(&[(1, &[0])]);
    let view = nflog::Nflog::parse(&bytes).unwrap();
    assert_eq!(
        (view.family(), view.version(), view.resource()),
        (0x10, 0, 0x1213)
    );
    assert_eq!(view.to_string(), "NFLOG, family 16, resource 4627");

    let bytes: [u8; 48] = counted(&[]);
    let view = infiniband::Infiniband::parse(&bytes).unwrap();
    assert_eq!((view.src(), view.dst()), (0x1617, 0x1213));
    assert_eq!((view.next_header(), view.packet_len()), (1, 0x415 * 4));
    assert_eq!(view.to_string(), "InfiniBand, LID 5655 > 4627");
    let view = infiniband::Ipoib::parse(&bytes).unwrap();
    assert_eq!((view.ether_type(), view.payload), (0x3839, &bytes[44..]));
    assert_eq!(view.to_string(), "IPoIB, type 0x3839");
}

/// The offset of the flags depends on the preceding fields and on further words of presence.
#[test]
fn flags_of_radiotap() {
    for (present, flags_at) in [
        (&[0, 0, 0, 0][..], None),
        (&[1, 0, 0, 0], None),
        (&[2, 0, 0, 0], Some(8)),
        (&[3, 0, 0, 0], Some(16)),
        (&[2, 0, 0, 0x80, 0, 0, 0, 0], Some(12)),
        (&[3, 0, 0, 0x80, 0, 0, 0, 0], Some(24)),
        (&[2, 0, 0, 0x80, 0, 0, 0, 0x80, 0xff, 0, 0, 0x7f], Some(16)),
    ] {
        let bytes: [u8; 40] = counted(&[(0, &[0, 0, 36, 0]), (4, present)]);
        let view = radiotap::Radiotap::parse(&bytes).unwrap();
        let expected = flags_at.map_or(0, |at| bytes[at]);
        assert_eq!(view.flags(), expected, "{present:x?}");
        assert_eq!((view.header_len(), view.payload), (36, &bytes[36..]));
        assert_eq!(view.to_string(), "radiotap, 36 bytes");
    }
    let bytes = [0, 0, 8, 0, 2, 0, 0, 0];
    assert_eq!(radiotap::Radiotap::parse(&bytes).unwrap().flags(), 0);
    assert_eq!(radiotap::Radiotap::parse(&[1; 8]), Err(Reason::BadVersion));
    let bytes = [0, 0, 7, 0, 0, 0, 0, 0];
    assert_eq!(
        radiotap::Radiotap::parse(&bytes),
        Err(Reason::BadHeaderLength)
    );
}

#[test]
fn scales_and_makers_of_arista() {
    for (scale, format, expected) in [
        (
            1,
            0x21,
            "UTC (1), Format 48-bit (2), HwInfo R3 (1), Timestamp 5141.370612249",
        ),
        (
            0,
            0x27,
            "TAI (0), Format 48-bit (2), HwInfo Unknown (7), Timestamp 5141.370612249",
        ),
    ] {
        let head = [0, 1, scale, format];
        let bytes: [u8; 13] = counted(&[(0, &head)]);
        let view = arista::Arista::parse(&bytes).unwrap();
        assert_eq!((view.is_utc(), view.bits()), (scale == 1, 48));
        assert_eq!(view.time(), (0x1415, 0x1617_1819));
        assert_eq!((view.ether_type(), view.payload), (0x1a1b, &bytes[12..]));
        let expected = std::format!("SubType Timestamp (0x0001), Timescale {expected}");
        assert_eq!(view.to_string(), expected);
    }
    let bytes: [u8; 15] = counted(&[(0, &[0, 1, 0, 0x10])]);
    let view = arista::Arista::parse(&bytes).unwrap();
    assert_eq!((view.bits(), view.time()), (64, (0x1415_1617, 0x1819_1a1b)));
    assert_eq!((view.ether_type(), view.payload), (0x1c1d, &bytes[14..]));
    for wrong in [[0, 1, 2, 0x10], [0, 1, 0, 0x30], [1, 1, 0, 0x10]] {
        let bytes: [u8; 15] = counted(&[(0, &wrong)]);
        assert_eq!(arista::Arista::parse(&bytes), Err(Reason::UnsupportedType));
    }
}
