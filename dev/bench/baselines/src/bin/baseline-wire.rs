//! Reads the same fields of each packet of a capture with other libraries: `baseline-wire LIBRARY
//! FILE ROUNDS`. Run under callgrind with two numbers of rounds; the difference is the cost.

use std::hint::black_box;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: baseline-wire etherparse|smoltcp|libpcap FILE ROUNDS";
    let (library, file) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let rounds: u32 = args.next().ok_or(usage)?.parse()?;
    if library == "libpcap" {
        // pcap_next and the field reads, once a round: the file is read each time, from the page
        // cache.
        let mut sum = 0;
        for _ in 0..rounds {
            let mut capture = pcap::Capture::from_file(&file)?;
            while let Ok(packet) = capture.next_packet() {
                sum += by_hand(packet.data);
            }
        }
        black_box(sum);
        return Ok(());
    }
    let mut packets = Vec::new();
    let mut capture = pcap::Capture::from_file(&file)?;
    while let Ok(packet) = capture.next_packet() {
        packets.push(packet.data.to_vec());
    }
    let read = match library.as_str() {
        "etherparse" => with_etherparse,
        "smoltcp" => with_smoltcp,
        "none" => |bytes: &[u8]| u64::from(bytes[0]),
        _ => return Err(usage.into()),
    };
    let mut sum = 0;
    for _ in 0..rounds {
        for packet in &packets {
            sum += read(black_box(packet));
        }
    }
    black_box(sum);
    println!("{} packets a round", packets.len());
    Ok(())
}

fn with_etherparse(bytes: &[u8]) -> u64 {
    let Ok(packet) = SlicedPacket::from_ethernet(bytes) else {
        return 0;
    };
    let mut sum = 0;
    match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            sum += u64::from(header.ttl()) + u64::from(header.total_len());
            sum += u64::from(u32::from(header.source_addr()));
            sum += u64::from(u32::from(header.destination_addr()));
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            sum += u64::from(header.hop_limit()) + u64::from(header.payload_length());
            sum += u64::from(header.source()[15]) + u64::from(header.destination()[15]);
        }
        _ => {}
    }
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            sum += u64::from(tcp.source_port()) + u64::from(tcp.destination_port());
            sum += u64::from(tcp.syn()) + u64::from(tcp.window_size());
        }
        Some(TransportSlice::Udp(udp)) => {
            sum += u64::from(udp.source_port()) + u64::from(udp.destination_port());
        }
        _ => {}
    }
    sum
}

fn with_smoltcp(bytes: &[u8]) -> u64 {
    let Ok(frame) = EthernetFrame::new_checked(bytes) else {
        return 0;
    };
    let (sum, protocol, payload) = match frame.ethertype() {
        EthernetProtocol::Ipv4 => {
            let Ok(ip) = Ipv4Packet::new_checked(frame.payload()) else {
                return 0;
            };
            let sum = u64::from(ip.hop_limit())
                + u64::from(ip.total_len())
                + u64::from(u32::from(ip.src_addr()))
                + u64::from(u32::from(ip.dst_addr()));
            (sum, ip.next_header(), ip.payload())
        }
        EthernetProtocol::Ipv6 => {
            let Ok(ip) = Ipv6Packet::new_checked(frame.payload()) else {
                return 0;
            };
            let sum = u64::from(ip.hop_limit())
                + u64::from(ip.payload_len())
                + u64::from(ip.src_addr().octets()[15])
                + u64::from(ip.dst_addr().octets()[15]);
            (sum, ip.next_header(), ip.payload())
        }
        // smoltcp's wire layer has no 802.1Q: tagged packets end here.
        _ => return 0,
    };
    sum + match protocol {
        IpProtocol::Tcp => TcpPacket::new_checked(payload).map_or(0, |tcp| {
            u64::from(tcp.src_port())
                + u64::from(tcp.dst_port())
                + u64::from(tcp.syn())
                + u64::from(tcp.window_len())
        }),
        IpProtocol::Udp => UdpPacket::new_checked(payload).map_or(0, |udp| {
            u64::from(udp.src_port()) + u64::from(udp.dst_port())
        }),
        _ => 0,
    }
}

/// The reads that a program over libpcap does by itself: no checks but the length.
fn by_hand(bytes: &[u8]) -> u64 {
    let at16 = |at: usize| {
        bytes
            .get(at..at + 2)
            .map_or(0, |b| u64::from(b[0]) << 8 | u64::from(b[1]))
    };
    let mut network = 12;
    while matches!(at16(network), 0x8100 | 0x88a8 | 0x9100) {
        network += 4;
    }
    let kind = at16(network);
    network += 2;
    let (transport, protocol) = match kind {
        0x0800 => {
            let first = bytes.get(network).copied().unwrap_or(0);
            (
                network + usize::from(first & 15) * 4,
                bytes.get(network + 9).copied(),
            )
        }
        0x86dd => (network + 40, bytes.get(network + 6).copied()),
        _ => return 0,
    };
    let mut sum = at16(network + 2) + at16(network + 12) + at16(network + 14) + at16(network + 16);
    if matches!(protocol, Some(6 | 17)) {
        sum += at16(transport) + at16(transport + 2) + at16(transport + 14);
    }
    sum
}
