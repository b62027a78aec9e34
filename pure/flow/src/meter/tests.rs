//! The meter: what a packet counts for, fragments, and packets that belong to no flow.

use super::*;
use crate::{EndReason, Record, Side};
use std::net::IpAddr;

const S: u64 = 1_000_000_000;
const MF: u16 = 0x2000;

/// Ethernet and IPv4 around a payload. `fragment` is the flags and offset field.
fn ipv4(src: u8, dst: u8, protocol: u8, id: u16, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0]);
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 10, 0, 0, src, 10, 0, 0, dst]);
    bytes.extend(payload);
    bytes
}

fn udp(src_port: u16, dst_port: u16, len: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(src_port.to_be_bytes());
    bytes.extend(dst_port.to_be_bytes());
    bytes.extend((8 + len).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.resize(8 + usize::from(len), 0xa5);
    bytes
}

fn tcp(src_port: u16, dst_port: u16, flags: u8, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(src_port.to_be_bytes());
    bytes.extend(dst_port.to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    bytes.resize(20 + len, 0xa5);
    bytes
}

fn input(bytes: &[u8], time_ns: u64) -> Input<'_> {
    Input {
        link: LinkType::ETHERNET,
        bytes,
        wire_len: bytes.len() as u32,
        time_ns,
        vlan: None,
        interface: 0,
    }
}

fn config() -> MeterConfig {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 4096;
    config
}

/// The records that these packets make, a millisecond apart.
fn records(config: &MeterConfig, packets: &[Vec<u8>]) -> (Vec<Record>, MeterStats) {
    let mut meter = Meter::new(config).unwrap();
    let mut ended = Vec::new();
    let mut sink = |record: &Record, _| ended.push(*record);
    for (at, bytes) in packets.iter().enumerate() {
        meter.observe(&input(bytes, S + at as u64 * 1_000_000), &mut sink);
        assert_eq!(meter.stats().imbalance(), 0);
    }
    meter.finish(&mut sink);
    let stats = meter.stats();
    let in_records: u64 = ended.iter().map(Record::packets).sum();
    assert_eq!(stats.packets, packets.len() as u64);
    assert_eq!(stats.packets, in_records + stats.refused_total());
    assert_eq!((stats.waiting, stats.fragments.held), (0, 0));
    ended.sort_by_key(Record::start_ns);
    (ended, stats)
}

#[test]
fn a_tcp_connection_is_one_biflow() {
    let packets = [
        ipv4(1, 2, 6, 1, 0, &tcp(5000, 80, 0x02, 0)),
        ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x12, 0)),
        ipv4(1, 2, 6, 2, 0, &tcp(5000, 80, 0x18, 100)),
        ipv4(2, 1, 6, 2, 0, &tcp(80, 5000, 0x11, 0)),
        ipv4(1, 2, 6, 3, 0, &tcp(5000, 80, 0x11, 0)),
        ipv4(2, 1, 6, 3, 0, &tcp(80, 5000, 0x10, 0)),
        // The ports again.
        ipv4(1, 2, 6, 4, 0, &tcp(5000, 80, 0x02, 0)),
    ];
    let (records, _) = records(&config(), &packets);
    assert_eq!(records.len(), 2);
    let record = &records[0];
    let (forward, reverse) = (record.forward(), record.reverse());
    assert_eq!((forward.packets, reverse.packets), (3, 3));
    assert_eq!((forward.bytes, reverse.bytes), (220, 120));
    assert_eq!((forward.payload_bytes, reverse.payload_bytes), (100, 0));
    assert_eq!((forward.tcp_flags, reverse.tcp_flags), (0x1b, 0x13));
    assert_eq!((record.start_ns(), record.end_ns()), (S, S + 5_000_000));
    assert!(record.is_closed() && !records[1].is_closed());
    let initiator = record.initiator();
    assert_eq!(record.key().addr(initiator), IpAddr::from([10, 0, 0, 1]));
    assert_eq!(record.key().port(initiator), 5000);
    assert_eq!(records[1].packets(), 1);
}

#[test]
fn the_initiator_is_found_when_the_answer_is_seen_first() {
    let syn_ack_first = [
        ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x12, 0)),
        ipv4(1, 2, 6, 1, 0, &tcp(5000, 80, 0x10, 0)),
    ];
    let pong_first = [ipv4(2, 1, 1, 1, 0, &[0, 0, 0, 0, 0, 1, 0, 1])];
    for packets in [&syn_ack_first[..], &pong_first[..]] {
        let (records, _) = records(&config(), packets);
        assert_eq!(records.len(), 1);
        let initiator = records[0].initiator();
        assert_eq!(
            records[0].key().addr(initiator),
            IpAddr::from([10, 0, 0, 1])
        );
        assert_eq!(records[0].reverse().packets, 1);
    }
}

