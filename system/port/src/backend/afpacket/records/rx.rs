//! The reader of the ring: turns records into slots.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ring::slot::{Slot, Vlan};
use ring::{Frame, Pool};
use sys::{Error, ErrorKind, Result};
use xdp::metadata::TimeClock;

use super::super::super::clock::{Clock, now_ns};
use super::super::program::{self, control, record};
use super::RecordTap;
use crate::backend::keep::Keep;
use crate::options::{PortOptions, TimestampSource};
use crate::rx::{Filled, Ready, RxBackend};

/// Number of bytes gathered before a sleeping reader is woken: a part of the ring, and no more than
/// stays in a cache.
const GATHER_PART: u64 = 8;
const GATHER_LEN: u64 = 512 << 10;
/// Distance from the ring's start beyond which a reader that has read everything returns to the
/// start: the size of a processor's own cache.
const HOT_LEN: u64 = 256 << 10;
/// As for the other ring: number of polls between two checks of a reader that never sleeps, and
/// longest sleep while the link is down.
const LOOKS_PER_CHECK: u32 = 1 << 16;
const DOWN_SLICE: Duration = Duration::from_millis(20);
/// `PACKET_OUTGOING`.
const OUTGOING: u32 = 4;

/// The reading side.
pub(in super::super) struct RecordRx {
    tap: Arc<RecordTap>,
    /// Address of the ring.
    base: NonNull<u8>,
    /// Next record to read.
    position: u64,
    /// `head` when last read.
    head: u64,
    /// Number of slots held by the program.
    borrowed: usize,
    time: TimestampSource,
    clock: Clock,
    gather: u64,
    block_timeout: Duration,
    /// Whether packets arrived lately: sleep until some have gathered, not until the first.
    is_busy: bool,
    is_down: bool,
    looks: u32,
    keep: Keep,
}

// SAFETY: `base` leads into the tap's mapping, which lives as long as the reader's reference to it;
// only the reader reads records.
unsafe impl Send for RecordRx {}

impl RecordRx {
    pub(in super::super) fn new(
        tap: Arc<RecordTap>,
        time: TimestampSource,
        pool: Arc<OnceLock<Pool>>,
        options: &PortOptions,
    ) -> Self {
        // Immediately: the first packet ends every sleep.
        let (gather, block_timeout) = match options.immediate {
            true => (1, Duration::ZERO),
            false => (
                GATHER_LEN.min(tap.ring_len / GATHER_PART),
                options
                    .block_timeout
                    .clamp(Duration::from_millis(1), Duration::from_secs(10)),
            ),
        };
        Self {
            base: tap.memory.address(control::LEN),
            position: 0,
            head: 0,
            borrowed: 0,
            time,
            clock: Clock::new(),
            gather,
            block_timeout,
            is_busy: false,
            is_down: false,
            looks: 0,
            keep: Keep::new(pool, tap.counters.clone()),
            tap,
        }
    }

    /// Bytes of records written and not read.
    #[inline]
    fn waiting(&mut self) -> u64 {
        // Acquire is not needed for the records (their stamps have it), but costs nothing.
        self.head = self.tap.word(control::HEAD).load(Ordering::Acquire);
        self.head.wrapping_sub(self.position)
    }

