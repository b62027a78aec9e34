//! All accessors of all views, on headers in which no two fields are equal and none is 0 or 1.

use super::{counted, text};
use crate::*;
use std::string::ToString;

#[test]
fn ethernet_and_tags() {
    let bytes: [u8; 18] = counted(&[]);
    let view = ethernet::Ethernet::parse(&bytes).unwrap();
    assert_eq!(view.dst(), Mac([0x10, 0x11, 0x12, 0x13, 0x14, 0x15]));
    assert_eq!(view.src(), Mac([0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b]));
    assert_eq!(view.ether_type(), 0x1c1d);
    assert_eq!(view.payload, &bytes[14..]);
    assert_eq!(
        view.to_string(),
        "16:17:18:19:1a:1b > 10:11:12:13:14:15, type 0x1c1d"
    );

    let bytes: [u8; 6] = counted(&[(0, &[0xb2, 0x34])]);
    let view = vlan::Vlan::parse(&bytes).unwrap();
    assert_eq!((view.tci(), view.id()), (0xb234, 0x234));
    assert_eq!((view.priority(), view.drop_eligible()), (5, true));
    assert_eq!((view.ether_type(), view.payload), (0x1213, &bytes[4..]));
    assert_eq!(view.to_string(), "vlan 564, p 5, DEI");
    assert_eq!(
        text(vlan::Vlan::parse(&[0x62, 0x34, 0, 0])),
        "vlan 564, p 3"
    );

    let bytes: [u8; 8] = counted(&[(0, &[0xab, 0xcd, 0xe6, 0x40])]);
    let view = mpls::Mpls::parse(&bytes).unwrap();
    assert_eq!((view.label(), view.traffic_class()), (0xabcde, 3));
    assert_eq!((view.is_bottom(), view.ttl()), (false, 0x40));
    assert_eq!(view.to_string(), "(label 703710, tc 3, ttl 64)");
    assert_eq!(view.payload, &bytes[4..]);

    let bytes: [u8; 12] = counted(&[]);
    let view = tag::Etag::parse(&bytes).unwrap();
    assert_eq!((view.body(), view.ether_type()), (&bytes[..6], 0x1617));
    assert_eq!(view.to_string(), "tag of 8 bytes, type 0x1617");
    let view = tag::Vntag::parse(&bytes).unwrap();
    assert_eq!((view.body(), view.ether_type()), (&bytes[..4], 0x1415));
    assert_eq!(view.payload, &bytes[6..]);

    let view = mac_in_mac::Pbb::parse(&bytes).unwrap();
    assert_eq!((view.service_id(), view.payload), (0x111213, &bytes[4..]));
    assert_eq!(view.to_string(), "PBB, I-SID 1118739");
    let view = mac_in_mac::FabricPath::parse(&[0xab, 0xcd, 9]).unwrap();
    assert_eq!(
        (view.tree(), view.ttl(), view.payload),
        (0x2af, 13, &[9][..])
    );
    assert_eq!(view.to_string(), "FabricPath, tree 687, ttl 13");
}

#[test]
fn macsec_and_its_flags() {
    let bytes: [u8; 20] = counted(&[(0, &[0x23])]);
    let view = macsec::Macsec::parse(&bytes).unwrap();
    assert_eq!((view.association(), view.packet_number()), (3, 0x1213_1415));
    assert!(!view.is_encrypted());
    assert_eq!(view.payload, &bytes[14..], "behind the channel identifier");
    assert_eq!(view.to_string(), "MACsec, an 3, pn 303240213");
    for (flags, encrypted) in [(0x02, false), (0x06, true), (0x0a, true), (0x0e, true)] {
        let view = macsec::Macsec::parse(&[flags, 0, 0, 0, 0, 1, 7]).map(|view| {
            assert_eq!((view.association(), view.payload), (2, &[7][..]));
            view.is_encrypted()
        });
        assert_eq!(view, Ok(encrypted), "{flags:#x}");
    }
}

