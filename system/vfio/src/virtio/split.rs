//! The split virtqueue (VIRTIO 1.2 §2.7): a table of descriptors, a ring in which the driver offers
//! them, and a ring in which the device returns them.
//!
//! ```text
//!  driver area:  | flags | idx | ring[size]: u16       | used_event  |   written by the driver
//!  device area:  | flags | idx | ring[size]: (id, len) | avail_event |   written by the device
//! ```
//!
//! The barriers: the contents of a buffer and its ring entry are written before `avail.idx`
//! (§2.7.13.3.1, release); `avail.idx` is written before checking whether the device requests a
//! notification (§2.7.13.4.1, a full fence: a store before a load); `used.idx` is read before the
//! entries it covers (§2.7.14, acquire).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use sys::Result;

use super::super::dma::{DmaArray, DmaSpace, after_done_flag, before_doorbell, before_sleep_check};
use super::ring::{Element, InFlightTable, Ring, Used, UsedElement, passes};

/// The buffer continues in the descriptor `next` (§2.7.5).
pub(super) const DESC_NEXT: u64 = 1;
/// The device writes to the buffer.
pub(super) const DESC_WRITE: u64 = 2;
/// Flag in the driver area: no interrupts (§2.7.7).
pub(super) const AVAIL_NO_INTERRUPT: u16 = 1;
/// Flag in the device area: no notifications (§2.7.10).
pub(super) const USED_NO_NOTIFY: u16 = 1;

/// How far ahead of the device the index of an unwanted event is set: half of the index's range.
const FAR: u16 = 0x8000;

/// A split virtqueue; see the module documentation.
pub struct Split {
    descriptors: DmaArray<[AtomicU64; 2]>,
    /// `flags` and `idx` of the driver area, its ring, and `used_event` after it.
    driver: DmaArray<AtomicU16>,
    available: DmaArray<AtomicU16>,
    used_event: DmaArray<AtomicU16>,
    /// The same for the device area.
    device: Arc<DmaArray<AtomicU16>>,
    used_ring: DmaArray<[AtomicU32; 2]>,
    avail_event: DmaArray<AtomicU16>,
    /// [`DESC_WRITE`], or 0 if the device reads.
    kind: u64,
    event_idx: bool,
    listening: bool,
    book: InFlightTable,
    /// Next position in the available ring, and the position published to the device.
    avail: u16,
    shown: u16,
    /// Next position in the used ring, and the position up to which the device has written.
    used: u16,
    known: u16,
    /// `used`, for the watch.
    place: Arc<AtomicU32>,
}

impl Split {
    /// Writes descriptor `id` (§2.7.5): address; length, flags and next in one word.
    #[inline(always)]
    fn describe(&self, id: u16, element: Element, flags: u64, next: u16) {
        let [address, rest] = self.descriptors.ring_at(id.into());
        address.store(element.iova, Ordering::Relaxed);
        let word = u64::from(element.len) | flags << 32 | u64::from(next) << 48;
        rest.store(word, Ordering::Relaxed);
    }

    /// Writes a buffer to the next position of the available ring (§2.7.13.2).
    #[inline(always)]
    fn make_available(&mut self, id: u16) {
        let place = self.available.ring_at(self.avail.into());
        place.store(id, Ordering::Relaxed);
        self.avail = self.avail.wrapping_add(1);
    }

    /// The next entry of the used ring, if the device has written it.
    #[inline(always)]
    fn next_entry(&mut self) -> Option<(u32, u32)> {
        if self.used == self.known && !self.look() {
            return None;
        }
        let [id, len] = self.used_ring.ring_at(self.used.into());
        let (id, len) = (id.load(Ordering::Relaxed), len.load(Ordering::Relaxed));
        self.used = self.used.wrapping_add(1);
        Some((id, len))
    }

    /// Reads the device's index; returns false if it has not advanced. Once per batch.
    #[inline(never)]
    fn look(&mut self) -> bool {
        self.known = self.used_idx();
        if self.used == self.known {
            return false;
        }
        if self.event_idx && !self.listening {
            // At most once per batch: the event stays ahead of the device.
            let far = self.used.wrapping_add(FAR);
            self.used_event.ring_at(0).store(far, Ordering::Relaxed);
        }
        true
    }

    #[inline(always)]
    fn used_idx(&self) -> u16 {
        let idx = self.device.ring_at(1).load(Ordering::Relaxed);
        // §2.7.14: what the index counts is read after it.
        after_done_flag();
        idx
    }
}

impl Ring for Split {
    const NAME: &'static str = "split";

