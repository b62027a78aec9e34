//! The device's side of a split virtqueue (VIRTIO 1.2 §2.7), for a network device (§5.1.6).
//!
//! The guest may write descriptors and rings at any time. Indices and descriptors are therefore
//! read once, and the copies are checked. Of the used ring only the index is read, once: where the
//! vring begins.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use crate::feature;
use crate::memory::Memory;
use crate::message::VringAddr;

/// Length of the header before each packet (§5.1.6), in bytes.
pub const HEADER_LEN: usize = 12;
/// Offset of the number of buffers in it.
const NUM_BUFFERS_AT: usize = 10;

/// Length of a descriptor: address, length, flags, next.
const DESCRIPTOR_LEN: usize = 16;
/// Maximum number of descriptors of a vring (§2.7).
pub(crate) const SIZE_MAX: u32 = 32768;

/// Flags of a descriptor (§2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Flag of the available ring: the guest wants no call (§2.7.6.1).
const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device wants no kick (§2.7.8).
const NO_NOTIFY: u16 = 1;

/// What is wrong with a vring's content: it stops until the front-end starts it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The available index is further ahead than the ring is long.
    AvailableIndex,
    /// A descriptor's number is not below the ring's length, or its table's.
    DescriptorIndex,
    /// A chain has more descriptors than the ring.
    Loop,
    /// A table's length is not that of 1 descriptor up to as many as the ring has.
    TableLen,
    /// A table within a table, or one that is not at the end of its chain, or was not negotiated.
    Table,
    /// A buffer is empty.
    Empty,
    /// A buffer of packets to the device is writable, or one of packets from the device is not.
    Direction,
    /// A buffer or table is not in the guest's memory.
    Address,
    /// The buffers of a chain have no room for a header.
    NoHeader,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AvailableIndex => "the available index is beyond the ring's length",
            Self::DescriptorIndex => "a descriptor's number is beyond the end of its table",
            Self::Loop => "a chain is longer than the ring",
            Self::TableLen => "the length of an indirect table is invalid",
            Self::Table => "an indirect table is where there can be none",
            Self::Empty => "a buffer is empty",
            Self::Direction => "a buffer is of the other direction",
            Self::Address => "a buffer is outside of the guest's memory",
            Self::NoHeader => "a chain has no room for a header",
        })
    }
}

type Result<T> = std::result::Result<T, Broken>;

/// A vring's position and options.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// Number of descriptors: a power of two, at most 32768.
    pub size: u32,
    /// Where its parts are.
    pub addr: VringAddr,
    /// The available index to begin at.
    pub base: u16,
    /// The negotiated feature bits.
    pub features: u64,
}

/// A piece of a buffer in guest memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    addr: u64,
    len: u32,
}

/// A place in the collected pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    piece: usize,
    offset: u32,
}

/// A copied descriptor.
#[derive(Clone, Copy)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn decode(bytes: [u8; DESCRIPTOR_LEN]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self {
            addr: word as u64,
            len: (word >> 64) as u32,
            flags: (word >> 96) as u16,
            next: (word >> 112) as u16,
        }
    }
}

/// A vring in use.
#[derive(Debug)]
pub struct Vring {
    memory: Arc<Memory>,
    layout: Layout,
    /// The three parts, as long as `size` demands, each in one region of `memory`.
    descriptors: NonNull<u8>,
    available: NonNull<u8>,
    used: NonNull<u8>,
    /// Position of the next chain in the available ring.
    next: u16,
    /// Position of the next element in the used ring; published by [`publish`](Self::publish).
    done: u16,
    /// What the guest sees of it.
    published: u16,
    /// Pieces of the chains at hand.
    pieces: Vec<Piece>,
    /// Their heads, and the bytes of each.
    heads: Vec<(u16, u32)>,
}

// SAFETY: the pointers lead into `memory`, which is shared with another process anyway.
unsafe impl Send for Vring {}

/// A chain of packets to the device, whose pieces were checked.
pub struct Chain<'v> {
    memory: &'v Memory,
    pieces: &'v [Piece],
    len: u32,
}

impl Chain<'_> {
    /// Number of bytes in its buffers, including the header.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none; never, because an empty buffer is invalid.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies its bytes from offset `skip` on into `to`; returns false if it is shorter.
    #[inline]
    pub fn read(&self, skip: u32, to: &mut [u8]) -> bool {
        let (mut skip, mut rest) = (skip, to);
        for piece in self.pieces {
            if rest.is_empty() {
                return true;
            }
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            let now = rest.len().min((piece.len - skip) as usize);
            let (part, later) = rest.split_at_mut(now);
            if !self.memory.read(piece.addr + u64::from(skip), part) {
                return false;
            }
            (rest, skip) = (later, 0);
        }
        rest.is_empty()
    }
}

