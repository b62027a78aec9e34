//! Receiving: a queue returns batches of borrowed packets.

mod adopt;
mod check_sequence;
mod copied;
mod detached;
mod forward;
mod hold;
mod several;
mod switch;
mod wake;

use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use bpf::cbpf::Program;
use bpf::vm_cbpf::PacketInfo;
use ring::slot::{Checksum, Slot, Vlan, segment_count};
use ring::{Frame, Pool};
use sys::Result;
use sys::eventfd::EventFd;

use crate::account::RxCounters;
use crate::matcher::Matcher;

pub use ring::slot::Filled;

pub use adopt::Adopted;
pub use detached::{Detached, Meta};
pub use forward::Forwarded;
pub use switch::FilterSwitch;
pub use wake::Waker;

/// Result of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// There may be packets.
    Packets,
    /// The timeout expired.
    Timeout,
    /// There will be no more packets: end of a file, or the sender is gone.
    End,
    /// The queue's [`Waker`] was called.
    Woken,
}

/// Interface of a backend. Called once per batch.
pub trait RxBackend: Send {
    /// Appends up to `max` slots, and returns their contents; never blocks; an empty result is not
    /// an error. A packet in several segments is never split by the end of a batch: the backend
    /// stops before it instead.
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled>;

    /// Takes slots back, in any order; leaves the vector empty.
    fn release(&mut self, slots: &mut Vec<Slot>);

    /// Turns a slot's bytes into an owned frame: a move if the memory belongs to a pool (the slot
    /// is then empty and is released without effect), otherwise a copy into a frame of the port's
    /// pool, which is counted.
    fn detach(&mut self, slot: &mut Slot) -> Result<Frame>;

    /// Announces that slots of the current batch will be passed to another queue
    /// ([`TxBackend::transfer`]), which may give them the token `Slot::DETACHED`. `release` need
    /// not expect that token in slots of other batches.
    ///
    /// [`TxBackend::transfer`]: crate::tx::TxBackend::transfer
    fn before_transfer(&mut self) {}

    /// Sleeps until there may be packets, at most `timeout`.
    fn wait(&mut self, timeout: Duration) -> Result<Ready>;

    /// A descriptor that is readable when there may be packets, once [`arm`](Self::arm) was called.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Makes [`poll_fd`](Self::poll_fd) become readable with the next packet. Called when a wait
    /// with timeout zero found nothing. Returns false if there may be packets by now.
    fn arm(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// Makes the slots' bytes writable: a backend with read-only memory replaces them by copies.
    /// Called when a program wants to change packets in place.
    fn make_writable(&mut self, slots: &mut [Slot]) {
        let _ = slots;
    }

    /// Ends a filter that the backend itself applies: the queue uses another one from here on.
    fn end_filter(&mut self) {}

    /// The pool of its frames, or the one it copies into.
    fn pool(&self) -> Option<&Pool>;

    /// Whether every slot is in a frame of [`pool`](Self::pool) that another queue may take over:
    /// `release` then skips those with the token `Slot::DETACHED`.
    fn has_pool_frames(&self) -> bool {
        false
    }

    /// The pool of frames that a sending queue may take over: [`pool`](Self::pool), except for
    /// memory that nobody else can use.
    fn transfer_pool(&self) -> Option<&Pool> {
        self.pool().filter(|_| self.has_pool_frames())
    }

    /// Whether the kernel gathers packets by itself before it wakes a reader: sleeping on the clock
    /// then only adds wake-ups.
    fn gathers(&self) -> bool {
        false
    }

    /// Number of packets that can wait for the reader before the next is lost, if that is fixed.
    fn ring_len(&self) -> Option<u32> {
        None
    }
}

/// Number of slots by which a batch may exceed its size, so that its last packet is complete.
const SEGMENTS_BEYOND: usize = 64;

/// A receiving queue, owned by one thread.
pub struct RxQueue {
    backend: Box<dyn RxBackend>,
    slots: Vec<Slot>,
    rejected: Vec<Slot>,
    batch_max: usize,
    queue_index: u32,
    /// For several ports opened as one, the number of this one; otherwise 0.
    interface_index: u16,
    /// The name of that one, for errors; otherwise empty.
    interface: String,
    filter: Option<Matcher>,
    next_filter: Arc<switch::NextFilter>,
    waker: Option<Arc<EventFd>>,
    counters: Arc<RxCounters>,
}

impl RxQueue {
    /// Wraps a backend. `filter` is given only if the backend does not filter by itself; `counters`
    /// are those that the backend also updates.
    pub fn new(
        backend: Box<dyn RxBackend>,
        queue_index: u32,
        batch_max: usize,
        filter: Option<Program>,
        counters: Arc<RxCounters>,
    ) -> Self {
        let batch_max = batch_max.clamp(1, 4096);
        let slots = Vec::with_capacity(batch_max + SEGMENTS_BEYOND);
        Self {
            backend,
            slots,
            rejected: Vec::new(),
            batch_max,
            queue_index,
            interface_index: 0,
            interface: String::new(),
            filter: filter.map(Matcher::new),
            next_filter: Arc::default(),
            waker: None,
            counters,
        }
    }

