//! Options for writing files, the packet metadata written, and the results.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use ring::slot::Vlan;
use wire::file::pcap::Precision;

use super::super::rotation::Rotation;

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// One link type, no names, no directions; the time in the unit given.
    Pcap(Precision),
    /// All metadata, in nanoseconds.
    Pcapng,
}

/// How a capture file is written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// The file, `-` for standard output, or with [`Rotation`] what its name is made from.
    pub path: PathBuf,
    /// Format of the records.
    pub format: FileFormat,
    /// Whether and how the file is compressed.
    pub compression: FileCompression,
    /// When to rotate the output file.
    pub rotation: Rotation,
    /// Most bytes kept of a packet; 0 is all.
    pub snaplen: u32,
    /// The program, for the head of a pcapng file.
    pub application: String,
    /// Permissions of new files, less the umask: 0600, so that their owner alone reads what was
    /// captured, unless set. A file that is there keeps its own.
    pub mode: u32,
    /// User and group that new files are given to.
    pub owner: Option<(u32, u32)>,
    /// Device and inode of a file that no file of the set may replace, under any name: the input of
    /// a program that reads one capture file and writes others.
    pub keep: Vec<(u64, u64)>,
    /// When the first period of a rotation by time starts, in seconds since 1970; with the first
    /// packet if it is not given, and then the first file is made with it.
    pub start_s: Option<u64>,
    /// Is sent the name of each file of a set that was closed for the next one, or because the set
    /// is complete; not that of the file that a capture ends in.
    pub closed: Option<Sender<PathBuf>>,
}

/// How a file that is written is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileCompression {
    /// Not at all.
    #[default]
    None,
    /// gzip (RFC 1952): members of up to 1 MiB each.
    Gzip,
    /// zstd (RFC 8878): one frame, whose blocks end with each write.
    Zstd,
}

impl WriterOptions {
    /// The format and compression by the name: `.pcap`, `.cap` and `.dmp` are pcap, everything else
    /// pcapng; `.gz` and `.zst` after it compress.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.to_string_lossy().to_ascii_lowercase();
        let (name, compression) = match name.rsplit_once('.') {
            Some((name, "gz")) => (name, FileCompression::Gzip),
            Some((name, "zst")) => (name, FileCompression::Zstd),
            _ => (name.as_str(), FileCompression::None),
        };
        let is_pcap = [".pcap", ".cap", ".dmp"]
            .iter()
            .any(|end| name.ends_with(end));
        let format = match is_pcap {
            true => FileFormat::Pcap(Precision::Nanoseconds),
            false => FileFormat::Pcapng,
        };
        Self {
            path,
            format,
            compression,
            rotation: Rotation::default(),
            snaplen: 0,
            application: format!("barewire {}", env!("CARGO_PKG_VERSION")),
            mode: 0o600,
            owner: None,
            keep: Vec::new(),
            start_s: None,
            closed: None,
        }
    }
}

/// An interface whose packets are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileInterface {
    /// Link type of its packets.
    pub link_type: u16,
    /// Its name.
    pub name: String,
    /// The expression by which packets were chosen; shared, because a file may have thousands of
    /// interfaces with the same.
    pub filter: Arc<str>,
}

/// What is written of a packet in addition to its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// When it came, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Number that [`FileWriter::interface`](super::FileWriter::interface) gave.
    pub interface: u32,
    /// Whether the host sent it, if that is known.
    pub outgoing: Option<bool>,
    /// A tag to be put back into the bytes.
    pub vlan: Option<Vlan>,
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteFormat {
    /// It is in the file, or on its way.
    Packet,
    /// The set of files is complete: it has no place.
    Full,
}

/// What was written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Packets in the files.
    pub packets: u64,
    /// Bytes of the files, as they are on the disk.
    pub bytes: u64,
    /// Files begun.
    pub files: u32,
}
