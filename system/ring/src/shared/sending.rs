//! The way back: packets that a peer sends through the owner.
//!
//! ```text
//! | header | two indices | descriptors[n] | (to the end of the page) | buffers[n], a frame each |
//! ```
//!
//! The peer sends a frame that it was handed, unchanged, by its index: nothing is copied. Packets
//! that it has made or changed it writes into the buffers of this memory, which belong to it alone;
//! the frames of the pool stay read-only. The packet at a position of the ring uses the buffer at
//! the same position, so a buffer is free again when its descriptor is.
//!
//! The owner believes nothing of this: it reads each descriptor once and checks it, it copies the
//! bytes of buffers before anything looks at them, and a frame counts only if the peer holds it.

use std::sync::Arc;

use sys::memfd::{Access, HugePages, MemoryFile};
use sys::{Error, ErrorKind, Result};

use super::{ATTACH, LINE};
use crate::cursor::{Producer, RingMemory};
use crate::descriptor::Descriptor;
use crate::pool::{Owner, Pool};
use crate::slot::Slot;

/// First bytes of the memory file.
const MAGIC: [u8; 8] = *b"bw-sends";

/// Changes with the layout of the memory file.
const VERSION: u32 = 1;

/// Maximum number of packets that wait for the owner.
pub const SEND_COUNT_MAX: u32 = 4096;

/// Index in the descriptor of a packet in a buffer.
pub(super) const IN_BUFFER: u32 = u32::MAX;

/// Offset of the descriptors: after the header and two indices.
const DESCRIPTORS: usize = 4 * LINE;

const PAGE: usize = 4096;

/// Offset of the buffers.
fn buffers(entry_count: u32) -> usize {
    (DESCRIPTORS + entry_count as usize * size_of::<Descriptor>()).next_multiple_of(PAGE)
}

/// The memory of one way back, mapped in this process.
pub(super) struct SendMemory {
    file: MemoryFile,
    entry_count: u32,
    buffer_len: u32,
}

impl SendMemory {
    /// Creates the memory for `entry_count` packets (a power of two), in buffers of the length of
    /// the pool's frames.
    pub fn new(entry_count: u32, buffer_len: u32) -> Result<Self> {
        let len = buffers(entry_count) + entry_count as usize * buffer_len as usize;
        let file = MemoryFile::new(c"barewire-send", len, HugePages::Never)?;
        let base = file.mapping().base();
        // SAFETY: the first bytes of the mapping, which nothing else uses yet.
        unsafe {
            base.cast().write(MAGIC);
            base.add(8).cast().write([VERSION, entry_count, buffer_len]);
        }
        Ok(Self {
            file,
            entry_count,
            buffer_len,
        })
    }

    /// Maps the memory that an owner has sent, after checking its header and length.
    fn attach(fd: std::os::fd::OwnedFd, pool: &Pool) -> Result<Self> {
        use std::os::unix::fs::FileExt;
        let refuse = |kind, why: String| Err(Error::new(kind, ATTACH, why));
        let len = sys::memfd::measure(std::os::fd::AsFd::as_fd(&fd))?.len;
        let file = std::fs::File::from(fd);
        let mut header = [0; 20];
        file.read_exact_at(&mut header, 0)
            .map_err(|error| Error::from_io(ATTACH, error))?;
        let number = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        if header[..8] != MAGIC {
            return refuse(
                ErrorKind::InvalidInput,
                "not a memory file to send by".into(),
            );
        }
        let [version, entry_count, buffer_len] = [8, 12, 16].map(number);
        if version != VERSION {
            let why = format!("its layout is version {version}, this program has {VERSION}");
            return refuse(ErrorKind::Unsupported, why);
        }
        let is_valid = entry_count.is_power_of_two() && entry_count <= SEND_COUNT_MAX;
        let expected = |count: u32| buffers(count) + count as usize * buffer_len as usize;
        if !is_valid || buffer_len != pool.frame_len() || expected(entry_count) != len {
            let why = format!("{entry_count} buffers of {buffer_len} bytes in {len} bytes");
            return refuse(ErrorKind::InvalidInput, why);
        }
        let file = MemoryFile::open(file.into(), len, Access::Write)?;
        Ok(Self {
            file,
            entry_count,
            buffer_len,
        })
    }

    pub fn share(&self) -> Result<std::os::fd::OwnedFd> {
        self.file.share(Access::Write)
    }

    fn at<T>(&self, offset: usize) -> *const T {
        // SAFETY: every offset used is within the length of the file.
        unsafe { self.file.mapping().base().add(offset).cast().as_ptr() }
    }

    /// The ring of descriptors. Each process may create one end of it.
    pub fn ring(self: &Arc<Self>) -> RingMemory<Descriptor> {
        // SAFETY: the offsets are those of the layout, aligned and within the mapping, which the
        // `Arc` keeps; any bit pattern is a descriptor. The callers make one end each.
        unsafe {
            RingMemory::from_raw(
                self.at(LINE),
                self.at(2 * LINE),
                self.at(3 * LINE),
                self.at(DESCRIPTORS),
                self.entry_count,
                self.clone(),
            )
        }
    }

