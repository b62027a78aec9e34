//! A packet as the table takes it.

use wire::Dissection;

use crate::key::{FlowKey, KeyExtra, Side};
use crate::record;

/// A packet, as far as a flow cares.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Which flow.
    pub key: FlowKey,
    /// Who sent it.
    pub side: Side,
    /// Whether it answers something, so that the receiver began the flow (ICMP replies). TCP tells
    /// by its flags.
    pub is_answer: bool,
    /// Hash of the key.
    pub hash: u64,
    /// When, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Bytes to count.
    pub bytes: u32,
    /// 8 for a fragment, 16 for one whose first did not come, 32 for one that is not the first.
    pub marks: u8,
    /// Maximum segment size announced by a SYN, 0 without.
    pub tcp_mss: u16,
    /// Which of the packets that were given together this is.
    pub input_index: u8,
    /// Parts of the key that are rarely asked for; all zero where they were not.
    pub key_extra: KeyExtra,
    /// The level of the packet that names the flow: everything else is in there.
    pub level: Dissection,
}

impl Observed {
    /// No packet at all.
    pub(crate) const NONE: Observed = Observed {
        key: FlowKey::NONE,
        side: Side::A,
        is_answer: false,
        hash: 0,
        time_ns: 0,
        bytes: 0,
        marks: 0,
        tcp_mss: 0,
        input_index: 0,
        key_extra: KeyExtra::NONE,
        level: Dissection::EMPTY,
    };

    /// Whether it looks like a segment that a server sends, in the middle of a connection: from a
    /// port below 1024 to one that is not.
    pub(super) fn is_of_server(&self) -> bool {
        let (from, to) = (self.key.port(self.side), self.key.port(self.side.other()));
        self.key.protocol() == 6
            && self.level.tcp_flags & record::SYN == 0
            && from < 1024
            && to >= 1024
            && from != 0
    }
}
