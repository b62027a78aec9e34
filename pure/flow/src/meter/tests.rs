//! The meter: what a packet counts for, fragments, and packets that belong to no flow.

use super::*;
use crate::{EndReason, Extra, OwnedExtra, PacketNote, Record, Side, entropy};
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

/// The records and what was recorded beyond them, of packets a millisecond apart, given together.
fn with_extras(config: &MeterConfig, packets: &[Vec<u8>]) -> Vec<(Record, OwnedExtra)> {
    #[derive(Default)]
    struct Taken(Vec<(Record, OwnedExtra)>);
    impl Sink for Taken {
        fn ended(&mut self, _: &Record, _: EndReason) {
            panic!("extras were asked for");
        }

        fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, _: EndReason) {
            let mut owned = OwnedExtra::default();
            owned.set(extra);
            self.0.push((*record, owned));
        }
    }
    let mut meter = Meter::new(config).unwrap();
    let mut taken = Taken::default();
    let inputs: Vec<Input<'_>> = packets
        .iter()
        .enumerate()
        .map(|(at, bytes)| input(bytes, S + at as u64 * 1_000_000))
        .collect();
    meter.observe_all(&inputs, &mut taken);
    meter.finish(&mut taken);
    assert_eq!(meter.stats().imbalance(), 0);
    taken.0.sort_by_key(|(record, _)| record.start_ns());
    taken.0
}

#[test]
fn directions_are_apart_when_asked() {
    let packets = [
        ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x12, 0)),
        ipv4(1, 2, 6, 2, 0, &tcp(5000, 80, 0x10, 100)),
        ipv4(2, 1, 6, 2, 0, &tcp(80, 5000, 0x11, 0)),
    ];
    let mut uniflow = config();
    uniflow.table.uniflow = true;
    let (records, _) = records(&uniflow, &packets);
    assert_eq!(records.len(), 2);
    let source = |record: &Record| record.key().port(record.initiator());
    // The sender is the source, whoever began; its own FIN ends its flow.
    assert_eq!((source(&records[0]), source(&records[1])), (80, 5000));
    assert!(records[0].is_closed() && !records[1].is_closed());
    assert!(
        records
            .iter()
            .all(|r| r.is_uniflow() && r.reverse().packets == 0)
    );
}

#[test]
fn the_side_that_began_is_found_in_the_middle_too() {
    let source = |packets: &[Vec<u8>]| {
        let (records, _) = records(&config(), packets);
        let record = records[0];
        (
            record.key().port(record.initiator()),
            record.is_initiator_known(),
        )
    };
    let data = ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x18, 5));
    let syn = ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x02, 0));
    let both = ipv4(2, 1, 6, 1, 0, &tcp(80, 5000, 0x12, 0));
    let high = ipv4(2, 1, 6, 1, 0, &tcp(8080, 5000, 0x18, 5));
    assert_eq!(source(std::slice::from_ref(&data)), (5000, false));
    assert_eq!(source(&[high]), (8080, false));
    assert_eq!(source(std::slice::from_ref(&syn)), (80, true));
    assert_eq!(source(&[both]), (5000, true));
    assert_eq!(source(&[data, syn]), (80, true));
}

/// IPv4 in GRE with a key, in IPv4.
fn tunnelled(key: u8, inner: &[u8]) -> Vec<u8> {
    let ip = &inner[14..];
    let gre = [&[0x20, 0, 8, 0, 0, 0, 0, key], ip].concat();
    ipv4(100, 101, 47, 1, 0, &gre)
}

