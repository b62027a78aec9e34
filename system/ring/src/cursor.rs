//! The common ring: a power-of-two array of entries, a producer index and a consumer index, each
//! written by one side only. Both run freely and wrap at 2^32 (Linux `include/uapi/linux/if_xdp.h`,
//! `net/xdp/xsk_queue.h`).
//!
//! ```text
//!        consumer            producer
//!           v                   v
//!  | . . . |X|X|X|X|X|X|X|X|X| . . . . |      X: submitted, not yet released
//! ```
//!
//! The four AF_XDP rings, the in-process ring and queues between processes use this type. Each end
//! caches the other side's index and reads it again only when the cached one does not suffice, so
//! that the cache line moves once per batch.

use std::sync::Arc;

use crate::sync::{AtomicU32, Cell, Ordering, write_cells};

/// Length of a cache line in bytes.
const LINE: usize = 64;

/// One end's handle to the memory of a ring, wherever it is. `keep` owns the memory.
///
/// It is consumed when it becomes a [`Producer`] or a [`Consumer`], and cannot be cloned. So safe
/// code cannot create two ends of the same kind, which would both write the same entries:
///
/// ```compile_fail
/// fn two_producers(memory: barewire_ring::RingMemory<u64>) {
///     let first = barewire_ring::Producer::new(memory.clone());
///     let second = barewire_ring::Producer::new(memory);
/// }
/// ```
pub struct RingMemory<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *const Cell<T>,
    mask: u32,
    _keep: Arc<dyn Send + Sync>,
}

// SAFETY: the pointers lead into memory kept alive by `_keep`; indices are atomics, entries are
// touched only within the range that the protocol gives to one side.
unsafe impl<T: Copy + Send> Send for RingMemory<T> {}

impl<T: Copy> RingMemory<T> {
    /// Creates a ring over memory laid out by the kernel (or a peer).
    ///
    /// # Safety
    /// The pointers must be aligned and valid for atomic access (indices, flags) and for
    /// `entry_count` values of `T` (entries) for the lifetime of `keep`; every bit pattern must be
    /// a valid `T`; of all handles to this memory at most one may become a [`Producer`] and one a
    /// [`Consumer`], counting the kernel where it is the other side.
    ///
    /// # Panics
    /// If `entry_count` is not a power of two.
    pub unsafe fn from_raw(
        producer: *const u32,
        consumer: *const u32,
        flags: *const u32,
        entries: *const T,
        entry_count: u32,
        keep: Arc<dyn Send + Sync>,
    ) -> Self {
        assert!(
            entry_count.is_power_of_two(),
            "a ring has a power of two of entries"
        );
        Self {
            producer: producer.cast(),
            consumer: consumer.cast(),
            flags: flags.cast(),
            entries: entries.cast(),
            mask: entry_count - 1,
            _keep: keep,
        }
    }
}

impl<T: Copy> RingMemory<T> {
    #[inline(always)]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: valid while `_keep` lives, by the constructor's contract.
        unsafe { &*self.producer }
    }

    #[inline(always)]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.consumer }
    }

    #[inline(always)]
    fn entry(&self, index: u32) -> &Cell<T> {
        // SAFETY: the mask keeps the index within the array.
        unsafe { &*self.entries.add((index & self.mask) as usize) }
    }

    /// Like `entry`, for several: what it needs is read from the handle once.
    #[inline(always)]
    fn entries<'m>(&'m self) -> impl Fn(u32) -> &'m Cell<T> {
        let (entries, mask) = (self.entries, self.mask);
        // SAFETY: as in `entry`.
        move |index| unsafe { &*entries.add((index & mask) as usize) }
    }

    /// Number of entries in the ring.
    pub fn entry_count(&self) -> u32 {
        self.mask + 1
    }

    /// Whether the kernel needs a wakeup (XDP_RING_NEED_WAKEUP, since Linux 5.4).
    #[inline]
    fn need_wakeup(&self) -> bool {
        // SAFETY: valid while `_keep` lives.
        unsafe { &*self.flags }.load(Ordering::Relaxed) & 1 != 0
    }
}

/// The producing end of a ring.
pub struct Producer<T> {
    memory: RingMemory<T>,
    /// Next entry to submit; written only by this end.
    head: u32,
    /// The consumer's index when last read, plus the ring's size: the first index that is not free.
    limit: u32,
}

