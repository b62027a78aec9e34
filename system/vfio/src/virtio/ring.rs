//! Code common to split and packed virtqueues: buffers are offered, returned as used, and
//! identified by an id that the device returns (VIRTIO 1.2 §2.6).

use std::sync::Arc;

use sys::Result;

use super::super::dma::DmaSpace;

/// Maximum queue length to request: the limit is 32768 (§2.7), but the packets of a quarter second
/// at 1 Mpps are enough.
pub(super) const SIZE_MAX: u16 = 4096;

/// Represents no frame, for an element that has none.
pub(super) const NO_FRAME: u32 = u32::MAX;

/// A piece of memory offered to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Device address.
    pub iova: u64,
    /// Length.
    pub len: u32,
    /// Frame that contains it, or [`NO_FRAME`].
    pub frame: u32,
}

/// Next item returned by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Nothing yet.
    Nothing,
    /// The buffer with this id is done, and the device reports that it wrote `len` bytes.
    Buffer { id: u16, len: u32 },
    /// An id that was never offered, or has already been returned.
    Foreign,
}

/// Next item returned by the device in a queue whose buffers have one element each; it has been
/// removed from the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedElement {
    /// Nothing yet.
    Nothing,
    /// The buffer of this frame, and the device reports that it wrote `len` bytes.
    Frame { frame: u32, len: u32 },
    /// As [`Used::Foreign`].
    Foreign,
}

/// A virtqueue from the driver's side.
///
/// All buffers of a queue have the same direction: the device writes to those of a receiving queue
/// and reads those of a sending one.
pub trait Ring: Sized + Send + 'static {
    /// Its name in the specification.
    const NAME: &'static str;

    /// Creates an empty queue of `size` entries, a power of two, in its own memory.
    ///
    /// # Errors
    /// If memory is short.
    fn new(dma: &Arc<DmaSpace>, size: u16, writable: bool, event_idx: bool) -> Result<Self>;

    /// Device addresses of descriptor area, driver area and device area (§2.6).
    fn areas(&self) -> [u64; 3];

    /// The buffers that the device holds.
    fn book(&self) -> &InFlightTable;

    /// The same, mutable, to remove returned buffers.
    fn book_mut(&mut self) -> &mut InFlightTable;

    /// Offers a buffer of one element; the caller has checked that there is room.
    fn offer(&mut self, element: Element);

    /// Offers a buffer of several consecutive elements, the last of which is writable for the
    /// device if `answer` is true; returns false (and offers nothing) without room for all.
    fn offer_chain(&mut self, elements: &[Element], answer: bool) -> bool;

    /// Publishes the offered buffers; returns true if the device requests a notification
    /// (§2.7.13.4, §2.8.21.2).
    fn publish(&mut self) -> bool;

    /// Takes the next used buffer. Its id is still in the book.
    fn next_used(&mut self) -> Used;

    /// The same if all buffers have one element; also removes it from the book.
    fn next_used_one(&mut self) -> UsedElement;

    /// Whether there is a used buffer that was not taken yet.
    fn has_used(&self) -> bool;

    /// Number of bytes in the buffers that the device holds, provided that it uses them in order.
    fn held_bytes(&self) -> u64;

    /// Publishes the driver's position to the watch, once per batch.
    fn mark(&self);

    /// Counts the used buffers that were not taken at the last mark, from any thread. For queues
    /// whose buffers have one element.
    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync>;

    /// Enables or disables an interrupt for the next used buffer; returns true if there already is
    /// a used buffer, for which no interrupt will be raised (§2.7.14, §2.8.22).
    fn listen(&mut self, on: bool) -> bool;
}

/// State of an id while the device holds its buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    frame: u32,
    /// Number of elements of the buffer that begins here; 0 if none does, or if it is not with the
    /// device.
    count: u16,
    /// Id of the next element.
    next: u16,
}

/// The buffers that the device holds, in memory that it cannot access: its reports are checked
/// against this.
#[derive(Debug)]
pub struct InFlightTable {
    entries: Box<[Entry]>,
    /// Unused ids: the first `room` of these.
    free: Box<[u16]>,
    room: usize,
}

impl InFlightTable {
    pub(super) fn new(size: u16) -> Self {
        Self {
            entries: vec![Entry::default(); size.into()].into(),
            free: (0..size).rev().collect(),
            room: size.into(),
        }
    }

