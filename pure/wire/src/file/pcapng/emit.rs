//! Writes pcapng: blocks into the caller's buffer, in little-endian order.
//!
//! The functions return the number of bytes written, or `None` if the buffer is too small. A packet
//! that must not be copied is written as [`packet_head`], its bytes, and [`emit_packet_tail`].

use super::super::{Direction, Resolution, Statistics};
use super::{AROUND, BYTE_ORDER_MARK, block};
use crate::{LinkType, Timestamp};

/// A cursor that tracks whether everything fitted.
struct Out<'a> {
    buffer: &'a mut [u8],
    len: usize,
    fits: bool,
}

impl<'a> Out<'a> {
    /// Begins a block; `finish` fills in its length.
    fn block(buffer: &'a mut [u8], kind: u32) -> Self {
        let mut out = Out {
            buffer,
            len: 0,
            fits: true,
        };
        out.u32(kind);
        out.u32(0);
        out
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.buffer.get_mut(self.len..end) {
            Some(to) => {
                to.copy_from_slice(bytes);
                self.len = end;
            }
            None => self.fits = false,
        }
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn pad(&mut self) {
        let zeros = [0; 3];
        let missing = self.len.wrapping_neg() % 4;
        self.put(zeros.get(..missing).unwrap_or(&[]));
    }

    /// Appends an option; an empty or absent one is omitted, a long one is truncated to 65535
    /// bytes.
    fn option(&mut self, code: u16, value: &[u8]) {
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        if !value.is_empty() {
            self.u16(code);
            self.u16(value.len() as u16);
            self.put(value);
            self.pad();
        }
    }

    /// Ends the options that began at `start`, and the block.
    fn finish(mut self, options_start: usize) -> Option<usize> {
        if self.len > options_start {
            self.u32(0);
        }
        let len = self.len.checked_add(4)?;
        let bytes = u32::try_from(len).ok()?.to_le_bytes();
        self.put(&bytes);
        self.buffer.get_mut(4..8)?.copy_from_slice(&bytes);
        self.fits.then_some(len)
    }
}

/// Contents of a section block; empty texts are omitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct SectionInfo<'a> {
    /// Hardware of the capturing machine.
    pub hardware: &'a str,
    /// Its operating system.
    pub os: &'a str,
    /// Name of the writing program.
    pub application: &'a str,
    /// Comment.
    pub comment: &'a str,
}

/// Writes a section block of unspecified length: it extends to the end of the file, or to the next
/// section.
pub fn emit_section(out: &mut [u8], info: &SectionInfo<'_>) -> Option<usize> {
    let mut out = Out::block(out, block::SECTION);
    out.u32(BYTE_ORDER_MARK);
    out.u16(1);
    out.u16(0);
    out.put(&u64::MAX.to_le_bytes());
    let options = out.len;
    out.option(1, info.comment.as_bytes());
    out.option(2, info.hardware.as_bytes());
    out.option(3, info.os.as_bytes());
    out.option(4, info.application.as_bytes());
    out.finish(options)
}

/// Contents of an interface block; empty texts are omitted.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceInfo<'a> {
    /// Link type of its packets.
    pub link: LinkType,
    /// Maximum number of bytes kept of a packet; 0 for no limit.
    pub snaplen: u32,
    /// Unit of its time stamps. [`emit_packet`] and [`packet_head`] write nanoseconds.
    pub resolution: Resolution,
    /// Name of the interface.
    pub name: &'a str,
    /// The capture filter, as a pcap expression.
    pub filter: &'a str,
    /// Comment.
    pub comment: &'a str,
}

impl<'a> InterfaceInfo<'a> {
    /// Contents with a name, and a resolution of nanoseconds.
    pub fn new(link: LinkType, snaplen: u32, name: &'a str) -> Self {
        let resolution = Resolution::NANOSECONDS;
        InterfaceInfo {
            link,
            snaplen,
            resolution,
            name,
            filter: "",
            comment: "",
        }
    }
}

/// Writes an interface block. Its index is the number of such blocks before it in the section.
pub fn emit_interface(out: &mut [u8], info: &InterfaceInfo<'_>) -> Option<usize> {
    let mut out = Out::block(out, block::INTERFACE);
    out.u16(info.link.0);
    out.u16(0);
    out.u32(info.snaplen);
    let options = out.len;
    out.option(1, info.comment.as_bytes());
    out.option(2, info.name.as_bytes());
    out.option(9, &[info.resolution.to_option()]);
    if !info.filter.is_empty() && info.filter.len() < usize::from(u16::MAX) {
        // The value is a zero byte (for a pcap expression) and the expression.
        out.u16(11);
        out.u16(info.filter.len() as u16 + 1);
        out.put(&[0]);
        out.put(info.filter.as_bytes());
        out.pad();
    }
    out.finish(options)
}

/// Metadata of a packet to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketInfo {
    /// Index of its interface in the section.
    pub interface: u32,
    /// Capture time.
    pub time: Timestamp,
    /// Length on the wire.
    pub wire_len: u32,
    /// Direction.
    pub direction: Direction,
    /// Packets lost between the previous one and this; written if not 0.
    pub dropped: u64,
}