    fn new(dma: &Arc<DmaSpace>, size: u16, writable: bool, event_idx: bool) -> Result<Self> {
        assert!(size.is_power_of_two(), "a split queue is a power of two");
        let count = usize::from(size);
        // §2.7: the driver area is aligned to 2, the device area to 4; separated by a cache line,
        // so that neither side writes to a line of the other.
        let driver = 16 * count;
        let device = (driver + 6 + 2 * count).next_multiple_of(64);
        let area = Arc::new(dma.allocate(device + 6 + 8 * count)?);
        let queue = Self {
            descriptors: area.array(0, count),
            driver: area.array(driver, 2),
            available: area.array(driver + 4, count),
            used_event: area.array(driver + 4 + 2 * count, 1),
            device: Arc::new(area.array(device, 2)),
            used_ring: area.array(device + 4, count),
            avail_event: area.array(device + 4 + 8 * count, 1),
            kind: if writable { DESC_WRITE } else { 0 },
            event_idx,
            listening: false,
            book: InFlightTable::new(size),
            avail: 0,
            shown: 0,
            used: 0,
            known: 0,
            place: Arc::default(),
        };
        if event_idx {
            queue.used_event[0].store(FAR, Ordering::Relaxed);
        } else {
            queue.driver[0].store(AVAIL_NO_INTERRUPT, Ordering::Relaxed);
        }
        Ok(queue)
    }

    fn areas(&self) -> [u64; 3] {
        let areas = [self.driver.iova(), self.device.iova()];
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
        self.describe(id, element, self.kind, 0);
        self.make_available(id);
    }

    fn offer_chain(&mut self, elements: &[Element], answer: bool) -> bool {
        if elements.is_empty() || (self.book.room() as usize) < elements.len() {
            return false;
        }
        // From the last to the first: each needs the id of the next one.
        let mut next = None;
        for &element in elements.iter().rev() {
            let id = match next {
                None => self.book.enter(element.frame),
                Some(next) => self.book.enter_before(element.frame, next),
            };
            let Some(id) = id else { return false };
            let flags = match next {
                Some(_) => self.kind | DESC_NEXT,
                None if answer => DESC_WRITE,
                None => self.kind,
            };
            self.describe(id, element, flags, next.unwrap_or(0));
            next = Some(id);
        }
        if let Some(first) = next {
            self.make_available(first);
        }
        true
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let (old, new) = (self.shown, self.avail);
        if old == new {
            return false;
        }
        self.shown = new;
        // §2.7.13.3.1: write descriptors, ring and packets before the index that publishes them.
        before_doorbell();
        self.driver.ring_at(1).store(new, Ordering::Relaxed);
        // §2.7.13.4.1: write the index before checking whether the device requests a notification.
        // A device that goes to sleep checks the index after it has set the flag.
        before_sleep_check();
        if self.event_idx {
            let event = self.avail_event.ring_at(0).load(Ordering::Relaxed);
            return passes(event, new, old);
        }
        self.device.ring_at(0).load(Ordering::Relaxed) & USED_NO_NOTIFY == 0
    }

    #[inline(always)]
    fn next_used(&mut self) -> Used {
        match self.next_entry() {
            None => Used::Nothing,
            Some((id, len)) if self.book.count(id).is_some() => Used::Buffer { id: id as u16, len },
            Some(_) => Used::Foreign,
        }
    }

    #[inline(always)]
    fn next_used_one(&mut self) -> UsedElement {
        let Some((id, len)) = self.next_entry() else {
            return UsedElement::Nothing;
        };
        let frame = u16::try_from(id)
            .ok()
            .and_then(|id| self.book.leave_one(id));
        match frame {
            Some(frame) => UsedElement::Frame { frame, len },
            None => UsedElement::Foreign,
        }
    }

    fn held_bytes(&self) -> u64 {
        let len = |id: u16| {
            let [_, rest] = self.descriptors.ring_at(id.into());
            rest.load(Ordering::Relaxed) & 0xffff_ffff
        };
        self.book.held_buffers().flatten().map(len).sum()
    }

    fn has_used(&self) -> bool {
        self.used != self.known || self.used_idx() != self.used
    }

    #[inline(always)]
    fn mark(&self) {
        self.place.store(self.used.into(), Ordering::Relaxed);
    }

    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        let (device, place) = (self.device.clone(), self.place.clone());
        let most = self.used_ring.len() as u16;
        Box::new(move || {
            let used = place.load(Ordering::Relaxed) as u16;
            let count = device[1].load(Ordering::Relaxed).wrapping_sub(used);
            // Never more than there are, for any index.
            count.min(most).into()
        })
    }

    fn listen(&mut self, on: bool) -> bool {
        self.listening = on;
        if self.event_idx {
            let event = if on {
                self.used
            } else {
                self.used.wrapping_add(FAR)
            };
            self.used_event[0].store(event, Ordering::Relaxed);
        } else {
            let flags = if on { 0 } else { AVAIL_NO_INTERRUPT };
            self.driver[0].store(flags, Ordering::Relaxed);
        }
        // §2.7.14: write the request before the last check, a store before a load.
        before_sleep_check();
        self.has_used()
    }
}