    /// Number of elements that may still be offered.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.room as u32
    }

    /// Frees an id.
    #[inline(always)]
    fn release(&mut self, id: u16) {
        // Never more than there are ids: each is released once.
        if let Some(place) = self.free.get_mut(self.room) {
            *place = id;
            self.room += 1;
        }
    }

    /// Number of elements that the device holds.
    #[cfg(test)]
    pub(super) fn held(&self) -> u32 {
        self.entries.len() as u32 - self.room()
    }

    /// Adds a buffer of one element; `None` without room.
    #[inline(always)]
    pub(super) fn enter(&mut self, frame: u32) -> Option<u16> {
        let room = self.room.checked_sub(1)?;
        let id = *self.free.get(room)?;
        self.room = room;
        // Ids in `free` are those of entries.
        let entry = self.entries.get_mut(usize::from(id))?;
        *entry = Entry {
            frame,
            count: 1,
            next: 0,
        };
        Some(id)
    }

    /// Adds an element before a buffer: the buffer's id becomes the new one's.
    pub(super) fn enter_before(&mut self, frame: u32, next: u16) -> Option<u16> {
        let count = self.entries.get(usize::from(next))?.count;
        let id = self.enter(frame)?;
        self.entries[usize::from(next)].count = 0;
        let entry = &mut self.entries[usize::from(id)];
        (entry.count, entry.next) = (count + 1, next);
        Some(id)
    }

    /// The buffers that the device holds: the ids of their elements, in order.
    pub(super) fn held_buffers(&self) -> impl Iterator<Item = Vec<u16>> {
        let firsts = (0..self.entries.len() as u16).filter(|&id| self.count(id.into()).is_some());
        firsts.map(|first| {
            let count = self.entries[usize::from(first)].count;
            let next = |id: &u16| Some(self.entries[usize::from(*id)].next);
            std::iter::successors(Some(first), next)
                .take(count.into())
                .collect()
        })
    }

    /// Number of elements of the buffer, if the device holds it.
    #[inline(always)]
    pub(super) fn count(&self, id: u32) -> Option<u16> {
        let count = self.entries.get(id as usize)?.count;
        (count != 0).then_some(count)
    }

    /// Removes a buffer of one element; returns its frame.
    #[inline(always)]
    pub(super) fn leave_one(&mut self, id: u16) -> Option<u32> {
        let entry = self.entries.get_mut(usize::from(id))?;
        if entry.count != 1 {
            return None;
        }
        entry.count = 0;
        let frame = entry.frame;
        self.release(id);
        Some(frame)
    }

    /// Removes a buffer, frame by frame.
    #[inline(always)]
    pub(super) fn leave(&mut self, id: u16, mut each: impl FnMut(u32)) {
        if let Some(frame) = self.leave_one(id) {
            return each(frame);
        }
        let Some(entry) = self.entries.get_mut(usize::from(id)) else {
            return;
        };
        let count = std::mem::take(&mut entry.count);
        let mut at = id;
        for _ in 0..count {
            let entry = self.entries[usize::from(at)];
            each(entry.frame);
            self.release(at);
            at = entry.next;
        }
    }

    /// Removes everything: the device has been reset and holds nothing any more.
    pub(super) fn leave_all(&mut self, mut each: impl FnMut(u32)) {
        for id in 0..self.entries.len() as u16 {
            if self.entries[usize::from(id)].count != 0 {
                self.leave(id, &mut each);
            }
        }
    }
}

/// Whether an index in `old..new`, both modulo 2^16, is the one of which the other side requested a
/// notification (§2.7.7.2, §2.7.10.1).
#[inline(always)]
pub(super) fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_leaves_once() {
        let mut book = InFlightTable::new(4);
        let a = book.enter(10).unwrap();
        let last = book.enter(11).unwrap();
        let mid = book.enter_before(12, last).unwrap();
        let first = book.enter_before(NO_FRAME, mid).unwrap();
        assert_eq!((book.room(), book.held()), (0, 4));
        assert_eq!(book.enter(13), None);
        // Only a buffer's first id identifies it.
        assert_eq!(book.count(last.into()), None);
        assert_eq!(book.count(mid.into()), None);
        assert_eq!(book.count(first.into()), Some(3));
        assert_eq!(book.count(4), None);
        assert_eq!(book.count(u32::MAX), None);
        assert_eq!(book.leave_one(first), None);
        let mut frames = Vec::new();
        book.leave(first, |frame| frames.push(frame));
        assert_eq!(frames, [NO_FRAME, 12, 11]);
        book.leave(first, |_| panic!("twice"));
        assert_eq!(book.leave_one(a), Some(10));
        assert_eq!(book.leave_one(a), None);
        assert_eq!(book.held(), 0);
        book.enter(20).unwrap();
        book.leave_all(|frame| frames.push(frame));
        assert_eq!((frames.pop(), book.held()), (Some(20), 0));
    }

    #[test]
    fn events_are_passed_modulo_the_index() {
        assert!(passes(0, 1, 0));
        assert!(!passes(1, 1, 0));
        assert!(passes(65535, 0, 65535));
        assert!(passes(65535, 3, 65530));
        assert!(!passes(5, 3, 65530));
        assert!(!passes(7, 7, 7));
    }
}
