//! SYNs from one source through one next hop: a template with all that is constant.
//!
//! Sums and fields are in little-endian order as in [`wire::checksum`], so that hardly a byte is
//! swapped.

use wire::Mac;

use super::{ETHERNET_LEN, Frame, HEAD_LEN, IPV4_LEN, IPV6_LEN};
use crate::source::Source;

/// Bytes that are copied of a template of IPv4: up to 40 bytes of TCP, in whole vectors.
const HEAD_V4_LEN: usize = 80;

/// What differs between two SYNs.
#[derive(Clone, Copy)]
pub(crate) struct SynFields {
    /// The [word](crate::cookie::word) of the destination.
    pub word: u64,
    /// The block of the [cookie](crate::Cookie).
    pub cookie: u128,
    /// The send time in microseconds.
    pub clock_us: u32,
}

/// The template.
#[derive(Clone, Copy)]
pub(crate) struct SynFrame {
    head: [u8; HEAD_LEN],
    len: usize,
    is_ipv6: bool,
    ip_sum: u64,
    transport_sum: u64,
    /// Offset of the value of the timestamp option in the frame.
    timestamp_at: Option<usize>,
    port_first: u16,
    port_count: u16,
}

impl SynFrame {
    /// The template of a frame; `None` if it is too long.
    pub(super) fn new(frame: &Frame, mac: Mac, source: Source, is_ipv6: bool) -> Option<Self> {
        let len = frame.bytes.len();
        let (len_max, ip_len) = match is_ipv6 {
            true => (HEAD_LEN, IPV6_LEN),
            false => (HEAD_V4_LEN, IPV4_LEN),
        };
        let mut head = frame.head;
        head[..6].copy_from_slice(&mac.0);
        let timestamp_at = frame.template.stamp.timestamp_at;
        let raw = |checksum: u16| u64::from((!checksum).swap_bytes());
        (len <= len_max).then_some(Self {
            head,
            len,
            is_ipv6,
            ip_sum: raw(frame.ip_sum.finish()),
            transport_sum: raw(frame.transport_sum.finish()),
            timestamp_at: timestamp_at.map(|at| ETHERNET_LEN + ip_len + at),
            port_first: source.ports.0,
            port_count: source.ports.1,
        })
    }

    /// Its length.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes a probe of IPv4 and returns its length; `None` if it does not fit. Bytes behind it
    /// may be written, too.
    #[inline(always)]
    pub(crate) fn write_v4(&self, fields: SynFields, out: &mut [u8]) -> Option<usize> {
        let Some(room) = out.first_chunk_mut::<HEAD_V4_LEN>() else {
            return self.write_short(fields, 0, out);
        };
        room.copy_from_slice(&self.head[..HEAD_V4_LEN]);
        self.stamp_v4(fields, room);
        Some(self.len)
    }

    /// As [`write_v4`](Self::write_v4), of IPv6 to an address in little-endian order.
    #[inline(always)]
    pub(crate) fn write_v6(&self, fields: SynFields, addr: u128, out: &mut [u8]) -> Option<usize> {
        let Some(room) = out.first_chunk_mut::<HEAD_LEN>() else {
            return self.write_short(fields, addr, out);
        };
        *room = self.head;
        self.stamp_v6(fields, addr, room);
        Some(self.len)
    }

    /// Writes a probe to a buffer that has no room behind it.
    #[cold]
    #[inline(never)]
    fn write_short(&self, fields: SynFields, addr: u128, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..self.len)?;
        let mut room = [0; HEAD_LEN];
        match self.is_ipv6 {
            true => self.write_v6(fields, addr, &mut room)?,
            false => self.write_v4(fields, &mut room)?,
        };
        out.copy_from_slice(&room[..self.len]);
        Some(self.len)
    }

    #[inline(always)]
    fn stamp_v4(&self, fields: SynFields, frame: &mut [u8; HEAD_V4_LEN]) {
        let (ip, tcp) = frame[ETHERNET_LEN..].split_at_mut(IPV4_LEN);
        let dst = (fields.word >> 32) as u32;
        let ip_id = (fields.cookie >> 64) as u16;
        let sum = finish(self.ip_sum + u64::from(dst) + u64::from(ip_id));
        ip[4..6].copy_from_slice(&ip_id.to_le_bytes());
        ip[10..12].copy_from_slice(&sum.to_le_bytes());
        ip[16..20].copy_from_slice(&dst.to_le_bytes());
        let sum = self.transport_sum + u64::from(dst) + self.stamp_tcp(fields, tcp);
        self.finish_tcp(fields, sum, frame, ETHERNET_LEN + IPV4_LEN);
    }

    #[inline(always)]
    fn stamp_v6(&self, fields: SynFields, dst: u128, frame: &mut [u8; HEAD_LEN]) {
        let (ip, tcp) = frame[ETHERNET_LEN..].split_at_mut(IPV6_LEN);
        let flow_label = (fields.cookie >> 64) as u16;
        ip[2..4].copy_from_slice(&flow_label.to_le_bytes());
        ip[24..40].copy_from_slice(&dst.to_le_bytes());
        let half = |at: u32| u64::from((dst >> at) as u32);
        let dst_sum = half(0) + half(32) + half(64) + half(96);
        let sum = self.transport_sum + dst_sum + self.stamp_tcp(fields, tcp);
        self.finish_tcp(fields, sum, frame, ETHERNET_LEN + IPV6_LEN);
    }

    /// Writes ports and sequence number, and returns their sum.
    #[inline(always)]
    fn stamp_tcp(&self, fields: SynFields, tcp: &mut [u8]) -> u64 {
        let chosen = u64::from((fields.cookie >> 32) as u32) * u64::from(self.port_count);
        let src_port = self.port_first + (chosen >> 32) as u16;
        // The word has the destination port in its upper half.
        let ports = fields.word as u32 & 0xffff_0000 | u32::from(src_port.swap_bytes());
        let seq = fields.cookie as u32;
        tcp[0..4].copy_from_slice(&ports.to_le_bytes());
        tcp[4..8].copy_from_slice(&seq.to_le_bytes());
        u64::from(ports) + u64::from(seq)
    }

    /// Writes the timestamp, if there is one, and the checksum.
    #[inline(always)]
    fn finish_tcp(&self, fields: SynFields, mut sum: u64, frame: &mut [u8], tcp_at: usize) {
        if let Some(at) = self.timestamp_at {
            let value = ((fields.cookie >> 96) as u32).wrapping_add(fields.clock_us);
            frame[at..at + 4].copy_from_slice(&value.to_be_bytes());
            sum += u64::from(value.swap_bytes());
        }
        frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&finish(sum).to_le_bytes());
    }
}

/// The checksum of a sum of at most 2^32 parts of 32 bits.
#[inline(always)]
fn finish(sum: u64) -> u16 {
    // The upper half of a number and itself with swapped halves is the sum of both, with the carry.
    let half = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    !((half.wrapping_add(half.rotate_left(16)) >> 16) as u16)
}
