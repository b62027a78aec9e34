//! Floods that differ from good packets by properties that are planted: one, or two that are each
//! frequent among good packets, too. Everything else has the same distribution. An expression that
//! separates them exists, so it has to be found, with any share of good packets in the sample.

use super::mixtures::{SHARES, mixed, packets};
use super::*;

/// A property of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Property {
    Network,
    Networks,
    Hosts,
    DestinationPort,
    DestinationPorts,
    Ttl,
    TtlRange,
    Length,
    LengthRange,
    Dscp,
    Fragmentation,
    /// A word of the options of TCP, or of the payload of UDP.
    Word,
    /// One byte among random ones.
    Byte,
    Window,
}

use Property::*;

const ALL: [Property; 14] = [
    Network,
    Networks,
    Hosts,
    DestinationPort,
    DestinationPorts,
    Ttl,
    TtlRange,
    Length,
    LengthRange,
    Dscp,
    Fragmentation,
    Word,
    Byte,
    Window,
];

/// How packets with and without the planted properties are made.
struct World {
    is_tcp: bool,
    is_v6: bool,
    planted: Vec<Property>,
    /// Distinguishes worlds: the values of properties are derived from it.
    salt: u32,
}

impl World {
    fn new(random: &mut Random) -> World {
        let (is_tcp, is_v6) = (random.below(2) == 0, random.below(4) == 0);
        let mut planted = Vec::new();
        let count = 1 + random.below(2) as usize;
        while planted.len() < count {
            let property = ALL[random.below(ALL.len() as u64) as usize];
            let exists = match property {
                Window => is_tcp,
                Length | LengthRange => !is_tcp,
                Fragmentation => !is_v6,
                _ => true,
            };
            let is_free = |other: &Property| place(*other) != place(property);
            if exists && planted.iter().all(is_free) {
                planted.push(property);
            }
        }
        World {
            is_tcp,
            is_v6,
            planted,
            salt: random.next() as u32,
        }
    }

    fn flood(&self, random: &mut Random) -> Vec<u8> {
        self.packet(&self.planted, random)
    }

    /// A good packet has at most all but one of the properties.
    fn good(&self, random: &mut Random) -> Vec<u8> {
        let missing = random.below(self.planted.len() as u64) as usize;
        let mut has = self.planted.clone();
        has.remove(missing);
        has.retain(|_| random.below(4) > 0);
        self.packet(&has, random)
    }

    fn packet(&self, has: &[Property], random: &mut Random) -> Vec<u8> {
        let has = |property: Property| has.contains(&property);
        let is_planted = |property: Property| self.planted.contains(&property);
        // A value of the flood, or one of others that are never its.
        let pick =
            |property: Property, own: u64, others: &[u64], random: &mut Random| match has(property)
            {
                true => own,
                false => {
                    let at = random.below(others.len() as u64) as usize;
                    let is_usual = !is_planted(property) && random.below(2) == 0;
                    if is_usual { own } else { others[at] }
                }
            };
        let source = self.source(&has, random);
        let ttl = match (has(TtlRange), is_planted(TtlRange)) {
            (true, _) => 31 + random.below(25),
            (false, true) => {
                [56 + random.below(9), 110 + random.below(19)][random.below(2) as usize]
            }
            _ => pick(Ttl, 240, &[64, 63, 57, 52, 128], random),
        } as u8;
        let tos = pick(Dscp, 0x88, &[0, 0, 0x10, 0x2e], random) as u8;
        let flags = pick(Fragmentation, 0, &[0x40], random) as u8;
        let port = match (has(DestinationPorts), is_planted(DestinationPorts)) {
            (true, _) => [123, 161, 389, 1_900, 11_211][random.below(5) as usize],
            (false, true) => [80, 443][random.below(2) as usize],
            _ => pick(DestinationPort, 27_015, &[80, 443, 8_080], random),
        } as u16;
        let window = pick(Window, 512, &[64_240, 65_535, 29_200], random) as u16;
        let word = pick(Word, 0x0204_0218, &[0x0204_05b4, 0x0204_0578], random) as u32;
        let byte = match (has(Byte), is_planted(Byte)) {
            (true, _) => 0x41,
            (false, true) => 0x80 | random.next() as u8,
            _ => random.next() as u8,
        };
        let len = match (has(LengthRange), is_planted(LengthRange)) {
            (true, _) => 700 + random.below(600),
            (false, true) => 20 + random.below(600),
            _ => pick(Length, 333, &[20, 48, 100, 512], random),
        };
        let mut body = word.to_be_bytes().to_vec();
        match self.is_tcp {
            true => body.extend([
                1,
                3,
                3,
                7,
                byte,
                random.next() as u8,
                9,
                random.next() as u8,
            ]),
            false => {
                body.extend([random.next() as u8, byte, random.next() as u8, 9]);
                body.extend((0..len).map(|_| random.next() as u8));
            }
        }
        let transport = self.transport(port, window, &body, random);
        self.network(source, ttl, tos, flags, transport, random)
    }

