//! pcapng files, as far as libpcap reads them: one link type and one snaplen per file.

use super::{Facts, Header, Input, Order, read};
use crate::failure::{Failure, Result};
use crate::link;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const PACKET: u32 = 6;

const BYTE_ORDER_MARK: u32 = 0x1a2b_3c4d;

/// Length of a block's header and of the trailing length.
const AROUND: usize = 12;

/// Maximum length of a section header block.
const SECTION_LEN_MAX: u32 = 1 << 20;

/// Maximum length of a block, unless its link type has larger packets.
const BLOCK_LEN_MAX: u32 = 16 << 20;

/// Maximum number of interfaces per section: barewire's own bound.
const INTERFACE_COUNT_MAX: usize = 1 << 20;

/// The state of a file being read.
pub struct Format {
    order: Order,
    nanoseconds: bool,
    block: Vec<u8>,
    block_len_max: u32,
    interfaces: Vec<Clock>,
}

/// The clock of an interface.
#[derive(Clone, Copy)]
struct Clock {
    /// Units per second.
    units: u64,
    /// Whether they are a power of two.
    is_binary: bool,
    offset_s: u64,
}

impl Format {
    /// Reads up to the first interface; `None` if this is not a pcapng file.
    pub fn open(
        magic: [u8; 4],
        input: &mut dyn Input,
        nanoseconds: bool,
    ) -> Result<Option<(Self, Facts)>> {
        if u32::from_le_bytes(magic) != SECTION {
            return Ok(None);
        }
        let mut head = [0; 8];
        let count = read(input, &mut head)?;
        if count < head.len() {
            // Too short to be one.
            return Ok(None);
        }
        let order = match Order::Little.u32(&head, 4) {
            BYTE_ORDER_MARK => Order::Little,
            mark if mark.swap_bytes() == BYTE_ORDER_MARK => Order::Big,
            _ => return Ok(None),
        };
        let total = order.u32(&head, 0);
        if !(28..=SECTION_LEN_MAX).contains(&total) {
            return Err(Failure::new(format!(
                "Section Header Block in pcapng dump file has invalid length 28 < _{total}_ < \
                 {SECTION_LEN_MAX} (BT_SHB_INSANE_MAX)"
            )));
        }
        let mut format = Self {
            order,
            nanoseconds,
            block: Vec::new(),
            block_len_max: BLOCK_LEN_MAX,
            interfaces: Vec::new(),
        };
        format.block.extend_from_slice(&magic);
        format.block.extend_from_slice(&head);
        // The original checks neither the end of this block nor that its length is a multiple of 4.
        format.read_rest(input, total)?;
        let (major, minor) = format.version();
        if major != 1 || !matches!(minor, 0 | 2) {
            let text = format!("unsupported pcapng savefile version {major}.{minor}");
            return Err(Failure::new(text));
        }
        let facts = format.first_interface(input, (major, minor))?;
        Ok(Some((format, facts)))
    }

    fn version(&self) -> (u16, u16) {
        (
            self.order.u16(&self.block, 12),
            self.order.u16(&self.block, 14),
        )
    }

    fn first_interface(&mut self, input: &mut dyn Input, version: (u16, u16)) -> Result<Facts> {
        loop {
            let Some(kind) = self.read_block(input)? else {
                let text = "the capture file has no Interface Description Blocks";
                return Err(Failure::new(text));
            };
            match kind {
                INTERFACE => break,
                PACKET | SIMPLE_PACKET | OLD_PACKET => {
                    return Err(Failure::new(
                        "the capture file has a packet block before any Interface Description \
                         Blocks",
                    ));
                }
                _ => {}
            }
        }
        let (number, snaplen) = self.interface()?;
        let dlt = link::of_file(number.into());
        let largest = link::snaplen_max(dlt).saturating_add(131_072);
        self.block_len_max = self.block_len_max.max(largest);
        Ok(Facts {
            dlt,
            dlt_ext: 0,
            snaplen: link::snaplen(dlt, snaplen),
            is_swapped: self.order != Order::HOST,
            version,
        })
    }

    /// Reads a block; returns its type, or `None` at the end of the file.
    fn read_block(&mut self, input: &mut dyn Input) -> Result<Option<u32>> {
        let mut head = [0; 8];
        let count = read(input, &mut head)?;
        if count == 0 {
            return Ok(None);
        }
        if count < head.len() {
            return Err(truncated(head.len(), count));
        }
        self.block.clear();
        self.block.extend_from_slice(&head);
        let (kind, total) = (self.order.u32(&head, 0), self.order.u32(&head, 4));
        // A section in the other byte order has its length in that order.
        let total = match kind == SECTION {
            true => self.section_len(input, total)?,
            false => total,
        };
        self.fill(input, total)?;
        Ok(Some(kind))
    }

