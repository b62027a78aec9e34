//! Packets whose blocks are copied from another file.

use port::Packet;
use port::file::{Block, Record};

use super::bundle::{HEAD_LEN, Head};
use super::{Contents, Inlet};

impl Inlet {
    /// As [`Inlet::put`], for a packet whose block is copied as it is, or shortened.
    pub(super) fn put_block(
        &mut self,
        packet: &Packet<'_>,
        (bytes, offset): (&[u8], usize),
        time_ns: u64,
        stamp_ms: u32,
    ) -> bool {
        let meta = Record {
            time_ns,
            wire_len: packet.wire_len(),
            interface: packet.interface_index().into(),
            outgoing: self.filling.way_of(packet),
            vlan: None,
        };
        let head_len = match self.filling.contents {
            Contents::Records(_) => 0,
            Contents::Packets | Contents::Headed(_) => HEAD_LEN,
        };
        // An incomplete block of a pcapng file has no packet in it.
        let Some(block) = Block::of(bytes) else {
            return true;
        };
        let need = head_len + bytes.len();
        if (self.bundle.room_for(need).is_none() || meta.interface > self.bundle.interface)
            && !self.next_bundle(&meta, need, stamp_ms)
        {
            return false;
        }
        let (bundle, cap_len) = (&mut self.bundle, packet.cap_len());
        let Some(room) = bundle.room_for(need) else {
            return false;
        };
        let (head, out) = room.split_at_mut(head_len);
        let len = if cap_len < block.cap_len {
            block.cut_packet(bytes, offset, cap_len, out).unwrap_or(0)
        } else {
            out.copy_from_slice(bytes);
            bytes.len()
        };
        if head_len != 0 {
            Head::new(&meta, cap_len as usize, len, stamp_ms).encode(head);
        }
        bundle.advance(time_ns, cap_len as usize, head_len + len);
        bundle.kept_bytes += u64::from(cap_len);
        true
    }

    /// Blocks to copy come before the next packet: it begins another bundle.
    #[cold]
    pub(in crate::capture) fn blocks_come_first(&mut self) {
        self.hand_over();
        self.group += 1;
        self.bundle.group = self.group;
    }
}
