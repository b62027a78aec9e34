//! Reads capture files as libpcap does: pcap in `classic`, pcapng in `blocks`.
//!
//! No more is read than the next packet needs, so that the position of the stream that the program
//! sees (`pcap_file`) is the expected one.

mod blocks;
mod classic;
mod swap;
#[cfg(test)]
mod tests;

use crate::failure::{Failure, Result, system_text};

/// A source of bytes.
pub trait Input {
    /// Fills `into`; returns fewer bytes only at the end.
    ///
    /// # Errors
    /// The system's error number.
    fn read(&mut self, into: &mut [u8]) -> std::result::Result<usize, i32>;
}

/// The header of a packet, in the requested precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Microseconds or nanoseconds.
    pub fraction: i64,
    /// Bytes present.
    pub cap_len: u32,
    /// Bytes on the wire, as stated.
    pub wire_len: u32,
}

/// Properties from the start of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The link type, as a `DLT_` number.
    pub dlt: i32,
    /// The other bits of the link type field.
    pub dlt_ext: i32,
    /// Maximum length of a packet.
    pub snaplen: i32,
    /// Whether the byte order differs from this machine's.
    pub is_swapped: bool,
    /// Version of the format.
    pub version: (u16, u16),
}

/// A capture file being read.
pub struct Reader {
    input: Box<dyn Input + Send>,
    format: Format,
    facts: Facts,
}

enum Format {
    Classic(classic::Format),
    Blocks(blocks::Format),
}

impl Reader {
    /// Reads the start of a file. `nanoseconds` is the requested precision of timestamps.
    ///
    /// # Errors
    /// `unknown file format`, a truncated file, and errors in a pcapng file before its first
    /// interface.
    pub fn new(mut input: Box<dyn Input + Send>, nanoseconds: bool) -> Result<Self> {
        let mut magic = [0; 4];
        let count = read(&mut *input, &mut magic)?;
        if count < magic.len() {
            return Err(truncated("file header", magic.len(), count));
        }
        let (format, facts) =
            if let Some(found) = classic::Format::open(magic, &mut *input, nanoseconds)? {
                (Format::Classic(found.0), found.1)
            } else if let Some(found) = blocks::Format::open(magic, &mut *input, nanoseconds)? {
                (Format::Blocks(found.0), found.1)
            } else {
                return Err(Failure::new("unknown file format"));
            };
        Ok(Self {
            input,
            format,
            facts,
        })
    }

    /// The properties from the start of the file.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Reads the next packet into `data`; `None` at the end of the file.
    ///
    /// # Errors
    /// The error in the file; the next call then continues after it, if possible.
    pub fn next(&mut self, data: &mut Vec<u8>) -> Result<Option<Header>> {
        let header = match &mut self.format {
            Format::Classic(format) => format.next(&self.facts, &mut *self.input, data),
            Format::Blocks(format) => format.next(&self.facts, &mut *self.input, data),
        };
        let Some(mut header) = header? else {
            return Ok(None);
        };
        if self.facts.is_swapped {
            swap::swap(self.facts.dlt, data);
        }
        swap::correct(self.facts.dlt, &mut header, data);
        Ok(Some(header))
    }
}

/// Byte order of the numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    #[cfg(target_endian = "little")]
    const HOST: Order = Order::Little;
    #[cfg(target_endian = "big")]
    const HOST: Order = Order::Big;

    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let bytes = part(bytes, at);
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let bytes = part(bytes, at);
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let bytes = part(bytes, at);
        match self {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// Bytes of a number; zeros if they are out of bounds, which callers check.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let rest = bytes.get(at..).and_then(|rest| rest.first_chunk());
    rest.copied().unwrap_or([0; N])
}

fn read(input: &mut dyn Input, into: &mut [u8]) -> Result<usize> {
    let failed = |errno| Failure::new(format!("error reading dump file: {}", system_text(errno)));
    input.read(into).map_err(failed)
}

fn truncated(of: &str, wanted: usize, got: usize) -> Failure {
    Failure::new(format!(
        "truncated dump file; tried to read {wanted} {of} bytes, only got {got}"
    ))
}
