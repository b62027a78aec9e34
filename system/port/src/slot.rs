//! One packet's place (or one segment of a large packet) in a batch.

use std::ptr::NonNull;

use ring::Pool;

/// A VLAN tag that the card or the kernel took out of the packet and reports beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Tag protocol: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority, drop eligibility and id (IEEE 802.1Q §9.6).
    pub tci: u16,
}

/// What the card says of a packet's IP and transport checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing: it did not look, or does not know the protocol.
    Unknown,
    /// Those that it checked are right.
    Good,
    /// One of them is wrong.
    Bad,
    /// The transport checksum covers only the pseudo header so far: the packet never was on a wire.
    Partial,
}

/// What a backend fills in for each packet. One cache line holds a slot, so a batch walks memory
/// once.
///
/// Only backends see slots; programs see [`Packet`](crate::Packet), whose lifetime is the batch's.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    pub(crate) data: NonNull<u8>,
    pub(crate) cap_len: u32,
    pub(crate) wire_len: u32,
    pub(crate) time_ns: u64,
    /// Whatever the backend needs to release the slot: a frame's index, a block's number.
    pub(crate) token: u64,
    pub(crate) rss_hash: u32,
    pub(crate) vlan: Vlan,
    pub(crate) interface_index: u16,
    pub(crate) flags: u16,
}

// SAFETY: a slot is a description of memory that its queue owns; it moves between threads only with
// that queue.
unsafe impl Send for Slot {}

impl Slot {
    /// `time_ns` holds a time.
    pub(crate) const TIME: u16 = 1 << 0;
    /// `rss_hash` holds the card's hash.
    pub(crate) const HASH: u16 = 1 << 1;
    /// `vlan` holds a tag.
    pub(crate) const VLAN: u16 = 1 << 2;
    /// The host sent this packet (a tap sees both directions).
    pub(crate) const OUTGOING: u16 = 1 << 3;
    /// The packet goes on in the next slot.
    pub(crate) const CONTINUES: u16 = 1 << 4;
    /// The card has checked the packet's checksums, and they are right.
    pub(crate) const CHECKSUM_GOOD: u16 = 1 << 5;
    /// The card has checked the packet's checksums, and one is wrong.
    pub(crate) const CHECKSUM_BAD: u16 = 1 << 6;
    /// The transport checksum is not finished: it came from a program on the same machine.
    pub(crate) const CHECKSUM_PARTIAL: u16 = 1 << 7;

    /// The token of a slot whose frame has gone elsewhere: there is nothing to release.
    pub(crate) const DETACHED: u64 = u64::MAX;

    /// A slot over `cap_len` bytes at `data`, without metadata.
    #[inline]
    pub(crate) fn new(data: NonNull<u8>, cap_len: u32, wire_len: u32, token: u64) -> Self {
        Self {
            data,
            cap_len,
            wire_len,
            time_ns: 0,
            token,
            rss_hash: 0,
            vlan: Vlan { tpid: 0, tci: 0 },
            interface_index: 0,
            flags: 0,
        }
    }

    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Where its bytes lie in a pool: which frame, and how far from the frame's start. `None` if
    /// they are not within one frame of it, or if the frame has gone elsewhere.
    #[inline]
    pub(crate) fn place_in(&self, pool: &Pool) -> Option<(u32, u32)> {
        if self.token == Self::DETACHED {
            return None;
        }
        let addr = (self.data.as_ptr() as usize).checked_sub(pool.base().as_ptr() as usize)?;
        let (index, offset) = pool.locate(addr as u64)?;
        (self.cap_len <= pool.frame_len() - offset).then_some((index, offset))
    }
}

/// Slots that make up the first packet.
#[inline]
pub(crate) fn segment_count(slots: &[Slot]) -> usize {
    let mut count = 1;
    while count < slots.len() && slots[count - 1].has(Slot::CONTINUES) {
        count += 1;
    }
    count
}

/// How many of the first `room` slots are whole packets.
#[inline]
pub(crate) fn whole_packets(slots: &[Slot], room: usize) -> usize {
    let mut count = room.min(slots.len());
    while count != 0 && slots[count - 1].has(Slot::CONTINUES) {
        count -= 1;
    }
    count
}

const _: () = assert!(size_of::<Slot>() <= 64, "a slot fits a cache line");
