//! TCP SYN probes: frames prepared once, stamped with what differs.
//!
//! The sums of all that stays are kept, so a checksum costs the addition of what was stamped.

use std::net::IpAddr;

use wire::Mac;
use wire::checksum::Sum;

use crate::cookie::{Aim, Cookie};
use crate::source::Source;

/// TCP options of a SYN, which decide what the far end takes the sender for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Options {
    /// MSS alone: the shortest probe that every stack and middlebox takes for a SYN.
    #[default]
    Minimal,
    /// As Linux: MSS, SACK, timestamp, window scale.
    Linux,
    /// As Windows: MSS, window scale, SACK.
    Windows,
    /// As FreeBSD and macOS: MSS, window scale, SACK, timestamp.
    Bsd,
}

impl Options {
    /// The options' bytes, and where in them the timestamp's value is.
    fn bytes(self) -> (&'static [u8], Option<usize>) {
        match self {
            Self::Minimal => (&[2, 4, 5, 0xb4], None),
            Self::Linux => (
                &[
                    2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 3, 7,
                ],
                Some(8),
            ),
            Self::Windows => (&[2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2], None),
            Self::Bsd => (
                &[
                    2, 4, 5, 0xb4, 1, 3, 3, 6, 4, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0,
                ],
                Some(12),
            ),
        }
    }

    /// The window that goes with them.
    fn window(self) -> u16 {
        match self {
            Self::Minimal => 1024,
            Self::Linux => 64_240,
            Self::Windows | Self::Bsd => 65_535,
        }
    }
}

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const SYN: u8 = 0x02;
const TCP: u8 = 6;

/// A SYN of one family without destination, ports and numbers.
#[derive(Clone, Debug)]
struct Frame {
    bytes: Vec<u8>,
    tcp_at: usize,
    /// Of the IPv4 header as it is in `bytes`.
    ip_sum: Sum,
    /// Of the pseudo header without destination, and of the TCP header as it is in `bytes`.
    tcp_sum: Sum,
    timestamp_at: Option<usize>,
}

impl Frame {
    fn new(ethertype: u16, src_mac: Mac, ip: &[u8], src: &[u8], options: Options) -> Self {
        let (option_bytes, timestamp) = options.bytes();
        let mut bytes = vec![0; 6];
        bytes.extend(src_mac.0);
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(ip);
        let tcp_at = bytes.len();
        let tcp_len = TCP_LEN + option_bytes.len();
        bytes.resize(tcp_at + TCP_LEN, 0);
        bytes[tcp_at + 12] = (tcp_len as u8 / 4) << 4;
        bytes[tcp_at + 13] = SYN;
        bytes[tcp_at + 14..tcp_at + 16].copy_from_slice(&options.window().to_be_bytes());
        bytes.extend(option_bytes);
        let tcp_sum = Sum::new()
            .add_bytes(src)
            .add_u16(u16::from(TCP))
            .add_u16(tcp_len as u16)
            .add_bytes(&bytes[tcp_at..]);
        Self {
            ip_sum: Sum::new().add_bytes(ip),
            tcp_sum,
            timestamp_at: timestamp.map(|at| tcp_at + TCP_LEN + at),
            tcp_at,
            bytes,
        }
    }

    fn ipv4(src_mac: Mac, src: [u8; 4], ttl: u8, options: Options) -> Self {
        let len = IPV4_LEN + TCP_LEN + options.bytes().0.len();
        let mut ip = [0; IPV4_LEN];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        // Don't fragment, as all stacks set it in SYNs.
        ip[6] = 0x40;
        ip[8] = ttl;
        ip[9] = TCP;
        ip[12..16].copy_from_slice(&src);
        Self::new(0x0800, src_mac, &ip, &src, options)
    }

    fn ipv6(src_mac: Mac, src: [u8; 16], ttl: u8, options: Options) -> Self {
        let len = TCP_LEN + options.bytes().0.len();
        let mut ip = [0; IPV6_LEN];
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        ip[6] = TCP;
        ip[7] = ttl;
        ip[8..24].copy_from_slice(&src);
        Self::new(0x86dd, src_mac, &ip, &src, options)
    }

    /// Stamps ports and numbers, and the checksum over them and `dst_sum`.
    #[inline]
    fn stamp_tcp(&self, out: &mut [u8], dst_sum: Sum, src_port: u16, dst_port: u16, c: &Cookie) {
        let mut sum = dst_sum.add_u16(src_port).add_u16(dst_port).add_u32(c.seq);
        let tcp = &mut out[self.tcp_at..];
        tcp[0..2].copy_from_slice(&src_port.to_be_bytes());
        tcp[2..4].copy_from_slice(&dst_port.to_be_bytes());
        tcp[4..8].copy_from_slice(&c.seq.to_be_bytes());
        if let Some(at) = self.timestamp_at {
            sum = sum.add_u32(c.timestamp);
            out[at..at + 4].copy_from_slice(&c.timestamp.to_be_bytes());
        }
        out[self.tcp_at + 16..self.tcp_at + 18].copy_from_slice(&sum.finish().to_be_bytes());
    }
}

/// Writes SYN probes from one source.
#[derive(Clone, Debug)]
pub struct Syns {
    source: Source,
    v4: Option<Frame>,
    v6: Option<Frame>,
}

