//! Samples of floods that contain good packets: for each kind of flood beside each share of good
//! packets, the derived expressions match the flood, in the sample and as it continues, and no good
//! packet. The packets are counted by compiling the expressions and running the programs.

use super::*;

/// The attacked server.
const SERVER: u32 = 0xc000_0201;

fn tcp(random: &mut Random, port: u16, flags: u8, window: u16, options: &[u8]) -> Vec<u8> {
    let mut header = ((1_024 + random.below(64_000)) as u16)
        .to_be_bytes()
        .to_vec();
    header.extend(port.to_be_bytes());
    header.extend((random.next() as u32).to_be_bytes());
    let ack = if flags & 0x10 == 0 {
        0
    } else {
        random.next() as u32
    };
    header.extend(ack.to_be_bytes());
    header.extend([((20 + options.len()) as u8 / 4) << 4, flags]);
    header.extend(window.to_be_bytes());
    header.extend([random.next() as u8, random.next() as u8, 0, 0]);
    header.extend(options);
    header
}

/// The options of a client's SYN.
fn options(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![2, 4, 5, 0xb4, 4, 2, 8, 10];
    bytes.extend((random.next() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 1, 3, 3, 7]);
    bytes
}

/// The options of the segments of a connection.
fn times(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![1, 1, 8, 10];
    bytes.extend((random.next()).to_be_bytes());
    bytes
}

fn datagram(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut udp = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    udp
}

fn noise(random: &mut Random, len: u64) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// Builds a packet of a flood or of good traffic.
type Make = fn(&mut Random) -> Vec<u8>;

fn v4(source: u32, ttl: u8, protocol: u8, transport: Vec<u8>) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + transport.len() as u16).to_be_bytes());
    // Any identification.
    let sum = transport
        .iter()
        .fold(source, |sum, byte| sum.wrapping_mul(31) ^ u32::from(*byte));
    packet.extend((sum as u16).to_be_bytes());
    packet.extend([0x40, 0, ttl, protocol, 0, 0]);
    packet.extend(source.to_be_bytes());
    packet.extend(SERVER.to_be_bytes());
    packet.extend(transport);
    packet
}

fn v6(source: u128, ttl: u8, protocol: u8, transport: Vec<u8>) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((transport.len() as u16).to_be_bytes());
    packet.extend([protocol, ttl]);
    packet.extend(source.to_be_bytes());
    packet.extend((0x2001_0db8_u128 << 96 | 1).to_be_bytes());
    packet.extend(transport);
    packet
}

/// A client of the server: half of them in its own network, and from all over the world.
fn client(random: &mut Random) -> u32 {
    match random.below(2) {
        0 => 0x0a09_0001 + random.below(40) as u32,
        _ => 0x5000_0000 + (random.below(60) as u32).wrapping_mul(0x0123_4567) % 0x1000_0000,
    }
}

/// Connections to a web server, name resolution, pings.
fn good(random: &mut Random) -> Vec<u8> {
    let source = client(random);
    let mut ttl = [64, 64, 57, 52, 118][(source % 5) as usize];
    if random.below(5) == 0 {
        return good_v6(random);
    }
    let (protocol, transport) = match random.below(20) {
        0..4 => {
            let options = options(random);
            let port = [80, 80, 80, 8_080][random.below(4) as usize];
            if port == 8_080 {
                ttl = ttl.max(57);
            }
            (6, tcp(random, port, 2, 64_240, &options))
        }
        4..10 => {
            let (times, window) = (times(random), 500 + random.below(20) as u16);
            (6, tcp(random, 80, 0x10, window, &times))
        }
        10..14 => {
            let (times, window) = (times(random), 500 + random.below(20) as u16);
            let mut segment = tcp(random, 80, 0x18, window, &times);
            segment.extend(b"GET /");
            let len = random.below(400);
            segment.extend(noise(random, len));
            (6, segment)
        }
        14..18 => {
            let len = 30 + random.below(150);
            let mut payload = noise(random, 2);
            payload.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            payload.extend(noise(random, len));
            let port = 1_024 + random.below(64_000) as u16;
            (17, datagram(53, port, &payload))
        }
        _ => {
            let mut echo = vec![8, 0, 0, 0];
            echo.extend(noise(random, 4));
            echo.extend(0..56);
            (1, echo)
        }
    };
    v4(source, ttl, protocol, transport)
}