    /// The length of another section header block, for which its byte order mark is read.
    fn section_len(&mut self, input: &mut dyn Input, total: u32) -> Result<u32> {
        let mut mark = [0; 4];
        let count = read(input, &mut mark)?;
        if count < mark.len() {
            let wanted = (total as usize).saturating_sub(8);
            return Err(truncated(wanted, count));
        }
        self.block.extend_from_slice(&mark);
        match self.order.u32(&mark, 0) {
            BYTE_ORDER_MARK => Ok(total),
            mark if mark.swap_bytes() == BYTE_ORDER_MARK => Err(Failure::new(
                "the file has sections with different byte orders",
            )),
            _ => Err(Failure::new(
                "the file has a section with a bad byte order magic field",
            )),
        }
    }

    /// Reads the rest of a block of `total` bytes, and checks its end.
    fn fill(&mut self, input: &mut dyn Input, total: u32) -> Result<()> {
        if (total as usize) < AROUND {
            return Err(Failure::new(format!(
                "block in pcapng dump file has a length of {total} < {AROUND}"
            )));
        }
        if !total.is_multiple_of(4) {
            return Err(Failure::new(format!(
                "block in pcapng dump file has a length of {total} that is not a multiple of 4"
            )));
        }
        if total > self.block_len_max {
            return Err(Failure::new(format!(
                "pcapng block size {total} > maximum {}",
                self.block_len_max
            )));
        }
        self.read_rest(input, total)?;
        if self.order.u32(&self.block, self.block.len() - 4) != total {
            return Err(Failure::new(
                "block total length in header and trailer don't match",
            ));
        }
        Ok(())
    }

    /// Reads the rest of a block of `total` bytes.
    fn read_rest(&mut self, input: &mut dyn Input, total: u32) -> Result<()> {
        let have = self.block.len();
        let total_len = (total as usize).max(have);
        self.block.resize(total_len, 0);
        let count = read(input, &mut self.block[have..])?;
        if have + count < total_len {
            return Err(truncated(total_len - have, count));
        }
        Ok(())
    }

    /// The bytes between a block's header and the trailing length.
    fn body(&self) -> &[u8] {
        let end = self.block.len().saturating_sub(4);
        self.block.get(8..end).unwrap_or(&[])
    }

    /// Parses the current interface block: its link type and snaplen.
    fn interface(&mut self) -> Result<(u16, u32)> {
        let body = self.body();
        let order = self.order;
        if body.len() < 8 {
            return Err(short(INTERFACE));
        }
        let (number, snaplen) = (order.u16(body, 0), order.u32(body, 4));
        let clock = clock(order, &body[8..])?;
        if self.interfaces.len() == INTERFACE_COUNT_MAX {
            return Err(Failure::new(format!(
                "more than {INTERFACE_COUNT_MAX} interfaces in the file"
            )));
        }
        self.interfaces.push(clock);
        Ok((number, snaplen))
    }

    /// Reads up to the next packet.
    pub fn next(
        &mut self,
        facts: &Facts,
        input: &mut dyn Input,
        data: &mut Vec<u8>,
    ) -> Result<Option<Header>> {
        loop {
            match self.read_block(input)? {
                None => return Ok(None),
                Some(INTERFACE) => self.further_interface(facts)?,
                Some(SECTION) => self.further_section()?,
                Some(kind @ (PACKET | SIMPLE_PACKET | OLD_PACKET)) => {
                    return self.packet(kind, facts, data).map(Some);
                }
                Some(_) => {}
            }
        }
    }

    fn further_interface(&mut self, facts: &Facts) -> Result<()> {
        let body = self.body();
        let (number, snaplen) = (self.order.u16(body, 0), self.order.u32(body, 4));
        if body.len() < 8 {
            return Err(short(INTERFACE));
        }
        if link::of_file(number.into()) != facts.dlt {
            return Err(Failure::new(format!(
                "an interface has a type {number} different from the type of the first interface"
            )));
        }
        if link::snaplen(facts.dlt, snaplen) != facts.snaplen {
            return Err(Failure::new(format!(
                "an interface has a snapshot length {snaplen} different from the snapshot length \
                 of the first interface"
            )));
        }
        self.interface().map(drop)
    }

    fn further_section(&mut self) -> Result<()> {
        if self.block.len() < 28 {
            return Err(short(SECTION));
        }
        let (major, _) = self.version();
        if major != 1 {
            return Err(Failure::new(format!(
                "unknown pcapng savefile major version number {major}"
            )));
        }
        self.interfaces.clear();
        Ok(())
    }

