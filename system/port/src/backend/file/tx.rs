//! A capture file as a sending queue: sent packets are written, with the send time.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::slot::Slot;
use ring::{Frame, FrameCache, Pool, PoolConfig};
use sys::{Error, ErrorKind, Result};

use super::writer::{FileInterface, FileWriter, Record, WriterOptions};
use crate::account::TxCounters;
use crate::options::PortOptions;
use crate::tx::TxBackend;

/// Number of frames for a sender without a pool of its own: 2 MiB.
const FRAME_COUNT: u32 = 512;

/// How long a flush may leave packets in the buffer, so that flushing each batch does not cost a
/// write each. Waiting for everything and closing leave nothing there.
const LINGER: Duration = Duration::from_millis(100);

/// The sending end.
pub(super) struct Tx {
    writer: FileWriter,
    cache: FrameCache,
    counters: Arc<TxCounters>,
    /// Number of packets counted as sent.
    counted: u64,
    /// Bytes of packets that are not counted yet.
    uncounted_bytes: u64,
    flushed: Instant,
    failed: bool,
}

impl Tx {
    pub(super) fn open(
        path: &str,
        options: &PortOptions,
        counters: Arc<TxCounters>,
    ) -> Result<Self> {
        let pool = match &options.pool {
            Some(pool) => pool.clone(),
            None => Pool::new(PoolConfig {
                frame_count: FRAME_COUNT,
                ..PoolConfig::default()
            })?,
        };
        let mut file = WriterOptions::new(path);
        file.snaplen = options.snaplen;
        let mut writer = FileWriter::create(file)?;
        writer.interface(FileInterface {
            link_type: 1,
            name: options.label.clone().unwrap_or_default(),
            filter: "".into(),
        })?;
        let cache = FrameCache::new(pool);
        let flushed = Instant::now();
        Ok(Self {
            writer,
            cache,
            counters,
            counted: 0,
            uncounted_bytes: 0,
            flushed,
            failed: false,
        })
    }

    pub(super) fn memory_len(&self) -> usize {
        self.cache.pool().memory_len()
    }

    /// Counts what a failed write lost: the first time everything that waited, then each packet.
    fn lost(&mut self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            let first = !std::mem::replace(&mut self.failed, true);
            let count = if first { self.writer.waiting() } else { 1 };
            self.counters.failed.add(count);
        }
        result
    }

    /// Updates the counters to the contents of the file.
    fn count(&mut self, result: Result<()>) -> Result<()> {
        let packets = self.writer.written().packets;
        self.counters.sent.add(packets - self.counted);
        self.counted = packets;
        if result.is_ok() && self.writer.waiting() == 0 {
            self.counters.sent_bytes.add(self.uncounted_bytes);
            self.uncounted_bytes = 0;
        }
        result
    }

    fn write<'p>(
        &mut self,
        wire_len: u32,
        segments: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<()> {
        // The clock is the file's only source of time; a coarse one would give the packets of a
        // batch the same time, which readers would take as simultaneous.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time_ns = now.map_or(0, |now| now.as_nanos() as u64);
        let record = Record {
            time_ns,
            wire_len,
            ..Record::default()
        };
        let result = self.writer.write(&record, segments).map(|_| ());
        self.lost(result)
    }
}

impl TxBackend for Tx {
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let len = self.cache.pool().frame_len();
        for _ in 0..max {
            let Some(index) = self.cache.take_index() else {
                break;
            };
            let pool = self.cache.pool();
            // SAFETY: the index is one of the pool's, so its address is within the frames.
            let data: NonNull<u8> = unsafe { pool.base().add(pool.addr_of(index) as usize) };
            // SAFETY: the frame was taken for this slot; its memory was zeroed at first.
            slots.push(unsafe { Slot::over(data, len, len, index.into()) });
        }
        Ok(())
    }

    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let mut result = Ok(());
        let mut rest = &slots[..filled.min(slots.len())];
        while let [first, ..] = rest {
            let more = rest
                .iter()
                .take_while(|slot| slot.has(Slot::CONTINUES))
                .count();
            let (packet, tail) = rest.split_at((more + 1).min(rest.len()));
            rest = tail;
            if result.is_err() {
                self.counters.failed.add(1);
                continue;
            }
            let segments = packet.iter().map(|slot| {
                // SAFETY: the frame was borrowed by `reserve` and has returned: nothing else has
                // it.
                unsafe { std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize) }
            });
            let len: u32 = packet.iter().map(|slot| slot.cap_len()).sum();
            self.uncounted_bytes += u64::from(len);
            result = self.write(first.wire_len.max(len), segments);
        }
        for slot in slots.drain(..) {
            // SAFETY: the slot's frame is held by this batch, and the slot ends here.
            unsafe { self.cache.give_index(slot.token() as u32) };
        }
        self.count(result)
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        let pool = self.cache.pool().clone();
        if frame.pool_tag() != pool.tag() {
            let why = "the frame belongs to another pool";
            return Err(Error::new(ErrorKind::InvalidInput, "send a frame", why));
        }
        self.uncounted_bytes += u64::from(frame.len());
        let result = self.write(frame.len(), std::iter::once(pool.bytes(&frame)));
        let _ = self.cache.give(frame);
        self.count(result).map(|()| None)
    }

    fn flush(&mut self) -> Result<()> {
        if self.flushed.elapsed() < LINGER {
            return Ok(());
        }
        self.wait(true, Duration::ZERO).map(|_| ())
    }

    fn wait(&mut self, all: bool, _timeout: Duration) -> Result<bool> {
        if all {
            self.flushed = Instant::now();
            self.counters.kicks.add(1);
            if !self.failed {
                let result = self.writer.flush();
                let result = self.lost(result);
                self.count(result)?;
            }
        }
        Ok(true)
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Callers that need the result wait for everything first.
        let _ = self.wait(true, Duration::ZERO);
    }
}
