//! Sending: a queue hands out empty buffers and accepts them filled, or accepts frames.

use std::sync::Arc;
use std::time::Duration;

use ring::slot::Slot;
use ring::{Frame, Pool};
use sys::Result;

use crate::account::TxCounters;

/// Interface of a backend. Called once per batch.
pub trait TxBackend: Send {
    /// Appends up to `max` empty slots whose `cap_len` is the length of the buffer; fewer (or none)
    /// while the device still has the rest. Never blocks.
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()>;

    /// Takes back slots from `reserve`: the first `filled` are to be sent as they are (`cap_len` is
    /// now the packet's length, `CONTINUES` joins segments), the others are unused. Leaves the
    /// vector empty.
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()>;

    /// Sends a frame, without a copy if it belongs to this queue's pool. `Ok(Some(frame))` returns
    /// it: there is no room now.
    fn send(&mut self, frame: Frame) -> Result<Option<Frame>>;

    /// Takes packets over from a receiving queue without a copy. The slots are whole packets in
    /// frames of this queue's pool, owned by the receiving queue. Returns how many slots were
    /// taken, up to the end of a packet and fewer if there is no room; taken slots get the token
    /// `Slot::DETACHED`. A packet that can never be sent is taken and counted as failed, and its
    /// frames stay with the receiving queue.
    ///
    /// `None` from a backend without support for this: packets must be copied.
    fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        let _ = slots;
        Ok(None)
    }

    /// Whether [`transfer`](Self::transfer) copies the packets. It is then called with slots in any
    /// memory, leaves their tokens unchanged, and writes separate VLAN tags into the copies.
    fn copies_slots(&self) -> bool {
        false
    }

    /// Whether the queue carries packet metadata, including a separate VLAN tag, to the receiver.
    /// If not, the tag must be restored in the packet before sending.
    fn carries_metadata(&self) -> bool {
        false
    }

    /// Starts the device on submitted packets.
    fn flush(&mut self) -> Result<()>;

    /// Waits until at least one buffer is free again, or until everything was sent if `all`; at
    /// most `timeout`. Returns whether that was reached.
    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool>;

    /// The pool of its frames.
    fn pool(&self) -> Option<&Pool>;

    /// The pool whose frames it takes over from receiving queues.
    fn transfer_pool(&self) -> Option<&Pool> {
        self.pool()
    }
}

/// A sending queue, owned by one thread.
pub struct TxQueue {
    backend: Box<dyn TxBackend>,
    slots: Vec<Slot>,
    queue_index: u32,
    counters: Arc<TxCounters>,
}

impl TxQueue {
    /// Wraps a backend; `counters` are those that it updates.
    pub fn new(backend: Box<dyn TxBackend>, queue_index: u32, counters: Arc<TxCounters>) -> Self {
        Self {
            backend,
            slots: Vec::with_capacity(256),
            queue_index,
            counters,
        }
    }

    /// Number of the queue on its interface.
    pub fn queue_index(&self) -> u32 {
        self.queue_index
    }

    /// The pool of its frames, if it has one.
    pub fn pool(&self) -> Option<&Pool> {
        self.backend.pool()
    }

    /// The counters of this queue.
    pub fn counters(&self) -> &Arc<TxCounters> {
        &self.counters
    }

    /// Hands out up to `count` empty buffers; fewer if the device is behind. Never blocks.
    #[inline]
    pub fn reserve(&mut self, count: usize) -> Result<TxBatch<'_>> {
        if !self.slots.is_empty() {
            // A batch that was leaked instead of dropped.
            self.backend.submit(&mut self.slots, 0)?;
        }
        self.backend.reserve(&mut self.slots, count)?;
        let slots = self.slots.as_mut_ptr_range();
        Ok(TxBatch {
            queue: self,
            first: slots.start,
            next: slots.start,
            end: slots.end,
        })
    }

    /// Sends a frame; a frame for which there is no room is returned.
    ///
    /// # Errors
    /// The device's; the frame was then returned to its pool.
    #[inline]
    pub fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        self.backend.send(frame)
    }

    /// As [`TxBackend::transfer_pool`].
    pub(crate) fn transfer_pool(&self) -> Option<&Pool> {
        self.backend.transfer_pool()
    }

    /// As [`TxBackend::carries_metadata`].
    #[inline]
    pub(crate) fn carries_metadata(&self) -> bool {
        self.backend.carries_metadata()
    }

    /// As [`TxBackend::copies_slots`].
    #[inline]
    pub(crate) fn copies_slots(&self) -> bool {
        self.backend.copies_slots()
    }

    /// As [`TxBackend::transfer`].
    #[inline]
    pub(crate) fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        self.backend.transfer(slots)
    }

    /// Starts the device on packets submitted since the last flush.
    #[inline]
    pub fn flush(&mut self) -> Result<()> {
        self.backend.flush()
    }

    /// Waits until a buffer is free, or (`all`) until everything was sent; at most `timeout`.
    /// Returns whether that was reached.
    pub fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        self.backend.wait(all, timeout)
    }
}

