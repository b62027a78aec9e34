//! Distributes packets over the queues of an application, by a hash that is the same for both
//! directions of a flow.

use wire::{Dissection, Fragment, LinkType};

/// How packets are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// By addresses, ports and protocol: all packets of a connection are in one queue. Fragments
    /// are distributed by addresses and protocol, because only the first one has the ports.
    #[default]
    Flow,
    /// By addresses: all packets between two hosts are in one queue.
    Addresses,
    /// One after the other: equal load, flows are split.
    RoundRobin,
}

impl Balance {
    /// The name in output and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Addresses => "addresses",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// Mixes the bits of a word (the finalizer of MurmurHash3, public domain).
#[inline]
fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

/// The hash of one end: an address and a port.
#[inline]
fn end(address: [u8; 16], port: u16) -> u64 {
    let [high, low] = [0, 8].map(|at| {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7].map(|byte| address[at + byte]);
        u64::from_ne_bytes(bytes)
    });
    mix(mix(high ^ u64::from(port)).wrapping_add(low))
}

/// Hashes packets of one link type.
pub(super) struct Hasher {
    link_type: LinkType,
    balance: Balance,
    dissection: Box<Dissection>,
}

impl Hasher {
    pub fn new(link_type: LinkType, balance: Balance) -> Self {
        Self {
            link_type,
            balance,
            dissection: Box::new(Dissection::EMPTY),
        }
    }

    /// The hash of a packet, of which `bytes` are present.
    #[inline]
    pub fn hash(&mut self, bytes: &[u8], wire_len: u32) -> u64 {
        let packet = &mut *self.dissection;
        wire::dissect(self.link_type, bytes, wire_len, packet);
        if packet.ip_version == 0 {
            return self.by_stations(bytes);
        }
        let is_flow = self.balance == Balance::Flow;
        let has_ports = is_flow && packet.has_ports() && packet.fragment == Fragment::Whole;
        let ports = match has_ports {
            true => [packet.src_port, packet.dst_port],
            false => [0; 2],
        };
        // The sum is the same in both directions.
        let both = end(packet.src, ports[0]).wrapping_add(end(packet.dst, ports[1]));
        let protocol = if is_flow { packet.ip_protocol } else { 0 };
        mix(both ^ u64::from(protocol))
    }

    /// Of packets without an IP header: by the addresses of the stations.
    fn by_stations(&self, bytes: &[u8]) -> u64 {
        match bytes.first_chunk::<12>() {
            Some([a, b, c, d, e, f, g, h, i, j, k, l]) if self.link_type == LinkType::ETHERNET => {
                let station = |m: [&u8; 6]| {
                    let [a, b, c, d, e, f] = m.map(|byte| u64::from(*byte));
                    mix(a << 40 | b << 32 | c << 24 | d << 16 | e << 8 | f)
                };
                mix(station([a, b, c, d, e, f]).wrapping_add(station([g, h, i, j, k, l])))
            }
            _ => 0,
        }
    }
}

/// The queue of a hash, from 0 up to `count`.
#[inline]
pub(super) fn pick(hash: u64, count: u32) -> u32 {
    (((hash >> 32) * u64::from(count)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet packet with IPv4 and UDP between these ends; `fragment` is the IP field.
    fn packet(from: (u32, u16), to: (u32, u16), fragment: u16) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, from.0 as u8, 2, 0, 0, 0, 0, to.0 as u8, 8, 0];
        bytes.extend([0x45, 0, 0, 28, 0, 1]);
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([64, 17, 0, 0]);
        bytes.extend((0x0a00_0000 + from.0).to_be_bytes());
        bytes.extend((0x0a00_0000 + to.0).to_be_bytes());
        bytes.extend(from.1.to_be_bytes());
        bytes.extend(to.1.to_be_bytes());
        bytes.extend([0, 8, 0, 0]);
        bytes
    }

    fn hash(balance: Balance, bytes: &[u8]) -> u64 {
        Hasher::new(LinkType::ETHERNET, balance).hash(bytes, bytes.len() as u32)
    }

    #[test]
    fn both_directions_and_all_fragments_have_one_hash() {
        let (a, b) = ((1, 1000), (2, 53));
        for balance in [Balance::Flow, Balance::Addresses] {
            let there = hash(balance, &packet(a, b, 0));
            assert_eq!(there, hash(balance, &packet(b, a, 0)));
            let other = hash(balance, &packet((1, 1001), b, 0));
            assert_eq!(there == other, balance == Balance::Addresses);
        }
        // The first fragment has ports, the last has not.
        let first = hash(Balance::Flow, &packet(a, b, 0x2000));
        assert_eq!(first, hash(Balance::Flow, &packet((1, 7), (2, 9), 0x0001)));
        let arp = [packet(a, b, 0), packet(b, a, 0)].map(|mut bytes| {
            bytes[12..14].copy_from_slice(&[8, 6]);
            hash(Balance::Flow, &bytes)
        });
        assert_eq!(arp[0], arp[1]);
        assert_eq!(hash(Balance::Flow, &[]), hash(Balance::Flow, &[1]));
    }

    #[test]
    fn flows_are_spread_evenly() {
        for count in [1, 2, 3, 4, 7] {
            let mut queues = vec![0; count as usize];
            for flow in 0..4000_u32 {
                let bytes = packet((flow / 100, (flow % 100) as u16), (777, 80), 0);
                queues[pick(hash(Balance::Flow, &bytes), count) as usize] += 1;
            }
            let mean = 4000 / count;
            let is_even = queues.iter().all(|&flows| flows > mean * 8 / 10);
            assert!(is_even, "{queues:?}");
        }
        assert_eq!((pick(0, 4), pick(u64::MAX, 4)), (0, 3));
    }
}
