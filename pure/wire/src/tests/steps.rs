//! The result of the step over each header: the next layer, the inner packet, or the reason to
//! stop, and the remaining payload.

use crate::*;
use core::net::Ipv4Addr;
use std::vec::Vec;

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;

fn dissected(link: LinkType, bytes: &[u8]) -> Dissection {
    let mut d = Dissection::EMPTY;
    dissect(link, bytes, bytes.len() as u32, &mut d);
    d
}

/// Builds a frame with this EtherType.
fn typed(ether_type: u16, body: &[u8]) -> Vec<u8> {
    let mut head = [0; ETHERNET_LEN];
    let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
    ethernet::emit(&mut head, macs[0], macs[1], ether_type);
    [&head, body].concat()
}

/// Builds an IPv4 packet of this protocol, without a link header.
fn over_ip(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut head = [0; IPV4_LEN];
    let header = ipv4::Header {
        src: Ipv4Addr::new(192, 0, 2, 1),
        dst: Ipv4Addr::new(198, 51, 100, 7),
        protocol,
        ttl: 3,
        traffic_class: 0xb8,
        id: 0xbeef,
        payload_len: body.len(),
    };
    header.emit(&mut head);
    [&head, body].concat()
}

fn over_udp(port: u16, body: &[u8]) -> Vec<u8> {
    let mut head = [0; UDP_LEN];
    udp::emit(&mut head, 40_000, port, body.len());
    over_ip(17, &[&head, body].concat())
}

/// The end of the walk: the last layer, the reason, the inner layer, and the offset of the payload.
fn end(d: &Dissection) -> (LayerKind, Reason, LayerKind, u32) {
    let (last, _) = d.layers().last().unwrap();
    (last, d.reason, d.inner, d.payload_offset)
}

const NONE: LayerKind = LayerKind::None;
const OK: Reason = Reason::Complete;

