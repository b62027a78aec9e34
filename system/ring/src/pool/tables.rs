//! A pool's tables: a record and an owner for each frame, the other processes that hold it, and the
//! list of free frames. They are in private memory of this process, so no other process can change
//! the owner of a frame, or leave the list inconsistent when it dies.
//!
//! ```text
//! | record[n] | head    | holding[n] | next[n] | owner[n] |
//!   32 bytes    8 bytes   8 bytes      4 bytes   1 byte
//! ```

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use sys::Result;
use sys::mmap::Mapping;

use super::Owner;
use super::record::Record;
use crate::free;
use crate::sync::{AtomicU32, AtomicU64};

/// Length of a record in bytes.
const RECORD_LEN: usize = size_of::<Record>();

/// The tables of a pool.
pub(super) struct Tables {
    memory: Mapping,
    /// Address of the owners in `memory`, computed once.
    owners: NonNull<AtomicU8>,
    /// The same of the holders.
    holdings: NonNull<AtomicU64>,
    frame_count: u32,
}

impl Tables {
    /// Creates tables in which all frames have this owner, and the list is empty.
    pub fn new(frame_count: u32, owner: Owner) -> Result<Self> {
        let count = frame_count as usize;
        // Ordered by decreasing alignment.
        let len = (RECORD_LEN + 13) * count + 8;
        let memory = Mapping::anonymous_for_tables(len.next_multiple_of(4096))?;
        // SAFETY: the owners lie after all else, within the mapping.
        let owners = unsafe { memory.base().add((RECORD_LEN + 12) * count + 8) }.cast();
        // SAFETY: the holders lie after the head of the list, within the mapping.
        let holdings = unsafe { memory.base().add(RECORD_LEN * count + 8) }.cast();
        let tables = Self {
            memory,
            owners,
            holdings,
            frame_count,
        };
        let empty = free::empty();
        tables.head().store(empty, crate::sync::Ordering::Relaxed);
        // Written even if 0, so that the packet path takes no page faults.
        for (index, entry) in tables.owners().iter().enumerate() {
            entry.store(owner as u8, Ordering::Relaxed);
            tables.holdings()[index].store(0, Ordering::Relaxed);
            // SAFETY: one of the n records; nothing else uses them yet.
            unsafe { tables.records().add(index).write(Record::default()) };
        }
        Ok(tables)
    }

    /// Puts all frames on the list, the first ones on top.
    pub fn free_all(&self) {
        let all: Vec<u32> = (0..self.frame_count).rev().collect();
        free::push(self.head(), self.next(), &all);
    }

    /// Length of the memory in bytes.
    pub fn memory_len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the first record. A record may only be accessed by the holder of its frame.
    #[inline]
    pub fn records(&self) -> NonNull<Record> {
        self.memory.base().cast()
    }

    /// First byte after the records: the head of the list.
    fn after_records(&self) -> NonNull<u8> {
        // SAFETY: within the mapping (see `new`).
        unsafe {
            self.memory
                .base()
                .add(RECORD_LEN * self.frame_count as usize)
        }
    }

    pub fn head(&self) -> &AtomicU64 {
        // SAFETY: after the records, which are multiples of 8 bytes, so it is aligned; as long
        // alive as `self`; only accessed atomically.
        unsafe { self.after_records().cast().as_ref() }
    }

    pub fn next(&self) -> &[AtomicU32] {
        let count = self.frame_count as usize;
        // SAFETY: n words after the holders (see `new`), aligned to 4, only accessed atomically.
        unsafe {
            let first = self.after_records().add(8 + 8 * count).cast();
            std::slice::from_raw_parts(first.as_ptr(), count)
        }
    }

    /// Returns the entries of other processes that hold each frame, see [`crate::Holder`].
    #[inline(always)]
    pub fn holdings(&self) -> &[AtomicU64] {
        // SAFETY: n words after the head (see `new`), aligned to 8, only accessed atomically.
        unsafe { std::slice::from_raw_parts(self.holdings.as_ptr(), self.frame_count as usize) }
    }

    #[inline(always)]
    pub fn owners(&self) -> &[AtomicU8] {
        // SAFETY: n bytes after the links (see `new`), only accessed atomically.
        unsafe { std::slice::from_raw_parts(self.owners.as_ptr(), self.frame_count as usize) }
    }
}