    /// Number of the queue on its interface, or among those of several ports opened as one.
    pub fn queue_index(&self) -> u32 {
        self.queue_index
    }

    /// The pool of its frames, if it has one.
    pub fn pool(&self) -> Option<&Pool> {
        self.backend.pool()
    }

    /// Receives the available packets, up to the batch size. Never blocks: an empty batch is not an
    /// error.
    ///
    /// # Errors
    /// `Gone` when the device has been removed, `Damaged` for a damaged file (all earlier packets
    /// were delivered).
    #[inline]
    pub fn receive(&mut self) -> Result<RxBatch<'_>> {
        if !self.slots.is_empty() {
            // A batch that was leaked instead of dropped.
            self.backend.release(&mut self.slots);
        }
        if self.next_filter.is_new() {
            self.take_filter();
        }
        let filled = self.backend.fill(&mut self.slots, self.batch_max);
        let mut filled = filled.map_err(|error| self.named(error))?;
        if self.interface_index != 0 {
            for slot in &mut self.slots {
                slot.interface_index = self.interface_index;
            }
        }
        if self.filter.is_some() {
            self.apply_filter();
            filled = Filled::of(&self.slots);
        }
        let Filled { packets, bytes } = filled;
        if packets != 0 {
            self.counters.delivered.add(packets as u64);
            self.counters.delivered_bytes.add(bytes);
        }
        Ok(RxBatch {
            queue: self,
            start: 0,
            packets,
            received_bytes: bytes,
            walked: (0, 0, 0),
        })
    }

    /// Runs the filter in user space; rejected slots are returned at once.
    fn apply_filter(&mut self) {
        let Some(filter) = &self.filter else { return };
        let mut rejected = 0;
        let mut kept = 0;
        let mut at = 0;
        while at < self.slots.len() {
            let count = segment_count(&self.slots[at..]);
            // SAFETY: the slot describes memory that the queue owns until release.
            let bytes = unsafe { slot_bytes(&self.slots[at]) };
            if selects(filter, &self.slots[at], bytes) {
                for i in 0..count {
                    self.slots.swap(kept + i, at + i);
                }
                kept += count;
            } else {
                rejected += 1;
            }
            at += count;
        }
        // Swapping keeps the order of the kept slots; the rejected ones gather after them.
        self.rejected.extend(self.slots.drain(kept..));
        if rejected != 0 {
            self.counters.filtered.add(rejected);
            self.backend.release(&mut self.rejected);
        }
    }

    /// Sleeps until there may be packets, at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        self.counters.waits.add(1);
        let ready = match self.waker.clone() {
            None => self.backend.wait(timeout),
            Some(waker) => self.wait_or_wake(&waker, timeout),
        };
        ready.map_err(|error| self.named(error))
    }

    /// The counters of this queue.
    pub fn counters(&self) -> &Arc<RxCounters> {
        &self.counters
    }
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            self.backend.release(&mut self.slots);
        }
    }
}

/// Whether a filter selects a packet. Metadata that the kernel offers to filters is passed here as
/// well: a stripped tag, and the packet's direction.
#[inline]
fn selects(filter: &Matcher, slot: &Slot, bytes: &[u8]) -> bool {
    /// `PACKET_OUTGOING` of `if_packet.h`.
    const OUTGOING: u8 = 4;
    if !slot.has(Slot::VLAN) && !slot.has(Slot::OUTGOING) {
        return filter.selects(bytes, slot.wire_len);
    }
    let vlan = slot.has(Slot::VLAN).then_some(slot.vlan);
    let info = PacketInfo {
        packet_type: if slot.has(Slot::OUTGOING) {
            OUTGOING
        } else {
            0
        },
        vlan: vlan.map(|vlan| (vlan.tpid, vlan.tci)),
        ..PacketInfo::UNKNOWN
    };
    filter.run(bytes, slot.wire_len, &info) != 0
}

