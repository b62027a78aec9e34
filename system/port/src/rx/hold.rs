//! Batches that stay with their queue: the packets are read in place until the next batch is
//! received.

use ring::slot::{Slot, Vlan, prefetch, segment_count};

use super::{Packet, RxBatch, RxQueue};

/// How many slots before it is read the bytes of a packet are prefetched: another processor wrote
/// them.
const AHEAD: usize = 6;

impl RxQueue {
    /// Whether a batch that was kept by [`RxBatch::hold`] is still there.
    #[inline]
    pub fn is_holding(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The packet at slot `at` of the batch that was kept by [`RxBatch::hold`], and the slot at
    /// which the next one begins; the first is at slot 0. `None` after the last.
    #[inline]
    pub fn held(&self, at: usize) -> Option<(Packet<'_>, usize)> {
        let rest = self.slots.get(at..).filter(|rest| !rest.is_empty())?;
        if let Some(later) = rest.get(AHEAD) {
            prefetch(later.data().as_ptr());
        }
        let slots = &rest[..segment_count(rest)];
        Some((Packet { slots }, at + slots.len()))
    }

    /// Returns the packets of the batch that was kept by [`RxBatch::hold`] to the device before the
    /// next [`receive`](Self::receive).
    #[inline]
    pub fn release_held(&mut self) {
        if !self.slots.is_empty() {
            self.backend.release(&mut self.slots);
        }
    }
}

impl RxBatch<'_> {
    /// Leaves the packets with the queue, which returns them to the device at its next
    /// [`receive`](RxQueue::receive); until then [`RxQueue::held`] gives access to them, one at a
    /// time.
    #[inline]
    pub fn hold(self) {
        for slot in self.queue.slots.iter().take(AHEAD) {
            prefetch(slot.data().as_ptr());
        }
        std::mem::forget(self);
    }
}

impl Packet<'_> {
    /// The VLAN tag of a packet of `any`, for which its cooked header has no field.
    #[inline]
    pub fn tag_beside(&self) -> Option<Vlan> {
        let head = self.head();
        (!head.has(Slot::VLAN) && head.vlan.tpid != 0).then_some(head.vlan)
    }
}
