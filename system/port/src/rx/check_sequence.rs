//! Frame check sequences: a card removes them, a capture file may contain them.

use super::Packet;

impl Packet<'_> {
    /// Length of the frame check sequence at the end of the packet on the wire, which
    /// [`wire_len`](Self::wire_len) includes: 0 unless a capture file states that it is there.
    #[inline]
    pub fn fcs_len(&self) -> u32 {
        self.head().fcs_len()
    }
}