    fn transport(&self, port: u16, window: u16, body: &[u8], random: &mut Random) -> Vec<u8> {
        let mut transport = (1_024 + random.below(64_000) as u16).to_be_bytes().to_vec();
        transport.extend(port.to_be_bytes());
        if self.is_tcp {
            transport.extend((random.next() as u32).to_be_bytes());
            transport.extend([0, 0, 0, 0, 0x80, 2]);
            transport.extend(window.to_be_bytes());
            transport.extend([random.next() as u8, random.next() as u8, 0, 0]);
        } else {
            transport.extend((8 + body.len() as u16).to_be_bytes());
            transport.extend([random.next() as u8, random.next() as u8]);
        }
        transport.extend(body);
        transport
    }

    /// The upper half of a source of IPv6, or a source of IPv4.
    fn source(&self, has: &dyn Fn(Property) -> bool, random: &mut Random) -> u32 {
        let planted = [Network, Networks, Hosts]
            .into_iter()
            .find(|p| self.planted.contains(p));
        let mixed = |number: u32| (self.salt ^ number).wrapping_mul(0x9e37_79b1);
        let network = |number: u32, random: &mut Random| {
            mixed(number) & 0xff_fffc00 | random.below(1 << 10) as u32
        };
        match planted {
            None => random.next() as u32 & 0x7fff_ffff,
            // Those of the flood are in the upper half of the addresses.
            Some(p) if has(p) => {
                let upper = 1 << 31;
                match p {
                    Network => upper | network(0, random),
                    Networks => upper | (random.below(5) as u32) << 24 | network(1, random),
                    _ => upper | mixed(random.below(12) as u32) >> 1,
                }
            }
            Some(_) => (random.below(20) as u32) << 24 | network(2, random),
        }
    }

    fn network(
        &self,
        source: u32,
        ttl: u8,
        tos: u8,
        flags: u8,
        transport: Vec<u8>,
        random: &mut Random,
    ) -> Vec<u8> {
        let protocol = if self.is_tcp { 6 } else { 17 };
        let len = transport.len() as u16;
        let mut packet = Vec::new();
        if self.is_v6 {
            packet.extend([0x60 | tos >> 4, tos << 4, 0, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([protocol, ttl, 0x20, 1]);
            packet.extend(source.to_be_bytes());
            packet.extend((0..10).map(|_| random.next() as u8));
            packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        } else {
            packet.extend([0x45, tos]);
            packet.extend((20 + len).to_be_bytes());
            packet.extend((random.next() as u16).to_be_bytes());
            packet.extend([flags, 0, ttl, protocol, 0, 0]);
            packet.extend(source.to_be_bytes());
            packet.extend([192, 0, 2, 1]);
        }
        packet.extend(transport);
        packet
    }
}

/// Properties of the same field exclude each other.
fn place(property: Property) -> u8 {
    match property {
        Network | Networks | Hosts => 0,
        DestinationPort | DestinationPorts => 1,
        Ttl | TtlRange => 2,
        Length | LengthRange => 3,
        Dscp => 4,
        Fragmentation => 5,
        Word => 6,
        Byte => 7,
        Window => 8,
    }
}

fn made(count: usize, make: impl FnMut(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    (0..count).map(make).collect()
}

#[test]
fn planted_properties_are_found_in_mixtures() {
    let mut random = Random(0x91a7_7ed5);
    for number in 0..150 {
        let world = World::new(&mut random);
        let share = SHARES[number % SHARES.len()];
        let count = [300, 600, 1_200][number % 3];
        let known = made(count, |_| world.good(&mut random));
        let flood = made(count, |_| world.flood(&mut random));
        let beside = made(count * share / (1_000 - share), |_| world.good(&mut random));
        let sample = mixed(&flood, &beside, &mut random);
        let next = made(500, |_| world.flood(&mut random));
        let others = made(500, |_| world.good(&mut random));
        let derived = derive(
            &packets(&sample, 0),
            &packets(&known, 0),
            &Limits::default(),
        );
        let kind = (world.is_tcp, world.is_v6, &world.planted);
        let case = format!("{number}: {kind:?}, {share} in 1,000 good, {count}");
        for text in [derived.expression(), derived.short_expression()] {
            let text = text.unwrap_or_else(|| panic!("{case}: {derived:?}"));
            let matched = |all: &[Vec<u8>]| taken(&text, &packets(all, 0));
            assert_eq!(matched(&known), 0, "{case}: {text}");
            let found = matched(&flood);
            assert!(100 * found >= 99 * flood.len(), "{case}: {found}: {text}");
            let found = matched(&next);
            assert!(
                100 * found >= 96 * next.len(),
                "{case}: next {found}: {text}"
            );
            let found = matched(&others);
            assert!(50 * found <= others.len(), "{case}: good {found}: {text}");
        }
    }
}
