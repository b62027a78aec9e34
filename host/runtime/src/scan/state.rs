//! The state file of a scan, from which a scan resumes where it ended, even after `kill -9`.
//!
//! The file is rewritten in place once a second by a single call: this needs no permission but the
//! open file, and a killed process leaves the last state intact. The recorded probe number is that
//! of a second before, because answers to later probes may not have arrived.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ::scan::{AddrRange, PlannedProbe, Ports, Shard, Targets};
use sys::create::CreateOptions;
use sys::{Error, ErrorKind, Result};
use toml::de::{DeTable, DeValue};

use super::Scan;

/// First line of a state file. Its number is the version of the order of probes.
const TITLE: &str = "# barewire scan, state 2: give it to --state, with the same targets and ports";
/// The beginning of the first line in every version.
const TITLE_OF_ANY: &str = "# barewire scan, state ";
const _: () = assert!(
    ::scan::ORDER_VERSION == 2,
    "the title of a state file has its number"
);

/// The contents of a state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Identifies the scan: see [`Scan::fingerprint`].
    pub fingerprint: u64,
    /// Seed of the probe order.
    pub seed: u64,
    /// Pairs between two attempts at a target.
    pub block: u64,
    /// The first probe not yet sent.
    pub next: u128,
}

impl Saved {
    /// Reads a state file; `None` if it does not exist or is empty.
    ///
    /// # Errors
    /// If the file cannot be read or is not a state file.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::from_io(what(path), error)),
        };
        if text.is_empty() {
            return Ok(None);
        }
        let saved = Self::parse(&text).ok_or_else(|| match Self::other_version(&text) {
            Some(version) => {
                let why = format!(
                    "its version is {version}, and this barewire has another order of probes, \
                     version {}",
                    ::scan::ORDER_VERSION
                );
                Error::new(ErrorKind::InvalidInput, what(path), why).with_hint(
                    "finish the scan with the barewire that began it, or remove the file to begin \
                     anew",
                )
            }
            None => {
                let why = "it is not a state file of barewire scan";
                Error::new(ErrorKind::InvalidInput, what(path), why)
                    .with_hint("use another file, or remove this one")
            }
        })?;
        Ok(Some(saved))
    }

    /// The version of a state file, if it is another one.
    fn other_version(text: &str) -> Option<u32> {
        let (version, _) = text.strip_prefix(TITLE_OF_ANY)?.split_once(':')?;
        let version = version.parse().ok()?;
        (version != ::scan::ORDER_VERSION).then_some(version)
    }

    fn parse(text: &str) -> Option<Self> {
        text.strip_prefix(TITLE)?;
        let table = DeTable::parse(text).ok()?;
        let word = |key: &str| match table.get_ref().get(key)?.get_ref() {
            DeValue::String(text) => Some(text.as_ref().to_owned()),
            _ => None,
        };
        Some(Self {
            fingerprint: u64::from_str_radix(&word("scan")?, 16).ok()?,
            seed: word("seed")?.parse().ok()?,
            block: word("block")?.parse().ok().filter(|block| *block > 0)?,
            next: word("next")?.parse().ok()?,
        })
    }

    /// Numbers are strings: TOML's integers end at 2^63. The text always has the same length.
    fn text(&self) -> String {
        format!(
            "{TITLE}\nscan = \"{:016x}\"\nseed = \"{:020}\"\nblock = \"{:020}\"\n\
             next = \"{:040}\"\n",
            self.fingerprint, self.seed, self.block, self.next
        )
    }
}

fn what(path: &Path) -> String {
    format!("resume the scan in {}", path.display())
}

/// A 64-bit hash (FNV-1a) of targets, ports, shard and attempts. It distinguishes scans; it is not
/// cryptographic.
pub(super) fn fingerprint(
    (targets, pairs): (&Targets, &[PlannedProbe]),
    ports: &Ports,
    shard: Shard,
    attempts: u32,
) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for range in targets.ranges() {
        add(&[range.is_ipv6.into()]);
        add(&range.first.to_be_bytes());
        add(&range.last.to_be_bytes());
    }
    for entry in ports.as_slice() {
        add(entry.probe.word().as_bytes());
        add(&entry.port.to_be_bytes());
        if entry.payload != 0 {
            add(&entry.payload.to_be_bytes());
        }
    }
    for (pair, payload) in pairs {
        let range = AddrRange::single(pair.addr);
        add(&[2 + u8::from(range.is_ipv6)]);
        add(&range.first.to_be_bytes());
        add(pair.probe.word().as_bytes());
        add(&pair.port.to_be_bytes());
        add(&payload.to_be_bytes());
    }
    let payloads = ports.payloads().as_slice().iter();
    for payload in payloads.filter(|payload| payload.is_given) {
        add(&(payload.bytes.len() as u32).to_be_bytes());
        add(&payload.bytes);
    }
    for number in [shard.index, shard.count, attempts] {
        add(&number.to_be_bytes());
    }
    hash
}

/// An open state file.
#[derive(Debug)]
pub struct StateFile {
    file: File,
    path: PathBuf,
    saved: Saved,
}

impl StateFile {
    /// Opens or creates the state file, readable by its owner alone.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path, scan: &Scan) -> Result<Self> {
        let made = CreateOptions::PRIVATE.open(path);
        let made = made.map_err(|error| Error::from_io(what(path), error))?;
        let order = scan.plan().order();
        let state = Self {
            file: made.file,
            path: path.to_owned(),
            saved: Saved {
                fingerprint: scan.fingerprint(),
                seed: order.seed,
                block: order.block,
                next: scan.setup().from,
            },
        };
        state.write()?;
        Ok(state)
    }

    /// Records that all probes before `next` are done.
    ///
    /// # Errors
    /// The system's error.
    pub fn note(&mut self, next: u128) -> Result<()> {
        self.saved.next = next;
        self.write()
    }

    fn write(&self) -> Result<()> {
        let text = self.saved.text();
        let what = || format!("write the state to {}", self.path.display());
        self.file
            .write_all_at(text.as_bytes(), 0)
            .map_err(|error| Error::from_io(what(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_other_versions_are_refused() {
        let saved = Saved {
            fingerprint: 1,
            seed: 2,
            block: 3,
            next: 4,
        };
        let text = saved.text();
        let dir = std::env::temp_dir().join(format!("barewire-state-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("state");
        for (version, is_read) in [("2", true), ("1", false), ("3", false)] {
            let text = text.replace("state 2:", &format!("state {version}:"));
            fs::write(&path, text).unwrap();
            match Saved::read(&path) {
                Ok(found) => assert!(is_read && found == Some(saved)),
                Err(error) => {
                    let why = error.to_string();
                    assert!(
                        !is_read && why.contains(&format!("version is {version}")),
                        "{why}"
                    );
                }
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn saved_state_is_read_back() {
        let saved = Saved {
            fingerprint: 0xff,
            seed: u64::MAX,
            block: 1,
            next: u128::MAX,
        };
        assert_eq!(Saved::parse(&saved.text()), Some(saved));
        let other = Saved {
            next: 0,
            seed: 0,
            ..saved
        };
        assert_eq!(other.text().len(), saved.text().len());
        let text = saved.text();
        for len in 0..text.len() - 1 {
            assert_eq!(Saved::parse(&text[..len]), None, "{len}");
        }
        for wrong in ["", "x = 1", "# barewire scan, state 3"] {
            assert_eq!(Saved::parse(wrong), None);
        }
        assert_eq!(
            Saved::parse(&text.replace("block = \"00000000000000000001", "block = \"0")),
            None
        );
    }
}
