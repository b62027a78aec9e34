//! pcap files (draft-ietf-opsawg-pcap).
//!
//! ```text
//! file:   magic u32, major u16, minor u16, 0 u32, 0 u32, snaplen u32, link type u32
//! packet: seconds u32, fraction u32, bytes here u32, bytes on the wire u32, the bytes
//! ```
//!
//! The magic number determines the byte order and the unit of the fraction. A third magic number,
//! 0xa1b2cd34 (the "modified" format of some Linux distributions about 1999), adds eight bytes to
//! each packet's header. Other numbers formerly in use have no documented layout and are refused.

use super::{
    Direction, Event, FileError, FileErrorKind, Interface, InterfaceFound, Order, Packet,
    Resolution, at,
};
use crate::{LinkType, Timestamp};

/// Bytes of the file header.
pub const HEADER_LEN: usize = 24;

/// Bytes of a packet's header.
pub const RECORD_LEN: usize = 16;

/// Bytes of a packet's header in the modified format.
const MODIFIED_RECORD_LEN: usize = 24;

/// Properties determined by the magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Magic {
    /// Byte order of the numbers.
    order: Order,
    /// Unit of the fraction of a second.
    pub resolution: Resolution,
    /// Whether packet headers are eight bytes longer.
    pub modified: bool,
}

impl Magic {
    /// Recognises a magic number in either byte order.
    pub const fn of(bytes: [u8; 4]) -> Option<Magic> {
        let (resolution, modified, order) = match u32::from_be_bytes(bytes) {
            0xa1b2c3d4 => (Resolution::MICROSECONDS, false, Order::Big),
            0xd4c3b2a1 => (Resolution::MICROSECONDS, false, Order::Little),
            0xa1b23c4d => (Resolution::NANOSECONDS, false, Order::Big),
            0x4d3cb2a1 => (Resolution::NANOSECONDS, false, Order::Little),
            0xa1b2cd34 => (Resolution::MICROSECONDS, true, Order::Big),
            0x34cdb2a1 => (Resolution::MICROSECONDS, true, Order::Little),
            _ => return None,
        };
        Some(Magic {
            order,
            resolution,
            modified,
        })
    }
}

impl Magic {
    /// Nanoseconds in the unit of the fraction.
    fn unit_ns(&self) -> u64 {
        if self.resolution == Resolution::NANOSECONDS {
            1
        } else {
            1_000
        }
    }
}

/// Reads one pcap file; see [`file`](crate::file) for its use.
#[derive(Clone, Debug)]
pub struct Reader {
    offset: u64,
    max_packet_len: u32,
    /// `None` until the file header has been read.
    magic: Option<Magic>,
    interface: Interface,
    /// Size of the last [`Event::Need`].
    needed: usize,
    /// Minor version: up to 2.2 the two lengths were swapped; 2.3 was written both ways.
    minor: u16,
}

impl Reader {
    /// Creates a reader at the start of a file.
    pub fn new(max_packet_len: u32) -> Self {
        Reader {
            offset: 0,
            max_packet_len,
            magic: None,
            interface: Interface::default(),
            needed: HEADER_LEN,
            minor: 4,
        }
    }

    /// The reader's position, from the start of the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the frame check sequence at the end of each packet, if the file header has it.
    pub fn fcs_len(&self) -> Option<u8> {
        self.interface.fcs_len
    }

    /// Reads up to `max` packets from the reader's position on, while the file is of the common
    /// kind and they are complete, and calls `each` with the offset of each packet, its captured
    /// length, its wire length, and its time. Returns the number of bytes consumed; call
    /// [`Reader::next`] for the rest.
    #[inline(always)]
    pub(super) fn each_plain(
        &mut self,
        bytes: &[u8],
        max: usize,
        each: impl FnMut(usize, u32, u32, Timestamp),
    ) -> usize {
        let Some(magic) = self.magic else { return 0 };
        if magic.modified || self.minor < 4 || self.interface.fcs_len.is_some() {
            return 0;
        }
        let unit_ns = magic.unit_ns();
        let used = match magic.order {
            Order::Big => self.run(bytes, max, unit_ns, u32::from_be_bytes, each),
            Order::Little => self.run(bytes, max, unit_ns, u32::from_le_bytes, each),
        };
        self.offset += used as u64;
        used
    }

    /// The same for one byte order.
    #[inline(always)]
    fn run(
        &self,
        bytes: &[u8],
        max: usize,
        unit_ns: u64,
        word: impl Fn([u8; 4]) -> u32,
        mut each: impl FnMut(usize, u32, u32, Timestamp),
    ) -> usize {
        let mut rest = bytes;
        for _ in 0..max {
            let Some((head, behind)) = rest.split_first_chunk::<RECORD_LEN>() else {
                break;
            };
            let [seconds, fraction, cap_len, wire_len] =
                [0, 4, 8, 12].map(|position| word(at(head, position)));
            let (wire_len, has_wire_len) = super::wire_len(wire_len, cap_len);
            if cap_len > self.max_packet_len || !has_wire_len {
                break;
            }
            let Some(next) = behind.get(cap_len as usize..) else {
                break;
            };
            let time = Timestamp::from_parts(seconds.into(), u64::from(fraction) * unit_ns);
            each(bytes.len() - behind.len(), cap_len, wire_len, time);
            rest = next;
        }
        bytes.len() - rest.len()
    }