/// # Safety
/// The slot's queue must own the memory, and nothing else may write it meanwhile.
#[inline]
unsafe fn slot_bytes(slot: &Slot) -> &[u8] {
    // SAFETY: backends make slots only over ranges that they checked.
    unsafe { std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize) }
}

/// Packets borrowed from a queue; they are returned to the device when the batch is dropped.
#[must_use]
pub struct RxBatch<'q> {
    queue: &'q mut RxQueue,
    /// First slot of the first packet that is still in the batch.
    start: usize,
    packets: usize,
    received_bytes: u64,
    /// End of the last search: a packet's number, relative to the slot that was the start then, and
    /// its first slot.
    walked: (usize, usize, usize),
}

impl RxBatch<'_> {
    /// Number of packets in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Iterates over the packets in the order of arrival.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Packet<'_>> {
        let slots = self.queue.slots[self.start..].as_ptr_range();
        Packets {
            next: slots.start,
            end: slots.end,
            slots: PhantomData,
        }
    }

    /// Iterates over the packets, to change them in place. Those of a port with read-only memory
    /// (`ring:`) are copied first.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = PacketMut<'_>> {
        let queue = &mut *self.queue;
        queue.backend.make_writable(&mut queue.slots[self.start..]);
        let mut rest: &mut [Slot] = &mut self.queue.slots[self.start..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let count = segment_count(rest);
            let (first, tail) = std::mem::take(&mut rest).split_at_mut(count);
            rest = tail;
            Some(PacketMut { slots: first })
        })
    }

    /// Detaches packet `index` from its batch: returns its frame, owned, and its metadata. A move
    /// if the queue has its own pool, otherwise a copy, which is counted.
    ///
    /// # Errors
    /// `InvalidInput` for an index out of range or a packet in several segments, `NoSpace` if the
    /// pool is empty.
    pub fn detach(&mut self, index: usize) -> Result<Detached> {
        let at = self.slot_of(index);
        let refuse = |why| sys::Error::new(sys::ErrorKind::InvalidInput, "detach a packet", why);
        let Some(slot) = self
            .queue
            .slots
            .get_mut(at)
            .filter(|_| index < self.packets)
        else {
            return Err(refuse("no such packet in the batch"));
        };
        if slot.has(Slot::CONTINUES) {
            return Err(refuse("it spans several frames"));
        }
        // Before the backend empties the slot.
        let meta = Packet {
            slots: std::slice::from_ref(slot),
        }
        .meta();
        let mut frame = self.queue.backend.detach(slot)?;
        if let Some(pool) = self.queue.backend.pool()
            && pool.tag() == frame.pool_tag()
        {
            pool.keep_metadata(&mut frame, slot);
        }
        Ok(Detached { frame, meta })
    }

    /// The first slot of packet `index`, or one after the last. Packets in several segments are
    /// rare: without any in the batch this is a sum, otherwise the walk continues at the end of the
    /// last one.
    fn slot_of(&mut self, index: usize) -> usize {
        let index = index.min(self.packets);
        if self.queue.slots.len() - self.start == self.packets {
            return self.start + index;
        }
        let (mut number, mut at) = match self.walked {
            (start, number, at) if start == self.start && number <= index => (number, at),
            _ => (0, self.start),
        };
        while number < index {
            at += segment_count(&self.queue.slots[at..]);
            number += 1;
        }
        self.walked = (self.start, number, at);
        at
    }
}

impl Drop for RxBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.queue.slots.is_empty() {
            self.queue.backend.release(&mut self.queue.slots);
        }
    }
}

/// Iterator over the packets of a batch.
struct Packets<'b> {
    /// The first slot of the next packet, and the end of all.
    next: *const Slot,
    end: *const Slot,
    slots: PhantomData<&'b [Slot]>,
}

impl<'b> Iterator for Packets<'b> {
    type Item = Packet<'b>;

