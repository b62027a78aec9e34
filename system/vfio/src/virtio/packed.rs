//! The packed virtqueue (VIRTIO 1.2 §2.8): one ring of descriptors that both sides write.
//!
//! A descriptor is available when its AVAIL bit equals the driver's wrap counter and its USED bit
//! does not; it is used when both equal the device's wrap counter (§2.8.1). Each side advances
//! around the ring independently and inverts its counter at the end.
//!
//! The barriers: a descriptor and the data it refers to are written before its flags (§2.8.21.1.1,
//! release); in a chain the first descriptor's flags are written last (§2.8.17). The flags are
//! written before checking whether the device requests a notification (§2.8.21.2, §2.8.21.3.1, a
//! full fence); flags that say "used" are read before the rest (§2.8.22, acquire): here one word
//! holds both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::Result;

use super::super::dma::{DmaArray, DmaSpace, after_done_flag, before_doorbell, before_sleep_check};
use super::ring::{Element, InFlightTable, Ring, Used, UsedElement, passes};

/// The buffer continues in the next descriptor (§2.8.6).
pub(super) const DESC_NEXT: u64 = 1;
/// The device writes to the buffer (§2.8.3).
pub(super) const DESC_WRITE: u64 = 2;
/// Bits of the wrap counters (§2.8.1).
pub(super) const DESC_AVAIL: u64 = 1 << 7;
pub(super) const DESC_USED: u64 = 1 << 15;

/// Event suppression (§2.8.10): always, never, at one descriptor.
pub(super) const EVENT_ENABLE: u32 = 0;
pub(super) const EVENT_DISABLE: u32 = 1;
pub(super) const EVENT_DESC: u32 = 2;

/// A packed virtqueue; see the module documentation.
pub struct Packed {
    descriptors: Arc<DmaArray<[AtomicU64; 2]>>,
    /// Event suppression structures (§2.8.14): `desc` in the low half, `flags` in the high half.
    driver: DmaArray<AtomicU32>,
    device: DmaArray<AtomicU32>,
    size: u16,
    /// [`DESC_WRITE`], or 0 if the device reads.
    kind: u64,
    event_idx: bool,
    book: InFlightTable,
    /// Position of the next buffer, and the flags that make it available in this round.
    avail: u16,
    avail_flags: u64,
    /// Number of descriptors made available since the last check for a notification.
    unshown: u16,
    /// Position at which the device uses the next buffer, and the wrap bits of a used one in this
    /// round.
    used: u16,
    used_flags: u64,
    /// Both, for the watch.
    place: Arc<AtomicU32>,
}

impl Packed {
    /// Writes the descriptor at `position`: address, then length, id and flags in one word.
    #[inline(always)]
    fn describe(&self, position: u16, element: Element, id: u16, flags: u64) {
        let [address, rest] = self.descriptors.ring_at(position.into());
        address.store(element.iova, Ordering::Relaxed);
        let word = u64::from(element.len) | u64::from(id) << 32 | flags << 48;
        // §2.8.21.1.1: address and packet before the flags.
        before_doorbell();
        rest.store(word, Ordering::Relaxed);
    }

    /// Advances to the next position for a buffer (§2.8.21.1).
    #[inline(always)]
    fn step_avail(&mut self) {
        self.unshown += 1;
        self.avail += 1;
        if self.avail == self.size {
            self.avail = 0;
            self.avail_flags ^= DESC_AVAIL | DESC_USED;
        }
    }

    /// Advances past a used buffer of `count` descriptors (§2.8.6).
    #[inline(always)]
    fn step_used(&mut self, count: u16) {
        self.used += count;
        if self.used >= self.size {
            self.used -= self.size;
            self.used_flags ^= DESC_AVAIL | DESC_USED;
        }
    }

    /// The word of the next used descriptor, if it is used.
    #[inline(always)]
    fn peek(&self) -> Option<u64> {
        let [_, rest] = self.descriptors.ring_at(self.used.into());
        let rest = rest.load(Ordering::Relaxed);
        // §2.8.22: the packet is read after the flags; length and id are in the same word.
        after_done_flag();
        (rest >> 48 & (DESC_AVAIL | DESC_USED) == self.used_flags).then_some(rest)
    }
}

impl Ring for Packed {
    const NAME: &'static str = "packed";

    fn new(dma: &Arc<DmaSpace>, size: u16, writable: bool, event_idx: bool) -> Result<Self> {
        // The specification allows other sizes; this driver requests powers of two.
        assert!(
            size.is_power_of_two(),
            "a packed queue is a power of two here"
        );
        let count = usize::from(size);
        // §2.8.10.1: descriptors are aligned to 16, the event structures to 4; each on its own
        // cache line.
        let driver = (16 * count).next_multiple_of(64);
        let area = Arc::new(dma.allocate(driver + 128)?);
        let queue = Self {
            descriptors: Arc::new(area.array(0, count)),
            driver: area.array(driver, 1),
            device: area.array(driver + 64, 1),
            size,
            kind: if writable { DESC_WRITE } else { 0 },
            event_idx,
            book: InFlightTable::new(size),
            avail: 0,
            // §2.8.1: both counters begin at 1.
            avail_flags: DESC_AVAIL,
            unshown: 0,
            used: 0,
            used_flags: DESC_AVAIL | DESC_USED,
            place: Arc::default(),
        };
        queue.mark();
        queue.driver[0].store(EVENT_DISABLE << 16, Ordering::Relaxed);
        Ok(queue)
    }