    /// The next event at the reader's position, where `bytes` starts.
    #[inline]
    pub fn next(&mut self, bytes: &[u8]) -> Result<Event, FileError> {
        let Some(magic) = self.magic else {
            return self.header(bytes);
        };
        let head_len = if magic.modified {
            MODIFIED_RECORD_LEN
        } else {
            RECORD_LEN
        };
        let Some(head) = bytes.get(..head_len) else {
            return Ok(self.need(head_len));
        };
        let order = magic.order;
        let (seconds, fraction) = (order.u32(at(head, 0)), order.u32(at(head, 4)));
        let (mut cap_len, mut wire_len) = (order.u32(at(head, 8)), order.u32(at(head, 12)));
        if self.minor < 3 || self.minor == 3 && cap_len > wire_len {
            (cap_len, wire_len) = (wire_len, cap_len);
        }
        if cap_len > self.max_packet_len {
            return Err(self.error(FileErrorKind::PacketTooLong(cap_len, self.max_packet_len)));
        }
        let used = head_len + cap_len as usize;
        if bytes.len() < used {
            return Ok(self.need(used));
        }
        self.offset += used as u64;
        let (wire_len, has_wire_len) = super::wire_len(wire_len, cap_len);
        let fraction_ns = u64::from(fraction) * magic.unit_ns();
        Ok(Event::Packet(Packet {
            used,
            data: head_len..used,
            time: Timestamp::from_parts(u64::from(seconds), fraction_ns),
            has_time: true,
            is_time_clamped: false,
            wire_len,
            has_wire_len,
            fcs_len: self.interface.fcs_len.unwrap_or(0),
            link: self.interface.link,
            interface: 0,
            direction: Direction::Unknown,
            dropped: 0,
        }))
    }

    fn header(&mut self, bytes: &[u8]) -> Result<Event, FileError> {
        let Some(head) = bytes.get(..HEADER_LEN) else {
            return Ok(self.need(HEADER_LEN));
        };
        let start = at(head, 0);
        let Some(magic) = Magic::of(start) else {
            return Err(self.error(FileErrorKind::NotACapture(start)));
        };
        let order = magic.order;
        let (major, minor) = (order.u16(at(head, 4)), order.u16(at(head, 6)));
        let (snaplen, link) = (order.u32(at(head, 16)), order.u32(at(head, 20)));
        if major != 2 || minor > 4 {
            return Err(self.error(FileErrorKind::Version(major, minor)));
        }
        self.minor = minor;
        self.interface = Interface {
            link: LinkType::from_dlt(link as u16),
            snaplen,
            resolution: magic.resolution,
            offset_s: 0,
            // If bit 26 is set, the top four bits hold the length of the frame check sequence, in
            // units of 16 bits; the rest above the link type is reserved.
            fcs_len: (link & 1 << 26 != 0).then_some((link >> 28) as u8 * 2),
        };
        self.magic = Some(magic);
        self.offset = HEADER_LEN as u64;
        Ok(Event::Interface(InterfaceFound {
            used: HEADER_LEN,
            section: 0,
            index: 0,
            interface: self.interface,
            name: 0..0,
        }))
    }

    /// Call this if a `Need` cannot be met, with the number of bytes left at the reader's position:
    /// returns an error if the file ends inside something.
    pub fn finish(&self, rest: usize) -> Result<(), FileError> {
        if rest == 0 && self.magic.is_some() {
            return Ok(());
        }
        let kind = match rest {
            0 => FileErrorKind::Empty,
            _ => FileErrorKind::EndsInside(rest as u64, self.needed as u64),
        };
        Err(self.error(kind))
    }

    fn need(&mut self, len: usize) -> Event {
        self.needed = len;
        Event::Need(len)
    }

    fn error(&self, kind: FileErrorKind) -> FileError {
        FileError {
            offset: self.offset,
            kind,
        }
    }
}

/// Writes the file header, in little-endian order.
pub fn emit_header(out: &mut [u8; HEADER_LEN], link: LinkType, snaplen: u32, precision: Precision) {
    let magic: u32 = match precision {
        Precision::Microseconds => 0xa1b2c3d4,
        Precision::Nanoseconds => 0xa1b23c4d,
    };
    out[..4].copy_from_slice(&magic.to_le_bytes());
    out[4..16].copy_from_slice(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    out[16..20].copy_from_slice(&snaplen.to_le_bytes());
    out[20..].copy_from_slice(&u32::from(link.0).to_le_bytes());
}

/// Latest time that a pcap file has room for: its seconds are 32 bits, until 2106.
pub const TIME_MAX: Timestamp = Timestamp(u32::MAX as u64 * 1_000_000_000 + 999_999_999);

/// Writes the header of a packet with `cap_len` bytes.
///
/// The seconds have 32 bits: a time after 2106-02-07 is clamped.
#[inline]
pub fn emit_record(
    out: &mut [u8; RECORD_LEN],
    time: Timestamp,
    cap_len: u32,
    wire_len: u32,
    precision: Precision,
) {
    let time = time.min(TIME_MAX);
    let seconds = time.seconds() as u32;
    let fraction = match precision {
        Precision::Microseconds => time.subsec_ns() / 1_000,
        Precision::Nanoseconds => time.subsec_ns(),
    };
    let words = [seconds, fraction, cap_len, wire_len];
    for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
}

/// Unit of the fraction of a second in a pcap file to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Microseconds, which every reader supports.
    Microseconds,
    /// Nanoseconds, without loss of precision.
    #[default]
    Nanoseconds,
}
