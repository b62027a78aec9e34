//! The events of detection.

use std::net::IpAddr;

use ::guard::Verdict;

use crate::guard::RuleSpec;

/// An event of detection, in this order for one flood.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A flood begins.
    Begins(Rates),
    /// A rule against the flood, the first one or another one.
    Rule(Box<Found>),
    /// The flood passes its rules, at this rate: it has changed.
    Passes(Rates),
    /// There is no rule against a flood.
    NoRule {
        /// The flood.
        of: String,
        /// Why.
        why: String,
    },
    /// A flood is over.
    Over(Rates),
    /// All floods that the rule of this name is against are over, or it no longer matches them.
    Remove(String),
    /// Normal rates are known, and from now on rates far above them are floods.
    Learned(Learned),
}

/// Result of the first time of learning.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// Number of destinations.
    pub destinations: usize,
    /// Number of signatures of SYNs.
    pub signatures: usize,
    /// The highest normal rate.
    pub highest: Option<Normal>,
}

/// A normal rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Normal {
    /// What it is of, as text.
    pub of: String,
    /// The normal rate, in packets per second.
    pub normal_pps: f64,
    /// Higher rates are a flood, in packets per second.
    pub flood_pps: f64,
}

/// A flood and its rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// The flood, as text.
    pub of: String,
    /// The rate, in packets per second.
    pub rate_pps: f64,
    /// The normal rate, in packets per second.
    pub normal_pps: f64,
}

/// A derived rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The flood it is directed against.
    pub of: String,
    /// The rule.
    pub spec: RuleSpec,
    /// Why it has its verdict.
    pub reason: Reason,
    /// What to install instead if the host cannot answer SYNs for these services.
    pub otherwise: Option<(RuleSpec, Vec<(IpAddr, u16)>)>,
    /// Sampled packets of the flood.
    pub sampled: usize,
    /// Number of these that the rule matches.
    pub matched: usize,
}

/// Why a rule has its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It matches no normal packet, and none that a client would send.
    Apart,
    /// The packets are those of connections, whose handshakes and sequence numbers were followed.
    Connections,
    /// A few flows, not of TCP, have most of the packets.
    Streams,
    /// SYNs of a few sources to many ports.
    Scan,
    /// Nothing distinguishes the packets from normal ones.
    Alike,
    /// Nothing distinguishes the SYNs from those of usual clients.
    LikeClients,
}

impl Reason {
    /// For users.
    pub fn text(self) -> &'static str {
        match self {
            Self::Apart => "no normal packet matches",
            Self::Connections => "its packets belong to connections",
            Self::Streams => "a few flows have most of its packets",
            Self::Scan => "its SYNs are those of a scan",
            Self::Alike => "nothing distinguishes its packets from normal ones",
            Self::LikeClients => "nothing distinguishes its SYNs from those of usual clients",
        }
    }

    /// For programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Apart => "apart",
            Self::Connections => "connections",
            Self::Streams => "streams",
            Self::Scan => "scan",
            Self::Alike => "alike",
            Self::LikeClients => "like clients",
        }
    }
}

/// A flood in the last second, and what the rules do with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FloodTotals {
    /// The flood, as text.
    pub of: String,
    /// Its packets, with the normal ones, per second.
    pub rate_pps: u64,
    /// Those that pass.
    pub passed_pps: u64,
    /// Those that its rules drop or answer.
    pub dropped_pps: u64,
    /// The share of what exceeds the normal rate that its rules drop or answer, in percent.
    pub covered_percent: u64,
    /// Names and verdicts of the rules against it.
    pub rules: Vec<(String, Verdict)>,
}
