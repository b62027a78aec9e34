//! Common code of the tests of `barewire capture`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lab::process::Process;
use lab::{Finished, process};

mod flags;
mod lines;
mod words;

/// Time limit of a program; not a measurement.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A packet: time in nanoseconds, bytes, bytes on the wire.
pub type Row = (u64, Vec<u8>, u32);

/// Path and number of packets of each capture of the large corpus.
pub fn captures(data: &Path) -> Vec<(PathBuf, u64)> {
    let manifest = std::fs::read_to_string(data.join("MANIFEST.tsv")).unwrap();
    let mut rows = manifest
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let head = rows.next().unwrap();
    let column = |name| head.iter().position(|c| *c == name).unwrap();
    let (file, packets) = (column("file"), column("packets"));
    rows.filter(|row| row[file].starts_with("pcap/"))
        .map(|row| (data.join(row[file]), row[packets].parse().unwrap()))
        .collect()
}

/// A temporary directory, deleted on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bw-capture-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Names of the files in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A `barewire capture` command, not started yet.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(process::barewire().unwrap());
    command.arg("capture").args(args);
    command
}

/// Runs `barewire capture` to its end.
pub fn capture<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    Process::spawn(&mut command(args))
        .unwrap()
        .wait(LIMIT)
        .unwrap()
}

/// Parses a pcap file with nanoseconds in little-endian order, with a reader made for tests.
pub fn parse_pcap(bytes: &[u8]) -> Vec<Row> {
    let (head, mut rest) = bytes.split_at(24);
    assert_eq!(head[..4], 0xa1b2_3c4du32.to_le_bytes());
    let mut rows = Vec::new();
    while let Some((head, tail)) = rest.split_first_chunk::<16>() {
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let time = u64::from(word(0)) * 1_000_000_000 + u64::from(word(4));
        let (bytes, tail) = tail.split_at(word(8) as usize);
        rows.push((time, bytes.to_vec(), word(12)));
        rest = tail;
    }
    assert!(
        rest.is_empty(),
        "{} bytes behind the last packet",
        rest.len()
    );
    rows
}

/// Reads a file with libpcap: tcpdump copies it to standard output in nanoseconds. `None` if it
/// refuses the file or a part of it.
pub fn read_with_tcpdump(path: &Path) -> Option<Vec<Row>> {
    let output = Command::new("tcpdump")
        .args(["-Z", "root", "--time-stamp-precision=nano", "-w", "-", "-r"])
        .arg(path)
        .output()
        .expect("tcpdump runs");
    output.status.success().then(|| parse_pcap(&output.stdout))
}

/// Number of packets in a file, as capinfos counts them.
pub fn count_with_capinfos(path: &Path) -> u64 {
    let output = Command::new("capinfos")
        .args(["-Mcr", "-T"])
        .arg(path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let number = text.trim().rsplit('\t').next().unwrap();
    number
        .parse()
        .unwrap_or_else(|_| panic!("capinfos: {text:?}"))
}
