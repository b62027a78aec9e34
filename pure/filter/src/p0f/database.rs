//! Fingerprint files in p0f's format (p0f's README, "Fingerprint database"): TCP signatures and
//! their labels.

use super::{Handshake, RawSignature, Signature, matches, matches_fuzzy};
use crate::{Error, Result};

/// Maximum number of signatures read from a file; p0f's own has 192.
pub const SIGNATURES_MAX: usize = 65_536;

/// A signature with its label.
#[derive(Clone, Debug)]
struct Entry {
    handshake: Handshake,
    label: String,
    signature: Signature,
}

/// The TCP signatures of a file, in order.
#[derive(Clone, Debug, Default)]
pub struct Database {
    entries: Vec<Entry>,
}

/// An ignored line, with the reason.
#[derive(Clone, Debug)]
pub struct Unused {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub error: Error,
}

impl Database {
    /// Reads the sections `[tcp:request]` and `[tcp:response]`; returns the ignored lines as well.
    pub fn parse(text: &str) -> (Database, Vec<Unused>) {
        let (mut database, mut unused) = (Database::default(), Vec::new());
        let (mut handshake, mut label) = (None, "");
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('[') {
                handshake = match line {
                    "[tcp:request]" => Some(Handshake::Syn),
                    "[tcp:response]" => Some(Handshake::SynAck),
                    _ => None,
                };
                continue;
            }
            let (Some(handshake), Some((key, value))) = (handshake, line.split_once('=')) else {
                continue;
            };
            match (key.trim(), value.trim()) {
                ("label", value) => label = value,
                ("sig", value) => {
                    let line = index + 1;
                    if let Err(error) = database.add(handshake, label, value) {
                        unused.push(Unused { line, error });
                    }
                }
                _ => {}
            }
        }
        (database, unused)
    }

    fn add(&mut self, handshake: Handshake, label: &str, text: &str) -> Result<()> {
        let signature = Signature::parse(text)?;
        if self.entries.len() == SIGNATURES_MAX {
            return Err(
                Error::new(0..text.len(), "the file has too many signatures")
                    .expected(format!("at most {SIGNATURES_MAX}")),
            );
        }
        self.entries.push(Entry {
            handshake,
            label: label.to_owned(),
            signature,
        });
        Ok(())
    }

    /// Whether there are no signatures.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The signature that a packet matches, chosen as p0f does: the first specific one (`s:`),
    /// otherwise the first generic one (`g:`), otherwise the first that it matches fuzzily, unless
    /// that describes a program and not a system (class `!`).
    pub fn find(&self, raw: &RawSignature) -> Option<Found<'_>> {
        let all = || self.entries.iter().filter(|e| e.handshake == raw.handshake);
        let exact = || all().filter(|e| matches(&e.signature, raw));
        let specific = exact().find(|e| e.label.starts_with("s:"));
        if let Some(entry) = specific.or_else(|| exact().next()) {
            return Some(Found {
                label: &entry.label,
                is_fuzzy: false,
            });
        }
        let fuzzy = all().find(|e| matches_fuzzy(&e.signature, raw));
        let of_system = |entry: &&Entry| entry.label.split(':').nth(1) != Some("!");
        fuzzy.filter(of_system).map(|entry| Found {
            label: &entry.label,
            is_fuzzy: true,
        })
    }
}

/// The match of a packet in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The label of the signature.
    pub label: &'a str,
    /// Whether it matches only fuzzily, see [`matches_fuzzy`].
    pub is_fuzzy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p0f::raw_signature;

    const FILE: &str = "; a comment = here
classes = win,unix
[mtu]
label = Ethernet
sig = 1500
[tcp:request]
label = g:unix:Any:
sig = *:64:0:*:*,0::ack+:0
sig = 4:64:broken
label = s:unix:One:1
sig   = 4:64:0:0:512,0::ack+:0
[tcp:response]
label = s:unix:Other:
sig = *:64:0:*:*,0::ack+:0
";

    /// Builds a SYN without options and with a nonzero acknowledgment number.
    fn packet(window: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 1, 1, 0, 0, 64, 6, 0, 0];
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 80]);
        packet.extend([0, 0, 0, 1, 1, 0, 0, 0, 0x50, 2]);
        packet.extend(window.to_be_bytes());
        packet.extend([0; 4]);
        packet
    }

    #[test]
    fn specific_labels_come_first_and_bad_lines_are_reported() {
        let (database, unused) = Database::parse(FILE);
        assert_eq!(unused.len(), 1);
        assert_eq!(unused[0].line, 9);
        let label = |window| {
            let raw = raw_signature(&packet(window)).unwrap();
            database.find(&raw).map(|found| found.label.to_owned())
        };
        assert_eq!(label(512).as_deref(), Some("s:unix:One:1"));
        assert_eq!(label(513).as_deref(), Some("g:unix:Any:"));
        assert!(Database::parse("sig = *:64:0:*:*,0:::0").0.is_empty());
    }

    #[test]
    fn fuzzy_matches_come_last_and_are_marked() {
        let exact = packet(512);
        let change = |at: usize, value: u8| {
            let mut packet = exact.clone();
            packet[at] = value;
            raw_signature(&packet).unwrap()
        };
        let find = |file: &str, raw: &RawSignature| {
            let (database, unused) = Database::parse(file);
            assert!(unused.is_empty());
            let found = database.find(raw);
            found.map(|found| (found.label.to_owned(), found.is_fuzzy))
        };
        let marked = |label: &str, is_fuzzy| Some((label.to_owned(), is_fuzzy));
        let one = "[tcp:request]\nlabel = s:unix:One:\nsig = 4:64:0:0:512,0::ack+:0\n";
        // The TTL is out of range, or ECN appears.
        for (at, value) in [(8, 20), (8, 65), (1, 2)] {
            assert_eq!(find(one, &change(at, value)), marked("s:unix:One:", true));
        }
        // Another window, or another quirk.
        for (at, value) in [(34, 9), (33, 0x2a)] {
            assert_eq!(find(one, &change(at, value)), None);
        }
        // A later exact match is better; of fuzzy ones the first counts.
        let two = format!("{one}label = g:unix:Two:\nsig = *:20:0:*:*,0::ack+:0\n");
        assert_eq!(find(&two, &change(8, 20)), marked("g:unix:Two:", false));
        assert_eq!(find(&two, &change(8, 90)), marked("s:unix:One:", true));
        // A program is never matched fuzzily, nor what is after it.
        let program = "[tcp:request]\nlabel = s:!:Tool:\nsig = 4:64:0:0:512,0::ack+:0\n";
        assert_eq!(find(program, &change(8, 64)), marked("s:!:Tool:", false));
        let both = format!("{program}label = s:unix:One:\nsig = 4:64:0:0:512,0::ack+:0\n");
        assert_eq!(find(&both, &change(8, 20)), None);
    }
}
