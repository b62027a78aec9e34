//! Encodes a packet as a record of a file: bytes that any thread can produce, and that are written
//! to the file unchanged ([`FileWriter::records`](crate::file::FileWriter::records)).

use ring::slot::Vlan;
use wire::Timestamp;
use wire::file::{Direction as Way, pcap, pcapng};

use super::options::{FileFormat, Record};

/// Encodes records for the files of a writer.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    pub(super) format: FileFormat,
    /// Maximum number of bytes kept of a packet.
    pub(super) snaplen: u32,
}

/// An encoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Length of the record.
    pub len: usize,
    /// Number of packet bytes in it.
    pub kept_len: u32,
}

impl Encoder {
    /// Maximum length of a record apart from the packet.
    pub const EXTRA_MAX: usize = pcapng::PACKET_HEAD_LEN + pcapng::MAX_PACKET_TAIL_LEN + Vlan::LEN;

    /// Encodes the record of a packet of `present` bytes, given in pieces, at the start of `room`.
    /// The tag is restored.
    ///
    /// # Panics
    /// If `room` has fewer bytes than the packet and [`EXTRA_MAX`](Self::EXTRA_MAX).
    #[inline(always)]
    pub fn encode<'p>(
        &self,
        room: &mut [u8],
        record: &Record,
        present: usize,
        segments: impl Iterator<Item = &'p [u8]>,
    ) -> Encoded {
        let room = &mut room[..present + Self::EXTRA_MAX];
        let vlan = record.vlan.filter(|_| present >= Vlan::AT);
        let tag_len = if vlan.is_some() { Vlan::LEN } else { 0 };
        let kept = (present + tag_len).min(self.snaplen as usize);
        let kept_len = kept as u32;
        // Readers treat a packet longer than its wire length as damage.
        let wire_len = (record.wire_len + tag_len as u32).max(kept_len);
        let time = Timestamp(record.time_ns);
        let len = match self.format {
            FileFormat::Pcap(precision) => {
                let (head, rest) = split(room);
                pcap::emit_record(head, time, kept_len, wire_len, precision);
                put_data(rest, kept, vlan, segments);
                pcap::RECORD_LEN + kept
            }
            FileFormat::Pcapng => {
                let info = pcapng::PacketInfo {
                    interface: record.interface,
                    time,
                    wire_len,
                    direction: match record.outgoing {
                        None => Way::Unknown,
                        Some(false) => Way::In,
                        Some(true) => Way::Out,
                    },
                    dropped: 0,
                };
                let (head, rest) = split(room);
                *head = pcapng::packet_head(&info, kept_len);
                put_data(rest, kept, vlan, segments);
                let (tail, _) = split(&mut rest[kept..]);
                pcapng::PACKET_HEAD_LEN + kept + pcapng::emit_packet_tail(tail, &info, kept_len)
            }
        };
        Encoded { len, kept_len }
    }

    /// Number of packet bytes in an encoded record.
    #[inline]
    pub(super) fn kept_len(&self, record: &[u8]) -> u32 {
        // At the same offset in both formats: pcapng's packet block, and a packet's header in pcap.
        let at = match self.format {
            FileFormat::Pcapng => 20,
            FileFormat::Pcap(_) => 8,
        };
        let bytes = record.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

/// The first bytes of a record's room, and those after them.
#[inline]
fn split<const LEN: usize>(room: &mut [u8]) -> (&mut [u8; LEN], &mut [u8]) {
    room.split_first_chunk_mut().expect("room for a record")
}

/// Writes the first `kept` bytes of a packet, including its tag, into `out`, which is longer.
#[inline(always)]
fn put_data<'p>(
    out: &mut [u8],
    kept: usize,
    vlan: Option<Vlan>,
    segments: impl Iterator<Item = &'p [u8]>,
) {
    let mut at = 0;
    for segment in segments {
        let len = segment.len().min(kept - at);
        out[at..at + len].copy_from_slice(&segment[..len]);
        at += len;
    }
    if let Some(Vlan { tpid, tci }) = vlan
        && kept > Vlan::AT
    {
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
        out.copy_within(Vlan::AT..kept, Vlan::AT + Vlan::LEN);
        out[Vlan::AT..Vlan::AT + Vlan::LEN].copy_from_slice(&[a, b, c, d]);
    }
}
