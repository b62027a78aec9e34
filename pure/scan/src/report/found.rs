//! Answers and counters of a scan.

use std::time::Duration;

use wire::{Mac, Timestamp};

use crate::answer::Answer;
use crate::grab::GrabCounts;
use crate::port::Protocol;

/// A received answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The answer, its target and its meaning.
    pub answer: Answer,
    /// When it was received from the port.
    pub time: Timestamp,
    /// Round-trip time, if the time of sending is still known.
    pub rtt: Option<Duration>,
    /// Data of the answer: the UDP payload or the MAC address.
    pub payload: Box<[u8]>,
    /// The vendor of the MAC address, if it is known.
    pub vendor: Option<Box<str>>,
}

impl Found {
    /// The MAC address of a neighbour.
    pub fn mac(&self) -> Option<Mac> {
        let is_link = self.answer.target.protocol() == Protocol::Link;
        let bytes = self.payload.first_chunk().filter(|_| is_link);
        bytes.map(|bytes| Mac(*bytes))
    }
}

/// Counts of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Probes of the whole scan, all attempts included.
    pub probes: u128,
    /// Of these, probes sent by earlier runs.
    pub before: u128,
    /// The first probe that is left to a run which resumes this one: all from `before` to it were
    /// sent or skipped, unless some `failed`. Set once sending has ended.
    pub next: u128,
    /// Probes handed to the device.
    pub sent: u64,
    /// Bytes of these probes.
    pub sent_bytes: u64,
    /// Of these, probes sent again: the link went down soon after they had been sent first.
    pub resent: u64,
    /// Probes that the device refused, unless they were sent again.
    pub failed: u64,
    /// Probes not sent because the next hop's MAC address could not be resolved.
    pub unreachable: u128,
    /// Probes not sent because the target is an address of this host.
    pub own: u128,
    /// Received packets that could be answers.
    pub received: u64,
    /// Received packets that are answers, repeated ones included.
    pub answers: u64,
    /// Ports found open.
    pub open: u64,
    /// Ports found closed.
    pub closed: u64,
    /// Ports found filtered.
    pub filtered: u64,
    /// Ports found unfiltered.
    pub unfiltered: u64,
    /// Hosts found up by probes without a port.
    pub up: u64,
    /// Repeated answers.
    pub repeated: u64,
    /// Answers reported that may be repeats: the table of answers was full.
    pub maybe_repeated: u64,
    /// Packets lost between the interface and the scanner: answers may be missing.
    pub lost: u64,
    /// Changes of the rate.
    pub rate_changes: u64,
    /// Counts of banner connections.
    pub grabbed: GrabCounts,
}

impl Totals {
    /// Received packets that are neither answers nor segments of banner connections.
    pub fn unrelated(&self) -> u64 {
        let related = self.answers + self.grabbed.received;
        self.received.saturating_sub(related)
    }
}
