//! The extra fields of a flow, as sinks receive them.

use inspect::{Application, Protocol, Transactions};

use super::Timing;
use crate::key::{KeyExtra, Side};
use crate::origin::Origins;

/// A packet, in a list of the first ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PacketNote {
    /// Microseconds since the start of the flow's record.
    pub time_us: u32,
    /// Bytes of payload; 65535 is that or more.
    pub payload_len: u16,
    /// The lower eight TCP flags.
    pub tcp_flags: u8,
    /// 0 from A, 1 from B.
    pub side: u8,
}

impl PacketNote {
    /// The sender.
    pub fn side(&self) -> Side {
        if self.side == 0 { Side::A } else { Side::B }
    }
}

/// How often each value of a byte was in the payload that A, and that B sent, as far as captured.
pub type ByteCounts = [[u32; 256]; 2];

/// Entropy of bytes that occur so often, in bits a byte: 0 to 8; 0 of none.
pub fn entropy(counts: &[u32; 256]) -> f64 {
    let total: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    let bits = |count: &u32| {
        let share = f64::from(*count) / total;
        -share * share.log2()
    };
    let sum: f64 = counts.iter().filter(|count| **count != 0).map(bits).sum();
    // One value only has -1 log2(1), which is -0: readers would print the sign.
    sum + 0.0
}

const _: () = assert!(size_of::<KeyExtra>() == 24);
const _: () = assert!(size_of::<PacketNote>() == 8);
const _: () = assert!(size_of::<[Timing; 2]>() == 208);
const _: () = assert!(size_of::<ByteCounts>() == 2048);

/// The extra fields of a flow. Fields that are disabled are none or empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// More of its key.
    pub key: Option<&'a KeyExtra>,
    /// Its first packets.
    pub packets: &'a [PacketNote],
    /// Gaps and lengths, by [`Side`].
    pub timing: Option<&'a [Timing; 2]>,
    /// Values of bytes, by [`Side`].
    pub bytes: Option<&'a ByteCounts>,
    /// The result of an [`Inspect`](super::Inspect), in the form of [`put_application`].
    pub application: &'a [u8],
    /// Enrichment of the endpoints, by [`Side`].
    pub origins: Option<&'a Origins>,
}

impl Extra<'_> {
    /// Whether there are no extra fields.
    pub fn is_empty(&self) -> bool {
        self.key.is_none()
            && self.packets.is_empty()
            && self.timing.is_none()
            && self.bytes.is_none()
            && self.application.is_empty()
            && self.origins.is_none()
    }

    /// Results of the decoders, if there is anything.
    pub fn application(&self) -> Option<Application> {
        take_application(self.application)
    }

    /// The transactions of the flow, if there are several.
    pub fn transactions(&self) -> Option<Transactions<'_>> {
        take_transactions(self.application)
    }
}

/// An application as reported by an [`Inspect`](super::Inspect): one byte for the protocol, then
/// the fields, then its transactions, if there are several.
pub fn put_application(application: &Application, found: &mut Vec<u8>) {
    let (protocol, bytes) = application.bytes();
    found.push(protocol as u8);
    found.extend_from_slice(bytes);
}

/// What [`put_application`] wrote.
pub fn take_application(found: &[u8]) -> Option<Application> {
    let (protocol, bytes) = found.split_first()?;
    let protocol = Protocol::ALL.get(usize::from(*protocol)).copied()?;
    Some(Application::from_bytes(protocol, bytes))
}

/// The transactions after what [`put_application`] wrote.
pub fn take_transactions(found: &[u8]) -> Option<Transactions<'_>> {
    Transactions::of(found.get(1..)?)
}