    #[inline(always)]
    fn next(&mut self) -> Option<Packet<'b>> {
        if self.next == self.end {
            return None;
        }
        let first = self.next;
        // SAFETY: before the end there is a slot, borrowed for 'b.
        let count = match unsafe { &*first }.has(Slot::CONTINUES) {
            false => 1,
            // SAFETY: from a slot to the end of its slice.
            true => unsafe { count_segments(first, self.end) },
        };
        // SAFETY: so many slots there are before the end.
        let slots = unsafe {
            self.next = first.add(count);
            std::slice::from_raw_parts(first, count)
        };
        Some(Packet { slots })
    }
}

/// Like [`segment_count`]; not inlined, since nearly all packets have one.
///
/// # Safety
/// From a slot on to the end of its slice.
#[cold]
unsafe fn count_segments(first: *const Slot, end: *const Slot) -> usize {
    let count = (end as usize - first as usize) / size_of::<Slot>();
    // SAFETY: the caller's word.
    segment_count(unsafe { std::slice::from_raw_parts(first, count) })
}

/// A received packet, borrowed from its batch.
#[derive(Clone, Copy)]
pub struct Packet<'b> {
    /// At least one.
    slots: &'b [Slot],
}

impl<'b> Packet<'b> {
    #[inline]
    fn head(&self) -> &'b Slot {
        &self.slots[0]
    }

    /// The bytes of the first segment: the whole packet, unless it is larger than a frame (jumbo).
    #[inline]
    pub fn bytes(&self) -> &'b [u8] {
        // SAFETY: the batch owns the memory as long as 'b; no `PacketMut` exists alongside a
        // `Packet`.
        unsafe { slot_bytes(self.head()) }
    }

    /// All segments in order; a single one, unless the packet is larger than a frame.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &'b [u8]> + Clone {
        // SAFETY: as in `bytes`.
        self.slots.iter().map(|slot| unsafe { slot_bytes(slot) })
    }

    /// Whether it is in one segment, as all are but those larger than a frame.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.slots.len() == 1
    }

    /// Number of captured bytes, over all segments.
    #[inline]
    pub fn cap_len(&self) -> u32 {
        self.slots.iter().map(|slot| slot.cap_len()).sum()
    }

    /// Length on the wire.
    #[inline]
    pub fn wire_len(&self) -> u32 {
        self.head().wire_len
    }

    /// Time of arrival in nanoseconds since the Unix epoch, if it was recorded.
    #[inline]
    pub fn time_ns(&self) -> Option<u64> {
        self.head().has(Slot::TIME).then_some(self.head().time_ns)
    }

    /// The card's hash over addresses and ports.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        self.head().rss_hash()
    }

    /// The VLAN tag that is no longer in the bytes.
    #[inline]
    pub fn vlan(&self) -> Option<Vlan> {
        self.head().has(Slot::VLAN).then_some(self.head().vlan)
    }

    /// The card's checksum result.
    #[inline]
    pub fn checksum(&self) -> Checksum {
        let head = self.head();
        match () {
            () if head.has(Slot::CHECKSUM_BAD) => Checksum::Bad,
            () if head.has(Slot::CHECKSUM_GOOD) => Checksum::Good,
            () if head.has(Slot::CHECKSUM_PARTIAL) => Checksum::Partial,
            () => Checksum::Unknown,
        }
    }

    /// All metadata.
    #[inline]
    pub fn meta(&self) -> Meta {
        Meta {
            wire_len: self.wire_len(),
            time_ns: self.time_ns(),
            rss_hash: self.rss_hash(),
            vlan: self.vlan(),
            checksum: self.checksum(),
            is_outgoing: self.is_outgoing(),
            interface_index: self.interface_index(),
        }
    }

    /// Whether the host itself sent it.
    #[inline]
    pub fn is_outgoing(&self) -> bool {
        self.head().has(Slot::OUTGOING)
    }

    /// Index of the interface in a capture file with several; otherwise 0.
    #[inline]
    pub fn interface_index(&self) -> u16 {
        self.head().interface_index
    }
}

/// A received packet that may be changed in place.
pub struct PacketMut<'b> {
    slots: &'b mut [Slot],
}

impl PacketMut<'_> {
    /// The same for reading.
    #[inline]
    pub fn as_packet(&self) -> Packet<'_> {
        Packet { slots: self.slots }
    }

    /// The bytes of the first segment.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let slot = &mut self.slots[0];
        // SAFETY: the batch owns the memory, and this handle is its only borrower.
        unsafe { std::slice::from_raw_parts_mut(slot.data().as_ptr(), slot.cap_len() as usize) }
    }
}
