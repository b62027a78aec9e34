//! Forwards packets of a batch to a sending queue: their frames are transferred if both queues use
//! the same pool, otherwise they are copied: by the sending queue itself if it can do so directly
//! to where they must be, or into its frames.

use std::ptr;

use ring::Pool;
use ring::slot::{Slot, Vlan, segment_count};
use sys::Result;

use super::{Packet, RxBatch, RxQueue};
use crate::tx::TxQueue;

/// Minimum buffer length of all sending queues.
const BUFFER_LEN_MIN: u32 = 1024;

/// Result of forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Packets accepted by the sending queue, or refused by it and counted as failed.
    pub packets: usize,
    /// Bytes of these, including VLAN tags.
    pub bytes: u64,
    /// Number of these that were copied.
    pub copied: usize,
}

impl RxQueue {
    /// Whether packets of this queue are forwarded to a sending queue without a copy.
    pub fn moves_to(&self, tx: &TxQueue) -> bool {
        let (from, to) = (self.backend.transfer_pool(), tx.transfer_pool());
        from.zip(to)
            .is_some_and(|(from, to)| from.tag() == to.tag())
    }
}

impl RxBatch<'_> {
    /// Skips the first `count` packets: they return to the device with the batch.
    pub fn skip(&mut self, count: usize) {
        for _ in 0..count.min(self.packets) {
            self.start += segment_count(&self.queue.slots[self.start..]);
            self.packets -= 1;
        }
    }

    /// Passes the first `count` packets to a sending queue, in order, and removes them from the
    /// batch. Fewer if the queue has no room: the rest stay in the batch. A separately reported
    /// VLAN tag is restored in the packet, unless the queue transfers tags as metadata, as
    /// `memory:` does. Nothing is sent before the queue's flush.
    ///
    /// # Errors
    /// The sending queue's.
    pub fn forward(&mut self, tx: &mut TxQueue, count: usize) -> Result<Forwarded> {
        let count = count.min(self.packets);
        if count == 0 {
            return Ok(Forwarded::default());
        }
        match self.move_frames(tx, count)? {
            Some(forwarded) => Ok(forwarded),
            None => self.copy_packets(tx, count),
        }
    }

    /// `None` if the two queues share no frames, and the sending one does not copy them itself.
    fn move_frames(&mut self, tx: &mut TxQueue, count: usize) -> Result<Option<Forwarded>> {
        let mut end = self.start;
        for _ in 0..count {
            end += segment_count(&self.queue.slots[end..]);
        }
        let copies = tx.copies_slots();
        if !copies {
            let Some(pool) = self.queue.backend.transfer_pool().cloned() else {
                return Ok(None);
            };
            if tx
                .transfer_pool()
                .is_none_or(|other| other.tag() != pool.tag())
            {
                return Ok(None);
            }
            self.queue.backend.before_transfer();
            if !tx.carries_metadata() {
                let slots = self.queue.slots[self.start..end].iter_mut();
                for slot in slots.filter(|slot| slot.has(Slot::VLAN)) {
                    restore_tag(slot, &pool);
                }
            }
        }
        let slots = &mut self.queue.slots[self.start..end];
        let Some(taken) = tx.transfer(slots)? else {
            return Ok(None);
        };
        let taken = &slots[..taken.min(slots.len())];
        let mut forwarded = Forwarded::default();
        for slot in taken {
            forwarded.packets += usize::from(!slot.has(Slot::CONTINUES));
            forwarded.bytes += u64::from(slot.cap_len());
            if slot.has(Slot::VLAN) {
                forwarded.bytes += Vlan::LEN as u64;
            }
        }
        self.start += taken.len();
        self.packets -= forwarded.packets;
        if copies {
            forwarded.copied = forwarded.packets;
            tx.counters().copied.add(forwarded.copied as u64);
        }
        Ok(Some(forwarded))
    }

    fn copy_packets(&mut self, tx: &mut TxQueue, count: usize) -> Result<Forwarded> {
        let len_of = |packet: &Packet<'_>| packet.cap_len() / BUFFER_LEN_MIN;
        let more: u32 = self.iter().take(count).map(|packet| len_of(&packet)).sum();
        let carries_metadata = tx.carries_metadata();
        let mut out = tx.reserve(count + more as usize)?;
        let mut forwarded = Forwarded::default();
        for packet in self.iter().take(count) {
            let written = match carries_metadata {
                true => write_with_metadata(&mut out, &packet),
                false => write(&mut out, &packet),
            };
            let Some(len) = written else {
                break;
            };
            forwarded.packets += 1;
            forwarded.bytes += len as u64;
        }
        out.submit()?;
        forwarded.copied = forwarded.packets;
        tx.counters().copied.add(forwarded.copied as u64);
        self.skip(forwarded.packets);
        Ok(forwarded)
    }
}

