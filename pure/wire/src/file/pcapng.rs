//! pcapng files (draft-ietf-opsawg-pcapng).
//!
//! ```text
//! block:     type u32, length u32, body, padding to 4 bytes, length u32
//! section:   0x0a0d0d0a: byte order mark u32, major u16, minor u16, section length i64, options
//! interface: 1: link type u16, 0 u16, snaplen u32, options
//! packet:    6: interface u32, time (high, low) 2*u32, here u32, on the wire u32, bytes, options
//! simple:    3: on the wire u32, bytes
//! old:       2: interface u16, drops u16, time 2*u32, here u32, on the wire u32, bytes, options
//! counters:  5: interface u32, time 2*u32, options
//! option:    code u16, length u16, value, padding to 4 bytes
//! ```
//!
//! Each section has its own byte order and its own interfaces. All other blocks (names, secrets,
//! custom ones) are skipped, whatever their length.

use super::{
    Direction, Event, FileError, FileErrorKind, Interface, InterfaceFound, MAX_BLOCK_LEN, Order,
    Packet, Resolution, Statistics, at,
};
use crate::{LinkType, Timestamp};
use core::ops::Range;

mod copy;
mod emit;
pub use copy::*;
pub use emit::*;

/// Block types.
mod block {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    pub const OLD_PACKET: u32 = 2;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const NAMES: u32 = 4;
    pub const STATISTICS: u32 = 5;
    pub const PACKET: u32 = 6;
    pub const SECRETS: u32 = 10;
}

/// Byte order mark, in the byte order of the section.
const BYTE_ORDER_MARK: u32 = 0x1a2b_3c4d;

/// Length of a block without its body.
const AROUND: usize = 12;

/// Minimum length of a block.
pub const BLOCK_LEN_MIN: usize = AROUND;

/// Number of interfaces per section in the default table.
pub const TABLE_LEN: usize = 512;

/// Maximum number of interfaces of a file that barewire reads or writes, in all of its sections.
pub const INTERFACES_MAX: usize = 1 << 16;

/// The default table of interfaces.
pub type Table = [Interface; TABLE_LEN];

/// An empty default table.
pub fn new_table() -> Table {
    [Interface::default(); TABLE_LEN]
}

/// Reads one pcapng file; see [`file`](crate::file) for its use.
#[derive(Clone, Debug)]
pub struct Reader<S = Table> {
    offset: u64,
    max_packet_len: u32,
    order: Order,
    section_count: u32,
    interface_count: u32,
    interfaces: S,
    /// Size of the last [`Event::Need`].
    needed: usize,
    /// Rest of a block being skipped: its offset, bytes left, its length.
    skipping: Option<(u64, usize, u32)>,
    /// Whether blocks of unknown types are requested whole.
    whole_blocks: bool,
}

impl<S: AsRef<[Interface]> + AsMut<[Interface]>> Reader<S> {
    /// Creates a reader at the start of a file. The length of `table` limits the interfaces of one
    /// section.
    pub fn new(table: S, max_packet_len: u32) -> Self {
        Reader {
            offset: 0,
            max_packet_len,
            order: Order::Little,
            section_count: 0,
            interface_count: 0,
            interfaces: table,
            needed: AROUND,
            skipping: None,
            whole_blocks: false,
        }
    }

    pub(super) fn table_mut(&mut self) -> &mut S {
        &mut self.interfaces
    }

    pub(super) fn request_whole_blocks(&mut self) {
        self.whole_blocks = true;
    }

    /// The reader's position, from the start of the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The interfaces of the current section described so far.
    pub fn interfaces(&self) -> &[Interface] {
        self.interfaces
            .as_ref()
            .get(..self.interface_count as usize)
            .unwrap_or(&[])
    }

