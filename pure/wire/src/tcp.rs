//! TCP (RFC 9293 section 3.1).
//!
//! ```text
//!  0                   1                   2                   3
//! +-------------------------------+-------------------------------+
//! | source port                   | destination port              |
//! +-------------------------------+-------------------------------+
//! | sequence number                                               |
//! +---------------------------------------------------------------+
//! | acknowledgement number                                        |
//! +-------+-----+-+-+-+-+-+-+-+-+-+-------------------------------+
//! | offset|     |A|C|E|U|A|P|R|S|F| window                        |
//! +-------+-----+-+-+-+-+-+-+-+-+-+-------------------------------+
//! | checksum                      | urgent pointer                |
//! +-------------------------------+-------------------------------+
//! | options up to offset * 4 bytes …                              |
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, udp};
use core::fmt;

/// Bytes of the header without options.
pub const HEADER_LEN: usize = 20;

/// Flag bits, as in [`Tcp::flags`] and [`Dissection::tcp_flags`](crate::Dissection::tcp_flags).
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u16 = 0x001;
    /// Synchronize sequence numbers.
    pub const SYN: u16 = 0x002;
    /// Reset the connection.
    pub const RST: u16 = 0x004;
    /// Push.
    pub const PSH: u16 = 0x008;
    /// The acknowledgement number is valid.
    pub const ACK: u16 = 0x010;
    /// The urgent pointer is valid.
    pub const URG: u16 = 0x020;
    /// ECN echo (RFC 3168).
    pub const ECE: u16 = 0x040;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u16 = 0x080;
    /// Accurate ECN (RFC 9768), formerly nonce sum.
    pub const AE: u16 = 0x100;
}

/// A TCP header with its options.
#[derive(Clone, Copy)]
pub struct Tcp<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The options, padding included: 0 to 40 bytes.
    pub options: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Splits a segment after its header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        let header_len = usize::from(head[12] >> 4) * 4;
        let options_len = header_len
            .checked_sub(HEADER_LEN)
            .ok_or(Reason::BadHeaderLength)?;
        let (options, payload) = rest
            .split_at_checked(options_len)
            .ok_or(Reason::Truncated)?;
        Ok(Tcp {
            head,
            options,
            payload,
        })
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.head[0], self.head[1])
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Sequence number.
    #[inline]
    pub fn seq(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }

    /// Acknowledgement number.
    #[inline]
    pub fn ack(&self) -> u32 {
        u32::from_be_bytes([self.head[8], self.head[9], self.head[10], self.head[11]])
    }

    /// Bytes of the header, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Reserved bits and flags, 12 bits; see [`flag`].
    #[inline]
    pub fn flags(&self) -> u16 {
        be16(self.head[12], self.head[13]) & 0x0fff
    }

    /// Window as sent.
    #[inline]
    pub fn window(&self) -> u16 {
        be16(self.head[14], self.head[15])
    }

    /// Checksum as sent.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.head[16], self.head[17])
    }

    /// Urgent pointer.
    #[inline]
    pub fn urgent(&self) -> u16 {
        be16(self.head[18], self.head[19])
    }

    /// The options one by one.
    pub fn options(&self) -> Options<'a> {
        Options { rest: self.options }
    }
}

/// One TCP option (registry "TCP Option Kind Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Padding between options.
    NoOperation,
    /// Maximum segment size in bytes (RFC 9293 section 3.2).
    MaxSegmentSize(u16),
    /// Left shift of the window (RFC 7323 section 2).
    WindowScale(u8),
    /// Selective acknowledgement permitted (RFC 2018 section 2).
    SackPermitted,
    /// Blocks of (left edge, right edge), 8 bytes each (RFC 2018 section 3).
    Sack(&'a [[u8; 8]]),
    /// Time stamps: value, echo reply (RFC 7323 section 3).
    Timestamps(u32, u32),
    /// Any other option: kind, data after the length byte.
    Other(u8, &'a [u8]),
}

/// Iterator over TCP options; ends at the end-of-list option, or at the first malformed one.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    /// Iterates over the options of a header.
    pub const fn new(options: &'a [u8]) -> Self {
        Options { rest: options }
    }

    /// The remaining bytes; after the last option the end-of-list byte with its padding, or the
    /// malformed rest.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = TcpOption<'a>;

    fn next(&mut self) -> Option<TcpOption<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        match kind {
            0 => return None,
            1 => {
                self.rest = rest;
                return Some(TcpOption::NoOperation);
            }
            _ => {}
        }
        let len = usize::from(*rest.first()?);
        let (option, rest) = self.rest.split_at_checked(len)?;
        let data = option.get(2..)?;
        self.rest = rest;
        Some(match (kind, data) {
            (2, &[a, b]) => TcpOption::MaxSegmentSize(be16(a, b)),
            (3, &[shift]) => TcpOption::WindowScale(shift),
            (4, []) => TcpOption::SackPermitted,
            (5, blocks) if blocks.len() % 8 == 0 => TcpOption::Sack(blocks.as_chunks().0),
            (8, &[a, b, c, d, e, f, g, h]) => TcpOption::Timestamps(
                u32::from_be_bytes([a, b, c, d]),
                u32::from_be_bytes([e, f, g, h]),
            ),
            (kind, data) => TcpOption::Other(kind, data),
        })
    }
}