/// The result of sending a packet to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in the guest's buffers, visible after [`Vring::publish`].
    Done,
    /// The guest has too few buffers now.
    NoRoom,
    /// It fits into no buffer, or not into all buffers of the ring together.
    TooLong,
}

impl Vring {
    /// A vring at its place in the guest's memory; `None` if a part of it is not in one region, is
    /// not aligned, or the size is no power of two up to 32768.
    pub fn new(memory: Arc<Memory>, layout: Layout) -> Option<Self> {
        if layout.size > SIZE_MAX || !layout.size.is_power_of_two() {
            return None;
        }
        let mut vring = Self {
            descriptors: NonNull::dangling(),
            available: NonNull::dangling(),
            used: NonNull::dangling(),
            memory: memory.clone(),
            layout,
            next: layout.base,
            done: 0,
            published: 0,
            pieces: Vec::new(),
            heads: Vec::new(),
        };
        if !vring.move_to(memory) {
            return None;
        }
        // Where the guest expects the next element.
        vring.done = vring.load(vring.used, 2, Ordering::Relaxed);
        vring.published = vring.done;
        Some(vring)
    }

    /// Replaces the guest's memory, at the same addresses; false if the vring is not in it: it must
    /// then be dropped.
    pub fn move_to(&mut self, memory: Arc<Memory>) -> bool {
        let (size, addr) = (self.layout.size as usize, &self.layout.addr);
        // Each ring ends with an index for notifications (§2.7.6, §2.7.8).
        let places = (
            memory.user(addr.descriptors, DESCRIPTOR_LEN * size, 16),
            memory.user(addr.available, 6 + 2 * size, 2),
            memory.user(addr.used, 6 + 8 * size, 4),
        );
        let (Some(descriptors), Some(available), Some(used)) = places else {
            return false;
        };
        (self.descriptors, self.available, self.used) = (descriptors, available, used);
        self.memory = memory;
        true
    }

    /// The available index up to which chains were taken.
    pub fn base(&self) -> u16 {
        self.next
    }

    fn has(&self, feature: u64) -> bool {
        self.layout.features & feature != 0
    }

    fn mask(&self) -> u16 {
        (self.layout.size - 1) as u16
    }

