//! SYNs as usual clients send them, made from those of a flood.
//!
//! In the first seconds little is known of a service's clients, and a rule against SYNs must not
//! match theirs. So it has to distinguish the flood from what usual systems would send from the
//! same place: with the system's options, window and flags, and as far as a client may have them,
//! with the flood's own addresses, distance, MSS and window scale. In the same way a rule against
//! impossible TCP flags has to leave alone segments that differ in the flags only.

use std::net::IpAddr;

use ::filter::derive::Packet;
use ::filter::p0f::{HOPS_MAX, RawSignature, TcpOption, raw_signature};
use traffic::Rng;

use super::segment::Segment;

/// SYNs of a usual system.
struct System {
    initial_ttl: u8,
    /// Kinds of the TCP options in their order. Bytes after them are zero.
    options: &'static [u8],
    /// Windows; up to 100 it is a multiple of the MSS, and 0 the largest multiple that fits.
    windows: &'static [u16],
    scales: &'static [u8],
}

const NOP: u8 = 1;
const MSS: u8 = 2;
const SCALE: u8 = 3;
const SACK: u8 = 4;
const TIMES: u8 = 8;

/// Linux and Android, with timestamps and without; Windows; macOS and iOS; FreeBSD.
const SYSTEMS: &[System] = &[
    System {
        initial_ttl: 64,
        options: &[MSS, SACK, TIMES, NOP, SCALE],
        windows: &[0, 65_535, 20, 10, 29_200, 64_240, 44, 22],
        scales: &[7, 8, 9, 10, 6, 5, 11, 4, 3, 2],
    },
    System {
        initial_ttl: 64,
        options: &[MSS, NOP, NOP, SACK, NOP, SCALE],
        windows: &[0, 65_535, 20, 10, 29_200],
        scales: &[7, 8, 9, 10],
    },
    System {
        initial_ttl: 128,
        options: &[MSS, NOP, SCALE, NOP, NOP, SACK],
        windows: &[0, 65_535, 64_240, 8_192],
        scales: &[8, 2, 0],
    },
    System {
        initial_ttl: 128,
        options: &[MSS, NOP, NOP, SACK],
        windows: &[0, 65_535, 8_192, 16_384],
        scales: &[0],
    },
    System {
        initial_ttl: 64,
        options: &[MSS, NOP, SCALE, NOP, NOP, TIMES, SACK],
        windows: &[65_535],
        scales: &[6, 5, 8, 4, 3],
    },
    System {
        initial_ttl: 64,
        options: &[MSS, NOP, SCALE, SACK, TIMES],
        windows: &[65_535],
        scales: &[6, 7, 8, 3],
    },
];

/// Maximum number of the flood's SYNs that are used.
const USED_MAX: usize = 320;
/// Sources that have this many bits in common, in IPv4 and IPv6, are a network that clients of the
/// service are unlikely to come from alone.
const NETWORK_LEN: [u32; 2] = [16, 32];
const SEED: u64 = 0x5eed_c11e;