/// Copies a packet and what is known of it; its length with a tag, or `None` if there is no room.
fn write_with_metadata(out: &mut crate::tx::TxBatch<'_>, packet: &Packet<'_>) -> Option<usize> {
    let (first, len) = (out.filled(), packet.cap_len() as usize);
    let done = match packet.is_whole() {
        true => out.write(packet.bytes()),
        false => out.write_pieces(len, packet.segments()),
    };
    if !done {
        return None;
    }
    out.set_metadata(first, packet.head());
    Some(len + packet.vlan().map_or(0, |_| Vlan::LEN))
}

/// Copies a packet including its tag; returns its length, or `None` if there is no room.
fn write(out: &mut crate::tx::TxBatch<'_>, packet: &Packet<'_>) -> Option<usize> {
    let len = packet.cap_len() as usize;
    let Some(vlan) = packet.vlan() else {
        let done = match packet.is_whole() {
            true => out.write(packet.bytes()),
            false => out.write_pieces(len, packet.segments()),
        };
        return done.then_some(len);
    };
    let first = packet.bytes();
    let (addresses, rest) = first.split_at(first.len().min(Vlan::AT));
    let tag = vlan.bytes();
    let head = [addresses, &tag, rest].into_iter();
    let len = len + Vlan::LEN;
    out.write_pieces(len, head.chain(packet.segments().skip(1)))
        .then_some(len)
}

/// Restores the separate tag of a packet in the room before it, or if there is none in that after
/// it. A packet without either is made empty, which no device sends: without its tag it would reach
/// another network.
fn restore_tag(slot: &mut Slot, pool: &Pool) {
    slot.flags &= !Slot::VLAN;
    let place = slot.place_in(pool);
    let (before, behind) = place.map_or((0, 0), |(_, offset)| {
        let end = offset + slot.cap_len();
        (offset as usize, (pool.frame_len() - end) as usize)
    });
    // A packet that continues in another frame cannot grow in this one.
    let is_last = !slot.has(Slot::CONTINUES);
    let len = slot.cap_len() as usize;
    if len < Vlan::AT || before < Vlan::LEN && (behind < Vlan::LEN || !is_last) {
        slot.cut_to(0);
        return;
    }
    let tag = slot.vlan.bytes();
    let (data, longer) = (slot.data(), slot.cap_len() + Vlan::LEN as u32);
    // SAFETY: the slot's queue holds the frame, in which the packet has at least the two addresses
    // and so much room before or after it (checked above).
    unsafe {
        if before >= Vlan::LEN {
            slot.move_to(data.sub(Vlan::LEN), longer);
            ptr::copy(data.as_ptr(), slot.data().as_ptr(), Vlan::AT);
        } else {
            let rest = data.add(Vlan::AT);
            let moved = rest.add(Vlan::LEN);
            ptr::copy(rest.as_ptr(), moved.as_ptr(), len - Vlan::AT);
            slot.move_to(data, longer);
        }
        let place = slot.data().add(Vlan::AT);
        ptr::copy_nonoverlapping(tag.as_ptr(), place.as_ptr(), Vlan::LEN);
    }
    slot.wire_len += Vlan::LEN as u32;
}

#[cfg(test)]
mod tests;