    /// A word of a ring.
    ///
    /// # Safety
    /// `offset` is even and below the length of the part that begins at `part`.
    #[inline]
    unsafe fn word(&self, part: NonNull<u8>, offset: usize) -> &AtomicU16 {
        // SAFETY: within the part (the caller's word), which is aligned to two bytes at least and
        // lives as long as `memory`. The guest accesses it, too, hence atomically.
        unsafe { AtomicU16::from_ptr(part.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn load(&self, part: NonNull<u8>, offset: usize, order: Ordering) -> u16 {
        // SAFETY: callers pass offsets of fields: flags, index, and elements below `size`.
        u16::from_le(unsafe { self.word(part, offset) }.load(order))
    }

    #[inline]
    fn store(&self, part: NonNull<u8>, offset: usize, value: u16, order: Ordering) {
        // SAFETY: as in `load`.
        unsafe { self.word(part, offset) }.store(value.to_le(), order);
    }

    /// Number of chains that the guest has made available.
    ///
    /// # Errors
    /// [`Broken::AvailableIndex`].
    #[inline]
    pub fn waiting(&self) -> Result<u32> {
        // Acquire: the guest writes the chains before the index.
        let index = self.load(self.available, 2, Ordering::Acquire);
        let count = u32::from(index.wrapping_sub(self.next));
        match count > self.layout.size {
            true => Err(Broken::AvailableIndex),
            false => Ok(count),
        }
    }

    /// The head of the chain `ahead` positions after the next, which is available.
    #[inline]
    fn head(&self, ahead: u32) -> Result<u16> {
        let at = self.next.wrapping_add(ahead as u16) & self.mask();
        let head = self.load(self.available, 4 + 2 * usize::from(at), Ordering::Relaxed);
        match u32::from(head) < self.layout.size {
            true => Ok(head),
            false => Err(Broken::DescriptorIndex),
        }
    }

    /// Collects the pieces of the chain `ahead` positions after the next, which is available, and
    /// returns its head and its bytes.
    #[inline]
    fn collect(&mut self, ahead: u32, is_writable: bool) -> Result<(u16, u32)> {
        let head = self.head(ahead)?;
        let mut descriptor = self.descriptor(head)?;
        let direction = if is_writable { WRITE } else { 0 };
        let mut total = 0u32;
        // The table that the chain ends in, and the number of its descriptors.
        let mut table = None;
        // A chain together with its table has no more descriptors than the ring (§2.7.5.3.1).
        for _ in 0..self.layout.size {
            if descriptor.flags & INDIRECT != 0 {
                if table.is_some() {
                    return Err(Broken::Table);
                }
                table = Some((descriptor.addr, self.table_len(descriptor)?));
                descriptor = self.in_table(descriptor.addr, 0)?;
                if descriptor.flags & INDIRECT != 0 {
                    return Err(Broken::Table);
                }
            }
            if descriptor.flags & WRITE != direction {
                return Err(Broken::Direction);
            }
            if descriptor.len == 0 {
                return Err(Broken::Empty);
            }
            let Descriptor { addr, len, .. } = descriptor;
            if !self.memory.contains(addr, len as usize) {
                return Err(Broken::Address);
            }
            total = total.saturating_add(len);
            self.pieces.push(Piece { addr, len });
            if descriptor.flags & NEXT == 0 {
                return Ok((head, total));
            }
            descriptor = match table {
                Some((_, count)) if u32::from(descriptor.next) >= count => {
                    return Err(Broken::DescriptorIndex);
                }
                Some((table, _)) => self.in_table(table, descriptor.next)?,
                None => self.descriptor(descriptor.next)?,
            };
        }
        Err(Broken::Loop)
    }

    /// Number of descriptors in the table that a descriptor of the ring leads to: the last one of
    /// its chain (§2.7.5.3.1).
    fn table_len(&self, descriptor: Descriptor) -> Result<u32> {
        if descriptor.flags & NEXT != 0 || !self.has(feature::INDIRECT_DESC) {
            return Err(Broken::Table);
        }
        let len = descriptor.len as usize;
        let count = (len / DESCRIPTOR_LEN) as u32;
        let is_valid =
            len.is_multiple_of(DESCRIPTOR_LEN) && (1..=self.layout.size).contains(&count);
        if is_valid {
            Ok(count)
        } else {
            Err(Broken::TableLen)
        }
    }

    /// Copies descriptor `index` of the ring.
    #[inline]
    fn descriptor(&self, index: u16) -> Result<Descriptor> {
        if u32::from(index) >= self.layout.size {
            return Err(Broken::DescriptorIndex);
        }
        // SAFETY: within the table, which is aligned to 16 bytes. The guest may write meanwhile;
        // any value is valid, and it is this copy that is checked.
        let bytes = unsafe {
            let at = self.descriptors.add(usize::from(index) * DESCRIPTOR_LEN);
            at.cast::<[u8; DESCRIPTOR_LEN]>().read_volatile()
        };
        Ok(Descriptor::decode(bytes))
    }

    /// Copies descriptor `index` of an indirect table.
    fn in_table(&self, table: u64, index: u16) -> Result<Descriptor> {
        let offset = u64::from(index) * DESCRIPTOR_LEN as u64;
        let mut bytes = [0; DESCRIPTOR_LEN];
        let addr = table.checked_add(offset).ok_or(Broken::Address)?;
        match self.memory.read(addr, &mut bytes) {
            true => Ok(Descriptor::decode(bytes)),
            false => Err(Broken::Address),
        }
    }

    /// The next chain of a ring of packets to the device, of which some are waiting; it is taken by
    /// [`done`](Self::done).
    ///
    /// # Errors
    /// Any kind of [`Broken`].
    #[inline]
    pub fn chain(&mut self) -> Result<(u16, Chain<'_>)> {
        self.pieces.clear();
        let (head, len) = self.collect(0, false)?;
        let chain = Chain {
            memory: &self.memory,
            pieces: &self.pieces,
            len,
        };
        Ok((head, chain))
    }

    /// Returns the next chain to the guest, with this head, after the use of `len` of its bytes.
    #[inline]
    pub fn done(&mut self, head: u16, len: u32) {
        let at = usize::from(self.done & self.mask());
        let element = u64::from(head) | u64::from(len) << 32;
        // SAFETY: element `at` of the used ring, which is aligned to 4 bytes (so perhaps not to 8).
        unsafe {
            let place = self.used.add(4 + 8 * at).cast::<u64>();
            place.write_unaligned(element.to_le());
        }
        self.done = self.done.wrapping_add(1);
        self.next = self.next.wrapping_add(1);
    }

    /// Copies a packet, in pieces, into the guest's next buffers, behind a header: into several if
    /// that was negotiated.
    ///
    /// # Errors
    /// Any kind of [`Broken`].
    #[inline]
    pub fn send<'p>(&mut self, len: usize, packet: impl Iterator<Item = &'p [u8]>) -> Result<Sent> {
        let waiting = self.waiting()?;
        let needed = (HEADER_LEN + len) as u64;
        self.pieces.clear();
        self.heads.clear();
        let mut room = 0u64;
        while room < needed {
            let count = self.heads.len() as u32;
            if count == waiting {
                return Ok(match waiting == self.layout.size {
                    true => Sent::TooLong,
                    false => Sent::NoRoom,
                });
            }
            let (head, len) = self.collect(count, true)?;
            if room == 0 && len < HEADER_LEN as u32 {
                return Err(Broken::NoHeader);
            }
            room += u64::from(len);
            self.heads.push((head, len));
            if room < needed && !self.has(feature::MRG_RXBUF) {
                return Ok(Sent::TooLong);
            }
        }
        let mut header = [0; HEADER_LEN];
        let count = self.heads.len() as u16;
        header[NUM_BUFFERS_AT..].copy_from_slice(&count.to_le_bytes());
        let mut place = Place::default();
        self.put(&mut place, &header);
        packet.for_each(|part| self.put(&mut place, part));
        let mut left = needed;
        for at in 0..self.heads.len() {
            let (head, room) = self.heads[at];
            let now = left.min(u64::from(room));
            left -= now;
            self.done(head, now as u32);
        }
        Ok(Sent::Done)
    }

    /// Number of chains that the last [`send`](Self::send) looked at: after [`Sent::NoRoom`], all
    /// that were available then.
    pub fn tried(&self) -> u32 {
        self.heads.len() as u32
    }

    /// Copies bytes into the collected pieces, which have room for all, from `place` on.
    #[inline]
    fn put(&self, place: &mut Place, mut part: &[u8]) {
        while let Some(piece) = self.pieces.get(place.piece)
            && !part.is_empty()
        {
            let left = (piece.len - place.offset) as usize;
            let (now, later) = part.split_at(part.len().min(left));
            // Checked when it was collected.
            self.memory.write(piece.addr + u64::from(place.offset), now);
            place.offset += now.len() as u32;
            part = later;
            if place.offset == piece.len {
                *place = Place {
                    piece: place.piece + 1,
                    offset: 0,
                };
            }
        }
    }

    /// Makes returned chains visible to the guest. Returns whether it wants to be called (§2.7.7).
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.done {
            return false;
        }
        let before = std::mem::replace(&mut self.published, self.done);
        // Release: the elements are written before.
        self.store(self.used, 2, self.done, Ordering::Release);
        // The guest writes its request and then reads the index; here it is the other way round.
        fence(Ordering::SeqCst);
        if self.has(feature::EVENT_IDX) {
            let at = 4 + 2 * self.layout.size as usize;
            let event = self.load(self.available, at, Ordering::Relaxed);
            let since = self.done.wrapping_sub(before);
            return self.done.wrapping_sub(event).wrapping_sub(1) < since;
        }
        self.load(self.available, 0, Ordering::Relaxed) & NO_INTERRUPT == 0
    }

    /// Requests a kick when more than `count` chains are there (§2.7.9); false if there are some
    /// already, or the ring is invalid. `count` is at most the number of those that are there.
    pub fn request_kick(&mut self, count: u32) -> bool {
        if self.has(feature::EVENT_IDX) {
            let at = 4 + 8 * self.layout.size as usize;
            let event = self.next.wrapping_add(count as u16);
            self.store(self.used, at, event, Ordering::Relaxed);
        } else {
            self.store(self.used, 0, 0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.waiting() == Ok(count)
    }

    /// Requests no kicks until [`request_kick`](Self::request_kick).
    pub fn request_no_kick(&mut self) {
        if self.has(feature::EVENT_IDX) {
            // The guest kicks when it passes this position, which it just has.
            let at = 4 + 8 * self.layout.size as usize;
            let behind = self.next.wrapping_sub(1);
            self.store(self.used, at, behind, Ordering::Relaxed);
        } else {
            self.store(self.used, 0, NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// Returns all chains that wait, unread; returns their number. Only their heads are checked.
    ///
    /// # Errors
    /// [`Broken::AvailableIndex`], and [`Broken::DescriptorIndex`] for a head.
    pub fn discard(&mut self) -> Result<u32> {
        let waiting = self.waiting()?;
        for _ in 0..waiting {
            let head = self.head(0)?;
            self.done(head, 0);
        }
        Ok(waiting)
    }
}
