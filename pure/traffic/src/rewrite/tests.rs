//! Rewritten packets compared with full recomputation; what must not change is checked as well.

use super::*;
use crate::range::{Order, Range};
use crate::rng::Rng;
use crate::size::Sizes;
use crate::template::{Addresses, Icmp, L4, Tcp, Template, Udp};
use std::net::IpAddr;
use wire::checksum::Sum;

fn packets(src: &str, dst: &str, l4: L4, count: usize) -> Vec<Vec<u8>> {
    let template = Template {
        src_mac: Range::macs("02:00:00:00:00:01").unwrap(),
        dst_mac: Range::macs("02:00:00:00:00:02").unwrap(),
        tags: Vec::new(),
        addresses: Addresses::parse(src, dst).unwrap(),
        ttl: 64,
        traffic_class: 0,
        l4,
        payload: b"quick brown fox".to_vec(),
        sizes: Sizes::parse("90-190").unwrap(),
        order: Order::Random,
        seed: 5,
    };
    let mut generator = template.build().unwrap();
    (0..count)
        .map(|_| {
            let mut buffer = vec![0; generator.packet_len()];
            generator.write(&mut buffer);
            buffer
        })
        .collect()
}

fn numbers(text: &str) -> Range {
    Range::numbers(text, 65_535).unwrap()
}

fn transports() -> [L4; 3] {
    let (src_port, dst_port) = (numbers("1-65535"), numbers("53,80"));
    let tcp = Tcp {
        src_port: src_port.clone(),
        dst_port: dst_port.clone(),
        flags: 2,
        window: 1,
    };
    [
        L4::Udp(Udp { src_port, dst_port }),
        L4::Tcp(tcp),
        L4::Icmp(Icmp { id: 1 }),
    ]
}

fn look(packet: &[u8]) -> Dissection {
    let mut d = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut d);
    d
}

/// Sum over everything that the transport checksum of one level covers; 0 if it is right.
fn transport_residue(packet: &[u8], d: &Dissection) -> u16 {
    let (at, ip) = (usize::from(d.transport_offset), usize::from(d.ip_offset));
    let end = ip + d.ip_total_len as usize;
    let len = end - at;
    let sum = match (d.src_addr().unwrap(), d.dst_addr().unwrap()) {
        _ if d.ip_protocol == 1 => Sum::new(),
        (IpAddr::V4(s), IpAddr::V4(t)) => {
            Sum::new().add_pseudo_ipv4(s, t, d.ip_protocol, len as u16)
        }
        (IpAddr::V6(s), IpAddr::V6(t)) => {
            Sum::new().add_pseudo_ipv6(s, t, d.ip_protocol, len as u32)
        }
        _ => unreachable!(),
    };
    sum.add_bytes(&packet[at..end]).finish()
}

fn assert_sound(packet: &[u8]) -> Dissection {
    let d = look(packet);
    let ip = usize::from(d.ip_offset);
    if d.ip_version == 4 {
        assert_eq!(checksum::checksum(&packet[ip..ip + 20]), 0, "IPv4 header");
    }
    assert_eq!(transport_residue(packet, &d), 0, "{d:?}");
    d
}

fn rewriter() -> Rewriter {
    Rewriter {
        src_mac: Some("02:00:00:00:00:aa".parse().unwrap()),
        dst_mac: Some("02:00:00:00:00:bb".parse().unwrap()),
        push_tags: Tag::parse_stack("300,7").unwrap(),
        addr_maps: ["10.0.0.0/8=192.168.0.0/16", "2001:db8::/32=fd00:1::/32"]
            .map(|text| AddrMap::parse(text).unwrap())
            .to_vec(),
        port_maps: ["53=5353", "1-1000=2000"]
            .map(|text| PortMap::parse(text).unwrap())
            .to_vec(),
        ttl: Some(3),
        ..Rewriter::default()
    }
}

fn apply(rewriter: &Rewriter, packet: &[u8]) -> Vec<u8> {
    let mut out = vec![0x55; 3];
    rewriter
        .apply(packet, packet.len() as u32, LinkType::ETHERNET, &mut out)
        .unwrap();
    assert_eq!(out[..3], [0x55; 3]);
    out.split_off(3)
}