#[test]
fn a_packet_in_a_tunnel_counts_at_the_levels_asked_for() {
    let inner = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    let packets = [
        tunnelled(7, &inner),
        inner,
        tunnelled(8, &ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2))),
    ];
    let flows = |level: Level, by_tunnel: bool| {
        let mut config = config();
        config.level = level;
        config.key_extra.tunnel = by_tunnel;
        let mut meter = Meter::new(&config).unwrap();
        let mut flows = Vec::new();
        let mut sink = |r: &Record, _| flows.push((r.key().protocol(), r.packets(), r.bytes()));
        for bytes in &packets {
            meter.observe(&input(bytes, S), &mut sink);
        }
        meter.finish(&mut sink);
        let stats = meter.stats();
        assert_eq!(stats.imbalance(), 0);
        flows.sort_unstable();
        (flows, stats.twice)
    };
    assert_eq!(
        flows(Level::Outer, false),
        (vec![(17, 1, 30), (47, 2, 116)], 0)
    );
    assert_eq!(flows(Level::Inner, false), (vec![(17, 3, 90)], 0));
    assert_eq!(
        flows(Level::Both, false),
        (vec![(17, 3, 90), (47, 2, 116)], 2)
    );
    let by_tunnel = (vec![(17, 1, 30), (17, 1, 30), (17, 1, 30)], 0);
    assert_eq!(flows(Level::Inner, true), by_tunnel);
}

#[test]
fn rarer_parts_of_the_key_tell_flows_apart() {
    let plain = ipv4(1, 2, 17, 1, 0, &udp(1, 2, 2));
    let mut mac = plain.clone();
    mac[11] = 9;
    let mut tos = plain.clone();
    tos[15] = 0xb8;
    let mut mpls = plain[..12].to_vec();
    mpls.extend([0x88, 0x47, 0, 0x12, 0x31, 64]);
    mpls.extend(&plain[14..]);
    let packets = [plain, mac, tos, mpls];
    let keys = |parts: KeyParts| -> Vec<KeyExtra> {
        let mut config = config();
        config.key_extra = parts;
        let flows = with_extras(&config, &packets);
        flows
            .iter()
            .map(|(_, extra)| *extra.get().key.unwrap())
            .collect()
    };
    let mac = keys(KeyParts {
        mac: true,
        ..KeyParts::default()
    });
    let (a, b) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let mut macs: Vec<_> = mac.iter().map(|key| key.mac).collect();
    for mac in &mut macs {
        mac.sort_unstable();
    }
    assert_eq!(macs, [[b, a], [b, [2, 0, 0, 0, 0, 9]]]);
    let tos = keys(KeyParts {
        traffic_class: true,
        ..KeyParts::default()
    });
    let classes: Vec<u8> = tos.iter().map(|key| key.traffic_class).collect();
    assert_eq!(classes, [0, 0xb8]);
    let mpls = keys(KeyParts {
        mpls: true,
        ..KeyParts::default()
    });
    let labels: Vec<u32> = mpls.iter().map(|key| key.mpls_label).collect();
    assert_eq!(labels, [0, 0x123]);
}

#[test]
fn first_packets_gaps_and_bytes_are_recorded() {
    let mut config = config();
    config.extra.packet_count = 3;
    config.extra.timing = true;
    config.extra.bytes = true;
    let mut packets: Vec<Vec<u8>> = (0..40)
        .map(|_| ipv4(1, 2, 17, 1, 0, &udp(1, 2, 20)))
        .collect();
    packets.insert(1, ipv4(2, 1, 17, 1, 0, &udp(2, 1, 100)));
    let flows = with_extras(&config, &packets);
    let (record, extra) = (&flows[0].0, flows[0].1.get());
    let note = |ms: u32, payload_len, side: Side| PacketNote {
        time_us: ms * 1000,
        payload_len,
        tcp_flags: 0,
        side: side as u8,
    };
    let (from, to) = (record.initiator(), record.initiator().other());
    assert_eq!(
        extra.packets,
        [note(0, 20, from), note(1, 100, to), note(2, 20, from)]
    );
    let timing = &extra.timing.unwrap()[from as usize];
    assert_eq!(timing.gap_count(), 39);
    assert_eq!(
        (timing.gap_min_ns, timing.gap_max_ns),
        (1_000_000, 2_000_000)
    );
    let (mean, deviation) = timing.gap_mean_deviation_ns();
    let expected = (42.0 / 39.0 - (40.0f64 / 39.0).powi(2)).sqrt() * 1e6;
    assert!((mean - 40e6 / 39.0).abs() < 1.0 && (deviation - expected).abs() < 1.0);
    assert_eq!(timing.len_mean_deviation(&record.forward()), (48.0, 0.0));
    assert_eq!(timing.len_bins, [0, 40, 0, 0, 0, 0, 0, 0]);
    let counts = &extra.bytes.unwrap()[from as usize];
    assert_eq!((counts[0xa5], counts.iter().sum::<u32>()), (800, 800));
    assert_eq!(entropy(counts), 0.0);
    assert_eq!(entropy(&[1; 256]), 8.0);
}

