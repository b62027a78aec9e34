//! Flows of made packets: connections, streams, scans and forged packets.

use traffic::Rng;

use super::*;

/// An IPv4 packet with this protocol and what follows.
fn ip(source: u32, protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut ip = vec![
        0x45,
        0,
        0,
        (20 + rest.len()) as u8,
        0,
        1,
        0,
        0,
        60,
        protocol,
        0,
        0,
    ];
    ip.extend(source.to_be_bytes());
    ip.extend([192, 0, 2, 1]);
    ip.extend(rest);
    ip
}

/// A segment from this source and port, to a port.
fn segment(source: u32, ports: (u16, u16), numbers: (u32, u32), flags: u8) -> Vec<u8> {
    let mut tcp = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    tcp.extend(numbers.0.to_be_bytes());
    tcp.extend(numbers.1.to_be_bytes());
    tcp.extend([0x50, flags, 2, 0, 0, 0, 0, 0]);
    ip(source, TCP, &tcp)
}

fn datagram(source: u32, port: u16) -> Vec<u8> {
    let mut udp = port.to_be_bytes().to_vec();
    udp.extend([0, 53, 0, 8, 0, 0]);
    ip(source, 17, &udp)
}

#[test]
fn connections_are_known_by_their_numbers() {
    // A transfer, whose numbers wrap around, with a retransmission, beside segments that claim to
    // be of connections.
    let mut flows = Flows::default();
    let mut rng = Rng::new(3);
    for count in 0..100_u32 {
        let again = if count % 10 == 9 { 1_448 * 4 } else { 0 };
        let sequence = 0xffff_0000_u32.wrapping_add(count * 1_448 * 16) - again;
        flows.add(&segment(1, (5_000, 80), (sequence, 77), 0x10), 16, false);
        let random = (rng.next_u64() as u32, rng.next_u64() as u32);
        flows.add(&segment(2, (5_000, 80), random, 0x10), 16, false);
        flows.add(&segment(3, (5_000, 80), (9, 9), 0x10), 16, false);
    }
    let shares = flows.shares();
    assert!((shares.connections - 1.0 / 3.0).abs() < 1e-9, "{shares:?}");
    assert_eq!(shares.streams, 0.0);
    let sent = [1, 2, 3].map(|source| segment(source, (5_000, 80), (5, 5), 0x10));
    let packets = sent.each_ref().map(|bytes| Packet { tags: 0, bytes });
    let [good, others] = flows.divide(&packets);
    assert_eq!((good.len(), others.len()), (1, 2));
    assert_eq!(good[0].bytes, sent[0]);
}

#[test]
fn many_short_connections_are_known_by_their_handshakes() {
    // Half of the SYNs are followed by an ACK; one connection in 16 is chosen, and sampled whole.
    let mut flows = Flows::default();
    for number in 0..4_000_u32 {
        let (is_chosen, is_complete) = (number % 16 == 0, number % 2 == 0 || number % 32 == 0);
        let flow = (1_024 + number as u16, 80);
        let mut add = |bytes: &[u8]| {
            if is_chosen || number % 16 == 5 {
                flows.add(bytes, if is_chosen { 1 } else { 16 }, is_chosen);
            }
        };
        add(&segment(number, flow, (number * 77, 0), 0x02));
        if is_complete && (!is_chosen || number % 32 == 0) {
            add(&segment(number, flow, (number * 77 + 1, 5), 0x10));
        }
    }
    let shares = flows.shares();
    // Of the chosen ones, half have two packets and are complete, half have one and are not.
    assert!((shares.connections - 2.0 / 3.0).abs() < 0.1, "{shares:?}");
}

#[test]
fn a_stream_has_a_large_share_of_the_packets() {
    let mut flows = Flows::default();
    for count in 0..1_000_u32 {
        flows.add(&datagram(1, 5_000), 16, false);
        flows.add(&datagram(2 + count * 7, count as u16), 16, false);
    }
    let shares = flows.shares();
    assert!((shares.streams - 0.5).abs() < 1e-9, "{shares:?}");
    // Forged packets of a few hundred sources have no such flow.
    let mut flows = Flows::default();
    for count in 0..5_000_u32 {
        flows.add(&datagram(count % 256, 5_000), 16, false);
    }
    assert_eq!(flows.shares(), Shares::default());
}

#[test]
fn a_scan_has_many_targets_and_few_sources() {
    let syns = |count: u32, of: fn(u32) -> (u32, u16)| -> Vec<Vec<u8>> {
        let syn = |number| {
            let (source, port) = of(number);
            segment(source, (40_000, port), (number, 0), 0x02)
        };
        (0..count).map(syn).collect()
    };
    let is_scan = |all: &[Vec<u8>]| {
        let packets: Vec<_> = all.iter().map(|bytes| Packet { tags: 0, bytes }).collect();
        super::is_scan(&packets)
    };
    assert!(is_scan(&syns(900, |number| (7, number as u16))));
    // Beside some other packets.
    let mut all = syns(900, |number| (7, number as u16));
    all.extend((0..60).map(|number| datagram(number, 9)));
    assert!(is_scan(&all));
    assert!(!is_scan(&syns(900, |_| (7, 80))));
    assert!(!is_scan(&syns(900, |number| (number, number as u16))));
}

#[test]
fn tables_are_bounded_and_damaged_packets_harmless() {
    let mut flows = Flows::default();
    let mut rng = Rng::new(8);
    for count in 0..20_000_u32 {
        let mut bytes = match count % 2 {
            0 => segment(rng.next_u64() as u32, (1, 2), (3, 4), count as u8),
            _ => datagram(rng.next_u64() as u32, 9),
        };
        let len = rng.up_to(bytes.len() as u128) as usize;
        bytes.truncate(if count % 5 == 0 { len } else { bytes.len() });
        if count % 7 == 0 && !bytes.is_empty() {
            bytes[0] = rng.next_u64() as u8;
        }
        flows.add(&bytes, 16, count % 3 == 0);
    }
    assert!(flows.chosen.len() <= FLOWS_MAX && flows.others.len() <= FLOWS_MAX);
    let shares = flows.shares();
    assert!((0.0..=1.0).contains(&shares.connections), "{shares:?}");
}
