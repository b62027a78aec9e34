//! The fields of IP and transport headers in a dissection, complete and truncated, field by field.

use super::counted;
use crate::ipv6_ext::bit;
use crate::*;
use std::vec::Vec;

fn dissected(link: LinkType, bytes: &[u8], wire_len: usize) -> Dissection {
    let mut d = Dissection::EMPTY;
    dissect(link, bytes, wire_len as u32, &mut d);
    d
}

/// Builds an IPv6 packet with this first next header.
fn v6(next_header: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = counted::<40>(&[(0, &[0x6a, 0xbc, 0xde, 0xf1])]).into();
    bytes[4..8].copy_from_slice(&[0, body.len() as u8, next_header, 0x17]);
    bytes.extend(body);
    bytes
}

/// Builds an IPv4 packet with this fragment field and these options.
fn v4(protocol: u8, field: [u8; 2], options: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = counted::<20>(&[(6, &field), (9, &[protocol])]).into();
    let len = (20 + options.len() + body.len()) as u8;
    (bytes[0], bytes[2], bytes[3]) = (0x45 + options.len() as u8 / 4, 0, len);
    bytes.extend(options);
    bytes.extend(body);
    bytes
}

#[test]
fn fragments_of_both_versions() {
    use Fragment::{First, Last, Middle, Whole};
    for (units, more, kind) in [
        (0_u16, false, Whole),
        (0, true, First),
        (0x123, true, Middle),
        (0x123, false, Last),
        (1, false, Last),
        (0x1fff, false, Last),
    ] {
        let later = units != 0;
        let field = units << 3 | u16::from(more);
        let body = [&[17, 0][..], &field.to_be_bytes(), &[1, 2, 3, 4], &[5; 8]].concat();
        let packet = v6(44, &body);
        let d = dissected(LinkType::IPV6, &packet, packet.len());
        assert_eq!((d.fragment, d.fragment_offset), (kind, units << 3));
        assert_eq!((d.fragment_id, d.ip_protocol), (0x0102_0304, 17));
        let expected = if later {
            (bit::LATER_FRAGMENT, Reason::LaterFragment, 0)
        } else {
            (bit::FIRST_FRAGMENT, d.reason, 48)
        };
        assert_eq!((d.ip_options, d.reason, d.transport_offset), expected);
        assert_eq!(d.fragment.is_later(), later);
        assert_eq!(d.payload_offset, if later { 48 } else { 56 });

        let field = units | u16::from(more) << 13;
        let packet = v4(132, field.to_be_bytes(), &[], &[5; 12]);
        let d = dissected(LinkType::IPV4, &packet, packet.len());
        assert_eq!((d.fragment, d.fragment_offset), (kind, units << 3));
        assert_eq!((d.fragment_id, d.ip_protocol), (0x1415, 132));
        assert_eq!(d.reason == Reason::LaterFragment, later);
        assert_eq!((d.ip_flags, d.has_ports()), (u8::from(more), !later));
        assert_eq!(d.payload_offset, if later { 20 } else { 32 });
    }
}

#[test]
fn fields_of_internet_headers() {
    let packet = v4(59, [0x40, 0], &[7, 3, 4, 1, 148, 4, 0, 0], &[9; 3]);
    let padded = [&packet[..], &[0xee; 5]].concat();
    let d = dissected(LinkType::IPV4, &padded, padded.len());
    assert_eq!((d.ip_version, d.ip_offset, d.traffic_class), (4, 0, 0x11));
    assert_eq!((d.ip_total_len, d.fragment_id, d.ip_flags), (31, 0x1415, 2));
    assert_eq!(
        (d.ttl, d.ip_protocol, d.fragment),
        (0x18, 59, Fragment::Whole)
    );
    assert_eq!(d.src_addr(), Some([28, 29, 30, 31].into()));
    assert_eq!(d.dst_addr(), Some([32, 33, 34, 35].into()));
    assert_eq!(d.ip_options, 1 << 7 | 1 << 1 | 1 << (148 & 31));
    assert_eq!((d.payload_offset, d.payload_len), (28, 3));
    assert_eq!((d.cap_len, d.wire_len), (36, 36));
    // A length of 0 stands for all there is (segmentation offload).
    let mut offloaded = packet.clone();
    offloaded[3] = 0;
    let d = dissected(LinkType::IPV4, &offloaded, 5000);
    assert_eq!((d.ip_total_len, d.payload_len), (5000, 4972));
    for (at, value, reason) in [
        (0, 0x57, Reason::BadVersion),
        (0, 0x44, Reason::BadHeaderLength),
        (3, 27, Reason::BadLength),
        (3, 28, Reason::UnsupportedProtocol),
    ] {
        let mut bytes = packet.clone();
        bytes[at] = value;
        let d = dissected(LinkType::IPV4, &bytes, bytes.len());
        assert_eq!(d.reason, reason, "{at} {value}");
    }

    let packet = v6(59, &[9; 3]);
    let d = dissected(LinkType::IPV6, &packet, packet.len());
    assert_eq!((d.ip_version, d.ip_offset, d.traffic_class), (6, 0, 0xab));
    assert_eq!((d.flow_label, d.ip_total_len, d.ttl), (0xcdef1, 43, 0x17));
    assert_eq!(
        (d.src, d.dst),
        (counted::<40>(&[])[8..24].try_into().unwrap(), d.dst)
    );
    assert_eq!(d.dst, packet[24..40]);
    assert_eq!((d.ip_protocol, d.reason), (59, Reason::Complete));
    assert_eq!(
        (d.payload_offset, d.payload_len, d.transport_offset),
        (40, 3, 0)
    );
    for (next_header, body, total) in [
        (59, &[][..], 40),
        (17, &[0, 1, 0, 2, 0, 9, 0, 0, 7], 49),
        // Jumbo payload: 70,000 bytes.
        (0, &[59, 0, 0xc2, 4, 0, 1, 0x11, 0x70], 70_040),
    ] {
        let mut bytes = v6(next_header, body);
        bytes[5] = 0;
        let d = dissected(LinkType::IPV6, &bytes, bytes.len());
        assert_eq!(d.ip_total_len, total, "{next_header}");
    }
}

