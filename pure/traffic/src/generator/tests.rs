//! Checks every generated packet by dissecting it and recomputing its checksums.

use super::*;
use crate::range::Order;
use crate::size::Sizes;
use crate::template::{Icmp, Tcp, Udp};
use crate::vlan::Tag;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{Dissection, LinkType, Reason, checksum::Sum, dissect};

fn template(addresses: (&str, &str), l4: L4) -> Template {
    Template {
        src_mac: Range::macs("02:00:00:00:00:01").unwrap(),
        dst_mac: Range::macs("02:00:00:00:00:02").unwrap(),
        tags: Vec::new(),
        addresses: Addresses::parse(addresses.0, addresses.1).unwrap(),
        ttl: 64,
        traffic_class: 0xb8,
        l4,
        payload: Vec::new(),
        sizes: Sizes::Shortest,
        order: Order::Sequential,
        seed: 1,
    }
}

fn ports(text: &str) -> Range {
    Range::numbers(text, 65_535).unwrap()
}

fn udp(src: &str, dst: &str) -> L4 {
    L4::Udp(Udp {
        src_port: ports(src),
        dst_port: ports(dst),
    })
}

fn transports() -> Vec<L4> {
    let tcp = Tcp {
        src_port: ports("1024-65535"),
        dst_port: ports("80,443"),
        flags: 2,
        window: 65_535,
    };
    vec![
        udp("1024-65535", "53"),
        udp("7", "9"),
        L4::Tcp(tcp),
        L4::Icmp(Icmp { id: 0xbeef }),
    ]
}

/// Recomputes every checksum and returns the dissection.
fn check(packet: &[u8]) -> Dissection {
    let mut d = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut d);
    // Ports of the range also name tunnels; that an empty one of these is too short is no matter.
    assert!(
        d.reason == Reason::Complete || d.transport_offset != 0,
        "{packet:02x?}"
    );
    let (ip, at) = (d.ip_offset as usize, d.transport_offset as usize);
    let end = ip + d.ip_total_len as usize;
    let sum = match (d.src_addr(), d.dst_addr()) {
        (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) => {
            assert_eq!(checksum::checksum(&packet[ip..ip + 20]), 0, "IPv4 header");
            match d.ip_protocol {
                1 => Sum::new(),
                p => Sum::new().add_pseudo_ipv4(src, dst, p, (end - at) as u16),
            }
        }
        (Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))) => {
            Sum::new().add_pseudo_ipv6(src, dst, d.ip_protocol, (end - at) as u32)
        }
        _ => panic!("no addresses"),
    };
    assert_eq!(
        sum.add_bytes(&packet[at..end]).finish(),
        0,
        "{d:?}\n{packet:02x?}"
    );
    if d.ip_protocol == 17 {
        assert_ne!(
            packet[at + 6..at + 8],
            [0, 0],
            "a UDP checksum of 0 means none"
        );
    }
    d
}

fn run(template: &Template, count: usize) -> Vec<Vec<u8>> {
    let mut generator = template.build().unwrap();
    (0..count)
        .map(|_| {
            let mut buffer = vec![0xa5; generator.packet_len_max()];
            let expected = generator.packet_len();
            let len = generator.write(&mut buffer);
            assert_eq!(len, expected);
            buffer.truncate(len);
            buffer
        })
        .collect()
}

#[test]
fn checksums_are_right_in_every_combination() {
    let addresses = [
        ("10.0.0.1", "10.0.0.2"),
        ("10.0.0.0/8", "192.168.0.1-192.168.3.200"),
        ("2001:db8::1", "2001:db8::2"),
        ("2001:db8::/32", "fd00::/8,2001:db8:ffff:ffff::/64"),
    ];
    let sizes = ["Shortest", "imix", "82-1514", "9000", "101,103"];
    for pair in addresses {
        for l4 in transports() {
            for size in sizes {
                for order in [Order::Sequential, Order::Random] {
                    let mut template = template(pair, l4.clone());
                    template.order = order;
                    template.payload = b"abcdefg".to_vec();
                    if size == "imix" && pair.0.contains(':') {
                        template.sizes = Sizes::parse("82*7,590*4,1514").unwrap();
                    } else if size != "Shortest" {
                        template.sizes = Sizes::parse(size).unwrap();
                    }
                    for packet in run(&template, 300) {
                        let d = check(&packet);
                        assert_eq!((d.ttl, d.traffic_class), (64, 0xb8));
                    }
                }
            }
        }
    }
}

