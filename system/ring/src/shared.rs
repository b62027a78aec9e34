//! A queue from the process that created a pool to another process: the [`OwnerEnd`] hands frames
//! over, the [`PeerEnd`] reads and returns them.
//!
//! ```text
//! | header, counts | four indices | sleeping | closed | descriptors[n] | returned[2n] |
//! ```
//!
//! Both processes can write this memory, so neither trusts it. The peer's positions and indices
//! only select among the frames recorded in the owner's [`Holder`](crate::Holder): whatever the
//! peer writes, no other frame is affected, and the owner never waits for it. The frames themselves
//! can be read-only for the peer ([`Pool::share`](crate::Pool::share)).
//!
//! A peer that is killed loses only the packets that it had taken and not returned: one if it takes
//! them one at a time, or those of a batch. The packets that are still in the ring are passed to
//! the next peer ([`OwnerEnd::recover`]), from the owner's own copy of their descriptors. Between
//! two peers the queue continues to accept packets until it is full.
//!
//! The socket between the two processes also wakes the peer, and shows each process when the other
//! has exited. An eventfd is not suitable: both processes share its mode and count, so a hostile
//! peer could make the owner's write block. An owner that ends sets `closed` first, to whether it
//! ends in order or has lost what its packets come from; the peer of one that was killed finds the
//! socket closed and `closed` not set.

mod fill;
mod greeting;
mod offer;
mod owner;
mod peer;
mod place;
mod sending;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::memfd::{HugePages, MemoryFile};
use sys::{Error, ErrorKind, Result};

pub use self::fill::Batch;
pub use self::greeting::{Interface, Refusal, Request, Terms};
pub use self::offer::{Caller, Offer, connect, drain, status, status_within};
pub use self::owner::{Collected, Handed, OwnerEnd, Recovered, SentCounts, Taken};
pub use self::peer::{PeerEnd, QueueCounts, Ready};
pub use self::place::{NAME_LEN_MAX, check_name, directory, find, list, path_of};
pub use self::sending::{SEND_COUNT_MAX, Sender};
use crate::cursor::RingMemory;
use crate::descriptor::Descriptor;

const ATTACH: &str = "attach to a queue of another process";

/// First bytes of a queue's memory file.
const MAGIC: [u8; 8] = *b"bw-queue";

/// Changes with the layout of the memory file.
const VERSION: u32 = 2;

/// Maximum number of descriptors in a queue.
pub const ENTRY_COUNT_MAX: u32 = 1 << 20;

/// Maximum number of frames of one packet: 64 KiB in frames of 2048 bytes take 32, or 37 with room
/// for headers before each part.
pub const SEGMENT_COUNT_MAX: u32 = 64;

/// Distance between fields written by different processors: two cache lines, because they are
/// prefetched in pairs.
const LINE: usize = 128;

/// Offset of the descriptors: after the header, four indices, and the sleeping flag.
const DESCRIPTORS: usize = 8 * LINE;

/// Values of [`QueueMemory::closed`]. A peer of an older version takes both for an end in order.
const IN_ORDER: u32 = 1;
const LOST: u32 = 2;

/// Length of a queue's memory file in bytes.
fn file_len(entry_count: u32) -> usize {
    let count = entry_count as usize;
    let len = DESCRIPTORS + count * size_of::<Descriptor>() + 2 * count * size_of::<u32>();
    len.next_multiple_of(4096)
}

/// The memory of one queue, mapped in this process.
struct QueueMemory {
    file: MemoryFile,
    entry_count: u32,
}

impl QueueMemory {
    /// Creates the memory of a queue of `entry_count` descriptors, a power of two.
    fn new(entry_count: u32) -> Result<Self> {
        let file = MemoryFile::new(c"barewire-queue", file_len(entry_count), HugePages::Never)?;
        let base = file.mapping().base();
        // SAFETY: the first bytes of the mapping, which nothing else uses yet.
        unsafe {
            base.cast().write(MAGIC);
            base.add(8).cast().write([VERSION, entry_count]);
        }
        Ok(Self { file, entry_count })
    }

    /// Maps the memory of another process's queue, after checking its header and length.
    fn attach(fd: std::os::fd::OwnedFd) -> Result<Self> {
        use std::os::unix::fs::FileExt;
        let refuse = |kind, why: String| Err(Error::new(kind, ATTACH, why));
        let len = sys::memfd::measure(std::os::fd::AsFd::as_fd(&fd))?.len;
        let file = std::fs::File::from(fd);
        let mut header = [0; 16];
        file.read_exact_at(&mut header, 0)
            .map_err(|error| Error::from_io(ATTACH, error))?;
        let number = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        if header[..8] != MAGIC {
            return refuse(ErrorKind::InvalidInput, "not a queue's memory file".into());
        }
        let (version, entry_count) = (number(8), number(12));
        if version != VERSION {
            let why = format!("its layout is version {version}, this program has {VERSION}");
            return refuse(ErrorKind::Unsupported, why);
        }
        let is_valid = entry_count.is_power_of_two() && entry_count <= ENTRY_COUNT_MAX;
        if !is_valid || file_len(entry_count) != len {
            let why = format!("{entry_count} entries in a memory file of {len} bytes");
            return refuse(ErrorKind::InvalidInput, why);
        }
        let file = MemoryFile::open(file.into(), len, sys::memfd::Access::Write)?;
        Ok(Self { file, entry_count })
    }

    fn at<T>(&self, offset: usize) -> *const T {
        // SAFETY: every offset used is within `file_len`.
        unsafe { self.file.mapping().base().add(offset).cast().as_ptr() }
    }

    /// A flag that the peer sets before it sleeps, cleared by the thread that wakes it.
    fn sleeping(&self) -> &AtomicU32 {
        // SAFETY: aligned and within the mapping; only accessed atomically.
        unsafe { &*self.at(5 * LINE) }
    }

    /// Set by an owner that ends: [`IN_ORDER`] or [`LOST`].
    fn closed(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.at(7 * LINE) }
    }

    /// The owner's counts since this memory was created: packets handed over, and packets dropped
    /// because the queue was full. For the peer's information only; the owner keeps its own.
    fn counts(&self) -> [&AtomicU64; 2] {
        // SAFETY: as above, after the header's 16 bytes.
        unsafe { [&*self.at(16), &*self.at(24)] }
    }

    fn set_counts(&self, handed: u64, dropped: u64) {
        let counts = self.counts();
        counts[0].store(handed, Ordering::Relaxed);
        counts[1].store(dropped, Ordering::Relaxed);
    }

    /// The ring of descriptors. Each process may create one end of it.
    fn descriptors(self: &Arc<Self>) -> RingMemory<Descriptor> {
        // SAFETY: the offsets are those of the layout, aligned and within the mapping, which the
        // `Arc` keeps; any bit pattern is a descriptor. The callers make one end each.
        unsafe {
            RingMemory::from_raw(
                self.at(LINE),
                self.at(2 * LINE),
                self.at(6 * LINE),
                self.at(DESCRIPTORS),
                self.entry_count,
                self.clone(),
            )
        }
    }

    /// The ring of returned indices.
    fn returned(self: &Arc<Self>) -> RingMemory<u32> {
        let offset = DESCRIPTORS + self.entry_count as usize * size_of::<Descriptor>();
        // SAFETY: as above.
        unsafe {
            RingMemory::from_raw(
                self.at(3 * LINE),
                self.at(4 * LINE),
                self.at(6 * LINE),
                self.at(offset),
                2 * self.entry_count,
                self.clone(),
            )
        }
    }
}
