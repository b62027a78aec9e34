//! Sending: the legacy descriptors of section 3.3.3.
//!
//! ```text
//!         63        48 47  40 39 36 35  32 31    24 23  16 15        0
//!  word 0 |                  buffer address                          |
//!  word 1 | special   | CSS  | RSV | STA  | CMD    | CSO   | length  |
//! ```

use super::super::driver::Health;
use super::super::intel::{RingTx, TxFormat};
use super::super::registers::Registers;
use super::registers as reg;

/// Command (3.3.3.1): end of the packet.
pub(super) const EOP: u64 = 1 << 24;
/// Append the frame check sequence; set in a packet's last descriptor.
pub(super) const IFCS: u64 = 1 << 25;
/// Report when done.
pub(super) const RS: u64 = 1 << 27;
/// Status (3.3.3.2): done.
pub(super) const DD: u64 = 1 << 32;

/// The sending queue.
pub type E1000Tx<G> = RingTx<G, TxQueue>;

/// The only queue.
pub struct TxQueue;

impl TxFormat for TxQueue {
    const END: u64 = EOP;
    const REPORT: u64 = RS;
    const DONE: u64 = DD;

    #[inline(always)]
    fn word(len: u32, _packet_len: u32, is_last: bool) -> u64 {
        let end = if is_last { EOP | IFCS } else { 0 };
        u64::from(len & 0xffff) | end
    }

    #[inline(always)]
    fn tail(&self) -> u32 {
        reg::TDT
    }

    fn health<G: Registers>(&self, registers: &G, ring_len: u32) -> Health {
        super::health(registers, reg::TDLEN, ring_len)
    }
}
