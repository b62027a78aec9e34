//! What a ring between threads or processes carries of each packet: which frame, where in it the
//! packet lies, and all that is known of it. The bytes stay where they are.

use crate::slot::Slot;

/// A packet, or one piece of it: 40 bytes. Any bit pattern is a value, so one that another process
/// wrote can be read as it is; its numbers have to be checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Its frame.
    pub index: u32,
    /// First byte in the frame.
    pub offset: u32,
    /// Bytes in the frame.
    pub cap_len: u32,
    /// Bytes of the packet on the wire.
    pub wire_len: u32,
    /// As in a slot.
    pub time_ns: u64,
    /// As in a slot.
    pub hash: u64,
    /// Flags, interface and tag, as [`Slot::info`] has them.
    pub info: u64,
}

impl Descriptor {
    /// That of a slot whose bytes begin at `offset` in frame `index`.
    #[inline(always)]
    pub fn of(slot: &Slot, index: u32, offset: u32) -> Self {
        Self {
            index,
            offset,
            cap_len: slot.cap_len(),
            wire_len: slot.wire_len,
            time_ns: slot.time_ns,
            hash: slot.hash,
            info: slot.info(),
        }
    }

    /// The same packet with this time, if it has none.
    #[inline(always)]
    pub fn or_time(mut self, time_ns: u64) -> Self {
        if self.info & u64::from(Slot::TIME) == 0 && time_ns != 0 {
            self.time_ns = time_ns;
            self.info |= u64::from(Slot::TIME);
        }
        self
    }

    /// Whether the packet continues in the next one.
    #[inline(always)]
    pub fn continues(&self) -> bool {
        self.info & u64::from(Slot::CONTINUES) != 0
    }
}
