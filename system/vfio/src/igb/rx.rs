//! Receiving (§7.1): advanced descriptors with one buffer, written back by the card in place.

use std::sync::Arc;

use ring::slot::Slot;
use sys::Result;

use super::queue_health;
use super::registers as reg;
use crate::dma::PoolDma;
use crate::driver::{Function, Health, Settings};
use crate::intel::{Descriptor, RingRx, RxFormat, RxParts};
use crate::registers::Registers;

/// Headroom in a frame of 4096 bytes, as in AF_XDP. Buffers are whole KiB (§8.10.2), so a frame of
/// 2048 bytes has no headroom.
const HEADROOM: u32 = 256;

/// The tag protocol that the card recognizes (VET, §8.2.7, as left by a reset).
const VLAN_TPID: u64 = 0x8100;

/// A receiving queue.
pub type IgbRx<R> = RingRx<R, RxQueue>;

/// A queue's number and its interrupt vector, if it has one.
pub struct RxQueue {
    queue: u32,
    vector: Option<u32>,
}

impl RxFormat for RxQueue {
    const DONE: u64 = reg::RX_DONE;
    const END: u64 = reg::RX_END;
    const ERRORS: u64 = reg::RX_ERROR;
    const ODD: u64 = reg::RX_TRANSPORT_ERROR | reg::RX_IP_ERROR;
    // (Damaged in transit by a device that recomputed the frame check sequence.)
    const LEN_SHIFT: u32 = 32;
    const INFO: u64 = 0xffff << 48 | reg::RX_VLAN | reg::RX_TRANSPORT_CHECKED;
    const ALWAYS: u64 = VLAN_TPID << 32;

    #[inline(always)]
    fn hash(first: u64) -> u64 {
        // §7.1.5.2: type of the hash in bits 3:0, the hash in the upper half: the same as in a
        // slot.
        first
    }

    #[inline(always)]
    fn info(word: u64, mask: u64) -> u64 {
        const { assert!(Slot::VLAN as u64 == reg::RX_VLAN) };
        const { assert!(Slot::CHECKSUM_GOOD as u64 == reg::RX_TRANSPORT_CHECKED) };
        // The tag is at bit 48 there as well.
        word & mask
    }

    fn odd_info(word: u64) -> u64 {
        let info = Self::info(word, Self::INFO);
        match word & Self::ODD {
            0 => info,
            _ => info & !reg::RX_TRANSPORT_CHECKED | u64::from(Slot::CHECKSUM_BAD),
        }
    }

    #[inline(always)]
    fn tail(&self) -> u32 {
        reg::rx(self.queue, reg::RDT)
    }

    fn health<R: Registers>(&self, registers: &R, _ring_len: u32) -> Health {
        queue_health(registers.read32(reg::rx(self.queue, reg::RDLEN)))
    }

    fn arm<R: Registers>(&self, registers: &R) {
        let Some(vector) = self.vector else { return };
        // Clears the old cause, then the mask; the read returns when both are done, after all
        // earlier writes of the card to memory (§7.3.4).
        registers.write32(reg::EICR, 1 << vector);
        registers.write32(reg::EIMS, 1 << vector);
        registers.read32(reg::EIMS);
    }

    fn disarm<R: Registers>(&self, registers: &R) {
        if let Some(vector) = self.vector {
            registers.write32(reg::EIMC, 1 << vector);
        }
    }
}

/// Offset at which the card writes in a frame of this length.
pub(super) fn headroom(frame_len: u32) -> u32 {
    match frame_len {
        4096.. => HEADROOM,
        _ => 0,
    }
}

/// §4.5.9, per queue: memory, length, type of descriptors; still disabled.
pub(super) fn prepare<F: Function>(
    regs: &F::Registers,
    function: &F,
    (queue, vector): (u32, Option<u32>),
    settings: &Settings,
    frames: &Arc<PoolDma>,
) -> Result<IgbRx<F::Registers>> {
    let count = settings.ring_len as usize;
    let area = Arc::new(function.dma().allocate(count * size_of::<Descriptor>())?);
    let headroom = headroom(settings.frame_len);
    let room_kib = (settings.frame_len - headroom) / 1024;
    let at = |register| reg::rx(queue, register);
    regs.write32(at(reg::RXDCTL), 0);
    regs.write32(at(reg::RDBAL), area.iova(0) as u32);
    regs.write32(at(reg::RDBAH), (area.iova(0) >> 32) as u32);
    regs.write32(at(reg::RDLEN), (count * size_of::<Descriptor>()) as u32);
    // A stalled queue must not hold up the others (§7.1.4.3), and its losses are counted by queue.
    let kind = reg::SRRCTL_ONE_BUFFER | reg::SRRCTL_DROP;
    regs.write32(at(reg::SRRCTL), room_kib | kind);
    regs.write32(at(reg::RDH), 0);
    regs.write32(at(reg::RDT), 0);
    Ok(RingRx::new(RxParts {
        registers: regs.clone(),
        format: RxQueue { queue, vector },
        ring: area.array(0, count),
        frames: frames.clone(),
        headroom,
        buffer_len: room_kib * 1024,
        packet_len_max: settings.packet_len_max,
    }))
}
