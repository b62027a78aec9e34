//! The extra fields to record, and their cost.

use super::carried::Carried;
use super::{ByteCounts, Inspected, PacketNote, Timing};
use crate::key::KeyExtra;

/// The extra fields to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraConfig {
    /// Remember this many packets from the start of a flow; 0 none.
    pub packet_count: u8,
    /// Sums and histograms of gaps and lengths.
    pub timing: bool,
    /// How often each value of a byte was in the payload.
    pub bytes: bool,
    /// Packets with payload from the start of a flow that an [`Inspect`](super::Inspect) is given;
    /// 0 none, 255 until it is done.
    pub inspect_count: u8,
    /// Report for each packet whether it is among the first of its record
    /// ([`crate::Meter::chosen`]).
    pub shunt: Option<Shunt>,
}

/// The start of a record, which is passed on for deeper inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shunt {
    /// Packets of both directions.
    pub packets: u64,
    /// Bytes of them; the packet that reaches them is the last.
    pub bytes: u64,
}

impl ExtraConfig {
    /// Bytes that this costs a flow; `with_key` if parts of the key are kept here.
    pub fn flow_len(&self, with_key: bool) -> usize {
        let mut len = if with_key { size_of::<KeyExtra>() } else { 0 };
        if self.packet_count != 0 {
            len += 1 + usize::from(self.packet_count) * size_of::<PacketNote>();
        }
        len += if self.timing {
            size_of::<[Timing; 2]>()
        } else {
            0
        };
        len += if self.bytes {
            size_of::<ByteCounts>()
        } else {
            0
        };
        len += if self.inspect_count != 0 {
            size_of::<Inspected>()
        } else {
            0
        };
        len
    }
}

impl ExtraConfig {
    /// Bytes that it costs alongside, with a table of this many flows.
    pub(crate) fn fixed_len(&self, flow_count: usize) -> usize {
        match self.inspect_count {
            0 => 0,
            _ => Carried::memory_len(flow_count),
        }
    }
}
