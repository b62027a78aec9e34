//! Captures that tests read: those of the repository, and a large corpus if available.
//!
//! `testdata/captures` is small and always available, so that no comparison with other programs is
//! skipped for lack of input. The large corpus (hundreds of files of other projects, under their
//! licences, with other programs' output for them) is not part of the repository: it is looked up
//! in `BAREWIRE_CORPUS`, else in `shared/data` next to the repository.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use port::{PortOptions, Ready};
use wire::LinkType;

use crate::skip::Missing;

/// The number of captures in the large corpus.
pub const LARGE_COUNT: usize = 696;

/// Captures of the large corpus that are damaged: the number of packets before the damage, a part
/// of the error, and the reason. Every other capture is read to its end: a failure there is one
/// of barewire.
pub const DAMAGED: [(&str, u64, &str, &str); 4] = [
    (
        "nDPI__fuzz-2021-10-13.pcap",
        1,
        "ends after 2 of 16 bytes of a record; byte 237, after 1 packets",
        "two bytes follow the last packet; capinfos and tcpdump report the cut, as we do",
    ),
    (
        "libpcap__pcap-invalid-version-2.pcap",
        0,
        "version 2.5",
        "libpcap refuses 2.5 (that is what the file tests); capinfos reads on",
    ),
    (
        "libpcap__pcapng-invalid-vers-1.pcapng",
        0,
        "version 0.1",
        "refused by capinfos and libpcap too; the manifest counts the packet behind it",
    ),
    (
        "libpcap__pcapng-invalid-vers-2.pcapng",
        0,
        "version 1.1",
        "refused by capinfos and libpcap too; the manifest counts the packet behind it",
    ),
];

/// Whether a capture is one of [`DAMAGED`].
pub fn is_damaged(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    DAMAGED.iter().any(|row| name == row.0)
}

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

/// All available captures. Without the large corpus, that is reported and counted
/// (`skip::reduced`).
///
/// # Panics
/// If a directory cannot be read, or the repository's is empty; without the large corpus also if
/// `BAREWIRE_NO_SKIPS` is set.
#[track_caller]
pub fn captures() -> Corpus {
    let corpus = available();
    if !corpus.is_large {
        let count = corpus.files.len();
        let all = count + LARGE_COUNT;
        reduced(format_args!("ran on {count} of {all} captures"));
    }
    corpus
}

/// Records that the current test runs on less input, once for each test and kind.
#[track_caller]
pub fn reduced(how: impl fmt::Display) {
    static RECORDED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());
    let thread = std::thread::current();
    // Alone, tests run on the main thread, which does not have their name.
    let test = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::panic::Location::caller().to_string(),
    };
    let row = (test.clone(), how.to_string());
    let is_new = RECORDED.lock().is_ok_and(|mut all| all.insert(row));
    if is_new {
        ::skip::reduced(&test, how);
    }
}

fn available() -> Corpus {
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

/// The link type and packets of a capture, up to its [damage](DAMAGED); `None` for a file that is
/// damaged from its start or has more than `packets_max` packets.
///
/// # Panics
/// If another capture cannot be read to its end.
pub fn read(path: &Path, packets_max: usize) -> Option<(LinkType, Vec<Packet>)> {
    let check = |error: String| assert!(is_damaged(path), "{}: {error}", path.display());
    let name = format!("file:{}", path.display());
    let mut port = port::open(&name, &PortOptions::default())
        .map_err(|error| check(error.to_string()))
        .ok()?;
    let interfaces = port.control.describe().interfaces;
    let link = interfaces.first().map_or(1, |interface| interface.0);
    let mut all = Vec::new();
    loop {
        let before = all.len();
        let batch = match port.rx[0].receive() {
            Ok(batch) => batch,
            Err(error) => {
                check(error.to_string());
                break;
            }
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
        let corpus = available();
        for name in ["lab-mix.pcapng", "lab-fragments.pcapng", "lab-vlan.pcap"] {
            assert!(corpus.has(name), "{name} is not in {:?}", corpus.files);
        }
        assert!(!corpus.has("README.md"));
        assert_eq!(corpus.is_large, large().is_ok());
        let own = files_of(&own()).len() - 1;
        let all = own + corpus.at_least(LARGE_COUNT, 0);
        assert_eq!(corpus.files.len(), all);
    }
}
