//! Hands over packets without their tunnel headers, to those applications that want this.
//!
//! If no other application is to receive the packet, its frame is handed over with another start,
//! and where an Ethernet header is missing, it is written over the end of the tunnel's header. If
//! another one is, the packet inside is copied to a frame of its own. Without a free frame, and for
//! packets in several frames that others receive as well, the tunnel's header stays.

use ring::shared::OwnerEnd;
use ring::slot::Slot;
use ring::{Frame, Pool};
use wire::Decapsulated;

use super::cleanup::Detunnel;
use super::mover::Out;

impl Out {
    /// Hands each packet to one queue of every application, one after the other.
    pub(super) fn hand_each(&mut self) {
        let mut frames = std::mem::take(&mut self.frames);
        let pool = self.cache.pool().clone();
        let mut run = frames.drain(..);
        let mut chain = std::mem::take(&mut self.chain);
        while let Some(first) = run.next() {
            let mut continues = pool.continues(&first);
            chain.push(first);
            while continues && let Some(frame) = run.next() {
                continues = pool.continues(&frame);
                chain.push(frame);
            }
            self.hand_one(&pool, &mut chain);
            for frame in chain.drain(..) {
                // A frame of this pool is accepted.
                let _ = self.cache.give(frame);
            }
        }
        drop(run);
        (self.frames, self.chain) = (frames, chain);
    }

    /// Hands over one packet. Frames that remain were not handed over.
    fn hand_one(&mut self, pool: &Pool, chain: &mut Vec<Frame>) {
        let mut selected = self.selector.select(pool, chain, &self.readers);
        let detunnelled = self.selector.detunnelled();
        // All at once: while a queue without room is waited for, the selector may see packets that
        // readers have sent.
        let insides: [_; 2] = std::array::from_fn(|at| {
            let is_wanted = selected & detunnelled[at] != 0;
            let kind = Detunnel::ALL[at];
            is_wanted.then(|| self.selector.inside(pool, &chain[0], kind))?
        });
        for (inside, queues) in insides.into_iter().zip(detunnelled) {
            let queues = selected & queues;
            let Some(inside) = inside.filter(|_| queues != 0) else {
                continue;
            };
            if queues == selected {
                strip(pool, &mut chain[0], &inside);
                self.count_detunnelled(queues, false);
                break;
            }
            if chain.len() == 1
                && let Some(copy) = self.copy(pool, &chain[0], &inside)
            {
                self.count_detunnelled(queues, true);
                selected &= !queues;
                let queues = self.with_room(queues, 1);
                if let Err(frame) = OwnerEnd::hand_frame(&mut self.ends, queues, copy) {
                    let _ = self.cache.give(frame);
                }
            }
        }
        let selected = self.with_room(selected, chain.len() as u32);
        OwnerEnd::hand_frames(&mut self.ends, selected, chain);
    }

    /// Counts a packet without tunnel headers for the applications of these queues.
    fn count_detunnelled(&mut self, queues: u64, is_copied: bool) {
        let groups = self.groups.iter_mut();
        for group in groups.filter(|group| group.queues & queues != 0) {
            group.detunnelled += 1;
            group.copied += u64::from(is_copied);
        }
    }

    /// Copies the packet inside to a frame of its own, if one is free.
    fn copy(&mut self, pool: &Pool, frame: &Frame, inside: &Decapsulated) -> Option<Frame> {
        let bytes = pool.bytes(frame).get(inside.offset as usize..)?;
        let bytes = bytes.get(..inside.cap_len as usize).unwrap_or(bytes);
        let header: &[u8] = inside.header.as_ref().map_or(&[], |header| header);
        let len = header.len() + bytes.len();
        if len > pool.frame_len() as usize {
            return None;
        }
        let mut copy = self.cache.take()?;
        pool.set_range(&mut copy, 0, len as u32);
        let (head, rest) = pool.bytes_mut(&mut copy).split_at_mut(header.len());
        head.copy_from_slice(header);
        rest.copy_from_slice(bytes);
        keep_metadata(pool, frame, &mut copy, inside);
        Some(copy)
    }
}

/// Moves the start of the packet to the one inside.
fn strip(pool: &Pool, frame: &mut Frame, inside: &Decapsulated) {
    let header: &[u8] = inside.header.as_ref().map_or(&[], |header| header);
    let before = pool.descriptor(frame);
    // The rest of a packet in several frames has no trailer that could be distinguished.
    let rest = before.cap_len.saturating_sub(inside.offset);
    let len = if before.continues() {
        rest
    } else {
        rest.min(inside.cap_len)
    };
    let Some(start) = inside.offset.checked_sub(header.len() as u32) else {
        return;
    };
    pool.set_range(frame, before.offset + start, len + header.len() as u32);
    pool.bytes_mut(frame)[..header.len()].copy_from_slice(header);
    let mut after = before;
    after.wire_len = wire_len(inside);
    after.info = inner_info(before.info);
    pool.set_metadata(frame, &after);
}

fn wire_len(inside: &Decapsulated) -> u32 {
    inside.wire_len + inside.header.map_or(0, |header| header.len() as u32)
}

/// The metadata of the packet inside: the tag was the outer one's, and so was the checksum that the
/// card has tested. One that the sender's kernel left to a card may still be incomplete.
fn inner_info(info: u64) -> u64 {
    let tested = u64::from(Slot::CHECKSUM_GOOD | Slot::CHECKSUM_BAD);
    let is_tagged = info & u64::from(Slot::VLAN) != 0;
    let info = info & !tested & !u64::from(Slot::VLAN);
    if is_tagged {
        info & u64::from(u32::MAX)
    } else {
        info
    }
}

fn keep_metadata(pool: &Pool, from: &Frame, to: &mut Frame, inside: &Decapsulated) {
    let mut metadata = pool.descriptor(from);
    metadata.wire_len = wire_len(inside);
    metadata.info = inner_info(metadata.info);
    pool.set_metadata(to, &metadata);
}
