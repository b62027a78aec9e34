//! Sending (§7.2): advanced data descriptors, one completion a batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::Result;

use super::registers as reg;
use super::{enable_queue, queue_health};
use crate::backend::vfio::dma::{DmaArray, PoolDma, after_done_flag, before_doorbell};
use crate::backend::vfio::driver::{DriverTx, Function, Health, Settings, TxPart};
use crate::backend::vfio::registers::Registers;

/// Two words: address, and what to do with it.
type Descriptor = [AtomicU64; 2];

/// What we remember of an entry.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// Its frame.
    index: u32,
    /// Of the first of a batch: the position of its last, which reports for all.
    batch_end: u32,
}

/// A sending queue.
pub(crate) struct IgbTx<R> {
    ring: DmaArray<Descriptor>,
    entries: Box<[Entry]>,
    /// Oldest entry not taken back, next to be written, and told to the card.
    clean: u32,
    tail: u32,
    published: u32,
    /// Second word of the descriptor written last.
    last: u64,
    frames: Arc<PoolDma>,
    regs: R,
    queue: u32,
}

impl<R: Registers> IgbTx<R> {
    /// §4.5.10, a queue's part.
    pub(super) fn start<F: Function<Registers = R>>(
        regs: &R,
        function: &F,
        queue: u32,
        settings: &Settings,
        frames: &Arc<PoolDma>,
    ) -> Result<Self> {
        let count = settings.ring_len as usize;
        let area = Arc::new(function.dma().allocate(count * size_of::<Descriptor>())?);
        let ring: DmaArray<Descriptor> = area.array(0, count);
        let at = |register| reg::tx(queue, register);
        regs.write32(at(reg::TXDCTL), 0);
        regs.write32(at(reg::TDBAL), ring.iova() as u32);
        regs.write32(at(reg::TDBAH), (ring.iova() >> 32) as u32);
        regs.write32(at(reg::TDLEN), (count * size_of::<Descriptor>()) as u32);
        regs.write32(at(reg::TDH), 0);
        regs.write32(at(reg::TDT), 0);
        enable_queue(regs, at(reg::TXDCTL), reg::TXDCTL_THRESHOLDS)?;
        Ok(Self {
            ring,
            entries: vec![Entry::default(); count].into(),
            clean: 0,
            tail: 0,
            published: 0,
            last: 0,
            frames: frames.clone(),
            regs: regs.clone(),
            queue,
        })
    }

    #[inline(always)]
    fn entry(&mut self, position: u32) -> &mut Entry {
        let at = position as usize & (self.entries.len() - 1);
        &mut self.entries[at]
    }
}

impl<R: Registers> DriverTx for IgbTx<R> {
    fn ring_len(&self) -> u32 {
        self.entries.len() as u32
    }

    #[inline]
    fn room(&self) -> u32 {
        self.entries.len() as u32 - 1 - self.pending()
    }

    #[inline]
    fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.clean)
    }

    #[inline(always)]
    fn post(&mut self, part: TxPart) {
        debug_assert!(self.room() != 0);
        let end = if part.is_last { reg::TX_END } else { 0 };
        let [address, rest] = self.ring.ring_at(self.tail);
        self.last = u64::from(part.len)
            | reg::TX_DATA
            | reg::TX_EXTENDED
            | reg::TX_INSERT_CRC
            | end
            | u64::from(part.packet_len) << reg::TX_PAYLOAD_SHIFT;
        address.store(
            self.frames.address(part.index, part.offset),
            Ordering::Relaxed,
        );
        rest.store(self.last, Ordering::Relaxed);
        self.entry(self.tail).index = part.index;
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        // §7.2.2.3: the last descriptor reports, and with it that all before it are done, since the
        // card fetches and sends in order.
        let last = self.tail.wrapping_sub(1);
        self.ring.ring_at(last)[1].store(self.last | reg::TX_REPORT, Ordering::Relaxed);
        let first = self.published;
        self.entry(first).batch_end = last;
        self.published = self.tail;
        // §7.2.2: descriptors and packets before the tail that gives them to the card.
        before_doorbell();
        let tail = self.tail & (self.entries.len() as u32 - 1);
        self.regs.write32(reg::tx(self.queue, reg::TDT), tail);
    }

    #[inline]
    fn reclaim(&mut self, mut frame: impl FnMut(u32)) {
        while self.clean != self.published {
            let last = self.entry(self.clean).batch_end;
            if self.ring.ring_at(last)[1].load(Ordering::Relaxed) & reg::TX_DONE == 0 {
                break;
            }
            // The frames are written again after this, not before the card has read them.
            after_done_flag();
            let end = last.wrapping_add(1);
            while self.clean != end {
                frame(self.entry(self.clean).index);
                self.clean = self.clean.wrapping_add(1);
            }
        }
    }

    fn health(&mut self) -> Health {
        queue_health(self.regs.read32(reg::tx(self.queue, reg::TDLEN)))
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        while self.clean != self.tail {
            frame(self.entry(self.clean).index);
            self.clean = self.clean.wrapping_add(1);
        }
    }
}
