//! Fingerprint files in p0f's format (p0f's README, "Fingerprint database"): TCP signatures and
//! their labels.

use super::{Handshake, RawSignature, Signature, matches};
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

    /// The label of a packet: that of the first specific signature (`s:`) that matches, otherwise
    /// of the first generic one (`g:`).
    pub fn label(&self, raw: &RawSignature) -> Option<&str> {
        let all = || {
            self.entries
                .iter()
                .filter(|e| e.handshake == raw.handshake && matches(&e.signature, raw))
        };
        let specific = all().find(|e| e.label.starts_with("s:"));
        specific.or_else(|| all().next()).map(|e| e.label.as_str())
    }
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
            database.label(&raw).map(str::to_owned)
        };
        assert_eq!(label(512).as_deref(), Some("s:unix:One:1"));
        assert_eq!(label(513).as_deref(), Some("g:unix:Any:"));
        assert!(Database::parse("sig = *:64:0:*:*,0:::0").0.is_empty());
    }
}
