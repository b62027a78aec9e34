//! A packet that outlives its batch: its frame and its metadata.

use ring::{Frame, Pool};

use ring::slot::{Checksum, Vlan};

/// Metadata of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Length on the wire.
    pub wire_len: u32,
    /// Time of arrival in nanoseconds since the Unix epoch, if it was recorded.
    pub time_ns: Option<u64>,
    /// The card's hash over addresses and ports.
    pub rss_hash: Option<u32>,
    /// The VLAN tag that is no longer in the bytes.
    pub vlan: Option<Vlan>,
    /// The card's checksum result.
    pub checksum: Checksum,
    /// Whether the host itself sent it.
    pub is_outgoing: bool,
    /// Index of the interface in a capture file with several; otherwise 0.
    pub interface_index: u16,
}

/// A packet detached from its batch.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is dropped is lost to its pool"]
pub struct Detached {
    /// Its bytes, owned: return the frame to its pool, or send it.
    pub frame: Frame,
    /// Its metadata.
    pub meta: Meta,
}

impl Detached {
    /// Restores a separately reported VLAN tag in the packet, which is required before the frame is
    /// sent: otherwise the packet would reach another network. Returns false if the frame has no
    /// room for it, or the packet no link header; nothing has changed then. Returns true also if
    /// there is no tag. For `memory:`, which transfers a tag as metadata, this is not necessary.
    ///
    /// # Panics
    /// If the frame does not belong to `pool`.
    pub fn restore_tag(&mut self, pool: &Pool) -> bool {
        let Some(vlan) = self.meta.vlan else {
            return true;
        };
        let (offset, len) = (self.frame.offset(), self.frame.len());
        let (tag_len, at) = (Vlan::LEN as u32, Vlan::AT);
        let has_room_before = offset >= tag_len;
        let has_room = has_room_before || pool.frame_len() - offset - len >= tag_len;
        if (len as usize) < at || !has_room {
            return false;
        }
        let offset = if has_room_before {
            offset - tag_len
        } else {
            offset
        };
        pool.set_range(&mut self.frame, offset, len + tag_len);
        let bytes = pool.bytes_mut(&mut self.frame);
        match has_room_before {
            true => bytes.copy_within(Vlan::LEN..Vlan::LEN + at, 0),
            false => bytes.copy_within(at..len as usize, at + Vlan::LEN),
        }
        bytes[at..at + Vlan::LEN].copy_from_slice(&vlan.bytes());
        pool.forget_tag(&mut self.frame);
        self.meta.vlan = None;
        self.meta.wire_len += tag_len;
        true
    }
}

#[cfg(test)]
mod tests;
