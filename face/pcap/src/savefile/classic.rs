//! pcap files: a file header, then a header and data per packet.

use super::{Facts, Header, Input, Order, read, truncated};
use crate::failure::{Failure, Result};
use crate::link;

/// Bytes of the file header.
const HEADER_LEN: usize = 24;

/// Length of the rest after the magic number.
const REST_LEN: usize = HEADER_LEN - 4;

/// Bytes read at a time of the part of a packet that is discarded.
const DISCARD_LEN: usize = 4096;

/// How the packets of a file are read.
pub struct Format {
    order: Order,
    /// Length of a packet's header: 24 in the "modified" format of 1999.
    head_len: usize,
    lengths: Lengths,
    scale: Scale,
}

/// The order of the two lengths, which changed between versions.
#[derive(Clone, Copy)]
enum Lengths {
    AsNow,
    Swapped,
    /// Version 2.3 was written both ways; the captured length is never larger.
    Unknown,
}

/// Conversion from the file's fraction of a second to the requested one.
#[derive(Clone, Copy)]
enum Scale {
    Same,
    ToNanoseconds,
    ToMicroseconds,
}

impl Format {
    /// Reads the rest of the file header; `None` if the magic number is not of this format.
    pub fn open(
        magic: [u8; 4],
        input: &mut dyn Input,
        nanoseconds: bool,
    ) -> Result<Option<(Self, Facts)>> {
        let (order, in_nanoseconds, head_len) = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (Order::Big, false, 16),
            0xd4c3_b2a1 => (Order::Little, false, 16),
            0xa1b2_3c4d => (Order::Big, true, 16),
            0x4d3c_b2a1 => (Order::Little, true, 16),
            0xa1b2_cd34 => (Order::Big, false, 24),
            0x34cd_b2a1 => (Order::Little, false, 24),
            _ => return Ok(None),
        };
        let mut rest = [0; REST_LEN];
        let count = read(input, &mut rest)?;
        if count < REST_LEN {
            // The original counts the whole header, but not the magic number read before.
            return Err(truncated("file header", HEADER_LEN, count));
        }
        let version = (order.u16(&rest, 0), order.u16(&rest, 2));
        let lengths = match version {
            (0 | 1, _) => return Err(Failure::new("archaic pcap savefile format")),
            (2, 0..=2) => Lengths::Swapped,
            (2, 3) => Lengths::Unknown,
            (2, 4) => Lengths::AsNow,
            (major, minor) => {
                let text = format!("unsupported pcap savefile version {major}.{minor}");
                return Err(Failure::new(text));
            }
        };
        let (snaplen, field) = (order.u32(&rest, 12), order.u32(&rest, 16));
        // The top six bits describe a frame check sequence.
        let dlt = link::of_file((field & 0x03ff_ffff) as i32);
        let facts = Facts {
            dlt,
            dlt_ext: (field & 0xfc00_0000).cast_signed(),
            // Snaplens of the modified format do not count the link header.
            snaplen: match head_len {
                24 => link::snaplen(dlt, snaplen).saturating_add(14),
                _ => link::snaplen(dlt, snaplen),
            },
            is_swapped: order != Order::HOST,
            version,
        };
        let scale = match (in_nanoseconds, nanoseconds) {
            (false, true) => Scale::ToNanoseconds,
            (true, false) => Scale::ToMicroseconds,
            _ => Scale::Same,
        };
        let format = Self {
            order,
            head_len,
            lengths,
            scale,
        };
        Ok(Some((format, facts)))
    }

    /// Reads a packet.
    pub fn next(
        &self,
        facts: &Facts,
        input: &mut dyn Input,
        data: &mut Vec<u8>,
    ) -> Result<Option<Header>> {
        let mut head = [0; 24];
        let head = &mut head[..self.head_len];
        let count = read(input, head)?;
        if count == 0 {
            return Ok(None);
        }
        if count < self.head_len {
            return Err(truncated("header", self.head_len, count));
        }
        let header = self.header(head);
        let max = link::snaplen_max(facts.dlt);
        if header.cap_len > max {
            let len = header.cap_len;
            let snaplen = facts.snaplen.cast_unsigned();
            return Err(Failure::new(match len > snaplen {
                true => {
                    format!("invalid packet capture length {len}, bigger than snaplen of {snaplen}")
                }
                false => {
                    format!("invalid packet capture length {len}, bigger than maximum of {max}")
                }
            }));
        }
        let kept = header.cap_len.min(facts.snaplen.cast_unsigned());
        data.resize(kept as usize, 0);
        let count = read(input, data)?;
        if count < data.len() {
            return Err(truncated("captured", data.len(), count));
        }
        discard(input, kept, header.cap_len)?;
        Ok(Some(Header {
            cap_len: kept,
            ..header
        }))
    }

    fn header(&self, head: &[u8]) -> Header {
        let [seconds, fraction, first, second] = [0, 4, 8, 12].map(|at| self.order.u32(head, at));
        let (cap_len, wire_len) = match self.lengths {
            Lengths::AsNow => (first, second),
            Lengths::Swapped => (second, first),
            Lengths::Unknown => (first.min(second), first.max(second)),
        };
        // Both are signed in the file.
        let (seconds, fraction) = (seconds.cast_signed(), fraction.cast_signed());
        Header {
            seconds: seconds.into(),
            fraction: match self.scale {
                Scale::Same => fraction.into(),
                Scale::ToNanoseconds => i64::from(fraction) * 1000,
                Scale::ToMicroseconds => i64::from(fraction) / 1000,
            },
            cap_len,
            wire_len,
        }
    }
}

/// Discards the bytes of a packet beyond the file's snaplen.
fn discard(input: &mut dyn Input, kept: u32, cap_len: u32) -> Result<()> {
    let mut waste = [0; DISCARD_LEN];
    let mut at = kept;
    while at < cap_len {
        let chunk = (cap_len - at).min(DISCARD_LEN as u32);
        let count = read(input, &mut waste[..chunk as usize])?;
        at += count as u32;
        if (count as u32) < chunk {
            return Err(truncated("captured", cap_len as usize, at as usize));
        }
    }
    Ok(())
}