/// Three pieces of a datagram from port 9 to port 7, `id` in the first byte of the second address.
fn pieces(id: u16) -> [Vec<u8>; 3] {
    let whole = udp(9, 7, 1592);
    [
        ipv4(1, 2, 17, id, MF, &whole[..800]),
        ipv4(1, 2, 17, id, MF | 100, &whole[800..1200]),
        ipv4(1, 2, 17, id, 150, &whole[1200..]),
    ]
}

#[test]
fn fragments_count_in_their_flow_in_whatever_order() {
    let [a, b, c] = pieces(7);
    let answer = ipv4(2, 1, 17, 1, 0, &udp(7, 9, 10));
    for order in [
        [&a, &b, &c],
        [&a, &c, &b],
        [&b, &a, &c],
        [&b, &c, &a],
        [&c, &a, &b],
        [&c, &b, &a],
    ] {
        let mut packets: Vec<Vec<u8>> = order.into_iter().cloned().collect();
        packets.push(answer.clone());
        let (records, stats) = records(&config(), &packets);
        assert_eq!(records.len(), 1, "{records:?}");
        let (forward, reverse) = (records[0].forward(), records[0].reverse());
        assert_eq!((forward.packets, reverse.packets), (3, 1));
        assert_eq!(forward.bytes, 3 * 20 + 1600);
        assert_eq!(forward.payload_bytes, 1592);
        assert_eq!(records[0].key().port(records[0].initiator()), 9);
        assert_eq!(stats.fragments.first, 1);
        assert_eq!(stats.fragments.followed + stats.fragments.joined, 2);
        assert_eq!(stats.fragments.orphans, 0);
    }
}

#[test]
fn fragments_without_a_first_are_orphans() {
    let [_, b, c] = pieces(7);
    let mut meter = Meter::new(&config()).unwrap();
    let mut ended = Vec::new();
    let mut sink = |record: &Record, _| ended.push(*record);
    meter.observe(&input(&b, S), &mut sink);
    meter.observe(&input(&c, S), &mut sink);
    assert_eq!(meter.stats().fragments.held, 2);
    // Too late: another datagram may have the number by now.
    let [a, ..] = pieces(7);
    meter.observe(&input(&a, 32 * S), &mut sink);
    assert_eq!(meter.stats().fragments.orphans, 2);
    assert_eq!(meter.stats().imbalance(), 0);
    meter.finish(&mut sink);
    ended.sort_by_key(Record::packets);
    let ports: Vec<(u64, u16)> = ended
        .iter()
        .map(|r| (r.packets(), r.key().port(r.initiator())))
        .collect();
    assert_eq!(ports, [(1, 9), (2, 0)]);
    // Without a first one in sight the hold ends by time.
    let mut orphans = 0;
    meter.observe(&input(&b, 100 * S), &mut |_: &Record, _| {});
    meter.tick(131 * S, &mut |_: &Record, _| {});
    assert_eq!(meter.stats().fragments.held, 0);
    meter.finish(&mut |record: &Record, _| orphans += record.packets());
    assert_eq!(orphans, 1);
}

#[test]
fn more_datagrams_than_places_cost_ports_not_packets() {
    let mut few = config();
    few.datagram_count_max = 16;
    let mut packets = Vec::new();
    for piece in [2, 1, 0] {
        packets.extend((0..200).map(|id| pieces(id)[piece].clone()));
    }
    let (records, stats) = records(&few, &packets);
    assert!(stats.fragments.orphans > 300 && stats.fragments.evicted > 300);
    assert_eq!(records.iter().map(Record::packets).sum::<u64>(), 600);
    assert_eq!(
        records.iter().map(Record::bytes).sum::<u64>(),
        200 * (60 + 1600)
    );
}

#[test]
fn padding_is_not_counted_and_lengths_are_not_believed() {
    let mut padded = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    padded.resize(60, 0);
    let mut liar = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    liar[16] = 0xff;
    let (by_ip, _) = records(&config(), &[padded.clone(), liar.clone()]);
    assert_eq!(by_ip[0].bytes(), 30 + 30);
    let mut whole = config();
    whole.octets = Octets::Packet;
    let (by_packet, _) = records(&whole, &[padded, liar]);
    assert_eq!(by_packet[0].bytes(), 60 + 44);
}

#[test]
fn packets_without_ip_are_refused_by_reason() {
    let mut arp = vec![0xff; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    arp[14..20].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
    let cut = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2))[..30].to_vec();
    let mut unknown = arp.clone();
    unknown[12..14].copy_from_slice(&[0x12, 0x34]);
    let (records, stats) = records(&config(), &[arp, cut, unknown]);
    assert!(records.is_empty());
    assert_eq!(stats.refused[Reason::Complete as usize], 1);
    assert_eq!(stats.refused[Reason::Short as usize], 1);
    assert_eq!(stats.refused[Reason::UnsupportedType as usize], 1);
}

