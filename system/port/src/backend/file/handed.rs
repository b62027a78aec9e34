//! How much of a capture file the kernel has accepted, readable while the writer is in a system
//! call; and record boundaries, at which a file may be truncated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::file::pcap;
use wire::file::pcapng::{Block, BlockKind};

use super::writer::FileFormat;

/// What the kernel has accepted so far. Clones share the state; one thread writes.
#[derive(Clone, Debug, Default)]
pub struct KernelProgress(Arc<[AtomicU64; 3]>);

impl KernelProgress {
    /// Adds packets, with their captured bytes, and the number of bytes written.
    pub fn add(&self, packets: u64, captured_bytes: u64, written_bytes: u64) {
        let more = [packets, captured_bytes, written_bytes];
        for (sum, more) in self.0.iter().zip(more) {
            sum.store(sum.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    /// Number of packets that the kernel has accepted in full.
    pub fn packets(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Captured bytes of these.
    pub fn captured_bytes(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }

    /// Number of bytes written to the files.
    pub fn written_bytes(&self) -> u64 {
        self.0[2].load(Ordering::Relaxed)
    }
}

/// A sequence of whole records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Whole {
    /// Length of all records.
    pub len: usize,
    /// Number of packets among them.
    pub packets: u64,
    /// Captured bytes of these packets.
    pub captured_bytes: u64,
}

/// The whole records at the start of `bytes`: up to `len_max` bytes of them, but at least one. A
/// pcap file was written by barewire, in little-endian order; `has_head`: its header comes first.
/// Blocks of pcapng may be those of another writer, in either order.
pub(super) fn whole_records(
    format: FileFormat,
    has_head: bool,
    bytes: &[u8],
    len_max: usize,
) -> Whole {
    let mut whole = Whole::default();
    let word = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes) as usize)
    };
    loop {
        let at = whole.len;
        let (len, captured) = match format {
            FileFormat::Pcapng => {
                let block = Block::of(&bytes[at..]);
                let captured = block.filter(|block| block.kind == BlockKind::Packet);
                (
                    block.map(|block| block.len),
                    captured.map(|block| block.cap_len as usize),
                )
            }
            FileFormat::Pcap(_) if has_head && at == 0 => (Some(pcap::HEADER_LEN), None),
            FileFormat::Pcap(_) => {
                let captured = word(at + 8);
                (captured.map(|len| pcap::RECORD_LEN + len), captured)
            }
        };
        let fits = |len: usize| len > 0 && len <= bytes.len() - at;
        let Some(len) = len.filter(|len| fits(*len) && (at == 0 || at + len <= len_max)) else {
            return whole;
        };
        whole.len += len;
        whole.packets += u64::from(captured.is_some());
        whole.captured_bytes += captured.unwrap_or(0) as u64;
    }
}
