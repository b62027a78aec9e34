//! Reading: packets are slots over the file's memory.

mod copying;
mod filters;
mod losses;
mod next;

use std::cell::OnceCell;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ring::slot::{Room, Slot};
use ring::{Frame, FrameCache, Pool, PoolConfig};
use sys::{Error, ErrorKind, Result};
use wire::file::{
    Direction as Way, Event, FileError, FileErrorKind, Format, Interface, InterfaceFound, Reader,
    pcapng,
};

use self::copying::Copying;
use self::filters::Filters;
use self::losses::Losses;
use self::next::next;
use super::Shared;
use super::input::Compression;
use super::source::{self, More, Source};
use crate::account::RxCounters;
use crate::options::PortOptions;
use crate::rx::{Filled, Ready, RxBackend};

/// Maximum number of packets read for one batch if a filter rejects most of them, so that a call
/// ends soon.
const LOOK_MAX: u64 = 1 << 16;

/// How far ahead of a packet its file is prefetched: some twenty packets of minimum length.
const AHEAD_LEN: usize = 2048;

/// Maximum length kept of an interface's name. Linux's have 15 bytes, names in captures of other
/// systems some more; a file may have 64 KiB for each of 65,536.
const NAME_LEN_MAX: usize = 128;

/// How long to wait for a writer that is to take blocks.
const WRITER_PAUSE: Duration = Duration::from_millis(5);

/// Number of interfaces for which the table has room at first.
const TABLE_LEN: usize = 8;

/// Number of frames in the pool for packets that the program keeps: 4 MiB.
const KEEP_FRAME_COUNT: u32 = 1024;

/// How reading ended.
pub(super) enum End {
    /// At the end of the file.
    Clean,
    /// With damage.
    Damaged {
        offset: u64,
        why: String,
        kind: ErrorKind,
    },
}

pub(super) struct Rx {
    pub(super) path: String,
    pub(super) source: Source,
    pub(super) reader: Box<Reader<Vec<Interface>>>,
    /// Index of an interface in the port, by its index in the section.
    indices: Vec<u16>,
    /// The section of `indices`.
    section: u32,
    filters: Filters,
    losses: Losses,
    copying: Copying,
    snaplen: u32,
    pub(super) end: Option<End>,
    /// Whether the end was reported to the program.
    reported: bool,
    keep: OnceCell<Pool>,
    cache: Option<FrameCache>,
    pub(super) shared: Arc<Shared>,
    counters: Arc<RxCounters>,
}

