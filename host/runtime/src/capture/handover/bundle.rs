//! A bundle: packets in contiguous memory that is passed between a queue's thread and the writer.

use port::Vlan;
use port::file::Record;

/// Length of the head before a packet that is taken individually.
pub(super) const HEAD_LEN: usize = 32;

/// The head before a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::capture) struct Head {
    /// Metadata of the packet.
    pub(in crate::capture) meta: Record,
    /// Bytes that the port delivered.
    pub(in crate::capture) cap_len: u32,
    /// Bytes after the head.
    pub(super) len: u32,
    /// When its batch was received, on the capture's own clock.
    pub(super) stamp_ms: u32,
}

impl Head {
    #[inline]
    pub(super) fn new(meta: &Record, cap_len: usize, len: usize, stamp_ms: u32) -> Head {
        Head {
            meta: *meta,
            cap_len: cap_len as u32,
            len: len as u32,
            stamp_ms,
        }
    }

    /// Writes the head to the start of `out`, which must have [`HEAD_LEN`] bytes.
    #[inline]
    pub(super) fn encode(&self, out: &mut [u8]) {
        let Record { vlan, outgoing, .. } = self.meta;
        let Vlan { tpid, tci } = vlan.unwrap_or(Vlan { tpid: 0, tci: 0 });
        let flags = u16::from(outgoing == Some(true))
            | u16::from(vlan.is_some()) << 1
            | u16::from(outgoing.is_some()) << 2;
        out[..8].copy_from_slice(&self.meta.time_ns.to_le_bytes());
        out[8..12].copy_from_slice(&self.stamp_ms.to_le_bytes());
        out[12..16].copy_from_slice(&self.len.to_le_bytes());
        out[16..20].copy_from_slice(&self.cap_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.meta.wire_len.to_le_bytes());
        out[24..26].copy_from_slice(&(self.meta.interface as u16).to_le_bytes());
        out[26..28].copy_from_slice(&flags.to_le_bytes());
        out[28..30].copy_from_slice(&tpid.to_le_bytes());
        out[30..32].copy_from_slice(&tci.to_le_bytes());
    }

    /// Reads the head at the start of `bytes`, if it is complete.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Option<Head> {
        fn at<const AT: usize, const LEN: usize>(head: &[u8; HEAD_LEN]) -> [u8; LEN] {
            std::array::from_fn(|i| head[AT + i])
        }
        let head = bytes.first_chunk::<HEAD_LEN>()?;
        let flags = u16::from_le_bytes(at::<26, 2>(head));
        let vlan = Vlan {
            tpid: u16::from_le_bytes(at::<28, 2>(head)),
            tci: u16::from_le_bytes(at::<30, 2>(head)),
        };
        Some(Head {
            meta: Record {
                time_ns: u64::from_le_bytes(at::<0, 8>(head)),
                wire_len: u32::from_le_bytes(at::<20, 4>(head)),
                interface: u16::from_le_bytes(at::<24, 2>(head)).into(),
                outgoing: (flags & 4 != 0).then_some(flags & 1 != 0),
                vlan: (flags & 2 != 0).then_some(vlan),
            },
            cap_len: u32::from_le_bytes(at::<16, 4>(head)),
            len: u32::from_le_bytes(at::<12, 4>(head)),
            stamp_ms: u32::from_le_bytes(at::<8, 4>(head)),
        })
    }
}

/// Consecutive packets with common metadata.
#[derive(Debug, Default)]
pub(in crate::capture) struct Bundle {
    memory: Box<[u8]>,
    len: usize,
    /// The highest interface index of its packets.
    pub(in crate::capture) interface: u32,
    /// Number of the last group of blocks that comes before its packets, if blocks are copied.
    pub(in crate::capture) group: u64,
    /// Number of packets.
    pub(in crate::capture) packets: u64,
    /// Bytes of packets as the port delivered them.
    pub(in crate::capture) cap_bytes: u64,
    /// Bytes of packets in the file's records, if it holds records only.
    pub(in crate::capture) kept_bytes: u64,
    /// Packets whose time is beyond what pcap files have room for.
    pub(in crate::capture) beyond_pcap: u64,
    /// Timestamp of the first.
    pub(in crate::capture) first_ns: u64,
    /// Timestamp of the last.
    pub(in crate::capture) last_ns: u64,
    /// When the batch of the first packet was received.
    pub(super) stamp_ms: u32,
}

impl Bundle {
    /// Creates a bundle with this many bytes of room, which take no memory before they are written.
    pub(super) fn new(len: usize) -> Bundle {
        Bundle {
            memory: vec![0; len].into(),
            ..Bundle::default()
        }
    }

    /// Creates a bundle without room.
    pub(super) fn none(interface: u32) -> Bundle {
        Bundle {
            interface,
            ..Bundle::default()
        }
    }

    pub(super) fn has_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// The bytes put in.
    #[inline]
    pub(in crate::capture) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// The next `need` bytes of room, if there are as many.
    #[inline]
    pub(super) fn room_for(&mut self, need: usize) -> Option<&mut [u8]> {
        self.memory.get_mut(self.len..self.len + need)
    }

    /// Length of its memory.
    pub(super) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    /// Empties the bundle, and leaves it at most `len` bytes of memory.
    pub(super) fn clear(&mut self, len: usize) {
        let mut memory = std::mem::take(&mut self.memory);
        if memory.len() > len {
            memory = vec![0; len].into();
        }
        *self = Bundle {
            memory,
            ..Bundle::default()
        };
    }

    /// Counts a packet put into the room, with `len` bytes.
    #[inline]
    pub(super) fn advance(&mut self, time_ns: u64, cap_len: usize, len: usize) {
        self.len += len;
        self.packets += 1;
        self.beyond_pcap += u64::from(is_beyond_pcap(super::written_ns(time_ns)));
        self.cap_bytes += cap_len as u64;
        self.last_ns = time_ns;
    }
}

/// Whether a pcap file has no room for a time.
#[inline]
pub(in crate::capture) fn is_beyond_pcap(time_ns: u64) -> bool {
    time_ns > wire::file::pcap::TIME_MAX.0
}

/// Copies the first `present` bytes of a packet to `out`, and returns their number.
pub(super) fn copy<'p>(
    out: &mut [u8],
    present: usize,
    segments: impl Iterator<Item = &'p [u8]>,
) -> usize {
    let mut at = 0;
    for segment in segments {
        let part = &segment[..segment.len().min(present - at)];
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    at
}
