//! Framing of capture files: locates the packets in a pcap or pcapng file.
//!
//! A reader is a state machine over slices. It neither reads nor allocates: the caller passes the
//! bytes from the reader's position on, from a mapping of the whole file or from a buffer being
//! filled, and gets an [`Event`]: a packet (as a range of that slice), an interface, something to
//! skip, or the number of bytes required. No byte is copied.
//!
//! ```
//! use barewire_wire::file::{Event, Reader};
//!
//! fn count(file: &[u8]) -> Result<usize, barewire_wire::file::FileError> {
//!     let (mut reader, mut at, mut packets) = (Reader::new(), 0, 0);
//!     loop {
//!         let rest = file.get(at..).unwrap_or(&[]);
//!         match reader.next(rest)? {
//!             // The whole file is here, so nothing can be added: this is the end.
//!             Event::Need(_) => return reader.finish(rest.len()).map(|()| packets),
//!             event => {
//!                 packets += usize::from(matches!(event, Event::Packet(_)));
//!                 at += event.used();
//!             }
//!         }
//!     }
//! }
//! # assert!(count(b"not a capture at all, sorry").is_err());
//! ```

pub mod pcap;
pub mod pcapng;

use crate::{LinkType, Timestamp};
use core::fmt;
use core::ops::Range;

/// Default maximum packet length that a reader accepts: libpcap's limit.
pub const MAX_PACKET_LEN: u32 = 262_144;

/// Maximum length of a pcapng block that a reader interprets: libpcap's limit. Blocks of other
/// types are skipped, whatever their length.
pub const MAX_BLOCK_LEN: u32 = 16 << 20;

/// Maximum that [`Event::Need`] requests at once: a buffer of this size is enough for every file.
pub const MAX_NEED: usize = MAX_BLOCK_LEN as usize;

/// What [`Event::Need`] requests at once in files without extraordinary blocks: a packet, and some
/// options.
pub const USUAL_NEED: usize = MAX_PACKET_LEN as usize + 131_072;

/// Maximum wire length that a reader accepts: 1 MiB, twice the largest packet that a Linux
/// interface passes on before segmentation (`GSO_MAX_SIZE`, 524,280 bytes). A length above it
/// indicates damage, and would dominate any total that it is added to.
pub const MAX_WIRE_LEN: u32 = 1 << 20;

/// The wire length of a packet, and whether it is the one stated in the file. A stated length above
/// [`MAX_WIRE_LEN`] is replaced by the captured length.
#[inline]
fn wire_len(stated: u32, cap_len: u32) -> (u32, bool) {
    if stated <= MAX_WIRE_LEN.max(cap_len) {
        (stated.max(cap_len), true)
    } else {
        (cap_len, false)
    }
}

/// The next item at a reader's position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Call again with at least this many bytes from the same position on. At the end of input,
    /// call `finish`: it distinguishes a clean end from a truncated file.
    Need(usize),
    /// Nothing of interest in this many bytes. This may exceed the bytes passed: seek or discard.
    Skip(usize),
    /// An interface description; packets refer to it by index.
    Interface(InterfaceFound),
    /// A packet.
    Packet(Packet),
    /// An interface's counters (pcapng only).
    Statistics(Statistics),
}

impl Event {
    /// Number of bytes to advance before the next call; 0 for [`Event::Need`].
    #[inline]
    pub fn used(&self) -> usize {
        match self {
            Event::Need(_) => 0,
            Event::Skip(used) => *used,
            Event::Interface(found) => found.used,
            Event::Packet(packet) => packet.used,
            Event::Statistics(statistics) => statistics.used,
        }
    }
}

/// A packet in the slice that was passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Number of bytes to advance.
    pub used: usize,
    /// Range of the packet's bytes in the slice.
    pub data: Range<usize>,
    /// Capture time; [`Timestamp::ZERO`] if the file has no timestamp (see `has_time`).
    pub time: Timestamp,
    /// Whether the file has a timestamp for it.
    pub has_time: bool,
    /// Whether the timestamp is before 1970 or after 2554: `time` is then the nearest
    /// [`Timestamp`].
    pub is_time_clamped: bool,
    /// Length on the wire in bytes. Never less than `data.len()`.
    pub wire_len: u32,
    /// False if the file states more than [`MAX_WIRE_LEN`] bytes on the wire; `wire_len` is then
    /// the captured length.
    pub has_wire_len: bool,
    /// Length of the frame check sequence at the end of the packet on the wire, included in
    /// `wire_len`; 0 if there is none, or if the file does not state it.
    pub fcs_len: u8,
    /// Link type of its interface.
    pub link: LinkType,
    /// Index of its interface within its section.
    pub interface: u32,
    /// Direction, if recorded.
    pub direction: Direction,
    /// Packets that the interface lost between the previous packet and this one, if recorded.
    pub dropped: u64,
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// Not recorded.
    #[default]
    Unknown = 0,
    /// Received.
    In = 1,
    /// Sent.
    Out = 2,
}

