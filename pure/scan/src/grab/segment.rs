//! Received and sent TCP segments (RFC 9293 §3.1).

use std::net::IpAddr;

use wire::checksum::Sum;
use wire::tcp::TcpOption;
use wire::{Dissection, Mac};

use crate::source::Source;

pub const FIN: u16 = 0x01;
pub const SYN: u16 = 0x02;
pub const RST: u16 = 0x04;
pub const PSH: u16 = 0x08;
pub const ACK: u16 = 0x10;

/// Window announced: nothing is kept, so it only bounds what arrives at once.
pub const WINDOW: u16 = 16_384;

/// A received segment.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    pub from: IpAddr,
    pub from_port: u16,
    pub to_port: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u16,
    pub window: u16,
    /// Maximum length of the data of segments to the peer, if the segment says so.
    pub mss: Option<u16>,
    pub payload: &'a [u8],
}

impl<'a> Incoming<'a> {
    /// The segment in a packet; `None` without a complete TCP header, or with a wrong checksum.
    /// Padding is not payload.
    pub fn of(found: &Dissection, packet: &'a [u8]) -> Option<Self> {
        if found.ip_protocol != 6 || !found.has_ports() || found.inner_is_quote {
            return None;
        }
        let segment = segment(found, packet)?;
        if !is_valid(found, segment) {
            return None;
        }
        let mss = wire::tcp::captured_options(segment).find_map(|option| match option {
            TcpOption::MaxSegmentSize(mss) => Some(mss),
            _ => None,
        });
        Some(Self {
            from: found.src_addr()?,
            from_port: found.src_port,
            to_port: found.dst_port,
            seq: found.tcp_seq,
            ack: found.tcp_ack,
            flags: found.tcp_flags,
            window: found.tcp_window,
            mss,
            payload: found.payload(packet),
        })
    }
}

/// The bytes of a segment, as far as they were captured.
fn segment<'a>(found: &Dissection, packet: &'a [u8]) -> Option<&'a [u8]> {
    let end = usize::from(found.ip_offset) + found.ip_total_len as usize;
    packet.get(usize::from(found.transport_offset)..end.min(packet.len()))
}

/// Whether the checksum of a segment is right (RFC 9293 §3.1), or that of the pseudo header, as in
/// segments of this host and those that the kernel has merged: the card would complete it. A
/// segment that was cut off by the capture is not verified.
fn is_valid(found: &Dissection, segment: &[u8]) -> bool {
    const CHECKSUM_AT: usize = 16;
    let header_len = u32::from(found.transport_offset - found.ip_offset);
    let Some(len) = found.ip_total_len.checked_sub(header_len) else {
        return false;
    };
    if (segment.len() as u64) < u64::from(len) {
        return true;
    }
    let pseudo = match (found.src_addr(), found.dst_addr()) {
        (Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) => {
            Sum::new().add_pseudo_ipv4(src, dst, 6, len as u16)
        }
        (Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))) => {
            Sum::new().add_pseudo_ipv6(src, dst, 6, len)
        }
        _ => return false,
    };
    let checksum = segment.get(CHECKSUM_AT..).and_then(<[u8]>::first_chunk);
    let checksum = checksum.map(|bytes| u16::from_be_bytes(*bytes));
    checksum == Some(!pseudo.finish()) || pseudo.add_bytes(segment).finish() == 0
}

/// A segment to send, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub addr: IpAddr,
    pub port: u16,
    pub local_port: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u16,
    /// Slot of the connection that has the data.
    pub slot: u32,
    /// Offset of the data to send, and their length.
    pub data: (u16, u16),
}

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;

/// Writes segments from one source.
pub struct Sender {
    source: Source,
    mac: Mac,
    ttl: u8,
}

impl Sender {
    pub fn new(source: Source, mac: Mac, ttl: u8) -> Self {
        Self { source, mac, ttl }
    }

    /// Length of the frame in bytes.
    pub fn len(&self, outgoing: &Outgoing) -> usize {
        let ip_len = match outgoing.addr {
            IpAddr::V4(_) => IPV4_LEN,
            IpAddr::V6(_) => IPV6_LEN,
        };
        ETHERNET_LEN + ip_len + TCP_LEN + usize::from(outgoing.data.1)
    }

    /// Writes a frame to the start of `out` and returns its length, or `None` if it does not fit or
    /// there is no source address of its family.
    pub fn write(
        &self,
        outgoing: &Outgoing,
        data: &[u8],
        mac: Mac,
        out: &mut [u8],
    ) -> Option<usize> {
        let len = self.len(outgoing);
        let out = out.get_mut(..len)?;
        out.fill(0);
        let (ethernet, ip) = out.split_at_mut(ETHERNET_LEN);
        ethernet[..6].copy_from_slice(&mac.0);
        ethernet[6..12].copy_from_slice(&self.mac.0);
        let tcp_len = TCP_LEN + data.len();
        let (sum, tcp) = match outgoing.addr {
            IpAddr::V4(dst) => {
                let src = self.source.ipv4?;
                ethernet[12..14].copy_from_slice(&[0x08, 0x00]);
                let (ip, tcp) = ip.split_at_mut(IPV4_LEN);
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&((IPV4_LEN + tcp_len) as u16).to_be_bytes());
                ip[6] = 0x40;
                ip[8] = self.ttl;
                ip[9] = 6;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                let sum = Sum::new().add_bytes(ip).finish();
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                let pseudo = Sum::new().add_pseudo_ipv4(src, dst, 6, tcp_len as u16);
                (pseudo, tcp)
            }
            IpAddr::V6(dst) => {
                let src = self.source.ipv6?;
                ethernet[12..14].copy_from_slice(&[0x86, 0xdd]);
                let (ip, tcp) = ip.split_at_mut(IPV6_LEN);
                ip[0] = 0x60;
                ip[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
                ip[6] = 6;
                ip[7] = self.ttl;
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                let pseudo = Sum::new().add_pseudo_ipv6(src, dst, 6, tcp_len as u32);
                (pseudo, tcp)
            }
        };
        tcp[0..2].copy_from_slice(&outgoing.local_port.to_be_bytes());
        tcp[2..4].copy_from_slice(&outgoing.port.to_be_bytes());
        tcp[4..8].copy_from_slice(&outgoing.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&outgoing.ack.to_be_bytes());
        tcp[12] = (TCP_LEN as u8 / 4) << 4;
        tcp[13] = outgoing.flags as u8;
        let window = if outgoing.flags & RST == 0 { WINDOW } else { 0 };
        tcp[14..16].copy_from_slice(&window.to_be_bytes());
        tcp.get_mut(TCP_LEN..)?.copy_from_slice(data);
        let sum = sum.add_bytes(tcp).finish();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        Some(len)
    }
}
