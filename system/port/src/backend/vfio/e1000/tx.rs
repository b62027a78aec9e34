//! Sending: the legacy descriptors of section 3.3.3.
//!
//! ```text
//!         63        48 47  40 39 36 35  32 31    24 23  16 15        0
//!  word 0 |                  buffer address                          |
//!  word 1 | special   | CSS  | RSV | STA  | CMD    | CSO   | length  |
//! ```
//!
//! Only the last descriptor of a batch asks for a report (RS): the card works in order, so its DD
//! speaks for all before it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::dma::{DmaArray, PoolDma, after_done_flag, before_doorbell};
use super::super::driver::{DriverTx, Health, TxPart};
use super::super::registers::Registers;
use super::registers as reg;

/// Command (3.3.3.1): the packet ends here.
pub(super) const EOP: u64 = 1 << 24;
/// Append the frame check sequence; of a packet's last descriptor.
pub(super) const IFCS: u64 = 1 << 25;
/// Report when done.
pub(super) const RS: u64 = 1 << 27;
/// Status (3.3.3.2): done.
pub(super) const DD: u64 = 1 << 32;

/// The sending queue.
pub(crate) struct E1000Tx<G> {
    registers: G,
    ring: DmaArray<[AtomicU64; 2]>,
    /// The frame in each descriptor.
    held: Box<[u32]>,
    /// First descriptor not reclaimed, and next to be written; both only grow.
    head: u32,
    tail: u32,
    /// What the tail register holds.
    shown: u32,
    /// The last word written, which gets RS when the batch ends.
    last: u64,
    /// Positions with RS, in order; never more than the ring has entries.
    reports: VecDeque<u32>,
    frames: Arc<PoolDma>,
}

impl<G: Registers> E1000Tx<G> {
    pub(super) fn new(registers: G, ring: DmaArray<[AtomicU64; 2]>, frames: Arc<PoolDma>) -> Self {
        Self {
            registers,
            held: vec![u32::MAX; ring.len()].into(),
            reports: VecDeque::with_capacity(ring.len()),
            ring,
            head: 0,
            tail: 0,
            shown: 0,
            last: 0,
            frames,
        }
    }

    #[inline(always)]
    fn entry(&self, position: u32) -> usize {
        position as usize & (self.held.len() - 1)
    }
}

impl<G: Registers> DriverTx for E1000Tx<G> {
    fn ring_len(&self) -> u32 {
        self.held.len() as u32
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        // 3.4: as for receiving, head and tail are equal when the ring is empty.
        self.held.len() as u32 - 1 - self.tail.wrapping_sub(self.head)
    }

    fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline(always)]
    fn post(&mut self, part: TxPart) {
        debug_assert!(self.room() != 0, "the caller looks for room");
        let entry = self.entry(self.tail);
        self.held[entry] = part.index;
        let [address, word] = self.ring.ring_at(self.tail);
        let at = self.frames.address(part.index, part.offset);
        address.store(at, Ordering::Relaxed);
        let end = if part.is_last { EOP | IFCS } else { 0 };
        self.last = u64::from(part.len & 0xffff) | end;
        word.store(self.last, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        if self.shown == self.tail {
            return;
        }
        self.shown = self.tail;
        let last = self.tail.wrapping_sub(1);
        let [_, word] = self.ring.ring_at(last);
        word.store(self.last | RS, Ordering::Relaxed);
        self.reports.push_back(last);
        // 3.4: descriptors and packets before the tail that hands them over.
        before_doorbell();
        let entry = self.entry(self.tail) as u32;
        self.registers.write32(reg::TDT, entry);
    }

    #[inline]
    fn reclaim(&mut self, mut frame: impl FnMut(u32)) {
        while let Some(&report) = self.reports.front() {
            let [_, word] = self.ring.ring_at(report);
            if word.load(Ordering::Relaxed) & DD == 0 {
                break;
            }
            // 3.3.3.2: the card has read the packets when it says so.
            after_done_flag();
            self.reports.pop_front();
            let end = report.wrapping_add(1);
            while self.head != end {
                frame(self.held[self.entry(self.head)]);
                self.head = self.head.wrapping_add(1);
            }
        }
    }

    fn health(&mut self) -> Health {
        super::health(&self.registers, reg::TDLEN, self.ring_len())
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        while self.head != self.tail {
            frame(self.held[self.entry(self.head)]);
            self.head = self.head.wrapping_add(1);
        }
        self.reports.clear();
        self.shown = self.tail;
    }
}

#[cfg(test)]
impl<G> E1000Tx<G> {
    /// As the receiving side's.
    pub(super) fn begin_at(&mut self, position: u32) {
        assert_eq!(position as usize % self.held.len(), 0);
        (self.head, self.tail, self.shown) = (position, position, position);
    }
}
