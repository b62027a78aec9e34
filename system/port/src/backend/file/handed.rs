//! How much of a capture file the kernel has accepted, readable while the writer is in a call; and
//! record boundaries, at which a file may be truncated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::file::pcap;

use super::writer::FileFormat;

/// What the kernel has taken so far. Clones are the same; one thread writes.
#[derive(Clone, Debug, Default)]
pub struct KernelProgress(Arc<[AtomicU64; 3]>);

impl KernelProgress {
    /// Adds packets, with their bytes as captured, and the bytes that were written.
    pub fn add(&self, packets: u64, captured_bytes: u64, written_bytes: u64) {
        let more = [packets, captured_bytes, written_bytes];
        for (sum, more) in self.0.iter().zip(more) {
            sum.store(sum.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    /// Packets of which the kernel has everything.
    pub fn packets(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Their bytes, as captured.
    pub fn captured_bytes(&self) -> u64 {
        self.0[1].load(Ordering::Relaxed)
    }

    /// Bytes of the files.
    pub fn written_bytes(&self) -> u64 {
        self.0[2].load(Ordering::Relaxed)
    }
}

/// Records that lie one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Whole {
    /// Bytes of all of them.
    pub len: usize,
    /// How many of them are packets.
    pub packets: u64,
    /// Bytes of these packets, as captured.
    pub captured_bytes: u64,
}

/// The whole records at the start of `bytes`, up to `len_max` bytes of them but one in any case.
/// The bytes are our own, in little-endian order; `has_head`: the head of a pcap file comes first.
pub(super) fn whole_records(
    format: FileFormat,
    has_head: bool,
    bytes: &[u8],
    len_max: usize,
) -> Whole {
    /// Type of an Enhanced Packet Block, and where its captured length is.
    const PACKET_BLOCK: usize = 6;
    const CAPTURED_LEN: usize = 20;
    let mut whole = Whole::default();
    let word = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes) as usize)
    };
    loop {
        let at = whole.len;
        let (len, captured) = match format {
            FileFormat::Pcapng if word(at) == Some(PACKET_BLOCK) => {
                (word(at + 4), word(at + CAPTURED_LEN))
            }
            FileFormat::Pcapng => (word(at + 4), None),
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