/// An interface of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Link type of its packets.
    pub link: LinkType,
    /// Maximum number of bytes kept of a packet; 0 or a very large number for no limit.
    pub snaplen: u32,
    /// Unit of its time stamps.
    pub resolution: Resolution,
    /// Seconds to add to its time stamps.
    pub offset_s: i64,
    /// Length of the frame check sequence at the end of its packets in bytes, if stated.
    pub fcs_len: Option<u8>,
}

impl Default for Interface {
    fn default() -> Self {
        Interface {
            link: LinkType::NULL,
            snaplen: 0,
            resolution: Resolution::MICROSECONDS,
            offset_s: 0,
            fcs_len: None,
        }
    }
}

/// Unit of time stamps: a negative power of ten or two of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// 10^-n seconds, n up to 19.
    Decimal(u8),
    /// 2^-n seconds, n up to 63.
    Binary(u8),
}

impl Resolution {
    /// The default unit.
    pub const MICROSECONDS: Resolution = Resolution::Decimal(6);
    /// 10^-9 seconds.
    pub const NANOSECONDS: Resolution = Resolution::Decimal(9);

    /// Decodes an `if_tsresol` option; `None` if one second does not fit into 64 bits.
    pub const fn from_option(value: u8) -> Option<Resolution> {
        match value {
            0..=19 => Some(Resolution::Decimal(value)),
            0x80..=0xbf => Some(Resolution::Binary(value & 0x7f)),
            _ => None,
        }
    }

    /// The value of an `if_tsresol` option.
    pub const fn to_option(self) -> u8 {
        match self {
            Resolution::Decimal(n) => n,
            Resolution::Binary(n) => 0x80 | n,
        }
    }

    /// Converts a time stamp in this unit to nanoseconds, shifted by whole seconds. The nearest
    /// [`Timestamp`] is the error for times before 1970 and after 2554.
    pub fn timestamp(self, units: u64, offset_s: i64) -> Result<Timestamp, Timestamp> {
        let ns = match self {
            Resolution::Decimal(9) => u128::from(units),
            Resolution::Decimal(n @ 0..=8) => {
                u128::from(units) * u128::from(10u64.pow(9 - u32::from(n)))
            }
            Resolution::Decimal(n) => u128::from(units / 10u64.pow(u32::from(n.min(19)) - 9)),
            Resolution::Binary(n) => (u128::from(units) * 1_000_000_000) >> (n & 63),
        };
        if offset_s == 0 {
            return u64::try_from(ns).map(Timestamp).map_err(|_| Timestamp::MAX);
        }
        let moved = i128::from(offset_s) * 1_000_000_000 + ns as i128;
        u64::try_from(moved)
            .map(Timestamp)
            .map_err(|_| match moved < 0 {
                true => Timestamp::ZERO,
                false => Timestamp::MAX,
            })
    }
}

/// An interface description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFound {
    /// Number of bytes to advance.
    pub used: usize,
    /// Index of its section, from 0.
    pub section: u32,
    /// Its index within the section, from 0.
    pub index: u32,
    /// The interface.
    pub interface: Interface,
    /// Range of its name in the slice; empty if it has none.
    pub name: Range<usize>,
}

/// An interface's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of bytes to advance.
    pub used: usize,
    /// Index of the interface within its section.
    pub interface: u32,
    /// Packets that the interface received, if recorded.
    pub received: Option<u64>,
    /// Packets that the interface dropped for lack of resources, if recorded.
    pub dropped: Option<u64>,
    /// Packets that the operating system dropped, if recorded.
    pub os_dropped: Option<u64>,
}

/// Why a file cannot be read further, and where. Everything before is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Offset of the damaged record, block or header from the start of the file.
    pub offset: u64,
    /// The kind of damage.
    pub kind: FileErrorKind,
}

