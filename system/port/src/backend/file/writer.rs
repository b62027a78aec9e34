//! Writes capture files: pcap or pcapng, plain or compressed, one file or a set of them.
//!
//! Packets are gathered in one buffer and written in large writes of whole records, so that a file
//! is valid at any time: after a crash, a `kill -9`, a full disk. Nothing is allocated per packet.

mod copied;
mod encoder;
mod files;
mod options;

use std::io;
use std::path::PathBuf;

use sys::{Error, ErrorKind, Result};
use wire::file::pcapng::Block;
use wire::file::{MAX_PACKET_LEN, Statistics};
use wire::{LinkType, Timestamp};

use super::gather::Gather;
use super::handed::{KernelProgress, Whole, whole_records};
use super::output::Output;
use super::rotation::{FileNames, Sequence, Step};
use crate::rx::Packet;

pub use self::encoder::{Encoded, Encoder};
pub use self::options::{
    BlockCopy, FileCompression, FileFormat, FileInterface, Record, WriteFormat, WriterOptions,
    Written,
};

/// Number of bytes gathered before they are written.
const PIECE_LEN: usize = 256 << 10;

/// The same for compressed files, whose pieces are compressed separately: with 1 MiB this hardly
/// increases the size.
const PACKED_PIECE_LEN: usize = 1 << 20;

/// Number of bytes written to a pipe or socket at once: a pipe accepts as many completely or not at
/// all (`PIPE_BUF`, pipe(7)).
const STREAM_PIECE_LEN: usize = 4096;

/// A capture file, or a set of them, being written.
#[derive(Debug)]
pub struct FileWriter {
    options: WriterOptions,
    encoder: Encoder,
    sequence: Sequence,
    names: FileNames,
    interfaces: Vec<FileInterface>,
    statistics: Vec<Option<Statistics>>,
    output: Option<(Output, PathBuf)>,
    /// Blocks of a copied file for the start of the next one.
    preamble: copied::Preamble,
    /// Whole records that are not in the file yet, and room for one more.
    gathered: Gather,
    /// Number of packets in `gathered`.
    buffered: u64,
    /// Captured bytes of these.
    buffered_bytes: u64,
    handed: KernelProgress,
    piece_len: usize,
    /// Time of the last packet.
    last_ns: u64,
    written: Written,
    /// Whether the buffer starts with the header of a pcap file.
    has_head: bool,
    state: State,
}

/// Whether anything can still be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The set of files is complete.
    Full,
    /// A write failed.
    Failed,
}

impl FileWriter {
    /// Opens the first file, unless its name depends on the first packet's time.
    ///
    /// # Errors
    /// The system's error, for example `Permission` or `NotFound` (the directory).
    pub fn create(options: WriterOptions) -> Result<Self> {
        let piece_len = match options.compression {
            FileCompression::None => PIECE_LEN,
            _ => match options.rotation.size_max {
                0 => PACKED_PIECE_LEN,
                max => PACKED_PIECE_LEN.min(max as usize).max(4096),
            },
        };
        let snaplen = match options.snaplen {
            0 => MAX_PACKET_LEN,
            limit => limit.min(MAX_PACKET_LEN),
        };
        let sequence = Sequence::new(&options.path, options.rotation);
        let format = options.format;
        let mut writer = Self {
            encoder: Encoder { format, snaplen },
            sequence,
            names: FileNames::default(),
            interfaces: Vec::new(),
            statistics: Vec::new(),
            output: None,
            preamble: copied::Preamble::default(),
            gathered: Gather::new(piece_len + MAX_PACKET_LEN as usize + 4096),
            buffered: 0,
            buffered_bytes: 0,
            handed: KernelProgress::default(),
            piece_len,
            last_ns: 0,
            written: Written::default(),
            has_head: false,
            state: State::Open,
            options,
        };
        if let Some(start_s) = writer.options.start_s {
            writer.sequence.start(start_s);
            writer.open()?;
        } else if !writer.sequence.needs_time() {
            writer.open()?;
        }
        Ok(writer)
    }