/// SYNs of usual clients of the service that these SYNs flood, with the number of their VLAN tags.
pub(super) fn usual(flood: &[Packet<'_>]) -> Vec<(u8, Vec<u8>)> {
    let step = flood.len().div_ceil(USED_MAX).max(1);
    let is_network = is_network(flood);
    let mut rng = Rng::new(SEED);
    let mut made = Vec::new();
    for (number, packet) in flood.iter().step_by(step).enumerate() {
        let Some(raw) = raw_signature(packet.bytes) else {
            continue;
        };
        for system in SYSTEMS {
            let mut syn = system.syn(packet.bytes, &raw, number, &mut rng);
            if is_network {
                move_source(&mut syn, &mut rng);
            }
            made.push((packet.tags, syn));
        }
    }
    made
}

/// SYN, SYN+ACK, ACK, RST and RST+ACK; PSH and FIN come with ACK.
const POSSIBLE: [u8; 8] = [0x02, 0x12, 0x10, 0x18, 0x11, 0x19, 0x04, 0x14];

/// These segments with flags that a TCP sends, with the number of their VLAN tags.
pub(super) fn possible(flood: &[Packet<'_>]) -> Vec<(u8, Vec<u8>)> {
    let step = flood.len().div_ceil(USED_MAX).max(1);
    let used = flood.iter().step_by(step);
    let with = |packet: &Packet<'_>, flags: u8| {
        let mut ip = packet.bytes.to_vec();
        let is_set = Segment::set_flags(&mut ip, flags).is_some();
        is_set.then_some((packet.tags, ip))
    };
    used.flat_map(|packet| {
        POSSIBLE
            .iter()
            .filter_map(move |flags| with(packet, *flags))
    })
    .collect()
}

/// Whether all sources are in one network.
fn is_network(flood: &[Packet<'_>]) -> bool {
    let mut sources =
        flood
            .iter()
            .filter_map(|packet| match Segment::of(packet.bytes)?.flow.source {
                IpAddr::V4(source) => Some((false, u128::from(source.to_bits()) << 96)),
                IpAddr::V6(source) => Some((true, source.to_bits())),
            });
    let Some((is_v6, first)) = sources.next() else {
        return false;
    };
    let len = NETWORK_LEN[usize::from(is_v6)];
    sources.all(|source| source.0 == is_v6 && (source.1 ^ first).leading_zeros() >= len)
}

/// Gives a packet a source from anywhere.
fn move_source(ip: &mut [u8], rng: &mut Rng) {
    let source = match ip[0] >> 4 {
        4 => 12..16,
        _ => 8..16,
    };
    for byte in &mut ip[source] {
        *byte = rng.next_u64() as u8;
    }
}

impl System {
    /// A SYN to the service of another one.
    fn syn(&self, other: &[u8], raw: &RawSignature, number: usize, rng: &mut Rng) -> Vec<u8> {
        let is_v6 = other[0] >> 4 == 6;
        let ip_len = if is_v6 { 40 } else { 20 };
        let mss_max = 1_500 - 20 - ip_len as u16;
        let mss = match raw.mss {
            mss @ 536.. if mss <= mss_max => mss,
            _ => mss_max,
        };
        let has_scale = raw.layout.contains(&TcpOption::WindowScale);
        let scale = Some(raw.scale).filter(|scale| has_scale && self.scales.contains(scale));
        let scale = scale.unwrap_or(self.scales[number % self.scales.len()]);
        let options = self.tcp_options(mss, scale, rng);
        let tcp_len = 20 + options.len();
        let mut syn = other[..ip_len].to_vec();
        let ttl = match self.initial_ttl.checked_sub(raw.ttl) {
            Some(hops) if hops <= HOPS_MAX => raw.ttl,
            _ => self.initial_ttl - number as u8 % HOPS_MAX,
        };
        let random = rng.next_u64().to_be_bytes();
        if is_v6 {
            syn[..4].copy_from_slice(&[0x60, random[0] & 0xf, random[1], random[2] | 1]);
            syn[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
            syn[7] = ttl;
        } else {
            syn[..2].copy_from_slice(&[0x45, 0]);
            syn[2..4].copy_from_slice(&((ip_len + tcp_len) as u16).to_be_bytes());
            syn[4..9].copy_from_slice(&[random[0], random[1] | 1, 0x40, 0, ttl]);
        }
        let window = match self.windows[number % self.windows.len()] {
            0 => u16::MAX / mss * mss,
            count @ ..=100 => mss.saturating_mul(count),
            window => window,
        };
        let to = usize::from(match is_v6 {
            true => 42_u8,
            false => (other[0] & 0xf) * 4 + 2,
        });
        let random = rng.next_u64().to_be_bytes();
        syn.extend([random[0] | 0x80, random[1], other[to], other[to + 1]]);
        syn.extend([random[2], random[3], random[4], random[5] | 1, 0, 0, 0, 0]);
        syn.extend([((tcp_len / 4) << 4) as u8, 0x02]);
        syn.extend(window.to_be_bytes());
        syn.extend([random[6], random[7], 0, 0]);
        syn.extend(options);
        syn
    }

    fn tcp_options(&self, mss: u16, scale: u8, rng: &mut Rng) -> Vec<u8> {
        let mut bytes = Vec::new();
        for kind in self.options {
            match *kind {
                MSS => bytes.extend([MSS, 4, mss.to_be_bytes()[0], mss.to_be_bytes()[1]]),
                SCALE => bytes.extend([SCALE, 3, scale]),
                SACK => bytes.extend([SACK, 2]),
                TIMES => {
                    let now = rng.next_u64().to_be_bytes();
                    bytes.extend([TIMES, 10, now[0], now[1], now[2], now[3] | 1, 0, 0, 0, 0]);
                }
                kind => bytes.push(kind),
            }
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signatures of p0f's database, and those of today's systems.
    const SIGNATURES: [&str; 6] = [
        ":0:1400:mss*46,7:mss,sok,ts,nop,ws:",
        ":0:1400:mss*46,7:mss,nop,nop,sok,nop,ws:",
        ":0:1400:mss*46,8:mss,nop,ws,nop,nop,sok:",
        ":0:1400:mss*46,0:mss,nop,nop,sok:",
        ":0:1400:65535,6:mss,nop,ws,nop,nop,ts,sok,eol+1:",
        ":0:1400:65535,6:mss,nop,ws,sok,ts:",
    ];

    /// A SYN with an MSS of 1,400 and nothing else, from 64 hops away at most.
    fn flood(source: u32) -> Vec<u8> {
        let mut ip = vec![0x45, 0, 0, 44, 0, 1, 0, 0, 60, 6, 0, 0];
        ip.extend(source.to_be_bytes());
        ip.extend([192, 0, 2, 1, 4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 2]);
        ip.extend([2, 0, 0, 0, 0, 0, 2, 4, 0x05, 0x78]);
        ip
    }

    fn packets(all: &[Vec<u8>]) -> Vec<Packet<'_>> {
        let packet = |bytes| Packet { tags: 0, bytes };
        all.iter().map(|bytes| packet(bytes)).collect()
    }

    #[test]
    fn the_syns_have_the_signatures_of_usual_systems() {
        let all = [flood(0x0a00_0001), flood(0xc0a8_0001)];
        let made = usual(&packets(&all));
        assert_eq!(made.len(), 2 * SIGNATURES.len());
        for ((_, syn), part) in made.iter().zip(SIGNATURES) {
            let raw = raw_signature(syn).unwrap();
            let text = raw.to_string();
            assert!(text.contains(part) && text.ends_with(":df,id+:0"), "{text}");
            // The service, the distance and the source are those of the flood.
            assert_eq!(&syn[12..20], &all[0][12..20]);
            assert_eq!(&syn[22..24], &[0, 80]);
            assert!(raw.ttl == 60 || raw.initial_ttl() == 128, "{text}");
        }
    }

    #[test]
    fn the_syns_are_whole_in_ipv6() {
        let mut ip = vec![0x60, 0, 0, 0, 0, 24, 6, 50];
        ip.extend([0x20; 32]);
        ip.extend(&flood(1)[20..]);
        for ((_, syn), part) in usual(&packets(&[ip.clone()])).iter().zip(SIGNATURES) {
            let text = raw_signature(syn).unwrap().to_string();
            assert!(text.starts_with("6:") && text.contains(part), "{text}");
            assert!(text.ends_with(":flow:0"), "{text}");
            // One source is a network: clients come from elsewhere.
            assert_ne!(&syn[8..16], &ip[8..16]);
            assert_eq!(&syn[24..40], &ip[24..40]);
            assert_eq!(&syn[42..44], &[0, 80]);
        }
    }

    #[test]
    fn clients_do_not_all_come_from_the_one_network_of_a_flood() {
        let all: Vec<_> = (0..50).map(|host| flood(0x6440_0000 + host)).collect();
        let made = usual(&packets(&all));
        let inside = made.iter().filter(|(_, syn)| syn[12..14] == [0x64, 0x40]);
        assert_eq!(inside.count(), 0);
    }
}