#[test]
fn ranges_reach_their_fields() {
    let mut template = template(("10.0.0.254-10.0.1.1", "10.9.9.9"), udp("5-6", "7"));
    template.src_mac = Range::macs("02:00:00:00:00:01-02:00:00:00:00:02").unwrap();
    let packets = run(&template, 6);
    let seen: Vec<_> = packets
        .iter()
        .map(|p| {
            let d = check(p);
            (
                p[11],
                d.src_addr().unwrap().to_string(),
                d.src_port,
                d.dst_port,
            )
        })
        .collect();
    let row = |mac, src: &str, port| (mac, src.to_owned(), port, 7);
    let expected = [
        row(1, "10.0.0.254", 5),
        row(2, "10.0.0.255", 6),
        row(1, "10.0.1.0", 5),
        row(2, "10.0.1.1", 6),
        row(1, "10.0.0.254", 5),
        row(2, "10.0.0.255", 6),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        check(&packets[0]).dst_addr(),
        Some(Ipv4Addr::new(10, 9, 9, 9).into())
    );
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    // All source ports and identifications: one of 65536 hits 0, and must not be left as that.
    let template = template(("10.0.0.1", "10.0.0.2"), udp("0-65535", "9"));
    let packets = run(&template, 65_536);
    let ones = packets.iter().filter(|p| p[40..42] == [0xff, 0xff]).count();
    assert_eq!(ones, 1);
    for packet in &packets {
        check(packet);
    }
}

#[test]
fn the_shortest_packet_is_padded_after_the_datagram() {
    let mut template = template(("10.0.0.1", "10.0.0.2"), udp("1", "2"));
    template.payload = b"xyz".to_vec();
    let packet = &run(&template, 1)[0];
    assert_eq!(packet.len(), 60);
    let d = check(packet);
    assert_eq!((d.ip_total_len, d.payload_len), (31, 3));
    assert_eq!(&packet[42..], b"xyz\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    // Given sizes are filled instead.
    template.sizes = Sizes::parse("60").unwrap();
    let packet = &run(&template, 1)[0];
    assert_eq!(
        (check(packet).payload_len, &packet[42..]),
        (18, &b"xyzxyzxyzxyzxyzxyz"[..])
    );
    // A payload longer than the minimum is there whole.
    template.sizes = Sizes::Shortest;
    template.payload = vec![7; 100];
    assert_eq!(run(&template, 1)[0].len(), 142);
}

#[test]
fn tags_are_written_outermost_first() {
    let addr = Ipv6Addr::LOCALHOST.to_string();
    let mut template = template((&addr, &addr), transports()[2].clone());
    template.tags = Tag::parse_stack("200,100@3").unwrap();
    let d = check(&run(&template, 1)[0]);
    assert_eq!(
        (d.vlan_count, d.vlan_outer, d.vlan_inner, d.ip_offset),
        (2, 200, 100, 22)
    );
    assert_eq!(d.tcp_flags, 2);
}

#[test]
fn the_seed_repeats_a_stream() {
    let mut template = template(("10.0.0.0/8", "10.0.0.0/8"), transports()[2].clone());
    template.order = Order::Random;
    let first = run(&template, 50);
    assert_eq!(first, run(&template, 50));
    template.seed = 2;
    assert_ne!(first, run(&template, 50));
}

#[test]
fn impossible_sizes_are_refused() {
    let mut template = template(("10.0.0.1", "10.0.0.2"), udp("1", "2"));
    for bad in ["41", "65550", "60-70000", "10*1,60"] {
        let Ok(sizes) = Sizes::parse(bad) else {
            continue;
        };
        template.sizes = sizes;
        assert!(template.build().is_err(), "{bad}");
    }
    template.sizes = Sizes::parse("65549").unwrap();
    check(&run(&template, 1)[0]);
}