impl<T: Copy> Producer<T> {
    /// Takes the producing end; continues at the index in memory.
    pub fn new(memory: RingMemory<T>) -> Self {
        let head = memory.producer().load(Ordering::Relaxed);
        let limit = memory
            .consumer()
            .load(Ordering::Acquire)
            .wrapping_add(memory.mask + 1);
        Self {
            memory,
            head,
            limit,
        }
    }

    /// Number of entries that can be written now, at most `want`.
    #[inline]
    pub fn reserve(&mut self, want: u32) -> u32 {
        let mut room = self.limit.wrapping_sub(self.head);
        if room < want {
            // Acquire: pairs with the Release in `Consumer::release`; its reads complete before
            // entries are overwritten.
            let consumer = self.memory.consumer().load(Ordering::Acquire);
            let limit = consumer.wrapping_add(self.memory.mask + 1);
            // An index that went back would take away what was granted before.
            if limit.wrapping_sub(self.head) > room {
                self.limit = limit;
                room = limit.wrapping_sub(self.head);
            }
        }
        // A hostile consumer may claim to have consumed more than was submitted: grant no more than
        // the ring holds.
        room.min(self.memory.mask + 1).min(want)
    }

    /// Number of entries that can be written, as found by the last call of
    /// [`reserve`](Self::reserve).
    #[inline(always)]
    pub(crate) fn granted(&self) -> u32 {
        let room = self.limit.wrapping_sub(self.head);
        room.min(self.memory.mask + 1)
    }

    /// Fetches the cache lines of `count` entries from the `offset`-th on, before they are written:
    /// the consumer has read them on another processor. Those behind the end of the array are not
    /// fetched.
    #[inline(always)]
    pub(crate) fn prefetch(&self, offset: u32, count: u32) {
        let start = self.head.wrapping_add(offset) & self.memory.mask;
        let end = (start + count).min(self.memory.mask + 1);
        // Addresses only.
        let mut address = self.memory.entries.wrapping_add(start as usize).addr() & !(LINE - 1);
        let end = self.memory.entries.wrapping_add(end as usize).addr();
        while address < end {
            sys::advice::prefetch_for_write(address);
            address += LINE;
        }
    }

    /// Writes the `offset`-th reserved entry.
    ///
    /// # Panics
    /// Beyond the entries that `reserve` granted: the consumer may be reading there.
    #[inline]
    pub fn write(&mut self, offset: u32, value: T) {
        let granted = self.limit.wrapping_sub(self.head);
        assert!(offset < granted, "write beyond the reserve");
        let entry = self.memory.entry(self.head.wrapping_add(offset));
        // SAFETY: entries from `head` up to `limit` belong to this side.
        entry.with_mut(|p| unsafe { p.write(value) });
    }

    /// Writes the reserved entries from the `offset`-th on.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[inline(always)]
    pub(crate) fn write_slice(&mut self, offset: u32, values: &[T]) {
        let end = u64::from(offset) + values.len() as u64;
        assert!(end <= u64::from(self.granted()), "write beyond the reserve");
        let start = self.head.wrapping_add(offset) & self.memory.mask;
        let until_end = (self.memory.mask + 1 - start) as usize;
        let (before, behind) = values.split_at(values.len().min(until_end));
        let entries = self.memory.entries;
        // SAFETY: no more than the entries from `start` to the end of the array; granted to this
        // side, as in `write`.
        unsafe { write_cells(entries.add(start as usize), before) };
        if !behind.is_empty() {
            // SAFETY: together no more than the array has; granted, as above.
            unsafe { write_cells(entries, behind) };
        }
    }

    /// Writes the reserved entries from the `offset`-th on, as many as there are values; returns
    /// how many.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[inline(always)]
    pub(crate) fn write_each(&mut self, offset: u32, values: impl Iterator<Item = T>) -> u32 {
        let granted = self.granted();
        let (entry, head) = (self.memory.entries(), self.head);
        let mut at = offset;
        for value in values {
            assert!(at < granted, "write beyond the reserve");
            // SAFETY: as in `write`.
            entry(head.wrapping_add(at)).with_mut(|p| unsafe { p.write(value) });
            at += 1;
        }
        at - offset
    }