/// The flags as tcpdump writes them: `S`, `F`, `R`, `P`, `.` for ACK, `U`, `W`, `E`, `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u16);

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LETTERS: [(u16, &str); 9] = [
            (flag::FIN, "F"),
            (flag::SYN, "S"),
            (flag::RST, "R"),
            (flag::PSH, "P"),
            (flag::ACK, "."),
            (flag::URG, "U"),
            (flag::ECE, "E"),
            (flag::CWR, "W"),
            (flag::AE, "e"),
        ];
        if self.0 & 0x1ff == 0 {
            return f.write_str("none");
        }
        LETTERS
            .iter()
            .filter(|(bit, _)| self.0 & bit != 0)
            .try_for_each(|(_, s)| f.write_str(s))
    }
}

impl fmt::Display for Tcp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {}: Flags [{}]",
            self.src_port(),
            self.dst_port(),
            Flags(self.flags())
        )?;
        write!(
            f,
            ", seq {}, ack {}, win {}",
            self.seq(),
            self.ack(),
            self.window()
        )?;
        write!(f, ", length {}", self.payload.len())
    }
}

/// Fields of a header. The checksum is left to [`checksum`](crate::checksum).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Reserved bits and flags; see [`flag`].
    pub flags: u16,
    /// Window.
    pub window: u16,
}

impl Header {
    /// Writes the header without options, checksum and urgent pointer 0.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        out[..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.to_be_bytes());
        out[12..14].copy_from_slice(&(0x5000 | self.flags & 0x0fff).to_be_bytes());
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..].fill(0);
    }
}

/// The set of option kinds below 64 in the bytes after the fixed header: bit n for kind n.
#[inline(always)]
pub fn option_set(bytes: &[u8]) -> u64 {
    // The options of nearly every segment in an established connection.
    if bytes.len() == 12 && bytes.first_chunk() == Some(&[1, 1, 8, 10]) {
        return 1 << 1 | 1 << 8;
    }
    option_set_rare(bytes, bytes.len())
}

/// The same for options that have `len` bytes on the wire, of which `rest` was captured.
#[inline(never)]
fn option_set_rare(mut rest: &[u8], mut len: usize) -> u64 {
    let mut set = 0;
    while let Some(&kind) = rest.first() {
        let option_len = match kind {
            0 => break,
            1 => 1,
            _ => match rest.get(1) {
                Some(&len) if len >= 2 => usize::from(len),
                _ => break,
            },
        };
        let Some(left) = len.checked_sub(option_len) else {
            break;
        };
        if kind < 64 {
            set |= 1 << kind;
        }
        len = left;
        rest = rest.get(option_len..).unwrap_or(&[]);
    }
    set
}

/// The captured options of the segment that starts with these bytes.
pub fn captured_options(segment: &[u8]) -> Options<'_> {
    let header_len = usize::from(segment.get(12).unwrap_or(&0) >> 4) * 4;
    let captured = &segment[..header_len.min(segment.len())];
    Options::new(captured.get(HEADER_LEN..).unwrap_or(&[]))
}

/// Reads what is present of a header truncated within its fixed part: a first fragment may be that
/// short, and so may the packet quoted by an ICMP error.
#[cold]
fn step_cut(walk: &mut Walk<'_, '_>) -> Next {
    let mut head = [0; HEADER_LEN];
    let there = walk.rest.len().min(HEADER_LEN);
    for (to, from) in head.iter_mut().zip(walk.rest) {
        *to = *from;
    }
    let out = &mut *walk.out;
    if there >= 8 {
        out.tcp_seq = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    }
    if there >= 12 {
        out.tcp_ack = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
    }
    if there >= 14 {
        out.tcp_flags = be16(head[12], head[13]) & 0x0fff;
    }
    if there >= 16 {
        out.tcp_window = be16(head[14], head[15]);
    }
    if there < 13 || walk.wire_rest < HEADER_LEN {
        return Err(walk.missing(HEADER_LEN));
    }
    // The payload begins after the header, although that is truncated.
    behind(walk, head[12])
}

