//! A pool's tables: the list of free frames, and the owner of each frame. They are in memory of
//! this process alone: no other process can change who owns a frame, or leave a list half changed
//! when it dies.
//!
//! ```text
//! | head    | next[n] | owner[n] |
//!   8 bytes   4 bytes   1 byte
//! ```

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use sys::Result;
use sys::mmap::Mapping;

use super::Owner;
use crate::free;
use crate::sync::{AtomicU32, AtomicU64};

/// The tables of a pool of so many frames.
pub(super) struct Tables {
    memory: Mapping,
    /// Where the owners are in `memory`, worked out once.
    owners: NonNull<AtomicU8>,
    frame_count: u32,
}

impl Tables {
    /// Tables in which all frames have this owner, and none is on the list.
    pub fn new(frame_count: u32, owner: Owner) -> Result<Self> {
        let count = frame_count as usize;
        // `head` first for its alignment.
        let memory = Mapping::anonymous((8 + 5 * count).next_multiple_of(4096))?;
        // SAFETY: the owners lie after `head` and the links, within the mapping.
        let owners = unsafe { memory.base().add(8 + 4 * count) }.cast();
        let tables = Self {
            memory,
            owners,
            frame_count,
        };
        let empty = free::empty();
        tables.head().store(empty, crate::sync::Ordering::Relaxed);
        // Written also where it is 0: the packet path takes no page fault.
        for entry in tables.owners() {
            entry.store(owner as u8, Ordering::Relaxed);
        }
        Ok(tables)
    }

    /// Puts all frames on the list, the first ones on top.
    pub fn free_all(&self) {
        let all: Vec<u32> = (0..self.frame_count).rev().collect();
        free::push(self.head(), self.next(), &all);
    }

    /// Bytes of memory.
    pub fn memory_len(&self) -> usize {
        self.memory.len()
    }

    pub fn head(&self) -> &AtomicU64 {
        // SAFETY: at the start of the mapping, so aligned and as long alive as `self`; it is only
        // accessed atomically.
        unsafe { self.memory.base().cast().as_ref() }
    }

    pub fn next(&self) -> &[AtomicU32] {
        // SAFETY: n words after `head`, aligned to 4, only accessed atomically.
        unsafe {
            let first = self.memory.base().add(8).cast();
            std::slice::from_raw_parts(first.as_ptr(), self.frame_count as usize)
        }
    }

    #[inline(always)]
    pub fn owners(&self) -> &[AtomicU8] {
        // SAFETY: n bytes after the links (see `new`), only accessed atomically.
        unsafe { std::slice::from_raw_parts(self.owners.as_ptr(), self.frame_count as usize) }
    }
}