#[test]
fn logical_links() {
    let bytes: [u8; 6] = counted(&[]);
    let view = chdlc::Chdlc::parse(&bytes).unwrap();
    assert_eq!((view.address(), view.ether_type()), (0x10, 0x1213));
    assert_eq!(view.payload, &bytes[4..]);

    for (bytes, expected) in [
        (
            &[0xf0, 0xf1, 0x13][..],
            "LLC, dsap 0xf0, ssap 0xf1, ctrl 0x13",
        ),
        (&[0x42, 0x43, 0x03], "STP"),
        (&[0xfe, 0xfe, 0x03], "ISO network layer"),
        (&[0xe0, 0xe0, 0x03], "IPX"),
        (&[0xff, 0xff, 0x03], "IPX"),
        (
            &[0xaa, 0xaa, 0x03, 1, 2, 3, 4, 5],
            "SNAP, oui 01:02:03, type 0x0405",
        ),
        (
            &[0xaa, 0xab, 0x03, 1, 2, 3, 4, 5],
            "SNAP, oui 01:02:03, type 0x0405",
        ),
        (&[0xaa, 0xaa, 0x03, 1, 2, 3, 4], "[truncated]"),
        (&[0xf0, 0xf1, 0x12], "[truncated]"),
        (&[0xf0, 0xf1], "[truncated]"),
    ] {
        assert_eq!(text(llc::Llc::parse(bytes)), expected, "{bytes:x?}");
    }
    let view = llc::Llc::parse(&[0xf0, 0xf1, 0x13, 9]).unwrap();
    assert_eq!(
        (view.dsap(), view.ssap(), view.control(), view.payload),
        (0xf0, 0xf1, 0x13, &[9][..])
    );
}

#[test]
fn point_to_point() {
    for (bytes, protocol, header_len, expected) in [
        (&[0xff, 3, 0xc0, 0x21, 9][..], 0xc021, 4, "PPP LCP"),
        (&[0x80, 0x21, 9], 0x8021, 2, "PPP IPCP"),
        (&[0x80, 0x57, 9], 0x8057, 2, "PPP IP6CP"),
        (&[0xc0, 0x23, 9], 0xc023, 2, "PPP PAP"),
        (&[0xc2, 0x23, 9], 0xc223, 2, "PPP CHAP"),
        (&[0x21, 9], 0x21, 1, "PPP protocol 0x0021"),
        (&[0xff, 3, 0x57, 9], 0x57, 3, "PPP protocol 0x0057"),
    ] {
        let view = ppp::Ppp::parse(bytes).unwrap();
        assert_eq!((view.protocol(), view.header_len()), (protocol, header_len));
        assert_eq!(
            (view.to_string().as_str(), view.payload),
            (expected, &[9][..])
        );
    }
    for bytes in [&[][..], &[0xff], &[0xff, 3], &[0xff, 3, 0xc0], &[0x80]] {
        assert_eq!(text(ppp::Ppp::parse(bytes)), "[truncated]", "{bytes:x?}");
    }
}

#[test]
fn point_to_point_over_ethernet() {
    let bytes: [u8; 12] = counted(&[(0, &[0x11]), (4, &[0, 5])]);
    let view = pppoe::Pppoe::parse(&bytes).unwrap();
    assert_eq!(
        (view.code(), view.session_id(), view.len()),
        (0x11, 0x1213, 5)
    );
    assert_eq!((view.is_empty(), view.payload), (false, &bytes[6..11]));
    assert!(
        pppoe::Pppoe::parse(&[0x11, 0, 0, 0, 0, 0])
            .unwrap()
            .is_empty()
    );
    for (code, expected) in [
        (0, "PPPoE [ses 0x1213]"),
        (0x09, "PPPoE PADI [ses 0x1213]"),
        (0x07, "PPPoE PADO [ses 0x1213]"),
        (0x19, "PPPoE PADR [ses 0x1213]"),
        (0x65, "PPPoE PADS [ses 0x1213]"),
        (0xa7, "PPPoE PADT [ses 0x1213]"),
        (0x5a, "PPPoE code 0x5a [ses 0x1213]"),
    ] {
        let bytes: [u8; 6] = counted(&[(0, &[0x11, code])]);
        assert_eq!(text(pppoe::Pppoe::parse(&bytes)), expected);
    }
    assert_eq!(text(pppoe::Pppoe::parse(&[0x12; 6])), "[bad_version]");
}

