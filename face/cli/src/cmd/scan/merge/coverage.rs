//! Whether totals of several runs cover their scans: a scan that was interrupted and resumed has
//! the totals of each run, with the range of probes that it sent.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// What identifies a scan, shard included: fingerprint, seed, block, number of probes.
type Key = (String, u128, u128, u128);

/// The ranges of probes that were sent, of each scan.
#[derive(Default)]
pub(super) struct Coverage(HashMap<Key, Vec<(u128, u128)>>);

/// Totals of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// The run has a range; what other runs sent of the scan counts, too.
    Part,
    /// Totals without a range, as earlier versions wrote them, of a complete run.
    Complete,
    /// Likewise, of an incomplete one.
    Incomplete,
}

impl Coverage {
    /// Adds the totals of a run. A run with an error, or with probes that the interface refused,
    /// has not sent all of its range: none of it counts.
    pub(super) fn add(&mut self, totals: &Map<String, Value>) -> Run {
        let is_complete = totals.get("complete") == Some(&Value::Bool(true));
        let Some((key, range)) = read(totals) else {
            return match is_complete {
                true => Run::Complete,
                false => Run::Incomplete,
            };
        };
        let ranges = self.0.entry(key).or_default();
        let is_refused = number(totals, "failed").is_none_or(|count| count != 0);
        let is_failed = totals.get("error").is_some_and(|error| !error.is_null());
        if !is_refused && !is_failed {
            ranges.push(range);
        }
        Run::Part
    }

    /// Whether the ranges of each scan include all its probes.
    pub(super) fn is_whole(&self) -> bool {
        self.0.iter().all(|((.., probes), ranges)| {
            let mut ranges = ranges.clone();
            ranges.sort_unstable();
            let sent = ranges
                .iter()
                .fold(0, |sent, (from, to)| match *from <= sent {
                    true => sent.max(*to),
                    false => sent,
                });
            sent >= *probes
        })
    }
}

/// The scan and the range of probes of a run's totals.
fn read(totals: &Map<String, Value>) -> Option<(Key, (u128, u128))> {
    let number = |name| number(totals, name);
    let scan = totals.get("scan")?.as_str()?.to_owned();
    let key = (scan, number("seed")?, number("block")?, number("probes")?);
    Some((key, (number("before")?, number("next")?)))
}

/// A number, or a string of one that is too large for JSON parsers.
fn number(totals: &Map<String, Value>, name: &str) -> Option<u128> {
    match totals.get(name)? {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64().map(u128::from),
    }
}