    /// What was written so far, without packets that wait in the buffer.
    pub fn written(&self) -> Written {
        let mut written = self.written;
        written.bytes += self.output.as_ref().map_or(0, |(output, _)| output.len());
        written
    }

    /// Whether the file is a pipe or a socket, whose reader may stall.
    pub fn is_stream(&self) -> bool {
        let output = self.output.as_ref();
        output.is_some_and(|(output, _)| output.is_stream())
    }

    /// Whether the format is pcap, whose times end in 2106.
    pub fn is_pcap(&self) -> bool {
        matches!(self.options.format, FileFormat::Pcap(_))
    }

    /// What the kernel has accepted so far; readable while the writer is in a system call.
    pub fn handed(&self) -> KernelProgress {
        self.handed.clone()
    }

    /// The files on disk; readable while the writer is in a system call.
    pub fn names(&self) -> FileNames {
        self.names.clone()
    }

    /// Number of packets that wait in the buffer, or that were lost from it when a write failed.
    pub fn waiting(&self) -> u64 {
        self.buffered
    }

    /// Announces an interface; packets refer to it by the returned number.
    ///
    /// # Errors
    /// `InvalidInput` for a second link type in a pcap file, which supports only one.
    pub fn interface(&mut self, interface: FileInterface) -> Result<u32> {
        let first = self.interfaces.first().map(|first| first.link_type);
        let is_pcap = matches!(self.options.format, FileFormat::Pcap(_));
        if is_pcap && first.is_some_and(|first| first != interface.link_type) {
            let why = format!(
                "a pcap file has one link type, not both {} and {}",
                LinkType(first.unwrap_or(0)),
                LinkType(interface.link_type),
            );
            return Err(Error::new(ErrorKind::InvalidInput, self.what(), why)
                .with_hint("use a name that ends in .pcapng"));
        }
        self.interfaces.push(interface);
        self.statistics.push(None);
        if is_pcap && first.is_none() && self.output.is_some() {
            self.head();
        } else if !is_pcap && !self.copies() && self.output.is_some() {
            self.interface_block(self.interfaces.len() - 1);
        }
        Ok(self.interfaces.len() as u32 - 1)
    }

    /// Sets an interface's counters: packets received, and packets lost, by the kernel or card and
    /// by barewire. They are written when a file ends.
    pub fn statistics(&mut self, interface: u32, received: u64, dropped: u64, os_dropped: u64) {
        if let Some(entry) = self.statistics.get_mut(interface as usize) {
            *entry = Some(Statistics {
                interface,
                received: Some(received),
                dropped: Some(dropped),
                os_dropped: Some(os_dropped),
                ..Statistics::default()
            });
        }
    }

    /// Writes a received packet, with its tag restored and its segments joined. `time_ns` is used
    /// if it has no time of its own.
    ///
    /// # Errors
    /// As [`FileWriter::write`].
    #[inline]
    pub fn packet(
        &mut self,
        packet: &Packet<'_>,
        interface: u32,
        outgoing: Option<bool>,
        time_ns: u64,
    ) -> Result<WriteFormat> {
        let record = Record {
            time_ns: packet.time_ns().unwrap_or(time_ns),
            wire_len: packet.wire_len(),
            interface,
            outgoing,
            vlan: packet.vlan(),
        };
        if packet.is_whole() {
            return self.write(&record, std::iter::once(packet.bytes()));
        }
        self.write(&record, packet.segments())
    }

    /// Writes a packet given in pieces.
    ///
    /// # Errors
    /// `NoSpace` and other errors of the system if a buffer of packets was not written completely:
    /// the text has the number of packets in the file, which is valid, and of those lost. Later
    /// calls also fail.
    #[inline]
    pub fn write<'p>(
        &mut self,
        record: &Record,
        segments: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<WriteFormat> {
        if !self.has_place(record.time_ns)? {
            return Ok(WriteFormat::Full);
        }
        let present: usize = segments.clone().map(<[u8]>::len).sum();
        let room = self.gathered.room(present + Encoder::EXTRA_MAX);
        let Encoded { len, kept_len } = self.encoder.encode(room, record, present, segments);
        self.gathered.advance(len);
        self.count(record.time_ns, kept_len)
    }