fn good_v6(random: &mut Random) -> Vec<u8> {
    let source = 0x2001_0db8_0000_0009_u128 << 64 | u128::from(random.below(40));
    let options = options(random);
    let transport = match random.below(2) {
        0 => tcp(random, 443, 2, 64_800, &options),
        _ => {
            let times = times(random);
            tcp(random, 443, 0x10, 501, &times)
        }
    };
    v6(source, 64, 6, transport)
}

fn of_network(random: &mut Random) -> Vec<u8> {
    let (options, ttl) = (options(random), 57 + random.below(8) as u8);
    let syn = tcp(random, 80, 2, 64_240, &options);
    let source = 0x6440_0000 + random.below(1 << 14) as u32;
    v4(source, ttl, 6, syn)
}

fn of_networks(random: &mut Random) -> Vec<u8> {
    const NETWORKS: [u32; 6] = [
        0x6440_0000,
        0xcb00_7100,
        0x2d10_0000,
        0xb900_4000,
        0x8000_0000,
        0x1234_5600,
    ];
    let (options, ttl) = (options(random), 40 + random.below(25) as u8);
    let syn = tcp(random, 80, 2, 64_240, &options);
    let source = NETWORKS[random.below(6) as usize] + random.below(250) as u32;
    v4(source, ttl, 6, syn)
}

fn of_bots(random: &mut Random) -> Vec<u8> {
    let bot = random.below(16) as u32;
    let (options, ttl) = (options(random), 44 + (bot % 20) as u8);
    let syn = tcp(random, 80, 2, 64_240, &options);
    v4(
        0x6000_0000 + bot.wrapping_mul(0x9e37_79b1) % 0x3000_0000,
        ttl,
        6,
        syn,
    )
}

fn any_source(random: &mut Random) -> u32 {
    (random.next() as u32).max(1)
}

fn window(random: &mut Random) -> Vec<u8> {
    let syn = tcp(random, 80, 2, 512, &[]);
    let source = any_source(random);
    v4(source, 50 + random.below(15) as u8, 6, syn)
}

fn ttl(random: &mut Random) -> Vec<u8> {
    let options = options(random);
    let syn = tcp(random, 80, 2, 64_240, &options);
    let source = any_source(random);
    v4(source, 243, 6, syn)
}

fn segment_size(random: &mut Random) -> Vec<u8> {
    let mut options = options(random);
    options[3] = 0x64;
    let syn = tcp(random, 80, 2, 64_240, &options);
    let source = any_source(random);
    v4(source, 50 + random.below(15) as u8, 6, syn)
}

fn port(random: &mut Random) -> Vec<u8> {
    let len = random.below(300);
    let payload = noise(random, len);
    let source = any_source(random);
    let udp = datagram(1_024 + random.below(64_000) as u16, 27_015, &payload);
    v4(source, 30 + random.below(200) as u8, 17, udp)
}

fn payload(random: &mut Random) -> Vec<u8> {
    let mut payload = noise(random, 3);
    payload.extend(b"\xff\xffgetstatus\n");
    let len = random.below(20);
    payload.extend(noise(random, len));
    let source = any_source(random);
    let udp = datagram(random.next() as u16, random.next() as u16, &payload);
    v4(source, 30 + random.below(200) as u8, 17, udp)
}

/// Amplified answers of name servers and time servers.
fn reflected(random: &mut Random) -> Vec<u8> {
    let udp = match random.below(3) {
        0 => {
            let payload = [&[0xd7, 0, 3, 0x2a, 0, 6, 0, 0x48][..], &noise(random, 432)].concat();
            datagram(123, 40_000, &payload)
        }
        _ => {
            let mut payload = noise(random, 2);
            payload.extend([0x81, 0x80, 0, 1, 0, 18, 0, 0, 0, 0]);
            let len = 900 + random.below(500);
            payload.extend(noise(random, len));
            datagram(53, 40_000, &payload)
        }
    };
    let source = any_source(random);
    v4(source, 40 + random.below(80) as u8, 17, udp)
}

fn icmp(random: &mut Random) -> Vec<u8> {
    let mut echo = vec![8, 0, 0, 0];
    echo.extend(noise(random, 4));
    echo.extend([b'A'; 120]);
    let source = any_source(random);
    v4(source, 40 + random.below(80) as u8, 1, echo)
}

fn acks(random: &mut Random) -> Vec<u8> {
    let window = random.next() as u16;
    let ack = tcp(random, 80, 0x10, window, &[]);
    let source = any_source(random);
    v4(source, 64 - random.below(20) as u8, 6, ack)
}

fn network_v6(random: &mut Random) -> Vec<u8> {
    let options = options(random);
    let syn = tcp(random, 443, 2, 64_800, &options);
    let source = 0x2a00_1234_u128 << 96 | u128::from(random.next()) << 32 | 1;
    v6(source, 50 + random.below(14) as u8, 6, syn)
}