#[test]
fn vlans_split_flows_only_when_asked() {
    let plain = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    let mut tagged = plain[..12].to_vec();
    tagged.extend([0x81, 0, 0, 5]);
    tagged.extend(&plain[12..]);
    let packets = [plain, tagged.clone()];
    assert_eq!(records(&config(), &packets).0.len(), 1);
    let mut by_vlan = config();
    by_vlan.key_vlan = true;
    let (records, _) = records(&by_vlan, &packets);
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].key().vlan(), [5, 0]);
    // A tag that the kernel took out is the outer one.
    let mut meter = Meter::new(&by_vlan).unwrap();
    let mut outside = input(&tagged, S);
    outside.vlan = Some(0x2009);
    meter.observe(&outside, &mut |_: &Record, _| panic!());
    meter.finish(&mut |r: &Record, _| assert_eq!(r.key().vlan(), [9, 5]));
}

#[test]
fn halves_from_two_queues_are_one_flow() {
    let there = [
        ipv4(1, 2, 6, 2, 0, &tcp(5000, 80, 0x18, 100)),
        ipv4(1, 2, 6, 2, 0, &tcp(5000, 80, 0x11, 0)),
    ];
    let back = [
        ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x12, 0)),
        ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x11, 0)),
    ];
    let (there, back) = (records(&config(), &there).0, records(&config(), &back).0);
    let mut merged = there[0];
    merged.merge(&back[0]);
    let mut other_way = back[0];
    other_way.merge(&there[0]);
    for record in [merged, other_way] {
        assert_eq!(record.key().port(record.initiator()), 5000);
        assert_eq!((record.forward().packets, record.reverse().packets), (2, 2));
        assert!(record.is_closed());
        assert_eq!(record.sent_by(Side::A), merged.sent_by(Side::A));
        assert_eq!(record.sent_by(Side::B), merged.sent_by(Side::B));
    }
}

/// Damaged and random packets, with fragments, into a small table: nothing is lost, nothing panics.
#[test]
fn whatever_comes_in_the_account_adds_up() {
    let seed = std::env::var("BAREWIRE_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()) * 7919 + 1);
    println!("to repeat: BAREWIRE_SEED={seed} cargo test -p barewire-flow");
    let mut state = seed;
    let mut random = move |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    for level in [Level::Outer, Level::Inner] {
        let mut config = config();
        config.level = level;
        config.table.flow_count_max = 50;
        config.datagram_count_max = 8;
        let mut meter = Meter::new(&config).unwrap();
        let mut in_records = 0;
        let mut sink = |record: &Record, reason| {
            assert_ne!(reason, EndReason::Forced);
            in_records += record.packets();
        };
        let mut time_ns = S;
        for _ in 0..50_000 {
            let payload = match random(3) {
                0 => udp(random(9) as u16, random(9) as u16, random(50) as u16),
                1 => tcp(random(9) as u16, random(9) as u16, random(64) as u8, 0),
                _ => vec![random(20) as u8; 8 + random(60) as usize],
            };
            let pieces = [MF, MF | 1, 2];
            let fragment = if random(3) == 0 {
                pieces[random(3) as usize]
            } else {
                0
            };
            let protocol = [1, 4, 6, 17, 41, 47][random(6) as usize];
            let mut bytes = ipv4(
                random(4) as u8,
                random(4) as u8,
                protocol,
                random(3) as u16,
                fragment,
                &payload,
            );
            for _ in 0..random(3) {
                let at = random(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random(8);
            }
            bytes.truncate(random(100) as usize + 10);
            time_ns += random(S / 5);
            let mut packet = input(&bytes, time_ns - random(S / 10));
            packet.wire_len += random(2) as u32 * 100;
            meter.observe(&packet, &mut sink);
            if random(50) == 0 {
                meter.tick(time_ns, &mut sink);
            }
            assert_eq!(meter.stats().imbalance(), 0);
        }
        meter.finish(&mut |record: &Record, _| in_records += record.packets());
        let stats = meter.stats();
        assert_eq!(stats.imbalance(), 0);
        assert_eq!(stats.packets, 50_000);
        assert_eq!(in_records + stats.refused_total(), 50_000);
        assert_eq!(stats.table.packets_ended, in_records);
        assert!(stats.fragments.joined > 0 && stats.fragments.orphans > 0);
        assert!(stats.table.ended[EndReason::Resources as usize] > 0);
    }
}