#[test]
fn everything_changes_and_checksums_follow() {
    for (src, dst) in [
        ("10.0.0.0/8", "8.8.8.8"),
        ("2001:db8::/48", "2001:4860::8888"),
    ] {
        for l4 in transports() {
            for packet in packets(src, dst, l4.clone(), 500) {
                let before = assert_sound(&packet);
                let new = apply(&rewriter(), &packet);
                let d = assert_sound(&new);
                assert_eq!(new.len(), packet.len() + 8);
                assert_eq!((d.vlan_outer, d.vlan_inner, d.ttl), (300, 7, 3));
                assert_eq!(&new[..12], b"\x02\0\0\0\0\xbb\x02\0\0\0\0\xaa");
                assert_eq!(d.dst_addr(), before.dst_addr());
                match (before.src_addr(), d.src_addr()) {
                    (Some(IpAddr::V4(old)), Some(IpAddr::V4(new))) => {
                        assert_eq!(new.octets()[..2], [192, 168]);
                        assert_eq!(new.octets()[2..], old.octets()[2..]);
                    }
                    (Some(IpAddr::V6(old)), Some(IpAddr::V6(new))) => {
                        assert_eq!(new.segments()[..2], [0xfd00, 1]);
                        assert_eq!(new.segments()[2..], old.segments()[2..]);
                    }
                    pair => panic!("{pair:?}"),
                }
                if d.has_ports() {
                    let moved = |port| match port {
                        53 => 5353,
                        1..=1000 => port + 1999,
                        _ => port,
                    };
                    assert_eq!(d.src_port, moved(before.src_port));
                    assert_eq!(d.dst_port, moved(before.dst_port));
                }
                assert_eq!(d.payload(&new), before.payload(&packet));
            }
        }
    }
}

#[test]
fn the_default_changes_nothing() {
    let packet = &packets("10.0.0.1", "10.0.0.2", transports()[0].clone(), 1)[0];
    assert!(Rewriter::default().is_identity(LinkType::ETHERNET));
    assert!(!Rewriter::default().is_identity(LinkType::RAW));
    assert_eq!(&apply(&Rewriter::default(), packet), packet);
}

#[test]
fn a_wrong_checksum_stays_wrong_unless_fixed() {
    for l4 in transports() {
        let mut packet = packets("10.0.0.1", "10.0.0.2", l4, 1).remove(0);
        let d = look(&packet);
        let at = transport_checksum_at(&d).unwrap();
        packet[at] ^= 0x40;
        let residue = transport_residue(&packet, &d);
        let new = apply(&rewriter(), &packet);
        assert_eq!(transport_residue(&new, &look(&new)), residue);
        let fixing = Rewriter {
            fix_checksums: true,
            ..rewriter()
        };
        assert_sound(&apply(&fixing, &packet));
    }
}

#[test]
fn udp_without_checksum_stays_without() {
    let mut packet = packets("10.0.0.1", "10.0.0.2", transports()[0].clone(), 1).remove(0);
    packet[40..42].fill(0);
    for fix_checksums in [false, true] {
        let rewriter = Rewriter {
            fix_checksums,
            push_tags: Vec::new(),
            ..rewriter()
        };
        assert_eq!(apply(&rewriter, &packet)[40..42], [0, 0]);
    }
}

#[test]
fn fragments_and_cuts() {
    let packet = packets("10.0.0.1", "10.0.0.2", transports()[0].clone(), 1).remove(0);
    // A later fragment has no transport header: what is in its place is data.
    let mut later = packet.clone();
    later[20..22].copy_from_slice(&[0x20, 0x10]);
    let header_sum = checksum::checksum(&{
        let mut header = later[14..34].to_vec();
        header[10..12].fill(0);
        header
    });
    later[24..26].copy_from_slice(&header_sum.to_be_bytes());
    let plain = Rewriter {
        push_tags: Vec::new(),
        fix_checksums: true,
        ..rewriter()
    };
    let new = apply(&plain, &later);
    assert_eq!(checksum::checksum(&new[14..34]), 0);
    assert_eq!(new[34..], later[34..]);
    // Cut anywhere by the capture: never a panic, and the bytes present change as in the whole
    // packet.
    let whole = apply(&plain, &packet);
    for len in 14..packet.len() {
        let mut out = Vec::new();
        plain
            .apply(
                &packet[..len],
                packet.len() as u32,
                LinkType::ETHERNET,
                &mut out,
            )
            .unwrap();
        assert_eq!(out.len(), len);
        if len >= 42 {
            assert_eq!(out, whole[..len], "cut to {len}");
        }
    }
    let mut out = Vec::new();
    for len in 0..14 {
        let result = plain.apply(&packet[..len], 60, LinkType::ETHERNET, &mut out);
        assert_eq!((result, out.len()), (Err(Refused::TooShort), 0));
    }
}

#[test]
fn arp_is_mapped() {
    let mut packet = vec![0xff; 12];
    packet.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    packet.extend([2, 0, 0, 0, 0, 1, 10, 0, 1, 2, 0, 0, 0, 0, 0, 0, 11, 0, 0, 1]);
    let plain = Rewriter {
        addr_maps: rewriter().addr_maps,
        ..Rewriter::default()
    };
    let new = apply(&plain, &packet);
    assert_eq!(new[28..32], [192, 168, 1, 2]);
    assert_eq!(new[38..42], [11, 0, 0, 1]);
    assert_eq!(new[..28], packet[..28]);
}