    /// Writes the first reserved entries, at most `max`; returns how many. Takes all values, also
    /// those that are not written.
    #[inline(always)]
    pub(crate) fn write_up_to(&mut self, max: u32, values: impl Iterator<Item = T>) -> u32 {
        let max = self.granted().min(max);
        let (entry, head) = (self.memory.entries(), self.head);
        let most = values
            .size_hint()
            .1
            .and_then(|most| u32::try_from(most).ok());
        let fits = most.is_some_and(|most| most <= max);
        let mut count = 0;
        let mut write = |value| {
            // SAFETY: as in `write`.
            entry(head.wrapping_add(count)).with_mut(|p| unsafe { p.write(value) });
            count += 1;
        };
        if fits {
            values.for_each(&mut write);
            return count;
        }
        let mut left = max;
        for value in values {
            if left != 0 {
                write(value);
                left -= 1;
            }
        }
        count
    }

    /// Submits the first `count` reserved entries to the consumer.
    ///
    /// # Panics
    /// If `reserve` granted fewer: the consumer would take old entries for new ones.
    #[inline]
    pub fn submit(&mut self, count: u32) {
        let granted = self.limit.wrapping_sub(self.head);
        assert!(count <= granted, "submit beyond the reserve");
        self.head = self.head.wrapping_add(count);
        // Release: pairs with the Acquire in `Consumer::peek`; the entries are written before they
        // become visible.
        self.memory.producer().store(self.head, Ordering::Release);
    }

    /// Makes visible, as no producer that keeps the protocol would, an index so far behind its own.
    #[cfg(test)]
    pub(crate) fn forge(&mut self, ahead: u32) {
        let index = self.head.wrapping_add(ahead);
        self.memory.producer().store(index, Ordering::Release);
    }

    /// Number of entries submitted and not yet consumed.
    pub fn pending(&self) -> u32 {
        let consumer = self.memory.consumer().load(Ordering::Acquire);
        self.head.wrapping_sub(consumer).min(self.memory.mask + 1)
    }

    /// Number of entries in the ring.
    pub fn entry_count(&self) -> u32 {
        self.memory.entry_count()
    }

    /// Whether the kernel needs a wakeup.
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.memory.need_wakeup()
    }
}

/// The consuming end of a ring.
pub struct Consumer<T> {
    memory: RingMemory<T>,
    /// Next entry to read; written only by this end.
    tail: u32,
    /// The producer's index when last read.
    limit: u32,
}

impl<T: Copy> Consumer<T> {
    /// Takes the consuming end; continues at the index in memory.
    pub fn new(memory: RingMemory<T>) -> Self {
        let tail = memory.consumer().load(Ordering::Relaxed);
        Self {
            memory,
            tail,
            limit: tail,
        }
    }

    /// Number of entries that can be read now, at most `want`.
    #[inline]
    pub fn peek(&mut self, want: u32) -> u32 {
        let mut ready = self.limit.wrapping_sub(self.tail);
        if ready < want {
            // Acquire: pairs with the Release in `Producer::submit`.
            self.limit = self.memory.producer().load(Ordering::Acquire);
            ready = self.limit.wrapping_sub(self.tail);
        }
        // A hostile producer index never makes this end read more than the ring holds.
        ready.min(self.memory.mask + 1).min(want)
    }

    /// Whether the producer's index, when last read, was beyond what the ring holds: no producer
    /// that keeps the protocol writes such a one.
    pub(crate) fn is_overrun(&self) -> bool {
        self.limit.wrapping_sub(self.tail) > self.memory.mask + 1
    }

    /// Fetches the cache line of the producer's index, which the other side has written on another
    /// processor.
    #[inline(always)]
    pub(crate) fn prefetch_index(&self) {
        sys::advice::prefetch(&[self.memory.producer.addr()]);
    }

    /// Fetches the cache lines of the first `count` peeked entries, all at once: the other side has
    /// written them on another processor.
    #[inline]
    pub(crate) fn prefetch(&self, count: u32) {
        for cells in self.peeked(count) {
            let mut address = cells.as_ptr().addr() & !(LINE - 1);
            let end = cells.as_ptr().addr() + size_of_val(cells);
            while address < end {
                sys::advice::prefetch(&[address]);
                address += LINE;
            }
        }
    }