    /// Encoder of records for [`FileWriter::record`] and [`FileWriter::records`].
    pub fn encoder(&self) -> Encoder {
        self.encoder
    }

    /// Writes a packet whose record was made by [`FileWriter::encoder`].
    ///
    /// # Errors
    /// As [`FileWriter::write`].
    #[inline]
    pub fn record(&mut self, time_ns: u64, record: &[u8]) -> Result<WriteFormat> {
        if !self.has_place(time_ns)? {
            return Ok(WriteFormat::Full);
        }
        self.gathered.put(record);
        let kept_len = match self.copies() {
            true => Block::of(record).map_or(0, |block| block.cap_len),
            false => self.encoder.kept_len(record),
        };
        self.count(time_ns, kept_len)
    }

    /// Whether records may be written many at a time: if all go into one file, unchanged.
    pub fn takes_records(&self) -> bool {
        let is_packed = self.options.compression != FileCompression::None;
        !is_packed && !self.options.rotation.is_on()
    }

    /// Writes the records of this many packets, with `kept_bytes` of these in them, after
    /// everything gathered; only if [`FileWriter::takes_records`].
    ///
    /// # Errors
    /// As [`FileWriter::write`]; packets of which nothing was written are among those lost.
    pub fn records(
        &mut self,
        records: &[u8],
        packets: u64,
        kept_bytes: u64,
        last_ns: u64,
    ) -> Result<()> {
        if self.state != State::Open {
            return Err(self.spent());
        }
        self.last_ns = last_ns;
        let before = (self.buffered, self.buffered_bytes);
        self.buffered += packets;
        self.buffered_bytes += kept_bytes;
        self.give_gathered(before)?;
        self.give(records, false, (packets, kept_bytes))
    }

    /// Whether there is a file for a packet of this time.
    #[inline]
    fn has_place(&mut self, time_ns: u64) -> Result<bool> {
        let may_change = self.options.rotation.is_on() || self.output.is_none();
        if self.state == State::Open && (!may_change || self.make_room(time_ns)?) {
            return Ok(true);
        }
        match self.state {
            State::Failed => Err(self.spent()),
            _ => Ok(false),
        }
    }

    /// Counts a gathered packet, and writes when there are enough.
    #[inline]
    fn count(&mut self, time_ns: u64, kept_len: u32) -> Result<WriteFormat> {
        self.last_ns = time_ns;
        self.buffered += 1;
        self.buffered_bytes += u64::from(kept_len);
        if self.gathered.len() >= self.piece_len {
            self.flush()?;
        }
        Ok(WriteFormat::Packet)
    }