#[test]
fn tunnels_over_udp() {
    use LayerKind::*;
    let at = (IPV4_LEN + UDP_LEN) as u32;
    let unsupported = Reason::UnsupportedTunnel;
    #[rustfmt::skip]
    let rows = [
        (4789, &[8, 0, 0, 0, 1, 2, 3, 0, 9][..], Vxlan, OK, Ethernet, 8, 0x10203),
        (4790, &[8, 0, 0, 1, 1, 2, 3, 0, 9], VxlanGpe, OK, Ipv4, 8, 0x10203),
        (4790, &[8, 0, 0, 2, 1, 2, 3, 0, 9], VxlanGpe, OK, Ipv6, 8, 0x10203),
        (4790, &[8, 0, 0, 3, 1, 2, 3, 0, 9], VxlanGpe, OK, Ethernet, 8, 0x10203),
        (4790, &[8, 0, 0, 4, 1, 2, 3, 0, 9], VxlanGpe, OK, Nsh, 8, 0x10203),
        (4790, &[8, 0, 0, 5, 1, 2, 3, 0, 9], VxlanGpe, unsupported, NONE, 8, 0x10203),
        (6081, &[0, 0, 0x65, 0x58, 1, 2, 3, 0, 9], Geneve, OK, Ethernet, 8, 0x10203),
        (6081, &[0, 0, 8, 0, 1, 2, 3, 0, 9], Geneve, OK, Ipv4, 8, 0x10203),
        (6081, &[1, 0, 0x88, 0x0b, 1, 2, 3, 0, 9, 9, 9, 9, 9], Geneve, OK, Ppp, 12, 0x10203),
        (6081, &[0, 0, 0x88, 0xb5, 1, 2, 3, 0, 9], Geneve, unsupported, NONE, 8, 0x10203),
        (6081, &[0x40, 0, 8, 0, 1, 2, 3, 0, 9], Geneve, Reason::BadVersion, NONE, 0, 0),
        (2152, &[0x30, 255, 0, 1, 1, 2, 3, 4, 0x45], Gtpu, OK, Ipv4, 8, 0x1020304),
        (2152, &[0x30, 255, 0, 1, 1, 2, 3, 4, 0x60], Gtpu, OK, Ipv6, 8, 0x1020304),
        (2152, &[0x30, 255, 0, 1, 1, 2, 3, 4, 0x50], Gtpu, unsupported, NONE, 8, 0x1020304),
        (2152, &[0x30, 254, 0, 1, 1, 2, 3, 4, 0x45], Gtpu, OK, NONE, 8, 0x1020304),
        (2152, &[0x32, 255, 0, 5, 1, 2, 3, 4, 7, 7, 7, 7, 0x45], Gtpu, OK, Ipv4, 12, 0x1020304),
        (2152, &[0x50, 255, 0, 1, 1, 2, 3, 4, 0x45], Gtpu, Reason::BadVersion, NONE, 0, 0),
        (1701, &[0, 2, 1, 2, 3, 4, 9], L2tp, OK, Ppp, 6, 0x1020304),
        (1701, &[0x80, 2, 1, 2, 3, 4, 9], L2tp, OK, NONE, 6, 0x1020304),
        (1701, &[0x48, 2, 0, 13, 1, 2, 3, 4, 5, 6, 7, 8, 9], L2tp, OK, Ppp, 12, 0x1020304),
        (1701, &[0, 2, 1, 2, 3, 4], L2tp, OK, NONE, 6, 0x1020304),
        (1701, &[0, 3, 1, 2, 3, 4, 9], L2tp, Reason::BadVersion, NONE, 0, 0),
        (3544, &[0x60, 1, 2, 3], Teredo, OK, Ipv6, 0, 0),
        (3544, &[0, 0, 1, 2, 3, 4, 5, 6, 0x60], Teredo, OK, Ipv6, 8, 0),
        (3544, &[0x45, 1, 2, 3], Teredo, unsupported, NONE, 0, 0),
        (4500, &[0xff], UdpEncap, OK, NONE, 0, 0),
        (4500, &[0, 0, 0, 0, 1, 2], UdpEncap, OK, NONE, 4, 0),
        (4500, &[0, 0, 0, 1, 0, 0, 0, 2, 9], Esp, Reason::Encrypted, NONE, 8, 1),
    ];
    for (port, body, kind, reason, inner, len, id) in rows {
        let packet = over_udp(port, body);
        let d = dissected(LinkType::IPV4, &packet);
        assert_eq!(end(&d), (kind, reason, inner, at + len), "{port} {body:x?}");
        assert_eq!(d.tunnel_id, id, "{port} {body:x?}");
        assert_eq!(
            d.payload(&packet),
            &body[len as usize..],
            "{port} {body:x?}"
        );
        assert_eq!((d.src_port, d.dst_port), (40_000, port));
        if inner != NONE {
            assert_eq!(d.inner_offset, at + len, "{port} {body:x?}");
            assert_eq!(d.inner_len as usize, body.len() - len as usize);
        }
        // The same from its start on, as if the rest were not captured.
        for cut in 0..len as usize {
            let bytes = &packet[..packet.len() - body.len() + cut];
            let mut d = Dissection::EMPTY;
            dissect(LinkType::IPV4, bytes, packet.len() as u32, &mut d);
            let is_selected = matches!(d.reason, Reason::Truncated | Reason::BadVersion);
            assert!(
                is_selected || d.inner == NONE,
                "{port} {body:x?} {cut}: {d:?}"
            );
        }
    }
}