    /// The next event at the reader's position, where `bytes` starts.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Event, FileError> {
        if let Some((start, left, len)) = self.skipping {
            return self.skip_rest(bytes, start, left, len);
        }
        let Some(head) = bytes.get(..AROUND) else {
            return Ok(self.need(AROUND));
        };
        // The type of a section block is the same in both orders; its mark determines the order.
        let order = if at(head, 0) == block::SECTION.to_be_bytes() {
            match u32::from_be_bytes(at(head, 8)) {
                BYTE_ORDER_MARK => Order::Big,
                mark if mark.swap_bytes() == BYTE_ORDER_MARK => Order::Little,
                mark => return Err(self.error(FileErrorKind::ByteOrderMark(mark))),
            }
        } else if self.section_count == 0 {
            return Err(self.error(FileErrorKind::NotACapture(at(head, 0))));
        } else {
            self.order
        };
        let (kind, len) = (order.u32(at(head, 0)), order.u32(at(head, 4)));
        if (len as usize) < AROUND {
            return Err(self.error(FileErrorKind::BlockTooShort(kind, len)));
        }
        // Some writers omit the padding in the length; it is rounded up here, as in other readers.
        let Some(padded) = len.checked_next_multiple_of(4) else {
            return Err(self.error(FileErrorKind::BlockTooLong(len, MAX_BLOCK_LEN)));
        };
        let whole = padded as usize;
        let known = matches!(
            kind,
            block::SECTION
                | block::INTERFACE
                | block::OLD_PACKET
                | block::SIMPLE_PACKET
                | block::STATISTICS
                | block::PACKET
        );
        let is_whole = self.whole_blocks && padded <= MAX_BLOCK_LEN;
        if !known && !is_whole {
            self.skipping = Some((self.offset, whole - 4, len));
            return self.skip_rest(bytes, self.offset, whole - 4, len);
        }
        if padded > MAX_BLOCK_LEN {
            return Err(self.error(FileErrorKind::BlockTooLong(len, MAX_BLOCK_LEN)));
        }
        let Some(block) = bytes.get(..whole) else {
            return Ok(self.need(whole));
        };
        let behind = order.u32(at(block, whole - 4));
        if behind != len {
            return Err(self.error(FileErrorKind::BlockLengthsDiffer(len, behind)));
        }
        let body = block.get(8..whole - 4).unwrap_or(&[]);
        let event = match kind {
            block::SECTION => self.section(body, order, whole)?,
            block::INTERFACE => self.interface(body, whole)?,
            block::STATISTICS => self.statistics(body, whole)?,
            _ if !known => Event::Skip(whole),
            _ => self.packet(kind, body, whole)?,
        };
        self.offset += whole as u64;
        Ok(event)
    }

    /// Skips `left` bytes at once, passed or not, then compares the length after them.
    fn skip_rest(
        &mut self,
        bytes: &[u8],
        start: u64,
        left: usize,
        len: u32,
    ) -> Result<Event, FileError> {
        if left > 0 {
            self.skipping = Some((start, 0, len));
            self.offset += left as u64;
            return Ok(Event::Skip(left));
        }
        let Some(behind) = bytes.first_chunk::<4>() else {
            return Ok(self.need(4));
        };
        let behind = self.order.u32(*behind);
        if behind != len {
            let kind = FileErrorKind::BlockLengthsDiffer(len, behind);
            return Err(FileError {
                offset: start,
                kind,
            });
        }
        self.skipping = None;
        self.offset += 4;
        Ok(Event::Skip(4))
    }

    fn section(&mut self, body: &[u8], order: Order, used: usize) -> Result<Event, FileError> {
        if body.len() < 16 {
            return Err(self.error(FileErrorKind::BlockTooShort(block::SECTION, used as u32)));
        }
        let (major, minor) = (order.u16(at(body, 4)), order.u16(at(body, 6)));
        // 1.2 was written by mistake instead of 1.0, with the same meaning.
        if major != 1 || !matches!(minor, 0 | 2) {
            return Err(self.error(FileErrorKind::Version(major, minor)));
        }
        self.order = order;
        self.section_count = self.section_count.saturating_add(1);
        self.interface_count = 0;
        Ok(Event::Skip(used))
    }

    fn interface(&mut self, body: &[u8], used: usize) -> Result<Event, FileError> {
        if body.len() < 8 {
            return Err(self.error(FileErrorKind::BlockTooShort(block::INTERFACE, used as u32)));
        }
        let order = self.order;
        let mut interface = Interface {
            link: LinkType::from_dlt(order.u16(at(body, 0))),
            snaplen: order.u32(at(body, 4)),
            ..Interface::default()
        };
        let mut name = 0..0;
        for (code, value) in Options::new(body, 8, order) {
            match (code, body.get(value.clone()).unwrap_or(&[])) {
                (2, _) => name = value.start + 8..value.end + 8,
                (9, &[unit]) => {
                    interface.resolution = Resolution::from_option(unit)
                        .ok_or_else(|| self.error(FileErrorKind::TimeResolution(unit)))?;
                }
                (13, &[len]) => interface.fcs_len = fcs_len_of(len),
                (14, &[..]) if value.len() == 8 => {
                    interface.offset_s = order.u64(at(body, value.start)) as i64;
                }
                _ => {}
            }
        }
        let index = self.interface_count;
        let limit = self.interfaces.as_ref().len() as u32;
        match self.interfaces.as_mut().get_mut(index as usize) {
            Some(slot) => *slot = interface,
            None => return Err(self.error(FileErrorKind::TooManyInterfaces(limit))),
        }
        self.interface_count += 1;
        let section = self.section_count - 1; // a section block came first, or `next` refused
        Ok(Event::Interface(InterfaceFound {
            used,
            section,
            index,
            interface,
            name,
        }))
    }

    fn known_interface(&self, index: u32) -> Result<Interface, FileError> {
        let unknown = || self.error(FileErrorKind::UnknownInterface(index, self.interface_count));
        self.interfaces()
            .get(index as usize)
            .copied()
            .ok_or_else(unknown)
    }

    fn statistics(&mut self, body: &[u8], used: usize) -> Result<Event, FileError> {
        if body.len() < 12 {
            return Err(self.error(FileErrorKind::BlockTooShort(block::STATISTICS, used as u32)));
        }
        let order = self.order;
        let index = order.u32(at(body, 0));
        self.known_interface(index)?;
        let mut found = Statistics {
            used,
            interface: index,
            ..Statistics::default()
        };
        for (code, value) in Options::new(body, 12, order) {
            let count = (value.len() == 8).then(|| order.u64(at(body, value.start)));
            match code {
                4 => found.received = count,
                5 => found.dropped = count,
                7 => found.os_dropped = count,
                _ => {}
            }
        }
        Ok(Event::Statistics(found))
    }

    fn packet(&mut self, kind: u32, body: &[u8], used: usize) -> Result<Event, FileError> {
        let order = self.order;
        let head_len = if kind == block::SIMPLE_PACKET { 4 } else { 20 };
        if body.len() < head_len {
            return Err(self.error(FileErrorKind::BlockTooShort(kind, used as u32)));
        }
        let space = (body.len() - head_len) as u32;
        let mut dropped = 0;
        let (index, cap_len, wire_len, units) = if kind == block::SIMPLE_PACKET {
            let wire_len = order.u32(at(body, 0));
            let snaplen = match self.known_interface(0)?.snaplen {
                0 => u32::MAX,
                limit => limit,
            };
            (0, wire_len.min(snaplen).min(space), wire_len, None)
        } else {
            let high = u64::from(order.u32(at(body, 4)));
            let units = high << 32 | u64::from(order.u32(at(body, 8)));
            let index = match kind {
                block::PACKET => order.u32(at(body, 0)),
                _ => {
                    // All ones: the number lost is unknown.
                    dropped = u64::from(order.u16(at(body, 2)).wrapping_add(1).saturating_sub(1));
                    u32::from(order.u16(at(body, 0)))
                }
            };
            (
                index,
                order.u32(at(body, 12)),
                order.u32(at(body, 16)),
                Some(units),
            )
        };
        let interface = self.known_interface(index)?;
        if cap_len > self.max_packet_len {
            return Err(self.error(FileErrorKind::PacketTooLong(cap_len, self.max_packet_len)));
        }
        if cap_len > space {
            return Err(self.error(FileErrorKind::PacketExceedsBlock(cap_len, used as u32)));
        }
        let end = head_len + cap_len as usize;
        let mut stated = Stated {
            direction: Direction::Unknown,
            fcs_len: interface.fcs_len.unwrap_or(0),
            dropped,
        };
        if kind != block::SIMPLE_PACKET {
            let options = Options::new(body, end.next_multiple_of(4), order);
            stated.read(options, kind == block::PACKET);
        }
        let (wire_len, has_wire_len) = super::wire_len(wire_len, cap_len);
        let time = match units {
            Some(units) => interface.resolution.timestamp(units, interface.offset_s),
            None => Ok(Timestamp::ZERO),
        };
        Ok(Event::Packet(Packet {
            used,
            data: head_len + 8..end + 8,
            time: time.unwrap_or_else(|nearest| nearest),
            has_time: units.is_some(),
            is_time_clamped: time.is_err(),
            wire_len,
            has_wire_len,
            fcs_len: stated.fcs_len,
            link: interface.link,
            interface: index,
            direction: stated.direction,
            dropped: stated.dropped,
        }))
    }

    /// Call this if a `Need` cannot be met, with the number of bytes left at the reader's position:
    /// returns an error if the file ends inside something.
    pub fn finish(&self, rest: usize) -> Result<(), FileError> {
        let kind = match (rest, self.skipping) {
            (_, Some((start, _, len))) => {
                let there = self.offset - start + rest as u64;
                let kind = FileErrorKind::EndsInside(there, u64::from(len.next_multiple_of(4)));
                return Err(FileError {
                    offset: start,
                    kind,
                });
            }
            (0, None) if self.section_count > 0 => return Ok(()),
            (0, None) => FileErrorKind::Empty,
            (rest, None) => FileErrorKind::EndsInside(rest as u64, self.needed as u64),
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

/// Iterator over options: the code, and the range of the value in the body. Ends at the end option,
/// or if an option exceeds the body.
struct Options<'a> {
    body: &'a [u8],
    position: usize,
    order: Order,
}

impl<'a> Options<'a> {
    fn new(body: &'a [u8], position: usize, order: Order) -> Self {
        Options {
            body,
            position,
            order,
        }
    }
}

impl Iterator for Options<'_> {
    type Item = (u16, Range<usize>);

    #[inline]
    fn next(&mut self) -> Option<(u16, Range<usize>)> {
        let head = self.body.get(self.position..)?.first_chunk::<4>()?;
        let (code, len) = (self.order.u16(at(head, 0)), self.order.u16(at(head, 2)));
        let start = self.position + 4;
        let value = start..start + usize::from(len);
        if code == 0 || value.end > self.body.len() {
            return None;
        }
        self.position = value.end.next_multiple_of(4);
        Some((code, value))
    }
}