/// Damage in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileErrorKind {
    /// The file is empty.
    Empty,
    /// The first four bytes are not those of a capture file.
    NotACapture([u8; 4]),
    /// An unsupported version of the format: major, minor.
    Version(u16, u16),
    /// A packet exceeds the limit: its length, the limit.
    PacketTooLong(u32, u32),
    /// A block exceeds the limit: its length, the limit.
    BlockTooLong(u32, u32),
    /// A block is too short for its contents: its type, its length.
    BlockTooShort(u32, u32),
    /// The packet in a block is longer than the block: packet, block.
    PacketExceedsBlock(u32, u32),
    /// The two lengths of a block differ: leading, trailing.
    BlockLengthsDiffer(u32, u32),
    /// A section has an invalid byte order mark.
    ByteOrderMark(u32),
    /// A packet or statistics of an undescribed interface: its index, the number of described ones.
    UnknownInterface(u32, u32),
    /// A section has more interfaces than fit into the reader's table.
    TooManyInterfaces(u32),
    /// A time stamp unit so small that a second does not fit into 64 bits.
    TimeResolution(u8),
    /// The file ends inside a header, record or block: bytes present (at most, if it was being
    /// skipped), bytes needed.
    EndsInside(u64, u64),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at byte {})", self.kind, self.offset)
    }
}

impl core::error::Error for FileError {}

impl fmt::Display for FileErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FileErrorKind::Empty => f.write_str("the file is empty"),
            FileErrorKind::NotACapture([a, b, c, d]) => {
                write!(
                    f,
                    "not a pcap or pcapng file: it starts with {a:02x} {b:02x} {c:02x} {d:02x}"
                )
            }
            FileErrorKind::Version(major, minor) => {
                write!(f, "version {major}.{minor} of the format is not known")
            }
            FileErrorKind::PacketTooLong(len, limit) => {
                write!(f, "a packet of {len} bytes, more than the limit of {limit}")
            }
            FileErrorKind::BlockTooLong(len, limit) => {
                write!(f, "a block of {len} bytes, more than the limit of {limit}")
            }
            FileErrorKind::BlockTooShort(kind, len) => {
                write!(f, "a block of type 0x{kind:08x} with only {len} bytes")
            }
            FileErrorKind::PacketExceedsBlock(packet, block) => {
                write!(f, "a packet of {packet} bytes in a block of {block} bytes")
            }
            FileErrorKind::BlockLengthsDiffer(front, behind) => {
                write!(
                    f,
                    "a block starts with length {front} and ends with length {behind}"
                )
            }
            FileErrorKind::ByteOrderMark(mark) => {
                write!(
                    f,
                    "a section with 0x{mark:08x} in place of the byte order mark"
                )
            }
            FileErrorKind::UnknownInterface(index, count) => {
                write!(
                    f,
                    "interface {index} is used, but only {count} were described"
                )
            }
            FileErrorKind::TooManyInterfaces(limit) => {
                write!(f, "more than {limit} interfaces in one section")
            }
            FileErrorKind::TimeResolution(value) => {
                write!(
                    f,
                    "time stamp resolution 0x{value:02x} is too fine to be counted"
                )
            }
            FileErrorKind::EndsInside(there, needed) => {
                write!(
                    f,
                    "the file ends after {there} of {needed} bytes of a record"
                )
            }
        }
    }
}

/// Byte order of a file's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Big,
    Little,
}

impl Order {
    #[inline]
    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Big => u16::from_be_bytes(bytes),
            Order::Little => u16::from_le_bytes(bytes),
        }
    }

    #[inline]
    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Big => u32::from_be_bytes(bytes),
            Order::Little => u32::from_le_bytes(bytes),
        }
    }

    #[inline]
    fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Order::Big => u64::from_be_bytes(bytes),
            Order::Little => u64::from_le_bytes(bytes),
        }
    }
}