#[test]
fn tunnels_over_ip() {
    use LayerKind::*;
    let unsupported = Reason::UnsupportedTunnel;
    #[rustfmt::skip]
    let rows = [
        (47, &[0, 0, 8, 0, 9][..], Gre, OK, Ipv4, 4, 0),
        (47, &[0x20, 0, 8, 0, 1, 2, 3, 4, 9], Gre, OK, Ipv4, 8, 0x1020304),
        (47, &[0xa0, 0, 8, 0, 7, 7, 0, 0, 1, 2, 3, 4, 9], Gre, OK, Ipv4, 12, 0x1020304),
        (47, &[0, 0, 0x88, 0xbe, 9], Gre, OK, Ethernet, 4, 0),
        (47, &[0, 0, 0x88, 0xb5, 9], Gre, unsupported, NONE, 4, 0),
        (47, &[0, 0, 8, 0], Gre, OK, NONE, 4, 0),
        (47, &[0, 2, 8, 0, 9], Gre, Reason::BadVersion, NONE, 0, 0),
        (47, &[0x20, 1, 0x88, 0x0b, 0, 1, 3, 4, 9], Gre, OK, Ppp, 8, 0x304),
        (47, &[0x20, 0x81, 0x88, 0x0b, 0, 1, 3, 4, 5, 6, 7, 8, 9], Gre, OK, Ppp, 12, 0x304),
        (47, &[0, 0x81, 0x88, 0x0b, 5, 6, 7, 8, 9], Gre, OK, NONE, 8, 0),
        (47, &[0x40, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], Gre, OK, Ipv4, 12, 0),
        (47, &[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0xfe, 5, 0, 0, 0, 0, 9], Erspan, OK,
            Ethernet, 16, 0x205),
        (47, &[0, 0, 0x22, 0xeb, 0x20, 0, 0xfe, 5, 0, 0, 0, 0, 0, 0, 0, 0, 9], Erspan, OK,
            Ethernet, 16, 0x205),
        (97, &[0x30, 0, 9], Etherip, OK, Ethernet, 2, 0),
        (97, &[0x40, 0, 9], Etherip, Reason::BadVersion, NONE, 0, 0),
        (51, &[59, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], Ah, OK, NONE, 12, 0x1020304),
        (51, &[4, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], Ah, OK, Ipv4, 12, 0x1020304),
        (50, &[1, 2, 3, 4, 5, 6, 7, 8, 9], Esp, Reason::Encrypted, NONE, 8, 0x1020304),
        (103, &[0x21, 0, 0, 0, 0, 0, 0, 0, 0x45], Pim, OK, Ipv4, 8, 0),
        (103, &[0x21, 0, 0, 0, 0, 0, 0, 0, 0x60], Pim, OK, Ipv6, 8, 0),
        (103, &[0x21, 0, 0, 0, 0, 0, 0, 0, 0x50], Pim, unsupported, NONE, 8, 0),
        (103, &[0x21, 0, 0, 0, 0, 0, 0, 0], Pim, OK, NONE, 8, 0),
        (103, &[0x23, 0, 0, 0, 9], Pim, OK, NONE, 4, 0),
        (4, &[9], Ipv4, OK, Ipv4, 0, 0),
        (41, &[9], Ipv4, OK, Ipv6, 0, 0),
        (137, &[9], Ipv4, OK, Mpls, 0, 0),
        (143, &[9], Ipv4, OK, Ethernet, 0, 0),
        (200, &[9], Ipv4, Reason::UnsupportedProtocol, NONE, 0, 0),
    ];
    for (protocol, body, kind, reason, inner, len, id) in rows {
        let packet = over_ip(protocol, body);
        let d = dissected(LinkType::IPV4, &packet);
        let at = IPV4_LEN as u32 + len;
        assert_eq!(end(&d), (kind, reason, inner, at), "{protocol} {body:x?}");
        assert_eq!(d.tunnel_id, id, "{protocol} {body:x?}");
        assert_eq!(
            d.payload(&packet),
            &body[len as usize..],
            "{protocol} {body:x?}"
        );
    }
    // The length that PPTP's key gives limits the packet; what follows is padding.
    let packet = over_ip(47, &[0x20, 1, 0x88, 0x0b, 0, 2, 3, 4, 7, 8, 9, 9]);
    let d = dissected(LinkType::IPV4, &packet);
    assert_eq!((d.payload(&packet), d.inner_len), (&[7, 8][..], 2));
}