    /// Reads the `offset`-th peeked entry. The other side wrote it: check the value.
    ///
    /// # Panics
    /// Beyond the entries that `peek` found: the producer may be writing there.
    #[inline]
    pub fn read(&self, offset: u32) -> T {
        let found = self.limit.wrapping_sub(self.tail);
        assert!(offset < found, "read beyond the peek");
        let entry = self.memory.entry(self.tail.wrapping_add(offset));
        // SAFETY: the index is masked, and every bit pattern is a valid `T`; entries from `tail` up
        // to `limit` are not written by a producer that keeps the protocol, and one that
        // does not can only hand us rubbish.
        //
        // Volatile: the value that is checked is the one that is used, even if the other side
        // writes it again in the meantime.
        entry.with(|p| unsafe { p.read_volatile() })
    }

    /// The first `count` peeked entries: those up to the end of the array, and those at its start.
    /// Each is to be read once, as [`read`](Self::read) does.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline(always)]
    pub(crate) fn peeked(&self, count: u32) -> [&[Cell<T>]; 2] {
        let found = self.limit.wrapping_sub(self.tail);
        let mask = self.memory.mask;
        assert!(count <= found.min(mask + 1), "read beyond the peek");
        let start = self.tail & mask;
        let until_end = count.min(mask + 1 - start);
        let entries = self.memory.entries;
        // SAFETY: within the array.
        unsafe {
            let before = entries.add(start as usize);
            [
                std::slice::from_raw_parts(before, until_end as usize),
                std::slice::from_raw_parts(entries, (count - until_end) as usize),
            ]
        }
    }

    /// Releases the first `count` entries to the producer.
    ///
    /// # Panics
    /// If `peek` found fewer: the producer would lose room for entries it has not written.
    #[inline]
    pub fn release(&mut self, count: u32) {
        let found = self.limit.wrapping_sub(self.tail);
        assert!(count <= found, "release beyond the peek");
        self.tail = self.tail.wrapping_add(count);
        // Release: pairs with the Acquire in `Producer::reserve`; reads complete before the
        // producer writes again.
        self.memory.consumer().store(self.tail, Ordering::Release);
    }

    /// Number of entries in the ring.
    pub fn entry_count(&self) -> u32 {
        self.memory.entry_count()
    }

    /// Whether the kernel needs a wakeup (for RX it is in the fill ring's flags).
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.memory.need_wakeup()
    }
}

/// A separate cache line for each index; otherwise the two sides would contend for one line with
/// every store.
#[repr(align(128))]
struct Padded<T>(T);

struct Owned<T> {
    producer: Padded<AtomicU32>,
    consumer: Padded<AtomicU32>,
    flags: Padded<AtomicU32>,
    entries: Box<[Cell<T>]>,
}

// SAFETY: entries are handed from side to side by the indices' Release and Acquire pairs.
unsafe impl<T: Send> Sync for Owned<T> {}

/// Creates a ring within the process: both ends, with `entry_count` entries rounded up to a power
/// of two.
///
/// # Panics
/// For more than 2^31 entries: the indices could not distinguish full from empty.
pub fn spsc<T: Copy + Default + Send + 'static>(entry_count: u32) -> (Producer<T>, Consumer<T>) {
    spsc_from(entry_count, 0)
}

/// Like `spsc`, with both indices at `start`, so that tests can reach the wrap-around.
pub(crate) fn spsc_from<T>(entry_count: u32, start: u32) -> (Producer<T>, Consumer<T>)
where
    T: Copy + Default + Send + 'static,
{
    assert!(entry_count <= 1 << 31, "a ring has at most 2^31 entries");
    let entry_count = entry_count.max(1).next_power_of_two();
    let owned = Arc::new(Owned {
        producer: Padded(AtomicU32::new(start)),
        consumer: Padded(AtomicU32::new(start)),
        flags: Padded(AtomicU32::new(0)),
        entries: (0..entry_count).map(|_| Cell::new(T::default())).collect(),
    });
    let ends = |owned: &Arc<Owned<T>>| RingMemory {
        producer: &owned.producer.0,
        consumer: &owned.consumer.0,
        flags: &owned.flags.0,
        entries: owned.entries.as_ptr(),
        mask: entry_count - 1,
        _keep: owned.clone(),
    };
    (Producer::new(ends(&owned)), Consumer::new(ends(&owned)))
}
