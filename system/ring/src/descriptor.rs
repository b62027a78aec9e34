//! The entry of a packet in a ring between threads or processes: its frame, its position in the
//! frame, and its metadata. The packet's bytes are not moved.

use crate::slot::Slot;

/// A packet, or one segment of it: 40 bytes. Every bit pattern is a valid value, so a descriptor
/// written by another process can be read without parsing, but its fields must be checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Index of the frame.
    pub index: u32,
    /// Offset of the first byte in the frame.
    pub offset: u32,
    /// Number of bytes in the frame.
    pub cap_len: u32,
    /// Number of bytes of the packet on the wire.
    pub wire_len: u32,
    /// The same as in a slot.
    pub time_ns: u64,
    /// The same as in a slot.
    pub hash: u64,
    /// Flags, interface and tag, as in [`Slot::info`].
    pub info: u64,
}

impl Descriptor {
    /// Creates the descriptor of a slot whose bytes start at `offset` in frame `index`.
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

    /// Metadata of a packet with this length on the wire, and this hash of its flow, 0 if unknown.
    /// [`or_time`](Self::or_time) sets its time.
    pub fn with_hash(wire_len: u32, hash: u32) -> Self {
        Self {
            wire_len,
            hash: if hash == 0 { 0 } else { Slot::hash_of(hash) },
            ..Self::default()
        }
    }

    /// Returns the same packet, of which this descriptor is not the last part.
    pub fn continued(mut self) -> Self {
        self.info |= u64::from(Slot::CONTINUES);
        self
    }

    /// Returns the same packet with this time, if it has none.
    #[inline(always)]
    pub fn or_time(mut self, time_ns: u64) -> Self {
        if self.info & u64::from(Slot::TIME) == 0 && time_ns != 0 {
            self.time_ns = time_ns;
            self.info |= u64::from(Slot::TIME);
        }
        self
    }

    /// Whether the packet continues in the next descriptor.
    #[inline(always)]
    pub fn continues(&self) -> bool {
        self.info & u64::from(Slot::CONTINUES) != 0
    }
}