#[test]
fn ether_types() {
    use LayerKind::*;
    let unsupported = Reason::UnsupportedType;
    let mac = [2; 12];
    let tagged = [&[0, 5][..], &mac].concat();
    #[rustfmt::skip]
    let rows = [
        (0x894f, &[0, 2, 1, 1, 1, 2, 3, 255, 9][..], Nsh, OK, Ipv4, 8, 0x10203),
        (0x894f, &[0, 2, 1, 2, 1, 2, 3, 255, 9], Nsh, OK, Ipv6, 8, 0x10203),
        (0x894f, &[0, 2, 1, 3, 1, 2, 3, 255, 9], Nsh, OK, Ethernet, 8, 0x10203),
        (0x894f, &[0, 2, 1, 4, 1, 2, 3, 255, 9], Nsh, OK, Nsh, 8, 0x10203),
        (0x894f, &[0, 3, 1, 5, 1, 2, 3, 255, 0, 0, 0, 0, 9], Nsh, OK, Mpls, 12, 0x10203),
        (0x894f, &[0, 2, 1, 6, 1, 2, 3, 255, 9], Nsh, Reason::UnsupportedTunnel, NONE, 8, 0x10203),
        (0x894f, &[0x40, 2, 1, 1, 1, 2, 3, 255], Nsh, Reason::BadVersion, NONE, 0, 0x10203),
        (0x894f, &[0, 1, 1, 1, 1, 2, 3, 255], Nsh, Reason::BadHeaderLength, NONE, 0, 0x10203),
        (0x8847, &[0, 0, 0x11, 9, 0, 0, 0, 0, 9], Mpls, OK, Ethernet, 8, 0),
        (0x8847, &[0, 0, 0x11, 9, 0x50], Mpls, Reason::UnsupportedTunnel, NONE, 4, 0),
        (0x88e7, &tagged, Pbb, OK, Ethernet, 4, 0x50202 & 0xff_ffff),
        (0x8903, &[0xab, 0xcd, 9], FabricPath, OK, Ethernet, 2, 0x2af),
        (0x893f, &[0, 0, 0, 0, 0, 0, 0x88, 0xb5, 9], Etag, unsupported, NONE, 8, 0),
        (0x8926, &[0, 0, 0, 0, 0x88, 0xb5, 9], Vntag, unsupported, NONE, 6, 0),
        (0x8864, &[0x11, 0, 0, 1, 0, 3, 0xc0, 0x21, 9, 9], Ppp, unsupported, NONE, 8, 0),
        (0x8863, &[0x11, 9, 0, 1, 0, 2, 7, 8], Pppoe, OK, NONE, 6, 0),
        (0x8864, &[0x12, 0, 0, 1, 0, 3, 0xc0, 0x21, 9], Pppoe, Reason::BadVersion, NONE, 0, 0),
        (0x88b5, &[9], Ethernet, unsupported, NONE, 0, 0),
    ];
    for (ether_type, body, kind, reason, inner, len, id) in rows {
        let packet = typed(ether_type, body);
        let d = dissected(LinkType::ETHERNET, &packet);
        let at = ETHERNET_LEN as u32 + len;
        assert_eq!(
            end(&d),
            (kind, reason, inner, at),
            "{ether_type:x} {body:x?}"
        );
        assert_eq!(d.tunnel_id, id, "{ether_type:x} {body:x?}");
    }
}

#[test]
fn labels_and_tags_are_counted() {
    let ip = over_ip(59, &[]);
    for (labels, first) in [(&[0x12345][..], 0x12345), (&[0x54321, 7, 16], 0x54321)] {
        let mut body = Vec::new();
        for (i, label) in labels.iter().enumerate() {
            let mut head = [0; 4];
            mpls::emit(&mut head, *label, 5, i + 1 == labels.len(), 64);
            body.extend(head);
        }
        let packet = typed(0x8847, &[&body[..], &ip].concat());
        let d = dissected(LinkType::ETHERNET, &packet);
        assert_eq!(
            (d.mpls_label, usize::from(d.mpls_count)),
            (first, labels.len())
        );
        assert_eq!((d.ip_version, d.ip_protocol), (4, 59));
        assert_eq!(usize::from(d.ip_offset), ETHERNET_LEN + body.len());
    }
    for ids in [&[0x123_u16][..], &[0x123, 0x456], &[0x123, 0x456, 0x789]] {
        let mut packet = typed(0x8100, &[]);
        for (i, id) in ids.iter().enumerate() {
            let next = if i + 1 == ids.len() { 0x0800 } else { 0x8100 };
            let mut head = [0; 4];
            vlan::emit(&mut head, 0xb000 | id, next);
            packet.extend(head);
        }
        packet.extend(&ip);
        let d = dissected(LinkType::ETHERNET, &packet);
        let inner = ids.get(1).copied().unwrap_or(0);
        assert_eq!((d.vlan_outer, d.vlan_inner), (ids[0], inner));
        assert_eq!((usize::from(d.vlan_count), d.ip_protocol), (ids.len(), 59));
    }
}

