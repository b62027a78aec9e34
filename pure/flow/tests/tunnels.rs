//! The law of fragmented tunnels: for every wrapper, fragmented anywhere, in any order, the flow
//! inside has the same record as without fragments, and each fragment that does not contain the
//! header inside counts in the tunnel's flow.

use barewire_flow::{
    EndReason, HashKey, Input, Level, Meter, MeterConfig, MeterStats, Octets, Record, Sampling,
};
use wire::LinkType;

const MS: u64 = 1_000_000;

/// xorshift64*: sufficient to shuffle.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let seed = std::env::var("BAREWIRE_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 7919 + 1);
        println!("to repeat: BAREWIRE_SEED={seed}");
        Random(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

fn ipv4(net: u8, protocol: u8, ttl: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend([0, 0, ttl, protocol, 0, 0, 10, net, 0, 1, 10, net, 0, 2]);
    bytes.extend(payload);
    bytes
}

fn ipv6(net: u8, next_header: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend([next_header, hop_limit]);
    for end in [1, 2] {
        bytes.extend([0x20, 1, 0xd, 0xb8, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
    }
    bytes.extend(payload);
    bytes
}

fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let mut bytes = ports[0].to_be_bytes().to_vec();
    bytes.extend(ports[1].to_be_bytes());
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// A segment with an option, so that its header is as long as is usual.
fn tcp(flags: u8, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x13, 0x88, 0, 80];
    bytes.extend(seq.to_be_bytes());
    bytes.extend([0, 0, 0, 9, 0x80, flags, 1, 0, 0, 0, 0, 0]);
    bytes.extend([2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]);
    bytes.extend(payload);
    bytes
}

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    bytes.extend(kind.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A wrapper: its name, and the IP protocol and payload that it makes of an IP packet.
type Wrapper = (&'static str, fn(&[u8]) -> (u8, Vec<u8>));

fn ether_type(inside: &[u8]) -> u16 {
    if inside[0] >> 4 == 4 { 0x0800 } else { 0x86dd }
}

fn over_udp(port: u16, header: &[u8], inside: &[u8]) -> (u8, Vec<u8>) {
    (17, udp([40_000, port], &[header, inside].concat()))
}

fn gre(header: &[u8], kind: u16, inside: &[u8]) -> Vec<u8> {
    [&header[..2], &kind.to_be_bytes(), &header[2..], inside].concat()
}

const WRAPPERS: &[Wrapper] = &[
    ("ip", |inside| {
        (if inside[0] >> 4 == 4 { 4 } else { 41 }, inside.to_vec())
    }),
    ("gre", |inside| {
        (47, gre(&[0, 0], ether_type(inside), inside))
    }),
    ("gre with key and sequence number", |inside| {
        let header = [0x30, 0, 0, 0, 0, 7, 0, 0, 0, 1];
        (47, gre(&header, ether_type(inside), inside))
    }),
    ("nvgre", |inside| {
        let frame = ethernet(ether_type(inside), inside);
        (47, gre(&[0x20, 0, 0, 0, 7, 1], 0x6558, &frame))
    }),
    ("erspan", |inside| {
        let frame = ethernet(ether_type(inside), inside);
        let header = [0x10, 0, 0, 0, 0, 1];
        let span = [&[0x10, 5, 0, 3, 0, 0, 0, 0], &frame[..]].concat();
        (47, gre(&header, 0x88be, &span))
    }),
    ("gre in udp", |inside| {
        let (_, gre) = (47, gre(&[0, 0], ether_type(inside), inside));
        over_udp(4754, &[], &gre)
    }),
    ("vxlan", |inside| {
        let frame = ethernet(ether_type(inside), inside);
        over_udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &frame)
    }),
    ("geneve with options", |inside| {
        let frame = ethernet(ether_type(inside), inside);
        let header = [2, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 1, 9, 9, 9, 9];
        over_udp(6081, &header, &frame)
    }),
    ("gtp-u", |inside| {
        let [high, low] = (inside.len() as u16).to_be_bytes();
        over_udp(2152, &[0x30, 255, high, low, 0, 0, 0, 9], inside)
    }),
    ("gtp-u with an extension", |inside| {
        let [high, low] = (inside.len() as u16 + 8).to_be_bytes();
        let header = [0x34, 255, high, low, 0, 0, 0, 9, 0, 0, 0, 0x85, 1, 0, 9, 0];
        over_udp(2152, &header, inside)
    }),
    ("etherip", |inside| {
        let frame = ethernet(ether_type(inside), inside);
        (97, [&[0x30, 0], &frame[..]].concat())
    }),
    ("gtp version 0", |inside| {
        let [high, low] = (inside.len() as u16).to_be_bytes();
        let header = [
            0x1e, 255, high, low, 0, 1, 0, 2, 255, 255, 255, 255, 1, 2, 3, 4, 5, 6, 7, 8,
        ];
        over_udp(3386, &header, inside)
    }),
    ("l2tp", |inside| {
        let protocol = if inside[0] >> 4 == 4 { 0x21 } else { 0x57 };
        over_udp(1701, &[0, 2, 0, 7, 0, 9, 0xff, 3, 0, protocol], inside)
    }),
];

/// Cuts a packet of IP (without extension headers) into fragments of `size` bytes.
fn fragments(packet: &[u8], size: usize, id: u16) -> Vec<Vec<u8>> {
    let is_four = packet[0] >> 4 == 4;
    let (head, payload) = packet.split_at(if is_four { 20 } else { 40 });
    let count = payload.len().div_ceil(size);
    let part = |(at, part): (usize, &[u8])| {
        let (offset, more) = ((at * size) as u16, u16::from(at + 1 < count));
        let mut bytes = head.to_vec();
        if is_four {
            bytes[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
            bytes[4..6].copy_from_slice(&id.to_be_bytes());
            bytes[6..8].copy_from_slice(&((more << 13) | (offset / 8)).to_be_bytes());
        } else {
            bytes[4..6].copy_from_slice(&(8 + part.len() as u16).to_be_bytes());
            bytes.extend([bytes[6], 0]);
            bytes[6] = 44;
            bytes.extend((offset | more).to_be_bytes());
            bytes.extend(u32::from(id).to_be_bytes());
        }
        bytes.extend(part);
        bytes
    };
    payload.chunks(size).enumerate().map(part).collect()
}

fn config(level: Level) -> MeterConfig {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.level = level;
    config.table.flow_count_max = 1024;
    config
}

/// The records of raw IP packets a millisecond apart. The conservation law holds after each.
fn records(config: &MeterConfig, packets: &[Vec<u8>]) -> (Vec<Record>, MeterStats) {
    let mut meter = Meter::new(config).unwrap();
    let mut ended = Vec::new();
    let mut sink = |record: &Record, _: EndReason| ended.push(*record);
    for (at, bytes) in packets.iter().enumerate() {
        let input = Input {
            link: LinkType::RAW,
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: (1 + at as u64) * MS,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut sink);
        assert_eq!(meter.stats().imbalance(), 0);
    }
    meter.finish(&mut sink);
    let stats = meter.stats();
    let counted: u64 = ended.iter().map(Record::packets).sum();
    let known = counted + stats.refused_total() + stats.unsampled;
    assert_eq!(stats.packets + stats.twice, known, "{stats:?}");
    (ended, stats)
}

/// A record without its times, as text: that of the flow inside, or of a tunnel.
fn text(record: &Record) -> String {
    let side = |sent: barewire_flow::Counters| barewire_flow::Counters {
        first_ns: 0,
        last_ns: 0,
        handshake_us: 0,
        ..sent
    };
    let (forward, reverse) = (side(record.forward()), side(record.reverse()));
    format!("{:?} {forward:?} {reverse:?}", record.key())
}

fn is_tunnel(record: &Record) -> bool {
    match record.key().addr(barewire_flow::Side::A) {
        std::net::IpAddr::V4(addr) => addr.octets()[1] == 1,
        std::net::IpAddr::V6(addr) => addr.octets()[4] == 1,
    }
}

fn inside(records: &[Record]) -> Vec<String> {
    let mut texts: Vec<String> = records.iter().filter(|r| !is_tunnel(r)).map(text).collect();
    texts.sort();
    texts
}

fn tunnel_packets(records: &[Record]) -> u64 {
    let tunnels = records.iter().filter(|record| is_tunnel(record));
    tunnels.map(Record::packets).sum()
}

/// The packets inside: a connection and a datagram of both versions.
fn payloads() -> Vec<Vec<u8>> {
    let data = vec![0xa5; 1300];
    vec![
        ipv4(2, 6, 128, 1, &tcp(0x02, 1, &[])),
        ipv4(2, 6, 127, 2, &tcp(0x18, 2, &data)),
        ipv4(2, 17, 128, 3, &udp([5000, 53], &data[..700])),
        ipv6(2, 6, 60, &tcp(0x18, 2, &data)),
        ipv6(2, 17, 61, &udp([5000, 53], &data[..90])),
    ]
}

/// Wraps each payload, and cuts each packet; returns the whole packets, and the fragments of each.
fn wrapped(wrapper: &Wrapper, is_four: bool, size: usize) -> (Vec<Vec<u8>>, Vec<Vec<Vec<u8>>>) {
    let whole = |(at, payload): (usize, Vec<u8>)| {
        let (protocol, bytes) = wrapper.1(&payload);
        match is_four {
            true => ipv4(1, protocol, 64, at as u16 + 1, &bytes),
            false => ipv6(1, protocol, 64, &bytes),
        }
    };
    let whole: Vec<Vec<u8>> = payloads().into_iter().enumerate().map(whole).collect();
    let cut = whole.iter().zip(1..);
    let cut = cut
        .map(|(packet, id)| fragments(packet, size, id))
        .collect();
    (whole, cut)
}

#[test]
fn the_flow_inside_is_that_without_fragments() {
    let mut random = Random::new();
    for wrapper in WRAPPERS {
        for (is_four, size) in [
            (true, 1480),
            (true, 552),
            (true, 64),
            (true, 8),
            (false, 1240),
            (false, 48),
            (false, 8),
        ] {
            let name = (wrapper.0, is_four, size);
            let (whole, cut) = wrapped(wrapper, is_four, size);
            let (expected, _) = records(&config(Level::Inner), &whole);
            assert_eq!(inside(&expected).len(), 4, "{name:?}");
            // More than 32 separate ranges are not put together, so tiny ones stay in order.
            let shuffled = |random: &mut Random, parts: &[Vec<u8>]| {
                let mut parts = parts.to_vec();
                if parts.len() <= 60 {
                    random.shuffle(&mut parts);
                }
                parts
            };
            let packets: Vec<Vec<u8>> = cut
                .iter()
                .flat_map(|parts| shuffled(&mut random, parts))
                .collect();
            let (found, stats) = records(&config(Level::Inner), &packets);
            assert_eq!(inside(&found), inside(&expected), "{name:?}");
            let count = packets.len() as u64;
            assert_eq!(tunnel_packets(&found), count - 5, "{name:?} {stats:?}");
            let reassembled = cut.iter().filter(|parts| parts.len() > 1).count();
            assert_eq!(stats.fragments.reassembled, reassembled as u64);

            let (found, stats) = records(&config(Level::Both), &packets);
            assert_eq!(inside(&found), inside(&expected), "{name:?}");
            assert_eq!(
                (tunnel_packets(&found), stats.twice),
                (count, 5),
                "{name:?}"
            );

            let (found, stats) = records(&config(Level::Outer), &packets);
            assert_eq!(
                (tunnel_packets(&found), stats.twice),
                (count, 0),
                "{name:?}"
            );
            assert_eq!(stats.fragments.reassembled, 0);
        }
    }
}

#[test]
fn a_tunnel_in_a_fragmented_tunnel_is_followed() {
    for outer in WRAPPERS {
        for middle in WRAPPERS {
            let name = (outer.0, middle.0);
            let build = |cut_middle: bool, cut_outer: bool| -> Vec<Vec<u8>> {
                let mut packets = Vec::new();
                for (payload, id) in payloads().iter().zip(1..) {
                    let (protocol, bytes) = middle.1(payload);
                    let packet = ipv4(1, protocol, 63, id, &bytes);
                    let parts = match cut_middle {
                        true => fragments(&packet, 600, id),
                        false => vec![packet],
                    };
                    for (at, part) in parts.iter().enumerate() {
                        let (protocol, bytes) = outer.1(part);
                        let id = id * 10 + at as u16;
                        let packet = ipv4(1, protocol, 64, id, &bytes);
                        packets.extend(match cut_outer {
                            true => fragments(&packet, 400, id),
                            false => vec![packet],
                        });
                    }
                }
                packets
            };
            let (expected, _) = records(&config(Level::Inner), &build(false, false));
            for (cut_middle, cut_outer) in [(true, false), (false, true), (true, true)] {
                let packets = build(cut_middle, cut_outer);
                for level in [Level::Inner, Level::Both] {
                    let (found, _) = records(&config(level), &packets);
                    assert_eq!(inside(&found), inside(&expected), "{name:?} {level:?}");
                }
            }
        }
    }
}

#[test]
fn an_incomplete_packet_counts_in_the_flow_of_the_tunnel() {
    let (_, cut) = wrapped(&WRAPPERS[6], true, 400);
    for missing in 0..3 {
        let mut parts = cut[1].clone();
        parts.remove(missing);
        for level in [Level::Inner, Level::Both] {
            let (found, stats) = records(&config(level), &parts);
            assert_eq!((inside(&found).len(), stats.twice), (0, 0));
            assert_eq!(tunnel_packets(&found), parts.len() as u64);
        }
    }
}

#[test]
fn fragments_that_contradict_each_other_are_not_put_together() {
    let (_, cut) = wrapped(&WRAPPERS[1], true, 400);
    let parts = &cut[1];
    let mut other = parts[1].clone();
    other[30] ^= 1;
    let mut longer = parts[3].clone();
    longer.extend([0; 8]);
    longer[3] += 8;
    // Overlaps a part of the second one.
    let mut shifted = parts[1].clone();
    shifted[7] += 1;
    for (extra, is_put_together) in [
        (&parts[1], true),
        (&parts[0], true),
        (&other, false),
        (&longer, false),
        (&shifted, false),
    ] {
        let packets: Vec<Vec<u8>> = [&parts[0], &parts[1], &parts[3], extra, &parts[2]]
            .into_iter()
            .cloned()
            .collect();
        let (found, stats) = records(&config(Level::Inner), &packets);
        let (within, reassembled) = (u64::from(is_put_together), stats.fragments.reassembled);
        assert_eq!((inside(&found).len() as u64, reassembled), (within, within));
        assert_eq!(tunnel_packets(&found), 5 - within);
    }
}

/// Floods of first fragments, last fragments, and of pieces of huge datagrams.
#[test]
fn hostile_fragments_are_bounded_and_counted() {
    let mut random = Random::new();
    let (_, cut) = wrapped(&WRAPPERS[8], true, 400);
    let mut config = config(Level::Inner);
    config.datagram_count_max = 64;
    config.octets = Octets::Packet;
    let packets: Vec<Vec<u8>> = (0..20_000)
        .map(|_| {
            let parts = &cut[random.below(cut.len())];
            let mut part = parts[random.below(parts.len())].clone();
            let id = random.below(300) as u16;
            part[4..6].copy_from_slice(&id.to_be_bytes());
            if random.below(4) == 0 {
                let field = random.below(1 << 16) as u16;
                part[6..8].copy_from_slice(&field.to_be_bytes());
            }
            if random.below(4) == 0 {
                part.truncate(20 + random.below(part.len() - 20));
            }
            part
        })
        .collect();
    for level in [Level::Inner, Level::Both] {
        config.level = level;
        for sampling in [Sampling::All, Sampling::Hash(2), Sampling::Count(3)] {
            config.sampling = sampling;
            let (_, stats) = records(&config, &packets);
            assert_eq!(stats.packets, packets.len() as u64);
            assert!(stats.fragments.evicted > 0);
        }
    }
}

/// Whatever the sampling by address pair makes of the tunnel, it decides on the flow inside alone.
#[test]
fn sampling_by_addresses_selects_the_flow_inside() {
    let (whole, cut) = wrapped(&WRAPPERS[8], true, 400);
    let packets: Vec<Vec<u8>> = cut.into_iter().flatten().collect();
    for seed in 0..16 {
        let mut config = config(Level::Inner);
        config.hash_key = HashKey::from_seed(seed);
        config.sampling = Sampling::Hash(2);
        let (expected, _) = records(&config, &whole);
        let (found, _) = records(&config, &packets);
        assert_eq!(inside(&found), inside(&expected), "seed {seed}");
    }
}
