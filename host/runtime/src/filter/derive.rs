//! Derives a filter from capture files: samples the flood and the good packets for
//! [`::filter::derive`], and checks the result against all packets of the files.
//!
//! A sample is drawn uniformly from all packets (reservoir sampling, Vitter 1985, algorithm R), so
//! memory and time are bounded. Good packets outside the sample that the result matches are added
//! to it, and the filter is derived again, a bounded number of times.

mod link;
mod sample;
#[cfg(test)]
mod tests;

pub use link::ip_packet;
pub(crate) use sample::Sample;

use std::path::Path;

use ::filter::derive::{self, Derived, Limits};
use ::filter::p0f::{self, Signature, raw_signature};
use port::{FilterSource, PortOptions, RxBatch};
use sys::{Error, ErrorKind, Result};

use super::Expression;
use crate::Stop;
use crate::worker::{self, Engine, Pacing, Verdict};

/// Maximum number of packets in a sample.
pub const SAMPLE_MAX: usize = 10_000;
/// Maximum number of counterexamples added to the good packets per round.
const MORE_MAX: usize = 1_000;
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 5;

/// Capture files by port name (`file:PATH`).
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// Capture file of the flood.
    pub flood: &'a str,
    /// Capture files of good packets.
    pub good: &'a [String],
}

/// Packet counts of one or more files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets in the files.
    pub packets: u64,
    /// Packets sampled to derive the filter.
    pub sampled: u64,
    /// Packets that the expression matches; `None` if unknown because the files are pipes, which
    /// are read once.
    pub matched: Option<u64>,
}

impl Count {
    /// Share of the packets that the expression matches, from 0 to 1, if known.
    pub fn share(&self) -> Option<f64> {
        let matched = self.matched.filter(|_| self.packets > 0)?;
        Some(matched as f64 / self.packets as f64)
    }
}

/// A derived filter, and how well it separates the files.
#[derive(Clone, Debug)]
pub struct Found {
    /// The derived filters.
    pub derived: Derived,
    /// Counts of the flood.
    pub flood: Count,
    /// Counts of the good packets.
    pub good: Count,
}

/// Derives what covers the flood and matches no good packet. The files are read up to a dozen
/// times.
///
/// # Errors
/// Errors of the files, and `InvalidInput` if the flood has no packets.
pub fn derive(files: &Files<'_>, sample_max: usize) -> Result<Found> {
    let mut flood = Sample::new(sample_max);
    each(files.flood, None, &mut flood)?;
    if flood.seen == 0 {
        let what = format!("derive a filter from {}", files.flood);
        return Err(Error::new(
            ErrorKind::InvalidInput,
            what,
            "there are no packets in it",
        ));
    }
    let mut good = Sample::new(sample_max);
    for file in files.good {
        each(file, None, &mut good)?;
    }
    let mut found = Found {
        derived: derive::derive(&flood.packets(), &good.packets(), &Limits::default()),
        flood: flood.count(),
        good: good.count(),
    };
    for _ in 1..ROUNDS_MAX {
        let (matched, more) = matching(files.good, &found.derived)?;
        found.good.matched = matched.or(found.good.matched);
        if more.is_empty() {
            break;
        }
        good.join(more);
        found.derived = derive::derive(&flood.packets(), &good.packets(), &Limits::default());
        found.good.sampled = good.count().sampled;
        found.good.matched = None;
    }
    if found.good.matched.is_none() {
        let (matched, _) = matching(files.good, &found.derived)?;
        found.good.matched = matched;
    }
    if can_read_again(files.flood) {
        found.flood.matched = match found.derived.expression() {
            Some(expression) => Some(matched(files.flood, &expression)?),
            None => Some(0),
        };
    } else if flood.is_whole() {
        found.flood.matched = Some(found.derived.covered_count() as u64);
    }
    Ok(found)
}

/// Good packets that an expression or signature matches: the number that the expression matches,
/// and a sample of all. The short expression matches a superset of the other.
fn matching(files: &[String], derived: &Derived) -> Result<(Option<u64>, Sample)> {
    let mut more = Sample::new(MORE_MAX);
    let mut matched = Some(0);
    for file in files {
        if !can_read_again(file) {
            matched = None;
            continue;
        }
        if let Some(expression) = derived.short_expression() {
            let before = more.seen;
            let filter = Expression::new(expression).source();
            each(file, Some(filter), &mut more)?;
            matched = matched.map(|count| count + more.seen - before);
        }
        if !derived.signatures.is_empty() {
            let signatures = derived.signatures.iter().map(|s| s.signature.clone());
            more.only = Some(signatures.collect());
            each(file, None, &mut more)?;
            more.only = None;
        }
    }
    Ok((matched, more))
}

fn matched(file: &str, expression: &str) -> Result<u64> {
    let mut sample = Sample::new(0);
    let filter = Expression::new(expression).source();
    each(file, Some(filter), &mut sample)?;
    Ok(sample.seen)
}

/// Whether a file can be read twice: pipes and standard input cannot.
fn can_read_again(port: &str) -> bool {
    let path = port.strip_prefix("file:").unwrap_or(port);
    std::fs::metadata(Path::new(path)).is_ok_and(|file| file.is_file())
}

/// Whether a packet has one of the signatures.
fn has_one(signatures: &[Signature], ip: &[u8]) -> bool {
    let raw = raw_signature(ip).filter(|raw| raw.handshake == p0f::Handshake::Syn);
    raw.is_some_and(|raw| signatures.iter().any(|one| p0f::matches(one, &raw)))
}

/// Samples the packets of a file that a filter selects.
fn each(file: &str, filter: Option<FilterSource>, sample: &mut Sample) -> Result<()> {
    let options = PortOptions {
        filter_source: filter,
        ..PortOptions::default()
    };
    let mut port = port::open(file, &options)?;
    let description = port.control.describe();
    let mut reader = Reader {
        sample,
        link_type: description.link_type,
        links: description.interfaces,
    };
    let Some(rx) = port.rx.first_mut() else {
        return Ok(());
    };
    worker::run(rx, &mut reader, &Stop::new(), Pacing::Wait).map(drop)
}

struct Reader<'a> {
    sample: &'a mut Sample,
    link_type: u16,
    links: Vec<(u16, String)>,
}

impl Engine for Reader<'_> {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        for packet in batch.iter() {
            let of_file = self.links.get(usize::from(packet.interface_index()));
            let link_type = of_file.map_or(self.link_type, |(link_type, _)| *link_type);
            // The headers are in the first segment.
            match ip_packet(link_type, packet.bytes()) {
                Some((tags, ip)) => self.sample.add(tags, ip),
                None => self.sample.add(0, &[]),
            }
        }
        Ok(Verdict::Continue)
    }
}