/// Type, reason, and the rest of `body` after the headers of a link type.
#[test]
fn links() {
    use LayerKind::*;
    let unsupported = Reason::UnsupportedType;
    let short = Reason::Short;
    #[rustfmt::skip]
    let rows = [
        (LinkType::NULL, &[0, 0, 0, 2][..], Ipv4, short, 0),
        (LinkType::NULL, &[30, 0, 0, 0], Ipv6, short, 0),
        (LinkType::NULL, &[10, 0, 0, 0], Ipv6, short, 0),
        (LinkType::NULL, &[0, 0, 0, 23], Ipv6, short, 0),
        (LinkType::NULL, &[0, 0, 0, 24], Ipv6, short, 0),
        (LinkType::NULL, &[0, 0, 0, 28], Ipv6, short, 0),
        (LinkType::NULL, &[0, 0, 0, 29, 9], Null, unsupported, 1),
        (LinkType::NULL, &[0, 0, 0x81, 0], Vlan, short, 0),
        (LinkType::C_HDLC, &[15, 0, 8, 0], Ipv4, short, 0),
        (LinkType::C_HDLC, &[15, 0, 0x88, 0x48], Mpls, short, 0),
        (LinkType::C_HDLC, &[15, 0, 0x80, 0x35, 9], Chdlc, unsupported, 1),
        (LinkType::PPP, &[0xff, 3, 0, 0x21], Ipv4, short, 0),
        (LinkType::PPP, &[0x57], Ipv6, short, 0),
        (LinkType::PPP, &[0xc0, 0x21, 9], Ppp, unsupported, 1),
        (LinkType::FRELAY, &[0xa8, 0x61, 3, 0xcc], Ipv4, short, 0),
        (LinkType::FRELAY, &[0xa8, 0x61, 3, 0, 0x8e], Ipv6, short, 0),
        (LinkType::FRELAY, &[0xa8, 0x61, 3, 0xcf], Ppp, short, 0),
        (LinkType::FRELAY, &[0xa8, 0x61, 3, 8, 9], FrameRelay, unsupported, 1),
        (LinkType::FRELAY, &[0xa8, 0x61, 8, 0], Ipv4, short, 0),
        (LinkType::FRELAY, &[0, 1, 8, 0, 9], FrameRelay, unsupported, 3),
        (LinkType::FRELAY, &[0xa8, 0x61, 3, 0x80, 0, 0, 0, 8, 0], Ipv4, short, 0),
        (LinkType::FRELAY, &[0xa8, 0x61, 3, 0, 0x80, 0, 0x80, 0xc2, 0, 9, 1], FrameRelay,
            unsupported, 1),
        (LinkType::FRELAY, &[0xa8, 0x60, 0xaa, 0xcc, 1], FrameRelay, Reason::BadHeaderLength, 5),
        (LinkType::FRELAY, &[0xa8, 0x60], FrameRelay, short, 2),
        (LinkType::IPOIB, &[0; 43], Ipoib, short, 43),
        (LinkType::NFLOG, &[2, 0, 0, 0, 4, 0, 9, 0], Ipv4, short, 0),
        (LinkType::NFLOG, &[10, 0, 0, 0, 4, 0, 9, 0], Ipv6, short, 0),
        (LinkType::NFLOG, &[7, 0, 0, 0, 4, 0, 9, 0], Nflog, unsupported, 0),
        (LinkType::NFLOG, &[7, 0, 0, 0, 8, 0, 1, 0, 8, 0, 9, 9, 4, 0, 9, 0], Ipv4, short, 0),
        (LinkType::NFLOG, &[2, 1, 0, 0, 4, 0, 9, 0], Nflog, Reason::BadVersion, 8),
    ];
    for (link, body, kind, reason, left) in rows {
        let d = dissected(link, body);
        let (last, ..) = end(&d);
        assert_eq!((last, d.reason), (kind, reason), "{link} {body:x?}");
        assert_eq!(d.payload_len, left, "{link} {body:x?}");
        let at = body.len() as u32 - left;
        assert_eq!(d.payload_offset, at, "{link} {body:x?}");
    }
}

/// Ethernet in Frame Relay's SNAP, with and without its check sequence.
#[test]
fn ethernet_in_frame_relay() {
    use LayerKind::*;
    for kind in [1, 7] {
        let body = [0xa8, 0x61, 3, 0, 0x80, 0, 0x80, 0xc2, 0, kind, 9];
        let d = dissected(LinkType::FRELAY, &body);
        assert_eq!(end(&d), (FrameRelay, OK, Ethernet, 10));
    }
}

