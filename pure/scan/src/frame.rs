//! Builds probes as frames: a template for each kind, and the fields that differ.
//!
//! The sums of all constant parts are kept, so a checksum only adds the fields that were written.

mod syn;

use std::net::IpAddr;

use wire::Mac;
use wire::checksum::Sum;

use crate::cookie::{Cookie, ProbeTarget};
use crate::neighbour::Solicitor;
use crate::payload::Payloads;
use crate::port::Protocol;
use crate::probe::{Numbers, Probe, Row, Stamp, Template};
use crate::source::Source;
pub(crate) use syn::{SynFields, SynFrame};

/// TCP options of a SYN, by which the target may recognize the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Options {
    /// MSS alone: the shortest SYN that every stack and middlebox accepts.
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
    /// The bytes of the options, and the offset of the timestamp's value in them.
    pub(crate) fn bytes(self) -> (&'static [u8], Option<usize>) {
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

    /// The matching TCP window.
    pub(crate) fn window(self) -> u16 {
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
/// Bytes of a packet that are copied at once: all of a TCP segment without data.
const HEAD_LEN: usize = 96;

/// Properties that all probes share.
#[derive(Clone, Copy, Debug)]
pub struct FrameOptions {
    /// The sender's MAC address.
    pub src_mac: Mac,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TCP options.
    pub options: Options,
}

/// A probe of one kind and family, without destination, ports and numbers.
#[derive(Clone, Debug)]
struct Frame {
    bytes: Vec<u8>,
    /// The first of them, or zeros behind them.
    head: [u8; HEAD_LEN],
    /// Sum of the IPv4 header in `bytes`.
    ip_sum: Sum,
    /// Sum of the pseudo header without the destination, if there is one, and of the transport part
    /// in `bytes`.
    transport_sum: Sum,
    template: Template,
    /// The target's port is the protocol.
    is_any_protocol: bool,
    stamp: fn(&Stamp, &mut [u8], Sum, &Numbers<'_>),
}

impl Frame {
    fn new(row: &Row, look: &FrameOptions, src: IpAddr, template: Template) -> Self {
        let len = template.bytes.len() as u16;
        let is_any_protocol = row.protocol == Protocol::Ip;
        let protocol = match is_any_protocol {
            true => 0,
            false => row.ip_protocol[usize::from(src.is_ipv6())],
        };
        let (ethertype, ip, sum) = match src {
            IpAddr::V4(src) => (
                0x0800u16,
                ipv4(src.octets(), look.ttl, protocol, len),
                Sum::new().add_bytes(&src.octets()),
            ),
            IpAddr::V6(src) => (
                0x86dd,
                ipv6(src.octets(), look.ttl, protocol, len),
                Sum::new().add_bytes(&src.octets()),
            ),
        };
        let pseudo = match template.has_pseudo {
            true => sum.add_u16(u16::from(protocol)).add_u16(len),
            false => Sum::new(),
        };
        let mut bytes = vec![0; 6];
        bytes.extend(look.src_mac.0);
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(&ip);
        bytes.extend(&template.bytes);
        let mut head = [0; HEAD_LEN];
        let head_len = bytes.len().min(HEAD_LEN);
        head[..head_len].copy_from_slice(&bytes[..head_len]);
        Self {
            ip_sum: Sum::new().add_bytes(&ip),
            transport_sum: pseudo.add_bytes(&template.bytes),
            stamp: row.stamp,
            is_any_protocol,
            template,
            head,
            bytes,
        }
    }
}

fn ipv4(src: [u8; 4], ttl: u8, protocol: u8, len: u16) -> Vec<u8> {
    let mut ip = vec![0; IPV4_LEN];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(IPV4_LEN as u16 + len).to_be_bytes());
    // Don't fragment, as all stacks set it in SYNs.
    ip[6] = 0x40;
    ip[8] = ttl;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&src);
    ip
}

fn ipv6(src: [u8; 16], ttl: u8, protocol: u8, len: u16) -> Vec<u8> {
    let mut ip = vec![0; IPV6_LEN];
    ip[0] = 0x60;
    ip[4..6].copy_from_slice(&len.to_be_bytes());
    ip[6] = protocol;
    ip[7] = ttl;
    ip[8..24].copy_from_slice(&src);
    ip
}

/// Writes probes from one source.
#[derive(Clone, Debug)]
pub struct Frames {
    source: Source,
    solicitor: Solicitor,
    /// For IPv4 and for IPv6, indexed as in [`Frames::frame`]; empty without a source address.
    frames: [Vec<Frame>; 2],
    payload_count: usize,
}

impl Frames {
    /// Probes from `source` with these properties and payloads.
    pub fn new(source: Source, look: FrameOptions, payloads: &Payloads) -> Self {
        let payload_count = payloads.as_slice().len();
        let frames = |src: IpAddr| {
            let of = |probe: &Probe| {
                let row = probe.row();
                let frame = move |payload| {
                    let template = (row.template)(src.is_ipv6(), look.options, payload);
                    Frame::new(row, &look, src, template)
                };
                payloads.as_slice().iter().map(frame)
            };
            Probe::ALL.iter().flat_map(of).collect::<Vec<_>>()
        };
        let v4 = source.ipv4.map(|src| frames(src.into()));
        let v6 = source.ipv6.map(|src| frames(src.into()));
        Self {
            source,
            solicitor: Solicitor {
                source,
                mac: look.src_mac,
            },
            frames: [v4.unwrap_or_default(), v6.unwrap_or_default()],
            payload_count,
        }
    }

    /// Length of a probe with this payload in bytes; 0 without a source address of its family.
    #[inline]
    pub fn len(&self, target: &ProbeTarget, payload: u16) -> usize {
        let frame = self.frame(target, payload);
        match target.probe {
            Probe::Arp => frame.map_or(0, |_| Solicitor::len(target.addr)),
            _ => frame.map_or(0, |frame| frame.bytes.len()),
        }
    }

    #[inline]
    fn frame(&self, target: &ProbeTarget, payload: u16) -> Option<&Frame> {
        let frames = &self.frames[usize::from(target.addr.is_ipv6())];
        frames.get(target.probe as usize * self.payload_count + usize::from(payload))
    }

    /// The template of SYNs of a family through this next hop; `None` without a source address.
    pub(crate) fn syn(&self, is_ipv6: bool, mac: Mac) -> Option<SynFrame> {
        let frame = self.frames[usize::from(is_ipv6)].first()?;
        SynFrame::new(frame, mac, self.source, is_ipv6)
    }

    /// Writes a probe to the start of `out` and returns its length, or `None` if it does not fit or
    /// there is no source address of its family. `clock_us` is the send time, in microseconds.
    #[inline]
    pub fn write(
        &self,
        (target, payload): (&ProbeTarget, u16),
        (cookie, clock_us): (&Cookie, u32),
        mac: Mac,
        out: &mut [u8],
    ) -> Option<usize> {
        if target.probe == Probe::Arp {
            return self.solicitor.write(target.addr, out);
        }
        let frame = self.frame(target, payload)?;
        let len = frame.bytes.len();
        let out = out.get_mut(..len)?;
        out.copy_from_slice(&frame.bytes);
        self.fill(frame, target, (cookie, clock_us), mac, out);
        Some(len)
    }

    /// Fills the fields that differ into a copy of a frame.
    #[inline]
    fn fill(
        &self,
        frame: &Frame,
        target: &ProbeTarget,
        (cookie, clock_us): (&Cookie, u32),
        mac: Mac,
        out: &mut [u8],
    ) {
        let numbers = Numbers {
            src_port: self.source.port(cookie),
            port: target.port,
            cookie,
            clock_us,
        };
        out[..6].copy_from_slice(&mac.0);
        let ip = &mut out[ETHERNET_LEN..];
        let sum = frame.transport_sum;
        let template = &frame.template;
        match target.addr {
            IpAddr::V4(addr) => {
                let (ip, transport) = ip.split_at_mut(IPV4_LEN);
                let dst = addr.to_bits();
                let mut ip_sum = frame.ip_sum.add_u32(dst).add_u16(cookie.ip_id);
                if frame.is_any_protocol {
                    ip[9] = target.port as u8;
                    ip_sum = ip_sum.add_u16(ip[9].into());
                }
                ip[4..6].copy_from_slice(&cookie.ip_id.to_be_bytes());
                ip[10..12].copy_from_slice(&ip_sum.finish().to_be_bytes());
                ip[16..20].copy_from_slice(&addr.octets());
                let sum = match template.has_pseudo {
                    true => sum.add_u32(dst),
                    false => sum,
                };
                (frame.stamp)(&template.stamp, transport, sum, &numbers);
            }
            IpAddr::V6(addr) => {
                let (ip, transport) = ip.split_at_mut(IPV6_LEN);
                // The lower 16 bits of the flow label, which no checksum covers.
                ip[2..4].copy_from_slice(&cookie.ip_id.to_be_bytes());
                ip[24..40].copy_from_slice(&addr.octets());
                let sum = sum.add_bytes(&addr.octets());
                (frame.stamp)(&template.stamp, transport, sum, &numbers);
            }
        }
    }
}

#[cfg(test)]
mod tests;