#[test]
fn packets_quoted_in_icmp_errors_are_updated() {
    for (src, dst, icmp) in [
        ("10.1.2.3", "8.8.8.8", 1u8),
        ("2001:db8::1", "2001:4860::8888", 58),
    ] {
        let quoted = packets(src, dst, transports()[0].clone(), 1).remove(0);
        let quoted = &quoted[14..];
        // An error from the destination back to the source, quoting the whole packet.
        let mut packet = packets(dst, src, L4::Icmp(Icmp { id: 0 }), 1).remove(0);
        let at = if icmp == 1 { 34 } else { 54 };
        packet.truncate(at + 8);
        packet.extend(quoted);
        packet[at] = if icmp == 1 { 3 } else { 1 };
        packet[at + 1..at + 8].fill(0);
        let len = (packet.len() - at) as u16;
        match icmp {
            1 => packet[16..18].copy_from_slice(&(len + 20).to_be_bytes()),
            _ => packet[18..20].copy_from_slice(&len.to_be_bytes()),
        }
        let whole = Rewriter {
            fix_checksums: true,
            ..Rewriter::default()
        };
        let packet = apply(&whole, &packet);
        assert_sound(&packet);
        let new = apply(&rewriter(), &packet);
        let d = assert_sound(&new);
        let mut inner = Dissection::EMPTY;
        assert!(dissect_inner(&new, &d, &mut inner));
        assert_eq!(
            inner.src_addr(),
            d.dst_addr(),
            "the quoted sender is whom the error goes to"
        );
        assert_ne!(inner.src_addr(), Some(src.parse().unwrap()));
        assert_eq!(inner.ttl, 64, "the quote arrived with its own TTL");
        assert_eq!(transport_residue(&new, &inner), 0);
    }
}

#[test]
fn tags_are_stripped_and_replaced() {
    let packet = packets("10.0.0.1", "10.0.0.2", transports()[1].clone(), 1).remove(0);
    let tagging = Rewriter {
        push_tags: Tag::parse_stack("200,100").unwrap(),
        ..Rewriter::default()
    };
    let tagged = apply(&tagging, &packet);
    assert_eq!(look(&tagged).vlan_count, 2);
    let stripping = Rewriter {
        strip_tags: true,
        ..Rewriter::default()
    };
    assert_eq!(apply(&stripping, &tagged), packet);
    let both = Rewriter {
        strip_tags: true,
        push_tags: Tag::parse_stack("9").unwrap(),
        ..Rewriter::default()
    };
    let new = look(&apply(&both, &tagged));
    assert_eq!((new.vlan_count, new.vlan_outer), (1, 9));
}

#[test]
fn other_link_types_get_an_ethernet_header() {
    let packet = packets("10.0.0.1", "10.0.0.2", transports()[1].clone(), 1).remove(0);
    let ip = &packet[14..];
    let macs = Rewriter {
        src_mac: Some("02:00:00:00:00:01".parse().unwrap()),
        dst_mac: Some("02:00:00:00:00:02".parse().unwrap()),
        ..Rewriter::default()
    };
    for (link, bytes) in [(LinkType::RAW, ip.to_vec()), (LinkType::IPV4, ip.to_vec())] {
        macs.check(link).unwrap();
        let mut out = Vec::new();
        macs.apply(&bytes, bytes.len() as u32, link, &mut out)
            .unwrap();
        assert_eq!(out, packet, "{link}");
    }
    let mut out = Vec::new();
    assert_eq!(
        macs.apply(&[0; 40], 40, LinkType::RAW, &mut out),
        Err(Refused::NotIp)
    );
    assert!(out.is_empty());
    let error = Rewriter::default().check(LinkType::RAW).unwrap_err();
    assert!(error.hint.unwrap().contains("--src-mac"));
    assert!(macs.check(LinkType(189)).is_err(), "USB");
    // Short ones are padded to Ethernet's minimum.
    let mut out = Vec::new();
    macs.apply(&ip[..28], 28, LinkType::RAW, &mut out).unwrap();
    assert_eq!(out.len(), 60);
}

#[test]
fn noise_never_panics() {
    let mut rng = Rng::new(99);
    let rewriter = Rewriter {
        strip_tags: true,
        fix_checksums: true,
        ..rewriter()
    };
    let seeds = packets("2001:db8::/48", "::1", transports()[0].clone(), 1)
        .into_iter()
        .chain(packets("10.0.0.1", "10.0.0.2", transports()[2].clone(), 1));
    for seed in seeds {
        for _ in 0..20_000 {
            let mut packet = seed.clone();
            for _ in 0..3 {
                let at = rng.up_to(59) as usize;
                packet[at] = rng.next_u64() as u8;
            }
            packet.truncate(14 + rng.up_to(80) as usize);
            let mut out = Vec::new();
            let _ = rewriter.apply(&packet, 100, LinkType::ETHERNET, &mut out);
            let _ = rewriter.apply(&packet[14..], 80, LinkType::RAW, &mut out);
        }
    }
}