/// What the options of a packet state.
struct Stated {
    direction: Direction,
    fcs_len: u8,
    dropped: u64,
}

impl Stated {
    fn read(&mut self, options: Options<'_>, has_dropped: bool) {
        let (body, order) = (options.body, options.order);
        for (code, value) in options {
            match (code, value.len()) {
                (2, 4) => {
                    let flags = order.u32(at(body, value.start));
                    self.direction = direction_of(flags);
                    // 0: not stated here.
                    if flags >> 5 & 15 != 0 {
                        self.fcs_len = (flags >> 5 & 15) as u8;
                    }
                }
                (4, 8) if has_dropped => self.dropped = order.u64(at(body, value.start)),
                _ => {}
            }
        }
    }
}

/// Length in bytes of the frame check sequence by an `if_fcslen` option. The specification counts
/// bits, but its example is 4, and Wireshark reads bytes: no check sequence is shorter than eight
/// bits, or longer than seven bytes.
fn fcs_len_of(stated: u8) -> Option<u8> {
    match stated {
        0..8 => Some(stated),
        _ => stated.is_multiple_of(8).then_some(stated / 8),
    }
}

/// The direction in a packet's flags (option `epb_flags`).
fn direction_of(flags: u32) -> Direction {
    match flags & 3 {
        1 => Direction::In,
        2 => Direction::Out,
        _ => Direction::Unknown,
    }
}