    /// Opens the next file if it is time; false if there is none.
    fn make_room(&mut self, time_ns: u64) -> Result<bool> {
        let time_s = Timestamp(time_ns).seconds();
        if self.output.is_none() {
            self.sequence.start(time_s);
            self.open()?;
        }
        let mut len = self.file_len();
        let size_max = self.options.rotation.size_max;
        if size_max != 0 && len > size_max && self.options.compression != FileCompression::None {
            // Packets that wait count uncompressed: now it matters how much they take.
            self.flush()?;
            len = match self.file_len() {
                // Ever smaller pieces would hardly be compressed.
                len if size_max.saturating_sub(len) < size_max / 16 => size_max + 1,
                len => len,
            };
        }
        match self.sequence.step(time_s, len) {
            Step::Stay => {}
            Step::Next => {
                self.rotate()?;
                self.open()?;
            }
            Step::Full => {
                self.rotate()?;
                self.state = State::Full;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Length of the file once everything gathered is written, if that is not compressed.
    fn file_len(&self) -> u64 {
        let written = self.output.as_ref().map_or(0, |(output, _)| output.len());
        written + self.gathered.len() as u64
    }

    /// Writes everything gathered.
    ///
    /// # Errors
    /// As [`FileWriter::write`].
    pub fn flush(&mut self) -> Result<()> {
        if self.state == State::Failed {
            return Err(self.spent());
        }
        self.give_gathered((self.buffered, self.buffered_bytes))
    }

    /// The same, with the packets and bytes in it.
    fn give_gathered(&mut self, count: (u64, u64)) -> Result<()> {
        if self.output.is_none() || self.gathered.len() == 0 {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.gathered);
        let given = self.give(gathered.bytes(), self.has_head, count);
        self.gathered = gathered;
        given?;
        self.gathered.clear();
        self.has_head = false;
        Ok(())
    }

    /// Writes whole records, with this many packets and bytes of these.
    fn give(&mut self, bytes: &[u8], has_head: bool, count: (u64, u64)) -> Result<()> {
        let Some((output, _)) = &mut self.output else {
            return Ok(());
        };
        let format = self.options.format;
        // A stream may stall at any point: the amount accepted is then known.
        let is_stream = output.is_stream() && self.options.compression == FileCompression::None;
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let has_head = has_head && at == 0;
            let mut piece = Whole {
                len: rest.len(),
                packets: count.0,
                captured_bytes: count.1,
            };
            if is_stream {
                piece = whole_records(format, has_head, rest, STREAM_PIECE_LEN);
                debug_assert_ne!(piece.len, 0, "only whole records are gathered");
                piece.len = piece.len.max(1);
            }
            let (bytes, before) = (&rest[..piece.len], output.len());
            let records = |bytes: &[u8]| whole_records(format, has_head, bytes, usize::MAX);
            match output.write(bytes, |bytes| records(bytes).len) {
                Ok(()) => {
                    self.written.packets += piece.packets;
                    self.buffered -= piece.packets;
                    self.buffered_bytes -= piece.captured_bytes;
                    let written_bytes = output.len() - before;
                    self.handed
                        .add(piece.packets, piece.captured_bytes, written_bytes);
                    at += piece.len;
                }
                Err((error, kept)) => {
                    let packets = records(&bytes[..kept]).packets;
                    self.written.packets += packets;
                    self.buffered -= packets.min(self.buffered);
                    self.state = State::Failed;
                    return Err(self.reported(error));
                }
            }
        }
        Ok(())
    }

    /// Ends the file and returns what was written.
    ///
    /// # Errors
    /// As [`FileWriter::write`].
    pub fn finish(mut self) -> Result<Written> {
        if self.state == State::Open {
            if self.output.is_none() && self.written.files == 0 {
                // There was no packet to provide the time in the name: use the current time.
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                self.sequence.start(now.map_or(0, |now| now.as_secs()));
                self.open()?;
            }
            self.close()?;
        }
        Ok(self.written())
    }

    fn what(&self) -> String {
        let path = self
            .output
            .as_ref()
            .map_or(&self.options.path, |(_, path)| path);
        format!("write {}", path.display())
    }

    /// The error of calls after an error.
    fn spent(&self) -> Error {
        Error::new(ErrorKind::Io, self.what(), "writing has already ended")
    }

    /// The error of a failed write: how much was saved, and how much was not.
    fn reported(&self, error: io::Error) -> Error {
        let written = self.written();
        let mut text = format!(
            "{error}; {} packets ({} bytes) were written and are readable, {} more are lost",
            written.packets, written.bytes, self.buffered
        );
        if written.files > 1 {
            text.push_str(&format!(" (in {} files)", written.files));
        }
        let is_full = matches!(
            error.raw_os_error(),
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
        );
        let error = Error::from_io(self.what(), error).with_why(text);
        if is_full {
            let hint = "free some space, write to another disk, compress (.pcapng.zst), or keep \
                only the last files (-C SIZE -W COUNT)";
            return error.with_kind(ErrorKind::NoSpace).with_hint(hint);
        }
        error
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        if self.state == State::Open {
            // Call `finish` for the result.
            let _ = self.close();
        }
    }
}

#[cfg(test)]
mod tests;