    fn packet(&self, kind: u32, facts: &Facts, data: &mut Vec<u8>) -> Result<Header> {
        let (body, order) = (self.body(), self.order);
        let head_len = if kind == SIMPLE_PACKET { 4 } else { 20 };
        if body.len() < head_len {
            return Err(short(kind));
        }
        let (interface, units, cap_len, wire_len) = match kind {
            SIMPLE_PACKET => {
                let wire_len = order.u32(body, 0);
                let kept = wire_len.min(facts.snaplen.cast_unsigned());
                (0, 0, kept, wire_len)
            }
            _ => {
                let interface = match kind {
                    PACKET => order.u32(body, 0),
                    _ => order.u16(body, 0).into(),
                };
                let units = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
                (interface, units, order.u32(body, 12), order.u32(body, 16))
            }
        };
        let Some(clock) = self.interfaces.get(interface as usize) else {
            return Err(Failure::new(format!(
                "a packet arrived on interface {interface}, but there's no Interface Description \
                 Block for that interface"
            )));
        };
        let snaplen = facts.snaplen;
        if cap_len > snaplen.cast_unsigned() {
            return Err(Failure::new(format!(
                "invalid packet capture length {cap_len}, bigger than snaplen of {snaplen}"
            )));
        }
        let Some(bytes) = body.get(head_len..head_len + cap_len as usize) else {
            return Err(short(kind));
        };
        data.clear();
        data.extend_from_slice(bytes);
        let (seconds, fraction) = clock.time(units, self.nanoseconds);
        Ok(Header {
            seconds,
            fraction,
            cap_len,
            wire_len,
        })
    }
}

impl Clock {
    fn time(&self, units: u64, nanoseconds: bool) -> (i64, i64) {
        let wanted: u64 = if nanoseconds {
            1_000_000_000
        } else {
            1_000_000
        };
        let seconds = (units / self.units).wrapping_add(self.offset_s);
        let rest = units % self.units;
        let fraction = if self.is_binary || self.units < wanted {
            // Less than one second, so the product fits.
            (u128::from(rest) * u128::from(wanted) / u128::from(self.units)) as u64
        } else {
            rest / (self.units / wanted)
        };
        (seconds.cast_signed(), fraction.cast_signed())
    }
}

/// The clock described by an interface's options.
fn clock(order: Order, mut options: &[u8]) -> Result<Clock> {
    let mut clock = Clock {
        units: 1_000_000,
        is_binary: false,
        offset_s: 0,
    };
    let (mut has_resolution, mut has_offset) = (false, false);
    let refused = |text: String| Failure::new(format!("Interface Description Block {text}"));
    while !options.is_empty() {
        if options.len() < 4 {
            return Err(short(INTERFACE));
        }
        let (code, len) = (order.u16(options, 0), usize::from(order.u16(options, 2)));
        let padded = len.next_multiple_of(4);
        let Some(value) = options.get(4..4 + padded) else {
            return Err(short(INTERFACE));
        };
        match code {
            0 if len != 0 => {
                return Err(refused(format!(
                    "has opt_endofopt option with length {len} != 0"
                )));
            }
            0 => break,
            9 if len != 1 => {
                return Err(refused(format!(
                    "has if_tsresol option with length {len} != 1"
                )));
            }
            9 if has_resolution => {
                return Err(refused("has more than one if_tsresol option".into()));
            }
            9 => {
                has_resolution = true;
                (clock.units, clock.is_binary) = resolution(value[0]).map_err(refused)?;
            }
            14 if len != 8 => {
                return Err(refused(format!(
                    "has if_tsoffset option with length {len} != 8"
                )));
            }
            14 if has_offset => {
                return Err(refused("has more than one if_tsoffset option".into()));
            }
            14 => (has_offset, clock.offset_s) = (true, order.u64(value, 0)),
            _ => {}
        }
        options = options.get(4 + padded..).unwrap_or(&[]);
    }
    Ok(clock)
}

/// Units per second from an `if_tsresol` option, and whether they are a power of two.
fn resolution(value: u8) -> std::result::Result<(u64, bool), String> {
    let exponent = u32::from(value & 0x7f);
    let text = |base| format!("if_tsresol option resolution {base}^-{exponent} is too high");
    match value & 0x80 {
        0 => match 10u64.checked_pow(exponent) {
            Some(units) => Ok((units, false)),
            None => Err(text(10)),
        },
        _ => match 1u64.checked_shl(exponent) {
            Some(units) => Ok((units, true)),
            None => Err(text(2)),
        },
    }
}

fn short(kind: u32) -> Failure {
    Failure::new(format!(
        "block of type {kind} in pcapng dump file is too short"
    ))
}

fn truncated(wanted: usize, got: usize) -> Failure {
    Failure::new(format!(
        "truncated pcapng dump file; tried to read {wanted} bytes, only got {got}"
    ))
}
