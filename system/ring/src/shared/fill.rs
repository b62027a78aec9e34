//! Receives and returns packets in batches.

use super::{PeerEnd, SEGMENT_COUNT_MAX};
use crate::descriptor::Descriptor;
use crate::pool::Owner;
use crate::slot::{Filled, Room, Slot};

/// A batch received from the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Packets and bytes.
    pub filled: Filled,
    /// Refused packets, as in [`PeerEnd::refused`].
    pub refused: u64,
}

impl PeerEnd {
    /// Appends up to `max` slots of whole packets, shortened to `snaplen` bytes; up to
    /// [`SEGMENT_COUNT_MAX`] more slots if the last packet has several. The token of a slot is the
    /// index of its frame, which this process holds until [`give_back`](Self::give_back).
    pub fn fill(&mut self, slots: &mut Vec<Slot>, max: usize, snaplen: u32) -> Batch {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let ready = self.delivered.peek(max);
        let (filled, used) = self.fill_whole(slots, ready, snaplen);
        if used == ready {
            self.delivered.release(used);
            return Batch { filled, refused: 0 };
        }
        self.fill_rest(slots, max, snaplen, Batch { filled, refused: 0 }, used)
    }

    /// Continues with a packet of several frames, or one that is refused.
    #[cold]
    fn fill_rest(
        &mut self,
        slots: &mut Vec<Slot>,
        max: u32,
        snaplen: u32,
        mut batch: Batch,
        mut used: u32,
    ) -> Batch {
        let count = self.delivered.peek(max.saturating_add(SEGMENT_COUNT_MAX));
        slots.reserve(count as usize);
        let start = slots.len();
        let mut at = used;
        // First slot, captured bytes and remaining snaplen of the current packet.
        let (mut first, mut bytes, mut rest) = (start, 0, snaplen);
        while at < count {
            // Exceeded only while no packet is complete.
            if at >= max && used != 0 {
                break;
            }
            let packet = self.delivered.read(at);
            at += 1;
            let is_too_long = slots.len() - first >= SEGMENT_COUNT_MAX as usize;
            let slot = match self.is_skipping || is_too_long {
                true => None,
                false => self.slot(packet, &mut rest),
            };
            let Some(slot) = slot else {
                self.refuse(slots, first);
                self.is_skipping = packet.continues();
                batch.refused += u64::from(!self.is_skipping);
                (bytes, rest, used) = (0, snaplen, at);
                continue;
            };
            bytes += u64::from(slot.cap_len());
            slots.push(slot);
            if !packet.continues() {
                batch.filled.packets += 1;
                batch.filled.bytes += std::mem::take(&mut bytes);
                (first, rest, used) = (slots.len(), snaplen, at);
            }
        }
        // A packet whose end is not in the ring, for the next batch.
        for slot in slots.drain(first..) {
            self.pool.pass(slot.index(), Owner::User, Owner::Peer);
        }
        self.delivered.release(used);
        self.refused += batch.refused;
        batch
    }

    /// Appends the slots of up to `ready` packets of one frame each, until one that has several or
    /// is refused; returns how many descriptors were used.
    #[inline(always)]
    fn fill_whole(&mut self, slots: &mut Vec<Slot>, ready: u32, snaplen: u32) -> (Filled, u32) {
        let mut filled = Filled::default();
        if self.is_skipping {
            return (filled, 0);
        }
        self.delivered.prefetch(ready);
        let pool = &self.pool;
        let (owners, frame_len) = (pool.owners(), pool.frame_len());
        let base = pool.base().as_ptr();
        let mut room = Room::new(slots, ready as usize);
        'all: for cells in self.delivered.peeked(ready) {
            for cell in cells {
                // Read once: what is checked is what is used, even if the owner writes it again.
                // SAFETY: as in `Consumer::read`.
                let packet = cell.with(|packet| unsafe { packet.read_volatile() });
                let end = u64::from(packet.offset) + u64::from(packet.cap_len);
                let is_valid = end <= u64::from(frame_len) && !packet.continues();
                if !is_valid || !owners.pass(packet.index, Owner::Peer, Owner::User) {
                    break 'all;
                }
                let len = packet.cap_len.min(snaplen);
                let place = packet.index as usize * frame_len as usize + packet.offset as usize;
                // SAFETY: as in `slot`; not more often than there is room.
                unsafe {
                    let data = base.add(place);
                    let Descriptor {
                        index,
                        time_ns,
                        hash,
                        info,
                        ..
                    } = packet;
                    let at = room.place();
                    Slot::write(at, data, len, index, time_ns, hash, info);
                    (*at).wire_len = packet.wire_len.max(packet.cap_len);
                    room.advance(1);
                }
                filled.bytes += u64::from(len);
            }
        }
        filled.packets = room.finish();
        (filled, filled.packets as u32)
    }

    /// Creates the slot of a frame that the owner handed over; `rest` is what snaplen leaves of the
    /// packet. `None` if there is no such frame, this process already holds it, or the packet
    /// exceeds it.
    #[inline(always)]
    fn slot(&self, packet: Descriptor, rest: &mut u32) -> Option<Slot> {
        let pool = &self.pool;
        let end = packet.offset.checked_add(packet.cap_len)?;
        let is_valid = end <= pool.frame_len() && pool.pass(packet.index, Owner::Peer, Owner::User);
        if !is_valid {
            return None;
        }
        let len = packet.cap_len.min(*rest);
        *rest -= len;
        let place = pool.addr_of(packet.index) as usize + packet.offset as usize;
        // SAFETY: the index is one of the pool's, and this process holds the frame now; the range
        // stays within it. The owner of a pool may change the bytes at any time only if it breaks
        // the protocol; see the threat model of this crate.
        let mut slot = unsafe {
            let data = pool.base().add(place);
            Slot::over(
                data,
                len,
                packet.wire_len.max(packet.cap_len),
                packet.index.into(),
            )
        };
        slot.time_ns = packet.time_ns;
        slot.hash = packet.hash;
        slot.set_info(packet.info);
        Some(slot)
    }

    /// Returns the slots of a packet of which a part was refused.
    #[cold]
    fn refuse(&mut self, slots: &mut Vec<Slot>, first: usize) {
        let indices = slots.drain(first..).map(|slot| slot.index());
        let indices: Vec<u32> = indices.collect();
        self.give_indices(indices.into_iter());
    }

    /// Returns the frames of slots to their owner, with one submission to the ring, and empties the
    /// vector. Slots whose frame was moved elsewhere are skipped.
    #[inline]
    pub fn give_back(&mut self, slots: &mut Vec<Slot>) {
        // The index in a detached slot's token is out of range, so it is not passed on.
        const { assert!(Slot::DETACHED as u32 == u32::MAX) };
        self.give_indices(slots.iter().map(Slot::index));
        slots.clear();
    }

    #[inline(always)]
    fn give_indices(&mut self, indices: impl ExactSizeIterator<Item = u32>) {
        // The ring has room for all frames that a peer may hold, unless its owner breaks the
        // protocol: then the frames are the owner's loss.
        let most = u32::try_from(indices.len()).unwrap_or(u32::MAX);
        let room = self.returned.reserve(most);
        let owners = self.pool.owners();
        let passed = indices.filter(|index| owners.pass(*index, Owner::User, Owner::Peer));
        let count = self.returned.write_up_to(room, passed);
        self.returned.submit(count);
    }
}