impl Rx {
    /// Opens a file without reading it.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub(super) fn new(
        path: &str,
        options: &PortOptions,
        counters: Arc<RxCounters>,
    ) -> Result<Self> {
        let source = Source::open(path, options.map_files)?;
        Ok(Self::from(source, path, options, counters))
    }

    /// The same for an open regular file.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub(super) fn over(
        file: File,
        path: &str,
        options: &PortOptions,
        counters: Arc<RxCounters>,
    ) -> Result<Self> {
        let source = Source::over(file, path, options.map_files)?;
        Ok(Self::from(source, path, options, counters))
    }

    fn from(source: Source, path: &str, options: &PortOptions, counters: Arc<RxCounters>) -> Self {
        let table = vec![Interface::default(); TABLE_LEN];
        let mut reader = Reader::with(table, wire::file::MAX_PACKET_LEN);
        if options.copies_blocks {
            reader.request_whole_blocks();
        }
        Self {
            path: path.to_owned(),
            source,
            reader: Box::new(reader),
            indices: Vec::new(),
            section: 0,
            filters: Filters::new(options),
            losses: Losses::default(),
            copying: Copying {
                is_on: options.copies_blocks,
                ..Copying::default()
            },
            snaplen: match options.snaplen {
                0 => u32::MAX,
                snaplen => snaplen,
            },
            end: None,
            reported: false,
            keep: options
                .pool
                .clone()
                .map_or_else(OnceCell::new, OnceCell::from),
            cache: None,
            shared: Arc::default(),
            counters,
        }
    }

    /// Reads up to the first interface, so that the port has a link type; `is_merged`: others are
    /// read at the same time, for whose packets a filter may be meant.
    pub(super) fn open(&mut self, is_merged: bool) -> Result<()> {
        while self.end.is_none() && self.indices.is_empty() {
            match next(&mut self.reader, self.source.rest()) {
                Ok(Event::Need(need)) => match self.source.more(need) {
                    More::Bytes => {}
                    More::Later => {
                        if !self.source.wait(Duration::MAX) {
                            let why = "interrupted before the first packet";
                            return Err(Error::new(ErrorKind::Io, self.what(), why));
                        }
                    }
                    more => self.at_end(more),
                },
                Ok(event) => self.meta(&event),
                Err(error) => self.damage(&error),
            }
        }
        match &self.end {
            None | Some(End::Clean) => {}
            Some(_) => return Err(self.error()),
        }
        let first = self
            .shared
            .interfaces_from(0)
            .first()
            .map(|(link_type, _)| *link_type);
        let is_only = !is_merged && self.reader.format() == Some(Format::Pcap);
        first.map_or(Ok(()), |link_type| self.filters.check(link_type, is_only))
    }

    /// Number of interfaces read so far; the control side has been informed of each.
    pub(super) fn interface_count(&self) -> usize {
        self.filters.len()
    }

    /// Whether the file was read to its end, without damage.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.end, Some(End::Clean))
    }

    /// Stops reading it.
    pub(super) fn abandon(&mut self) {
        self.end = Some(End::Clean);
    }

    fn what(&self) -> String {
        format!("read {}", source::shown(&self.path))
    }

    /// Handles events other than packets.
    fn meta(&mut self, event: &Event) {
        // A pcap file has no blocks. Its header is the first event.
        self.copying.is_on &= self.reader.format() != Some(Format::Pcap);
        match event {
            Event::Interface(found) => self.interface(found),
            Event::Statistics(found) => {
                let lost = self.losses.counters(found);
                self.shared.capture_lost.add(lost);
            }
            _ => {}
        }
        if self.copying.is_on {
            self.copy_block(event.used());
        }
        self.source.take(event.used());
    }

    /// Passes a block to the program that copies the file.
    fn copy_block(&mut self, len: usize) {
        let block = self.source.rest().get(..len);
        if self.reader.format() != Some(Format::Pcapng) {
            return;
        }
        match block {
            Some(block) if pcapng::is_block(block) => {
                let is_added = self.shared.blocks.add(self.copying.groups + 1, block);
                self.copying.is_due |= is_added;
            }
            // The end of one that was too long.
            Some(rest) if rest.len() < pcapng::BLOCK_LEN_MIN => {}
            _ => self.shared.blocks.leave_out(),
        }
    }

    /// Records an interface. A section that repeats the interfaces of the previous one
    /// (concatenated files) gets the same indices.
    fn interface(&mut self, found: &InterfaceFound) {
        if found.section != self.section {
            self.section = found.section;
            self.indices.clear();
            self.losses.begin_section();
        }
        let name = self.source.rest().get(found.name.clone()).unwrap_or(&[]);
        let name = short_name(name);
        let snaplen = found.interface.snaplen;
        self.shared.snaplen.fetch_max(snaplen, Ordering::Relaxed);
        let entry = (found.interface.link.0, name);
        let mut known = self
            .shared
            .interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let local = self.indices.len();
        let index = if known.get(local) == Some(&entry) {
            local
        } else {
            known.push(entry);
            known.len() - 1
        };
        let index = u16::try_from(index);
        let count = known.len();
        drop(known);
        if count > self.filters.len() {
            self.filters.add(found.interface.link.0);
        }
        match index {
            Ok(index) => self.indices.push(index),
            Err(_) => {
                let why = format!("{count} interfaces in one file");
                let offset = self.reader.offset();
                self.end = Some(End::Damaged {
                    offset,
                    why,
                    kind: ErrorKind::Unsupported,
                });
            }
        }
    }

    /// Publishes packets rejected because the filter cannot be used on their link type.
    fn note_unsuitable(&mut self) {
        let (count, link_types) = self.filters.take_unsuitable();
        self.shared.filter_unsuitable.add(count);
        if !link_types.is_empty() {
            let mut known = self.shared.unsuitable_links();
            for link_type in link_types {
                if !known.contains(&link_type) {
                    known.push(link_type);
                }
            }
        }
    }

    fn at_end(&mut self, more: More) {
        let offset = self.reader.offset();
        match more {
            More::Failed(error) => {
                // A truncated or damaged compressed stream, or a failing disk, which has an errno.
                let kind = match error.raw_os_error() {
                    Some(_) => ErrorKind::Io,
                    None => ErrorKind::Damaged,
                };
                let why = match self.source.compression() {
                    Compression::None => error.to_string(),
                    compression => format!("{} data: {error}", compression.name()),
                };
                self.end = Some(End::Damaged { offset, why, kind });
            }
            More::End(skipped) => match self.reader.finish(self.source.rest().len()) {
                Ok(()) => self.end = Some(End::Clean),
                Err(mut error) => {
                    if let FileErrorKind::EndsInside(there, needed) = error.kind {
                        let there = there.saturating_sub(skipped as u64);
                        error.kind = FileErrorKind::EndsInside(there, needed);
                    }
                    self.damage(&error);
                }
            },
            More::Bytes | More::Later => {}
        }
    }

    fn damage(&mut self, error: &FileError) {
        let kind = match error.kind {
            FileErrorKind::Empty | FileErrorKind::NotACapture(_) if error.offset == 0 => {
                ErrorKind::InvalidInput
            }
            _ => ErrorKind::Damaged,
        };
        let (offset, why) = (error.offset, error.kind.to_string());
        self.end = Some(End::Damaged { offset, why, kind });
    }

    /// The end as an error; created again for each call.
    fn error(&mut self) -> Error {
        let Some(End::Damaged { offset, why, kind }) = &self.end else {
            return Error::new(ErrorKind::Io, self.what(), "it has ended");
        };
        if *kind == ErrorKind::InvalidInput {
            let hint = "capture files are pcap or pcapng, plain or compressed by gzip or zstd";
            return Error::new(*kind, self.what(), why.clone()).with_hint(hint);
        }
        let seen = self.shared.seen.get();
        let whose = match self.source.compression() {
            Compression::None => "",
            _ => " of the uncompressed file",
        };
        let why = format!("{why}; byte {offset}{whose}, after {seen} packets");
        Error::new(*kind, self.what(), why)
    }

    /// Adds packets to the batch until there is another event, or `room` of them; returns how many
    /// were read, and the event. Adds the bytes in the batch to `bytes`.
    fn packets(
        &mut self,
        slots: &mut Vec<Slot>,
        room: usize,
        bytes: &mut u64,
    ) -> (u64, Option<std::result::Result<Event, FileError>>) {
        let rest = self.source.rest();
        let start = self.source.pointer(0);
        let (mut at, mut seen, mut added) = (0, 0, 0);
        if self.filters.select_all() {
            let index = self.indices.first().copied().unwrap_or(0);
            let snaplen = self.snaplen;
            let info = u64::from(Slot::TIME) | u64::from(index) << 16;
            let (mut batch, mut sum) = (Room::new(slots, room), 0);
            at = self
                .reader
                .each_plain(rest, room, |data_at, cap_len, wire_len, time| {
                    // SAFETY: the reader checked that the packet lies within `rest`, which `start`
                    // is the start of; this pointer may be written through, which one made from
                    // `rest` may not.
                    let data = unsafe { start.add(data_at) };
                    // The position of the next packet is in this one's header, so the processor can
                    // only prefetch by address, and that stops at each page.
                    let ahead = data.as_ptr().addr() + AHEAD_LEN;
                    sys::advice::prefetch(&[ahead, ahead + 64]);
                    let len = cap_len.min(snaplen);
                    // SAFETY: as above; what is read of the file stays in memory until `release`.
                    // The reader finds at most as many as there is room for.
                    unsafe {
                        let place = batch.place();
                        Slot::write(place, data.as_ptr(), len, 0, time.ns(), 0, info);
                        (*place).wire_len = wire_len;
                        batch.advance(1);
                    }
                    sum += u64::from(len);
                });
            added = batch.finish();
            seen = added as u64;
            *bytes += sum;
        }
        let other = loop {
            if added == room || seen == LOOK_MAX {
                break None;
            }
            let shown = rest.get(at..).unwrap_or(&[]);
            let packet = match next(&mut self.reader, shown) {
                Ok(Event::Packet(packet)) => packet,
                other => break Some(other),
            };
            seen += 1;
            self.shared.count(&packet);
            let index = self.indices.get(packet.interface as usize);
            let index = index.copied().unwrap_or(0);
            if packet.dropped != 0 {
                let lost = self.losses.before_packet(packet.interface, packet.dropped);
                self.shared.capture_lost.add(lost);
            }
            let data_at = at + packet.data.start;
            at += packet.used;
            let bytes_of = shown.get(packet.data.clone()).unwrap_or(&[]);
            if !self.filters.selects(index, bytes_of, packet.wire_len) {
                continue;
            }
            // SAFETY: the reader checked that the packet lies within `rest`, which `start` is the
            // start of; this pointer may be written through, which one made from `rest` may not.
            let data = unsafe { start.add(data_at) };
            let cap_len = (packet.data.len() as u32).min(self.snaplen);
            // SAFETY: as above; what is read of the file stays in memory until `release`.
            let mut slot = unsafe { Slot::over(data, cap_len, packet.wire_len, 0) };
            describe(&mut slot, &packet, index);
            if self.copying.is_on {
                // SAFETY: as above; the packet lies within its block.
                slot = unsafe { self.copying.mark(&slot, packet.used, packet.data.start) };
            }
            slots.push(slot);
            added += 1;
            *bytes += u64::from(cap_len);
        };
        self.source.take(at);
        (seen, other)
    }
}