    /// Reads the record at the position; `None` if it is not finished, `Some(None)` if it contains
    /// no packet.
    #[inline(always)]
    fn record(&mut self) -> Option<Option<Slot>> {
        let offset = self.position & (self.tap.ring_len - 8);
        // SAFETY: the offset is below the ring's length, after which there is room for one record
        // more; records are aligned to 8; the stamp is only accessed atomically.
        let place = unsafe { self.base.add(offset as usize) };
        // SAFETY: as above. Acquire: the program wrote the record before its stamp.
        let stamp = unsafe { place.add(record::STAMP).cast::<AtomicU64>().as_ref() };
        if stamp.load(Ordering::Acquire) != self.position ^ self.tap.secret {
            return None;
        }
        // SAFETY: the header lies within the mapping, aligned, and a finished record is not written
        // again before `tail` has passed it.
        let (cap_len, wire_len, time, flags, tci, tpid) = unsafe {
            (
                place.add(record::CAP_LEN).cast::<u32>().read(),
                place.add(record::WIRE_LEN).cast::<u32>().read(),
                place.add(record::TIME).cast::<u64>().read(),
                place.add(record::FLAGS).cast::<u32>().read(),
                place.add(record::VLAN_TCI).cast::<u16>().read(),
                place.add(record::VLAN_TPID).cast::<u16>().read(),
            )
        };
        let len = record::len(cap_len);
        if cap_len > self.tap.cap_max || len > self.head.wrapping_sub(self.position) {
            // Not a record of the program: the position of the next one is unknown.
            self.position = self.head;
            return Some(None);
        }
        self.position += len;
        if flags & record::BROKEN != 0 {
            return Some(None);
        }
        // SAFETY: a record's data follow its header, `cap_len` bytes of them (checked above), and
        // stay until the ring's position moves, at `release`.
        let mut slot = unsafe {
            let data = place.add(record::DATA);
            Slot::over(data, cap_len, wire_len, 0)
        };
        slot.time_ns = time;
        if flags & record::KIND_MASK == OUTGOING {
            slot.flags = Slot::OUTGOING;
        }
        if flags & record::HAS_VLAN != 0 {
            let tpid = u16::from_be(tpid);
            slot.vlan = Vlan { tpid, tci };
            slot.flags |= Slot::VLAN;
        }
        Some(Some(slot))
    }

    /// Converts the timestamps of a batch.
    #[inline]
    fn set_times(&mut self, slots: &mut [Slot]) {
        match self.time {
            TimestampSource::None => {}
            TimestampSource::Batch => {
                let now = now_ns(libc::CLOCK_REALTIME);
                for slot in slots {
                    slot.time_ns = now;
                    slot.flags |= Slot::TIME;
                }
            }
            _ => {
                for slot in slots {
                    slot.time_ns = self.clock.unix_ns(slot.time_ns, TimeClock::Monotonic);
                    slot.flags |= Slot::TIME;
                }
            }
        }
    }

    /// Releases everything read to the program.
    #[inline]
    fn give_back(&mut self) {
        // Release: reads complete before the program writes there again.
        self.tap
            .word(control::TAIL)
            .store(self.position, Ordering::Release);
    }

