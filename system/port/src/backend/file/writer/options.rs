//! Options for writing files, the packet metadata written, and the results.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use ring::slot::Vlan;
use wire::file::pcap::Precision;

use super::super::rotation::Rotation;

/// Format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// pcap: one link type, no names, no directions; the time in the given unit.
    Pcap(Precision),
    /// pcapng: all metadata, in nanoseconds.
    Pcapng,
}

/// Options of a capture file to write.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// The file, `-` for standard output, or with [`Rotation`] the pattern of its name.
    pub path: PathBuf,
    /// Format of the records.
    pub format: FileFormat,
    /// Whether and how the file is compressed.
    pub compression: FileCompression,
    /// When to rotate the output file.
    pub rotation: Rotation,
    /// Maximum number of bytes kept of a packet; 0 for all.
    pub snaplen: u32,
    /// Whether the blocks of another pcapng file are copied, if the format is pcapng.
    pub copy: BlockCopy,
    /// Whether the packets come from an interface of this machine, which a pcapng file then names.
    pub is_live: bool,
    /// Name of the program, for the header of a pcapng file.
    pub application: String,
    /// Permissions of new files, less the umask: by default 0600, so that only their owner can read
    /// what was captured. An existing file keeps its own.
    pub mode: u32,
    /// User and group that new files are given to.
    pub owner: Option<(u32, u32)>,
    /// Start of the first period of a rotation by time, in seconds since 1970; by default that of
    /// the first packet, with which the first file is then created.
    pub start_s: Option<u64>,
    /// Receives the name of each file of a set that was closed for the next one, or because the set
    /// is complete; not that of the file in which a capture ends.
    pub closed: Option<Sender<PathBuf>>,
}

/// How the blocks of another pcapng file are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockCopy {
    /// Not at all: each packet is given with its metadata.
    #[default]
    None,
    /// Each is given to [`FileWriter::block`](super::FileWriter::block) or
    /// [`FileWriter::record`](super::FileWriter::record), none is left out.
    All,
    /// The same, but some are left out: the length of a section is not stated.
    Some,
}

/// Compression of a file to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileCompression {
    /// None.
    #[default]
    None,
    /// gzip (RFC 1952): members of up to 1 MiB each.
    Gzip,
    /// zstd (RFC 8878): one frame, whose blocks end with each write.
    Zstd,
}

impl WriterOptions {
    /// Selects format and compression by name: `.pcap`, `.cap` and `.dmp` are pcap, everything else
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
            copy: BlockCopy::None,
            is_live: true,
            application: format!("barewire {}", env!("CARGO_PKG_VERSION")),
            mode: 0o600,
            owner: None,
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
    /// Name of the interface.
    pub name: String,
    /// The filter expression; shared, because a file may have thousands of interfaces with the same
    /// one.
    pub filter: Arc<str>,
}

/// Metadata of a packet to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// Time of arrival in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length on the wire.
    pub wire_len: u32,
    /// Number returned by [`FileWriter::interface`](super::FileWriter::interface).
    pub interface: u32,
    /// Whether the host sent it, if known.
    pub outgoing: Option<bool>,
    /// A tag to restore in the bytes.
    pub vlan: Option<Vlan>,
}

/// Result of writing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteFormat {
    /// It is in the file, or will be.
    Packet,
    /// The set of files is complete: it was not written.
    Full,
}

/// What was written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of packets in the files.
    pub packets: u64,
    /// Length of the files on disk.
    pub bytes: u64,
    /// Number of files begun.
    pub files: u32,
}