/// Borrowed empty buffers; filled ones are sent by [`TxBatch::submit`], the others are returned.
#[must_use]
pub struct TxBatch<'q> {
    queue: &'q mut TxQueue,
    /// The queue's slots: the first, the next to be filled, and the end. (Through the queue they
    /// would be reloaded for each packet, because the compiler must assume that the packet's bytes
    /// alias it.)
    first: *mut Slot,
    next: *mut Slot,
    end: *mut Slot,
}

// SAFETY: the pointers are into the queue that the batch has for itself, which may change threads.
unsafe impl Send for TxBatch<'_> {}

impl TxBatch<'_> {
    /// Number of buffers still empty.
    #[inline]
    pub fn room(&self) -> usize {
        (self.end as usize - self.next as usize) / size_of::<Slot>()
    }

    /// Number of filled slots.
    #[inline]
    pub(crate) fn filled(&self) -> usize {
        (self.next as usize - self.first as usize) / size_of::<Slot>()
    }

    /// The next slot to fill.
    #[inline(always)]
    fn slot(&mut self) -> Option<&mut Slot> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: one of the queue's slots (see `end`), and nothing else reaches them while the
        // batch has the queue.
        Some(unsafe { &mut *self.next })
    }

    /// The filled slots from the `from`th on.
    fn filled_from(&mut self, from: usize) -> &mut [Slot] {
        let count = self.filled();
        // SAFETY: so many of the queue's slots lie after the first; else as for `slot`.
        let all = unsafe { std::slice::from_raw_parts_mut(self.first, count) };
        &mut all[from..]
    }

    /// The next empty buffer, to be filled in place and counted by [`TxBatch::advance`].
    #[inline]
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        let slot = self.slot()?;
        // SAFETY: the backend borrowed the range to this batch alone.
        Some(unsafe {
            std::slice::from_raw_parts_mut(slot.data().as_ptr(), slot.cap_len() as usize)
        })
    }

    /// Gives the packet written last, in the slots from `first` on, the metadata of another.
    pub(crate) fn set_metadata(&mut self, first: usize, of: &Slot) {
        let slots = self.filled_from(first);
        if let Some(slot) = slots.first_mut() {
            slot.set_metadata_of(of);
        }
        for slot in slots {
            slot.wire_len = of.wire_len;
        }
    }

    /// Marks the next buffer as holding a packet of `len` bytes.
    ///
    /// # Panics
    /// If there is no buffer left or `len` exceeds it: a bug of the caller.
    #[inline]
    pub fn advance(&mut self, len: usize) {
        let slot = self.slot().expect("a buffer is left");
        assert!(
            len <= slot.cap_len() as usize,
            "more bytes than the buffer holds"
        );
        slot.cut_to(len as u32);
        slot.wire_len = len as u32;
        // SAFETY: not beyond the end, at which it is not yet.
        self.next = unsafe { self.next.add(1) };
    }

    /// Copies a packet into the next buffers (several, if it is larger than one); returns false if
    /// there is no room left.
    #[inline]
    pub fn write(&mut self, packet: &[u8]) -> bool {
        let Some(buffer) = self.buffer() else {
            return false;
        };
        if let Some(start) = buffer.get_mut(..packet.len()) {
            start.copy_from_slice(packet);
            self.advance(packet.len());
            return true;
        }
        self.write_pieces(packet.len(), std::iter::once(packet))
    }

    /// Like [`write`](Self::write), for a packet of `len` bytes in several pieces.
    pub fn write_pieces<'p>(&mut self, len: usize, pieces: impl Iterator<Item = &'p [u8]>) -> bool {
        let first = self.filled();
        // Number of bytes in the current buffer, and its length.
        let (mut at, Some(mut room)) = (0, self.buffer().map(|buffer| buffer.len())) else {
            return false;
        };
        for mut rest in pieces {
            while !rest.is_empty() {
                if at == room {
                    self.advance(at);
                    let Some(next) = self.buffer().map(|buffer| buffer.len()) else {
                        // Filled completely, so each holds its full length.
                        for slot in self.filled_from(first) {
                            slot.flags &= !Slot::CONTINUES;
                        }
                        // SAFETY: so many slots there are.
                        self.next = unsafe { self.first.add(first) };
                        return false;
                    };
                    if let Some(last) = self.filled_from(first).last_mut() {
                        last.flags |= Slot::CONTINUES;
                    }
                    (at, room) = (0, next);
                }
                let (now, later) = rest.split_at(rest.len().min(room - at));
                if let Some(buffer) = self.buffer() {
                    buffer[at..at + now.len()].copy_from_slice(now);
                }
                at += now.len();
                rest = later;
            }
        }
        self.advance(at);
        for slot in self.filled_from(first) {
            slot.wire_len = len as u32;
        }
        true
    }

    /// Passes the filled buffers to the device (which starts at the next flush at the latest) and
    /// returns the others.
    #[inline]
    pub fn submit(self) -> Result<()> {
        let filled = self.filled();
        // The drop that follows has nothing left to return.
        self.queue.backend.submit(&mut self.queue.slots, filled)
    }
}

impl Drop for TxBatch<'_> {
    fn drop(&mut self) {
        if !self.queue.slots.is_empty() {
            // Nothing was submitted: all buffers are returned unused. The next call reports a
            // failure.
            let _ = self.queue.backend.submit(&mut self.queue.slots, 0);
        }
    }
}
