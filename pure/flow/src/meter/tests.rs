//! The meter: the flow of a packet, fragments, and packets that belong to no flow.

use super::*;
use crate::{EndReason, Extra, OwnedExtra, PacketNote, Record, Side, entropy};
use std::net::IpAddr;

mod fragments;
mod keys;
mod unknown;

const S: u64 = 1_000_000_000;
const MF: u16 = 0x2000;

/// Builds Ethernet and IPv4 around a payload. `fragment` is the flags and offset field.
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

/// The records of these packets, sent a millisecond apart.
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
fn the_initiator_is_found_even_if_the_reply_is_seen_first() {
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

#[test]
fn timeouts_of_many_hours_hold() {
    let minute = 60 * S;
    // A packet every ten minutes; every three hours.
    for (step_ns, active_ns, idle_ns, records) in [
        (10 * minute, 150 * minute, 30 * minute, 2),
        (180 * minute, 1440 * minute, 200 * minute, 1),
        (180 * minute, 1440 * minute, 170 * minute, 8),
    ] {
        for other in [false, true] {
            let mut config = config();
            config.table.timeouts.active_ns = active_ns;
            config.table.timeouts.set_idle_ns(idle_ns);
            let mut meter = Meter::new(&config).unwrap();
            let mut ended = Vec::new();
            let mut sink = |record: &Record, _| {
                if record.key().protocol() == 17 {
                    ended.push(*record);
                }
            };
            let count = if step_ns > 20 * minute { 8 } else { 24 };
            for at in 0..count {
                meter.observe(
                    &input(&ipv4(1, 2, 17, 1, 0, &udp(1, 2, 3)), S + at * step_ns),
                    &mut sink,
                );
                // Others move the clock on meanwhile.
                for minutes in (0..step_ns / minute).filter(|_| other) {
                    let time_ns = S + at * step_ns + minutes * minute;
                    meter.observe(&input(&ipv4(3, 4, 47, 1, 0, &[0; 4]), time_ns), &mut sink);
                }
            }
            meter.finish(&mut sink);
            assert_eq!(ended.len(), records, "{step_ns} {active_ns} {idle_ns}");
        }
    }
}

#[test]
fn the_maximum_time_ends_a_flow_in_its_year() {
    for time_ns in [TIME_MAX_NS, TIME_MAX_NS - 1] {
        let packets = [
            ipv4(1, 2, 17, 1, 0, &udp(1, 2, 3)),
            ipv4(1, 2, 17, 1, MF, &udp(1, 2, 8)),
            ipv4(1, 2, 17, 2, 4, &udp(1, 2, 8)),
        ];
        let mut meter = Meter::new(&config()).unwrap();
        let mut ended = Vec::new();
        let mut sink = |record: &Record, _| ended.push(*record);
        for bytes in &packets {
            meter.observe(&input(bytes, time_ns), &mut sink);
        }
        meter.finish(&mut sink);
        assert_eq!(ended.len(), 2);
        for record in ended {
            assert_eq!((record.start_ns(), record.end_ns()), (time_ns, time_ns));
        }
    }
}

#[test]
fn padding_is_not_counted_and_lengths_are_not_trusted() {
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

/// Damaged and random packets, with fragments, in a small table: nothing is lost, nothing panics.
#[test]
fn the_account_adds_up_for_any_input() {
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

/// The records and extra fields of packets a millisecond apart, passed together.
fn with_extras(config: &MeterConfig, packets: &[Vec<u8>]) -> Vec<(Record, OwnedExtra)> {
    #[derive(Default)]
    struct Taken(Vec<(Record, OwnedExtra)>);
    impl RecordSink for Taken {
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

/// Builds Ethernet, tags and IPv6 around a payload.
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

/// The shortcut produces the same records as full dissection, for packets that it supports, nearly
/// supports, truncated anywhere and with any bit flipped; with IP and link bytes, in biflows and
/// uniflows.
#[test]
fn the_shortcut_changes_nothing() {
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
fn the_first_packets_of_records_are_chosen() {
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
        assert_eq!(meter.chosen(), 0, "reported once");
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

/// The memory estimate covers each part that grows.
#[test]
fn memory_grows_with_the_kept_fields() {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 1 << 16;
    config.datagram_count_max = 1 << 10;
    let before = config.memory_len();
    assert!(before >= (1 << 16) * size_of::<Record>());
    config.table.flow_count_max = 1 << 17;
    let more = config.memory_len() - before;
    assert!(more >= (1 << 16) * size_of::<Record>() && more < before);
    config.table.flow_count_max = 1 << 16;
    config.datagram_count_max = 1 << 12;
    let more = config.memory_len() - before;
    let least = 3 * (1 << 10) * 40;
    assert!((least..20 * least).contains(&more), "{more}");
}