    fn areas(&self) -> [u64; 3] {
        let areas = [&self.driver, &self.device].map(DmaArray::iova);
        [self.descriptors.iova(), areas[0], areas[1]]
    }

    #[inline(always)]
    fn book(&self) -> &InFlightTable {
        &self.book
    }

    #[inline(always)]
    fn book_mut(&mut self) -> &mut InFlightTable {
        &mut self.book
    }

    #[inline(always)]
    fn offer(&mut self, element: Element) {
        let Some(id) = self.book.enter(element.frame) else {
            debug_assert!(false, "the caller looks for room");
            return;
        };
        self.describe(self.avail, element, id, self.kind | self.avail_flags);
        self.step_avail();
    }

    fn offer_chain(&mut self, elements: &[Element], answer: bool) -> bool {
        if elements.is_empty() || (self.book.room() as usize) < elements.len() {
            return false;
        }
        let mut head = None;
        for element in elements.iter().rev() {
            head = match head {
                None => self.book.enter(element.frame),
                Some(next) => self.book.enter_before(element.frame, next),
            };
            if head.is_none() {
                return false;
            }
        }
        let Some(id) = head else { return false };
        let (first, mut first_flags) = (self.avail, 0);
        for (index, &element) in elements.iter().enumerate() {
            let kind = match index + 1 < elements.len() {
                true => self.kind | DESC_NEXT,
                false if answer => DESC_WRITE,
                false => self.kind,
            };
            let flags = kind | self.avail_flags;
            if index == 0 {
                first_flags = flags;
            } else {
                self.describe(self.avail, element, id, flags);
            }
            self.step_avail();
        }
        // §2.8.17: the first descriptor becomes available after all others.
        self.describe(first, elements[0], id, first_flags);
        true
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let added = std::mem::take(&mut self.unshown);
        if added == 0 {
            return false;
        }
        // §2.8.21.3.1: write the flags before checking whether the device requests a notification.
        before_sleep_check();
        let event = self.device.ring_at(0).load(Ordering::Relaxed);
        match event >> 16 & 3 {
            EVENT_DISABLE => false,
            EVENT_DESC if self.event_idx => {
                // §2.8.14: a position in the ring, and its round. One of the previous round is one
                // ring length back.
                let round = event >> 15 & 1 != 0;
                let ours = self.avail_flags & DESC_AVAIL != 0;
                let mut at = event as u16 & 0x7fff;
                if round != ours {
                    at = at.wrapping_sub(self.size);
                }
                passes(at, self.avail, self.avail.wrapping_sub(added))
            }
            _ => true,
        }
    }

    #[inline(always)]
    fn next_used(&mut self) -> Used {
        let Some(rest) = self.peek() else {
            return Used::Nothing;
        };
        let (id, len) = ((rest >> 32) as u16, rest as u32);
        match self.book.count(id.into()) {
            Some(count) => {
                self.step_used(count);
                Used::Buffer { id, len }
            }
            None => {
                // The number of its descriptors is unknown; the minimum is one.
                self.step_used(1);
                Used::Foreign
            }
        }
    }

    #[inline(always)]
    fn next_used_one(&mut self) -> UsedElement {
        let Some(rest) = self.peek() else {
            return UsedElement::Nothing;
        };
        // A chain would have more descriptors, but there is none (and one is the minimum).
        self.step_used(1);
        match self.book.leave_one((rest >> 32) as u16) {
            Some(frame) => UsedElement::Frame {
                frame,
                len: rest as u32,
            },
            None => UsedElement::Foreign,
        }
    }

    fn held_bytes(&self) -> u64 {
        let held = self.descriptors.len() as u32 - self.book.room();
        let len = |at: u32| {
            let [_, rest] = self.descriptors.ring_at(u32::from(self.used) + at);
            rest.load(Ordering::Relaxed) & 0xffff_ffff
        };
        (0..held).map(len).sum()
    }

    fn has_used(&self) -> bool {
        self.peek().is_some()
    }

    #[inline(always)]
    fn mark(&self) {
        let place = self.used_flags << 16 | u64::from(self.used);
        self.place.store(place as u32, Ordering::Relaxed);
    }

    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        let (descriptors, place) = (self.descriptors.clone(), self.place.clone());
        Box::new(move || {
            let place = place.load(Ordering::Relaxed);
            let mut flags = u64::from(place >> 16);
            let mut at = place & 0xffff;
            let mut count = 0;
            while count < descriptors.len() as u32 {
                let [_, rest] = descriptors.ring_at(at);
                let found = rest.load(Ordering::Relaxed) >> 48;
                if found & (DESC_AVAIL | DESC_USED) != flags {
                    break;
                }
                count += 1;
                at += 1;
                if at as usize == descriptors.len() {
                    at = 0;
                    flags ^= DESC_AVAIL | DESC_USED;
                }
            }
            count
        })
    }

    fn listen(&mut self, on: bool) -> bool {
        let flags = if on { EVENT_ENABLE } else { EVENT_DISABLE };
        self.driver[0].store(flags << 16, Ordering::Relaxed);
        // §2.8.22: write the request before the last check, a store before a load.
        before_sleep_check();
        self.has_used()
    }
}
