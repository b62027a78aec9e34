//! Captures that tests read: those of the repository, and a large corpus if available.
//!
//! `testdata/captures` is small and always available, so that no comparison with other programs is
//! skipped for lack of input. The large corpus (hundreds of files of other projects, under their
//! licences, with other programs' output for them) is not part of the repository: it is looked up
//! in `BAREWIRE_CORPUS`, else in `shared/data` next to the repository.

use std::path::{Path, PathBuf};
use std::time::Duration;

use port::{PortOptions, Ready};
use wire::LinkType;

use crate::skip::Missing;

/// Variable with the directory of the large corpus: `MANIFEST.tsv`, `pcap/`, `expected/`.
pub const CORPUS_VAR: &str = "BAREWIRE_CORPUS";

/// Capture files, sorted by path: those of the repository first, then the large corpus.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// pcap and pcapng; some of the large corpus are compressed or damaged.
    pub files: Vec<PathBuf>,
    /// Whether it includes the large corpus.
    pub is_large: bool,
}

impl Corpus {
    /// The minimum that a test must find: the first number with the large corpus, the second
    /// without.
    pub fn at_least(&self, with_large: usize, without: usize) -> usize {
        if self.is_large { with_large } else { without }
    }

    /// Whether a file of this name exists: lists of known differences name files of the large
    /// corpus.
    pub fn has(&self, name: &str) -> bool {
        self.files
            .iter()
            .any(|file| file.file_name().is_some_and(|other| other == name))
    }
}

/// All available captures.
///
/// # Panics
/// If a directory cannot be read, or the repository's is empty.
pub fn captures() -> Corpus {
    let own = own();
    let mut files = files_of(&own);
    files.retain(|file| file.extension().is_some_and(|end| end != "md"));
    assert!(!files.is_empty(), "no captures in {}", own.display());
    let large = large();
    if let Ok(folder) = &large {
        files.extend(files_of(&folder.join("pcap")));
    }
    Corpus {
        files,
        is_large: large.is_ok(),
    }
}

/// The directory of the repository's captures.
pub fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/captures")
}

/// The directory of the large corpus.
///
/// # Errors
/// [`Missing::Machine`] if it is missing.
pub fn large() -> Result<PathBuf, Missing> {
    let folder = match std::env::var_os(CORPUS_VAR) {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
    };
    if folder.join("MANIFEST.tsv").is_file() {
        return Ok(folder);
    }
    Err(Missing::Machine(format!(
        "the large corpus of captures (its folder in {CORPUS_VAR})"
    )))
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = folder
        .read_dir()
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry of the folder").path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files
}

/// A packet of a capture: bytes, length on the wire, timestamp.
pub type Packet = (Vec<u8>, u32, u64);

/// The link type and packets of a capture, up to the first error; `None` for a file that is not a
/// capture (the corpus has damaged ones) or has more than `packets_max` packets.
pub fn read(path: &Path, packets_max: usize) -> Option<(LinkType, Vec<Packet>)> {
    let mut port = port::open(&format!("file:{}", path.display()), &PortOptions::default()).ok()?;
    let interfaces = port.control.describe().interfaces;
    let link = interfaces.first().map_or(1, |interface| interface.0);
    let mut all = Vec::new();
    loop {
        let before = all.len();
        let Ok(batch) = port.rx[0].receive() else {
            break;
        };
        for packet in batch.iter() {
            let time_ns = packet.time_ns().unwrap_or(1);
            all.push((packet.bytes().to_vec(), packet.wire_len(), time_ns));
        }
        drop(batch);
        if all.len() > packets_max {
            return None;
        }
        let is_empty = all.len() == before;
        if is_empty && !matches!(port.rx[0].wait(Duration::ZERO), Ok(Ready::Packets)) {
            break;
        }
    }
    Some((LinkType(link), all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_captures_of_the_repository_are_there() {
        let corpus = captures();
        for name in ["lab-mix.pcapng", "lab-fragments.pcapng", "lab-vlan.pcap"] {
            assert!(corpus.has(name), "{name} is not in {:?}", corpus.files);
        }
        assert!(!corpus.has("README.md"));
        assert_eq!(corpus.is_large, large().is_ok());
        assert!(corpus.files.len() >= corpus.at_least(100, 4));
    }
}