/// Moves past the header and its options, whose length is in its thirteenth byte.
#[inline]
fn behind(walk: &mut Walk<'_, '_>, offset: u8) -> Next {
    let header_len = usize::from(offset >> 4) * 4;
    if header_len < HEADER_LEN {
        return Err(Reason::BadHeaderLength);
    }
    if header_len > HEADER_LEN && header_len <= walk.wire_rest {
        walk.out.tcp_options = match walk.rest.get(HEADER_LEN..header_len) {
            Some(options) => option_set(options),
            None => {
                let captured = walk.rest.get(HEADER_LEN..).unwrap_or(&[]);
                option_set_rare(captured, header_len - HEADER_LEN)
            }
        };
    }
    walk.advance(header_len)?;
    Ok(LayerKind::None)
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    udp::ports(walk);
    let Some(head) = walk.rest.first_chunk::<HEADER_LEN>() else {
        return step_cut(walk);
    };
    let out = &mut *walk.out;
    out.tcp_seq = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    out.tcp_ack = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
    out.tcp_flags = be16(head[12], head[13]) & 0x0fff;
    out.tcp_window = be16(head[14], head[15]);
    behind(walk, head[12])
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "tcp",
    spec: "RFC 9293",
    ip_protocols: &[6],
    sample: &[
        0x01, 0xbb, 0x15, 0xb3, 0, 0, 0, 1, 0, 0, 0, 2, 0x60, 0x12, 0xff, 0xff, 0, 0, 0, 0, 2, 4,
        5, 0xb4, 1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Tcp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, vec::Vec};

    #[test]
    fn emit_then_parse() {
        let header = Header {
            src_port: 1,
            dst_port: 2,
            seq: 3,
            ack: 4,
            flags: flag::SYN | flag::ACK,
            window: 5,
        };
        let mut bytes = [0; HEADER_LEN];
        header.emit(&mut bytes);
        let view = Tcp::parse(&bytes).unwrap();
        assert_eq!(
            (view.src_port(), view.dst_port(), view.seq(), view.ack()),
            (1, 2, 3, 4)
        );
        assert_eq!(
            (view.flags(), view.window(), view.header_len()),
            (0x12, 5, 20)
        );
        assert_eq!(
            format!("{view}"),
            "1 > 2: Flags [S.], seq 3, ack 4, win 5, length 0"
        );
    }

    #[test]
    fn options_of_a_syn() {
        let bytes = [
            2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7, 254, 3, 9, 0,
        ];
        let options: Vec<_> = Options::new(&bytes).collect();
        assert_eq!(
            options,
            [
                TcpOption::MaxSegmentSize(1460),
                TcpOption::SackPermitted,
                TcpOption::Timestamps(1, 2),
                TcpOption::NoOperation,
                TcpOption::WindowScale(7),
                TcpOption::Other(254, &[9]),
            ]
        );
        assert_eq!(
            option_set(&bytes),
            1 << 2 | 1 << 4 | 1 << 8 | 1 << 1 | 1 << 3
        );
    }

    #[test]
    fn sack_has_whole_blocks() {
        let block = |n: u8| [0, 0, 0, n, 0, 0, 0, n + 1];
        let blocks: Vec<_> = (1..5).map(block).collect();
        for count in 0..=4 {
            let len = 2 + 8 * count as u8;
            let option = [&[5, len][..], blocks[..count].as_flattened(), &[1]].concat();
            let options: Vec<_> = Options::new(&option).collect();
            let expected = [TcpOption::Sack(&blocks[..count]), TcpOption::NoOperation];
            assert_eq!(options, expected, "{count} blocks");
        }
        // Half a block more, or a byte less.
        for len in [6, 9, 11, 14] {
            let option = [
                &[5, len][..],
                &blocks.as_flattened()[..usize::from(len) - 2],
            ]
            .concat();
            let found = Options::new(&option).next();
            assert_eq!(
                found,
                Some(TcpOption::Other(5, &option[2..])),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn truncated_options_are_listed_if_their_length_is_present() {
        // Two paddings, time stamps, a maximum segment size: 16 bytes of options.
        let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 2, 4, 5, 0xb4];
        let mut segment = [0; 20].to_vec();
        segment[12] = 0x90;
        segment.extend(options);
        for (cut, expected) in [
            (20, 0),
            (21, 1 << 1),
            (23, 1 << 1),
            (24, 1 << 1 | 1 << 8),
            (33, 1 << 1 | 1 << 8),
            (34, 1 << 1 | 1 << 8 | 1 << 2),
            (36, 1 << 1 | 1 << 8 | 1 << 2),
        ] {
            let captured = &segment[20..cut];
            assert_eq!(option_set_rare(captured, 16), expected, "{cut}");
            let mss = captured_options(&segment[..cut]).last();
            let is_mss = mss == Some(TcpOption::MaxSegmentSize(1460));
            assert_eq!(is_mss, cut == 36, "{cut}");
        }
    }

    #[test]
    fn malformed_options_end_the_list() {
        for bytes in [&[8u8][..], &[8, 0], &[8, 1], &[8, 11, 0], &[2, 255, 1, 1]] {
            assert_eq!(Options::new(bytes).count(), 0, "{bytes:?}");
            assert_eq!(option_set(bytes), 0, "{bytes:?}");
        }
    }
}