#[test]
fn extension_headers_set_their_bits() {
    for (number, bits) in [
        (0, bit::HOP_BY_HOP),
        (43, bit::ROUTING),
        (60, bit::DESTINATION_OPTIONS),
        (135, bit::MOBILITY),
        (139, bit::HIP),
        (140, bit::SHIM6),
    ] {
        let body = [&[59, 1][..], &[0; 14], &[9]].concat();
        let packet = v6(number, &body);
        let d = dissected(LinkType::IPV6, &packet, packet.len());
        assert_eq!((d.ip_options, d.ip_protocol), (bits, 59), "{number}");
        assert_eq!((d.payload_offset, d.payload_len), (56, 1), "{number}");
        // Its body cut by the capture: what follows it is known all the same.
        let d = dissected(LinkType::IPV6, &packet[..45], packet.len());
        assert_eq!(
            (d.reason, d.ip_protocol),
            (Reason::Truncated, 59),
            "{number}"
        );
        // And ended by the packet: it is not.
        let packet = v6(number, &body[..8]);
        let d = dissected(LinkType::IPV6, &packet, packet.len());
        assert_eq!(d.reason, Reason::Short, "{number}");
    }
    for (number, bits) in [(51, bit::AH), (50, bit::ESP)] {
        let packet = v6(number, &[59, 0, 0, 0, 1, 2, 3, 4, 9]);
        let d = dissected(LinkType::IPV6, &packet, packet.len());
        assert_eq!((d.ip_options, d.payload_offset), (bits, 48), "{number}");
    }
}

#[test]
fn a_segment_truncated_anywhere() {
    let head: [u8; 24] = counted(&[(12, &[0x6d, 0x5a]), (20, &[2, 4, 5, 0xb4])]);
    let packet = v4(6, [0, 0], &[], &[&head[..], &[7; 5]].concat());
    for cap in 20..=packet.len() {
        let d = dissected(LinkType::IPV4, &packet[..cap], packet.len());
        let there = cap - 20;
        let or_0 = |need, value| if there >= need { value } else { 0 };
        assert_eq!(u64::from(d.src_port), or_0(4, 0x1011), "{there}");
        assert_eq!(u64::from(d.dst_port), or_0(4, 0x1213), "{there}");
        assert_eq!(d.has_ports(), there >= 4, "{there}");
        assert_eq!(u64::from(d.tcp_seq), or_0(8, 0x1415_1617), "{there}");
        assert_eq!(u64::from(d.tcp_ack), or_0(12, 0x1819_1a1b), "{there}");
        assert_eq!(u64::from(d.tcp_flags), or_0(14, 0xd5a), "{there}");
        assert_eq!(u64::from(d.tcp_window), or_0(16, 0x1e1f), "{there}");
        assert_eq!(d.tcp_options, or_0(22, 1 << 2), "{there}");
        let reason = if there < 24 {
            Reason::Truncated
        } else {
            Reason::Complete
        };
        assert_eq!(d.reason, reason, "{there}");
        // With the data offset, the place of the payload is known.
        let payload = if there < 13 { (20, 29) } else { (44, 5) };
        assert_eq!((d.payload_offset, d.payload_len), payload, "{there}");
        let reported = (there >= 13).then_some(payload);
        assert_eq!(d.transport_payload(), reported, "{there}");
    }
    for len in 0..20 {
        let packet = v4(6, [0, 0], &[], &head[..len]);
        let d = dissected(LinkType::IPV4, &packet, packet.len());
        assert_eq!(d.reason, Reason::Short, "{len}");
    }
    let short: [u8; 24] = counted(&[(12, &[0x4d])]);
    let packet = v4(6, [0, 0], &[], &short);
    let d = dissected(LinkType::IPV4, &packet, packet.len());
    assert_eq!((d.reason, d.tcp_options), (Reason::BadHeaderLength, 0));
    // A header longer than the packet has no options.
    let long: [u8; 24] = counted(&[(12, &[0x7d]), (20, &[2, 4, 5, 0xb4])]);
    let packet = v4(6, [0, 0], &[], &long);
    let d = dissected(LinkType::IPV4, &packet, packet.len());
    assert_eq!((d.reason, d.tcp_options), (Reason::Short, 0));
}