    /// The buffer of the packet at a position of the ring.
    pub fn buffer(&self, position: u32) -> *mut u8 {
        let index = (position & (self.entry_count - 1)) as usize;
        let offset = buffers(self.entry_count) + index * self.buffer_len as usize;
        self.at::<u8>(offset).cast_mut()
    }
}

/// Sends packets of a queue's peer through the owner of the pool.
pub struct Sender {
    pool: Pool,
    memory: Arc<SendMemory>,
    ring: Producer<Descriptor>,
    /// Position in the ring of the next packet.
    head: u32,
    /// Packets written since the last [`submit`](Self::submit).
    written: u32,
}

impl Sender {
    /// Maps the memory that the owner of `pool`, which is attached already, has sent.
    pub(crate) fn attach(pool: &Pool, fd: std::os::fd::OwnedFd) -> Result<Self> {
        let memory = Arc::new(SendMemory::attach(fd, pool)?);
        Ok(Self {
            pool: pool.clone(),
            ring: Producer::new(memory.ring()),
            memory,
            head: 0,
            written: 0,
        })
    }

    /// The pool whose frames can be sent without a copy, if this process holds them.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Number of packets or segments that can wait for the owner.
    pub fn entry_count(&self) -> u32 {
        self.memory.entry_count
    }

    /// Length of a buffer in bytes.
    pub fn buffer_len(&self) -> u32 {
        self.memory.buffer_len
    }

    /// How many more packets or segments there is room for now, at most `count`.
    pub fn room(&mut self, count: u32) -> u32 {
        let wanted = count.saturating_add(self.written).min(self.entry_count());
        self.ring.reserve(wanted).saturating_sub(self.written)
    }

    /// Appends slots over the buffers of the next packets: at most `max`, and as many as there is
    /// room for. Their tokens count from 0.
    pub fn reserve(&mut self, slots: &mut Vec<Slot>, max: u32) {
        for ahead in 0..self.room(max) {
            let data = self
                .memory
                .buffer(self.head.wrapping_add(self.written + ahead));
            let Some(data) = std::ptr::NonNull::new(data) else {
                return;
            };
            // SAFETY: a buffer within the mapping, initialized by the kernel, which is this
            // process's until its descriptor is submitted. The owner only reads it, after that.
            slots.push(unsafe { Slot::over(data, self.buffer_len(), 0, ahead.into()) });
        }
    }

    /// Writes the next packet, or a part of it, that was filled into the next of the reserved
    /// buffers. False if there is no room.
    pub fn write_reserved(&mut self, slot: &Slot) -> bool {
        let packet = Descriptor::of(slot, IN_BUFFER, 0);
        self.write(packet)
    }

    /// Copies a part of a packet, with the metadata of its slot, into the next buffer. False if
    /// there is no room, or the part is longer than a buffer.
    pub fn copy(&mut self, slot: &Slot, bytes: &[u8]) -> bool {
        self.copy_bytes(bytes, Descriptor::of(slot, IN_BUFFER, 0))
    }

    /// Like [`copy`](Self::copy), with the metadata of a descriptor.
    pub fn copy_bytes(&mut self, bytes: &[u8], metadata: Descriptor) -> bool {
        if bytes.len() > self.buffer_len() as usize || self.room(1) == 0 {
            return false;
        }
        let buffer = self.memory.buffer(self.head.wrapping_add(self.written));
        // SAFETY: the buffer is this process's, and long enough; it is in other memory than any
        // packet that was received.
        unsafe { std::ptr::copy(bytes.as_ptr(), buffer, bytes.len()) };
        self.write(Descriptor {
            index: IN_BUFFER,
            offset: 0,
            cap_len: bytes.len() as u32,
            ..metadata
        })
    }

    /// Writes the next packet, or a part of it, whose bytes were received and not changed: its
    /// frame goes to the owner without a copy. False if there is no room, or this process does not
    /// hold the frame; then nothing has changed.
    ///
    /// # Safety
    /// The slot's frame is held for it, and the slot forgets it if true is returned.
    pub unsafe fn hand(&mut self, slot: &Slot) -> bool {
        let Some((index, offset)) = slot.place_in(&self.pool) else {
            return false;
        };
        if self.room(1) == 0 || !self.pool.pass(index, Owner::User, Owner::Peer) {
            return false;
        }
        self.write(Descriptor::of(slot, index, offset))
    }

    /// Writes what no peer that keeps the protocol would.
    #[cfg(test)]
    pub(crate) fn write_raw(&mut self, packet: Descriptor) -> bool {
        self.write(packet)
    }

    /// Makes an index visible that is so far behind what was written.
    #[cfg(test)]
    pub(crate) fn forge(&mut self, ahead: u32) {
        self.ring.forge(ahead);
    }

    fn write(&mut self, packet: Descriptor) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        self.ring.write(self.written, packet);
        self.written += 1;
        true
    }

    /// Makes the packets written so far visible to the owner: whole ones.
    pub fn submit(&mut self) {
        let count = std::mem::take(&mut self.written);
        self.ring.submit(count);
        self.head = self.head.wrapping_add(count);
    }

    /// Number of packets or segments that the owner has not taken yet, according to it.
    pub fn pending(&self) -> u32 {
        self.ring.pending()
    }
}
