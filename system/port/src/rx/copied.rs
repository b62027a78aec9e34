//! What capture files say of a packet, for programs that copy them.

use ring::slot::Slot;

use super::Packet;

impl<'b> Packet<'b> {
    /// Whether the host itself sent it, if a capture file has its direction; a live port knows
    /// it of every packet.
    #[inline]
    pub fn recorded_outgoing(&self) -> Option<bool> {
        let head = self.head();
        match head.has(Slot::OUTGOING) {
            true => Some(true),
            false => head.has(Slot::INCOMING).then_some(false),
        }
    }

    /// The block of a pcapng file that holds the packet, and the packet's offset in it: with
    /// [`PortOptions::copies_blocks`](crate::PortOptions::copies_blocks).
    #[inline]
    pub fn block(&self) -> Option<(&'b [u8], usize)> {
        let head = self.head();
        if !head.has(Slot::BLOCK) {
            return None;
        }
        let (len, offset) = ((head.token() >> 32) as usize, head.token() as u32 as usize);
        // SAFETY: the file's backend sets the flag only with the extent of a block that its reader
        // found whole around the packet, in memory that the batch owns.
        let block = unsafe {
            let start = head.data().as_ptr().sub(offset);
            std::slice::from_raw_parts(start, len)
        };
        Some((block, offset))
    }

    /// Whether other blocks to copy come before the packet's in its file.
    #[inline]
    pub fn follows_blocks(&self) -> bool {
        self.head().has(Slot::AFTER_BLOCKS)
    }
}
