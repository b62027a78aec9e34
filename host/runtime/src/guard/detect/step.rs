//! The events of detection.

use crate::guard::RuleSpec;

/// An event of detection, in this order for one flood.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A flood begins.
    Begins(Rates),
    /// A rule that matches the flood and no normal packet.
    Rule(Box<Found>),
    /// No rule could be derived against a flood.
    NoRule {
        /// The flood.
        of: String,
        /// Why.
        why: String,
    },
    /// A flood is over.
    Over(Rates),
    /// All floods that the rule of this name is against are over.
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
    /// Sampled packets of the flood.
    pub sampled: usize,
    /// Number of these that the rule matches.
    pub matched: usize,
}