/// Sets what the file says of a packet beside its bytes.
#[inline(always)]
fn describe(slot: &mut Slot, packet: &wire::file::Packet, index: u16) {
    slot.interface_index = index;
    slot.time_ns = packet.time.ns();
    slot.flags = u16::from(packet.has_time) * Slot::TIME
        + u16::from(packet.direction == Way::Out) * Slot::OUTGOING
        + u16::from(packet.direction == Way::In) * Slot::INCOMING;
    slot.set_fcs_len(packet.fcs_len);
}

impl RxBackend for Rx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        self.source.begin_batch(&self.path)?;
        if self.copying.is_on && self.shared.blocks.must_wait(self.copying.groups + 1) {
            return Ok(Filled::default());
        }
        let before = slots.len();
        let (mut seen, mut bytes) = (0, 0);
        while self.end.is_none() && !self.shared.stopped.load(Ordering::Relaxed) {
            let room = max - (slots.len() - before);
            let (looked, other) = self.packets(slots, room, &mut bytes);
            seen += looked;
            match other {
                None => break,
                Some(Ok(Event::Need(need))) => {
                    // Reading more moves the buffer, which slots may point to.
                    if slots.len() > before || seen >= LOOK_MAX {
                        break;
                    }
                    match self.source.more(need) {
                        More::Bytes => {}
                        More::Later => break,
                        more => self.at_end(more),
                    }
                }
                Some(Ok(event)) => self.meta(&event),
                Some(Err(error)) => self.damage(&error),
            }
        }
        let count = (slots.len() - before) as u64;
        self.shared.seen.add(seen);
        if seen > count {
            self.counters.filtered.add(seen - count);
            self.note_unsuitable();
        }
        if count == 0 && matches!(self.end, Some(End::Damaged { .. })) {
            self.reported = true;
            return Err(self.error());
        }
        Ok(Filled {
            packets: slots.len() - before,
            bytes,
        })
    }

    fn release(&mut self, slots: &mut Vec<Slot>) {
        slots.clear();
    }

    fn end_filter(&mut self) {
        self.filters.end();
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        let what = "keep a packet of a file";
        if self.cache.is_none() {
            let config = PoolConfig {
                frame_count: KEEP_FRAME_COUNT,
                ..PoolConfig::default()
            };
            let pool = match self.keep.get() {
                Some(pool) => pool.clone(),
                None => Pool::new(config)?,
            };
            let _ = self.keep.set(pool.clone());
            self.cache = Some(FrameCache::new(pool));
        }
        let none = || Error::new(ErrorKind::NoSpace, what, "the pool has no free frame");
        let cache = self.cache.as_mut().ok_or_else(none)?;
        if slot.cap_len() > cache.pool().frame_len() {
            self.counters.too_long.add(1);
            let why = format!("{} bytes are more than a frame holds", slot.cap_len());
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        }
        let Some(mut frame) = cache.take() else {
            self.counters.pool_empty.add(1);
            return Err(none());
        };
        let pool = cache.pool();
        pool.set_range(&mut frame, 0, slot.cap_len());
        // SAFETY: the slot is one of the batch that is out, so its memory is as `fill` described
        // it.
        let bytes =
            unsafe { std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize) };
        pool.bytes_mut(&mut frame).copy_from_slice(bytes);
        self.counters.detach_copies.add(1);
        Ok(frame)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        Ok(match &self.end {
            _ if self.shared.stopped.load(Ordering::Relaxed) => Ready::End,
            Some(End::Clean) => Ready::End,
            Some(_) if self.reported => Ready::End,
            Some(_) => Ready::Packets,
            None if self.copying.is_on && self.shared.blocks.must_wait(self.copying.groups + 1) => {
                std::thread::sleep(timeout.min(WRITER_PAUSE));
                Ready::Timeout
            }
            None if self.source.wait(timeout) => Ready::Packets,
            None => Ready::Timeout,
        })
    }

    fn pool(&self) -> Option<&Pool> {
        self.keep.get()
    }

    /// A file's packets are always ready: sleeping in between would only be slow.
    fn gathers(&self) -> bool {
        true
    }
}

/// The start of an interface's name, as text.
fn short_name(name: &[u8]) -> String {
    let cut = name.get(..NAME_LEN_MAX).unwrap_or(name);
    let text = String::from_utf8_lossy(cut);
    match cut.len() < name.len() {
        // A character may have been split.
        true => text
            .trim_end_matches(char::REPLACEMENT_CHARACTER)
            .to_owned(),
        false => text.into_owned(),
    }
}
