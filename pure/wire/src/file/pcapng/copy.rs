//! Blocks that are copied as they are: what they are, where they end, and the few changes that a
//! copy may need.

use core::ops::Range;

use super::super::{Order, at};
use super::{AROUND, BYTE_ORDER_MARK, block};

/// Kind of a block, as far as a copy has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// The start of a section.
    Section,
    /// An interface.
    Interface,
    /// A packet, of any of the three kinds.
    Packet,
    /// Names of addresses, or secrets: what readers need for the packets after it.
    Lasting,
    /// Anything else.
    Other,
}

/// A block at the start of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its kind.
    pub kind: BlockKind,
    /// Its length, padding included.
    pub len: usize,
    /// Number of captured bytes in it, for a packet.
    pub cap_len: u32,
    packet_at: usize,
    order: Order,
}

/// Whether these bytes are one block.
pub fn is_block(bytes: &[u8]) -> bool {
    Block::of(bytes).is_some_and(|block| block.len == bytes.len())
}

impl Block {
    /// The whole block at the start of `bytes`, in either byte order: the order in which its two
    /// lengths agree.
    pub fn of(bytes: &[u8]) -> Option<Block> {
        [Order::Little, Order::Big]
            .into_iter()
            .find_map(|order| Block::in_order(bytes, order))
    }

    fn in_order(bytes: &[u8], order: Order) -> Option<Block> {
        let (kind, stated) = (order.u32(at(bytes, 0)), order.u32(at(bytes, 4)));
        let len = stated.checked_next_multiple_of(4)? as usize;
        if len < AROUND || len > bytes.len() || order.u32(at(bytes, len - 4)) != stated {
            return None;
        }
        let (mut cap_len, mut packet_at) = (0, 0);
        let kind = match kind {
            block::SECTION if order.u32(at(bytes, 8)) == BYTE_ORDER_MARK => BlockKind::Section,
            block::SECTION => return None,
            block::INTERFACE => BlockKind::Interface,
            block::PACKET | block::OLD_PACKET => {
                (cap_len, packet_at) = (order.u32(at(bytes, 20)), 28);
                BlockKind::Packet
            }
            block::SIMPLE_PACKET => {
                packet_at = 12;
                cap_len = (len as u32).saturating_sub(16).min(order.u32(at(bytes, 8)));
                BlockKind::Packet
            }
            block::NAMES | block::SECRETS => BlockKind::Lasting,
            _ => BlockKind::Other,
        };
        Some(Block {
            kind,
            len,
            cap_len,
            packet_at,
            order,
        })
    }

    /// The range of the packet in the block; empty if it has none.
    pub fn packet(&self) -> Range<usize> {
        self.packet_at..self.packet_at + self.cap_len as usize
    }

    fn bytes_of(&self, value: u32) -> [u8; 4] {
        match self.order {
            Order::Big => value.to_be_bytes(),
            Order::Little => value.to_le_bytes(),
        }
    }

    /// Makes the length of a section unspecified, for a copy that may leave blocks out. `bytes` are
    /// the block.
    pub fn clear_section_len(&self, bytes: &mut [u8]) {
        if let (BlockKind::Section, Some(len)) = (self.kind, bytes.get_mut(16..24)) {
            len.fill(0xff);
        }
    }

    /// Limits the snapshot length of an interface. `bytes` are the block.
    pub fn limit_snaplen(&self, bytes: &mut [u8], limit: u32) {
        if let (BlockKind::Interface, Some(snaplen)) = (self.kind, bytes.get_mut(12..16)) {
            let stated = self.order.u32(at(snaplen, 0));
            if stated == 0 || stated > limit {
                snaplen.copy_from_slice(&self.bytes_of(limit));
            }
        }
    }

    /// Copies a packet's block to `out` with only the first `keep` bytes of its packet, which is at
    /// `offset`; returns the length. `None` if the bytes are no such block, or `out` is shorter.
    pub fn cut_packet(
        &self,
        bytes: &[u8],
        offset: usize,
        keep: u32,
        out: &mut [u8],
    ) -> Option<usize> {
        let keep = keep.min(self.cap_len);
        let kept_end = offset.checked_add(keep as usize)?;
        let data = bytes.get(..kept_end)?;
        let whole_end = offset
            .checked_add(self.cap_len as usize)?
            .next_multiple_of(4);
        let options = bytes.get(whole_end..self.len.checked_sub(4)?)?;
        let padded = kept_end.next_multiple_of(4);
        let len = padded + options.len() + 4;
        let out = out.get_mut(..len)?;
        out.get_mut(..kept_end)?.copy_from_slice(data);
        out.get_mut(kept_end..padded)?.fill(0);
        out.get_mut(padded..len - 4)?.copy_from_slice(options);
        let stated = self.bytes_of(u32::try_from(len).ok()?);
        out.get_mut(len - 4..)?.copy_from_slice(&stated);
        out.get_mut(4..8)?.copy_from_slice(&stated);
        if self.order.u32(at(bytes, 0)) != block::SIMPLE_PACKET {
            let kept = self.bytes_of(keep);
            out.get_mut(20..24)?.copy_from_slice(&kept);
        }
        Some(len)
    }
}
