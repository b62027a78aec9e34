//! Extra fields of a flow, as passed to sinks.

use inspect::{Application, Protocol, Transactions};

use super::Timing;
use crate::key::{KeyExtra, Side};
use crate::origin::Origins;

/// A packet in the list of first packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PacketNote {
    /// Microseconds since the start of the flow's record.
    pub time_us: u32,
    /// Payload length in bytes; 65535 means that or more.
    pub payload_len: u16,
    /// The lower eight TCP flags.
    pub tcp_flags: u8,
    /// Sender: 0 for A, 1 for B.
    pub side: u8,
}

impl PacketNote {
    /// The sender.
    pub fn side(&self) -> Side {
        if self.side == 0 { Side::A } else { Side::B }
    }
}

/// Histograms of the captured payload's byte values, sent by A and by B.
pub type ByteCounts = [[u32; 256]; 2];

/// Entropy of a byte histogram in bits per byte: 0 to 8; 0 for an empty one.
pub fn entropy(counts: &[u32; 256]) -> f64 {
    let total: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    let bits = |count: &u32| {
        let share = f64::from(*count) / total;
        -share * share.log2()
    };
    let sum: f64 = counts.iter().filter(|count| **count != 0).map(bits).sum();
    // A single value gives -1 log2(1), which is -0: readers would print the sign.
    sum + 0.0
}

const _: () = assert!(size_of::<KeyExtra>() == 24);
const _: () = assert!(size_of::<PacketNote>() == 8);
const _: () = assert!(size_of::<[Timing; 2]>() == 208);
const _: () = assert!(size_of::<ByteCounts>() == 2048);

/// The extra fields of a flow. Disabled fields are `None` or empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// Extra parts of its key.
    pub key: Option<&'a KeyExtra>,
    /// Its first packets.
    pub packets: &'a [PacketNote],
    /// Gaps and lengths, by [`Side`].
    pub timing: Option<&'a [Timing; 2]>,
    /// Histograms of byte values, by [`Side`].
    pub bytes: Option<&'a ByteCounts>,
    /// The result of an [`Inspect`](super::Inspect), as written by [`put_application`].
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

    /// The decoders' results, if any.
    pub fn application(&self) -> Option<Application> {
        take_application(self.application)
    }

    /// The transactions of the flow, if there is more than one.
    pub fn transactions(&self) -> Option<Transactions<'_>> {
        take_transactions(self.application)
    }
}

/// Appends an application as an [`Inspect`](super::Inspect) reports it: one byte for the protocol,
/// then the fields, then its transactions, if there is more than one.
pub fn put_application(application: &Application, found: &mut Vec<u8>) {
    let (protocol, bytes) = application.bytes();
    found.push(protocol as u8);
    found.extend_from_slice(bytes);
}

/// Reads what [`put_application`] wrote.
pub fn take_application(found: &[u8]) -> Option<Application> {
    let (protocol, bytes) = found.split_first()?;
    let protocol = Protocol::ALL.get(usize::from(*protocol)).copied()?;
    Some(Application::from_bytes(protocol, bytes))
}

/// Reads the transactions after what [`put_application`] wrote.
pub fn take_transactions(found: &[u8]) -> Option<Transactions<'_>> {
    Transactions::of(found.get(1..)?)
}