/// Length of a packet block before the packet.
pub const PACKET_HEAD_LEN: usize = 28;

/// Maximum length of a packet block after the packet: padding, flags, drop count, end, length.
pub const MAX_PACKET_TAIL_LEN: usize = 3 + 8 + 12 + 4 + 4;

/// Length of a packet's options, end option included.
fn options_len(info: &PacketInfo) -> u32 {
    let flags = if info.direction == Direction::Unknown {
        0
    } else {
        8
    };
    let dropped = if info.dropped == 0 { 0 } else { 12 };
    let end = if flags + dropped == 0 { 0 } else { 4 };
    flags + dropped + end
}

/// Length of the whole block of a packet with `cap_len` bytes.
#[inline]
fn block_len(info: &PacketInfo, cap_len: u32) -> u32 {
    let padded = cap_len.wrapping_add(3) & !3;
    PACKET_HEAD_LEN as u32 + padded + options_len(info) + 4
}

/// The bytes before the `cap_len` bytes of a packet (at most [`MAX_PACKET_LEN`]; see
/// [`emit_packet_tail`]). The interface must have been written with a resolution of nanoseconds.
///
/// [`MAX_PACKET_LEN`]: super::super::MAX_PACKET_LEN
#[inline]
pub fn packet_head(info: &PacketInfo, cap_len: u32) -> [u8; PACKET_HEAD_LEN] {
    let mut out = [0; PACKET_HEAD_LEN];
    let words = [
        block::PACKET,
        block_len(info, cap_len),
        info.interface,
        (info.time.0 >> 32) as u32,
        info.time.0 as u32,
        cap_len,
        info.wire_len,
    ];
    for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    out
}

/// Writes the trailer of a packet to `out` and returns its length; the bytes after it are
/// overwritten as well.
#[inline]
pub fn emit_packet_tail(
    out: &mut [u8; MAX_PACKET_TAIL_LEN],
    info: &PacketInfo,
    cap_len: u32,
) -> usize {
    out[..4].fill(0);
    let mut len = (cap_len.wrapping_neg() % 4) as usize;
    if info.dropped == 0 && info.direction != Direction::Unknown {
        // The common case at once: flags, no more options, the length.
        let flags = u128::from(2 | 4_u32 << 16) | (info.direction as u128) << 32;
        let tail = flags | u128::from(block_len(info, cap_len)) << 96;
        if let Some(to) = out.get_mut(len..).and_then(<[u8]>::first_chunk_mut) {
            *to = tail.to_le_bytes();
        }
        return len + 16;
    }
    let mut word = |value: u32| {
        if let Some(to) = out.get_mut(len..).and_then(<[u8]>::first_chunk_mut) {
            *to = value.to_le_bytes();
        }
        len += 4;
    };
    // Code in the lower half, length in the upper half.
    if info.direction != Direction::Unknown {
        word(2 | 4 << 16);
        word(info.direction as u32);
    }
    if info.dropped != 0 {
        word(4 | 8 << 16);
        word(info.dropped as u32);
        word((info.dropped >> 32) as u32);
    }
    if info.direction != Direction::Unknown || info.dropped != 0 {
        word(0);
    }
    word(block_len(info, cap_len));
    len
}

/// Writes a packet with a comment, copying its bytes.
pub fn emit_packet(
    out: &mut [u8],
    info: &PacketInfo,
    packet: &[u8],
    comment: &str,
) -> Option<usize> {
    let cap_len = u32::try_from(packet.len()).ok()?;
    let mut out = Out {
        buffer: out,
        len: 0,
        fits: true,
    };
    out.put(&packet_head(info, cap_len));
    out.put(packet);
    out.pad();
    let options = out.len;
    out.option(1, comment.as_bytes());
    if info.direction != Direction::Unknown {
        out.option(2, &(info.direction as u32).to_le_bytes());
    }
    if info.dropped != 0 {
        out.option(4, &info.dropped.to_le_bytes());
    }
    out.finish(options)
}

/// Writes an interface's counters, taken at `time`. The interface must have been written with a
/// resolution of nanoseconds.
pub fn emit_statistics(
    out: &mut [u8],
    statistics: &Statistics,
    time: Timestamp,
    comment: &str,
) -> Option<usize> {
    let mut out = Out::block(out, block::STATISTICS);
    out.u32(statistics.interface);
    out.u32((time.0 >> 32) as u32);
    out.u32(time.0 as u32);
    let options = out.len;
    out.option(1, comment.as_bytes());
    let counts = [
        (4, statistics.received),
        (5, statistics.dropped),
        (7, statistics.os_dropped),
    ];
    for (code, count) in counts {
        if let Some(count) = count {
            out.option(code, &count.to_le_bytes());
        }
    }
    out.finish(options)
}

/// Maximum length of a block whose texts have this many bytes together.
pub const fn text_block_len(text_bytes: usize) -> usize {
    AROUND + 16 + 4 + 5 * 8 + text_bytes
}