impl Syns {
    /// Probes from `source` with this MAC address, TTL (or hop limit) and TCP options.
    pub fn new(source: Source, src_mac: Mac, ttl: u8, options: Options) -> Self {
        let v4 = source
            .ipv4
            .map(|src| Frame::ipv4(src_mac, src.octets(), ttl, options));
        let v6 = source
            .ipv6
            .map(|src| Frame::ipv6(src_mac, src.octets(), ttl, options));
        Self { source, v4, v6 }
    }

    /// Length of a probe to this address in bytes; 0 if there is no source address of its family.
    pub fn len(&self, addr: IpAddr) -> usize {
        self.frame(addr).map_or(0, |frame| frame.bytes.len())
    }

    fn frame(&self, addr: IpAddr) -> Option<&Frame> {
        match addr {
            IpAddr::V4(_) => self.v4.as_ref(),
            IpAddr::V6(_) => self.v6.as_ref(),
        }
    }

    /// Writes a probe to the start of `out`; its length, or `None` if it does not fit or there is
    /// no source address of its family.
    #[inline]
    pub fn write(&self, aim: &Aim, cookie: &Cookie, mac: Mac, out: &mut [u8]) -> Option<usize> {
        let frame = self.frame(aim.addr)?;
        let out = out.get_mut(..frame.bytes.len())?;
        out.copy_from_slice(&frame.bytes);
        out[..6].copy_from_slice(&mac.0);
        let src_port = self.source.port(cookie);
        let ip = &mut out[ETHERNET_LEN..];
        let dst_sum = match aim.addr {
            IpAddr::V4(addr) => {
                let dst = addr.to_bits();
                let sum = frame.ip_sum.add_u32(dst).add_u16(cookie.ip_id);
                ip[4..6].copy_from_slice(&cookie.ip_id.to_be_bytes());
                ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
                ip[16..20].copy_from_slice(&addr.octets());
                frame.tcp_sum.add_u32(dst)
            }
            IpAddr::V6(addr) => {
                ip[24..40].copy_from_slice(&addr.octets());
                frame.tcp_sum.add_bytes(&addr.octets())
            }
        };
        frame.stamp_tcp(out, dst_sum, src_port, aim.port, cookie);
        Some(frame.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use wire::{Dissection, LinkType, Reason, dissect};

    use super::*;
    use crate::probe::Probe;

    #[test]
    fn probes_are_whole_packets_with_right_checksums() {
        let source = Source {
            ipv4: Some([198, 51, 100, 7].into()),
            ipv6: Some("2001:db8::7".parse().unwrap()),
            ports: (61_000, 4_000),
        };
        for options in [
            Options::Minimal,
            Options::Linux,
            Options::Windows,
            Options::Bsd,
        ] {
            let syns = Syns::new(source, Mac([2, 0, 0, 0, 0, 1]), 64, options);
            for (n, addr) in (0u32..).zip(["192.0.2.1", "255.255.255.255", "2001:db8:9::1"]) {
                let addr: IpAddr = addr.parse().unwrap();
                let (probe, port) = (Probe::Syn, 443);
                let cookie = Cookie {
                    seq: 0xfedc_ba98 + n,
                    source_port: u32::MAX / 3 * n,
                    ip_id: 0xffff,
                    timestamp: 0x8000_0001,
                };
                let aim = Aim { addr, probe, port };
                let mut out = [0xaa; 128];
                let mac = Mac([2, 0, 0, 0, 0, 2]);
                let len = syns.write(&aim, &cookie, mac, &mut out).unwrap();
                assert_eq!(len, syns.len(addr));
                let mut d = Dissection::EMPTY;
                dissect(LinkType::ETHERNET, &out[..len], len as u32, &mut d);
                assert_eq!(d.reason, Reason::Complete);
                assert_eq!((d.dst_addr(), d.dst_port), (Some(addr), 443));
                assert_eq!((d.tcp_seq, d.tcp_flags), (cookie.seq, 2));
                assert!((61_000..65_000).contains(&d.src_port));
                let tcp = &out[usize::from(d.transport_offset)..len];
                let sum = match (d.src_addr(), addr) {
                    (Some(IpAddr::V4(src)), IpAddr::V4(dst)) => {
                        let ip = &out[14..34];
                        assert_eq!(Sum::new().add_bytes(ip).finish(), 0, "{options:?}");
                        Sum::new().add_pseudo_ipv4(src, dst, 6, tcp.len() as u16)
                    }
                    (Some(IpAddr::V6(src)), IpAddr::V6(dst)) => {
                        Sum::new().add_pseudo_ipv6(src, dst, 6, tcp.len() as u32)
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(sum.add_bytes(tcp).finish(), 0, "{options:?} {addr}");
                let mut short = vec![0; len - 1];
                assert_eq!(syns.write(&aim, &cookie, mac, &mut short), None);
            }
        }
    }

    #[test]
    fn every_source_port_is_used_and_no_other() {
        let source = |first, count| Source {
            ipv4: None,
            ipv6: None,
            ports: (first, count),
        };
        let port = |source: Source, bits| {
            source.port(&Cookie {
                source_port: bits,
                ..Cookie::default()
            })
        };
        let ten = source(40_000, 10);
        let mut seen: Vec<u16> = (0..10_000).map(|n| port(ten, n * 429_496)).collect();
        seen.dedup();
        assert_eq!(seen, (40_000..40_010).collect::<Vec<u16>>());
        assert_eq!(port(source(65_535, 1), u32::MAX), 65_535);
    }
}
