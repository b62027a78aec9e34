//! A packet or record that the writer takes from a bundle.

use port::file::Block;

use super::Held;
use super::bundle::Head;

/// A packet of a bundle: its bytes or its record.
pub(in crate::capture) struct Given<'a> {
    pub(in crate::capture) head: Head,
    pub(in crate::capture) bytes: &'a [u8],
    /// The last group of blocks that comes before it, if blocks are copied.
    pub(in crate::capture) group: u64,
}

impl<'a> Given<'a> {
    /// The packet, if its bytes are in the bundle.
    pub(in crate::capture) fn held(&self) -> Held<'a> {
        self.held_in(self.bytes)
    }

    /// The packet in its block, if that is in the bundle.
    pub(in crate::capture) fn held_in_block(&self) -> Held<'a> {
        let packet = Block::of(self.bytes).and_then(|block| self.bytes.get(block.packet()));
        self.held_in(packet.unwrap_or(&[]))
    }

    fn held_in(&self, bytes: &'a [u8]) -> Held<'a> {
        let Head { meta, cap_len, .. } = self.head;
        Held {
            time_ns: meta.time_ns,
            cap_len,
            wire_len: meta.wire_len,
            interface: meta.interface as u16,
            outgoing: meta.outgoing,
            vlan: meta.vlan,
            bytes,
        }
    }
}