#[test]
fn pieces_that_overlap_are_counted_and_nothing_else() {
    let first = ipv4(1, 2, 17, 7, MF, &udp(5, 6, 24));
    let mut last = ipv4(1, 2, 17, 7, 4, &[0; 40]);
    let (records, stats) = records(&config(), &[first.clone(), last.clone()]);
    assert_eq!((records.len(), stats.fragments.overlaps), (1, 0));
    assert_eq!(records[0].forward().fragments, 2);
    // Offset 24 instead of 32: eight bytes come twice.
    last[21] = 3;
    let overlapping = [first.clone(), last.clone(), first.clone()];
    let (records, stats) = super::tests::records(&config(), &overlapping);
    assert_eq!((records.len(), stats.fragments.overlaps), (1, 2));
    assert_eq!(records[0].packets(), 3);
    // Before the first one as well.
    let (records, stats) = super::tests::records(&config(), &[last, first]);
    assert_eq!((records.len(), stats.fragments.overlaps), (1, 1));
}

#[test]
fn orphans_are_marked() {
    let later = ipv4(1, 2, 17, 7, 4, &[0; 40]);
    let (records, stats) = records(&config(), &[later]);
    assert!(records[0].has_orphans());
    assert_eq!(
        (stats.fragments.orphans, records[0].forward().fragments),
        (1, 1)
    );
}

#[test]
fn what_sampling_leaves_out_is_counted() {
    let packets: Vec<Vec<u8>> = (0..100)
        .map(|n| ipv4(1, 2, 17, 1, 0, &udp(n, 9, 2)))
        .collect();
    let mut config = config();
    config.sampling = Sampling::Count(10);
    let mut meter = Meter::new(&config).unwrap();
    let mut records = 0;
    for (at, bytes) in packets.iter().enumerate() {
        meter.observe(&input(bytes, S + at as u64), &mut |_: &Record, _| panic!());
    }
    meter.finish(&mut |_: &Record, _| records += 1);
    assert_eq!((records, meter.stats().unsampled), (10, 90));
    assert_eq!(meter.stats().imbalance(), 0);
}

#[test]
fn options_and_segment_size_are_recorded() {
    let mut syn = tcp(5000, 80, 0x02, 8);
    syn[12] = 0x70;
    syn[20..].copy_from_slice(&[2, 4, 5, 0xb4, 4, 2, 34, 2]);
    let mut packet = ipv4(1, 2, 6, 1, 0x4000, &syn);
    packet[15] = 0x10;
    let (records, _) = records(&config(), &[packet]);
    let sent = records[0].forward();
    assert_eq!((sent.tcp_mss, sent.tcp_window), (1460, 256));
    assert_eq!(sent.tcp_options, 1 << 2 | 1 << 4 | 1 << 34);
    assert_eq!((sent.ip_flags, sent.traffic_class), (2, 0x10));
}

/// Ethernet, tags, IPv6 around a payload.
fn ipv6(tags: &[u8], ends: [u8; 2], next: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    bytes.extend(tags);
    bytes.extend([0x86, 0xdd, 0x61, 0x20, 0, 0]);
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend([next, 60]);
    for end in ends {
        bytes.extend([
            0x20,
            1,
            0xd,
            0xb8,
            0,
            0,
            0,
            end,
            9,
            9,
            9,
            9,
            9,
            9,
            9,
            255 - end,
        ]);
    }
    bytes.extend(payload);
    bytes
}