/// `N` bytes at a position; zeros if it is out of bounds.
#[inline]
fn at<const N: usize>(bytes: &[u8], position: usize) -> [u8; N] {
    bytes
        .get(position..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

/// Type of a file by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// pcap.
    Pcap,
    /// pcapng.
    Pcapng,
    /// Compressed by gzip (RFC 1952).
    Gzip,
    /// Compressed by zstd (RFC 8878).
    Zstd,
}

impl Format {
    /// Identifies a file by its first four bytes.
    pub fn sniff(bytes: &[u8]) -> Option<Format> {
        match *bytes.first_chunk::<4>()? {
            [0x0a, 0x0d, 0x0d, 0x0a] => Some(Format::Pcapng),
            [0x28, 0xb5, 0x2f, 0xfd] => Some(Format::Zstd),
            // 8: deflate, the only method.
            [0x1f, 0x8b, 8, _] => Some(Format::Gzip),
            magic => pcap::Magic::of(magic).map(|_| Format::Pcap),
        }
    }
}

/// Reads both pcap and pcapng; the first bytes select the format.
#[derive(Clone, Debug)]
pub struct Reader<S = pcapng::Table> {
    state: State,
    pcap: pcap::Reader,
    pcapng: pcapng::Reader<S>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Pcap,
    Pcapng,
}

impl Reader {
    /// Creates a reader at the start of a file, with room for [`pcapng::TABLE_LEN`] interfaces per
    /// section and the limit [`MAX_PACKET_LEN`].
    pub fn new() -> Self {
        Reader::with(pcapng::new_table(), MAX_PACKET_LEN)
    }
}

impl Default for Reader {
    fn default() -> Self {
        Reader::new()
    }
}

impl<S: AsRef<[Interface]> + AsMut<[Interface]>> Reader<S> {
    /// Creates a reader at the start of a file, with the caller's table of interfaces (its length
    /// limits those of one section) and a maximum packet length.
    pub fn with(table: S, max_packet_len: u32) -> Self {
        Reader {
            state: State::Start,
            pcap: pcap::Reader::new(max_packet_len),
            pcapng: pcapng::Reader::new(table, max_packet_len),
        }
    }

    /// The caller's table of interfaces, so that it can grow: after
    /// [`FileErrorKind::TooManyInterfaces`], [`Reader::next`] may be called again with the same
    /// bytes.
    pub fn table_mut(&mut self) -> &mut S {
        self.pcapng.table_mut()
    }

    /// Requests blocks of unknown types whole, so that they can be copied: up to [`MAX_BLOCK_LEN`]
    /// bytes in one [`Event::Skip`].
    pub fn request_whole_blocks(&mut self) {
        self.pcapng.request_whole_blocks();
    }

    /// The format, once it is known.
    pub fn format(&self) -> Option<Format> {
        match self.state {
            State::Start => None,
            State::Pcap => Some(Format::Pcap),
            State::Pcapng => Some(Format::Pcapng),
        }
    }

    /// The reader's position, from the start of the file.
    pub fn offset(&self) -> u64 {
        match self.state {
            State::Pcapng => self.pcapng.offset(),
            _ => self.pcap.offset(),
        }
    }

    /// Reads up to `max` packets from the reader's position on, where `bytes` starts, while the
    /// file is a plain pcap and they are complete: a fast path for the common case. Calls `each`
    /// with the offset of each packet, its captured length, its wire length, and its time. All are
    /// of interface 0 and have a time. Returns the number of bytes consumed; call [`Reader::next`]
    /// for the rest. It would return the same packets.
    #[inline(always)]
    pub fn each_plain(
        &mut self,
        bytes: &[u8],
        max: usize,
        each: impl FnMut(usize, u32, u32, Timestamp),
    ) -> usize {
        match self.state {
            State::Pcap => self.pcap.each_plain(bytes, max, each),
            _ => 0,
        }
    }

    /// The next event at the reader's position, where `bytes` starts.
    #[inline]
    pub fn next(&mut self, bytes: &[u8]) -> Result<Event, FileError> {
        match self.state {
            State::Pcap => self.pcap.next(bytes),
            State::Pcapng => self.pcapng.next(bytes),
            State::Start => self.start(bytes),
        }
    }

    fn start(&mut self, bytes: &[u8]) -> Result<Event, FileError> {
        let Some(&magic) = bytes.first_chunk::<4>() else {
            return Ok(Event::Need(4));
        };
        match Format::sniff(&magic) {
            Some(Format::Pcap) => {
                self.state = State::Pcap;
                self.pcap.next(bytes)
            }
            Some(Format::Pcapng) => {
                self.state = State::Pcapng;
                self.pcapng.next(bytes)
            }
            _ => Err(FileError {
                offset: 0,
                kind: FileErrorKind::NotACapture(magic),
            }),
        }
    }

    /// Call this if a `Need` cannot be met, with the number of bytes left at the reader's position:
    /// returns an error if the file ends inside something.
    pub fn finish(&self, rest: usize) -> Result<(), FileError> {
        let kind = match self.state {
            State::Pcap => return self.pcap.finish(rest),
            State::Pcapng => return self.pcapng.finish(rest),
            State::Start if rest == 0 => FileErrorKind::Empty,
            State::Start => FileErrorKind::EndsInside(rest as u64, 4),
        };
        Err(FileError { offset: 0, kind })
    }
}

#[cfg(test)]
mod tests;