/// Neither the port nor the TTL alone tells them from clients.
fn port_and_ttl(random: &mut Random) -> Vec<u8> {
    let options = options(random);
    let syn = tcp(random, 8_080, 2, 64_240, &options);
    let source = any_source(random);
    v4(source, 52, 6, syn)
}

/// Queries for random names of a zone.
fn names(random: &mut Random) -> Vec<u8> {
    let mut query = noise(random, 2);
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 12]);
    query.extend(noise(random, 12));
    query.extend(b"\x07example\x03com\0\0\x01\0\x01");
    let source = any_source(random);
    let udp = datagram(1_024 + random.below(64_000) as u16, 53, &query);
    v4(source, 40 + random.below(80) as u8, 17, udp)
}

fn fragments(random: &mut Random) -> Vec<u8> {
    let source = any_source(random);
    let data = noise(random, 600);
    let mut packet = v4(source, 40 + random.below(80) as u8, 17, data);
    packet[6..8].copy_from_slice(&[0x20, 1 + random.below(200) as u8]);
    packet
}

fn tunnels(random: &mut Random) -> Vec<u8> {
    let source = any_source(random);
    let data = noise(random, 100);
    v4(source, 40 + random.below(80) as u8, 47, data)
}

/// To all addresses of a network.
fn carpet(random: &mut Random) -> Vec<u8> {
    let mut packet = payload(random);
    packet[19] = random.next() as u8;
    packet
}

/// Three kinds at a time.
fn several(random: &mut Random) -> Vec<u8> {
    match random.below(10) {
        0..5 => reflected(random),
        5..8 => window(random),
        _ => icmp(random),
    }
}

const FLOODS: &[(&str, Make)] = &[
    ("one network", of_network),
    ("six networks", of_networks),
    ("sixteen hosts", of_bots),
    ("a window", window),
    ("a TTL", ttl),
    ("a segment size", segment_size),
    ("a port", port),
    ("a payload", payload),
    ("reflection", reflected),
    ("pings", icmp),
    ("ACKs", acks),
    ("a network of IPv6", network_v6),
    ("a port and a TTL", port_and_ttl),
    ("queries", names),
    ("fragments", fragments),
    ("tunnels", tunnels),
    ("a carpet", carpet),
    ("three kinds", several),
];

/// How many packets of the flood, of a hundred, a derived expression matches at least: in the
/// sample, and of the next ones.
const MATCHED_MIN: usize = 99;
const NEXT_MIN: usize = 98;

/// Shares of good packets among the flood's, in thousandths.
pub(super) const SHARES: [usize; 5] = [0, 1, 20, 100, 200];

pub(super) fn packets(all: &[Vec<u8>], tags: u8) -> Vec<Packet<'_>> {
    all.iter().map(|bytes| Packet { tags, bytes }).collect()
}

fn made(make: Make, count: usize, random: &mut Random) -> Vec<Vec<u8>> {
    (0..count).map(|_| make(random)).collect()
}

/// A flood and good packets in one sample, in any order.
pub(super) fn mixed(flood: &[Vec<u8>], good: &[Vec<u8>], random: &mut Random) -> Vec<Vec<u8>> {
    let mut all = [flood, good].concat();
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
    all
}

#[test]
fn mixtures_of_a_flood_and_good_packets_are_separated() {
    let mut random = Random(0x6d17_0e5d);
    for (number, (name, make)) in FLOODS.iter().enumerate() {
        let known = made(good, 1_500, &mut random);
        for (at, share) in SHARES.into_iter().enumerate() {
            let tags = ((number + at) % 2) as u8;
            let flood = made(*make, 1_000, &mut random);
            let count = 1_000 * share / (1_000 - share);
            // Some of the good packets in the sample are known, the others are only alike.
            let mut beside = known[..count / 2].to_vec();
            beside.extend(made(good, count - count / 2, &mut random));
            let sample = mixed(&flood, &beside, &mut random);
            let next = made(*make, 1_000, &mut random);
            let others = made(good, 1_000, &mut random);
            let case = format!("{name}, {share} in 1,000 good");
            let derived = derive(
                &packets(&sample, tags),
                &packets(&known, tags),
                &Limits::default(),
            );
            for text in [derived.expression(), derived.short_expression()] {
                let text = text.unwrap_or_else(|| panic!("{case}: {derived:?}"));
                let matched = |all: &[Vec<u8>]| taken(&text, &packets(all, tags));
                assert_eq!(matched(&known), 0, "{case}: {text}");
                let found = matched(&flood);
                assert!(
                    100 * found >= MATCHED_MIN * flood.len(),
                    "{case}: {found}: {text}"
                );
                let found = matched(&next);
                assert!(
                    100 * found >= NEXT_MIN * next.len(),
                    "{case}: next {found}: {text}"
                );
                // Good packets that are not in the sample.
                let found = matched(&others);
                assert!(found <= others.len() / 100, "{case}: good {found}: {text}");
            }
        }
    }
}