#[test]
fn hardware_of_cooked_captures() {
    use LayerKind::*;
    let unsupported = Reason::UnsupportedType;
    let short = Reason::Short;
    for (hardware, protocol, kind, reason) in [
        (1, 4, Llc, short),
        (1, 0x0800, Ipv4, short),
        (1, 0x05ff, Sll, unsupported),
        (824, 0x0800, Sll, unsupported),
        (801, 0x0800, Sll, unsupported),
        (803, 0x0800, Sll, unsupported),
        (804, 0x0800, Ipv4, short),
    ] {
        let [hardware, protocol] = [hardware, protocol].map(u16::to_be_bytes);
        let one = [&[0, 0][..], &hardware, &[0; 10], &protocol].concat();
        let two = [&protocol[..], &[0; 6], &hardware, &[0; 10]].concat();
        let d = dissected(LinkType::LINUX_SLL, &one);
        assert_eq!(
            (end(&d).0, d.reason),
            (kind, reason),
            "{hardware:?} {protocol:?}"
        );
        let d = dissected(LinkType::LINUX_SLL2, &two);
        let kind = if kind == Sll { Sll2 } else { kind };
        assert_eq!(
            (end(&d).0, d.reason),
            (kind, reason),
            "{hardware:?} {protocol:?}"
        );
    }
}

#[test]
fn logical_link_control() {
    use LayerKind::*;
    let unsupported = Reason::UnsupportedType;
    #[rustfmt::skip]
    let rows = [
        (&[6, 6, 3][..], Ipv4, Reason::Short, NONE, 3),
        (&[6, 6, 2, 0, 9], Llc, unsupported, NONE, 4),
        (&[0x42, 0x42, 3, 9], Llc, unsupported, NONE, 3),
        (&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6], Arp, Reason::Short, NONE, 8),
        (&[0xaa, 0xab, 3, 0, 0, 0xf8, 8, 6], Arp, Reason::Short, NONE, 8),
        (&[0xaa, 0xaa, 3, 0, 0, 1, 8, 6, 9], Llc, unsupported, NONE, 8),
        (&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 1, 9], Llc, OK, Ethernet, 8),
        (&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7, 9], Llc, OK, Ethernet, 8),
        (&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 2, 9], Llc, unsupported, NONE, 8),
    ];
    for (body, kind, reason, inner, len) in rows {
        let packet = [&typed(body.len() as u16, body)[..], &[0xee; 5]].concat();
        let d = dissected(LinkType::ETHERNET, &packet);
        let at = ETHERNET_LEN as u32 + len;
        assert_eq!(end(&d), (kind, reason, inner, at), "{body:x?}");
        assert_eq!(d.payload(&packet), &body[len as usize..], "padding is none");
    }
    // 1500 is a length; 1501 to 1535 are neither.
    let d = dissected(LinkType::ETHERNET, &typed(1500, &[0x42, 0x42, 3]));
    assert_eq!(end(&d).0, Llc);
    let d = dissected(LinkType::ETHERNET, &typed(1501, &[0x42, 0x42, 3]));
    assert_eq!(end(&d), (Ethernet, unsupported, NONE, 14));
}

#[test]
fn unencrypted_macsec_ends_before_its_check_value() {
    let ip = over_ip(59, &[]);
    let secured = |flags: u8, short: u8, padding: usize| {
        let mut body = std::vec![flags, short, 0, 0, 0, 1];
        if flags & 0x20 != 0 {
            body.extend([5; 8]);
        }
        body.extend([8, 0]);
        body.extend(&ip);
        body.extend(&[0xcc; 16][..]);
        body.resize(body.len() + padding, 0);
        typed(0x88e5, &body)
    };
    for (flags, short, padding) in [(0, 0, 0), (0x20, 0, 0), (0, 22, 7), (0x20, 0xc0 | 22, 9)] {
        let d = dissected(LinkType::ETHERNET, &secured(flags, short, padding));
        assert_eq!(d.ip_protocol, 59, "{flags:x} {short}");
        assert_eq!((d.payload_len, d.inner), (0, NONE));
    }
    for (flags, reason, len) in [
        (0x80, Reason::BadVersion, 22 + 16 + 6),
        (0x04, Reason::Encrypted, 22 + 16),
        (0x08, Reason::Encrypted, 22 + 16),
    ] {
        let d = dissected(LinkType::ETHERNET, &secured(flags, 22, 0));
        assert_eq!((d.reason, d.payload_len), (reason, len), "{flags:x}");
    }
}
