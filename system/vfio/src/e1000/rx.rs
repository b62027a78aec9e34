//! Receiving: the legacy descriptors of section 3.2.3, one packet in one or (if larger than a
//! buffer) in several.
//!
//! ```text
//!         63        48 47    40 39    32 31             16 15        0
//!  word 0 |                  buffer address                          |
//!  word 1 | special   | errors | status | packet checksum | length   |
//! ```
//!
//! The driver writes the tail, the card the head (3.2.6). Completion is detected by a descriptor's
//! DD bit (3.2.4: the card writes it last) and never by reading the head register, which 13.4.28
//! warns about. All descriptors of a packet but the last lack EOP (3.2.4).

use ring::slot::Slot;

use super::super::driver::Health;
use super::super::intel::{RingRx, RxFormat};
use super::super::registers::Registers;
use super::registers as reg;

/// Status (3.2.3.1): the descriptor is done.
pub(super) const DD: u64 = 1 << 32;
/// The packet ends in it.
pub(super) const EOP: u64 = 1 << 33;
/// The checksum bits are invalid.
pub(super) const IXSM: u64 = 1 << 34;
/// The packet had a VLAN tag, which is now in `special`.
pub(super) const VP: u64 = 1 << 35;
/// The TCP or UDP checksum was checked.
pub(super) const TCPCS: u64 = 1 << 37;
/// The IP checksum was checked.
pub(super) const IPCS: u64 = 1 << 38;
/// Errors (3.2.3.2): the TCP or UDP checksum is wrong.
pub(super) const TCPE: u64 = 1 << 45;
/// The IP checksum is wrong.
pub(super) const IPE: u64 = 1 << 46;
/// Errors of the frame: CRC or alignment, symbol, sequence, carrier extension, data.
pub(super) const FRAME_ERRORS: u64 = (1 << 0 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 7) << 40;
/// Distance between a checksum's error bit and the bit that it was checked.
const ERROR_SHIFT: u32 = 8;
/// Position of the status.
const STATUS_SHIFT: u32 = 32;
/// Position of `special`.
pub(super) const SPECIAL_SHIFT: u32 = 48;

/// Length of a buffer (13.4.22: BSIZE 0, BSEX 0).
pub(super) const BUFFER_LEN: u32 = 2048;

/// The tag protocol in VET.
const VLAN_TPID: u64 = 0x8100;

/// Offset at which the card writes in a frame of this length: frames of 4096 have headroom.
pub(super) fn headroom(frame_len: u32) -> u32 {
    (frame_len - BUFFER_LEN).min(256)
}

/// The receiving queue.
pub type E1000Rx<G> = RingRx<G, RxQueue>;

/// The only queue.
pub struct RxQueue;

impl RxFormat for RxQueue {
    const DONE: u64 = DD;
    const END: u64 = EOP;
    const ERRORS: u64 = FRAME_ERRORS;
    const ODD: u64 = TCPE | IPE;
    const LEN_SHIFT: u32 = 0;
    const INFO: u64 = 0xffff << SPECIAL_SHIFT;
    const ALWAYS: u64 = VLAN_TPID << 32;

    #[inline(always)]
    fn hash(_first: u64) -> u64 {
        0
    }

    #[inline(always)]
    fn info(word: u64, mask: u64) -> u64 {
        const { assert!(Slot::VLAN as u64 == VP >> STATUS_SHIFT) };
        const { assert!(Slot::CHECKSUM_GOOD as u64 == TCPCS >> STATUS_SHIFT) };
        // IXSM (set for everything except TCP or UDP over IPv4) disables TCPCS.
        const { assert!(IXSM << 3 == TCPCS) };
        let status = (word >> STATUS_SHIFT) as u32;
        let ignored = (status & (IXSM >> STATUS_SHIFT) as u32) << 3;
        let flags = status & !ignored & ((VP | TCPCS) >> STATUS_SHIFT) as u32;
        // 9.2.1: the unchanged tag, at bit 48, after the EtherType in VET.
        word & mask | u64::from(flags)
    }

    fn odd_info(word: u64) -> u64 {
        const { assert!(TCPE == TCPCS << ERROR_SHIFT && IPE == IPCS << ERROR_SHIFT) };
        let info = Self::info(word, Self::INFO) & !u64::from(Slot::CHECKSUM_GOOD);
        if word & IXSM != 0 {
            return info;
        }
        // 3.2.3.2: an error is valid if its checksum was checked.
        let looked = word & (TCPCS | IPCS);
        if looked & word >> ERROR_SHIFT != 0 {
            return info | u64::from(Slot::CHECKSUM_BAD);
        }
        info | (looked & TCPCS) >> STATUS_SHIFT
    }

    #[inline(always)]
    fn tail(&self) -> u32 {
        reg::RDT
    }

    fn health<G: Registers>(&self, registers: &G, ring_len: u32) -> Health {
        super::health(registers, reg::RDLEN, ring_len)
    }

    fn arm<G: Registers>(&self, registers: &G) {
        // 13.4.17: clears earlier causes; a packet that arrived with one is found by the caller's
        // subsequent check.
        registers.read32(reg::ICR);
        let causes = reg::INT_RXT0 | reg::INT_RXO | reg::INT_RXDMT0;
        registers.write32(reg::IMS, causes);
    }

    fn disarm<G: Registers>(&self, registers: &G) {
        registers.write32(reg::IMC, u32::MAX);
    }
}