/// The short cut makes the records that the whole dissection makes, over packets that are for it,
/// nearly for it, cut anywhere and with any bit turned; with bytes of IP and of the link, in
/// biflows and uniflows.
#[test]
fn the_short_cut_changes_nothing() {
    let mut options = tcp(443, 5001, 0x18, 12);
    options[12] = 0x80;
    let mut syn = tcp(5001, 443, 0x02, 4);
    syn[12] = 0x60;
    syn[20..24].copy_from_slice(&[2, 4, 5, 180]);
    let kinds = [
        ipv4(1, 2, 6, 1, 0x4000, &tcp(5000, 80, 0x18, 9)),
        ipv4(2, 1, 17, 1, 0, &udp(53, 5000, 30)),
        ipv4(2, 2, 17, 1, 0, &udp(53, 52, 30)),
        ipv4(2, 1, 17, 1, 0, &udp(4789, 5000, 30)),
        ipv4(3, 1, 6, 1, 0, &options),
        ipv4(1, 3, 6, 1, 0, &syn),
        ipv4(
            3,
            1,
            1,
            1,
            0,
            &[
                8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
            ],
        ),
        ipv6(&[], [1, 2], 6, &tcp(5000, 80, 0x10, 0)),
        ipv6(&[], [2, 1], 17, &udp(80, 5000, 0)),
        ipv6(&[0x81, 0, 0x20, 5], [2, 1], 17, &udp(80, 5000, 40)),
        ipv6(&[0x81, 0, 0x20, 5], [2, 1], 6, &options),
        ipv6(&[0x88, 0xa8, 0x20, 5], [2, 1], 6, &options),
    ];
    for (octets, uniflow) in [(Octets::Ip, false), (Octets::Packet, true)] {
        let mut config = config();
        (config.octets, config.table.uniflow) = (octets, uniflow);
        let run = |packets: &[Vec<u8>], has_shortcut: bool| {
            let mut meter = Meter::new(&config).unwrap();
            if !has_shortcut {
                meter.without_shortcut();
            }
            let mut ended = Vec::new();
            let mut sink = |record: &Record, _| ended.push(*record);
            for (at, bytes) in packets.iter().enumerate() {
                let wire_len = bytes.len() as u32 + if at % 3 == 0 { 40 } else { 0 };
                let input = Input {
                    wire_len,
                    ..input(bytes, S + at as u64)
                };
                meter.observe(&input, &mut sink);
            }
            meter.finish(&mut sink);
            (meter.stats(), ended)
        };
        for packet in &kinds {
            let cuts = (0..=packet.len()).map(|len| packet[..len].to_vec());
            let turns = (0..packet.len().min(90) * 8).map(|bit| {
                let mut other = packet.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                other
            });
            let packets: Vec<Vec<u8>> = cuts.chain(turns).collect();
            assert!(run(&packets, true) == run(&packets, false), "{packet:02x?}");
        }
    }
}

#[test]
fn the_beginnings_of_records_are_chosen() {
    let one = ipv4(1, 2, 17, 1, 0, &udp(10, 20, 72));
    let back = ipv4(2, 1, 17, 1, 0, &udp(20, 10, 72));
    let other = ipv4(3, 4, 17, 1, 0, &udp(10, 20, 72));
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let packets = [&one, &arp, &other, &back, &one, &other, &one, &other];
    let inputs: Vec<Input<'_>> = packets.iter().map(|bytes| input(bytes, S)).collect();
    let chosen = |packets, bytes| {
        let mut config = config();
        config.extra.shunt = Some(crate::Shunt { packets, bytes });
        let mut meter = Meter::new(&config).unwrap();
        let mut sink = |_: &Record, _: EndReason| {};
        meter.observe_all(&inputs, &mut sink);
        let first = meter.chosen();
        assert_eq!(meter.chosen(), 0, "told once");
        // Nothing is left of the first record's share.
        meter.observe_all(&inputs, &mut sink);
        (first, meter.chosen())
    };
    assert_eq!(chosen(2, u64::MAX), (0b0010_1101, 0));
    assert_eq!(chosen(3, u64::MAX), (0b1011_1101, 0));
    // A packet has 100 bytes: the second reaches 101.
    assert_eq!(chosen(u64::MAX, 101), (0b0010_1101, 0));
    assert_eq!(chosen(100, 1 << 20), (0b1111_1101, 0b1111_1101));
}