#[test]
fn lengths_of_datagrams() {
    for (len, reason, left) in [
        (0, Reason::Complete, 6),
        (1, Reason::BadLength, 14),
        (7, Reason::BadLength, 14),
        (8, Reason::Complete, 0),
        (11, Reason::Complete, 3),
        (14, Reason::Complete, 6),
        (99, Reason::Complete, 6),
    ] {
        let body: [u8; 14] = counted(&[(4, &[0, len])]);
        let packet = v4(17, [0, 0], &[], &body);
        let d = dissected(LinkType::IPV4, &packet, packet.len());
        assert_eq!((d.reason, d.payload_len), (reason, left), "{len}");
        assert_eq!((d.src_port, d.dst_port), (0x1011, 0x1213));
    }
    // The others take all there is.
    for (protocol, head_len) in [(132, 12), (136, 8), (33, 12)] {
        let body: [u8; 14] = counted(&[(4, &[3]), (8, &[0])]);
        let packet = v4(protocol, [0, 0], &[], &body);
        let d = dissected(LinkType::IPV4, &packet, packet.len());
        assert_eq!((d.src_port, d.dst_port), (0x1011, 0x1213), "{protocol}");
        assert_eq!(
            (d.payload_offset, d.reason),
            (20 + head_len, Reason::Complete)
        );
        assert_eq!((d.transport_offset, d.payload_len), (20, 14 - head_len));
    }
    for (len, reason, payload) in [
        (8, Reason::Complete, 48),
        (7, Reason::Complete, 47),
        (4, Reason::Complete, 44),
        (3, Reason::Short, 40),
        (0, Reason::Short, 40),
    ] {
        let body: [u8; 8] = counted(&[(0, &[143])]);
        let packet = v6(58, &body[..len]);
        let d = dissected(LinkType::IPV6, &packet, packet.len());
        assert_eq!((d.reason, d.payload_offset), (reason, payload), "{len}");
        assert_eq!(d.icmp_type_read, len > 0);
        assert_eq!(d.icmp_code, if len > 1 { 0x11 } else { 0 });
    }
    let packet = v4(2, [0, 0], &[], &counted::<9>(&[]));
    let d = dissected(LinkType::IPV4, &packet, packet.len());
    assert_eq!((d.icmp_type, d.payload_len), (0x10, 1));
}

#[test]
fn layers_are_looked_up_by_kind() {
    let packet = v4(17, [0, 0], &[], &counted::<14>(&[(4, &[0, 14])]));
    let frame = [&[0; 12][..], &[0x81, 0, 0xb1, 0x23, 8, 0], &packet].concat();
    let d = dissected(LinkType::ETHERNET, &frame, frame.len());
    let kinds = [
        (LayerKind::Ethernet, 0),
        (LayerKind::Vlan, 14),
        (LayerKind::Ipv4, 18),
        (LayerKind::Udp, 38),
    ];
    assert!(d.layers().eq(kinds));
    for (kind, offset) in kinds {
        assert!(d.has(kind));
        assert_eq!(d.offset_of(kind), Some(offset));
        assert_eq!(kind.name(), kind.protocol().unwrap().name);
    }
    assert!(!d.has(LayerKind::Tcp) && d.offset_of(LayerKind::Tcp).is_none());
    assert_eq!(d.payload(&frame), &frame[46..]);
    assert_eq!(d.payload(&frame[..48]), &frame[46..48]);
    assert_eq!(LayerKind::None.name(), "none");
    assert_eq!(
        (Dissection::EMPTY.src_addr(), Dissection::EMPTY.dst_addr()),
        (None, None)
    );
}
