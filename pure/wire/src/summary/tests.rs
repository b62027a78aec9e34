//! Lines compared with the output of tcpdump 4.99.3 for the same packets, where it prints the same
//! facts.

use super::*;
use crate::{LinkType, dissect};
use std::string::{String, ToString};
use std::vec::Vec;

fn line(link: LinkType, bytes: &[u8]) -> String {
    let mut dissection = Dissection::EMPTY;
    dissect(link, bytes, bytes.len() as u32, &mut dissection);
    Summary {
        dissection: &dissection,
        bytes,
    }
    .to_string()
}

fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; 20];
    crate::ipv4::Header {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        protocol,
        ttl: 64,
        traffic_class: 0,
        id: 7,
        payload_len: payload.len(),
    }
    .emit(&mut head);
    [&head[..], payload].concat()
}

fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::from([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    packet.extend(ether_type.to_be_bytes());
    packet.extend(payload);
    packet
}

#[test]
fn tcp_line() {
    let packet = ethernet(0x0800, &ipv4(6, crate::tcp::PROTOCOL.sample));
    assert_eq!(
        line(LinkType::ETHERNET, &packet),
        "IP 10.0.0.1.443 > 10.0.0.2.5555: Flags [S.], seq 1:5, ack 2, win 65535, \
         options [mss 1460], length 4"
    );
}

#[test]
fn selective_acknowledgments_are_counted_and_listed() {
    for blocks in 1..=3u8 {
        let mut header = Vec::from([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 2]);
        // Two no-operations before the option, as Linux sends it.
        let words = 5 + 1 + 2 * blocks;
        header.extend([words << 4, 0x10, 0, 9, 0, 0, 0, 0, 1, 1, 5, 2 + 8 * blocks]);
        for block in 0..blocks {
            header.extend([0, 0, 0, 10 * (block + 1), 0, 0, 0, 10 * (block + 1) + 5]);
        }
        let text = line(LinkType::IPV4, &ipv4(6, &header));
        let list = ["{10:15}", "{20:25}", "{30:35}"][..usize::from(blocks)].concat();
        let expected = std::format!("options [nop,nop,sack {blocks} {list}], length 0");
        assert!(text.ends_with(&expected), "{text}");
    }
}

#[test]
fn udp_in_vlan_with_padding() {
    let inner = [
        &[0x20, 7, 8, 0][..],
        &ipv4(17, crate::udp::PROTOCOL.sample),
        &[0; 20],
    ]
    .concat();
    assert_eq!(
        line(LinkType::ETHERNET, &ethernet(0x8100, &inner)),
        "vlan 7, p 1, IP 10.0.0.1.5353 > 10.0.0.2.9: UDP, length 4"
    );
}

#[test]
fn arp_line() {
    let packet = ethernet(0x0806, &[crate::arp::PROTOCOL.sample, &[0; 18]].concat());
    assert_eq!(
        line(LinkType::ETHERNET, &packet),
        "ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 28"
    );
}

#[test]
fn icmp_lines() {
    let echo = ipv4(1, crate::icmpv4::PROTOCOL.sample);
    assert_eq!(
        line(LinkType::RAW, &echo),
        "IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 1, seq 2, length 12"
    );
    let quote = ipv4(17, &[0x14, 0xe9, 0, 53, 0, 8, 0, 0]);
    let error = ipv4(1, &[&[3, 3, 0, 0, 0, 0, 0, 0][..], &quote].concat());
    assert_eq!(
        line(LinkType::RAW, &error),
        "IP 10.0.0.1 > 10.0.0.2: ICMP 10.0.0.2 udp port 53 unreachable, length 36"
    );
}

#[test]
fn tunnel_line_shows_all_levels() {
    let gre = [&[0, 0, 8, 0][..], &ipv4(6, crate::tcp::PROTOCOL.sample)].concat();
    let packet = ipv4(4, &ipv4(47, &gre));
    assert_eq!(
        line(LinkType::RAW, &packet),
        "IP 10.0.0.1 > 10.0.0.2: IP in IP: IP 10.0.0.1 > 10.0.0.2: GREv0, proto 0x0800, \
         length 48: IP 10.0.0.1.443 > 10.0.0.2.5555: Flags [S.], seq 1:5, ack 2, win 65535, \
         options [mss 1460], length 4"
    );
}

#[test]
fn fragments_and_damage() {
    let mut fragment = ipv4(17, &[1; 16]);
    fragment[6..8].copy_from_slice(&[0x20, 185]);
    assert_eq!(
        line(LinkType::IPV4, &fragment),
        "IP 10.0.0.1 > 10.0.0.2: udp, frag 7:16@1480+"
    );
    fragment[6] = 0;
    assert_eq!(
        line(LinkType::IPV4, &fragment),
        "IP 10.0.0.1 > 10.0.0.2: udp, frag 7:16@1480"
    );
    assert_eq!(
        line(LinkType::IPV4, &ipv4(6, &[0, 80, 0, 81, 0])),
        "IP 10.0.0.1.80 > 10.0.0.2.81: [|tcp] [short]"
    );
    let mut long = ipv4(17, crate::udp::PROTOCOL.sample);
    long[3] += 9;
    assert_eq!(
        line(LinkType::IPV4, &long),
        "IP truncated-ip - 9 bytes missing! 10.0.0.1.5353 > 10.0.0.2.9: UDP, length 4"
    );
    assert_eq!(line(LinkType::ETHERNET, &[0; 5]), "eth [short], length 5");
    assert_eq!(
        line(LinkType(9999), &[0; 5]),
        "[unsupported link type unknown (9999)], length 5"
    );
    assert_eq!(
        line(LinkType::ETHERNET, &ethernet(0x88cc, &[0; 9])),
        "LLDP, length 9"
    );
    assert_eq!(
        line(LinkType::IPV4, &ipv4(89, &[0; 9])),
        "IP 10.0.0.1 > 10.0.0.2: OSPFv0, unknown packet type (0), length 9"
    );
}
