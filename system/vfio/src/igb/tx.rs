//! Sending (§7.2): advanced data descriptors.

use std::sync::Arc;

use sys::Result;

use super::queue_health;
use super::registers as reg;
use crate::dma::PoolDma;
use crate::driver::{Function, Health, Settings};
use crate::intel::{Descriptor, RingTx, TxFormat};
use crate::registers::Registers;

/// A sending queue.
pub type IgbTx<R> = RingTx<R, TxQueue>;

/// A queue's number.
pub struct TxQueue(u32);

impl TxFormat for TxQueue {
    const END: u64 = reg::TX_END;
    const REPORT: u64 = reg::TX_REPORT;
    const DONE: u64 = reg::TX_DONE;

    #[inline(always)]
    fn word(len: u32, packet_len: u32, is_last: bool) -> u64 {
        const KIND: u64 = reg::TX_DATA | reg::TX_EXTENDED | reg::TX_INSERT_CRC;
        let kind = if is_last { KIND | Self::END } else { KIND };
        // Lengths are shorter than their fields, so they can be added.
        (u64::from(packet_len) << reg::TX_PAYLOAD_SHIFT)
            .wrapping_add(u64::from(len))
            .wrapping_add(kind)
    }

    #[inline(always)]
    fn tail(&self) -> u32 {
        reg::tx(self.0, reg::TDT)
    }

    fn health<R: Registers>(&self, registers: &R, _ring_len: u32) -> Health {
        queue_health(registers.read32(reg::tx(self.0, reg::TDLEN)))
    }
}

/// §4.5.10, per queue; still disabled.
pub(super) fn prepare<F: Function>(
    regs: &F::Registers,
    function: &F,
    queue: u32,
    settings: &Settings,
    frames: &Arc<PoolDma>,
) -> Result<IgbTx<F::Registers>> {
    let count = settings.ring_len as usize;
    let area = Arc::new(function.dma().allocate(count * size_of::<Descriptor>())?);
    let at = |register| reg::tx(queue, register);
    regs.write32(at(reg::TXDCTL), 0);
    regs.write32(at(reg::TDBAL), area.iova(0) as u32);
    regs.write32(at(reg::TDBAH), (area.iova(0) >> 32) as u32);
    regs.write32(at(reg::TDLEN), (count * size_of::<Descriptor>()) as u32);
    regs.write32(at(reg::TDH), 0);
    regs.write32(at(reg::TDT), 0);
    let ring = area.array(0, count);
    let queue = TxQueue(queue);
    Ok(RingTx::new(regs.clone(), queue, ring, frames.clone()))
}