#[test]
fn without_good_packets_the_most_of_a_sample_is_the_flood() {
    let mut random = Random(0x0e0e_0001);
    for (name, make) in FLOODS {
        let flood = made(*make, 1_000, &mut random);
        let beside = made(good, 200, &mut random);
        let sample = mixed(&flood, &beside, &mut random);
        let derived = derive(&packets(&sample, 0), &[], &Limits::default());
        let text = derived
            .expression()
            .unwrap_or_else(|| panic!("{name}: {derived:?}"));
        let matched = |all: &[Vec<u8>]| taken(&text, &packets(all, 0));
        let found = matched(&flood);
        assert!(
            100 * found >= MATCHED_MIN * flood.len(),
            "{name}: {found}: {text}"
        );
        // Good packets of the flood's own kind may match, those of others do not.
        let found = matched(&beside);
        assert!(found <= beside.len() / 2, "{name}: good {found}: {text}");
    }
}

/// SYNs like those of clients from all addresses.
fn spoofed(random: &mut Random) -> Vec<u8> {
    let (options, ttl) = (options(random), 40 + random.below(25) as u8);
    let syn = tcp(random, 80, 2, 64_240, &options);
    v4(any_source(random), ttl, 6, syn)
}

/// SYNs of clients in one network.
fn local(random: &mut Random) -> Vec<u8> {
    let options = options(random);
    let syn = tcp(random, 80, 2, 64_240, &options);
    let source = 0x0a09_0001 + random.below(40) as u32;
    v4(source, [64, 64, 57, 52, 118][(source % 5) as usize], 6, syn)
}

#[test]
fn spoofed_packets_like_good_ones_are_separated_by_the_addresses_of_these_alone() {
    let mut random = Random(0x5b00_fed1);
    for share in SHARES {
        let known = made(local, 500, &mut random);
        let flood = made(spoofed, 1_000, &mut random);
        let beside = made(local, 1_000 * share / (1_000 - share), &mut random);
        let sample = mixed(&flood, &beside, &mut random);
        let derived = derive(
            &packets(&sample, 0),
            &packets(&known, 0),
            &Limits::default(),
        );
        assert!(derived.groups.iter().any(|group| group.is_fragile));
        assert_eq!(derived.nearest_good(), Some(1));
        let text = derived.short_expression().unwrap();
        assert!(text.contains("not src net 10.9.0.0/"), "{share}: {text}");
        assert_eq!(taken(&text, &packets(&known, 0)), 0, "{share}: {text}");
        let found = taken(&text, &packets(&flood, 0));
        assert!(
            100 * found >= MATCHED_MIN * flood.len(),
            "{share}: {found}: {text}"
        );
    }
    // All of them are in the sample of good packets: nothing separates them.
    let flood = made(local, 1_000, &mut random);
    let derived = derive(
        &packets(&flood, 0),
        &packets(&flood[..300], 0),
        &Limits::default(),
    );
    assert_eq!(derived.expression(), None, "{derived:?}");
}

#[test]
fn a_few_packets_are_enough() {
    let mut random = Random(0xfe77);
    for (name, make) in FLOODS {
        let known = made(good, 100, &mut random);
        let flood = made(*make, 200, &mut random);
        let beside = made(good, 30, &mut random);
        let sample = mixed(&flood, &beside, &mut random);
        let derived = derive(
            &packets(&sample, 0),
            &packets(&known, 0),
            &Limits::default(),
        );
        let text = derived
            .expression()
            .unwrap_or_else(|| panic!("{name}: {derived:?}"));
        assert_eq!(taken(&text, &packets(&known, 0)), 0, "{name}: {text}");
        let found = taken(&text, &packets(&flood, 0));
        assert!(
            100 * found >= MATCHED_MIN * flood.len(),
            "{name}: {found}: {text}"
        );
        let next = made(*make, 1_000, &mut random);
        let found = taken(&text, &packets(&next, 0));
        assert!(
            100 * found >= 93 * next.len(),
            "{name}: next {found}: {text}"
        );
    }
}