#[test]
fn frame_relay_addresses() {
    use frame_relay::FrameRelay;
    for (address, dlci) in [
        (&[0xa8, 0x61][..], 678),
        (&[0xa8, 0x60, 0xcd], 678 << 6 | 51),
        (&[0xa8, 0x60, 0xcf], 678),
        (&[0xa8, 0x60, 0xaa, 0xcd], (678 << 7 | 85) << 6 | 51),
        (&[0xa8, 0x60, 0xaa, 0xcf], 678 << 7 | 85),
    ] {
        for payload in [&[3, 0xcc, 9][..], &[3, 0, 0xcc, 9]] {
            let bytes = [address, payload].concat();
            let view = FrameRelay::parse(&bytes).unwrap();
            assert_eq!((view.dlci(), view.payload), (dlci, payload), "{address:x?}");
            assert_eq!((view.nlpid(), view.ether_type()), (Some(0xcc), None));
            let expected = std::format!("Frame Relay, DLCI {dlci}, NLPID 0xcc");
            assert_eq!(view.to_string(), expected);
        }
    }
    for (bytes, expected) in [
        (&[0xa8, 0x61, 3, 8][..], "Frame Relay, DLCI 678, Q.933"),
        (
            &[0xa8, 0x61, 0x08, 0x06],
            "Frame Relay, DLCI 678, type 0x0806",
        ),
        (&[0xa8, 0x61, 0x08], "Frame Relay, DLCI 678"),
        (&[0, 1, 0x08, 0x06], "Frame Relay, DLCI 0"),
        (&[0xa8], "[truncated]"),
        (&[0xa8, 0x60, 0xaa], "[truncated]"),
        (&[0xa9, 0x61, 3], "[bad_header_length]"),
        (&[0xa8, 0x60, 0xaa, 0xcc, 1], "[bad_header_length]"),
    ] {
        assert_eq!(text(FrameRelay::parse(bytes)), expected, "{bytes:x?}");
    }
}

#[test]
fn cooked_captures_and_loopback() {
    use file::Direction;
    let names = ["In", "B", "M", "P", "Out", "?"];
    for (kind, name) in names.iter().enumerate() {
        let bytes: [u8; 18] = counted(&[(1, &[kind as u8]), (4, &[0, 6])]);
        let view = sll::Sll::parse(&bytes).unwrap();
        assert_eq!(usize::from(view.packet_type), kind);
        assert_eq!((view.hardware_type, view.protocol), (0x1213, 0x1e1f));
        assert_eq!((view.address, view.interface), (&bytes[6..12], None));
        assert_eq!(view.payload, &bytes[16..]);
        let direction = if kind == 4 {
            Direction::Out
        } else {
            Direction::In
        };
        assert_eq!(view.direction(), direction);
        assert_eq!(
            view.to_string(),
            std::format!("{name} hw 4627, type 0x1e1f")
        );

        let bytes: [u8; 22] = counted(&[(10, &[kind as u8, 200])]);
        let view = sll::Sll::parse_v2(&bytes).unwrap();
        assert_eq!(usize::from(view.packet_type), kind);
        assert_eq!((view.hardware_type, view.protocol), (0x1819, 0x1011));
        assert_eq!(view.interface, Some(0x1415_1617));
        assert_eq!((view.address, view.payload), (&bytes[12..20], &bytes[20..]));
        assert_eq!(view.direction(), direction);
        let expected = std::format!("if 336926231 {name} hw 6169, type 0x1011");
        assert_eq!(view.to_string(), expected);
    }
    let bytes: [u8; 16] = counted(&[(4, &[0x20, 0])]);
    assert_eq!(sll::Sll::parse(&bytes).unwrap().address, &bytes[6..14]);

    for (bytes, family) in [
        ([0, 0, 0xab, 0xcd], 0xabcd),
        ([0xcd, 0xab, 0, 0], 0xabcd),
        ([0, 0, 0xff, 0xff], 0xffff),
        ([0, 1, 0, 0], 0x100),
    ] {
        assert_eq!(null::Null::parse(&bytes).unwrap().family(), family);
    }
}

