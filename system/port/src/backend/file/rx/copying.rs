//! Packets whose blocks are copied to another file.

use ring::slot::Slot;

/// Blocks and packets that are copied to another file.
#[derive(Default)]
pub(super) struct Copying {
    pub(super) is_on: bool,
    /// Number of groups of blocks before packets.
    pub(super) groups: u64,
    /// Whether there are blocks that come before the next packet.
    pub(super) is_due: bool,
}

impl Copying {
    /// The slot with the extent of its block, and marked if other blocks come before it.
    ///
    /// # Safety
    /// The packet is at `offset` in a block of `len` bytes, which is valid as the packet is.
    pub(super) unsafe fn mark(&mut self, slot: &Slot, len: usize, offset: usize) -> Slot {
        let token = (len as u64) << 32 | offset as u64;
        // SAFETY: the same bytes.
        let mut marked = unsafe { Slot::over(slot.data(), slot.cap_len(), slot.wire_len, token) };
        marked.set_metadata_of(slot);
        marked.flags |= Slot::BLOCK;
        if std::mem::take(&mut self.is_due) {
            self.groups += 1;
            marked.flags |= Slot::AFTER_BLOCKS;
        }
        marked
    }
}
