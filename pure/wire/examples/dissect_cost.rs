//! Measures the cost of a dissection: `dissect_cost [ROUNDS]` dissects a mix of packets built in
//! memory.
//!
//! The mix: IPv4 and IPv6 4:1, TCP and UDP 3:1, one in ten with a VLAN tag, and TCP options as they
//! occur in practice: time stamps on most segments, longer options on SYNs, none on some. Under
//! `valgrind --tool=callgrind` the difference of two runs with different ROUNDS is the cost of the
//! packets alone:
//!
//! ```text
//! cargo build --release -p barewire-wire --example dissect_cost
//! for n in 100 1100; do valgrind --tool=callgrind target/release/examples/dissect_cost $n; done
//! ```
//!
//! (instructions of the second - instructions of the first) / (1000 * 1000 packets).

use barewire_wire::{Dissection, LinkType, ethernet, ipv4, ipv6, tcp, udp, vlan};
use std::hint::black_box;

const PACKETS: usize = 1000;
const BATCH: usize = 64;

/// Builds a UDP or TCP header and its payload.
fn transport(index: usize, is_udp: bool, payload_len: usize) -> Vec<u8> {
    let mut transport = Vec::new();
    if is_udp {
        let mut head = [0; udp::HEADER_LEN];
        let (src, dst) = (
            1024 + (index * 7919 % 60000) as u16,
            [53, 443, 5353][index % 3],
        );
        udp::emit(&mut head, src, dst, payload_len);
        transport.extend(head);
    } else {
        let mut head = [0; tcp::HEADER_LEN];
        let is_syn = index.is_multiple_of(16);
        let flags = if is_syn {
            tcp::flag::SYN
        } else {
            tcp::flag::ACK
        };
        let header = tcp::Header {
            src_port: 443,
            dst_port: 40000,
            flags,
            ..Default::default()
        };
        header.emit(&mut head);
        let options: &[u8] = match index % 16 {
            0 => &[
                2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7,
            ],
            1..=3 => &[],
            _ => &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        };
        head[12] = ((tcp::HEADER_LEN + options.len()) as u8 / 4) << 4;
        transport.extend(head);
        transport.extend(options);
    }
    transport.resize(transport.len() + payload_len, 0x55);
    transport
}

fn packet(index: usize) -> Vec<u8> {
    let (is_ipv6, is_udp, is_tagged) = (index % 5 == 4, index % 4 == 3, index % 10 == 1);
    let payload_len = [0, 0, 4, 100, 512, 1400][index % 6];
    let transport = transport(index, is_udp, payload_len);
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if is_tagged {
        bytes.extend(ethernet::ether_type::VLAN.to_be_bytes());
        bytes.extend((index as u16 % 4096).to_be_bytes());
        assert_eq!(bytes.len(), 12 + vlan::HEADER_LEN);
    }
    let protocol = if is_udp { 17 } else { 6 };
    if is_ipv6 {
        bytes.extend(ethernet::ether_type::IPV6.to_be_bytes());
        let mut head = [0; ipv6::HEADER_LEN];
        ipv6::Header {
            src: format!("2001:db8::{index:x}").parse().unwrap(),
            dst: "2001:db8::1".parse().unwrap(),
            next_header: protocol,
            hop_limit: 60,
            traffic_class: 0,
            flow_label: index as u32,
            payload_len: transport.len(),
        }
        .emit(&mut head);
        bytes.extend(head);
    } else {
        bytes.extend(ethernet::ether_type::IPV4.to_be_bytes());
        let mut head = [0; ipv4::HEADER_LEN];
        ipv4::Header {
            src: [10, 0, (index >> 8) as u8, index as u8].into(),
            dst: [10, 1, 0, 1].into(),
            protocol,
            ttl: 60,
            traffic_class: 0,
            id: index as u16,
            payload_len: transport.len(),
        }
        .emit(&mut head);
        bytes.extend(head);
    }
    bytes.extend(transport);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

fn main() {
    let rounds: usize = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(1000);
    let packets: Vec<Vec<u8>> = (0..PACKETS).map(packet).collect();
    let mut out = vec![Dissection::EMPTY; BATCH];
    let mut payload_bytes = 0u64;
    // As for a port: a value of the running program.
    let link = black_box(LinkType::ETHERNET);
    for _ in 0..rounds {
        for batch in packets.chunks(BATCH) {
            for (packet, out) in batch.iter().zip(&mut out) {
                barewire_wire::dissect(link, black_box(packet), packet.len() as u32, out);
            }
            payload_bytes += u64::from(black_box(&out)[0].payload_len);
        }
    }
    println!(
        "{} packets dissected, checksum {payload_bytes}",
        rounds * PACKETS
    );
}