    /// Sends the writers back to the ring's start, where memory is cached, once everything is read
    /// and released.
    #[inline]
    fn rewind(&mut self) {
        if self.borrowed != 0 || self.position & (self.tap.ring_len - 1) < HOT_LEN {
            return;
        }
        let start = program::rewound(self.position, self.tap.ring_len);
        // Release: reads complete before the writers write there again.
        let moved = self.tap.word(control::HEAD).compare_exchange(
            self.position,
            start,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if moved.is_ok() {
            (self.position, self.head) = (start, start);
            self.give_back();
            self.tap.read_to.store(start, Ordering::Release);
        }
    }

    /// Requests that the program make the socket readable once `more` bytes are present after the
    /// position. Returns true if they already are.
    fn ask_to_be_woken(&self, more: u64) -> bool {
        let target = self.position + more;
        self.tap
            .word(control::WAKE_AT)
            .store(target, Ordering::SeqCst);
        // Pairs with the program's compare-and-swap of `head`, which is a full barrier: either it
        // sees `wake_at`, or this thread sees its `head`.
        fence(Ordering::SeqCst);
        self.tap.word(control::HEAD).load(Ordering::SeqCst) >= target
    }

    /// Sleeps until `more` bytes are present after the position, at most `time`. Returns true if a
    /// signal ended it.
    fn sleep(&mut self, more: u64, time: Duration) -> Result<bool> {
        let there = self.ask_to_be_woken(more);
        let poll = self
            .tap
            .socket
            .poll(false, if there { Duration::ZERO } else { time });
        self.tap
            .word(control::WAKE_AT)
            .store(u64::MAX, Ordering::Relaxed);
        let poll = poll?;
        if poll.readable {
            self.tap.socket.discard();
        }
        if poll.error && self.tap.socket.take_error() == Some(libc::ENETDOWN) {
            self.is_down = true;
        }
        Ok(poll.interrupted)
    }

    /// Checks whether the interface still exists.
    ///
    /// # Errors
    /// `Gone`, once all earlier packets have been read.
    fn check_gone(&mut self) -> Result<()> {
        if self.tap.socket.bound_interface().is_none() {
            self.tap.gone.store(true, Ordering::Release);
        }
        if self.tap.gone.load(Ordering::Acquire) && self.waiting() == 0 {
            let why = "the interface has been deleted";
            return Err(Error::new(ErrorKind::Gone, "receive packets", why)
                .with_hint("open the port again when the interface is back"));
        }
        Ok(())
    }
}

impl RxBackend for RecordRx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let start = slots.len();
        let mut refused = 0;
        if self.head == self.position && self.waiting() == 0 {
            self.rewind();
        }
        slots.reserve(max.min(64));
        while slots.len() - start < max && self.position != self.head {
            match self.record() {
                Some(Some(slot)) => slots.push(slot),
                Some(None) => refused += 1,
                None => break,
            }
        }
        if refused != 0 {
            self.tap.counters.invalid.add(refused);
        }
        let count = slots.len() - start;
        self.borrowed += count;
        if count as u64 + refused != 0 {
            self.tap.read_to.store(self.position, Ordering::Release);
        }
        if count != 0 {
            self.is_down = false;
            self.set_times(&mut slots[start..]);
            return Ok(Filled::of(&slots[start..]));
        }
        if self.borrowed == 0 && refused != 0 {
            self.give_back();
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_CHECK) || self.tap.gone.load(Ordering::Relaxed) {
            self.check_gone()?;
        }
        Ok(Filled::default())
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        self.borrowed -= slots.len();
        slots.clear();
        if self.borrowed == 0 {
            self.give_back();
        }
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        // SAFETY: the slot's record is ours until release.
        unsafe { self.keep.copy(slot) }
    }

    /// Returns when enough has gathered, or (with less) when the block time is over; an idle reader
    /// wakes at the first packet, and then gathers.
    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        let started = Instant::now();
        let mut gathering = None;
        loop {
            let waiting = self.waiting();
            let left = timeout.saturating_sub(started.elapsed());
            if waiting >= self.gather || waiting != 0 && left.is_zero() {
                self.is_busy = true;
                return Ok(Ready::Packets);
            }
            if left.is_zero() {
                self.check_gone()?;
                return Ok(Ready::Timeout);
            }
            if waiting != 0 || self.is_busy {
                let since = *gathering.get_or_insert_with(Instant::now);
                let rest = self.block_timeout.saturating_sub(since.elapsed());
                if !rest.is_zero() {
                    self.sleep(self.gather, rest.min(left))?;
                } else if waiting != 0 {
                    self.is_busy = true;
                    return Ok(Ready::Packets);
                } else {
                    (self.is_busy, gathering) = (false, None);
                }
                continue;
            }
            let slice = if self.is_down {
                left.min(DOWN_SLICE)
            } else {
                left
            };
            let interrupted = self.sleep(1, slice)?;
            if self.waiting() == 0 {
                self.check_gone()?;
                if interrupted {
                    // Return, so that the caller can handle the signal.
                    return Ok(Ready::Timeout);
                }
            }
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tap.socket.as_fd())
    }

    fn arm(&mut self) -> Result<bool> {
        // The wake-up for an earlier sleep would end this one at once.
        self.tap.socket.discard();
        Ok(!self.ask_to_be_woken(1))
    }

    fn pool(&self) -> Option<&Pool> {
        self.keep.pool()
    }

    /// `wait` gathers packets.
    fn gathers(&self) -> bool {
        true
    }
}

impl Drop for RecordRx {
    fn drop(&mut self) {
        // This fails only on a dead socket, which receives nothing anyway.
        let _ = self.tap.stop();
        self.tap.closed.store(true, Ordering::Release);
    }
}