#[test]
fn addresses_of_ethernet() {
    for (first, multicast, local) in [
        (0x00, false, false),
        (0x01, true, false),
        (0x02, false, true),
        (0x03, true, true),
        (0xfc, false, false),
    ] {
        let mac = Mac([first, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!((mac.is_multicast(), mac.is_local()), (multicast, local));
    }
    let mac = Mac([0x10, 0x2f, 3, 0xa4, 5, 0xff]);
    assert_eq!(mac.to_string(), "10:2f:03:a4:05:ff");
    assert_eq!("10:2f:03:a4:05:ff".parse(), Ok(mac));
    for wrong in [
        "",
        "10:2f:03:a4:05",
        "10:2f:03:a4:05:ff:07",
        "10:2f:03:a4:05:gg",
        "10:2f:03:a4:05:fff",
        "10:2f:03:a4::ff",
        "10:2f:03:a4:05:+f",
    ] {
        assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
    }
}

#[test]
fn arp_by_operation() {
    let sets: [(usize, &[u8]); 1] = [(2, &[8, 0, 6, 4])];
    let mut bytes: [u8; 28] = counted(&sets);
    let view = arp::Arp::parse(&bytes).unwrap();
    assert_eq!(
        (view.hardware_type(), view.protocol_type()),
        (0x1011, 0x0800)
    );
    assert_eq!(view.operation(), 0x1617);
    assert_eq!(
        view.to_string(),
        "ARP, operation 5655, 30.31.32.33 > 40.41.42.43"
    );
    let addresses = view.ethernet_ipv4().unwrap();
    assert_eq!(
        addresses.sender_mac,
        Mac([0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d])
    );
    assert_eq!(
        addresses.target_mac,
        Mac([0x22, 0x23, 0x24, 0x25, 0x26, 0x27])
    );
    assert_eq!(view.ipv4(), Some((addresses.sender, addresses.target)));
    for (operation, expected) in [
        (1, "ARP, Request who-has 40.41.42.43 tell 30.31.32.33"),
        (2, "ARP, Reply 30.31.32.33 is-at 18:19:1a:1b:1c:1d"),
        (
            3,
            "RARP, Request who-is 22:23:24:25:26:27 tell 18:19:1a:1b:1c:1d",
        ),
        (4, "RARP, Reply 22:23:24:25:26:27 at 40.41.42.43"),
    ] {
        bytes[6..8].copy_from_slice(&[0, operation]);
        assert_eq!(text(arp::Arp::parse(&bytes)), expected);
    }
    // Other hardware with IPv4 addresses; Ethernet with other addresses.
    let bytes: [u8; 32] = counted(&[(2, &[8, 0, 8, 4])]);
    let view = arp::Arp::parse(&bytes).unwrap();
    assert_eq!(view.ethernet_ipv4(), None);
    let [sender, target] = [[32, 33, 34, 35], [44, 45, 46, 47]].map(Into::into);
    assert_eq!(view.ipv4(), Some((sender, target)));
    assert_eq!(
        view.to_string(),
        "ARP, hardware 4113, protocol 0x0800, operation 5655"
    );
    for (at, value) in [(2, 9), (3, 1), (5, 3)] {
        let mut bytes: [u8; 32] = counted(&sets);
        bytes[at] = value;
        let view = arp::Arp::parse(&bytes).unwrap();
        assert_eq!((view.ipv4(), view.ethernet_ipv4()), (None, None), "{at}");
    }
}

#[test]
fn internet_protocols() {
    let set: [(usize, &[u8]); 2] = [(0, &[0x46]), (2, &[0, 26])];
    let bytes: [u8; 28] = counted(&set);
    let view = ipv4::Ipv4::parse(&bytes).unwrap();
    assert_eq!((view.header_len(), view.traffic_class()), (24, 0x11));
    assert_eq!((view.total_len(), view.id()), (26, 0x1415));
    assert_eq!((view.ttl(), view.protocol()), (0x18, 0x19));
    assert_eq!((view.checksum(), view.checksum_ok()), (0x1a1b, false));
    assert_eq!(view.src().octets(), bytes[12..16]);
    assert_eq!(view.dst().octets(), bytes[16..20]);
    assert_eq!(
        (view.options, view.payload),
        (&bytes[20..24], &bytes[24..26])
    );
    assert_eq!(
        view.to_string(),
        "28.29.30.31 > 32.33.34.35, ttl 24, id 5141, proto 25, length 26"
    );
    for (field, dont, more, offset) in [
        ([0x40, 0x00], true, false, 0),
        ([0x20, 0x00], false, true, 0),
        ([0x00, 0x03], false, false, 24),
        ([0x2a, 0xbc], false, true, 0x55e0),
        ([0x5f, 0xff], true, false, 0xfff8),
    ] {
        let bytes: [u8; 28] = counted(&[set[0], set[1], (6, &field)]);
        let view = ipv4::Ipv4::parse(&bytes).unwrap();
        assert_eq!((view.dont_fragment(), view.more_fragments()), (dont, more));
        assert_eq!(view.fragment_offset(), offset, "{field:x?}");
    }

    let bytes: [u8; 48] = counted(&[(0, &[0x6a, 0xbc, 0xde, 0xf1, 0, 5])]);
    let view = ipv6::Ipv6::parse(&bytes).unwrap();
    assert_eq!((view.traffic_class(), view.flow_label()), (0xab, 0xcdef1));
    assert_eq!((view.payload_len(), view.payload), (5, &bytes[40..45]));
    assert_eq!((view.next_header(), view.hop_limit()), (0x16, 0x17));
    assert_eq!(view.src().octets(), bytes[8..24]);
    assert_eq!(view.dst().octets(), bytes[24..40]);
    assert_eq!(
        view.to_string(),
        "1819:1a1b:1c1d:1e1f:2021:2223:2425:2627 > 2829:2a2b:2c2d:2e2f:3031:3233:3435:3637, \
         hlim 23, next-header 22, payload length 5"
    );

    for (last, more) in [(0x1d, true), (0x1e, false)] {
        let bytes: [u8; 10] = counted(&[(3, &[last])]);
        let view = ipv6_ext::FragmentHeader::parse(&bytes).unwrap();
        assert_eq!((view.next_header(), view.offset()), (0x10, 0x1218));
        assert_eq!((view.more_fragments(), view.id()), (more, 0x1415_1617));
        assert_eq!(view.payload, &bytes[8..]);
        let sign = if more { "+" } else { "" };
        assert_eq!(view.to_string(), std::format!("frag 0x14151617:4632{sign}"));
    }
}

#[test]
fn security_headers() {
    let bytes: [u8; 24] = counted(&[(1, &[3])]);
    let view = ah::Ah::parse(&bytes).unwrap();
    assert_eq!((view.next_header(), view.spi()), (0x10, 0x1415_1617));
    assert_eq!((view.seq(), view.icv()), (0x1819_1a1b, &bytes[12..20]));
    assert_eq!(view.payload, &bytes[20..]);
    let view = ah::Ah::parse(&[59, 0, 0, 0, 2, 3, 4, 5, 9]).unwrap();
    assert_eq!(
        (view.seq(), view.icv(), view.payload),
        (0, &[][..], &[9][..])
    );
    assert!(ah::Ah::parse(&bytes[..19]).is_err());

    let view = esp::Esp::parse(&bytes).unwrap();
    assert_eq!((view.spi(), view.seq()), (0x1003_1213, 0x1415_1617));
    assert_eq!(
        view.to_string(),
        "ESP(spi=0x10031213,seq=0x14151617), length 16"
    );

    use udp_encap::UdpEncap;
    for (bytes, expected) in [
        (&[0xff][..], "NAT keepalive"),
        (&[0, 0, 0, 0, 1, 2, 3], "NONESP-encap: isakmp, length 3"),
        (&[0, 0, 0, 0], "NONESP-encap: isakmp, length 0"),
        (&[0, 0, 0, 1], "UDP-encap"),
        (&[0xfe], "[truncated]"),
        (&[0, 0, 0], "[truncated]"),
    ] {
        assert_eq!(text(UdpEncap::parse(bytes)), expected, "{bytes:x?}");
    }
}
